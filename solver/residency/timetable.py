"""When chosen storages come back: as late as their deadline and the link allow, within memory.

Backwards list scheduling, one queue per tier: the copy needed last is placed last, each ends when its consumer
starts or the next copy on the link does, and none is issued before HBM has room for it::

    link from tier   ......[ B ][ A  ]      A needed at 7, B at 6
    operators        |3 |4 |5  |6 |7 |
                        in B ┘└─ in A       issued before the operator during which the copy has to start
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hyperopt.replay import Timeline
from solver.residency.candidates import Move, Rerun
from solver.residency.problem import Int64s, Problem

SLACK = 2
"""A copy back is issued this many times its own duration ahead where memory allows: measured times vary."""


def occupancy(problem: Problem, chosen: Sequence[Move], reruns: Sequence[Rerun]) -> Int64s:
    """Bytes of HBM needed at each operator, in listed order, under the chosen moves and reruns.

    Exact without reruns. With reruns it is an upper bound at the operators that they stand before.
    """
    load = problem.load.copy()
    for move in chosen:
        for first, end in move.off():
            load[first:end] -= move.gap.bytes
    for rerun in reruns:
        add_rerun(problem, rerun, load)
    return load


def add_rerun(problem: Problem, rerun: Rerun, load: Int64s) -> None:
    size = problem.program.size
    for s, leave in rerun.drops:
        accesses = problem.accesses[s]
        if any(k >= rerun.before for k in accesses) or problem.program.stays[s]:
            load[leave + 1 : rerun.before] -= size[s]
    for s in rerun.held:
        span = problem.alive[s]
        if span is not None and span[1] <= rerun.before:
            load[span[1] : rerun.before + 1] += size[s]
    load[rerun.before] += rerun.extra_bytes


def needed_by(problem: Problem, move: Move, reruns: Sequence[Rerun]) -> int:
    """The latest position of a move's copy in: at its consumer, or at a rerun that reads the storage earlier."""
    back = move.gap.back
    for rerun in reruns:
        if move.gap.storage in rerun.held and (move.gap.wraps or rerun.before > move.leave):
            back = min(back, problem.last_arrival(rerun.before))
    return back


def schedule(problem: Problem, chosen: Sequence[Move], reruns: Sequence[Rerun], times: Timeline) -> list[Move]:
    """The chosen moves with the position of every copy back set; the order is that of issue out of HBM.

    `times` is a time line of the same profile from which to read when operators start.
    """
    start = [times.start[k] for k in problem.arrivals]
    load = occupancy(problem, [replace(m, back=needed_by(problem, m, reruns)) for m in chosen], reruns)
    free: dict[str, int] = {}
    placed = []
    for move in sorted(chosen, key=lambda m: (-needed_by(problem, m, reruns), m.gap.storage)):
        latest = needed_by(problem, move, reruns)
        if latest >= problem.n:  # it need not come back
            placed.append(move)
            continue
        tier = problem.tiers[move.tier]
        finish = min(times.start[latest], free.get(move.tier, times.start[latest]))
        duration = tier.copy_ns(move.gap.bytes, out=False)
        free[move.tier] = finish - duration
        wanted = problem.arrivals[max(0, bisect_right(start, finish - SLACK * duration) - 1)]
        first = 0 if move.gap.wraps else problem.next_arrival(move.leave + 1)
        back = max(min(wanted, latest), min(first, latest), _room(problem, load, latest, move.gap.bytes))
        load[back:latest] += move.gap.bytes
        placed.append(replace(move, back=back))
    return sorted(placed, key=lambda m: (m.out, m.back, m.gap.storage))


def _room(problem: Problem, load: Int64s, latest: int, size: int) -> int:
    """The first place from which on, up to `latest`, HBM has room for `size` more bytes."""
    full = np.flatnonzero(load[:latest] + size > problem.hbm_bytes)
    return min(latest, problem.next_arrival(int(full[-1]) + 1)) if full.size else 0
