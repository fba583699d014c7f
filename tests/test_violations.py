"""One plan for every code that a plan can be refused with: both judges say it, and nothing else is missed."""

from __future__ import annotations

import pytest

from hyperopt.legality import Code, IllegalPlan, OutOfMemory
from hyperopt.plan import Action, ActionKind, Budget, Plan, Recompute, Residency
from hyperopt.profile import Device, Links, Operator, Profile, Storage, Tier, check
from hyperopt.replay import replay
from hyperopt.validate import validate

# Storage 0: an activation, 0 -> 5.  1: a parameter, updated at 4.  2: may not leave.  3: made from 0 at 1, read at 5.
# 4: written on the comm stream at 2, read at 3, written anew at 4.  5: an activation made from 3, read at 5.
OPERATORS = (
    Operator(writes=(0,), duration_us=10.0),
    Operator(reads=(0,), writes=(3,), duration_us=10.0),
    Operator(reads=(2,), writes=(4,), duration_us=10.0, stream="comm", recomputable=False),
    Operator(reads=(3, 4), writes=(5,), duration_us=10.0, recomputable=False),
    Operator(reads=(1,), writes=(1, 4), duration_us=10.0),
    Operator(reads=(0, 3, 5), duration_us=10.0),
)
STORAGES = (
    Storage(id=0, bytes=8, name="x"),
    Storage(id=1, bytes=8, kind="parameter", resident_at_start=True, resident_at_end=True),
    Storage(id=2, bytes=8, resident_at_start=True, resident_at_end=True, offloadable=False),
    Storage(id=3, bytes=8),
    Storage(id=4, bytes=8),
    Storage(id=5, bytes=8),
)
TIERS = (
    Tier(name="host", bytes=20, d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9),
    Tier(name="oneway", bytes=20, d2h_bytes_per_s=10**9),
    Tier(name="readonly", bytes=20, h2d_bytes_per_s=10**9),
)
STEP = Profile(operators=OPERATORS, storages=STORAGES, device=Device(base_bytes=2, links=Links(tiers=TIERS)))
check(STEP)


def act(kind: ActionKind, op: int, storage: int, tier: str | None = None) -> Action:
    when = "before" if kind == "copy_in" else "after"
    return Action(op=op, when=when, kind=kind, storage=storage, tier=tier)  # type: ignore[arg-type]


def away(storage: int, op: int, tier: str | None = None) -> tuple[Action, Action]:
    return act("copy_out", op, storage, tier), act("release", op, storage)


def plan(
    *actions: Action,
    again: tuple[Recompute, ...] = (),
    initial: dict[int, str] | None = None,
    hbm: int | None = None,
    tiers: dict[str, int] | None = None,
) -> Plan:
    residency = Residency(initial=initial or {}, actions=actions, recompute=again)
    return Plan(budget=Budget(hbm_bytes=hbm, tiers=tiers or {}), residency=residency)


def rerun(storage: int, before: int, *ops: int) -> tuple[Recompute, ...]:
    return (Recompute(storage=storage, before_op=before, ops=ops),)


BROKEN = [
    (Code.UNKNOWN_OPERATOR, plan(act("release", 17, 0))),
    (Code.UNKNOWN_OPERATOR, plan(again=rerun(3, 5, 17))),
    (Code.UNKNOWN_STORAGE, plan(act("release", 1, 99))),
    (Code.UNKNOWN_STORAGE, plan(initial={99: "host"})),
    (Code.UNKNOWN_TIER, plan(act("copy_out", 0, 0, "moon"))),
    (Code.UNKNOWN_TIER, plan(act("copy_out", 0, 0), tiers={"host": 0})),
    (Code.UNKNOWN_TIER, plan(initial={1: "moon"})),
    (Code.NO_LINK, plan(*away(0, 1, "oneway"), act("copy_in", 5, 0))),
    (Code.NO_LINK, plan(act("copy_out", 0, 0, "readonly"))),
    (Code.WRONG_STREAM, plan(act("release", 2, 0))),
    (Code.WRONG_SIDE, plan(Action(op=1, when="before", kind="release", storage=0))),
    (Code.WRONG_SIDE, plan(Action(op=1, when="after", kind="copy_in", storage=0))),
    (Code.NOT_OFFLOADABLE, plan(act("copy_out", 0, 2))),
    (Code.NOT_OFFLOADABLE, plan(act("copy_in", 1, 2), act("release", 4, 2), initial={2: "host"})),
    (Code.INITIAL_NOT_RESIDENT, plan(initial={0: "host"})),
    (Code.COPY_OUT_NOT_IN_HBM, plan(act("copy_out", 0, 3))),
    (Code.COPY_IN_WITHOUT_COPY, plan(act("copy_in", 1, 5))),
    (Code.COPY_IN_ALREADY_IN_HBM, plan(act("copy_out", 0, 0), act("copy_in", 3, 0))),
    (Code.RELEASE_NOT_IN_HBM, plan(act("release", 0, 5))),
    (Code.RELEASE_HOST_ILLEGAL, plan(act("release_host", 1, 0))),
    (Code.READ_NOT_IN_HBM, plan(*away(0, 1))),
    (Code.READ_OF_DROPPED, plan(act("release", 1, 0))),
    (Code.WRITE_NOT_IN_HBM, plan(*away(3, 3), again=rerun(3, 5, 1))),
    (Code.WRITE_OF_DROPPED, plan(act("release", 3, 4))),
    (Code.WRONG_VERSION, plan(again=rerun(1, 5, 4))),
    (Code.NOT_RECOMPUTABLE, plan(act("release", 3, 5), again=rerun(5, 5, 3))),
    (Code.RECOMPUTE_NOT_BEFORE, plan(again=rerun(3, 1, 1))),
    (Code.RECOMPUTE_WITHOUT_WRITER, plan(again=rerun(3, 5, 0))),
    (Code.RECOMPUTE_AND_SWAP, plan(*away(3, 3), act("copy_in", 5, 3), again=rerun(3, 5, 1))),
    (Code.END_LOCATION, plan(*away(1, 4))),
    (Code.END_LOCATION, plan(act("copy_in", 3, 1), initial={1: "host"})),
    (Code.OUT_OF_MEMORY, plan(hbm=33)),
    (Code.OUT_OF_MEMORY, plan(hbm=1)),
    (Code.TIER_OUT_OF_MEMORY, plan(*away(0, 1), act("copy_in", 5, 0), tiers={"host": 7})),
    (Code.TIER_OUT_OF_MEMORY, plan(act("copy_in", 3, 1), *away(1, 4), initial={1: "host"}, tiers={"host": 7})),
]


