"""The two judges, replay and validate, were written apart: they must agree on every plan."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hyperopt.legality import Code, IllegalPlan, OutOfMemory
from hyperopt.plan import Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from hyperopt.validate import validate
from tests.generators import plans, profiles


@st.composite
def cases(draw: st.DrawFn) -> tuple[Profile, Plan]:
    profile = draw(profiles())
    return profile, draw(plans(profile))


@settings(max_examples=2000, deadline=None)
@given(cases())
def test_replay_and_validate_agree(case: tuple[Profile, Plan]) -> None:
    profile, plan = case
    violations = validate(profile, plan)
    codes = {v.code for v in violations}
    try:
        timeline = replay(profile, plan)
    except IllegalPlan as illegal:
        named = illegal.violation.code
        assert named in codes or (named == Code.READ_OF_DROPPED and Code.RECOMPUTE_CYCLE in codes), (named, codes)
    except OutOfMemory as short:
        assert codes <= {Code.OUT_OF_MEMORY, Code.TIER_OUT_OF_MEMORY}
        assert short.op in {v.op for v in violations}
    else:
        assert violations == []
        assert plan.budget.hbm_bytes is not None and timeline.peak_bytes <= plan.budget.hbm_bytes
        assert timeline.static_peak_bytes <= plan.budget.hbm_bytes


@settings(max_examples=500, deadline=None)
@given(cases())
def test_the_static_peak_is_the_smallest_budget(case: tuple[Profile, Plan]) -> None:
    profile, plan = case
    try:
        needed = replay(profile, plan, hbm_bytes=1000).static_peak_bytes
    except (IllegalPlan, OutOfMemory):
        return
    replay(profile, plan, hbm_bytes=needed)
    if needed > 0:
        try:
            replay(profile, plan, hbm_bytes=needed - 1)
        except OutOfMemory as short:
            assert short.short_bytes == 1 or needed > 1
        else:
            raise AssertionError("ran with less than its static peak")


@settings(max_examples=500, deadline=None)
@given(cases(), st.integers(2, 5))
def test_time_scales(case: tuple[Profile, Plan], k: int) -> None:
    """Durations and latencies times k, bandwidths divided by k: step time times k."""
    import msgspec

    profile, plan = case
    operators = tuple(msgspec.structs.replace(o, duration_us=o.duration_us * k) for o in profile.operators)
    tiers = tuple(
        msgspec.structs.replace(
            t, latency_us=t.latency_us * k, d2h_bytes_per_s=t.d2h_bytes_per_s / k, h2d_bytes_per_s=t.h2d_bytes_per_s / k
        )
        for t in profile.device.links.tiers
    )
    links = msgspec.structs.replace(profile.device.links, tiers=tiers)
    scaled = msgspec.structs.replace(
        profile, operators=operators, device=msgspec.structs.replace(profile.device, links=links)
    )
    try:
        before = replay(profile, plan)
    except (IllegalPlan, OutOfMemory):
        return
    after = replay(scaled, plan)
    rounding = k * (len(before.copies) + 1)
    assert abs(after.step_ns - k * before.step_ns) <= rounding
    assert after.static_peak_bytes == before.static_peak_bytes
