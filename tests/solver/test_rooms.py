"""Room in tight tiers while moves are added to a draft."""

from __future__ import annotations

import numpy as np
import pytest

from solver.residency.candidates import reruns
from solver.residency.draft import Table
from solver.residency.rooms import Rooms, tier_load
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
            problem.n, len(table.roomy), table.bytes, table.before, table.leave, table.wraps, table.version,
            table.first_gap, table.roomy, draft.tier,
        )  # fmt: skip
        assert (load == rooms.used).all()
        assert (load.max(axis=1) <= table.room).all()
