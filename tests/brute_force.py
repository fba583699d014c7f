"""Every plan of moves for a tiny profile, judged by replay: what the solver is measured against."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, permutations, product

import msgspec

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Action, ActionKind, Budget, Plan, Recompute, Residency
from hyperopt.profile import COMPUTE, Operator, Profile, Storage
from hyperopt.replay import replay

Slot = tuple[int, ActionKind]


def optimum_ns(profile: Profile, budget: Budget, trips: int = 2) -> int | None:
    """The least step time (ns) over all plans with at most `trips` round trips a storage; None: none runs.

    Tries every position of every action, every `initial`, and every order of the storages in a slot.
    """
    best: int | None = None
    own = [list(_itineraries(profile, storage, trips)) for storage in profile.storages]
    for chosen in product(*own):
        moved = [(s.id, *way) for s, way in zip(profile.storages, chosen, strict=True) if way[0] or way[1]]
        initial = {id: "host" for id, starts_out, _ in moved if starts_out}
        for order in permutations(moved):
            actions = tuple(_action(op, kind, id) for id, _, slots in order for op, kind in slots)
            best = _better(best, profile, budget, Residency(initial=initial, actions=actions))
    return best


def optimum_with_recompute_ns(profile: Profile, budget: Budget) -> int | None:
    """As `optimum_ns` with one trip or drop a storage and up to two single recomputes; one order of actions."""
    compute = [k for k, o in enumerate(profile.operators) if o.stream == COMPUTE]
    operators = profile.operators
    single = [
        Recompute(storage=s, before_op=k, ops=(j,))
        for k in compute
        for j in range(k)
        if operators[j].recomputable
        for s in operators[j].writes
    ]
    pairs = [(a, b) for a in single for b in single if a.before_op <= b.before_op]
    recomputes: list[tuple[Recompute, ...]] = [(), *((one,) for one in single), *pairs]
    own = []
    for storage in profile.storages:
        drops: list[tuple[bool, tuple[Slot, ...]]] = [(False, ((k, "release"),)) for k in compute]
        own.append([*_itineraries(profile, storage, 1), *drops])
    best: int | None = None
    for chosen in product(*own):
        actions, initial = [], {}
        for storage, (starts_out, slots) in zip(profile.storages, chosen, strict=True):
            if starts_out:
                initial[storage.id] = "host"
            actions += [_action(op, kind, storage.id) for op, kind in slots]
        dropped = any([kind for _, kind in slots] == ["release"] for _, slots in chosen)
        for again in recomputes if dropped else [()]:
            residency = Residency(initial=initial, actions=tuple(actions), recompute=again)
            best = _better(best, profile, budget, residency)
    return best


def _better(best: int | None, profile: Profile, budget: Budget, residency: Residency) -> int | None:
    try:
        found = replay(profile, Plan(budget=budget, residency=residency)).step_ns
    except (IllegalPlan, OutOfMemory):
        return best
    return found if best is None else min(best, found)


def _action(op: int, kind: ActionKind, storage: int) -> Action:
    return Action(op=op, when="before" if kind == "copy_in" else "after", kind=kind, storage=storage)


def _itineraries(profile: Profile, storage: Storage, trips: int) -> Iterator[tuple[bool, tuple[Slot, ...]]]:
    """(starts out, actions): nothing, round trips, or a start (and end) in the tier."""
    yield False, ()
    if not storage.offloadable or not storage.bytes:
        return
    places = [k for k, o in enumerate(profile.operators) if o.stream == COMPUTE]
    middle = list(_trips(places, trips, -1))
    for slots in middle:
        if slots:
            yield False, slots
    if storage.resident_at_start:
        yield True, ()
        for back in places:
            for slots in middle:
                if not slots or slots[0][0] >= back:
                    last = slots[-1][0] if slots else back
                    yield True, ((back, "copy_in"), *slots)
                    for out in (k for k in places if k >= last):
                        for leave in (k for k in places if k >= out):
                            yield True, ((back, "copy_in"), *slots, (out, "copy_out"), (leave, "release"))


def _trips(places: list[int], trips: int, after: int) -> Iterator[tuple[Slot, ...]]:
    yield ()
    if not trips:
        return
    for out in (k for k in places if k >= after):
        for leave in (k for k in places if k >= out):
            for back in (k for k in places if k > leave):
                for rest in _trips(places, trips - 1, back):
                    yield ((out, "copy_out"), (leave, "release"), (back, "copy_in"), *rest)


class TooMany(Exception):
    """More plans than asked for."""


PARTIAL = 50
"""Ways put together, or looked at, that take about as long as a replay."""


class _Count:
    """Of work, in replays: most of it; putting ways together counts too, or a step may take minutes at it."""

    def __init__(self, most: int) -> None:
        self.left = most * PARTIAL

    def one(self) -> None:
        """A replay."""
        self._take(PARTIAL)

    def part(self) -> None:
        """One more way, alone or beside others."""
        self._take(1)

    def _take(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise TooMany


Way = tuple[str, tuple[tuple[int, ActionKind, str | None], ...]]
"""Of one storage: the tier at the step's start ("": HBM) and its actions (operator, kind, tier of a copy out)."""