@pytest.mark.parametrize(("code", "broken"), BROKEN, ids=lambda value: str(value) if isinstance(value, Code) else "")
def test_both_judges_name_it(code: Code, broken: Plan) -> None:
    assert code in {violation.code for violation in validate(STEP, broken)}
    if code in (Code.OUT_OF_MEMORY, Code.TIER_OUT_OF_MEMORY):
        with pytest.raises(OutOfMemory):
            replay(STEP, broken)
        return
    with pytest.raises(IllegalPlan):
        replay(STEP, broken)


def test_every_code_has_a_plan() -> None:
    elsewhere = {Code.RECOMPUTE_CYCLE, Code.END_VERSION}  # below
    assert {code for code, _ in BROKEN} | elsewhere == set(Code)


def test_recomputes_that_need_each_other() -> None:
    """0 is made from 1 and 1 from 0: each waits for the other."""
    operators = (
        Operator(writes=(0,), duration_us=1.0),
        Operator(reads=(0,), writes=(1,), duration_us=1.0),
        Operator(reads=(1,), writes=(0,), duration_us=1.0),
        Operator(reads=(0,), writes=(1,), duration_us=1.0),
        Operator(reads=(0, 1), duration_us=1.0),
    )
    step = Profile(operators=operators, storages=(Storage(id=0, bytes=1), Storage(id=1, bytes=1)))
    both = plan(act("release", 3, 0), act("release", 3, 1), again=(*rerun(0, 4, 2), *rerun(1, 4, 3)))
    assert Code.RECOMPUTE_CYCLE in {violation.code for violation in validate(step, both)}
    with pytest.raises(IllegalPlan) as refused:
        replay(step, both)
    assert refused.value.violation.code == Code.READ_OF_DROPPED


def test_a_resident_storage_ends_in_its_last_version() -> None:
    """Operator 0 fills the storage and 1 fills it anew; running 0 again before 2 leaves the old content."""
    operators = (
        Operator(writes=(0,), duration_us=1.0),
        Operator(writes=(0,), duration_us=1.0),
        Operator(duration_us=1.0),
    )
    storage = Storage(id=0, bytes=1, resident_at_end=True)
    step = Profile(operators=operators, storages=(storage,))
    stale = plan(again=rerun(0, 2, 0))
    assert {violation.code for violation in validate(step, stale)} == {Code.END_VERSION}
    with pytest.raises(IllegalPlan) as refused:
        replay(step, stale)
    assert refused.value.violation.code == Code.END_VERSION


def test_all_violations_are_listed_not_only_the_first() -> None:
    several = plan(act("release", 1, 0), act("copy_out", 0, 2), act("copy_in", 1, 5), initial={99: "host"})
    codes = [violation.code for violation in validate(STEP, several)]
    assert {Code.READ_OF_DROPPED, Code.NOT_OFFLOADABLE, Code.COPY_IN_WITHOUT_COPY, Code.UNKNOWN_STORAGE} <= set(codes)


def test_a_profile_without_operators() -> None:
    storage = Storage(id=0, bytes=5, resident_at_start=True)
    empty = Profile(operators=(), storages=(storage,), device=Device(base_bytes=2))
    timeline = replay(empty)
    assert (timeline.step_ns, timeline.peak_bytes) == (0, 7)
    assert [violation.code for violation in validate(empty, Plan(), hbm_bytes=6)] == [Code.OUT_OF_MEMORY]
