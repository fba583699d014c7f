"""The least HBM: that in which any plan runs at all, or that in which one is fast enough.

Within an allowed slowdown the budget is bisected::

    no plan can be      slow enough plans      fast enough
    fast enough         only, so far           (a plan in hand)
    ───────────────┤ ─────────────────────┤ ├──────────────────▶ HBM budget
           lower bound (proven)          least

A budget fails for certain where the solver's bound is above the allowed step, and where no plan exists. Each is
searched only until a plan is fast enough, or it is proven that none is; what fails for want of time is tried again,
with more of it, in what is left at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from hyperopt.plan import Plan, Residency
from hyperopt.profile import Profile
from solver.request import Infeasible, OnProgress, Progress, Request
from solver.residency.front import carried, in_hand, within
from solver.residency.problem import Problem
from solver.residency.solve import solve_residency

NOT_LEAST = "the step is proven, the peak is not"
"""Why a plan that is as fast as can be in its budget is not called optimal: less HBM may do."""

FINENESS = 2000
"""The bisection ends when what is open is this small a part of the unplanned peak."""


def least_peak(
    profile: Profile, request: Request, cancelled: Callable[[], bool], on_progress: OnProgress
) -> Plan | Infeasible:
    """The fastest plan found within the least HBM that any plan in hand needs, not above the request's budget.

    With `request.max_slowdown`: within the least HBM for which a plan is at most that much slower than the unlimited
    step. `explain` starts with {least_hbm_bytes, lower_bound_bytes}: the least is proven where the two are equal, and
    only there can the plan be optimal.
    """
    if request.max_slowdown is not None:
        return _Bisection(profile, request, request.max_slowdown, cancelled, on_progress).run()
    limit, began = request.time_limit_s, time.monotonic()
    first = replace(within(request, 0), time_limit_s=None if limit is None else limit / 2)
    floor = solve_residency(profile, first, cancelled, lambda _: None)
    if limit is not None:
        request = replace(request, time_limit_s=max(0.0, limit - (time.monotonic() - began)))
    if isinstance(floor, Plan):  # nothing takes any memory
        return floor
    least, asked, lower = floor.reachable_bytes, request.budget.hbm_bytes, floor.lower_bound_bytes

    def tell(found: Progress) -> None:
        on_progress(replace(found, plan=_proven(found.plan, lower)))

    if least is None or asked is None or least > asked:
        late = solve_residency(profile, request, cancelled, tell)
        if isinstance(late, Infeasible):
            return late
        assert late.predicted is not None
        return _explained(late, {"least_hbm_bytes": late.predicted.peak_bytes, "lower_bound_bytes": lower})
    smallest = in_hand(Problem(profile, within(request, least).budget), request, floor)
    starts = () if smallest is None else (smallest.residency,)
    plan = solve_residency(profile, replace(within(request, least), starts=starts), cancelled, tell)
    if isinstance(plan, Infeasible):
        if smallest is None:
            return plan
        plan = smallest
    return _explained(plan, {"least_hbm_bytes": least, "lower_bound_bytes": lower})


def _explained(plan: Plan, figures: dict[str, Any]) -> Plan:
    """The plan with these figures of its peak before all else, and what they prove."""
    plan = _proven(plan, figures["lower_bound_bytes"])
    return msgspec.structs.replace(plan, explain=(figures, *plan.explain))


def _proven(plan: Plan, lower: int) -> Plan:
    """The plan, called optimal only where its peak is the least too: none that would do needs less than `lower`."""
    assert plan.bound is not None and plan.predicted is not None
    if plan.bound.status != "optimal" or plan.predicted.peak_bytes <= lower:
        return plan
    bound = msgspec.structs.replace(plan.bound, status="feasible", stop_reason=NOT_LEAST)
    return msgspec.structs.replace(plan, bound=bound)


@dataclass
class _Bisection:
    """`fails`: largest budget that failed, proven or not; `lower`: no plan below is fast enough, or is at all."""

    profile: Profile
    request: Request
    max_slowdown: float
    cancelled: Callable[[], bool]
    on_progress: OnProgress

    def __post_init__(self) -> None:
        self.problem = Problem(self.profile, within(self.request, 0).budget)
        limit = self.request.time_limit_s
        self.deadline = None if limit is None else time.monotonic() + limit
        unlimited = self.problem.unlimited
        self.allowed_ns = int(unlimited.step_ns * (1 + self.max_slowdown))
        self.peak = unlimited.peak_bytes
        self.lower, self.fails = 0, -1
        self.best: Plan | None = None
        self.found: list[tuple[int, int, Residency]] = []  # (budget, step ns, orders) of plans that were too slow

    def run(self) -> Plan | Infeasible:
        asked = self.request.budget.hbm_bytes
        assert asked is not None
        at_peak = self._try(max(self.peak, 0), quick=True)
        assert self.best is not None, at_peak  # without any plan: that is the unlimited step
        floor = self._solve(0, quick=True)
        if isinstance(floor, Infeasible):
            self._failed(floor.lower_bound_bytes - 1, proven=True)
            smallest = in_hand(self.problem, self.request, floor)
            if smallest is not None and self._fast_enough(smallest):
                self._consider(smallest)
            elif smallest is not None:  # slow, but found in passing: solving may find a faster one
                self._remember(smallest)
                self._try(floor.reachable_bytes or 0)
        if self.fails < asked < self._least():
            self._try(asked)
        while self._open() > self.peak // FINENESS and not self._late():
            self._try((self.fails + self._least()) // 2)
        if self.deadline is not None:
            self._try_again()
        least = self._least()
        if least > asked:
            return self._refusal(asked, floor)
        figures = {
            "least_hbm_bytes": least,
            "lower_bound_bytes": self.lower,
            "max_slowdown": self.max_slowdown,
            "allowed_step_us": self.allowed_ns / 1000,
        }
        return _explained(self.best, figures)

    def _try_again(self) -> None:
        """Once more below the least, from what is known by now, in half of what time is left at a time."""
        step = (self._least() - self.lower) // 4
        while step > self.peak // FINENESS and not self._late():
            before = self._least()
            self._try(max(self.lower, before - step), rounds=2)
            step = min(step, (self._least() - self.lower) // 4) if self._least() < before else step // 2

    def _least(self) -> int:
        assert self.best is not None and self.best.budget.hbm_bytes is not None
        return self.best.budget.hbm_bytes

    def _open(self) -> int:
        """Bytes between the largest budget that failed and the smallest that did not, both left out."""
        return self._least() - self.fails - 1

    def _late(self) -> bool:
        return self.cancelled() or (self.deadline is not None and time.monotonic() >= self.deadline)

    def _try(self, hbm_bytes: int, quick: bool = False, rounds: int | None = None) -> Plan | Infeasible:
        found = self._solve(hbm_bytes, quick, rounds)
        if isinstance(found, Infeasible):
            self._failed(found.lower_bound_bytes - 1, proven=True)
            self._failed(hbm_bytes, proven=found.proven)
            return found
        self._consider(found)
        return found

    def _consider(self, found: Plan) -> None:
        """A plan for some budget: fast enough, and perhaps the best, or not, and perhaps none is at that budget."""
        hbm_bytes = found.budget.hbm_bytes
        assert found.predicted is not None and found.bound is not None and hbm_bytes is not None
        if not self._fast_enough(found):
            self._remember(found)
            self._failed(hbm_bytes, proven=round(found.bound.step_us * 1000) > self.allowed_ns)
            return
        least = min(hbm_bytes, found.predicted.peak_bytes)
        # What is proven with more memory holds with less.
        plan = carried(self.problem, found, least, found.bound.step_us, found.bound.stop_reason)
        if self.best is None or least < self._least():
            self.best = plan
            if self.request.budget.hbm_bytes is not None and least <= self.request.budget.hbm_bytes:
                assert plan.predicted is not None and plan.bound is not None
                told = _proven(plan, self.lower)
                self.on_progress(Progress("bisection", plan.predicted.step_us, plan.bound.step_us, told))

    def _remember(self, found: Plan) -> None:
        assert found.predicted is not None and found.budget.hbm_bytes is not None
        self.found.append((found.budget.hbm_bytes, round(found.predicted.step_us * 1000), found.residency))

    def _starts(self, hbm_bytes: int) -> tuple[Residency, ...]:
        """The fastest plan known for this budget or a smaller one."""
        fitting = sorted((found for found in self.found if found[0] <= hbm_bytes), key=lambda found: found[1])
        return tuple(residency for _, _, residency in fitting[:1])

    def _fast_enough(self, found: Plan) -> bool:
        assert found.predicted is not None
        return round(found.predicted.step_us * 1000) <= self.allowed_ns

    def _failed(self, hbm_bytes: int, *, proven: bool) -> None:
        self.fails = max(self.fails, hbm_bytes)
        if proven:
            self.lower = max(self.lower, hbm_bytes + 1)

    def _solve(self, hbm_bytes: int, quick: bool = False, rounds: int | None = None) -> Plan | Infeasible:
        share = None
        if self.deadline is not None:
            left = max(0.0, self.deadline - time.monotonic())
            if rounds is None:
                open_parts = 0 if self.best is None else self._open() * FINENESS // max(1, self.peak)
                rounds = 8 if quick or self.best is None else max(1, open_parts).bit_length() + 1
            share = left / rounds
        request = replace(
            within(self.request, hbm_bytes),
            time_limit_s=share,
            starts=self._starts(hbm_bytes),
            enough_ns=self.allowed_ns,
        )
        return solve_residency(self.profile, request, self.cancelled, lambda _: None)

    def _refusal(self, asked: int, floor: Plan | Infeasible) -> Infeasible:
        """Some plan is fast enough with more memory; with what was asked for, none that is known."""
        at_asked = self._solve(asked)
        if isinstance(at_asked, Infeasible):
            return at_asked
        assert at_asked.predicted is not None
        slower = at_asked.predicted.step_us * 1000 / max(1, self.problem.unlimited.step_ns) - 1
        relief = {
            "relief": f"allow a slowdown of {100 * slower:.2f} %",
            "kind": "slowdown",
            "max_slowdown": slower,
            "basis": "replayed",
            "lower_bound_bytes": floor.lower_bound_bytes if isinstance(floor, Infeasible) else 0,
            "saves_bytes": self._least() - asked,
            "reaches_budget": True,
        }
        return Infeasible(
            lower_bound_bytes=self.lower,
            reachable_bytes=self._least(),
            operator=floor.operator if isinstance(floor, Infeasible) else {"index": None, "name": ""},
            budget_bytes=asked,
            proven=asked < self.lower,
            stop_reason=f"no plan found within {100 * self.max_slowdown:g} % of the unlimited step",
            reliefs=(relief,),
        )