Again = tuple[tuple[int, int], ...]
"""What runs again: (before operator, operator), in order."""

PATTERNS: tuple[tuple[ActionKind, ...], ...] = (
    (),
    ("copy_out", "release"),
    ("release",),
    ("copy_out",),
    ("release_host",),
    ("release_host", "copy_out"),
    ("release_host", "copy_out", "release"),
    ("release_host", "release"),
)
"""What may be done with one storage after one operator."""


def least_ns(
    profile: Profile, budget: Budget, *, leaves: int = 2, executions: int = 2, most: int = 40_000, lower_ns: int = 0
) -> int | None:
    """The least step time (ns) over all plans, several tiers and recomputes included; None: no plan runs.

    A storage leaves HBM up to `leaves` times, at any places, copied out to any tier at any place before, or dropped;
    up to `executions` operators run again, each anywhere, in any order. Copies issued at one operator are tried in
    every order. A plan as fast as `lower_ns`, or as the unlimited step, is the best. Raises `TooMany` past the work of
    `most` replays. What is left out: more leaves and executions, and actions without an effect.
    """
    lower_ns = max(lower_ns, replay(profile).step_ns)
    best: int | None = None
    count = _Count(most)
    known: dict[tuple[int, Again], list[Way]] = {}
    for again in _executions(profile, executions):
        ways = []
        for storage in profile.storages:
            own = tuple((k, j) for k, j in again if storage.id in profile.operators[j].accesses)
            if (storage.id, own) not in known:
                known[storage.id, own] = _ways(profile, storage, budget, own, leaves, count)
            ways.append(known[storage.id, own])
        fitting = [
            chosen for chosen in _fitting(profile, budget, again, ways, count) if not again or any(map(_drops, chosen))
        ]
        for chosen in sorted(fitting, key=lambda ways: sum(len(actions) for _, actions in ways)):
            for residency in _orders(profile, chosen, again):
                count.one()
                best = _better(best, profile, budget, residency)
                if best is not None and best <= lower_ns:
                    return best
    return best


def _fitting(
    profile: Profile, budget: Budget, again: Again, ways: list[list[Way]], count: _Count
) -> Iterator[tuple[Way, ...]]:
    """One way a storage, together within the budget at every operator: others run out of memory."""
    assert budget.hbm_bytes is not None
    room = [budget.hbm_bytes - profile.device.base_bytes - o.workspace_bytes for o in profile.operators]
    held: list[list[tuple[Way, list[int]]]] = []
    for storage, own in zip(profile.storages, ways, strict=True):
        held.append([])
        for way in own:
            count.part()
            held[-1].append((way, _held(profile, storage, way, again)))

    def go(i: int, left: list[int], chosen: tuple[Way, ...]) -> Iterator[tuple[Way, ...]]:
        if i == len(held):
            count.one()
            yield chosen
            return
        for way, taken in held[i]:
            count.part()
            rest = [a - b for a, b in zip(left, taken, strict=True)]
            if min(rest, default=0) >= 0:
                yield from go(i + 1, rest, (*chosen, way))

    yield from go(0, room, ())


def _held(profile: Profile, storage: Storage, way: Way, again: Again) -> list[int]:
    """Bytes of HBM that a storage takes while each operator runs."""
    s, operators = storage.id, profile.operators
    uses = [k for k, o in enumerate(operators) if s in o.accesses]
    uses += [k for k, j in again if s in operators[j].accesses]
    dies = len(operators) if storage.resident_at_end or not uses else max(uses)
    home, actions = way
    there = storage.resident_at_start and not home
    taken = []
    for k, operator in enumerate(operators):
        there = there or s in operator.writes or any(k == at and s in operators[j].writes for at, j in again)
        there = there or (k, "copy_in", None) in actions
        taken.append(storage.bytes if there and k <= dies else 0)
        if (k, "release", None) in actions:
            there = False
    return taken


def _drops(way: Way) -> bool:
    """Whether a storage is ever released without a copy that this step or the start has made."""
    home, actions = way
    copied = bool(home)
    for _, kind, _ in actions:
        copied = copied or kind == "copy_out"
        if kind == "release_host":
            copied = False
        if kind == "release" and not copied:
            return True
    return False


def _executions(profile: Profile, most: int) -> Iterator[Again]:
    """None, one, ... up to `most` executions, at rising operators, in every order at one."""
    compute = [k for k, o in enumerate(profile.operators) if o.stream == COMPUTE]
    able = [j for j, o in enumerate(profile.operators) if o.recomputable and o.writes]
    every = [(k, j) for k in compute for j in able if j < k]
    for count in range(most + 1):
        for chosen in product(every, repeat=count):
            if all(a[0] <= b[0] for a, b in pairwise(chosen)):
                yield chosen


