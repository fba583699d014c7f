"""The compiled engine against the definition: every field, legal, illegal and out of memory."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperopt.engine import (
    Arrays,
    Orders,
    Outcome,
    OutOfPlace,
    arrays_of,
    first_change,
    kernel,
    orders_from,
    orders_of,
    resume,
    run,
)
from hyperopt.engine.kernel import Record
from hyperopt.legality import Code, IllegalPlan, OutOfMemory, Violation
from hyperopt.plan import EMPTY, Action, Budget, Plan, Recompute, Residency
from hyperopt.profile import COMPUTE, Device, Links, Operator, Profile, Storage, Tier
from hyperopt.replay import Timeline, replay, replay_compiled, replay_defined
from hyperopt.script import program_of, write_script
from tests.engine.samples import moving_plan, training_step
from tests.generators import plans, profiles, walks
from tests.samples import random_profile, worked_example

Case = tuple[Profile, Plan]
LOOSE = [HealthCheck.too_slow, HealthCheck.data_too_large]


@st.composite
def cases(draw: st.DrawFn, /, **size: Any) -> Case:
    profile = draw(profiles(**size))
    return profile, draw(plans(profile) | walks(profile))


def defined(profile: Profile, plan: Plan, limit: int | None) -> Timeline | Violation | tuple[int, int, str]:
    try:
        return replay_defined(profile, plan, limit)
    except IllegalPlan as illegal:
        return illegal.violation
    except OutOfMemory as short:
        return short.op, short.short_bytes, short.tier


def outcome(profile: Profile, plan: Plan, limit: int | None) -> Outcome | Violation:
    try:
        orders = orders_of(profile, plan)
    except IllegalPlan as illegal:
        return illegal.violation
    return run(arrays_of(profile), orders, limit, plan.budget.tiers)


def agree(profile: Profile, plan: Plan, limit: int | None) -> str:
    """Asserts that both say the same; returns what that was."""
    expected, found = defined(profile, plan, limit), outcome(profile, plan, limit)
    if isinstance(found, Violation):
        assert found == expected
        return "illegal"
    arrays = arrays_of(profile)
    if found.status == "illegal":
        assert isinstance(expected, Violation), expected
        assert found.storage is not None
        assert (found.code, found.op, arrays.ids[found.storage]) == (expected.code, expected.op, expected.storage)
        assert replay_compiled(profile, plan, limit) is None
    elif found.status == "out_of_memory":
        tier = "hbm" if found.tier < 0 else arrays.tiers[found.tier]
        assert (found.op, found.short_bytes, tier) == expected
        with pytest.raises(OutOfMemory) as short:
            replay_compiled(profile, plan, limit)
        assert (short.value.op, short.value.short_bytes, short.value.tier) == expected
        roomy = {name: 2**50 for name, size in plan.budget.tier_bytes(profile).items() if size}
        free = run(arrays, orders_of(profile, plan), None, {**dict.fromkeys(arrays.tiers, 0), **roomy})
        assert free.status == "fits"
        for field in ("static_bytes", "tier_bytes"):
            assert np.array_equal(getattr(found.record, field), getattr(free.record, field))
        for name in ("static_peak_bytes", "static_peak_op", "recompute_ns"):
            assert getattr(found, name) == getattr(free, name)
    else:
        assert isinstance(expected, Timeline), expected
        assert replay_compiled(profile, plan, limit) == expected
        waits_are_true(profile, expected, found)
    return found.status


def waits_are_true(profile: Profile, line: Timeline, found: Outcome) -> None:
    """What is said about waits and use in listed order fits the time line."""
    record = found.record
    program = program_of(profile)
    used = record.static_bytes.max(initial=0)
    assert used <= line.static_peak_bytes
    assert used == line.static_peak_bytes or line.static_peak_op == 0
    for t, name in enumerate(arrays_of(profile).tiers):
        assert record.tier_bytes[:, t].max(initial=0) <= line.tier_peak_bytes[name]
    for op in range(len(line.start)):
        waits, s = int(record.wait_ns[op]), int(record.wait_for[op])
        assert (waits > 0) == (s >= 0) == (record.wait_kind[op] != kernel.FOR_NOTHING)
        if s >= 0:
            ends = {c.end for c in line.copies if c.storage == profile.storages[s].id}
            assert line.start[op] > 0
            if record.wait_kind[op] == kernel.FOR_COPY_IN and not found.recompute_ns and not record.memory_ns[op]:
                assert line.start[op] in ends or s not in program.reads[op]
    if program.streams == 1 and not line.recompute_ns:
        assert record.wait_ns.sum() + record.memory_ns.sum() + sum(program.duration) == max(line.end, default=0)


@settings(max_examples=1000, deadline=None, suppress_health_check=LOOSE)
@given(cases(), st.none() | st.integers(0, 60))
def test_equal(case: Case, limit: int | None) -> None:
    agree(*case, limit if limit is not None else case[1].budget.hbm_bytes)


@settings(max_examples=350, deadline=None, suppress_health_check=LOOSE)
@given(cases(max_operators=20, max_storages=8), st.none() | st.integers(0, 80))
def test_equal_on_longer_steps(case: Case, limit: int | None) -> None:
    agree(*case, limit)


@settings(max_examples=500, deadline=None, suppress_health_check=LOOSE)
@given(cases(max_operators=12, max_storages=5), st.integers(-1, 4))
def test_equal_around_the_smallest_budget(case: Case, more: int) -> None:
    try:
        least = write_script(*case, None).static_peak
    except (IllegalPlan, OutOfMemory):
        return
    status = agree(*case, max(least + more, 0))
    assert status == ("fits" if max(least + more, 0) >= least else "out_of_memory")


@settings(max_examples=300, deadline=None, suppress_health_check=LOOSE)
@given(cases(), st.sampled_from([1.0, 0.0005, 0.3333, 1.0005]), st.booleans(), st.sampled_from([0, 0.7, 3_333_333.3]))
def test_equal_with_odd_links(case: Case, scale: float, duplex: bool, speed: float) -> None:
    profile, plan = case
    links = Links(d2h_bytes_per_s=speed, h2d_bytes_per_s=10**6, latency_us=scale, duplex=duplex)
    device = msgspec.structs.replace(profile.device, host_bytes=40, links=links)
    operators = tuple(msgspec.structs.replace(o, duration_us=o.duration_us * scale) for o in profile.operators)
    agree(msgspec.structs.replace(profile, device=device, operators=operators), plan, None)


@settings(max_examples=400, deadline=None, suppress_health_check=LOOSE)
@given(st.data(), st.integers(1, 20))
def test_resumed_is_as_run_whole(data: st.DataObject, checkpoints: int) -> None:
    profile = data.draw(profiles(max_operators=20, max_storages=6))
    base, other = data.draw(plans(profile) | walks(profile)), data.draw(plans(profile) | walks(profile))
    if data.draw(st.booleans()):  # as a search changes plans: a little, and late
        recompute = base.residency.recompute[:-1] if data.draw(st.booleans()) else base.residency.recompute
        residency = Residency(initial=base.residency.initial, actions=base.residency.actions[:-1], recompute=recompute)
        other = Plan(budget=base.budget, residency=residency)
        if data.draw(st.booleans()):
            base, other = other, base
    arrays, limit = arrays_of(profile), base.budget.hbm_bytes
    try:
        first, second = orders_of(profile, base), orders_of(profile, other)
    except IllegalPlan:
        return
    before = run(arrays, first, limit, base.budget.tiers, checkpoints=checkpoints)
    whole = run(arrays, second, limit, base.budget.tiers)
    if before.checkpoints is None:  # refused before the first
        return
    kept = resume(arrays, before, second, keep=True)
    same(whole, kept)
    same(whole, resume(arrays, before, second))
    same(before, run(arrays, first, limit, base.budget.tiers))  # untouched
    if kept.checkpoints is not None:
        same(before, resume(arrays, kept, first))
    assert first_change(arrays, first, first) == len(profile.operators)


def same(one: Outcome, other: Outcome) -> None:
    names = ["status", "code", "op", "storage"]
    if one.status != "illegal":
        names += ["short_bytes", "tier", "static_peak_bytes", "static_peak_op", "recompute_ns"]
    if one.status == "fits":
        names += ["step_ns", "peak_bytes", "peak_op"]
        for field in Record._fields:
            assert np.array_equal(getattr(one.record, field), getattr(other.record, field)), field
        assert np.array_equal(one.tier_peak_bytes, other.tier_peak_bytes)
        assert np.array_equal(one.copies, other.copies)
    for name in names:
        assert getattr(one, name) == getattr(other, name), name


@settings(max_examples=200, deadline=None, suppress_health_check=LOOSE)
@given(cases(max_operators=16, max_storages=6))
def test_the_loop_stays_within_its_arrays(case: Case) -> None:
    """Uncompiled, where Python checks every place in an array."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "walk", kernel.walk.py_func)
        agree(*case, None)
        agree(*case, case[1].budget.hbm_bytes)


