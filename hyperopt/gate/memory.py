"""Memory, compared exactly: replayed peaks are figures of the program alone, so a single byte means something.

On one stream that is so by itself. Where operators overlap on several, when a storage is released hangs on what they
took, and that is noise: an allreduce of 201 us instead of 199 may hold a block past the next allocation. So both
programs are given the same times, and their order is asked as well::

    the same program        its peak is the baseline's: nothing that was measured differs but the times
    different programs      the candidate's operators take the times of the baseline's of their kind, in their order;
                            judged together with the peaks of one operator after the other (no overlap at all):
                            both grow: a regression; neither: a pass; one: it hangs on the overlap, inconclusive

The difference is explained by what lies in HBM at either peak, by layer and kind. The groups add up to it exactly::

    candidate peak - baseline peak = sum over (layer, kind) of bytes at the candidate's peak - bytes at the baseline's

Where both profiles were captured, `base_bytes` is what the memory record showed beyond the storages that the capture
could tell apart. It differs between two captures of the same code by a few bytes, or by a whole block that one capture
counts as a storage and the other as base. So two differences are looked at: of the peaks, and of what storages and
workspace add to base. A step that needs more memory shows in both; the smaller one is judged::

    the same code, twice      peaks      +8    above base       0    judged       0
    a block counted otherwise peaks  +16424    above base +1048576   judged  +16424
    4 MiB more activations    peaks +4194304   above base +4194304   judged +4194304

In PyNative, lifetimes are partly inferred from that record too: some KiB are noise, and `CAPTURED_PYNATIVE` is what is
allowed unless the caller says something else. Whatever is allowed is part of the reason given.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import msgspec

from hyperopt.occupancy import Block, Occupancy, occupancy
from hyperopt.profile import COMPUTE, Operator, Profile

Status = Literal["pass", "regression", "inconclusive", "not judged"]

BASE, WORKSPACE = "base", "workspace"
"""Kinds of the bytes at a peak that no storage holds."""

NAMED = 5
"""Storages named in a group."""

MOST_RENAMED = 100
"""Layers looked at for one that has gone: a model's layers are renamed in order."""


@dataclass(frozen=True)
class Threshold:
    """By how much the peak may grow: `bytes`, or `percent` of the baseline's peak, whichever is more."""

    bytes: int = 0
    percent: float = 0.0

    def allowed(self, baseline_bytes: int) -> int:
        """Bytes, rounded down."""
        return max(self.bytes, int(baseline_bytes * Fraction(str(self.percent)) / 100))


EXACT = Threshold()
CAPTURED_PYNATIVE = Threshold(percent=0.1)
"""The default between two PyNative captures: their peaks of the same code are up to some 20 KiB in 240 MiB apart."""


def default_threshold(baseline: Profile, candidate: Profile) -> Threshold:
    """`EXACT`, but between two PyNative captures `CAPTURED_PYNATIVE`."""
    eager = all(_captured(p) and p.adapter.mode == "pynative" for p in (baseline, candidate))
    return CAPTURED_PYNATIVE if eager else EXACT


def _captured(profile: Profile) -> bool:
    return profile.run.source == "capture"


@dataclass(frozen=True)
class Held:
    """A storage (or workspace, by its operator) at a peak, in bytes; `at`: at whose."""

    name: str
    bytes: int
    at: Literal["baseline", "candidate"]


@dataclass(frozen=True)
class Group:
    """Bytes at both peaks of one layer and kind.

    `storages`: those without a counterpart of their size, largest first.
    """

    layer: str
    kind: str
    baseline_bytes: int
    candidate_bytes: int
    storages: tuple[Held, ...]

    @property
    def difference_bytes(self) -> int:
        return self.candidate_bytes - self.baseline_bytes


@dataclass(frozen=True)
class Memory:
    """Peaks in bytes, the operators that reach them, and the groups that differ, largest difference first.

    `judged_bytes`: the growth that is held against `allowed_bytes`.
    """

    status: Status
    reason: str
    baseline_peak_bytes: int = 0
    candidate_peak_bytes: int = 0
    allowed_bytes: int = 0
    baseline_operator: str = ""
    candidate_operator: str = ""
    judged_bytes: int = 0
    groups: tuple[Group, ...] = field(default=())

    @property
    def difference_bytes(self) -> int:
        return self.candidate_peak_bytes - self.baseline_peak_bytes


