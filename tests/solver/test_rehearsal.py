"""Drafts rehearsed in compiled code are judged as the engine judges their orders."""

from __future__ import annotations

import random

import numba
import numpy as np
import pytest

from hyperopt.engine import run
from hyperopt.engine.kernel import COPIES, SHORT, STEP
from solver.residency.candidates import reruns
from solver.residency.draft import Table
from solver.residency.rehearsal import FITS, ILLEGAL, OUT_OF_MEMORY, rehearse
from tests.solver.test_draft import random_draft, timed
from tests.solver.test_search import problem_of


@numba.njit
def told_of(world, layout, stage, tier, out, back, chosen):  # type: ignore[no-untyped-def]
    """Inner functions are called from compiled code."""
    return rehearse(world, layout, stage, tier, out, back, chosen)


STATUS = {FITS: "fits", ILLEGAL: "illegal", OUT_OF_MEMORY: "out_of_memory"}


@pytest.mark.parametrize("seed", range(20))
def test_a_rehearsal_says_what_the_engine_says(seed: int) -> None:
    problem = problem_of(seed, 0.7)
    table, dice = Table(problem, reruns(problem)), random.Random(seed)
    for _ in range(20):
        draft = random_draft(table, dice, dice.random())
        timed(table, draft)
        outcome = run(table.arrays, table.orders(draft), problem.hbm_bytes, problem.budget.tiers)
        stage = table.stage
        told = told_of(table.world, table.layout, stage, draft.tier, draft.out, draft.back, draft.chosen)
        assert STATUS[int(told)] == outcome.status
        if told == OUT_OF_MEMORY:
            assert stage.state.register[SHORT] == outcome.short_bytes
        if told == FITS:
            assert stage.state.register[STEP] == outcome.step_ns
            rows = int(stage.state.register[COPIES])
            assert np.array_equal(stage.record.copies[:rows], outcome.copies)
            for name in ("start", "end", "wait_ns", "wait_for", "wait_kind", "memory_ns"):
                assert np.array_equal(getattr(stage.record, name), getattr(outcome.record, name))
