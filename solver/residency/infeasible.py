"""No plan within the budget: what is proven, what is in hand, and what would help."""

from __future__ import annotations

from typing import Any

from solver.request import Infeasible
from solver.residency.bound import memory_bound
from solver.residency.exact import TooLarge
from solver.residency.incumbent import Incumbent
from solver.residency.ladder import ladder
from solver.residency.problem import Problem
from solver.residency.small import REACH_WIDTH, least_budget


def infeasible(problem: Problem, incumbent: Incumbent) -> Infeasible | None:
    """The bound and the smallest budget in hand; on small problems both are settled by exhaustion, and meet; on
    little ones the budget in hand is the least that sifting finds.

    None when settling them has brought a plan within the budget after all: it is in the incumbent.
    """
    bound = memory_bound(problem)
    lower, operator = bound.bytes, bound.operator
    reachable = _reachable(incumbent)
    if reachable is not None and lower < reachable:
        try:
            found = least_budget(problem, lower, reachable, incumbent.stop)
        except TooLarge:  # the bound stands as it is
            found = least_budget(problem, lower, reachable, incumbent.stop, REACH_WIDTH)
            if found is not None:
                incumbent.offer(found[1], "sifted")
        else:
            if found is not None:
                incumbent.offer(found[1], "exact")
            assert incumbent.smallest is not None
            lower = incumbent.smallest.static_peak_bytes
            operator = incumbent.smallest.static_peak_op
    if incumbent.best is not None:
        return None
    answer = Infeasible(
        lower_bound_bytes=lower,
        reachable_bytes=_reachable(incumbent),
        budget_bytes=problem.hbm_bytes,
        proven=problem.hbm_bytes < lower,
        stop_reason=incumbent.stop.why or "no improvement",
        operator=_operator(problem, operator),
        reliefs=tuple(ladder(problem)),
    )
    return answer.holding(None if incumbent.smallest is None else incumbent.smallest.residency)


def _reachable(incumbent: Incumbent) -> int | None:
    return None if incumbent.smallest is None else incumbent.smallest.static_peak_bytes


def _operator(problem: Problem, op: int) -> dict[str, Any]:
    if not problem.n:
        return {"index": None, "name": "", "working_set_bytes": problem.profile.device.base_bytes}
    operator = problem.profile.operators[op]
    sizes = [problem.profile.by_id[id] for id in sorted(operator.accesses)]
    return {
        "index": op,
        "name": operator.name,
        "type": operator.type,
        "layer": operator.layer,
        "working_set_bytes": int(problem.working_set[op]),
        "workspace_bytes": operator.workspace_bytes,
        "base_bytes": problem.profile.device.base_bytes,
        "storages": [
            {"id": s.id, "name": s.name, "bytes": s.bytes} for s in sorted(sizes, key=lambda s: -s.bytes)[:10]
        ],
    }
