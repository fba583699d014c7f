"""Placement and residency in one call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hyperopt.plan import Budget
from hyperopt.replay import replay
from hyperopt.testing.blocks import Parallel
from solver.joint import Candidate, Exchange, cut, place
from solver.stages import NoPlanError
from tests.solver.joint.samples import sample

SECONDS = 12.0


def candidates() -> list[Candidate]:
    """Eight devices: four stages of two, or two of four, data parallel."""
    made = []
    for stages in (2, 4):
        data = 8 // stages
        one = cut(sample(layers=2, parallel=Parallel(data=data)), [("layer0", 8)])
        made.append(Candidate(f"dp{data} pp{stages}", one, stages, data, 16 // data, Exchange(50e9, 10.0)))
    return made


def unplanned_peak() -> int:
    found = place(candidates(), Budget(hbm_bytes=2**40), SECONDS)
    return max(replay(one.step.profile).peak_bytes for one in found.run.stages)


def test_with_all_memory_nothing_moves_and_the_bound_is_near() -> None:
    found = place(candidates(), Budget(hbm_bytes=2**40), SECONDS)
    assert found.without == found.run.step_ns
    assert all(one.plan.residency.empty for one in found.run.stages)
    assert found.bound_ns <= found.run.step_ns
    assert sum(len(one.types) for one in found.run.stages) == 8
    assert set(found.bounds) == {"dp4 pp2", "dp2 pp4"}


def test_under_pressure_every_stage_keeps_its_budget_and_nothing_is_worse_than_one_after_the_other() -> None:
    budget = Budget(hbm_bytes=int(0.55 * unplanned_peak()))
    found = place(candidates(), budget, SECONDS)
    for one in found.run.stages:
        timeline = replay(one.step.profile, one.plan, budget.hbm_bytes)
        assert timeline.peak_bytes <= budget.hbm_bytes  # type: ignore[operator]
        assert timeline.step_ns == one.timeline.step_ns
    steps = [t.step_ns for t in found.tried if t.step_ns is not None]
    assert found.run.step_ns == min(steps)
    assert found.without is None or found.run.step_ns <= found.without
    kinds = {t.terms.kind for t in found.tried}
    assert {"kept", "apart"} <= kinds and kinds & {"moved", "states"}


def test_prices_follow_what_the_stages_took() -> None:
    budget = Budget(hbm_bytes=int(0.5 * unplanned_peak()))
    found = place(candidates()[:1], budget, 2 * SECONDS)
    again = [t for t in found.tried if t.terms.price or t.terms.short]
    assert again  # a second proposal knew what the first one was worth


def test_what_fits_nowhere_says_so() -> None:
    with pytest.raises(NoPlanError, match="--hbm-bytes"):
        place(candidates(), Budget(hbm_bytes=2**22), 5.0)


def test_a_cancelled_call_still_answers_or_says_that_it_has_nothing() -> None:
    one = replace(candidates()[0])
    with pytest.raises(NoPlanError):
        place([one], Budget(hbm_bytes=2**40), SECONDS, cancelled=lambda: True)
