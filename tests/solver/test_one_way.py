"""Tiers with a link in one direction only, or in none: what may be in them is planned, and no bound forgets it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hyperopt.plan import Budget, Plan
from hyperopt.profile import Device, Links, Operator, Profile, Storage, Tier, check
from hyperopt.replay import replay
from hyperopt.validate import validate
from solver import Infeasible, Request, solve
from solver.residency import solve as solving
from solver.residency.bound import memory_bound, step_bound_ns
from solver.residency.exact import best_plan
from solver.residency.fluid import Fluid, Prices
from solver.residency.ladder import ladder
from solver.residency.problem import Problem
from solver.residency.rival import rival_plan
from solver.residency.rivals.registry import RIVALS
from tests.brute_force import TooMany, least_ns

NEVER_NS = 1 << 62
IN, OUT, BOTH, NONE = (0, 10**6), (10**6, 0), (10**6, 2 * 10**6), (0, 0)
"""Bytes per second out of HBM and back."""


def one_way_case(seed: int, recomputable: float) -> tuple[Profile, int]:
    """A step of up to 4 operators and 3 storages, most of them resident, beside one or two tiers of which one at least
    lacks a direction; and a budget from the working set to the peak."""
    dice = random.Random(seed)
    count, storages = dice.randint(1, 4), dice.randint(1, 3)
    resident = [dice.random() < 0.7 for _ in range(storages)]
    exists = {s for s in range(storages) if resident[s]}
    operators = []
    for _ in range(count):
        reads = tuple(s for s in sorted(exists) if dice.random() < 0.4)
        writes = tuple(s for s in range(storages) if dice.random() < 0.2)
        exists.update(writes)
        again, stream = dice.random() < recomputable, "compute" if dice.random() < 0.85 else "comm"
        operators.append(
            Operator(reads=reads, writes=writes, duration_us=dice.randint(0, 6), recomputable=again, stream=stream)
        )
    tensors = tuple(
        Storage(
            id=s,
            bytes=dice.randint(1, 5),
            resident_at_start=resident[s],
            resident_at_end=s in exists and dice.random() < 0.6,
            offloadable=dice.random() < 0.9,
        )
        for s in range(storages)
    )
    ways = [dice.choice([IN, IN, OUT, NONE]), *dice.choice([[], [BOTH], [IN]])]
    tiers = tuple(
        Tier(name=name, bytes=dice.choice([3, 6, 100]), d2h_bytes_per_s=out, h2d_bytes_per_s=back)
        for name, (out, back) in zip(("host", "pool"), ways, strict=False)
    )
    profile = Profile(operators=tuple(operators), storages=tensors, device=Device(links=Links(tiers=tiers)))
    check(profile)
    least = int(Problem(profile, Budget(hbm_bytes=0)).working_set.max(initial=0))
    return profile, dice.randint(max(0, least - 1), max(least, replay(profile).static_peak_bytes))


def best_of_all(profile: Profile, budget: Budget) -> int | None:
    return least_ns(profile, budget, leaves=2, executions=1, most=20_000)


@pytest.mark.parametrize("recomputable", [0.0, 0.5])
def test_what_is_called_proven_is_so(recomputable: float) -> None:
    """Against every plan there is, of 120 steps: none faster than an optimum, none where there is said to be none."""
    settled = starts_out = 0
    for seed in range(120):
        profile, hbm_bytes = one_way_case(seed, recomputable)
        budget = Budget(hbm_bytes=hbm_bytes)
        answer = solve(profile, Request(budget, time_limit_s=None))
        try:
            best = best_of_all(profile, budget)
        except TooMany:
            continue
        settled += 1
        if isinstance(answer, Infeasible):
            assert answer.proven and best is None, seed
            assert all(rung["lower_bound_bytes"] >= 0 for rung in answer.reliefs)
            continue
        assert answer.predicted is not None and answer.bound is not None
        assert answer.bound.status == "optimal" and validate(profile, answer) == [], seed
        assert best is None or round(answer.predicted.step_us * 1000) <= best, seed
        starts_out += any(profile.device.tiers[t].d2h_bytes_per_s == 0 for t in answer.residency.initial.values())
    assert settled > 90 and starts_out > 4


@pytest.mark.parametrize("recomputable", [0.0, 0.5])
def test_no_plan_is_below_a_bound(recomputable: float) -> None:
    dice = random.Random(1)
    for seed in range(200, 400):
        profile, hbm_bytes = one_way_case(seed, recomputable)
        problem = Problem(profile, Budget(hbm_bytes=hbm_bytes))
        found = best_plan(problem, None, below_ns=NEVER_NS, max_labels=60_000)
        rungs = ladder(problem)
        if found is None:
            continue
        assert hbm_bytes >= memory_bound(problem).bytes, seed
        assert all(rung["lower_bound_bytes"] <= memory_bound(problem).bytes for rung in rungs), seed
        assert step_bound_ns(problem) <= found[1], seed
        fluid = Fluid(problem, 48)
        for _ in range(20):
            assert fluid.answer(fluid.feasible(random_prices(fluid, dice)))[0] <= found[1] + 1e-6, seed


def random_prices(fluid: Fluid, dice: random.Random) -> Prices:
    prices = fluid.no_prices()
    for part in (prices.held, prices.out, prices.back, prices.room):
        part[...] = np.asarray([dice.choice([0.0, dice.random()]) for _ in range(part.size)]).reshape(part.shape)
    prices.held[...] *= 2000.0
    prices.room[...] *= 500.0
    return prices


def test_without_the_exact_search_plans_use_such_tiers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "is_small", lambda *_: False)
    starts_out = 0
    for seed in range(80):
        profile, hbm_bytes = one_way_case(seed, 0.3)
        budget = Budget(hbm_bytes=hbm_bytes)
        answer = solve(profile, Request(budget, time_limit_s=None, work_limit=100))
        exact = best_plan(Problem(profile, budget), None, below_ns=NEVER_NS, max_labels=60_000)
        if isinstance(answer, Infeasible):
            assert exact is None or not answer.proven, seed
            continue
        assert answer.predicted is not None and answer.bound is not None and validate(profile, answer) == [], seed
        assert exact is not None and round(answer.bound.step_us * 1000) <= exact[1], seed
        starts_out += any(profile.device.tiers[t].d2h_bytes_per_s == 0 for t in answer.residency.initial.values())
    assert starts_out > 2


def test_weights_stream_in_from_a_read_only_store() -> None:
    """Forty layers' weights, room for three: each comes in while another is computed with, and leaves uncopied."""
    operators = tuple(Operator(reads=(i,), duration_us=20.0, recomputable=False) for i in range(40))
    weights = tuple(
        Storage(id=i, bytes=10, kind="parameter", resident_at_start=True, resident_at_end=True) for i in range(40)
    )
    store = Tier(name="store", bytes=400, h2d_bytes_per_s=10**6)
    profile = Profile(operators=operators, storages=weights, device=Device(links=Links(tiers=(store,))))
    answer = solve(profile, Request(Budget(hbm_bytes=30), time_limit_s=None, work_limit=500))
    assert isinstance(answer, Plan) and validate(profile, answer) == []
    assert answer.predicted is not None and answer.predicted.step_us == 800.0
    assert set(answer.residency.initial.values()) == {"store"}
    assert all(action.kind != "copy_out" for action in answer.residency.actions)


@pytest.mark.parametrize("name", sorted(RIVALS))
def test_rules_of_thumb_pass_such_tiers_by(name: str) -> None:
    for seed in range(30):
        profile, _ = one_way_case(seed, 0.5)
        plan = rival_plan(profile, name, Budget(hbm_bytes=2**40))
        assert validate(profile, plan) == []
