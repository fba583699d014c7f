"""When operators run under a plan, and when they run again: whom a copy back is for, and how long that one waited."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from hyperopt.plan import Residency
from hyperopt.replay import Clock, Timeline
from hyperopt.script import Script
from solver.residency.problem import Problem


class Execution(NamedTuple):
    """Of an operator, for the first time or again, before operator `op`: nanoseconds at which its stream was free and
    at which it started."""

    op: int
    executed: int
    free: int
    start: int


class Executions:
    """`first`: the time at which an operator's stream was free for it, per operator; `again`: per recompute of the plan
    its executions, in order."""

    def __init__(self, problem: Problem, residency: Residency, timeline: Timeline, script: Script) -> None:
        self.problem, self.timeline = problem, timeline
        recompute = residency.recompute
        self.again: list[list[Execution]] = [[] for _ in recompute]
        self._users: dict[int, list[Execution]] = defaultdict(list)
        if not recompute:  # the one before on the stream has ended: no need to run the clock for that
            self.free = _ends_before(problem, timeline)
            return
        clock = _Noting(problem, script)
        clock.run(script)
        self.free = clock.free
        noted = iter(clock.again)
        for i in sorted(range(len(recompute)), key=lambda i: recompute[i].before_op):
            self.again[i] = [next(noted) for _ in recompute[i].ops]
            for run in self.again[i]:
                for s in {*problem.program.reads[run.executed], *problem.program.writes[run.executed]}:
                    self._users[s].append(run)

    def user(self, s: int, op: int) -> Execution | None:
        """The first to access a storage that is copied in before operator `op`: it, a later one, or one of those that
        run again before them."""
        accesses, again = self.problem.accesses[s], self._users.get(s, [])
        i, j = bisect_left(accesses, op), bisect_left(again, op, key=lambda run: run.op)
        if j < len(again) and (i == len(accesses) or again[j].op <= accesses[i]):
            return again[j]
        if i == len(accesses):
            return None
        k = accesses[i]
        return Execution(k, k, self.free[k], self.timeline.start[k])

    def made_again(self, recompute: int, s: int) -> int:
        """When a recompute, by its place in the plan, takes the HBM of a storage that it brings back, in ns."""
        writes = self.problem.program.writes
        return next(run.start for run in self.again[recompute] if s in writes[run.executed])


class _Noting(Clock):
    """The clock of a replay, which notes what a time line leaves out."""

    def __init__(self, problem: Problem, script: Script) -> None:
        super().__init__(problem.program, script.starts_out, problem.hbm_bytes)
        self.free = [0] * problem.n
        self.again: list[Execution] = []

    def execute(self, executed: int, op: int, again: bool = False) -> None:
        free = self.stream_free[0 if again else self.program.stream[executed]]
        super().execute(executed, op, again)
        if again:
            self.again.append(Execution(op, executed, free, self.now))
        else:
            self.free[executed] = free


def _ends_before(problem: Problem, timeline: Timeline) -> list[int]:
    """Per operator, the end of the one before it on its stream; 0 for the first."""
    latest: dict[int, int] = {}
    free = []
    for op, stream in enumerate(problem.program.stream):
        free.append(latest.get(stream, 0))
        latest[stream] = timeline.end[op]
    return free
