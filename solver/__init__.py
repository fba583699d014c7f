"""Profile + budget -> plan: residency now, placement later. The only folder that imports OR-Tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from hyperopt.plan import Plan
from hyperopt.profile import Profile
from solver.request import Infeasible, OnProgress, Progress, Request
from solver.residency.front import Front, Point, front, pareto
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
    plan. Raises `NotPlannable` for a profile without storages.
    """
    if request.max_slowdown is not None and request.objective != "min_peak":
        raise ValueError("max_slowdown is for the objective min_peak")
    if request.budget.hbm_bytes is None:  # what is left out is the profile's
        budget = msgspec.structs.replace(request.budget, hbm_bytes=profile.device.hbm_bytes)
        request = replace(request, budget=budget)
    by_objective = {"min_step_time": solve_residency, "min_peak": least_peak, "pareto": front}
    return by_objective[request.objective](profile, request, cancelled, on_progress)
