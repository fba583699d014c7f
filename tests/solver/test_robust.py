"""Robust plans: within the budget whatever durations turn out, figures of the profile as given, and worth by replay."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from hyperopt.cost.scenarios import Scenarios
from hyperopt.plan import Budget, Plan
from hyperopt.profile import Profile, ns
from hyperopt.replay import replay
from hyperopt.testing import generate
from hyperopt.validate import validate
from solver import Infeasible, Request
from solver.robust import SURE, Robust, Steps, between, lines, plan_robustly


def drawn(profile: Profile, count: int, seed: int) -> Scenarios:
    """Durations and copies off by a third, or more."""
    chance = np.random.default_rng(seed)
    base = np.array([ns(o.duration_us) for o in profile.operators])
    off = np.exp(0.2 * chance.standard_normal((count, 1)) + 0.2 * chance.standard_normal((count, len(base))))
    copies = np.exp(0.4 * chance.standard_normal(count))
    return Scenarios(profile, np.round(base * off).astype(np.int64), copies, Counter(), ("made up",))


@pytest.fixture(scope="module")
def profile() -> Profile:
    return generate("llama3-8b", 320, 0)


@pytest.fixture(scope="module")
def robust(profile: Profile) -> Robust:
    limit = int(0.6 * replay(profile).peak_bytes)
    request = Request(Budget(hbm_bytes=limit), time_limit_s=None, work_limit=400)
    found = plan_robustly(profile, request, drawn(profile, 12, 0), drawn(profile, 20, 1), 0.9)
    assert isinstance(found, Robust)
    return found


def test_the_plan_fits_in_every_scenario_by_both_judges(profile: Profile, robust: Robust) -> None:
    limit = robust.plan.budget.hbm_bytes
    assert limit is not None and not validate(profile, robust.plan)
    told = drawn(profile, 20, 1)
    peaks = [replay(told.step(i), robust.plan).peak_bytes for i in range(5)]
    assert max(peaks) <= limit
    assert robust.robust_worth.fitted == robust.ordinary_worth.fitted == 20
    assert robust.robust_worth.peak_bytes <= limit


def test_worth_is_that_of_the_definition(profile: Profile, robust: Robust) -> None:
    """Step, stall and peak by the compiled engine with other numbers in it are those of the profile written out."""
    told = drawn(profile, 4, 1)
    steps = Steps(profile)
    step, stall, peak, _ = steps.figures(robust.plan, told, robust.plan.budget.hbm_bytes)
    for i in range(4):
        timeline = replay(told.step(i), robust.plan)
        assert abs(step[i] / timeline.step_ns - 1) < 1e-6  # a link's speed as a float, and as a factor of its time
        assert peak[i] == timeline.peak_bytes and abs(stall[i] - timeline.stall_ns) <= 1e-5 * timeline.step_ns


def test_on_what_it_was_chosen_by_no_candidate_is_better(profile: Profile, robust: Robust) -> None:
    candidates = robust.plan.provenance["robust"]["candidates"]
    assert min(candidates.values()) == candidates[robust.chosen]
    assert candidates[robust.chosen] <= candidates["the durations as they are"]


def test_the_document_is_for_the_profile_as_it_was_given(profile: Profile, robust: Robust) -> None:
    plan = robust.plan
    assert (plan.profile_digest, plan.program_digest) == (profile.digest, profile.program_digest)
    assert plan.predicted is not None and plan.bound is not None
    timeline = replay(profile, plan)
    assert plan.predicted.step_us == timeline.step_us and plan.predicted.peak_bytes == timeline.peak_bytes
    assert plan.bound.step_us <= plan.predicted.step_us and plan.plan_id == plan.content_id
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan).provenance["robust"]["scenarios"] == 20
    assert any("safety" in line for line in lines(robust))


@pytest.mark.parametrize("quantile", [0.6, 0.95])
def test_the_interval_of_a_quantile_holds_it_as_often_as_it_says(quantile: float) -> None:
    chance = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        low, high = between(np.round(chance.exponential(1e9, 200)).astype(np.int64), quantile)
        assert high is not None
        held += low <= -np.log(1 - quantile) * 1e6 <= high
    assert SURE - 0.04 <= held / 400 <= SURE + 0.07


def test_too_few_steps_give_no_upper_end_and_the_lines_say_so(robust: Robust) -> None:
    low, high = between(np.arange(1, 21) * 1000, 0.95)
    assert (low, high) == (17.0, None)
    assert any("too few" in line for line in lines(robust)) == (robust.robust_worth.step_us_between[1] is None)
    worth = robust.robust_worth
    assert worth.step_us_between[0] <= worth.step_us_at
    told = robust.plan.provenance["robust"]["robust"]["step_us_between"]
    assert tuple(told) == worth.step_us_between


def test_nothing_that_fits_is_the_answer_of_the_ordinary_plan(profile: Profile) -> None:
    request = Request(Budget(hbm_bytes=1 << 20), time_limit_s=None, work_limit=50)
    found = plan_robustly(profile, request, drawn(profile, 2, 0), drawn(profile, 2, 1), 0.9)
    assert isinstance(found, Infeasible)
    with pytest.raises(ValueError, match="least step time"):
        plan_robustly(profile, Request(Budget(), "min_peak"), drawn(profile, 2, 0), drawn(profile, 2, 1), 0.9)