def test_orders_for_another_profile() -> None:
    with pytest.raises(ValueError, match="another profile"):
        run(arrays_of(TWO), orders_of(worked_example(), EMPTY))


@pytest.mark.parametrize(
    "given",
    [
        {"initial": ([0, 0], [0, 0])},
        {"initial": ([0], [3])},
        {"copy_in": ([4], [0])},
        {"copy_in": ([0], [-1])},
        {"copy_in": ([1], [0])},
        {"copy_in": ([0, 2], [0])},
        {"after": ([0], [3], [0], [0])},
        {"after": ([0], [0], [0], [3])},
        {"after": ([0], [0], [0], [0, 0])},
        {"recompute": ([2], [1], [])},
        {"recompute": ([2], [1], [[4]])},
        {"recompute": ([2], [0], [[0]])},
    ],
)
def test_orders_out_of_place(given: dict[str, Any]) -> None:
    with pytest.raises(OutOfPlace):
        orders_from(arrays_of(TWO), **given)


@pytest.mark.parametrize("seed", range(30))
def test_equal_without_a_plan(seed: int) -> None:
    profile = random_profile(seed, operators=40, storages=20)
    least = replay_defined(profile, EMPTY, None).static_peak_bytes
    for limit in (None, least, least - 1, 0):
        agree(profile, EMPTY, limit)


