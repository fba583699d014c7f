"""Drafts as arrays against the same plans as objects: orders, outcomes, documents, and what listed order holds."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperopt.engine import orders_of, run
from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Budget, Plan
from hyperopt.replay import replay
from solver.residency.assemble import assemble
from solver.residency.candidates import reruns
from solver.residency.clockwork import plan_times
from solver.residency.draft import STAYS, Draft, Table, argmax_within, residency_of
from solver.residency.problem import Problem
from tests.solver.test_residency import training_step

ROOMY = 1 << 40


def tables(seed: int) -> Table:
    profile = training_step(seed)
    problem = Problem(profile, Budget(hbm_bytes=int(0.7 * replay(profile).peak_bytes)))
    return Table(problem, reruns(problem))


def random_draft(table: Table, dice: random.Random, share: float = 0.4, *, apart: bool = False) -> Draft:
    """Gaps in usable tiers, one tier a storage (`apart`: each gap its own), a wrap or the gaps at the ends; reruns that
    do not clash with it."""
    draft = table.empty()
    tiers = np.flatnonzero(table.usable).tolist()
    n = table.problem.n
    for s in range(len(table.first_gap) - 1):
        own = list(range(int(table.first_gap[s]), int(table.first_gap[s + 1])))
        if not tiers or not own:
            continue
        tier, wrapped = dice.choice(tiers), False
        for g in reversed(own):
            at_an_end = table.after[g] < 0 or table.before[g] >= n
            if table.kept[g] or dice.random() > share or (wrapped and at_an_end):
                continue
            draft.tier[g] = dice.choice(tiers) if apart else tier
            wrapped = wrapped or bool(table.wraps[g])
    clash_at, clash = table.rerun_clashes
    for r in dice.sample(range(len(table.reruns)), min(3, len(table.reruns))):
        parts = table.parts[table.part_at[r] : table.part_at[r + 1]]
        touched = {int(s) for s in parts[:, 1]}
        moved = set(table.storage[draft.tier >= 0].tolist())
        rivals = clash[clash_at[r] : clash_at[r + 1]]
        if not touched & moved and not draft.chosen[rivals].any():
            draft.chosen[r] = True
    return draft


def timed(table: Table, draft: Draft) -> None:
    usual = table.problem.unlimited
    plan_times(table, draft, np.asarray(usual.start), np.asarray(usual.end))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_orders_are_what_assemble_writes(seed: int, apart: bool) -> None:
    """But for the order of copies at one operator: by need in a draft, by the list of moves in `assemble`."""
    table, dice = tables(seed), random.Random(seed)
    problem = table.problem
    for _ in range(12):
        draft = random_draft(table, dice, dice.choice([0.1, 0.4, 0.8]), apart=apart)
        timed(table, draft)
        own, written = table.residency(draft), assemble(problem, table.decisions_of(draft), keep=True)
        assert own.initial == written.initial and own.recompute == written.recompute
        assert Counter(map(repr, own.actions)) == Counter(map(repr, written.actions))
        plan = Plan(budget=Budget(hbm_bytes=ROOMY), residency=written)
        outcome = run(table.arrays, table.orders(draft), ROOMY, problem.budget.tiers)
        try:
            timeline = replay(problem.profile, plan)
        except OutOfMemory:
            assert outcome.status == "out_of_memory" and outcome.tier >= 0
        except IllegalPlan as illegal:
            assert outcome.status == "illegal", illegal
        else:
            assert outcome.status == "fits"
            assert outcome.static_peak_bytes == timeline.static_peak_bytes
            exact = replay(problem.profile, Plan(budget=Budget(hbm_bytes=ROOMY), residency=own))
            assert (outcome.step_ns, outcome.peak_bytes) == (exact.step_ns, exact.peak_bytes)


@pytest.mark.parametrize("seed", range(24))
def test_copies_back_that_are_kept_early_come_where_there_is_room(seed: int) -> None:
    table, dice = tables(seed), random.Random(seed)
    usual = table.problem.unlimited
    for _ in range(6):
        draft = random_draft(table, dice)
        draft.chosen[:] = False
        tiers = dict.fromkeys(table.problem.profile.device.tiers, ROOMY)
        latest = run(table.arrays, table.orders(draft), ROOMY, tiers)
        problem = Problem(table.problem.profile, Budget(hbm_bytes=latest.static_peak_bytes))
        tight = Table(problem, table.reruns)
        draft.back[:] = tight.next_arrival[np.where(tight.wraps > 0, 0, tight.leave + 1)]
        plan_times(tight, draft, np.asarray(usual.start), np.asarray(usual.end), 1.0, draft.tier >= 0)
        outcome = run(tight.arrays, tight.orders(draft), problem.hbm_bytes, tiers)
        assert latest.status == outcome.status == "fits"


@pytest.mark.parametrize("seed", range(24))
def test_random_drafts_are_legal(seed: int) -> None:
    """What the filling may choose is legal; it is at most memory that it lacks."""
    table, dice = tables(seed), random.Random(1000 + seed)
    for _ in range(12):
        draft = random_draft(table, dice)
        timed(table, draft)
        outcome = run(table.arrays, table.orders(draft), ROOMY, table.problem.budget.tiers)
        assert outcome.status != "illegal", (outcome.code, outcome.op, outcome.storage)


@pytest.mark.parametrize("seed", range(12))
def test_decisions_and_back_again(seed: int) -> None:
    table, dice = tables(seed), random.Random(seed)
    for _ in range(6):
        draft = random_draft(table, dice)
        timed(table, draft)
        again = table.draft_of(table.decisions_of(draft))
        assert again is not None
        used = draft.tier >= 0
        for name in ("tier", "chosen"):
            assert np.array_equal(getattr(again, name), getattr(draft, name))
        for name in ("out", "back"):
            assert np.array_equal(getattr(again, name)[used], getattr(draft, name)[used])


@pytest.mark.parametrize("seed", range(12))
def test_the_document_of_orders_makes_the_same_orders(seed: int) -> None:
    table, dice = tables(seed), random.Random(seed)
    problem = table.problem
    for _ in range(6):
        draft = random_draft(table, dice)
        timed(table, draft)
        orders = table.orders(draft)
        plan = Plan(budget=problem.budget, residency=residency_of(problem, orders))
        for mine, read in zip(orders, orders_of(problem.profile, plan), strict=True):
            assert np.array_equal(mine, read)


@pytest.mark.parametrize("seed", range(12))
def test_settled_drafts_move_nothing_that_no_rerun_keeps(seed: int) -> None:
    table = tables(seed)
    draft = random_draft(table, random.Random(seed))
    tiers = np.flatnonzero(table.usable)
    if not len(tiers):
        return
    draft.tier[table.kept] = int(tiers[0])
    draft.chosen[:] = False
    table.settle(draft)
    assert (draft.tier[table.kept] == STAYS).all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.data())
def test_the_highest_in_a_span(values: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(values) - 1))
    end = data.draw(st.integers(first + 1, len(values)))
    found = argmax_within(np.asarray(values), np.asarray([first]), np.asarray([end]))
    assert first <= found[0] < end and values[found[0]] == max(values[first:end])
