"""The front of step time against HBM: one plan a budget, from the least that any plan needs to the unplanned peak.

    step time  x
               |  x                    every x is a plan, replayed within its budget; from left to right
               |     x---x             none is slower than one before: what fits a smaller budget fits a larger
               |            x---x---x
               +-- least ------- unplanned peak   HBM budget

Points help each other. A plan for a smaller budget is where the search of the next one starts, and its answer where
nothing better is found; a plan found for a larger one whose peak is lower than asked serves the smaller one too;
and what no plan can go below with more memory, none can with less, so bounds are carried to the left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Budget, Plan, Status
from hyperopt.profile import Profile
from hyperopt.replay import Timeline, replay
from solver.request import Infeasible, OnProgress, Progress, Request
from solver.residency.absence import Replayed
from solver.residency.document import bound_of, predicted
from solver.residency.explain import explain
from solver.residency.problem import Problem
from solver.residency.solve import NotPlannable, solve_residency

Cancel = Callable[[], bool]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for one budget: bytes, and microseconds by replay; `moved_bytes` over all links in both directions."""

    hbm_bytes: int
    step_us: float
    peak_bytes: int
    stall_us: float
    bound_step_us: float
    gap: float
    status: Status
    moved_bytes: int
    actions: int
    plan: Plan


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A budget without a plan, and why: see `solver.request.Infeasible`."""

    hbm_bytes: int
    lower_bound_bytes: int
    reachable_bytes: int | None
    proven: bool
    operator: dict[str, Any]
    why: str


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """Points by growing budget. Below `lower_bound_bytes` no plan exists (proven); `least_hbm_bytes` is the smallest
    budget with a plan in hand, None where there is none."""

    points: tuple[Point, ...]
    infeasible: tuple[Refused, ...]
    least_hbm_bytes: int | None
    lower_bound_bytes: int
    unplanned_peak_bytes: int
    unlimited_step_us: float


def pareto(profile: Profile, request: Request, cancelled: Cancel = lambda: False) -> Front:
    """The front over `request.points` budgets (`request.budget.hbm_bytes`, if given, is one more).

    `time_limit_s` is for all of it. Raises `NotPlannable` for a profile without storages.
    """
    return _Tracer(profile, request, cancelled, lambda _: None).trace()


def front(profile: Profile, request: Request, cancelled: Cancel, on_progress: OnProgress) -> Plan | Infeasible:
    """The plan for the request's budget, with the front in `alternatives`: one entry a budget, smallest first, with
    the fields of `Point`, and `residency` for the plan."""
    asked = request.budget.hbm_bytes
    tracer = _Tracer(profile, request, cancelled, on_progress)
    found = tracer.trace()
    refusal = tracer.refusals.get(asked) if asked is not None else None
    point = next((point for point in found.points if point.hbm_bytes == asked), None)
    if point is None:
        assert refusal is not None
        return refusal
    answer = msgspec.structs.replace(point.plan, alternatives=tuple(_entry(p) for p in found.points))
    return msgspec.structs.replace(answer, plan_id=answer.content_id)


def _entry(point: Point) -> dict[str, Any]:
    names = [name for name in Point.__struct_fields__ if name != "plan"]
    return {name: getattr(point, name) for name in names} | {"residency": point.plan.residency}


class _Tracer:
    """One call: budgets, the time they share, and the plans found on the way."""

    def __init__(self, profile: Profile, request: Request, cancelled: Cancel, on_progress: OnProgress) -> None:
        if profile.timing_only:
            raise NotPlannable("the profile has times but no storages: there is nothing to place")
        if request.points < 1:
            raise ValueError("a front has one point at least")
        self.profile, self.request, self.cancelled, self.on_progress = profile, request, cancelled, on_progress
        limit = request.time_limit_s
        self.deadline = None if limit is None else time.monotonic() + limit
        self.problem = Problem(profile, within(request, 0).budget)
        self.plans: dict[int, Plan] = {}
        self.refusals: dict[int, Infeasible] = {}
        self.told_us = float("inf")

    def trace(self) -> Front:
        unlimited, count = self.problem.unlimited, self.request.points
        floor = self._solve(0, 1 + count)
        least: int | None = 0
        lower = 0
        if isinstance(floor, Infeasible):  # a plan for 0 bytes is there where nothing takes any memory
            least, lower = floor.reachable_bytes, floor.lower_bound_bytes
        high = unlimited.peak_bytes
        low = min(high, lower if least is None else least)
        smallest = in_hand(self.problem, self.request, floor)
        budgets = {high - (high - low) * i // max(1, count - 1) for i in range(count)}
        if self.request.budget.hbm_bytes is not None:
            budgets.add(self.request.budget.hbm_bytes)
        self._fill(sorted(budgets), high, smallest)
        chosen = self._settled(sorted(self.plans))
        return Front(
            points=tuple(self._point(hbm_bytes, plan) for hbm_bytes, plan in sorted(chosen.items())),
            infeasible=tuple(_refused(b, r) for b, r in sorted(self.refusals.items()) if b in budgets),
            least_hbm_bytes=min([*chosen, *([] if least is None else [least])], default=None),
            lower_bound_bytes=lower,
            unplanned_peak_bytes=high,
            unlimited_step_us=unlimited.step_us,
        )

    def _fill(self, budgets: list[int], high: int, smallest: Plan | None) -> None:
        """A plan or a refusal for each budget: the unplanned peak first, which costs next to nothing.

        `smallest`: the plan in hand for the least budget.
        """
        order = sorted(budgets, key=lambda hbm_bytes: (hbm_bytes < high, hbm_bytes))
        best = smallest
        for i, hbm_bytes in enumerate(order):
            fits = best if best is not None and hbm_bytes < high and _budget(best) <= hbm_bytes else None
            if fits is not None and self._out_of_time():
                self.plans[hbm_bytes] = self._carried(fits, hbm_bytes, None, "no time left for this budget")
                continue
            found = self._solve(hbm_bytes, len(order) - i, () if fits is None else (fits.residency,))
            if isinstance(found, Infeasible) and fits is None:
                self.refusals[hbm_bytes] = found
                continue
            if isinstance(found, Infeasible):
                assert fits is not None
                found = self._carried(fits, hbm_bytes, None, found.stop_reason)
            elif fits is not None:
                found = self._better(found, fits)
            self.plans[hbm_bytes] = found
            if hbm_bytes < high:
                best = found

    def _out_of_time(self) -> bool:
        return self.cancelled() or (self.deadline is not None and time.monotonic() >= self.deadline)

    def _solve(self, hbm_bytes: int, left: int, starts: tuple[Any, ...] = ()) -> Plan | Infeasible:
        """Solves one budget with its share of what time is left for `left` of them."""
        share = None if self.deadline is None else max(0.0, self.deadline - time.monotonic()) / left
        request = replace(within(self.request, hbm_bytes), time_limit_s=share, starts=starts)
        return solve_residency(self.profile, request, self.cancelled, lambda found: self._tell(hbm_bytes, found))

    def _tell(self, hbm_bytes: int, found: Progress) -> None:
        """Passes on what would be an answer: a plan that fits the budget asked for, and beats those told before."""
        asked = self.request.budget.hbm_bytes
        if asked is not None and hbm_bytes <= asked and found.step_us < self.told_us:
            self.told_us = found.step_us
            self.on_progress(found)

    # -- what one budget's plan is worth to another ------------------------------------------------------------

    def _settled(self, budgets: list[int]) -> dict[int, Plan]:
        """The plans with what the neighbours know: bounds and thrifty plans from the right, then plans from the left.

        Raises nothing that was not raised before: only plans that have run are run again.
        """
        chosen = dict(self.plans)
        bound_us = 0.0
        richer: Plan | None = None
        for hbm_bytes in reversed(budgets):
            plan = chosen[hbm_bytes]
            if richer is not None and richer.predicted is not None and richer.predicted.peak_bytes <= hbm_bytes:
                plan = self._better(plan, richer)
            assert plan.bound is not None and plan.predicted is not None
            bound_us = max(bound_us, plan.bound.step_us)
            if bound_us > plan.bound.step_us:
                step_ns = round(plan.predicted.step_us * 1000)
                bound = bound_of(step_ns, round(bound_us * 1000), plan.bound.stop_reason)
                plan = msgspec.structs.replace(plan, bound=bound)
            chosen[hbm_bytes] = richer = plan
        for smaller, larger in pairwise(budgets):
            chosen[larger] = self._better(chosen[larger], chosen[smaller])
        return chosen

    def _better(self, found: Plan, other: Plan) -> Plan:
        """The faster of a plan and one for another budget that fits this one, as a plan for the budget of `found`."""
        assert found.predicted is not None and other.predicted is not None and found.bound is not None
        assert found.budget.hbm_bytes is not None
        if found.predicted.step_us <= other.predicted.step_us:
            return found
        try:
            return self._carried(other, found.budget.hbm_bytes, found.bound.step_us, found.bound.stop_reason)
        except (OutOfMemory, IllegalPlan):  # pragma: no cover - it fits, or it would not have been offered
            return found

    def _carried(self, plan: Plan, hbm_bytes: int, bound_us: float | None, reason: str) -> Plan:
        return carried(self.problem, plan, hbm_bytes, bound_us, reason)

    def _point(self, hbm_bytes: int, plan: Plan) -> Point:
        timeline = replay(self.profile, plan)
        assert plan.bound is not None
        residency = plan.residency
        return Point(
            hbm_bytes=hbm_bytes,
            step_us=timeline.step_us,
            peak_bytes=timeline.peak_bytes,
            stall_us=timeline.stall_us,
            bound_step_us=plan.bound.step_us,
            gap=plan.bound.gap,
            status=plan.bound.status,
            moved_bytes=moved_bytes(self.profile, timeline),
            actions=len(residency.initial) + len(residency.actions) + len(residency.recompute),
            plan=plan,
        )


def within(request: Request, hbm_bytes: int) -> Request:
    """The same request for another budget of HBM."""
    return replace(request, budget=msgspec.structs.replace(request.budget, hbm_bytes=hbm_bytes))


def _budget(plan: Plan) -> int:
    assert plan.budget.hbm_bytes is not None
    return plan.budget.hbm_bytes


def in_hand(problem: Problem, request: Request, answer: Plan | Infeasible) -> Plan | None:
    """The plan that an answer without one has in hand, for the least budget with which that runs."""
    if isinstance(answer, Plan) or answer.in_hand is None or answer.reachable_bytes is None:
        return None
    plan = Plan(
        profile_digest=problem.profile.digest,
        program_digest=problem.profile.program_digest,
        budget=Budget(tiers=problem.budget.tier_bytes(problem.profile)),
        objective=request.objective,
        residency=answer.in_hand,
        provenance={"solver": "residency", "stage": "smallest", "seed": request.seed},
    )
    return carried(problem, plan, answer.reachable_bytes, None, answer.stop_reason)


def carried(problem: Problem, plan: Plan, hbm_bytes: int, bound_us: float | None, reason: str) -> Plan:
    """A plan for another budget of HBM than it was made for, with its figures there.

    `bound_us`: what is proven for that budget; None: no more than the unlimited step. Raises `OutOfMemory`.
    """
    budget = msgspec.structs.replace(plan.budget, hbm_bytes=hbm_bytes)
    plan = msgspec.structs.replace(plan, budget=budget)
    timeline = replay(problem.profile, plan)
    bound_ns = problem.unlimited.step_ns if bound_us is None else round(bound_us * 1000)
    there = copy(problem)
    there.budget, there.hbm_bytes = budget, hbm_bytes
    plan = msgspec.structs.replace(
        plan,
        predicted=predicted(problem, timeline),
        bound=bound_of(timeline.step_ns, bound_ns, reason),
        explain=explain(there, Replayed(plan.residency, timeline)),
    )
    return msgspec.structs.replace(plan, plan_id=plan.content_id)


def moved_bytes(profile: Profile, timeline: Timeline) -> int:
    return sum(profile.by_id[copy.storage].bytes for copy in timeline.copies)


def _refused(hbm_bytes: int, found: Infeasible) -> Refused:
    name = found.operator.get("name") or f"operator {found.operator.get('index')}"
    if found.proven:
        why = f"no plan exists below {found.lower_bound_bytes} bytes (proven), which {name} sets"
    else:
        why = f"none found ({found.stop_reason}); proven only below {found.lower_bound_bytes} bytes"
    return Refused(
        hbm_bytes=hbm_bytes,
        lower_bound_bytes=found.lower_bound_bytes,
        reachable_bytes=found.reachable_bytes,
        proven=found.proven,
        operator=found.operator,
        why=why,
    )