def compare_memory(baseline: Profile, candidate: Profile, threshold: Threshold | None = None) -> Memory:
    """The replayed peaks of two profiles, without a plan and without a limit, and what makes their difference.

    `threshold`: None for `default_threshold`. One side without storages is inconclusive: it may have grown.
    """
    both = ("baseline", baseline), ("candidate", candidate)
    silent = [f"the {name} has {_lack(p)}" for name, p in both if not p.storages or not p.operators]
    if silent:
        reason = " and ".join(silent)
        return Memory("not judged" if len(silent) == 2 else "inconclusive", reason)
    timed = _same_times(baseline, candidate)
    before, after = occupancy(baseline), occupancy(timed)
    given = threshold or default_threshold(baseline, candidate)
    allowed = given.allowed(before.peak_bytes)
    difference = after.peak_bytes - before.peak_bytes
    judged = _growth(baseline, before.peak_bytes, candidate, after.peak_bytes)
    reason = f"replayed peak {before.peak_bytes} -> {after.peak_bytes} bytes ({difference:+d}"
    if before.base_bytes != after.base_bytes and _captured(baseline) and _captured(candidate):
        above = difference - (after.base_bytes - before.base_bytes)
        reason += f", above base_bytes {above:+d}; judged {judged:+d}"
    reason += f", allowed {allowed:+d}"
    if threshold is None and given is not EXACT:
        reason += f": {given.percent:g} % between PyNative captures unless --memory-threshold is given"
    reason += ")"
    grown = judged > allowed
    status: Status = "regression" if grown else "pass"
    if baseline.structure_digest != candidate.structure_digest and _overlaps(baseline, candidate):
        ordered = [occupancy(_one_stream(profile)).peak_bytes for profile in (baseline, candidate)]
        in_order = _growth(baseline, ordered[0], candidate, ordered[1])
        reason += f", at the baseline's times; {in_order:+d} one operator after the other"
        if (in_order > allowed) != grown:
            status = "inconclusive"
            reason += ": it hangs on how the streams overlap"
    groups = _groups(baseline, before, timed, after)
    if grown:
        reason += "".join(f"; {_told(group)}" for group in groups[:3] if group.difference_bytes > 0)
    elif difference > allowed:
        reason += f"; base_bytes {after.base_bytes - before.base_bytes:+d} is not judged between captures: look at it"
    return Memory(
        status=status,
        reason=reason,
        baseline_peak_bytes=before.peak_bytes,
        candidate_peak_bytes=after.peak_bytes,
        allowed_bytes=allowed,
        baseline_operator=_operator(baseline, before),
        candidate_operator=_operator(timed, after),
        judged_bytes=judged,
        groups=groups,
    )


def _lack(profile: Profile) -> str:
    return "times but no storages" if profile.operators else "no operators"


def _growth(baseline: Profile, before: int, candidate: Profile, after: int) -> int:
    """What is held against the threshold, of two peaks: between captures the smaller of the two differences."""
    difference = after - before
    if _captured(baseline) and _captured(candidate):
        return min(difference, difference - (candidate.device.base_bytes - baseline.device.base_bytes))
    return difference


# -- the same times ----------------------------------------------------------------------------------------


def _overlaps(*profiles: Profile) -> bool:
    return any(operator.stream != COMPUTE for profile in profiles for operator in profile.operators)


def _same_times(baseline: Profile, candidate: Profile) -> Profile:
    """The candidate as if it had been measured together with the baseline."""
    if baseline.structure_digest == candidate.structure_digest:
        return msgspec.structs.replace(baseline, device=candidate.device)
    if not _overlaps(baseline, candidate):
        return candidate
    times: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for operator in reversed(baseline.operators):
        times[_likeness(operator)].append(operator.duration_us)
    timed = []
    for operator in candidate.operators:
        known = times.get(_likeness(operator))
        timed.append(msgspec.structs.replace(operator, duration_us=known.pop()) if known else operator)
    return msgspec.structs.replace(candidate, operators=tuple(timed))


def _likeness(o: Operator) -> tuple[object, ...]:
    """What operators of one kind share: not their names, which count, nor their stream, which a change may move."""
    return o.type or o.name, o.shapes, o.dtypes


def _one_stream(profile: Profile) -> Profile:
    operators = tuple(msgspec.structs.replace(o, stream=COMPUTE) for o in profile.operators)
    return msgspec.structs.replace(profile, operators=operators)


# -- what makes the difference -----------------------------------------------------------------------------


def _operator(profile: Profile, at: Occupancy) -> str:
    if at.peak_op is None:
        return "step start"
    return profile.operators[at.peak_op].name or f"operator {at.peak_op}"


def _told(group: Group) -> str:
    of = f"{group.kind} of {group.layer}" if group.layer else group.kind
    return f"{of} {group.difference_bytes:+d}"


