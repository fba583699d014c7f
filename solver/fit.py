"""Solving a requirement of the gate: does a profile fit, by itself, with a plan, or not at all?"""

from __future__ import annotations

from collections.abc import Callable

from hyperopt.gate.fit import Fit, Requirement, by_itself, not_known, with_plan, without_plan
from hyperopt.occupancy import occupancy
from hyperopt.plan import Budget, Plan
from hyperopt.profile import Profile
from solver import Infeasible, Request, solve


def fit(
    profile: Profile,
    required: Requirement,
    time_limit_s: float | None = 60.0,
    work_limit: int | None = None,
    solve: Callable[[Profile, Request], Plan | Infeasible] = solve,
) -> Fit:
    """Searches for a plan only where one is needed; `solve` does it. A profile without storages or operators is not
    judged.

    With a work limit and no time limit the same profile gets the same answer.
    """
    if silent := not_known(required, profile):
        return silent
    peak = occupancy(profile).peak_bytes
    if found := by_itself(required, peak):
        return found
    budget = Budget(hbm_bytes=required.hbm_bytes, tiers=required.tiers or {})
    answer = solve(profile, Request(budget, time_limit_s=time_limit_s, work_limit=work_limit))
    if isinstance(answer, Plan):
        return with_plan(required, peak, answer)
    return without_plan(required, peak, answer.lower_bound_bytes, answer.proven)
