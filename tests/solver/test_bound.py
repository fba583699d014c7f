"""Bounds are bounds: never above the optimum found by exhaustion, and above the unlimited step where links bind."""

from __future__ import annotations

import pytest

from hyperopt.plan import Budget
from hyperopt.profile import Device, Links, Operator, Profile, Storage
from hyperopt.replay import replay
from solver.residency.bound import memory_bound, step_bound_ns
from solver.residency.exact import best_plan
from solver.residency.problem import Problem
from tests.cases.test_planning import small_case

NEVER_NS = 1 << 62


@pytest.mark.parametrize("recomputable", [0.0, 0.6])
def test_no_plan_of_a_small_problem_is_below_the_bounds(recomputable: float) -> None:
    above = 0
    for seed in range(250):
        profile, _ = small_case(seed, recomputable)
        least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
        for hbm_bytes in range(max(0, least - 2), replay(profile).static_peak_bytes):
            problem = Problem(profile, Budget(hbm_bytes=hbm_bytes))
            found = best_plan(problem, None, below_ns=NEVER_NS, max_labels=60_000)
            if found is not None:
                assert hbm_bytes >= least, seed
                assert step_bound_ns(problem) <= found[1], (seed, hbm_bytes)
                above += step_bound_ns(problem) > problem.unlimited.step_ns
    assert recomputable or above > 0


def test_traffic_that_memory_forces_is_in_the_bound() -> None:
    """Ten parameters of 100 bytes, each read once; room for two: 800 bytes have to come in at 1 byte/us."""
    operators = tuple(Operator(reads=(i,), duration_us=1.0, recomputable=False) for i in range(10))
    storages = tuple(Storage(id=i, bytes=100, resident_at_start=True, resident_at_end=True) for i in range(10))
    links = Links(d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**6)
    profile = Profile(operators=operators, storages=storages, device=Device(host_bytes=10**6, links=links))
    assert step_bound_ns(Problem(profile, Budget(hbm_bytes=200))) == 800_000