def does(us: float, *, reads: tuple[int, ...] = (), writes: tuple[int, ...] = (), stream: str = COMPUTE) -> Operator:
    return Operator(duration_us=us, reads=reads, writes=writes, stream=stream)


TWO = Profile(
    operators=(does(1, writes=(1,)), does(1, stream="comm"), does(1, reads=(0, 1)), does(1, writes=(1,))),
    storages=(
        Storage(id=0, bytes=4, resident_at_start=True, resident_at_end=True),
        Storage(id=1, bytes=4, resident_at_end=True),
        Storage(id=2, bytes=4, resident_at_start=True, offloadable=False),
    ),
    device=Device(
        links=Links(
            tiers=(
                Tier(name="host", bytes=99, d2h_bytes_per_s=10**6, h2d_bytes_per_s=10**6),
                Tier(name="write-only", bytes=99, d2h_bytes_per_s=10**6),
                Tier(name="read-only", bytes=99, h2d_bytes_per_s=10**6),
            )
        )
    ),
)


def act(op: int, kind: Any, storage: int, tier: str | None = None, when: Any = None) -> Action:
    side: Any = when or ("before" if kind == "copy_in" else "after")
    return Action(op=op, when=side, kind=kind, storage=storage, tier=tier)


@pytest.mark.parametrize(
    ("code", "residency"),
    [
        (Code.UNKNOWN_TIER, Residency(initial={0: "nowhere"})),
        (Code.UNKNOWN_TIER, Residency(initial={0: ""})),
        (Code.UNKNOWN_STORAGE, Residency(initial={7: "host"})),
        (Code.INITIAL_NOT_RESIDENT, Residency(initial={1: "host"})),
        (Code.NOT_OFFLOADABLE, Residency(initial={2: "host"})),
        (Code.NO_LINK, Residency(initial={0: "write-only"}, actions=(act(0, "copy_in", 0),))),
        (Code.NO_LINK, Residency(actions=(act(0, "copy_out", 0, "read-only"),))),
        (Code.UNKNOWN_TIER, Residency(actions=(act(0, "copy_out", 0, "nowhere"),))),
        (Code.NOT_OFFLOADABLE, Residency(actions=(act(0, "copy_out", 2),))),
        (Code.WRONG_SIDE, Residency(actions=(act(2, "copy_in", 0, when="after"),))),
        (Code.WRONG_STREAM, Residency(actions=(act(1, "copy_out", 0),))),
        (Code.UNKNOWN_OPERATOR, Residency(actions=(act(9, "copy_out", 0),))),
        (Code.UNKNOWN_STORAGE, Residency(actions=(act(0, "release", 7),))),
        (Code.END_VERSION, Residency(recompute=(Recompute(storage=1, before_op=3, ops=(0,)),))),
        (Code.RECOMPUTE_WITHOUT_WRITER, Residency(recompute=(Recompute(storage=1, before_op=3, ops=()),))),
        (Code.RECOMPUTE_NOT_BEFORE, Residency(recompute=(Recompute(storage=1, before_op=2, ops=(3,)),))),
        (Code.END_LOCATION, Residency(actions=(act(2, "copy_out", 0), act(2, "release", 0)))),
        (Code.END_LOCATION, Residency(initial={0: "host"}, actions=(act(0, "copy_in", 0),))),
    ],
)
def test_every_refusal(code: Code, residency: Residency) -> None:
    profile = TWO
    if code == Code.END_VERSION:  # the last write runs before the one that is repeated
        steps = (does(1, writes=(1,)), does(1, writes=(1,)), does(1), does(1))
        profile = msgspec.structs.replace(TWO, operators=steps)
    plan = Plan(residency=residency)
    expected = defined(profile, plan, None)
    assert isinstance(expected, Violation) and expected.code == code
    assert agree(profile, plan, None) == "illegal"


