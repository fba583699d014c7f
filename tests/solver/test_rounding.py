"""Rounding: whatever shares a guide has, what is made of them is a plan in listed order."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hyperopt.engine import run
from solver.residency.columns import Guide, Solution
from solver.residency.draft import DROPPED
from solver.residency.fluid import Fluid
from solver.residency.prices import costs_at
from solver.residency.rounding import _last_access, rounded
from tests.solver.test_draft import ROOMY, tables, timed


def test_what_guides_want_away_and_made_again_makes_legal_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reruns that make anew, or read, what other shares of the same guide move: no draft may do both."""
    made = sum(legal_drafts(seed, monkeypatch) for seed in range(24))
    assert made > 24  # of 96


def legal_drafts(seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Drafts of random guides, each seen to be legal; returns how many make something again."""
    table, dice = tables(seed), random.Random(seed)
    fluid = Fluid(table.problem, 12)
    guide = Guide(1.0, Solution.blank(fluid).prices, [])
    costs = costs_at(table, fluid, guide.prices, 0.1)
    usable = [fluid.names.index(name) for name, t in table.tier_index.items() if table.usable[t]]
    dropped = table.parts[table.parts[:, 4] == DROPPED, 1:3].tolist()
    gaps = list(zip(table.storage.tolist(), table.wraps.tolist(), table.after.tolist(), strict=True))
    made = 0
    for share in (0.1, 0.3, 0.6, 0.9):
        moves = {(s, bool(w), -1 if w else a, dice.choice(usable)): 1.0 for s, w, a in gaps if dice.random() < share}
        drops = {(s, _last_access(table, s, leave)): 1.0 for s, leave in dropped if dice.random() < 0.8}
        monkeypatch.setattr("solver.residency.rounding.shares_by_gap", lambda *_, m=moves, d=drops: (m, d))
        draft = rounded(table, fluid, guide, costs, 0.5)
        timed(table, draft)
        outcome = run(table.arrays, table.orders(draft), ROOMY, table.problem.budget.tiers)
        assert outcome.status != "illegal", (outcome, np.flatnonzero(draft.chosen), np.flatnonzero(draft.tier >= 0))
        made += int(draft.chosen.any())
    return made
