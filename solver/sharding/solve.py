"""Sharding of a problem within a time limit: presolve, prices and bound, search; in turns until a reason to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from solver.sharding.branch import Branching
from solver.sharding.dual import Dual
from solver.sharding.problem import Evaluation, Int64s, Problem, evaluate, least_shortfall
from solver.sharding.reduce import Contradiction, Reduction, reduce
from solver.sharding.search import Search
from solver.stop import BoundReached, Stop, TimeLimit, WorkLimit

RESERVE_S, RESERVE_SHARE = 0.15, 0.015
"""Kept of the time limit for the proof of the bound and the last evaluation, besides what the proof is seen to take."""

FIRST_ROUNDS = 40
"""Of the dual, before the first search."""

DUAL_SHARE, LATE_DUAL_SHARE = 0.35, 0.2
"""Of the time goes to the dual, or to branching: while it climbs, and after."""

PERIOD, CLIMBING, FLAT, LARGE_FLAT = 50, 1e-4, 4, 16
"""Rounds of the dual after which the search hears of new prices; what the bound must have gained to be climbing; for
how many periods it must not be before branching begins, or, on large cores, before the dual gets less of the time."""

ROUND = 0.1
"""What a round of the dual counts beside a slice of search or a split where work is counted, not time."""

SMALL = 2_000_000
"""Entries of the matrices (both directions) up to which branching is tried: a split takes some hundred sweeps."""


@dataclass(frozen=True)
class Answer:
    """The best solution found, `evaluation` by the judge, and `bound`, which no solution within memory is below.

    Where nothing fits, `solution` is the one that exceeds the limit least of those seen, and `impossible` says whether
    that is proven. `first_feasible_s`: seconds from the call to the first feasible solution, None without one.
    """

    solution: Int64s
    evaluation: Evaluation
    bound: int
    stop_reason: str
    seconds: float
    first_feasible_s: float | None
    impossible: bool

    @property
    def gap(self) -> float | None:
        """(cost - bound) / bound; None where nothing feasible is in hand, or the bound is 0 and the cost is not."""
        if not self.evaluation.feasible:
            return None
        if self.evaluation.cost == self.bound:
            return 0.0
        return (self.evaluation.cost - self.bound) / self.bound if self.bound > 0 else None


def solve(problem: Problem, time_limit_s: float | None = 60.0, seed: int = 0, work_limit: int | None = None) -> Answer:
    """The best solution within `time_limit_s` of wall clock from the call on (None: none) or `work_limit` slices of
    search, after which the same input and seed give the same answer where no time limit interferes.
    """
    started = time.monotonic()
    limits: list[TimeLimit | WorkLimit | BoundReached] = [BoundReached()]
    if time_limit_s is not None:
        reserve = min(0.3 * time_limit_s, RESERVE_S + RESERVE_SHARE * time_limit_s)
        limits.append(TimeLimit(time_limit_s - reserve))
    if work_limit is not None:
        limits.append(WorkLimit(work_limit))
    stop = Stop(*limits)
    try:
        strict = reduce(problem, stop.late)
        run = _Run(problem, strict, stop, seed, started)
    except Contradiction:
        # Nothing without a forbidden choice fits: the cheapest of what is forbidden, if anything fits at all.
        _, shortfall = least_shortfall(problem)
        if shortfall:
            least = _least_usage(problem)
            return _answer(problem, least, 0, "infeasible", started, None, True)
        try:
            run = _Run(problem, reduce(problem, stop.late, strict=False), stop, seed, started)
        except Contradiction:
            return _answer(problem, _least_usage(problem), 0, "infeasible", started, None, True)
    return run.answer()


class _Run:
    """One reduction under work."""

    def __init__(self, problem: Problem, reduction: Reduction, stop: Stop, seed: int, started: float) -> None:
        self.problem, self.reduction, self.stop, self.started = problem, reduction, stop, started
        self.dual, self.search = Dual(reduction.core), Search(reduction.core, seed)
        self.branching: Branching | None = None
        self.first_feasible_s: float | None = None

    def answer(self) -> Answer:
        core = self.reduction.core
        if core.nodes:
            self._work()
        solution = self.search.best if self.search.best is not None else self.search.x
        bound = self.dual.exact() if self.branching is None else self.branching.exact()
        bound = min(bound, self.reduction.ceiling)
        # Said without its seconds: some of the caller's are kept for the proof.
        reason = self.stop.why.partition(" of ")[0] or "nothing left to choose"
        first = self.first_feasible_s
        if self.search.best is not None and first is None:
            first = time.monotonic() - self.started
        answer = _answer(self.problem, self.reduction.restore(solution), bound, reason, self.started, first, False)
        if reason == "bound reached" and answer.gap:
            answer = replace(answer, stop_reason="bound reached but for rounding")
        return answer

    def _work(self) -> None:
        """Search and dual in turns: with a time limit their shares are of time, else of slices and rounds."""
        dual, search, stop = self.dual, self.search, self.stop
        for _ in range(FIRST_ROUNDS):
            dual.round(np.inf)
            if stop.late():
                break
        search.start(dual.decoded())
        search.price(dual.lam)
        small = len(self.reduction.core.table) <= SMALL
        spent_search, spent_dual = 0.0, 0.0
        rounds, flat, marked, share = 0, 0, dual.value, DUAL_SHARE
        while not self._done():
            stop.work += 1
            t0 = time.monotonic()
            search.slice()
            if search.best is not None and self.first_feasible_s is None:
                self.first_feasible_s = time.monotonic() - self.started
            t1 = time.monotonic()
            spent_search += 1.0 if self._counted else t1 - t0
            while spent_dual < share / (1 - share) * spent_search and not stop.late():
                t1, turn = time.monotonic(), 1.0
                if self.branching is None:
                    dual.round(search.best_cost)
                    rounds += 1
                    turn = ROUND
                elif self.branching.split(search.best_cost, stop.late):
                    search.suggest(self.branching.decoded())
                else:
                    share = 0.0
                spent_dual += turn if self._counted else time.monotonic() - t1
            if rounds >= PERIOD:
                climbing = dual.value > marked + CLIMBING * abs(marked)
                rounds, marked = 0, dual.value
                search.price(dual.lam)
                search.suggest(dual.decoded())
                flat = 0 if climbing else flat + 1
                if flat >= FLAT and small and search.best is not None:
                    self.branching = Branching(dual)
                elif flat >= LARGE_FLAT:
                    share = LATE_DUAL_SHARE

    @property
    def _counted(self) -> bool:
        return any(isinstance(limit, WorkLimit) for limit in self.stop.criteria)

    def _done(self) -> bool:
        fixed = self.reduction.core.fixed_cost
        best = None if self.search.best is None else round(self.search.best_cost) + fixed
        value = self.dual.value if self.branching is None else self.branching.value
        if value == np.inf:
            value = self.search.best_cost
        floor = int(np.ceil(value - 1e-7 - 1e-10 * abs(value))) if np.isfinite(value) else 0
        return self.stop.asked(best, floor + fixed)


def _least_usage(problem: Problem) -> Int64s:
    """Every node with the strategy that uses least."""
    n = problem.nodes
    order = np.lexsort((problem.cost, problem.usage, np.repeat(np.arange(n), problem.strategies)))
    least: Int64s = order[problem.first[:-1]] - problem.first[:-1]
    return least


def _answer(
    problem: Problem, solution: Int64s, bound: int, reason: str, started: float, first: float | None, impossible: bool
) -> Answer:
    evaluation = evaluate(problem, solution)
    bound = max(0, bound)
    if evaluation.feasible and bound > evaluation.cost:
        bound = evaluation.cost
    seconds = time.monotonic() - started
    return Answer(solution, evaluation, bound, reason, seconds, first, impossible)
