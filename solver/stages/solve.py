"""Layers to stages: search from several starts, then bound and prove by the master program.

*Anytime, checked, bounded*: the split in hand is always timed by the clock and held against the limits; the bound is
the best that the relaxation and the integer program have proven; `optimal` means that the program found nothing better
by more than its tolerance of 10^-6.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from solver.stages.master import TOLERANCE, Master, least_raise, relaxed, stage_reasons, whole
from solver.stages.memory import Memory, fits, memory
from solver.stages.problem import NoPlanError, Objective, Problem, fastest_split, uniform
from solver.stages.search import NO_VALUE, Search
from solver.stages.simulate import Clock, Reason, clock
from solver.stop import Stop, TimeLimit

I64 = NDArray[np.int64]

SEARCH_SHARE = 0.2
"""Of the time limit, at most, for the first search; the rest is the bound's."""

LEAST_STEPS, FIRST_STEPS, MOST_STEPS, ROUNDS = 100, 2_000, 60_000, 12
TASKS_A_WALK = 20_000_000
"""Tasks timed in the first walk, at most: a second or so."""

RELAX_SHARE = 0.3


@dataclass(frozen=True, eq=False)
class Solution:
    """A split [group, column] with its value and bound in ticks of the objective, its makespan, and its memory."""

    problem: Problem
    objective: Objective
    split: I64
    value: int
    bound: float
    makespan: int
    memory: Memory
    status: Literal["optimal", "feasible"]
    stop_reason: str
    seconds: float

    @property
    def gap(self) -> float:
        """(value - bound) / bound."""
        return 0.0 if self.value <= self.bound else (self.value - self.bound) / self.bound if self.bound else np.inf


def value(problem: Problem, objective: Objective, split: I64) -> int:
    """Ticks of a split: its simulated makespan, the work of its slowest stage for one micro-batch, or the folded
    objective."""
    durations = problem.durations(split)
    if objective == "slowest":
        return int(durations.reshape(problem.chunks, problem.stages, -1).sum((0, 2)).max())
    return clock(problem, objective).value(durations)


def solve_order(
    problem: Problem,
    objective: Objective = "makespan",
    time_limit_s: float = 60.0,
    seed: int = 0,
    cancelled: Callable[[], bool] = lambda: False,
) -> Solution:
    """The best split found within the time limit for one order of tasks, and a bound that no split is below.

    Raises `NoPlanError` where no split fits, which is then proven, or none was found in time.
    """
    if problem.layers < problem.min_layers * problem.groups:
        raise NoPlanError(
            f"{problem.layers} layers are fewer than {problem.min_layers} for each of {problem.groups} stages and "
            "chunks: use fewer of them, or --min-layers 0"
        )
    return _Solve(problem, objective, time_limit_s, seed, cancelled).run()


