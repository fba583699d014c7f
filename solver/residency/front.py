"""More than one budget in one call: the least HBM, and the front of step time against HBM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from hyperopt.plan import Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from solver.request import Infeasible, OnProgress, Request
from solver.residency.bound import memory_bound
from solver.residency.document import bound_of, predicted
from solver.residency.problem import Problem
from solver.residency.solve import solve_residency

POINTS = 8


def least_peak(
    profile: Profile, request: Request, cancelled: Callable[[], bool], on_progress: OnProgress
) -> Plan | Infeasible:
    """The fastest plan found within the least HBM that any plan in hand needs, not above the request's budget.

    `explain` starts with {least_hbm_bytes, lower_bound_bytes}: the least is proven where the two are equal.
    """
    floor = solve_residency(profile, _within(request, 0), cancelled, on_progress)
    if isinstance(floor, Plan):  # nothing takes any memory
        return floor
    least, asked = floor.reachable_bytes, request.budget.hbm_bytes
    if least is None or asked is None or least > asked:
        return solve_residency(profile, request, cancelled, on_progress)
    plan = solve_residency(profile, _within(request, least), cancelled, on_progress)
    if isinstance(plan, Infeasible):
        return plan
    figures = {"least_hbm_bytes": least, "lower_bound_bytes": floor.lower_bound_bytes}
    return msgspec.structs.replace(plan, explain=(figures, *plan.explain))


def front(
    profile: Profile,
    request: Request,
    cancelled: Callable[[], bool],
    on_progress: OnProgress,
    points: int = POINTS,
) -> Plan | Infeasible:
    """The plan for the request's budget, with the front in `alternatives`.

    One entry a budget, from the least provable to the unplanned peak, smallest first: {hbm_bytes, step_us,
    peak_bytes, bound_step_us, residency}. A plan for a smaller budget serves a larger one too, so step times
    never rise along the front, of which the answer is a part.
    """
    problem = Problem(profile, request.budget)
    low, high = memory_bound(problem).bytes, problem.unlimited.static_peak_bytes
    budgets = {low + (high - low) * i // max(1, points - 1) for i in range(points)} | {problem.hbm_bytes}
    share = None if request.time_limit_s is None else request.time_limit_s / len(budgets)
    best: Plan | None = None
    answer: Plan | Infeasible | None = None
    entries: list[dict[str, Any]] = []
    for hbm_bytes in sorted(budgets):
        found = solve_residency(
            profile, replace(_within(request, hbm_bytes), time_limit_s=share), cancelled, on_progress
        )
        if isinstance(found, Plan):
            best = found if best is None else _better(profile, found, best)
        if hbm_bytes == problem.hbm_bytes:
            answer = found if best is None else best
        if best is not None:
            entries.append(_entry(best, hbm_bytes))
    assert answer is not None
    if isinstance(answer, Infeasible):
        return answer
    answer = msgspec.structs.replace(answer, alternatives=tuple(entries))
    return msgspec.structs.replace(answer, plan_id=answer.content_id)


def _within(request: Request, hbm_bytes: int) -> Request:
    return replace(request, budget=msgspec.structs.replace(request.budget, hbm_bytes=hbm_bytes))


def _better(profile: Profile, found: Plan, smaller: Plan) -> Plan:
    """The faster of a plan and one for a smaller budget, as a plan for the budget of the first."""
    assert found.predicted is not None and smaller.predicted is not None and found.bound is not None
    if found.predicted.step_us <= smaller.predicted.step_us:
        return found
    carried = msgspec.structs.replace(found, residency=smaller.residency, explain=smaller.explain)
    timeline = replay(profile, carried)
    bound = bound_of(timeline.step_ns, round(found.bound.step_us * 1000), found.bound.stop_reason)
    figures = predicted(Problem(profile, found.budget), timeline)
    carried = msgspec.structs.replace(carried, predicted=figures, bound=bound)
    return msgspec.structs.replace(carried, plan_id=carried.content_id)


def _entry(plan: Plan, hbm_bytes: int) -> dict[str, Any]:
    assert plan.predicted is not None and plan.bound is not None
    return {
        "hbm_bytes": hbm_bytes,
        "step_us": plan.predicted.step_us,
        "peak_bytes": plan.predicted.peak_bytes,
        "bound_step_us": plan.bound.step_us,
        "residency": plan.residency,
    }
