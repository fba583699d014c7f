"""The best plan so far, by replay: every plan that any part of the solver proposes comes through here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import msgspec
import numpy as np

from hyperopt.engine import Orders, Outcome
from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Plan, Residency
from hyperopt.replay import Timeline, replay
from solver.residency.draft import residency_of
from solver.residency.problem import Int64s, Problem
from solver.stop import Stop, Stopped

TELLING = 0.05
"""Part of the time that may go into telling better plans: as a document, one of 100,000 operators takes a while."""

CHECK_EVERY_S = 0.02
"""How often those who asked are asked whether they still want an answer."""


PATIENCE_S = 0.3
"""What is still given to find a first plan after somebody has cancelled: on small steps there always is one."""


class TooSlow(Exception):
    """Raised out of the midst of a piece of work that has not ended in the time given to it."""


@dataclass
class Trial:
    """A plan that runs. `moved_bytes` are those expected to cross a link: a storage that few steps touch counts as
    often as they do. `hurried` counts the copies back that would make somebody wait if they took twice as long."""

    problem: Problem
    stage: str
    step_ns: int
    peak_bytes: int
    static_peak_bytes: int
    static_peak_op: int
    moved_bytes: float
    hurried: int
    orders: int
    within_budget: bool
    written: Callable[[], Residency]

    def rank(self) -> tuple[int, float, int, int, int]:
        """Faster first; at the same speed fewer bytes moved, fewer copies without slack, fewer orders, lower peak."""
        return (self.step_ns, self.moved_bytes, self.hurried, self.orders, self.peak_bytes)

    @cached_property
    def residency(self) -> Residency:
        return self.written()

    @cached_property
    def timeline(self) -> Timeline:
        """By `replay`, which is the definition, whatever judged the plan in the search."""
        budget = self.problem.budget
        if not self.within_budget:
            budget = msgspec.structs.replace(budget, hbm_bytes=2**53)
        return replay(self.problem.profile, Plan(budget=budget, residency=self.residency))


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
        self._tell_at = 0.0
        self._told_trial: Trial | None = None
        self._check_at = 0.0
        self._cancelled_at = float("inf")
        self._share = 1.0
        self._proving = Lock()
        self.over = False  # nobody waits for more: `check` ends what is still under way

    @property
    def best_ns(self) -> int | None:
        return None if self.best is None else self.best.step_ns

    def prove(self, bound_ns: float) -> None:
        """A bound by linear programming, rounded down safely; from any thread."""
        with self._proving:
            self.bound_ns = max(self.bound_ns, int(bound_ns * (1 - 1e-9)))

    def stopped(self) -> bool:
        if time.monotonic() >= self._tell_at:
            self.tell()
        return self.asked()

    def asked(self) -> bool:
        """As `stopped`, from any thread: nobody is told anything."""
        return self.stop.asked(self.best_ns, self.bound_ns)

    def check(self) -> None:
        """For the midst of what takes long: raises `Stopped` when cancelled, or late with a plan in hand.

        Without one, late goes on, for a late first plan is worth more than none, and cancelled does for PATIENCE_S.
        """
        if self.over:
            raise Stopped
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_EVERY_S
        if self.stop.cancelled():
            self._cancelled_at = min(self._cancelled_at, now)
            if self.best is not None or now >= self._cancelled_at + PATIENCE_S:
                raise Stopped
        elif self.best is not None and self.stop.late():
            raise Stopped
        if self._share < 1.0 and self.stop.spent() >= self._share:
            raise TooSlow

    @contextmanager
    def until(self, share: float) -> Iterator[None]:
        """Inside, `check` raises `TooSlow` when `share` of the time limit has passed."""
        self._share = share
        try:
            yield
        finally:
            self._share = 1.0

    def offer(self, residency: Residency, stage: str) -> Trial | None:
        """Replays a plan and keeps it if it is the best; None when it does not run within the budget."""
        plan = Plan(budget=self.problem.budget, residency=residency)
        self.stop.work += 1
        try:
            timeline = replay(self.problem.profile, plan)
        except OutOfMemory as short:
            self.stages.setdefault(stage, f"out of memory in {short.tier}")
            self._try_small(plan, stage)
            return None
        except IllegalPlan as illegal:
            self.stages.setdefault(stage, f"illegal: {illegal.violation.code}")
            return None
        return self._keep(self._trial(residency, timeline, stage, within_budget=True))

    def offer_outcome(self, orders: Orders, outcome: Outcome, stage: str) -> Trial | None:
        """As `offer`, of what the engine has replayed already."""
        self.stop.work += 1
        if outcome.status == "illegal" or (outcome.status == "out_of_memory" and outcome.tier >= 0):
            return None
        fits = outcome.status == "fits"
        copies = outcome.copies
        trial = Trial(
            problem=self.problem,
            stage=stage,
            step_ns=outcome.step_ns,
            peak_bytes=outcome.peak_bytes,
            static_peak_bytes=outcome.static_peak_bytes,
            static_peak_op=outcome.static_peak_op,
            moved_bytes=float(self.problem.expected_bytes[copies[:, 0]].sum()),
            hurried=self._hurried(copies[:, 0], copies[:, 1], copies[:, 3], copies[:, 5], copies[:, 6], outcome.start),
            orders=len(orders.in_storage) + len(orders.after_storage) + len(orders.initial) + len(orders.rerun),
            within_budget=fits,
            written=lambda: residency_of(self.problem, orders),
        )
        if fits:
            return self._keep(trial)
        self._keep_smallest(trial)
        return None

    def tell(self) -> None:
        """Tells the best plan, if it has not been told."""
        if self.best is not None and self.best is not self._told_trial:
            began, self._told_trial = time.monotonic(), self.best
            self.on_better(self.best)
            over = time.monotonic()
            self._tell_at = over + (over - began) / TELLING

    def _trial(self, residency: Residency, timeline: Timeline, stage: str, *, within_budget: bool) -> Trial:
        position = self.problem.program.position
        rows = [(position[c.storage], c.op, int(c.out), c.start, c.end) for c in timeline.copies]
        table = np.asarray(rows, dtype=np.int64).reshape(-1, 5)
        trial = Trial(
            problem=self.problem,
            stage=stage,
            step_ns=timeline.step_ns,
            peak_bytes=timeline.peak_bytes,
            static_peak_bytes=timeline.static_peak_bytes,
            static_peak_op=timeline.static_peak_op,
            moved_bytes=float(self.problem.expected_bytes[table[:, 0]].sum()),
            hurried=self._hurried(
                table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4], np.asarray(timeline.start, np.int64)
            ),
            orders=len(residency.actions) + len(residency.initial) + len(residency.recompute),
            within_budget=within_budget,
            written=lambda: residency,
        )
        trial.__dict__["timeline"] = timeline
        return trial

    def _hurried(
        self,
        storage: Int64s,
        op: Int64s,
        out: Int64s,
        begin: Int64s,
        end: Int64s,
        start: Int64s,
    ) -> int:
        back = out == 0
        use = self.problem.next_use(storage[back], op[back])
        used = use < self.problem.n
        return int((start[use[used]] < 2 * end[back][used] - begin[back][used]).sum())

    def _keep(self, trial: Trial) -> Trial:
        told, step_us = self.stages.get(trial.stage), trial.step_ns / 1000
        self.stages[trial.stage] = min(told, step_us) if isinstance(told, float) else step_us
        if self.best is None or trial.rank() < self.best.rank():
            self.best = trial
            if time.monotonic() >= self._tell_at:
                self.tell()
        self._keep_smallest(trial)
        return trial

    def _try_small(self, plan: Plan, stage: str) -> None:
        """A plan over the HBM budget may still be the one that runs in the least HBM."""
        roomy = msgspec.structs.replace(plan, budget=msgspec.structs.replace(plan.budget, hbm_bytes=2**53))
        try:
            timeline = replay(self.problem.profile, roomy)
        except OutOfMemory:
            return  # over a tier's budget: it runs with no HBM budget at all
        self._keep_smallest(self._trial(plan.residency, timeline, stage, within_budget=False))

    def _keep_smallest(self, trial: Trial) -> None:
        if self.smallest is None or trial.static_peak_bytes < self.smallest.static_peak_bytes:
            self.smallest = trial
