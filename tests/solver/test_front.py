"""The front of step time against HBM, and the least HBM within an allowed slowdown, on random training steps."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from hyperopt.plan import Budget, Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from hyperopt.validate import validate
from solver import Infeasible, Point, Request, pareto, solve
from solver.residency import front as fronts
from solver.residency.bound import memory_bound
from solver.residency.exact import best_plan
from solver.residency.problem import Problem
from solver.residency.solve import solve_residency
from tests.cases.test_planning import small_case
from tests.solver.test_residency import training_step

WORK = 60


def asked(hbm_bytes: int | None = None, points: int = 5) -> Request:
    return Request(Budget(hbm_bytes=hbm_bytes), "pareto", time_limit_s=None, work_limit=WORK, points=points)


def check_points(profile: Profile, points: tuple[Point, ...]) -> None:
    """C9: every plan is legal and runs within its budget as told; more memory: no plan slower, no bound higher."""
    for point in points:
        assert point.plan.budget.hbm_bytes == point.hbm_bytes and validate(profile, point.plan) == []
        timeline = replay(profile, point.plan)
        assert (timeline.step_us, timeline.peak_bytes) == (point.step_us, point.peak_bytes)
        assert point.peak_bytes <= point.hbm_bytes and point.bound_step_us <= point.step_us
        assert point.plan.predicted is not None and point.plan.predicted.step_us == point.step_us
        assert point.plan.plan_id == point.plan.content_id
        assert point.moved_bytes == sum(profile.by_id[copy.storage].bytes for copy in timeline.copies)
        assert (point.status == "optimal") == (point.step_us == point.bound_step_us)
    for smaller, larger in pairwise(points):
        assert smaller.hbm_bytes < larger.hbm_bytes
        assert smaller.step_us >= larger.step_us and smaller.bound_step_us >= larger.bound_step_us


@pytest.mark.parametrize("seed", range(12))
def test_c9_the_front_of_a_training_step(seed: int) -> None:
    profile = training_step(seed)
    front = pareto(profile, asked())
    check_points(profile, front.points)
    assert front.points[-1].hbm_bytes == front.unplanned_peak_bytes == replay(profile).peak_bytes
    assert front.points[-1].step_us == front.unlimited_step_us and front.points[-1].plan.residency.empty
    assert front.least_hbm_bytes is not None and front.lower_bound_bytes <= front.least_hbm_bytes
    for refused in front.infeasible:
        assert refused.hbm_bytes < front.points[0].hbm_bytes and refused.why
    assert {p.hbm_bytes for p in front.points} | {r.hbm_bytes for r in front.infeasible} >= {front.unplanned_peak_bytes}


def test_where_the_least_is_proven_the_front_begins_there() -> None:
    """Small cases are settled: the first point is the least budget, and each is as fast as exhaustion finds."""
    begun = 0
    for seed in range(30):
        profile, _ = small_case(seed, recomputable=0.5)
        front = pareto(profile, asked(points=4))
        check_points(profile, front.points)
        assert not front.infeasible
        if front.points[0].hbm_bytes == front.lower_bound_bytes:
            begun += 1
        for point in front.points:
            best = best_plan(
                Problem(profile, Budget(hbm_bytes=point.hbm_bytes)), None, below_ns=1 << 62, max_labels=60_000
            )
            assert best is not None and round(point.step_us * 1000) <= best[1], seed
    assert begun == 30


def test_one_point_is_the_unplanned_peak() -> None:
    profile = training_step(1)
    assert [point.hbm_bytes for point in pareto(profile, asked(points=1)).points] == [replay(profile).peak_bytes]


def test_a_cancelled_front_is_whole_all_the_same() -> None:
    profile = training_step(5)
    front = pareto(profile, asked(points=6), cancelled=lambda: True)
    check_points(profile, front.points)
    assert front.unplanned_peak_bytes - front.lower_bound_bytes > 6
    assert len(front.points) + len(front.infeasible) == 6


@pytest.mark.parametrize("seed", range(6))
def test_a_budget_that_cannot_be_met_is_on_the_front_with_its_reasons(seed: int) -> None:
    profile = training_step(seed)
    least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
    front = pareto(profile, asked(least - 1, points=2))
    assert [refused.hbm_bytes for refused in front.infeasible] == [least - 1]
    refused = front.infeasible[0]
    assert refused.proven and refused.lower_bound_bytes >= least and str(refused.lower_bound_bytes) in refused.why
    assert isinstance(solve(profile, asked(least - 1, points=2)), Infeasible)


@pytest.mark.parametrize("seed", range(10))
def test_the_least_peak_within_an_allowed_slowdown(seed: int) -> None:
    """Within slowdown and budget, legal, and no budget below the proven bound does it."""
    profile = training_step(seed)
    allowed = random.Random(seed).choice([0.0, 0.02, 0.1, 0.5, 3.0])
    request = Request(Budget(hbm_bytes=1 << 40), "min_peak", time_limit_s=None, work_limit=WORK, max_slowdown=allowed)
    plan = solve(profile, request)
    assert isinstance(plan, Plan) and validate(profile, plan) == [] and plan.plan_id == plan.content_id
    timeline, unlimited = replay(profile, plan), replay(profile)
    assert timeline.step_ns <= unlimited.step_ns * (1 + allowed)
    told = plan.explain[0]
    assert told["least_hbm_bytes"] == plan.budget.hbm_bytes
    assert told["least_hbm_bytes"] >= timeline.peak_bytes
    assert told["lower_bound_bytes"] <= told["least_hbm_bytes"] <= unlimited.peak_bytes
    assert plan.bound is not None
    proven = told["least_hbm_bytes"] == told["lower_bound_bytes"]
    assert (plan.bound.status == "optimal") == (proven and timeline.step_us == plan.bound.step_us)
    below = told["lower_bound_bytes"] - 1
    fastest = solve(profile, Request(Budget(hbm_bytes=below), time_limit_s=None, work_limit=WORK))
    if isinstance(fastest, Plan):
        assert fastest.predicted is not None and fastest.predicted.step_us * 1000 > unlimited.step_ns * (1 + allowed)


def test_as_fast_as_can_be_is_not_optimal_while_less_memory_may_do() -> None:
    """No time to look below what the unlimited step takes: the step is proven, the peak is not, and it is said so."""
    told: list[Plan] = []
    request = Request(Budget(hbm_bytes=1 << 40), "min_peak", time_limit_s=0, max_slowdown=0)
    plan = solve(training_step(1), request, on_progress=lambda found: told.append(found.plan))
    assert isinstance(plan, Plan) and plan.bound is not None and plan.predicted is not None
    assert plan.explain[0]["lower_bound_bytes"] < plan.explain[0]["least_hbm_bytes"]
    assert plan.bound.gap == 0 and plan.bound.status == "feasible" and "peak" in plan.bound.stop_reason
    assert told and all(found.bound is not None and found.bound.status == "feasible" for found in told)


def test_the_least_peak_of_small_cases_is_the_least_there_is() -> None:
    """Every budget tried by exhaustion: the smallest one with a fast enough plan."""
    for seed in range(40):
        profile, _ = small_case(seed, recomputable=0.3)
        allowed_ns = int(replay(profile).step_ns * 1.25)
        budgets = range(replay(profile).peak_bytes + 1)
        found = (
            (b, best_plan(Problem(profile, Budget(hbm_bytes=b)), None, below_ns=1 << 62, max_labels=60_000))
            for b in budgets
        )
        least = next(b for b, best in found if best is not None and best[1] <= allowed_ns)
        request = Request(Budget(hbm_bytes=100), "min_peak", time_limit_s=None, work_limit=WORK, max_slowdown=0.25)
        plan = solve(profile, request)
        assert isinstance(plan, Plan), seed
        assert plan.explain[0]["least_hbm_bytes"] == plan.explain[0]["lower_bound_bytes"] == least, seed
        if least:
            refused = solve(profile, replace(request, budget=Budget(hbm_bytes=least - 1)))
            assert isinstance(refused, Infeasible) and refused.reachable_bytes == refused.lower_bound_bytes == least


def test_an_allowed_slowdown_is_for_the_least_peak() -> None:
    with pytest.raises(ValueError, match="min_peak"):
        solve(training_step(0), Request(Budget(hbm_bytes=100), max_slowdown=0.1))


def test_a_budget_left_out_is_the_profiles() -> None:
    profile = training_step(0)
    answer = solve(profile, Request(Budget(), time_limit_s=None, work_limit=WORK))
    assert isinstance(answer, Infeasible) and answer.budget_bytes == profile.device.hbm_bytes


@pytest.mark.parametrize("seed", [0, 1, 5, 6])
def test_without_time_every_budget_has_the_plan_in_hand_for_the_least(seed: int) -> None:
    front = pareto(training_step(seed), replace(asked(points=5), time_limit_s=0.0))
    check_points(training_step(seed), front.points)
    assert not front.infeasible and front.points[0].hbm_bytes == front.least_hbm_bytes


def test_a_point_starts_from_the_plan_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Request] = []
    answers: list[Plan | Infeasible] = []

    def recorded(profile: Profile, request: Request, *others: Any) -> Plan | Infeasible:
        requests.append(request)
        answers.append(solve_residency(profile, request, *others))
        return answers[-1]

    monkeypatch.setattr(fronts, "solve_residency", recorded)
    pareto(training_step(5), asked(points=5))
    floor, top, *rest = requests
    assert floor.budget.hbm_bytes == 0 and not floor.starts and not top.starts and len(rest) == 4
    assert isinstance(answers[0], Infeasible) and rest[0].starts == (answers[0].in_hand,)
    for request, before in zip(rest[1:], answers[2:], strict=False):
        assert isinstance(before, Plan) and request.starts == (before.residency,)


def test_an_answer_keeps_the_plan_in_hand_beside_its_document() -> None:
    profile = training_step(5)
    answer = solve(profile, Request(Budget(hbm_bytes=0), time_limit_s=None, work_limit=WORK))
    assert isinstance(answer, Infeasible) and answer.in_hand is not None
    found = Plan(budget=Budget(hbm_bytes=answer.reachable_bytes), residency=answer.in_hand)
    assert replay(profile, found).static_peak_bytes == answer.reachable_bytes
    again = msgspec.json.decode(msgspec.json.encode(answer), type=Infeasible)
    assert again == answer and again.in_hand is None


def test_a_search_for_what_is_fast_enough_ends_there() -> None:
    """With a plan that is, or the proof that none can be; and not before."""
    profile = training_step(1)
    least = replay(profile)
    budget = Budget(hbm_bytes=int(0.8 * least.peak_bytes))
    plain = solve(profile, Request(budget, time_limit_s=None, work_limit=WORK))
    assert isinstance(plain, Plan) and plain.predicted is not None and plain.bound is not None
    generous = solve(profile, Request(budget, time_limit_s=None, work_limit=WORK, enough_ns=10 * least.step_ns))
    assert isinstance(generous, Plan) and generous.bound is not None and generous.bound.stop_reason == "fast enough"
    assert generous.provenance["work"] < plain.provenance["work"]
    beyond = solve(profile, Request(budget, time_limit_s=None, work_limit=WORK, enough_ns=least.step_ns - 1))
    assert isinstance(beyond, Plan) and beyond.bound is not None
    assert beyond.bound.stop_reason == "no plan is fast enough (proven)"