def _ways(profile: Profile, storage: Storage, budget: Budget, again: Again, leaves: int, count: _Count) -> list[Way]:
    """What one storage may do beside these executions. Legality is each storage's own: others are left out."""
    s, spare = storage.id, max(profile.by_id) + 1
    operators = tuple(
        msgspec.structs.replace(
            o,
            reads=tuple(r for r in o.reads if r == s),
            writes=(*(w for w in o.writes if w == s), *([spare] if o.recomputable else [])),
            workspace_bytes=0,
        )
        for o in profile.operators
    )
    marker = Storage(id=spare, bytes=0, offloadable=False)
    alone = msgspec.structs.replace(profile, operators=operators, storages=(storage, marker))
    recompute = tuple(
        Recompute(storage=s if s in operators[j].writes else spare, before_op=k, ops=(j,)) for k, j in again
    )
    tiers = [name for name, size in budget.tier_bytes(profile).items() if size >= storage.bytes]
    tiers = tiers if storage.offloadable and storage.bytes else []
    roomy = msgspec.structs.replace(budget, hbm_bytes=2**40)
    found = []
    for home in ["", *(tiers if storage.resident_at_start else [])]:
        for actions in _walks(operators, storage, tiers, home, again, leaves):
            count.one()
            try:
                residency = _residency({s: home} if home else {}, [(s, a) for a in actions], recompute)
                replay(alone, Plan(budget=roomy, residency=residency))
            except (IllegalPlan, OutOfMemory):
                continue
            found.append((home, actions))
    return found


def _walks(
    operators: tuple[Operator, ...], storage: Storage, tiers: list[str], home: str, again: Again, leaves: int
) -> Iterator[tuple[tuple[int, ActionKind, str | None], ...]]:
    """Actions of one storage, operator by operator: more than what is legal, and nothing legal left out."""
    s = storage.id
    makers = {k for k, j in again if s in operators[j].writes}

    def go(
        k: int, there: bool, copy: str, left: int, done: tuple[tuple[int, ActionKind, str | None], ...]
    ) -> Iterator[tuple[tuple[int, ActionKind, str | None], ...]]:
        if k == len(operators):
            if not done or done[-1][1] != "copy_out":
                yield done
            return
        operator = operators[k]
        written = s in operator.writes
        used = written or s in operator.reads
        if operator.stream != COMPUTE:
            if not used or there or written:
                yield from go(k + 1, there or written, "" if written else copy, left, done)
            return
        arrivals: list[tuple[bool, tuple[tuple[int, ActionKind, str | None], ...]]] = [(there, done)]
        if not there and copy:
            arrivals.append((True, (*done, (k, "copy_in", None))))
        for here, so_far in arrivals:
            kept = copy
            if k in makers:
                here, kept = True, ""
            if used and not here and not written:
                continue
            here, kept = here or written, "" if written else kept
            for pattern in PATTERNS if here else ((),):
                yield from leave(k, kept, left, so_far, pattern, here)

    def leave(
        k: int,
        copy: str,
        left: int,
        done: tuple[tuple[int, ActionKind, str | None], ...],
        pattern: tuple[ActionKind, ...],
        there: bool,
    ) -> Iterator[tuple[tuple[int, ActionKind, str | None], ...]]:
        if ("release" in pattern and not left) or ("release_host" in pattern and not copy):
            return
        after = "" if "release_host" in pattern else copy
        if "copy_out" in pattern and after:
            return
        if pattern == ("release",) and not after and k >= max(makers, default=-1):
            return  # gone for good
        for tier in tiers if "copy_out" in pattern else [None]:
            steps = tuple((k, kind, tier if kind == "copy_out" else None) for kind in pattern)
            gone = "release" in pattern
            yield from go(k + 1, there and not gone, tier or after, left - gone, (*done, *steps))

    yield from go(0, storage.resident_at_start and not home, home, leaves, ())


def _orders(profile: Profile, chosen: tuple[Way, ...], again: Again) -> Iterator[Residency]:
    """A plan for every order of the copies that are issued together."""
    initial = {storage.id: home for storage, (home, _) in zip(profile.storages, chosen, strict=True) if home}
    recompute = tuple(Recompute(storage=profile.operators[j].writes[0], before_op=k, ops=(j,)) for k, j in again)
    acts = [(storage.id, action) for storage, (_, own) in zip(profile.storages, chosen, strict=True) for action in own]
    together: dict[tuple[int, str], list[tuple[int, tuple[int, ActionKind, str | None]]]] = {}
    rest = []
    for act in acts:
        if act[1][1] in ("copy_in", "copy_out"):
            together.setdefault(act[1][:2], []).append(act)
        else:
            rest.append(act)
    first = [act for act in rest if act[1][1] == "release_host"]
    last = [act for act in rest if act[1][1] == "release"]
    for orders in product(*(permutations(group) for group in together.values())):
        yield _residency(initial, [*first, *(act for group in orders for act in group), *last], recompute)


def _residency(
    initial: dict[int, str],
    acts: list[tuple[int, tuple[int, ActionKind, str | None]]],
    recompute: tuple[Recompute, ...],
) -> Residency:
    actions = tuple(
        Action(op=op, when="before" if kind == "copy_in" else "after", kind=kind, storage=s, tier=tier)
        for s, (op, kind, tier) in acts
    )
    return Residency(initial=initial, actions=actions, recompute=recompute)
