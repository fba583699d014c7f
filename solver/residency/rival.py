"""A rival's plan as a document of its own, judged like any other plan."""

from __future__ import annotations

import msgspec

from hyperopt.plan import Budget, Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from solver.labels import in_order_of_use
from solver.residency.assemble import assemble
from solver.residency.document import predicted
from solver.residency.problem import Problem
from solver.residency.rivals.registry import RIVALS


def rival_plan(profile: Profile, name: str, budget: Budget) -> Plan:
    """The plan that the named rule makes.

    Raises `OutOfMemory` where it does not run within the budget, and `DidNotSolve` where the rule gives up.
    """
    problem = Problem(in_order_of_use(profile), budget)
    plan = Plan(
        profile_digest=profile.digest,
        program_digest=profile.program_digest,
        budget=Budget(hbm_bytes=problem.hbm_bytes, tiers=budget.tier_bytes(profile)),
        residency=assemble(problem, RIVALS[name](problem)),
        provenance={"solver": "baseline", "name": name},
    )
    plan = msgspec.structs.replace(plan, predicted=predicted(problem, replay(profile, plan)))
    return msgspec.structs.replace(plan, plan_id=plan.content_id)
