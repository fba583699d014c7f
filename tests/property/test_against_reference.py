"""Replay and validate against a second reading of the execution model (`tests/reference_replay.py`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Part
from hypothesis import strategies as st

from hyperopt.legality import Code, IllegalPlan, OutOfMemory
from hyperopt.plan import Action, Budget, Plan, Recompute, Residency
from hyperopt.profile import COMPUTE, Device, Links, Operator, Profile, Storage
from hyperopt.replay import replay
from hyperopt.validate import validate
from tests.generators import HOST_AND_POOL, plans, profiles, walks
from tests.reference_replay import reference

MEMORY = {Code.OUT_OF_MEMORY, Code.TIER_OUT_OF_MEMORY}


@st.composite
def cases(draw: st.DrawFn, /, **size: Any) -> tuple[Profile, Plan]:
    profile = draw(profiles(**size))
    return profile, draw(plans(profile) | walks(profile))


def replayed(profile: Profile, plan: Plan | None, hbm_bytes: int | None = None) -> dict[str, Any]:
    """The answer of replay in the words of `reference`."""
    try:
        line = replay(profile, plan, hbm_bytes=hbm_bytes)
    except IllegalPlan as illegal:
        return {"illegal": str(illegal)}
    except OutOfMemory as short:
        return {"oom": {"op": short.op, "short_bytes": short.short_bytes, "tier": short.tier}}
    return {
        "step_ns": line.step_ns,
        "peak_bytes": line.peak_bytes,
        "tier_peak_bytes": used(line.tier_peak_bytes),
    }


def used(tiers: dict[str, int]) -> dict[str, int]:
    return {name: peak for name, peak in tiers.items() if peak}


def agree(profile: Profile, plan: Plan | None, hbm_bytes: int | None = None) -> None:
    expected, got = reference(profile, plan, hbm_bytes), replayed(profile, plan, hbm_bytes)
    if "illegal" in expected:
        assert "illegal" in got, (expected, got)
    else:
        if "step_ns" in expected:
            expected["tier_peak_bytes"] = used(expected["tier_peak_bytes"])
        assert got == expected


@settings(max_examples=500, deadline=None)
@given(cases(), st.none() | st.integers(0, 60))
def test_replay_reads_the_model_alike(case: tuple[Profile, Plan], hbm_bytes: int | None) -> None:
    agree(*case, hbm_bytes)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases(max_operators=16, max_storages=7))
def test_longer_steps_with_several_streams(case: tuple[Profile, Plan]) -> None:
    agree(*case)
    agree(*case, hbm_bytes=1000)


@settings(max_examples=150, deadline=None)
@given(cases(), st.sampled_from([1.0, 0.0005, 0.3333, 1.0005]), st.booleans())
def test_the_flat_form_and_fractions_of_a_microsecond(case: tuple[Profile, Plan], scale: float, duplex: bool) -> None:
    profile, plan = case
    links = Links(d2h_bytes_per_s=3_333_333.3, h2d_bytes_per_s=10**6, latency_us=scale, duplex=duplex)
    device = msgspec.structs.replace(profile.device, host_bytes=40, links=links)
    operators = tuple(msgspec.structs.replace(o, duration_us=o.duration_us * scale) for o in profile.operators)
    agree(msgspec.structs.replace(profile, device=device, operators=operators), plan)


@settings(max_examples=200, deadline=None)
@given(cases(max_operators=12, max_storages=5), st.integers(-1, 4))
def test_around_the_smallest_budget(case: tuple[Profile, Plan], more: int) -> None:
    """Where nearly every allocation has to wait for a release, and just below, where one waits in vain."""
    try:
        least = replay(*case, hbm_bytes=10**6).static_peak_bytes
    except (IllegalPlan, OutOfMemory):
        return
    agree(*case, hbm_bytes=max(least + more, 0))


@settings(max_examples=150, deadline=None)
@given(profiles(max_operators=12), st.integers(0, 60))
def test_without_a_plan(profile: Profile, hbm_bytes: int) -> None:
    agree(profile, None, hbm_bytes)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_validate_names_what_the_model_forbids(case: tuple[Profile, Plan]) -> None:
    profile, plan = case
    expected, violations = reference(profile, plan), validate(profile, plan)
    if "illegal" in expected:
        assert {v.code for v in violations} - MEMORY, expected
    elif "oom" in expected:
        assert {v.code for v in violations} <= MEMORY, (expected, violations)
        code = Code.OUT_OF_MEMORY if expected["oom"]["tier"] == "hbm" else Code.TIER_OUT_OF_MEMORY
        assert (code, expected["oom"]["op"]) in {(v.code, v.op) for v in violations}, (expected, violations)
    else:
        assert violations == []


def test_the_generated_plans_are_worth_comparing() -> None:
    """Shares of all plans that have a time line: with a copy, with a recompute."""
    count: Counter[str] = Counter()

    @settings(max_examples=300, deadline=None, database=None, derandomize=True, phases=[Part.generate])
    @given(st.data())
    def tally(data: st.DataObject) -> None:
        profile = data.draw(profiles())
        case = profile, data.draw(plans(profile))
        count["all"] += 1
        if "step_ns" in reference(*case):
            count["copy"] += any(a.kind == "copy_in" for a in case[1].residency.actions)
            count["recompute"] += bool(case[1].residency.recompute)

    tally()
    assert count["copy"] > 0.15 * count["all"] and count["recompute"] > 0.15 * count["all"], count


def plan_of(*actions: Action, initial: dict[int, str] | None = None, **tiers: int) -> Plan:
    return Plan(
        budget=Budget(hbm_bytes=1000, tiers=tiers),
        residency=Residency(initial=initial or {}, actions=actions),
    )


STARTS = Profile(
    operators=(Operator(duration_us=1),),
    storages=tuple(Storage(id=i, bytes=size, resident_at_start=True) for i, size in enumerate((9, 20, 5))),
    device=Device(links=Links(tiers=HOST_AND_POOL)),
)


def test_initial_names_a_storage_that_is_not_there() -> None:
    plan = plan_of(initial={7: "host"})
    agree(STARTS, plan)
    assert validate(STARTS, plan)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_how_much_too_much_starts_in_a_tier(order: tuple[int, ...]) -> None:
    plan = plan_of(initial=dict.fromkeys(order, "host"), host=12)
    assert reference(STARTS, plan) == {"oom": {"op": 0, "short_bytes": 22, "tier": "host"}}
    agree(STARTS, plan)


def test_a_tier_of_no_bytes_does_not_exist() -> None:
    agree(STARTS, plan_of(Action(op=0, when="after", kind="copy_out", storage=0), host=0))


def does(us: int, *, reads: tuple[int, ...] = (), writes: tuple[int, ...] = (), stream: str = COMPUTE) -> Operator:
    return Operator(duration_us=us, reads=reads, writes=writes, stream=stream)


STAYS = Storage(id=0, bytes=5, resident_at_end=True)
RELEASE = Action(op=1, when="after", kind="release", storage=0)


def test_a_release_waits_for_its_operator() -> None:
    """Though the storage is idle long before: the operator on the other stream needs the room."""
    steps = (does(1, writes=(0,)), does(9), does(2, writes=(1,), stream="comm"), does(1), does(1, reads=(0,)))
    profile = Profile(operators=steps, storages=(Storage(id=0, bytes=5), Storage(id=1, bytes=5)))
    plan = Plan(residency=Residency(actions=(RELEASE,), recompute=(Recompute(storage=0, before_op=4, ops=(0,)),)))
    assert reference(profile, plan, 5)["step_ns"] == 14_000  # 10, then comm to 12 beside 11, recompute 12 to 13
    agree(profile, plan, 5)
    agree(profile, plan, 10)


def test_an_ordinary_write_does_not_bring_a_dropped_storage_back() -> None:
    profile = Profile(operators=(does(1, writes=(0,)), does(1), does(1, writes=(0,))), storages=(STAYS,))
    assert "dropped" in reference(profile, plan_of(RELEASE))["illegal"]
    agree(profile, plan_of(RELEASE))


def test_what_stays_ends_in_its_last_version() -> None:
    profile = Profile(operators=(does(1, writes=(0,)), does(1, writes=(0,)), does(1)), storages=(STAYS,))
    older = Plan(residency=Residency(recompute=(Recompute(storage=0, before_op=2, ops=(0,)),)))
    assert "last version" in reference(profile, older, 1000)["illegal"]
    agree(profile, older, 1000)
