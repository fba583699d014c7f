"""The best plan so far, by replay: every plan that any part of the solver proposes comes through here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Plan, Residency
from hyperopt.replay import Timeline, replay
from solver.residency.problem import Problem
from solver.stop import Stop


@dataclass(frozen=True)
class Trial:
    residency: Residency
    timeline: Timeline
    stage: str

    moved_bytes: int
    hurried: int

    def rank(self) -> tuple[int, int, int, int, int]:
        """Faster first; at the same speed fewer bytes moved, fewer copies without slack, fewer orders, lower peak.

        `hurried` counts the copies back that would make somebody wait if they took twice as long.
        """
        orders = len(self.residency.actions) + len(self.residency.initial) + len(self.residency.recompute)
        return (self.timeline.step_ns, self.moved_bytes, self.hurried, orders, self.timeline.peak_bytes)


class Incumbent:
    """`best`: fastest plan within the budget; `smallest`: the plan that runs in the least HBM, at any speed.

    `work` of `stop` counts every replay.
    """

    def __init__(
        self, problem: Problem, stop: Stop, bound_ns: int, on_better: Callable[[Trial], None] = lambda _: None
    ) -> None:
        self.problem, self.stop, self.bound_ns, self.on_better = problem, stop, bound_ns, on_better
        self.best: Trial | None = None
        self.smallest: Trial | None = None
        self.stages: dict[str, float | str] = {}

    @property
    def best_ns(self) -> int | None:
        return None if self.best is None else self.best.timeline.step_ns

    def stopped(self) -> bool:
        return self.stop.asked(self.best_ns, self.bound_ns)

    def offer(self, residency: Residency, stage: str) -> Trial | None:
        """Replays a plan and keeps it if it is the best; None when it does not run within the budget."""
        plan = Plan(budget=self.problem.budget, residency=residency)
        self.stop.work += 1
        try:
            trial = self._trial(plan, stage)
        except OutOfMemory as short:
            self.stages.setdefault(stage, f"out of memory in {short.tier}")
            self._try_small(plan, stage)
            return None
        except IllegalPlan as illegal:
            self.stages.setdefault(stage, f"illegal: {illegal.violation.code}")
            return None
        told = self.stages.get(stage)
        step_us = trial.timeline.step_us
        self.stages[stage] = min(told, step_us) if isinstance(told, float) else step_us
        if self.best is None or trial.rank() < self.best.rank():
            self.best = trial
            self.on_better(trial)
        self._keep_smallest(trial)
        return trial

    def _trial(self, plan: Plan, stage: str) -> Trial:
        timeline = replay(self.problem.profile, plan)
        moved = sum(self.problem.profile.by_id[copy.storage].bytes for copy in timeline.copies)
        return Trial(plan.residency, timeline, stage, moved, self._hurried(timeline))

    def _hurried(self, timeline: Timeline) -> int:
        position, accesses = self.problem.program.position, self.problem.accesses
        hurried = 0
        for copy in timeline.copies:
            uses = accesses[position[copy.storage]]
            use = bisect_left(uses, copy.op)
            if not copy.out and use < len(uses):
                hurried += timeline.start[uses[use]] < 2 * copy.end - copy.start
        return hurried

    def _try_small(self, plan: Plan, stage: str) -> None:
        """A plan over the HBM budget may still be the one that runs in the least HBM."""
        roomy = msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, hbm_bytes=2**53))
        try:
            self._keep_smallest(self._trial(roomy, stage))
        except OutOfMemory:
            return  # over a tier's budget: it runs with no HBM budget at all

    def _keep_smallest(self, trial: Trial) -> None:
        now = self.smallest
        if now is None or trial.timeline.static_peak_bytes < now.timeline.static_peak_bytes:
            self.smallest = trial
