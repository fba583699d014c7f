"""Compiled rounds of ruin and refill: what they keep runs, and how they are cut into calls does not matter."""

from __future__ import annotations

import numpy as np
import pytest

from hyperopt.engine import run
from solver.residency.draft import Draft
from solver.residency.refill import course_from, play
from solver.residency.ruin import BACK, END, MEMORY_NS, OUT, START, STEP_NS, TIER, WAIT_NS, Known
from solver.residency.search import Search
from tests.solver.test_search import problem_of, search_of

ROUNDS = 120


def played(search: Search, most: int) -> Known | None:
    """The best after so many rounds, at most `most` in a call."""
    if search.best is None:
        return None
    table, dice, left = search.table, np.random.default_rng(7), ROUNDS
    course = course_from(search.best.draft, search.best.outcome, table.layout)
    arms = search.arms._replace(merit=search.arms.merit.copy())
    while left > 0:
        setting = search.setting(course)
        left -= play(min(most, left), dice, table.world, table.layout, table.stage, setting, arms, course)
    return course.best


@pytest.mark.parametrize("seed", range(12))
def test_the_best_of_the_rounds_runs_as_said_and_is_not_worse_than_the_start(seed: int) -> None:
    problem = problem_of(seed, 0.4)
    search = search_of(problem, [], work=10**6)
    start = search.start()
    best = played(search, ROUNDS)
    if start is None or best is None:
        return
    orders = search.table.orders(Draft(best.moves[TIER], best.moves[OUT], best.moves[BACK], best.chosen))
    outcome = run(search.table.arrays, orders, problem.hbm_bytes, problem.budget.tiers)
    assert outcome.status == "fits" and outcome.step_ns == best.figures[STEP_NS] <= start.score[0]
    for field, name in ((START, "start"), (END, "end"), (WAIT_NS, "wait_ns"), (MEMORY_NS, "memory_ns")):
        assert np.array_equal(best.times[field], getattr(outcome.record, name))


@pytest.mark.parametrize("seed", range(6))
def test_rounds_in_many_calls_find_what_they_find_in_one(seed: int) -> None:
    search = search_of(problem_of(seed, 0.4), [], work=10**6)
    search.start()
    one, many = played(search, ROUNDS), played(search, 1)
    if one is None or many is None:
        return
    assert one.figures.tolist()[:2] == many.figures.tolist()[:2]
    assert np.array_equal(one.moves, many.moves)
