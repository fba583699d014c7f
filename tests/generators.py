"""Hypothesis strategies for small profiles, and plans that are often, but not always, legal.

`plans` makes whole moves within the gaps that the profile has: out after one access and back before the
next, around the step's end, or released and recomputed; some plans are then damaged. `walks` goes along the
step and does something allowed here and there. Of 100 plans some 70 can run, 30 with a copy back and 20 with
a recompute (`walks`: 85, 40 and 10); `tests/property/test_against_reference.py` holds the shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from hyperopt.plan import Action, Budget, Plan, Recompute, Residency
from hyperopt.profile import COMPUTE, Adapter, Device, Links, Operator, Profile, Storage, Tier, check

HOST_AND_POOL = (
    Tier(name="host", bytes=24, d2h_bytes_per_s=10**6, h2d_bytes_per_s=2 * 10**6, latency_us=0.5),
    Tier(name="pool", bytes=40, d2h_bytes_per_s=10**6, h2d_bytes_per_s=10**6, latency_us=2, duplex=False),
)
ONE_QUEUE = (
    Tier(name="host", bytes=40, d2h_bytes_per_s=3 * 10**6, h2d_bytes_per_s=10**6, duplex=False),
    Tier(name="pool", bytes=16, d2h_bytes_per_s=10**6, h2d_bytes_per_s=7 * 10**6),
)


@st.composite
def profiles(draw: Any, max_operators: int = 8, max_storages: int = 4, streams: bool = True) -> Profile:
    """A consistent profile: sizes of 0 to 9 bytes, durations of 0 to 9 us, up to three streams, two tiers."""
    count = draw(st.integers(1, max_storages))
    resident = [draw(st.booleans()) for _ in range(count)]
    exists = {i for i in range(count) if resident[i]}
    operators = []
    names = draw(st.sampled_from([[COMPUTE], [COMPUTE, COMPUTE, "comm"], [COMPUTE, COMPUTE, "comm", "aside"]]))
    usual = st.integers((2 * max_operators + 2) // 3, max_operators)
    length = draw(usual | usual | usual | st.integers(1, max_operators))
    for _ in range(length):
        reads = draw(st.lists(st.sampled_from(sorted(exists)), unique=True, max_size=3)) if exists else []
        writes = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=2))
        exists.update(writes)
        operators.append(
            Operator(
                reads=tuple(reads),
                writes=tuple(writes),
                duration_us=draw(st.integers(0, 9)),
                workspace_bytes=draw(st.integers(0, 3)),
                stream=draw(st.sampled_from(names)) if streams else COMPUTE,
                recomputable=draw(st.sampled_from([True, True, True, False])),
            )
        )
    storages = tuple(
        Storage(
            id=i,
            bytes=draw(st.integers(0, 9)),
            resident_at_start=resident[i],
            resident_at_end=i in exists and draw(st.booleans()),
            offloadable=draw(st.sampled_from([True, True, True, True, False])),
        )
        for i in range(count)
    )
    tiers = draw(st.sampled_from([HOST_AND_POOL, ONE_QUEUE]))
    device = Device(base_bytes=draw(st.integers(0, 3)), links=Links(tiers=tiers))
    profile = Profile(operators=tuple(operators), storages=storages, device=device, adapter=Adapter())
    check(profile)
    return profile


@dataclass
class _Draft:
    actions: list[Action] = field(default_factory=list)
    recompute: list[Recompute] = field(default_factory=list)
    initial: dict[int, str] = field(default_factory=dict)

    def act(self, op: int, kind: Any, storage: int, tier: str | None = None) -> None:
        when: Any = "before" if kind == "copy_in" else "after"
        self.actions.append(Action(op=op, when=when, kind=kind, storage=storage, tier=tier))


@dataclass(frozen=True)
class _Gap:
    """Between two consecutive accesses of a storage; `leave` and `back` are compute operators within it."""

    storage: int
    last: int
    next: int
    compute: tuple[int, ...]

    @property
    def leave(self) -> list[int]:
        return [k for k in self.compute if self.last <= k < self.next]

    def back(self, left: int) -> list[int]:
        return [k for k in self.compute if left < k <= self.next]


def _gaps(profile: Profile) -> list[_Gap]:
    """Gaps in which a storage can leave and return."""
    compute = tuple(k for k, o in enumerate(profile.operators) if o.stream == COMPUTE)
    gaps = []
    for s in profile.by_id:
        accesses = [k for k, o in enumerate(profile.operators) if s in o.accesses]
        gaps += [_Gap(s, a, b, compute) for a, b in pairwise(accesses)]
    return [g for g in gaps if g.leave and g.back(g.leave[0])]


@st.composite
def plans(draw: Any, profile: Profile) -> Plan:
    """A plan made of round trips and recomputes in the profile's gaps, some of them damaged."""
    draft = _Draft()
    swaps, remakes = _gaps(profile), _remakes(profile)
    if not profile.by_id or draw(st.integers(0, 9)) == 9:
        swaps, remakes = [], []
    movable = [gap for gap in swaps if profile.by_id[gap.storage].offloadable]
    kinds = draw(st.sampled_from(["both", "both", "remake", "both", "swap"]))
    if remakes and kinds != "swap":
        for gap, writer in draw(st.lists(st.sampled_from(remakes), unique_by=lambda r: r[0], min_size=1, max_size=2)):
            _remake(draw, profile, gap, writer, draft)
            movable = [other for other in movable if other != gap]
    if movable and (kinds != "remake" or not remakes):
        for gap in draw(st.lists(st.sampled_from(movable), unique=True, min_size=1, max_size=3)):
            _round_trip(draw, profile, gap, draft)
    for storage in profile.storages:
        if storage.resident_at_start and storage.offloadable and draw(st.integers(0, 7)) == 7:
            _around_the_end(draw, profile, storage, draft)
    if draw(st.integers(0, 3)) == 3:
        _damage(draw, profile, draft)
    # The stays of one storage do not overlap, so their order in the document matters only at one operator.
    if draw(st.integers(0, 7)) == 7:
        draft.actions = draw(st.permutations(draft.actions))
    else:
        draft.actions.sort(key=lambda a: a.op)
    total = profile.device.base_bytes + sum(s.bytes for s in profile.storages)
    budget = Budget(
        hbm_bytes=total + draw(st.sampled_from([20, 20, 12, 12, 6, 3, 0, -total // 4, -total // 2])),
        tiers=draw(st.sampled_from([{}, {}, {}, {}, {}, {"host": 20}, {"pool": 40, "host": 12}, {"pool": 9}])),
    )
    residency = Residency(initial=draft.initial, actions=tuple(draft.actions), recompute=tuple(draft.recompute))
    return Plan(budget=budget, residency=residency)


@st.composite
def walks(draw: Any, profile: Profile) -> Plan:
    """A plan made by walking along the step, mostly legal, with what `plans` has not: copies out that are
    never used, given up, made again elsewhere, moves without a use, many stays of one storage."""
    rng = draw(st.randoms(use_true_random=False))
    draft, walk = _Draft(), _Walk(profile)
    compute = [k for k, o in enumerate(profile.operators) if o.stream == COMPUTE]
    for k, operator in enumerate(profile.operators):
        if k in compute:
            following = next((c for c in compute if c > k), len(profile.operators))
            walk.bring_back(k, following, draft, rng.random)
        walk.run(k)
        if operator.stream == COMPUTE:
            walk.send_away(k, following, draft, rng.random)
        walk.forget(k)
    total = profile.device.base_bytes + sum(s.bytes for s in profile.storages)
    residency = Residency(actions=tuple(draft.actions), recompute=tuple(draft.recompute))
    return Plan(budget=Budget(hbm_bytes=total + draw(st.sampled_from([30, 20, 12, 3]))), residency=residency)


class _Walk:
    """Where each storage is on the way."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.in_hbm = {s.id for s in profile.storages if s.resident_at_start}
        self.in_tier: set[int] = set()
        self.dropped: set[int] = set()
        self.writer: dict[int, int] = {}

    def needed(self, first: int, end: int) -> set[int]:
        """Storages that operators `first` to `end - 1` access, and at the step's end those that stay."""
        needed = {s for o in self.profile.operators[first:end] for s in o.accesses}
        if end == len(self.profile.operators):
            needed |= {s.id for s in self.profile.storages if s.resident_at_end}
        return needed

    def bring_back(self, k: int, following: int, draft: _Draft, chance: Callable[[], float]) -> None:
        needed = self.needed(k, following)
        for s in sorted(self.dropped):
            if (s in needed and chance() < 0.9) or chance() < 0.1:
                needed |= set(self.profile.operators[self.writer[s]].reads)
                draft.recompute.append(Recompute(storage=s, before_op=k, ops=(self.writer[s],)))
                self.dropped.remove(s)
                self.in_hbm.add(s)
        for s in sorted(self.in_tier - self.in_hbm):
            if s in needed or chance() < 0.15:
                draft.act(k, "copy_in", s)
                self.in_hbm.add(s)

    def run(self, k: int) -> None:
        for s in self.profile.operators[k].writes:
            self.in_hbm.add(s)
            self.in_tier.discard(s)
            self.writer[s] = k

    def send_away(self, k: int, following: int, draft: _Draft, chance: Callable[[], float]) -> None:
        busy = self.needed(k + 1, following)
        for s in sorted(self.in_hbm):
            if s not in self.in_tier and self.profile.by_id[s].offloadable and chance() < 0.3:
                draft.act(k, "copy_out", s, ["host", "pool", None][int(chance() * 3)])
                self.in_tier.add(s)
            if s in self.in_tier and s not in busy and chance() < 0.6:
                draft.act(k, "release", s)
                self.in_hbm.remove(s)
            elif s in self.in_tier and chance() < 0.2:
                draft.act(k, "release_host", s)
                self.in_tier.remove(s)
            elif s not in self.in_tier | busy and self.can_run_again(s) and chance() < 0.15:
                draft.act(k, "release", s)
                self.in_hbm.remove(s)
                self.dropped.add(s)

    def can_run_again(self, s: int) -> bool:
        return s in self.writer and self.profile.operators[self.writer[s]].recomputable

    def forget(self, k: int) -> None:
        """What is not accessed after k is gone (a recompute may keep it: then actions are missing)."""
        later = self.needed(k + 1, len(self.profile.operators))
        for gone in (self.in_hbm, self.in_tier, self.dropped):
            gone &= later


def _tier(draw: Any) -> str | None:
    tier: str | None = draw(st.sampled_from(["host", "pool", None]))
    return tier


def _round_trip(draw: Any, profile: Profile, gap: _Gap, draft: _Draft) -> None:
    """Out and back; the copy out may come before the release, and the host copy be given up later."""
    left = draw(st.sampled_from(gap.leave))
    if not gap.back(left):
        left = gap.leave[0]
    back = draw(st.sampled_from(gap.back(left)))
    out = draw(st.sampled_from([k for k in gap.leave if k <= left]))
    draft.act(out, "copy_out", gap.storage, _tier(draw))
    draft.act(left, "release", gap.storage)
    draft.act(back, "copy_in", gap.storage)
    stale = gap.storage in profile.operators[gap.next].writes
    held = [k for k in gap.compute if back <= k and (k < gap.next or (k == gap.next and not stale))]
    if held and draw(st.integers(0, 3)) == 3:
        draft.act(draw(st.sampled_from(held)), "release_host", gap.storage)


def _remakes(profile: Profile) -> list[tuple[_Gap, int]]:
    """Gaps within which the last writer can run again: its inputs and other outputs are not overwritten."""
    operators = profile.operators
    found = []
    for gap in _gaps(profile):
        writers = [k for k in range(gap.last + 1) if gap.storage in operators[k].writes]
        if not writers or not operators[writers[-1]].recomputable:
            continue
        writer, first_back = writers[-1], gap.back(gap.leave[0])[0]
        inputs, others = set(operators[writer].reads), set(operators[writer].writes) - {gap.storage}
        spoilt = any(s in inputs for k in range(writer, first_back) for s in operators[k].writes)
        if not spoilt and not any(s in others for k in range(writer + 1, first_back) for s in operators[k].writes):
            found.append((gap, writer))
    return found


def _remake(draw: Any, profile: Profile, gap: _Gap, writer: int, draft: _Draft) -> None:
    """Dropped (as a rule) and made again by its last writer, sometimes together with what feeds that."""
    left = gap.leave[0] if not gap.back(gap.leave[-1]) else draw(st.sampled_from(gap.leave))
    back = draw(st.sampled_from(gap.back(left)[:2]))
    if draw(st.integers(0, 5)) < 5:
        draft.act(left, "release", gap.storage)
    operators = profile.operators
    ops: tuple[int, ...] = (writer,)
    feeders = [k for k in range(writer) if set(operators[k].writes) & set(operators[writer].reads)]
    if feeders and draw(st.integers(0, 7)) == 7:
        ops = (feeders[-1], writer)
    draft.recompute.append(Recompute(storage=gap.storage, before_op=back, ops=ops))


def _around_the_end(draw: Any, profile: Profile, storage: Storage, draft: _Draft) -> None:
    """In a tier at the step's start, and, unless it ends within the step, at its end."""
    compute = [k for k, o in enumerate(profile.operators) if o.stream == COMPUTE]
    accesses = [k for k, o in enumerate(profile.operators) if storage.id in o.accesses]
    back = [k for k in compute if not accesses or k <= accesses[0]]
    leave = [k for k in compute if not accesses or k >= accesses[-1]]
    tier = _tier(draw) or "host"
    if (accesses and not back) or list(draft.initial.values()).count(tier) == 2:
        return
    if storage.resident_at_end and accesses:
        if not leave:
            return
        at = draw(st.sampled_from(leave))
        draft.act(at, "copy_out", storage.id, tier)
        draft.act(at, "release", storage.id)
    if accesses:
        draft.act(draw(st.sampled_from(back)), "copy_in", storage.id)
    draft.initial[storage.id] = tier


def _damage(draw: Any, profile: Profile, draft: _Draft) -> None:
    """One action too many, too few, or elsewhere; or a recompute of anything anywhere."""
    n, ids = len(profile.operators), [s.id for s in profile.storages]
    how = draw(st.integers(0, 4))
    if how == 0 and draft.actions:
        draft.actions.pop(draw(st.integers(0, len(draft.actions) - 1)))
    elif how == 1 and draft.actions:
        moved = draft.actions.pop(draw(st.integers(0, len(draft.actions) - 1)))
        draft.act(draw(st.integers(0, n)), moved.kind, moved.storage, moved.tier)
    elif how == 2:
        ops = tuple(draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3)))
        before = draw(st.integers(0, n - 1))
        draft.recompute.append(Recompute(storage=draw(st.sampled_from(ids)), before_op=before, ops=ops))
    elif how == 3 and draft.initial:
        draft.initial.pop(draw(st.sampled_from(sorted(draft.initial))))
    else:
        kind = draw(st.sampled_from(["copy_out", "release", "copy_in", "release_host"]))
        draft.act(draw(st.integers(0, n)), kind, draw(st.sampled_from(ids)))