class _Solve:
    """One call: the incumbent, what it was proven to be near, and the time that is left."""

    def __init__(
        self, problem: Problem, objective: Objective, seconds: float, seed: int, cancelled: Callable[[], bool]
    ) -> None:
        self.problem, self.objective, self.seed, self.cancelled = problem, objective, seed, cancelled
        self.began = time.monotonic()
        self.seconds = seconds
        self.stop = Stop(TimeLimit(seconds))
        self.clock: Clock | None = None if objective == "slowest" else clock(problem, objective)
        self.best: I64 | None = None
        self.best_value = NO_VALUE
        self.bound = 0.0
        self.reasons: list[Reason] = stage_reasons(problem, objective)

    def run(self) -> Solution:
        self._search()
        scale = self.best_value if self.best is not None else int(self._work())
        if self.best is not None and self.clock is not None:
            self.reasons += self.clock.reasons(self.problem.durations(self.best))[1]
        until = time.monotonic() + RELAX_SHARE * (self.stop.seconds_left() or 0.0)
        bound, self.reasons = relaxed(self.problem, self.objective, scale, self.reasons, until)
        if bound == np.inf:
            raise NoPlanError(self._why_none(True))
        self.bound = max(self.bound, bound)
        reason = self._prove(scale) if self.best_value > self.bound * (1 + 2 * TOLERANCE) else "bound reached"
        if self.best is None:
            raise NoPlanError(self._why_none(reason == "proven"), reason == "proven")
        proven = reason in ("proven", "bound reached")
        made = memory(self.problem, self.best)
        return Solution(
            problem=self.problem,
            objective=self.objective,
            split=self.best,
            value=self.best_value,
            bound=float(self.best_value) if proven else min(self.bound, float(self.best_value)),
            makespan=value(self.problem, "makespan", self.best),
            memory=made,
            status="optimal" if proven else "feasible",
            stop_reason=reason,
            seconds=time.monotonic() - self.began,
        )

    def _work(self) -> float:
        """Ticks of all layers on the first stage, for a scale where no split is known."""
        return float(self.problem.durations(fastest_split(self.problem, uniform(self.problem))).sum()) * (
            1 if self.objective == "slowest" else self.problem.micro_batches
        )

    def _take(self, split: I64) -> bool:
        """Judges a split by clock and limits; whether it is the best now."""
        if split.sum(1).min(initial=self.problem.min_layers) < self.problem.min_layers or not fits(self.problem, split):
            return False
        found = value(self.problem, self.objective, split)
        if found >= self.best_value:
            return False
        self.best, self.best_value = split, found
        return True

    def _search(self) -> None:
        walker = Search(self.problem, self.objective)
        even = fastest_split(self.problem, uniform(self.problem))
        self._take(even)
        tasks = 1 if self.clock is None else len(self.clock.graph.duration)
        steps, idle = max(LEAST_STEPS, min(FIRST_STEPS, TASKS_A_WALK // tasks)), 0
        for round_ in range(ROUNDS):
            began = time.monotonic()
            hot = 1e-2 if round_ % 2 == 0 else 1e-3
            start = self.best if self.best is not None and round_ % 2 else even
            better, split = walker.walk(start, steps, self.seed + round_, hot)
            idle = 0 if better < NO_VALUE and self._take(split) else idle + 1
            if self.cancelled() or self.stop.spent() > SEARCH_SHARE or (idle >= 2 and self.best is not None):
                break
            room = (SEARCH_SHARE - self.stop.spent()) * self.seconds / max(1e-6, time.monotonic() - began)
            steps = max(LEAST_STEPS, min(MOST_STEPS, steps * 2, int(steps * room)))

    def _prove(self, scale: int) -> str:
        """Lifts the bound, and the incumbent with it, by the integer program; why it stopped."""
        program = Master(self.problem, self.objective, scale, "SCIP")
        for reason in self.reasons:
            program.add(reason)
        while not self.stop.asked(None, 0) and not self.cancelled():
            if self.best is not None:
                program.start(self.best, self.best_value)
            answer = program.solve(self.stop.seconds_left())
            if answer.infeasible:  # beside a split in hand that would be the program's fault: nothing is claimed
                return "proven" if self.best is None else "the integer program failed"
            self.bound = max(self.bound, answer.bound)
            if answer.split is None:
                continue
            split = whole(answer.split)
            if self._take(split):
                better, near = Search(self.problem, self.objective).walk(split, FIRST_STEPS, self.seed, 1e-3)
                if better < NO_VALUE:
                    self._take(near)
            if self.clock is None:
                if self.best_value <= self.bound * (1 + 2 * TOLERANCE):
                    return "proven"
                continue
            _, new = self.clock.reasons(self.problem.durations(split))
            for reason in new:
                program.add(reason)
            if self.best_value <= self.bound * (1 + 2 * TOLERANCE):
                return "bound reached"
        return "cancelled" if self.cancelled() else self.stop.why or "time limit"

    def _why_none(self, proven: bool) -> str:
        told = "no split fits the memory limits" if proven else "no split was found in time that fits the memory limits"
        share = least_raise(self.problem)
        by = f" by {100 * share:,.1f} % at least (all of them; proven)" if share >= 0.0005 else ""
        return f"{told}: raise these{by}, give more stages or cheaper levels, or fewer micro-batches"
