"""Solutions fit, are as good as trying everything on small cases, and bounds hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.sharding import evaluate, read, solve
from solver.sharding.branch import Branching
from solver.sharding.dual import Dual
from solver.sharding.problem import FORBIDDEN
from solver.sharding.reduce import Contradiction, reduce
from tests.conftest import ABSENT, SHARED_DATA
from tests.solver.sharding.cases import FAR, document, documents, everything, knots, optimum, problem_of

INSTANCES = SHARED_DATA / "iopddl"
SLICES = 400


@settings(max_examples=150, deadline=None)
@given(st.one_of(documents(), knots()))
def test_small_cases_are_as_good_as_trying_everything(drawn: dict[str, Any]) -> None:
    problem, best = problem_of(drawn), optimum(drawn)
    found = solve(problem, time_limit_s=None, work_limit=SLICES)
    judged = evaluate(problem, found.solution)
    assert judged.cost == found.evaluation.cost
    assert judged.feasible == found.evaluation.feasible == (best is not None)
    if best is None:
        return
    assert found.bound <= best
    assert not found.impossible
    # What is forbidden is capped: among solutions that all are, the cheapest is not promised.
    assert judged.cost == best if best < FORBIDDEN else judged.cost >= FORBIDDEN


@settings(max_examples=150, deadline=None)
@given(st.one_of(documents(), knots()))
def test_presolve_keeps_a_best_solution(drawn: dict[str, Any]) -> None:
    problem, best = problem_of(drawn), optimum(drawn)
    try:
        reduction = reduce(problem)
    except Contradiction:
        assert best is None or best >= FORBIDDEN
        return
    core = reduction.core
    seen = []
    for x in np.ndindex(*np.diff(core.first).tolist()):
        judged = evaluate(problem, reduction.restore(np.array(x, np.int64)))
        if judged.feasible:
            seen.append(judged.cost)
    if best is not None and best < FORBIDDEN:
        assert min(seen) == best


@settings(max_examples=100, deadline=None)
@given(st.one_of(documents(), knots()))
def test_bounds_hold_after_every_round_and_split(drawn: dict[str, Any]) -> None:
    problem, best = problem_of(drawn), optimum(drawn)
    try:
        core = reduce(problem).core
    except Contradiction:
        return
    if best is None or best >= FORBIDDEN or not core.nodes:
        return
    dual = Dual(core)
    for _ in range(20):
        dual.round(float(best))
        assert dual.exact() <= best
        assert dual.value <= best - core.fixed_cost + 1e-6
    branching = Branching(dual)
    for _ in range(6):
        branching.split(float(best - core.fixed_cost))
        assert branching.exact() <= best


def test_the_same_seed_and_work_give_the_same_answer() -> None:
    dice = np.random.default_rng(5)
    n, k = 24, 4
    given = {
        "nodes": {
            "intervals": [[int(s), int(s) + 6] for s in dice.integers(0, 20, n)],
            "costs": dice.integers(0, 100, (n, k)).tolist(),
            "usages": dice.integers(1, 50, (n, k)).tolist(),
        },
        "edges": {
            "nodes": [[i, int(j)] for i in range(1, n) for j in dice.integers(0, i, 2)],
            "costs": dice.integers(0, 100, (2 * (n - 1), k * k)).tolist(),
        },
        "usage_limit": 120,
    }
    problem = problem_of({"problem": given})
    first, second = (solve(problem, None, seed=3, work_limit=25) for _ in range(2))
    assert first.evaluation.feasible
    assert first.solution.tolist() == second.solution.tolist()
    assert (first.bound, first.stop_reason) == (second.bound, second.stop_reason)


def test_what_never_fits_is_proven_with_moment_and_shortfall() -> None:
    found = solve(problem_of(document(usage_limit=3)), 5)
    assert found.impossible
    assert (found.evaluation.moment, found.evaluation.shortfall) == (1, 1)


def test_no_time_is_enough_for_an_answer() -> None:
    found = solve(problem_of(document()), 0.0)
    assert found.evaluation.feasible


def test_where_only_the_forbidden_fits_it_is_taken() -> None:
    given = document(nodes_costs=[[1, FAR], [2, 0], [3]], usage_limit=6)
    best = optimum(given)
    assert best is not None and best >= FORBIDDEN
    found = solve(problem_of(given), 5)
    assert found.evaluation.feasible
    assert found.evaluation.cost == best
    assert found.bound <= best


def test_costs_beyond_the_cap_are_not_taken_for_forbidden() -> None:
    huge = 2**55
    given = document(nodes_costs=[[huge, FAR], [huge, 2 * huge], [3]])
    found = solve(problem_of(given), 5)
    assert found.evaluation.feasible
    assert found.bound <= min(cost for _, cost, peak in everything(given) if peak <= 7)


@pytest.mark.skipif(not INSTANCES.exists(), reason=ABSENT)
@pytest.mark.parametrize("name", "ABGKMPSV")
def test_contest_instances_in_short(name: str) -> None:
    problem = read((INSTANCES / f"asplos-2025-iopddl-{name}.json.gz").read_bytes())
    limit = 15.0 if name in "KMS" else 8.0
    found = solve(problem, limit)
    assert evaluate(problem, found.solution).feasible
    assert 0 < found.bound <= found.evaluation.cost < FORBIDDEN
    assert found.seconds < 1.1 * limit + 1
