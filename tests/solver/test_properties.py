"""What holds of every answer: it runs, it is the same again, and names, units and spare room do not matter."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hyperopt.plan import Budget, Plan
from hyperopt.profile import Device, Links, Operator, Profile, Storage, Tier, check
from hyperopt.replay import replay
from hyperopt.testing.traces import generate
from hyperopt.validate import validate
from solver import Infeasible, Request, pareto, solve
from solver.residency.bound import memory_bound
from solver.residency.problem import Problem
from tests.generators import profiles

WORK = 3_000
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
TRACES = ("llama3-8b-three-tiers", "qwen3-30b-a3b-skewed", "llama3-8b-contended")


@st.composite
def asked(draw: st.DrawFn, /, **kwargs: Any) -> tuple[Profile, Budget]:
    """A small step and a budget between its memory bound and its peak."""
    profile = draw(profiles(**kwargs))
    least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
    peak = replay(profile).peak_bytes
    return profile, Budget(hbm_bytes=draw(st.integers(min(least, peak), peak)))


def answer_of(profile: Profile, budget: Budget, work: int = WORK, seed: int = 0) -> Plan | Infeasible:
    return solve(profile, Request(budget, time_limit_s=None, work_limit=work, seed=seed))


def trace(name: str) -> tuple[Profile, Budget]:
    profile = generate(name, 500, 0)
    return profile, Budget(hbm_bytes=int(0.6 * replay(profile).peak_bytes))


def runs_within(profile: Profile, budget: Budget, plan: Plan) -> None:
    assert validate(profile, plan) == []
    timeline = replay(profile, plan)
    assert budget.hbm_bytes is not None and timeline.peak_bytes <= budget.hbm_bytes
    for name, room in budget.tier_bytes(profile).items():
        assert timeline.tier_peak_bytes.get(name, 0) <= room
    assert plan.predicted is not None and plan.bound is not None
    assert plan.predicted.step_us == timeline.step_us >= plan.bound.step_us


@FEW
@given(asked(max_operators=7, max_storages=4))
def test_every_plan_runs_within_its_budgets(case: tuple[Profile, Budget]) -> None:
    answer = answer_of(*case)
    if isinstance(answer, Plan):
        runs_within(*case, answer)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_planned_twice_is_planned_the_same(name: str) -> None:
    profile, budget = trace(name)
    answer = answer_of(profile, budget, work=150)
    assert isinstance(answer, Plan)
    runs_within(profile, budget, answer)
    again = answer_of(generate(name, 500, 0), budget, work=150)
    assert isinstance(again, Plan)
    assert msgspec.json.encode(again.residency) == msgspec.json.encode(answer.residency)


@FEW
@given(asked(max_operators=8, max_storages=4), st.integers(0, 3))
def test_same_seed_and_work_same_plan(case: tuple[Profile, Budget], seed: int) -> None:
    one, other = (answer_of(*case, work=200, seed=seed) for _ in range(2))
    assert msgspec.json.encode(one) == msgspec.json.encode(other)


@FEW
@given(asked(max_operators=6, max_storages=3), st.integers(1, 6))
def test_more_room_is_never_slower_where_both_are_optimal(case: tuple[Profile, Budget], more: int) -> None:
    profile, budget = case
    assert budget.hbm_bytes is not None
    small, large = answer_of(profile, budget), answer_of(profile, Budget(hbm_bytes=budget.hbm_bytes + more))
    if isinstance(small, Plan):
        assert isinstance(large, Plan)
        assert small.bound is not None and large.bound is not None
        assert small.predicted is not None and large.predicted is not None
        if small.bound.status == large.bound.status == "optimal":
            assert large.predicted.step_us <= small.predicted.step_us


def test_along_a_front_more_room_is_never_slower() -> None:
    profile, budget = trace(TRACES[1])
    found = pareto(profile, Request(budget, time_limit_s=None, work_limit=20, points=3))
    points = sorted((point.plan.budget.hbm_bytes or 0, replay(profile, point.plan).step_us) for point in found.points)
    assert points
    steps = [step for _, step in points]
    assert steps == sorted(steps, reverse=True)


@FEW
@given(asked(max_operators=6, max_storages=3), st.data())
def test_names_and_places_of_storages_do_not_matter(case: tuple[Profile, Budget], data: st.DataObject) -> None:
    profile, budget = case
    ids = [s.id for s in profile.storages]
    named = dict(zip(ids, data.draw(st.permutations([10 * i + 3 for i in ids])), strict=True))
    storages = [msgspec.structs.replace(s, id=named[s.id]) for s in data.draw(st.permutations(profile.storages))]
    operators = tuple(
        msgspec.structs.replace(o, reads=tuple(named[r] for r in o.reads), writes=tuple(named[w] for w in o.writes))
        for o in profile.operators
    )
    other = msgspec.structs.replace(profile, operators=operators, storages=tuple(storages))
    check(other)
    one, two = answer_of(profile, budget, work=50_000), answer_of(other, budget, work=50_000)
    assert type(one) is type(two)
    if isinstance(one, Plan) and isinstance(two, Plan):
        assert one.bound is not None and two.bound is not None and one.predicted and two.predicted
        assume(one.bound.stop_reason == two.bound.stop_reason == "exhausted" or one.bound.status == "optimal")
        assert one.predicted.step_us == two.predicted.step_us
    elif isinstance(one, Infeasible) and isinstance(two, Infeasible):
        assert one.lower_bound_bytes == two.lower_bound_bytes


@FEW
@given(asked(max_operators=6, max_storages=3), st.sampled_from([2, 3, 10]))
def test_slower_by_k_everywhere_is_slower_by_k(case: tuple[Profile, Budget], k: int) -> None:
    profile, budget = case
    tiers = tuple(
        msgspec.structs.replace(
            tier,
            latency_us=tier.latency_us * k,
            d2h_bytes_per_s=tier.d2h_bytes_per_s / k,
            h2d_bytes_per_s=tier.h2d_bytes_per_s / k,
        )
        for tier in profile.device.links.tiers
    )
    links = msgspec.structs.replace(profile.device.links, tiers=tiers)
    operators = tuple(msgspec.structs.replace(o, duration_us=o.duration_us * k) for o in profile.operators)
    device = msgspec.structs.replace(profile.device, links=links)
    slower = msgspec.structs.replace(profile, operators=operators, device=device)
    one, two = answer_of(profile, budget, work=50_000), answer_of(slower, budget, work=50_000)
    assert type(one) is type(two)
    if isinstance(one, Plan) and isinstance(two, Plan):
        assert one.bound is not None and two.bound is not None and one.predicted and two.predicted
        assume(one.bound.status == two.bound.status == "optimal")
        rounding_us = k * 0.001 * (1 + 4 * len(profile.operators))  # up to 1 ns a copy
        assert abs(two.predicted.step_us - k * one.predicted.step_us) <= rounding_us


@FEW
@given(profiles(max_operators=8, max_storages=4), st.integers(0, 5))
def test_nothing_is_planned_where_nothing_helps(profile: Profile, spare: int) -> None:
    unplanned = replay(profile)
    answer = answer_of(profile, Budget(hbm_bytes=unplanned.peak_bytes + spare))
    assert isinstance(answer, Plan) and answer.residency.empty
    assert answer.predicted is not None and answer.predicted.step_us == unplanned.step_us


@pytest.mark.parametrize("name", TRACES[:1])
def test_nothing_is_planned_for_a_trace_that_fits(name: str) -> None:
    profile = generate(name, 500, 0)
    answer = answer_of(profile, Budget(hbm_bytes=replay(profile).peak_bytes), work=50)
    assert isinstance(answer, Plan) and answer.residency.empty


@pytest.mark.parametrize("after", [0, 3])
def test_cancelling_gives_the_best_plan_so_far(after: int) -> None:
    profile, budget = trace(TRACES[2])
    seen: list[float] = []
    answer = solve(
        profile,
        Request(budget, time_limit_s=None, work_limit=100_000),
        cancelled=lambda: len(seen) > after,
        on_progress=lambda found: seen.append(found.step_us),
    )
    assert isinstance(answer, Plan) and answer.bound is not None and answer.predicted is not None
    assert answer.bound.stop_reason in ("cancelled", "bound reached")
    assert answer.predicted.step_us == min(seen)
    runs_within(profile, budget, answer)


def test_cancelled_before_it_begins_it_still_answers() -> None:
    profile, budget = trace(TRACES[1])
    answer = solve(profile, Request(budget, time_limit_s=None), cancelled=lambda: True)
    if isinstance(answer, Plan):
        assert answer.bound is not None and answer.bound.stop_reason == "cancelled"
        runs_within(profile, budget, answer)
    else:
        assert not answer.proven and answer.stop_reason == "cancelled"


def test_a_tier_left_out_has_what_the_profile_says() -> None:
    """Two storages, two tiers, of which one is shut: what leaves goes to the other."""
    operators = tuple(
        Operator(reads=reads, writes=writes, duration_us=10.0, recomputable=False)
        for reads, writes in [((), (0,)), ((), ()), ((), (1,)), ((1,), ()), ((), ()), ((0,), ())]
    )
    tiers = tuple(Tier(name=n, bytes=100, d2h_bytes_per_s=1e7, h2d_bytes_per_s=1e7) for n in ("host", "pool"))
    storages = (Storage(id=0, bytes=10), Storage(id=1, bytes=10))
    profile = Profile(operators=operators, storages=storages, device=Device(links=Links(tiers=tiers)))
    answer = answer_of(profile, Budget(hbm_bytes=10, tiers={"host": 0}))
    assert isinstance(answer, Plan)
    assert {a.tier for a in answer.residency.actions if a.kind == "copy_out"} == {"pool"}


@pytest.mark.parametrize("name", TRACES)
def test_of_a_trace_too_numbers_and_places_of_storages_do_not_matter(name: str) -> None:
    """The very same orders: positions break ties, and are the step's own."""
    profile, budget = trace(name)
    dice = random.Random(1)
    ids = [s.id for s in profile.storages]
    named = dict(zip(ids, dice.sample(range(10**6), len(ids)), strict=True))
    storages = [msgspec.structs.replace(s, id=named[s.id]) for s in profile.storages]
    dice.shuffle(storages)
    operators = tuple(
        msgspec.structs.replace(o, reads=tuple(named[r] for r in o.reads), writes=tuple(named[w] for w in o.writes))
        for o in profile.operators
    )
    other = msgspec.structs.replace(profile, operators=operators, storages=tuple(storages))
    one, two = answer_of(profile, budget, work=150), answer_of(other, budget, work=150)
    assert isinstance(one, Plan) and isinstance(two, Plan)
    actions = [msgspec.structs.replace(a, storage=named[a.storage]) for a in one.residency.actions]
    assert actions == list(two.residency.actions)
    assert {named[s]: tier for s, tier in one.residency.initial.items()} == two.residency.initial
    again = [msgspec.structs.replace(r, storage=named[r.storage]) for r in one.residency.recompute]
    assert again == list(two.residency.recompute)
    assert two.profile_digest == other.digest and two.plan_id == two.content_id
    assert validate(other, two) == []
