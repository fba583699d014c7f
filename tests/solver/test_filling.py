"""What the filling counts is what the engine counts: a draft that fits in listed order runs within the budget."""

from __future__ import annotations

import random

import numba
import numpy as np
import pytest

from hyperopt.engine import run
from hyperopt.plan import Budget
from hyperopt.replay import replay
from solver.residency.bound import memory_bound
from solver.residency.candidates import reruns
from solver.residency.draft import Draft, Table
from solver.residency.filling import Costs, fill, listed, load_without, prune, shortened
from solver.residency.problem import Int64s, Problem
from tests.solver.test_draft import random_draft
from tests.solver.test_residency import training_step

ROOMY = 1 << 40


def problem_of(seed: int, share: float) -> Problem:
    profile = training_step(seed)
    least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
    peak = replay(profile).static_peak_bytes
    return Problem(profile, Budget(hbm_bytes=int(least + share * (peak - least))))


def costs_of(table: Table, dice: np.random.Generator) -> Costs:
    """Random, infinite where a tier cannot take a gap."""
    out, back = dice.exponential(100, (2, len(table.usable), table.count)) + 1
    out[~table.usable], back[~table.usable] = np.inf, np.inf
    back[table.bytes[None, :] > table.room[:, None]] = np.inf
    return Costs(out, back, dice.exponential(100, len(table.reruns)) + 1)


@numba.njit
def counted_loads(layout, first, end, tier, chosen):  # type: ignore[no-untyped-def]
    """`end` as chosen reruns make it, and bytes at each operator: inner functions are called from compiled code."""
    until = shortened(layout, first, end, chosen)
    return until, load_without(layout, first, until, tier, chosen)


def ends(table: Table, draft: Draft) -> Int64s:
    """Before which operators copies come back at their latest: earlier for what a rerun reads."""
    spans = listed(table)
    until = counted_loads(table.layout, spans.first, spans.end, draft.tier, draft.chosen)[0]
    return np.asarray(until, dtype=np.int64)


def latest(table: Table, draft: Draft) -> None:
    """Out at once, back at the last moment: as `listed` counts."""
    draft.out[:], draft.back[:] = table.leave, ends(table, draft)


def counted(table: Table, draft: Draft) -> int:
    spans = listed(table)
    held = counted_loads(table.layout, spans.first, spans.end, draft.tier, draft.chosen)[1]
    return int(held.max())


@pytest.mark.parametrize("seed", range(24))
def test_counted_bytes_are_not_less_than_the_engine_needs(seed: int) -> None:
    table = Table(problem_of(seed, 0.5), reruns(problem_of(seed, 0.5)))
    dice = random.Random(seed)
    for _ in range(10):
        draft = random_draft(table, dice)
        latest(table, draft)
        outcome = run(table.arrays, table.orders(draft), ROOMY, table.problem.budget.tiers)
        if outcome.status == "fits":
            assert outcome.static_peak_bytes <= counted(table, draft)
            if not draft.chosen.any():
                assert outcome.static_peak_bytes == counted(table, draft)


@pytest.mark.parametrize("seed", range(40))
def test_a_filled_draft_runs_within_the_budget(seed: int) -> None:
    dice = np.random.default_rng(seed)
    filled = 0
    for share in (0.2, 0.5, 0.8):
        problem = problem_of(seed, share)
        table = Table(problem, reruns(problem))
        costs = costs_of(table, dice)
        draft = table.empty()
        stuck = fill(table, draft, costs, problem.hbm_bytes, listed(table))
        if stuck >= 0:
            continue
        filled += 1
        for pruned in (False, True):
            if pruned:
                prune(table, draft, costs, problem.hbm_bytes, listed(table))
            latest(table, draft)
            assert counted(table, draft) <= problem.hbm_bytes
            outcome = run(table.arrays, table.orders(draft), problem.hbm_bytes, problem.budget.tiers)
            assert outcome.status != "illegal", (share, pruned, outcome.code, outcome.op, outcome.storage)
            if outcome.status == "out_of_memory":
                assert outcome.tier >= 0, (share, pruned)
            assert outcome.static_peak_bytes <= problem.hbm_bytes


def test_filling_takes_nothing_where_all_fits() -> None:
    problem = problem_of(2, 1.0)
    table = Table(problem, reruns(problem))
    draft = table.empty()
    assert fill(table, draft, costs_of(table, np.random.default_rng(0)), problem.hbm_bytes, listed(table)) < 0
    assert (draft.tier < 0).all() and not draft.chosen.any()
