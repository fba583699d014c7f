"""No plan within the budget: what is proven, what is in hand, and what would help."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from hyperopt.profile import Adapter, Profile
from solver.request import Infeasible
from solver.residency.bound import memory_bound
from solver.residency.exact import TooLarge
from solver.residency.incumbent import Incumbent
from solver.residency.problem import Problem
from solver.residency.small import least_budget

PLENTY_BYTES = 2**50


def infeasible(problem: Problem, incumbent: Incumbent) -> Infeasible | None:
    """The bound and the smallest budget in hand; on small problems both are settled by exhaustion, and meet.

    None when settling them has brought a plan within the budget after all: it is in the incumbent.
    """
    bound = memory_bound(problem)
    lower, operator = bound.bytes, bound.operator
    reachable = _reachable(incumbent)
    if reachable is not None and lower < reachable:
        try:
            found = least_budget(problem, lower, reachable, incumbent.stop.late)
        except TooLarge:
            pass  # the bound and what is in hand stand as they are
        else:
            if found is not None:
                incumbent.offer(found[1], "exact")
            assert incumbent.smallest is not None
            lower = incumbent.smallest.timeline.static_peak_bytes
            operator = incumbent.smallest.timeline.static_peak_op
    if incumbent.best is not None:
        return None
    return Infeasible(
        lower_bound_bytes=lower,
        reachable_bytes=_reachable(incumbent),
        budget_bytes=problem.hbm_bytes,
        proven=problem.hbm_bytes < lower,
        stop_reason=incumbent.stop.why or "no improvement",
        operator=_operator(problem, operator),
        reliefs=tuple(_reliefs(problem)),
    )


def _reachable(incumbent: Incumbent) -> int | None:
    return None if incumbent.smallest is None else incumbent.smallest.timeline.static_peak_bytes


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


def _reliefs(problem: Problem) -> list[dict[str, Any]]:
    """Changes that lower the proven bound, each alone; `lower_bound_bytes` is what no plan could go below then."""
    now = memory_bound(problem).bytes
    ladder = []
    for name, changed in (
        ("larger tiers", _with_tiers(problem)),
        ("offload everything", _with_offload(problem)),
        ("recompute everything", _with_recompute(problem)),
    ):
        lower = memory_bound(changed).bytes
        if lower < now:
            ladder.append({"relief": name, "lower_bound_bytes": lower, "saves_bytes": now - lower})
    load = int(np.max(problem.working_set, initial=0))
    activations = sum(
        s.bytes
        for s in problem.profile.storages
        if problem.n
        and s.kind == "activation"
        and s.id in problem.profile.operators[int(np.argmax(problem.working_set))].accesses
    )
    if activations:
        ladder.append(
            {
                "relief": "half the micro-batch (estimated: activations halve)",
                "lower_bound_bytes": max(0, load - activations // 2),
                "saves_bytes": min(now, activations // 2),
            }
        )
    return sorted(ladder, key=lambda entry: -int(entry["saves_bytes"]))


def _changed(problem: Problem, profile: Profile, plenty: bool) -> Problem:
    budget = problem.budget
    if plenty:
        budget = msgspec.structs.replace(budget, tiers=dict.fromkeys(profile.device.tiers, PLENTY_BYTES))
    return Problem(profile, budget)


def _with_tiers(problem: Problem) -> Problem:
    return _changed(problem, problem.profile, plenty=True)


def _with_offload(problem: Problem) -> Problem:
    """Every storage movable, over a link of 1 byte/s where the profile has none: memory only, not time."""
    profile, links = problem.profile, problem.profile.device.links
    if not links.d2h_bytes_per_s or not links.h2d_bytes_per_s:
        links = msgspec.structs.replace(links, d2h_bytes_per_s=1, h2d_bytes_per_s=1)
    profile = msgspec.structs.replace(
        profile,
        device=msgspec.structs.replace(profile.device, links=links),
        storages=tuple(msgspec.structs.replace(s, offloadable=True) for s in profile.storages),
        adapter=Adapter(moves="any", recompute=profile.adapter.recompute),
    )
    return _changed(problem, profile, plenty=True)


def _with_recompute(problem: Problem) -> Problem:
    profile = problem.profile
    profile = msgspec.structs.replace(profile, adapter=msgspec.structs.replace(profile.adapter, recompute="operator"))
    return _changed(problem, profile, plenty=False)
