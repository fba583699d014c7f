"""Absences: the spans of a step that a plan's storages spend out of HBM, with what brings them back.

HBM of one storage   ████████░░░░░░░░░░░░░░░░░░░░████████
                     freed: released, and          taken: its copy in is issued,
                     all copies and uses over      or it is made again
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hyperopt.plan import Budget, Plan, Residency
from hyperopt.replay import Copy, Timeline
from hyperopt.script import COPY_IN, EXEC, RELEASE, RERUN, write_script
from solver.residency.problem import Int64s, Problem


class Ran(Protocol):
    """A plan that has been replayed."""

    @property
    def residency(self) -> Residency: ...
    @property
    def timeline(self) -> Timeline: ...


@dataclass(frozen=True)
class Replayed:
    """A plan's orders and their time line."""

    residency: Residency
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Absence:
    """One span off HBM, of the storage at a position: released after operator `left` (-1: away at the step's start),
    back before operator `back` (n: not in this step); from `start` to `end` in nanoseconds.

    `copy`: what brings it back; `rerun`: the place in the plan of the recompute that does; neither: nothing does.
    """

    storage: int
    left: int
    back: int
    start: int
    end: int
    copy: Copy | None = None
    rerun: int | None = None

    @property
    def length(self) -> int:
        return self.end - self.start


def absences(problem: Problem, ran: Ran) -> dict[int, list[Absence]]:
    """By storage position, in order, where the plan has a storage out of HBM while the step still needs it."""
    residency, timeline = ran.residency, ran.timeline
    position, n = problem.program.position, problem.n
    left: dict[int, list[int]] = {position[id]: [-1] for id in residency.initial}
    for action in residency.actions:
        if action.kind == "release":
            left.setdefault(position[action.storage], []).append(action.op)
    outs: dict[int, list[Copy]] = defaultdict(list)
    returns: dict[int, list[tuple[int, Copy | None, int | None]]] = defaultdict(list)
    for moved in timeline.copies:
        s = position[moved.storage]
        if moved.out:
            outs[s].append(moved)
        else:
            returns[s].append((moved.op, moved, None))
    for i, recompute in enumerate(residency.recompute):
        for s in {s for k in recompute.ops for s in problem.program.writes[k] if s in left}:
            returns[s].append((recompute.before_op, None, i))
    found: dict[int, list[Absence]] = {}
    for s, ops in left.items():
        back = sorted(returns[s], key=lambda entry: entry[0])
        places = [op for op, _, _ in back]
        own = []
        for op in sorted(ops):
            i = bisect_right(places, op)
            start = _freed(problem, timeline, s, op, outs[s])
            if i < len(back):
                until, copy, rerun = back[i]
                end = copy.issue if copy is not None else timeline.start[until]
                own.append(Absence(s, op, until, start, max(start, end), copy, rerun))
            elif problem.program.returns[s]:
                own.append(Absence(s, op, n, start, max(start, timeline.step_ns)))
        if own:
            found[s] = own
    return found


def _freed(problem: Problem, timeline: Timeline, s: int, op: int, outs: Sequence[Copy]) -> int:
    """When the block released after operator `op` is free: the operator, its last use and its copy out have ended."""
    if op < 0:
        return 0
    time = timeline.end[op]
    used = bisect_right(problem.accesses[s], op)
    if used:
        time = max(time, timeline.end[problem.accesses[s][used - 1]])
    i = bisect_right(outs, op, key=lambda copy: copy.op)
    return max(time, outs[i - 1].end) if i else time


class Levels:
    """HBM in listed order under a plan, base included: the most at each operator, and the most over a range."""

    def __init__(self, problem: Problem, residency: Residency) -> None:
        tiers = problem.budget.tiers
        script = write_script(
            problem.profile, Plan(budget=Budget(hbm_bytes=2**53, tiers=tiers), residency=residency), None
        )
        program = problem.program
        there = list(program.resident)
        for s in script.starts_out:
            there[s] = False
        used = problem.profile.device.base_bytes
        used += sum(size for size, in_hbm in zip(program.size, there, strict=True) if in_hbm)
        levels = [0] * problem.n
        for code, arg, op in zip(script.codes, script.args, script.at, strict=True):
            if code in (EXEC, RERUN):
                for s in program.writes[arg]:
                    if not there[s]:
                        there[s] = True
                        used += program.size[s]
                levels[op] = max(levels[op], used + program.workspace[arg])
            elif code == RELEASE:
                there[arg] = False
                used -= program.size[arg]
            elif code == COPY_IN:
                there[arg] = True
                used += program.size[arg]
                levels[op] = max(levels[op], used)
        self.rows: list[Int64s] = [np.asarray(levels, dtype=np.int64)]
        width = 1
        while 2 * width <= problem.n:  # rows[j][i]: the most at operators [i, i + 2^j)
            row = self.rows[-1]
            self.rows.append(np.maximum(row[:-width], row[width:]))
            width *= 2

    def most(self, first: int, end: int) -> int:
        """The most at operators [first, end); 0 where there are none."""
        if first >= end:
            return 0
        j = (end - first).bit_length() - 1
        return int(max(self.rows[j][first], self.rows[j][end - (1 << j)]))