@pytest.mark.parametrize("tiers", [{"host": 3}, {"host": 3, "read-only": 1}, {"host": 0}, {"elsewhere": 5}])
def test_budgets_of_tiers_at_the_start(tiers: dict[str, int]) -> None:
    for name in ("host", "read-only"):
        residency = Residency(initial={0: name}, actions=(act(0, "copy_in", 0), act(3, "copy_out", 0, name)))
        plan = Plan(budget=Budget(tiers=tiers), residency=residency)
        for limit in (None, 0, 9, 100):
            agree(TWO, plan, limit)


def test_no_operators() -> None:
    profile = Profile(operators=(), storages=(Storage(id=3, bytes=5, resident_at_start=True),))
    assert agree(profile, EMPTY, None) == "fits"
    assert agree(profile, EMPTY, 4) == "out_of_memory"


def test_what_does_not_fit_64_bits_is_left_to_the_definition() -> None:
    long = Profile(operators=tuple(does(1e15) for _ in range(12)), storages=())
    large = Profile(
        operators=(does(1),),
        storages=tuple(Storage(id=i, bytes=2**53, resident_at_start=True) for i in range(2000)),
    )
    for profile in (long, large):
        with pytest.raises(OverflowError):
            arrays_of(profile)
        assert replay_compiled(profile, EMPTY, None) is None
    slow = Links(d2h_bytes_per_s=1, h2d_bytes_per_s=1)
    sizes = tuple(Storage(id=i, bytes=2**31, resident_at_start=True, resident_at_end=True) for i in range(2))
    many = Profile(operators=(does(1), does(1)), storages=sizes, device=Device(host_bytes=2**40, links=slow))
    residency = Residency(actions=(act(0, "copy_out", 0), act(0, "copy_out", 1)))
    assert replay_compiled(many, EMPTY, None) == replay_defined(many, EMPTY, None)
    assert replay_compiled(many, Plan(residency=residency), None) is None
    assert replay(many, Plan(residency=residency)).step_ns > 2**61


