"""What no plan can beat: in time, and in memory. Proven, if not yet strong (the fluid bound is work to come).

*Time, without memory.* Every operator runs at least once, in listed order, one at a time on its stream, and waits
for what it reads. Plans and limits of memory only add waits, so the unlimited step without a plan is a bound.

*Time, with memory.* Take any plan that runs, and operator k at its start. Of the `load` that k has when nothing is
planned, `load - budget` bytes are elsewhere. Take off those that may be absent without a copy: recomputable, or
touched by nobody. What is left, X, must be copied in during the step, since the step repeats:

    step >= X / (bandwidth into HBM of all tiers together)

Take off also what is between its last and its first access around the step's end, and Y is left, to be copied in
after k: by an action at a later compute operator, so not before k has started, and ended if it is one. Of Y, what
is made in the step, D, has been copied out by the start of k, for memory is free when the copy has ended:

    start(k) >= D / (bandwidth out of HBM);    step >= start(k) + [duration(k)] + Y / (bandwidth into HBM)

Latencies and the order of copies are left out, which makes the bound lower, not wrong.

*Memory.* In HBM at the start of k are: the base, everything k reads or writes, its workspace, and every storage that
is alive across k and cannot be elsewhere. A storage can be elsewhere only in a tier (if it is offloadable, its adapter
lets it go there and then, and a tier that it can be in, `Problem.elsewhere`, is large enough), or nowhere, to be
recomputed (if an operator that makes what is needed next may run again). Tiers together hold at most their total, so
what can only be in a tier and exceeds that total is in HBM too.
"""

from __future__ import annotations

import math
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
    """Nanoseconds that no plan within the budget can go below."""
    unlimited = problem.unlimited.step_ns
    if not problem.n or int(problem.load.max()) <= problem.hbm_bytes:
        return unlimited
    return max(unlimited, _links_ns(problem))


def _links_ns(problem: Problem) -> int:
    """The bound of the module docstring by bytes over links; 0 where nothing can move."""
    into = sum(math.ceil(tier.h2d_bytes_per_s) for tier in problem.places.values())
    out = sum(math.ceil(tier.d2h_bytes_per_s) for tier in problem.places.values())
    if not into:
        return 0
    free, around, resident = _absences(problem)
    anywhere = np.maximum(problem.load - problem.hbm_bytes - free, 0)
    after = np.maximum(anywhere - around, 0)
    made = np.maximum(after - resident, 0)
    times, compute = problem.unlimited, set(problem.compute)
    best = int(anywhere.max()) * 10**9 // into
    for k in np.flatnonzero(after):
        start = max(times.start[k], int(made[k]) * 10**9 // out if out else 0)
        own = problem.program.duration[k] if k in compute else 0
        best = max(best, start + own + int(after[k]) * 10**9 // into)
    return best


def _absences(problem: Problem) -> tuple[Int64s, Int64s, Int64s]:
    """Per operator, bytes idle across it that: may be absent without a copy; are idle around the step's end (both
    ends resident); of the rest, are resident at the start."""
    n, program = problem.n, problem.program
    kinds = np.zeros((3, n + 1), dtype=np.int64)
    again = problem.profile.adapter.recompute != "none"
    for s, size in enumerate(program.size):
        for after, before in problem.idle(s):
            if (again and problem.makers(s, before)) or not problem.accesses[s]:
                kind = 0
            elif program.resident[s] and program.stays[s] and (after < 0 or before == n):
                kind = 1
            elif program.resident[s]:
                kind = 2
            else:
                continue
            kinds[kind][after + 1] += size
            kinds[kind][min(before, n)] -= size
    free, around, resident = np.cumsum(kinds, axis=1)[:, :n]
    return free, around, resident


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
    how = problem.profile.adapter.recompute
    for s, size in enumerate(program.size):
        for after, before in problem.idle(s):
            first, end = after + 1, min(before, n)
            if first >= end or not size:
                continue
            if how != "none" and problem.makers(s, before):
                continue
            room = max((problem.tier_bytes[tier] for tier in problem.elsewhere(s, after, before)), default=0)
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
