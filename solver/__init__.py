"""Profile + budget -> plan: residency now, placement later. The only folder that imports OR-Tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from hyperopt.node import Node
from hyperopt.plan import HOST, Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from solver.labels import for_profile, in_order_of_use
from solver.request import Infeasible, OnProgress, Progress, Request
from solver.residency import front as fronts
from solver.residency.front import Front, Point, front
from solver.residency.least import least_peak
from solver.residency.solve import NotPlannable, solve_residency

__all__ = ["Front", "Infeasible", "NotPlannable", "Point", "Progress", "Request", "pareto", "solve"]


def solve(
    profile: Profile,
    request: Request,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = lambda _: None,
) -> Plan | Infeasible:
    """The best plan that fits `request`, with a proven bound, or the reasons why there is none.

    Runs in this process (see `solver.child` for one that can be killed). `on_progress` is told of every better
    plan. Raises `NotPlannable` for a profile without storages, `DocumentError` for a host budget that is not safe on
    `request.node`, and for bytes or durations whose sums do not fit 64 bits.
    """
    if request.node is not None:
        node, on_node = request.node, replace(request, node=None)
        _check_node(node, request)

        def tell(found: Progress) -> None:
            on_progress(replace(found, plan=_noted(found.plan, profile, node)))

        answer = solve(node.profile(profile), on_node, cancelled=cancelled, on_progress=tell)
        return _noted(answer, profile, node) if isinstance(answer, Plan) else answer
    if request.max_slowdown is not None and request.objective != "min_peak":
        raise ValueError("max_slowdown is for the objective min_peak")
    if request.budget.hbm_bytes is None:  # what is left out is the profile's
        budget = msgspec.structs.replace(request.budget, hbm_bytes=profile.device.hbm_bytes)
        request = replace(request, budget=budget)
    by_objective = {"min_step_time": solve_residency, "min_peak": least_peak, "pareto": front}
    ordered = in_order_of_use(profile)

    def tell_of(found: Progress) -> None:
        on_progress(replace(found, plan=for_profile(found.plan, profile)))

    found = by_objective[request.objective](ordered, request, cancelled, tell_of)
    return for_profile(found, profile) if isinstance(found, Plan) else found


def pareto(profile: Profile, request: Request, *, cancelled: Callable[[], bool] = lambda: False) -> Front:
    """The front of step time against HBM over `request.points` budgets; `time_limit_s` is for all of it.

    Raises as `solve` does.
    """
    node = request.node
    if node is None:
        found = fronts.pareto(in_order_of_use(profile), request, cancelled)
        own = [msgspec.structs.replace(point, plan=for_profile(point.plan, profile)) for point in found.points]
        return msgspec.structs.replace(found, points=tuple(own))
    _check_node(node, request)
    found = pareto(node.profile(profile), replace(request, node=None), cancelled=cancelled)
    points = [msgspec.structs.replace(point, plan=_noted(point.plan, profile, node)) for point in found.points]
    return msgspec.structs.replace(found, points=tuple(points))


def _check_node(node: Node, request: Request) -> None:
    asked = request.budget.tiers.get(HOST)
    if asked is not None:
        node.check(asked, f"$.budget.tiers.{HOST}")


def _noted(plan: Plan, profile: Profile, node: Node) -> Plan:
    """The plan with the node that it is for in its provenance, and its figures on the profile as it was given."""
    timeline = replay(profile, plan)
    alone = {"step_us": timeline.step_us, "peak_bytes": timeline.peak_bytes}
    told = {**node.told(profile), "predicted_in_profile": alone}
    return msgspec.structs.replace(plan, provenance={**plan.provenance, "node": told})
