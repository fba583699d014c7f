"""What no plan can beat: in time, and in memory. Proven, if not yet strong (the fluid bound is work to come).

*Time.* Every operator runs at least once, in listed order, one at a time on its stream, and waits for what it
reads. Plans and limits of memory only add waits, so the unlimited step without a plan is a lower bound.

*Memory.* Take any plan that runs, and operator k at its start. In HBM are then: the base, everything k reads or
writes, its workspace, and every storage that is alive across k and cannot be elsewhere. A storage can be
elsewhere only in a tier (if it is offloadable, has a tier large enough, and its adapter lets it go there and
then), or nowhere, to be recomputed (if the operator that wrote its content may run again). Tiers together hold at
most their total, so what can only be in a tier and exceeds that total is in HBM too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.residency.problem import Int64s, Problem


@dataclass(frozen=True)
class MemoryBound:
    """Bytes of HBM below which no plan exists, and the operator that sets it."""

    bytes: int
    operator: int
    working_set_bytes: int


def step_bound_ns(problem: Problem) -> int:
    return problem.unlimited.step_ns


def memory_bound(problem: Problem) -> MemoryBound:
    """The bound of the module docstring; for a profile without operators, base and residents."""
    if not problem.n:
        resident = sum(s.bytes for s in problem.profile.storages if s.resident_at_start)
        total = problem.profile.device.base_bytes + resident
        return MemoryBound(total, 0, total)
    needed = problem.working_set + _stuck(problem)
    operator = int(np.argmax(needed))
    return MemoryBound(int(needed[operator]), operator, int(problem.working_set[operator]))


def _stuck(problem: Problem) -> Int64s:
    """Per operator, bytes alive across it that no plan can have elsewhere."""
    n, program = problem.n, problem.program
    stuck = np.zeros(n + 1, dtype=np.int64)  # differences, summed at the end
    tier_only = np.zeros(n + 1, dtype=np.int64)
    off: dict[int, list[tuple[int, int]]] = {}
    for gap in problem.gaps:
        off.setdefault(gap.storage, []).extend(gap.off())
    room = max(problem.tier_bytes.values(), default=0)
    how = problem.profile.adapter.recompute
    for s, size in enumerate(program.size):
        for after, before in problem.idle(s):
            first, end = after + 1, min(before, n)
            if first >= end or not size:
                continue
            writer = program.version_before(s, end)
            if how != "none" and writer >= 0 and problem.profile.operators[writer].recomputable:
                continue
            ranges = off.get(s, []) if size <= room else []
            covered = sorted((max(a, first), min(b, end)) for a, b in ranges if a < end and b > first)
            for a, b in covered:  # within one idle span gaps do not overlap, save a wrap and its head or tail
                if first < a:
                    stuck[first] += size
                    stuck[a] -= size
                if first < b:
                    tier_only[max(first, a)] += size
                    tier_only[b] -= size
                    first = b
            if first < end:
                stuck[first] += size
                stuck[end] -= size
    total_room = sum(problem.tier_bytes.values())
    overflow = np.maximum(np.cumsum(tier_only)[:n] - total_room, 0)
    return np.asarray(np.cumsum(stuck)[:n] + overflow, dtype=np.int64)