_Contents = dict[tuple[str, str], list[tuple[int, str]]]
"""(layer, kind) -> (bytes, name) of the blocks at a peak."""


def _groups(baseline: Profile, before: Occupancy, candidate: Profile, after: Occupancy) -> tuple[Group, ...]:
    old, new = _contents(baseline, before), _contents(candidate, after)
    renamed = _renamed(old, new)
    old = {(renamed.get(layer, layer), kind): blocks for (layer, kind), blocks in old.items()}
    groups = [_group(key, old.get(key, []), new.get(key, [])) for key in {**old, **new}]
    groups.append(Group("", BASE, before.base_bytes, after.base_bytes, ()))
    differing = [group for group in groups if group.difference_bytes]
    return tuple(sorted(differing, key=lambda group: (-abs(group.difference_bytes), group.layer, group.kind)))


def _group(key: tuple[str, str], old: list[tuple[int, str]], new: list[tuple[int, str]]) -> Group:
    # Matched by size: operators' numbers are part of many names and move when one is added.
    extra_old = Counter(size for size, _ in old) - Counter(size for size, _ in new)
    extra_new = Counter(size for size, _ in new) - Counter(size for size, _ in old)
    held = [Held(name, size, "candidate") for size, name in _surplus(new, extra_new, set(old))]
    held += [Held(name, size, "baseline") for size, name in _surplus(old, extra_old, set(new))]
    held.sort(key=lambda h: -h.bytes)
    return Group(*key, sum(size for size, _ in old), sum(size for size, _ in new), tuple(held[:NAMED]))


def _surplus(blocks: list[tuple[int, str]], extra: Counter[int], known: set[tuple[int, str]]) -> list[tuple[int, str]]:
    """Of each size as many blocks as are extra, those first that the other side does not have by name and size."""
    chosen, left = [], Counter(extra)
    for size, name in sorted(blocks, key=lambda block: (block in known, -block[0], block[1])):
        if left[size] > 0:
            left[size] -= 1
            chosen.append((size, name))
    return chosen


def _contents(profile: Profile, at: Occupancy) -> _Contents:
    layers = layers_of_storages(profile)
    found: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for block in at.at_peak:
        if block.storage is None:
            operator = profile.operators[block.operator]
            found[operator.layer, WORKSPACE].append((block.bytes, operator.name or f"operator {block.operator}"))
        else:
            found[_key(profile, block, layers)].append(
                (block.bytes, profile.by_id[block.storage].name or f"storage {block.storage}")
            )
    return found


def _renamed(old: _Contents, new: _Contents) -> dict[str, str]:
    """Layers of the baseline -> the candidate's names of them, where one has gone, another has come, and at least half
    of what either holds is the same: else all of both would stand before the few bytes that really differ."""
    gone, come = _held_of(old, new), _held_of(new, old)
    named: dict[str, str] = {}
    # The same to the byte first, in order; then whatever is most alike.
    for exactly in (True, False):
        for layer, blocks in gone.items():
            if layer in named:
                continue
            left = [other for other in come if other not in named.values()]
            if exactly:
                left = [other for other in left if come[other] == blocks][:1]
            alike = {other: _bytes(blocks & come[other]) for other in left[:MOST_RENAMED]}
            best = max(alike, key=lambda other: alike[other], default=None)
            if best is not None and 2 * alike[best] >= max(_bytes(blocks), _bytes(come[best])) > 0:
                named[layer] = best
    return named


def _held_of(contents: _Contents, others: _Contents) -> dict[str, Counter[tuple[str, int]]]:
    """Layer -> its blocks at the peak, by kind and size, of layers that the others do not have."""
    known = {layer for layer, _ in others} | {""}
    found: dict[str, Counter[tuple[str, int]]] = {}
    for (layer, kind), blocks in contents.items():
        if layer not in known:
            found.setdefault(layer, Counter()).update((kind, size) for size, _ in blocks)
    return found


def _bytes(blocks: Counter[tuple[str, int]]) -> int:
    return sum(size * count for (_, size), count in blocks.items())


def _key(profile: Profile, block: Block, layers: dict[int, str]) -> tuple[str, str]:
    assert block.storage is not None
    return layers.get(block.storage, ""), profile.by_id[block.storage].kind


def layers_of_storages(profile: Profile) -> dict[int, str]:
    """Storage id -> the layer of the first operator that touches it and has one."""
    layers: dict[int, str] = {}
    for operator in profile.operators:
        if operator.layer:
            for id in operator.accesses:
                layers.setdefault(id, operator.layer)
    return layers
