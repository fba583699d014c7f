"""Memory, compared exactly: replayed peaks are figures of the program alone, so a single byte means something.

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

from hyperopt.occupancy import Block, Occupancy, occupancy
from hyperopt.profile import Profile

Status = Literal["pass", "regression", "inconclusive", "not judged"]

BASE, WORKSPACE = "base", "workspace"
"""Kinds of the bytes at a peak that no storage holds."""

NAMED = 5
"""Storages named in a group."""


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

    `threshold`: None for `default_threshold`.
    """
    silent = [name for name, p in (("baseline", baseline), ("candidate", candidate)) if p.timing_only]
    if silent:
        return Memory("not judged", f"the {' and the '.join(silent)} has times but no storages")
    before, after = occupancy(baseline), occupancy(candidate)
    given = threshold or default_threshold(baseline, candidate)
    allowed = given.allowed(before.peak_bytes)
    difference = judged = after.peak_bytes - before.peak_bytes
    reason = f"replayed peak {before.peak_bytes} -> {after.peak_bytes} bytes ({difference:+d}"
    if before.base_bytes != after.base_bytes and _captured(baseline) and _captured(candidate):
        above = difference - (after.base_bytes - before.base_bytes)
        judged = min(difference, above)
        reason += f", above base_bytes {above:+d}; judged {judged:+d}"
    reason += f", allowed {allowed:+d}"
    if threshold is None and given is not EXACT:
        reason += f": {given.percent:g} % between PyNative captures unless --memory-threshold is given"
    reason += ")"
    groups = _groups(baseline, before, candidate, after)
    grown = judged > allowed
    if grown:
        reason += "".join(f"; {_told(group)}" for group in groups[:3] if group.difference_bytes > 0)
    return Memory(
        status="regression" if grown else "pass",
        reason=reason,
        baseline_peak_bytes=before.peak_bytes,
        candidate_peak_bytes=after.peak_bytes,
        allowed_bytes=allowed,
        baseline_operator=_operator(baseline, before),
        candidate_operator=_operator(candidate, after),
        judged_bytes=judged,
        groups=groups,
    )


def _operator(profile: Profile, at: Occupancy) -> str:
    if at.peak_op is None:
        return "step start"
    return profile.operators[at.peak_op].name or f"operator {at.peak_op}"


def _told(group: Group) -> str:
    of = f"{group.kind} of {group.layer}" if group.layer else group.kind
    return f"{of} {group.difference_bytes:+d}"


def _groups(baseline: Profile, before: Occupancy, candidate: Profile, after: Occupancy) -> tuple[Group, ...]:
    old, new = _contents(baseline, before), _contents(candidate, after)
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


def _contents(profile: Profile, at: Occupancy) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """(layer, kind) -> (bytes, name) of the blocks at the peak."""
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
