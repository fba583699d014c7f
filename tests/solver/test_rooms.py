"""Room in tight tiers while moves are added to a draft."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hyperopt.engine import run
from hyperopt.plan import Budget
from hyperopt.replay import replay
from hyperopt.testing import generate
from solver.residency.candidates import reruns
from solver.residency.draft import Table
from solver.residency.problem import Problem
from solver.residency.rooms import Rooms, tier_load
from tests.solver.test_draft import random_draft, timed
from tests.solver.test_filling import problem_of


@pytest.mark.parametrize("seed", range(20))
def test_what_is_taken_has_room(seed: int) -> None:
    dice = np.random.default_rng(seed)
    problem = problem_of(seed, 0.5)
    table = Table(problem, reruns(problem))
    if not table.count:
        return
    table.roomy = np.zeros_like(table.roomy)
    table.room = np.full_like(table.room, int(table.bytes.max()) * 2)
    draft = table.empty()
    rooms = Rooms(table, draft)
    for g in dice.permutation(table.count).tolist():
        tier = int(dice.integers(len(table.room)))
        assert rooms.take(g, tier) == (draft.tier[g] == tier)
        load = tier_load(
            problem.n, len(table.roomy), table.bytes, table.given_up, table.leave, table.wraps, table.version,
            table.first_gap, table.roomy, draft.tier,
        )  # fmt: skip
        assert (load == rooms.used).all()
        assert (load.max(axis=1) <= table.room).all()


@pytest.mark.parametrize("apart", [False, True])
def test_a_replay_counts_no_more_in_a_tight_tier_than_is_counted_here(apart: bool) -> None:
    """Also where a storage goes from one tier to another at one operator: the first copy is given up."""
    profile = generate("llama3-8b-three-tiers", 500, 0)
    problem = Problem(profile, Budget(hbm_bytes=replay(profile).peak_bytes // 2))
    table, dice = Table(problem, []), random.Random(0)
    assert table.usable.sum() > 1
    table.roomy = np.zeros_like(table.roomy)  # before the layout is made: copies out start no sooner than need be
    moved = 0
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        draft = random_draft(table, dice, share, apart=apart)
        timed(table, draft)
        outcome = run(table.arrays, table.orders(draft), 1 << 50, dict.fromkeys(profile.device.tiers, 1 << 50))
        assert outcome.status == "fits"
        counted = tier_load(
            problem.n, len(table.roomy), table.bytes, table.given_up, table.leave, table.wraps, table.version,
            table.first_gap, table.roomy, draft.tier,
        )  # fmt: skip
        seen = outcome.record.tier_bytes.T
        assert (seen <= counted[:, : problem.n]).all()
        moved += int(seen.max())
    assert moved