def test_large_profiles_go_through_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperopt.replay.LARGE", 1)
    asked: list[Arrays] = []

    def noted(arrays: Arrays, *given: Any) -> Outcome:
        asked.append(arrays)
        return run(arrays, *given)

    monkeypatch.setattr("hyperopt.engine.run", noted)
    line = replay(TWO)
    assert asked and line == replay_defined(TWO, EMPTY, None)
    with pytest.raises(IllegalPlan, match="nowhere"):
        replay(TWO, Plan(residency=Residency(initial={0: "nowhere"})))
    with pytest.raises(IllegalPlan, match="released without a copy"):
        replay(TWO, Plan(residency=Residency(actions=(act(0, "release", 0),))))


def test_a_large_step() -> None:
    profile = training_step(6000)
    plan = moving_plan(profile, 500)
    free = replay(profile, plan)
    assert free.copies and free.recompute_ns and free.stall_ns >= 0
    least, without = free.static_peak_bytes, replay_defined(profile, EMPTY, None)
    assert least < without.static_peak_bytes and without == replay(profile)
    for limit in (None, least, least + 10_000):
        assert replay(profile, plan, limit) == replay_defined(profile, plan, limit)
    assert defined(profile, plan, least - 1) == (free.static_peak_op, 1, "hbm")
    with pytest.raises(OutOfMemory):
        replay(profile, plan, least - 1)


@pytest.mark.parametrize("place", [0, 3, 333, 700, 1100, 1399])
def test_a_large_step_resumed(place: int) -> None:
    profile = training_step(6000)
    plan = moving_plan(profile, 500)
    arrays, orders = arrays_of(profile), orders_of(profile, plan)
    actions, recompute = list(plan.residency.actions), plan.residency.recompute
    gone = actions.pop(place)
    residencies = [Residency(actions=tuple(actions), recompute=recompute)]
    residencies += [Residency(actions=plan.residency.actions, recompute=recompute[: place % len(recompute)])]
    actions.insert(place, msgspec.structs.replace(gone, op=max(gone.op - 5, 0)))
    residencies += [Residency(actions=tuple(sorted(actions, key=lambda a: a.op)), recompute=recompute)]
    least = run(arrays, orders).static_peak_bytes
    for limit in (None, least, least + 10_000):
        base = run(arrays, orders, limit, checkpoints=16)
        for residency in residencies:
            other = orders_of(profile, Plan(residency=residency))
            same(run(arrays, other, limit), resume(arrays, base, other, keep=True))
            assert first_change(arrays, orders, other) <= gone.op or residency.actions == plan.residency.actions


def test_without_numba_the_definition_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperopt.replay.LARGE", 1)
    monkeypatch.setitem(__import__("sys").modules, "hyperopt.engine", None)
    assert replay(TWO) == replay_defined(TWO, EMPTY, None)
    assert replay_compiled(TWO, EMPTY, None) is None


def test_orders_from_arrays_are_those_of_the_document() -> None:
    actions = (act(2, "copy_out", 1, "host"), act(2, "release", 1), act(0, "copy_out", 0), act(3, "copy_in", 1))
    document = Plan(residency=Residency(actions=actions, recompute=(Recompute(storage=1, before_op=2, ops=(0,)),)))
    arrays = arrays_of(TWO)
    made = orders_from(
        arrays,
        copy_in=([3], [1]),
        after=([2, 2, 0], [kernel.COPY_OUT, kernel.RELEASE, kernel.COPY_OUT], [1, 1, 0], [0, 0, 0]),
        recompute=([2], [1], [[0]]),
    )
    read = orders_of(TWO, document)
    for field in Orders._fields:
        assert np.array_equal(getattr(made, field), getattr(read, field)), field
