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

from hyperopt.plan import Residency
from hyperopt.replay import Copy, Timeline
from solver.residency.executions import Executions
from solver.residency.problem import Problem


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


def absences(problem: Problem, ran: Ran, executions: Executions) -> dict[int, list[Absence]]:
    """By storage position, in order, where the plan has a storage out of HBM while the step still needs it.

    `executions`: those of the plan.
    """
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
                if copy is not None:
                    end = copy.issue
                else:
                    assert rerun is not None
                    end = executions.made_again(rerun, s)
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
