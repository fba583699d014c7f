"""The ladder of reliefs: each rung's bound is one for the problem that it changes into, and says which that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from hyperopt.plan import Budget, Plan
from hyperopt.profile import Adapter, Device, Links, Operator, Profile, Storage
from hyperopt.replay import replay
from solver import Infeasible, Request, solve
from solver.residency.bound import memory_bound
from solver.residency.ladder import ladder
from solver.residency.problem import Problem
from tests.cases.test_planning import small_case
from tests.solver.test_residency import training_step

PLENTY = 1 << 50
SLOW = Links(d2h_bytes_per_s=1, h2d_bytes_per_s=1)


def changed(profile: Profile, rung: dict[str, Any]) -> Profile:
    """The profile with what a proven rung asks for."""
    device = profile.device
    if rung["kind"] == "recompute":
        adapter = msgspec.structs.replace(profile.adapter, recompute="operator")
        return msgspec.structs.replace(profile, adapter=adapter)
    tiers = tuple(msgspec.structs.replace(tier, bytes=PLENTY) for tier in device.links.tiers)
    links = msgspec.structs.replace(device.links, tiers=tiers)
    device = msgspec.structs.replace(device, host_bytes=PLENTY, links=links)
    if rung["kind"] == "tiers":
        return msgspec.structs.replace(profile, device=device)
    if not any(tier.d2h_bytes_per_s and tier.h2d_bytes_per_s for tier in device.tiers.values()):
        device = Device(base_bytes=device.base_bytes, host_bytes=PLENTY, links=SLOW)
    others = profile.adapter.moves == "any" and bool(Problem(profile, Budget(hbm_bytes=0)).tiers)
    movable = tuple(
        msgspec.structs.replace(s, offloadable=rung["of"] in ("everything", s.kind) or (others and s.offloadable))
        for s in profile.storages
    )
    adapter = Adapter(moves="any", recompute=profile.adapter.recompute)
    return msgspec.structs.replace(profile, device=device, storages=movable, adapter=adapter)


def check_rungs(profile: Profile, hbm_bytes: int) -> int:
    problem = Problem(profile, Budget(hbm_bytes=hbm_bytes))
    now, rungs = memory_bound(problem).bytes, ladder(problem)
    order = [(not rung["reaches_budget"], rung["lower_bound_bytes"]) for rung in rungs]
    assert order == sorted(order)
    for rung in rungs:
        assert rung["reaches_budget"] == (rung["lower_bound_bytes"] <= hbm_bytes)
        assert rung["saves_bytes"] > 0 and rung["lower_bound_bytes"] + rung["saves_bytes"] <= now
        assert rung["basis"] == ("estimated" if rung["kind"] in ("micro_batch", "sharding") else "proven")
        if rung["basis"] == "proven":
            assert rung["lower_bound_bytes"] <= memory_bound(Problem(changed(profile, rung), problem.budget)).bytes
    return len(rungs)


@pytest.mark.parametrize("seed", range(40))
def test_rungs_of_training_steps_are_bounds(seed: int) -> None:
    profile = training_step(seed)
    least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
    check_rungs(profile, least * 3 // 4)
    storages = tuple(
        msgspec.structs.replace(s, window=(1, len(profile.operators) - 2)) if s.id % 2 else s for s in profile.storages
    )
    windowed = msgspec.structs.replace(profile, storages=storages, adapter=Adapter(moves="window", recompute="none"))
    check_rungs(windowed, least // 2)


def test_no_plan_of_the_changed_problem_is_below_its_rung() -> None:
    """Small cases, where the least budget of the changed problem is settled by exhaustion."""
    rungs = met = 0
    for seed in range(300):
        profile, hbm_bytes = small_case(seed, recomputable=0.4)
        if seed % 3 == 0:
            profile = msgspec.structs.replace(profile, adapter=Adapter(moves="none", recompute="none"))
        for rung in ladder(Problem(profile, Budget(hbm_bytes=hbm_bytes // 2))):
            if rung["basis"] == "proven":
                answer = solve(changed(profile, rung), Request(Budget(hbm_bytes=0)))
                if isinstance(answer, Infeasible) and answer.reachable_bytes is not None:
                    assert answer.reachable_bytes >= rung["lower_bound_bytes"], seed
                    met += answer.reachable_bytes == rung["lower_bound_bytes"]
                rungs += 1
    assert rungs > 30 and met > rungs // 2


def test_what_brings_what_is_said_in_bytes() -> None:
    """States of 100, weights of 60 and a workspace of 50, and nothing that may leave; then one change after another."""
    stays = Storage(id=0, bytes=100, resident_at_start=True, resident_at_end=True, offloadable=False)
    storages = (
        msgspec.structs.replace(stays, kind="optimizer_state", name="states"),
        msgspec.structs.replace(stays, id=1, bytes=60, kind="parameter", name="weights"),
        Storage(id=2, bytes=20, kind="activation"),
    )
    operators = (
        Operator(writes=(2,), reads=(1,), duration_us=1, recomputable=False),
        Operator(reads=(2,), workspace_bytes=50, duration_us=1),
        Operator(reads=(0, 1), writes=(0, 1), duration_us=1),
    )
    profile = Profile(operators=operators, storages=storages)
    answer = solve(profile, Request(Budget(hbm_bytes=200)))
    assert isinstance(answer, Infeasible) and answer.lower_bound_bytes == 230
    rungs = {(rung["kind"], rung.get("of")): rung for rung in answer.reliefs}
    everything, states = rungs["offload", "everything"], rungs["offload", "optimizer_state"]
    weights, shards = rungs["offload", "parameter"], rungs["sharding", None]
    assert (everything["lower_bound_bytes"], everything["tier_bytes"]) == (160, 160)
    assert (states["lower_bound_bytes"], states["tier_bytes"]) == (160, 100)
    assert states["storages"] == [{"id": 0, "name": "states", "bytes": 100}] and "link" in states["relief"]
    assert (weights["lower_bound_bytes"], weights["saves_bytes"]) == (180, 50)
    assert shards["lower_bound_bytes"] == 150 and shards["basis"] == "estimated"
    assert rungs["micro_batch", None]["lower_bound_bytes"] == 220 and not rungs["micro_batch", None]["reaches_budget"]
    assert ("tiers", None) not in rungs and ("recompute", None) not in rungs


def test_a_larger_tier_says_how_large() -> None:
    links = Links(d2h_bytes_per_s=10**6, h2d_bytes_per_s=10**6)
    storages = tuple(Storage(id=i, bytes=40) for i in range(3))
    operators = (
        *(Operator(writes=(i,), duration_us=1, recomputable=False) for i in range(3)),
        Operator(duration_us=1, workspace_bytes=30),
        *(Operator(reads=(i,), duration_us=1) for i in range(3)),
    )
    profile = Profile(operators=operators, storages=storages, device=Device(host_bytes=40, links=links))
    answer = solve(profile, Request(Budget(hbm_bytes=60)))
    assert isinstance(answer, Infeasible) and answer.lower_bound_bytes == answer.reachable_bytes == 110
    larger = answer.reliefs[0]
    assert (larger["kind"], larger["lower_bound_bytes"], larger["tier_bytes"]) == ("tiers", 40, 120)
    roomy = Request(Budget(hbm_bytes=60, tiers={"host": larger["tier_bytes"]}))
    plan = solve(profile, roomy)
    assert isinstance(plan, Plan) and replay(profile, plan).peak_bytes <= 60
    assert isinstance(solve(profile, replace(roomy, budget=Budget(hbm_bytes=39))), Infeasible)


def test_without_operators_there_is_no_ladder() -> None:
    profile = Profile(operators=(), storages=(Storage(id=0, bytes=9, resident_at_start=True, resident_at_end=True),))
    answer = solve(profile, Request(Budget(hbm_bytes=5)))
    assert isinstance(answer, Infeasible) and answer.reliefs == ()
