"""Acceptance cases C6, C7, C8, C9, C13, C14, C17, C18 and C19, with their right values."""

from __future__ import annotations

import random

import pytest

from hyperopt.legality import Code, IllegalPlan
from hyperopt.plan import Action, Budget, Plan, Recompute, Residency
from hyperopt.profile import Device, Links, Operator, Profile, Storage, check
from hyperopt.replay import replay
from hyperopt.validate import validate
from solver import Infeasible, Request, solve
from solver.residency.bound import memory_bound
from solver.residency.problem import Problem
from solver.residency.rival import rival_plan
from tests.brute_force import optimum_ns, optimum_with_recompute_ns

MIB = 1 << 20
HOST = Device(host_bytes=1 << 40, links=Links(d2h_bytes_per_s=16 << 30, h2d_bytes_per_s=16 << 30))


def step(
    accesses: dict[int, tuple[list[int], list[int]]],
    sizes: list[int],
    count: int,
    *,
    us: float = 10_000,
    device: Device = HOST,
    recomputable: bool = False,
) -> Profile:
    """`count` operators of `us` each; `accesses[k]` = (reads, writes) of operator k."""
    operators = [
        Operator(
            reads=tuple(accesses.get(k, ([], []))[0]),
            writes=tuple(accesses.get(k, ([], []))[1]),
            duration_us=us,
            recomputable=recomputable,
        )
        for k in range(count)
    ]
    storages = [Storage(id=i, bytes=size) for i, size in enumerate(sizes)]
    profile = Profile(operators=tuple(operators), storages=tuple(storages), device=device)
    check(profile)
    return profile


def planned(profile: Profile, hbm_bytes: int, **kwargs: object) -> Plan:
    answer = solve(profile, Request(Budget(hbm_bytes=hbm_bytes), time_limit_s=20))
    assert isinstance(answer, Plan), answer
    assert validate(profile, answer) == []
    assert replay(profile, answer).step_us == pytest.approx(answer.predicted.step_us if answer.predicted else None)
    return answer


TRAP = step(
    {0: ([], [0]), 2: ([], [1]), 4: ([], [2]), 5: ([2], []), 7: ([1], []), 9: ([0], [])},
    [512 * MIB, 128 * MIB, 128 * MIB],
    10,
)


def test_c6_the_longest_gap_trap() -> None:
    plan = planned(TRAP, 640 * MIB)
    assert plan.predicted is not None and plan.bound is not None
    assert (plan.predicted.step_us, plan.predicted.peak_bytes) == (100_000, 640 * MIB)
    assert plan.bound.status == "optimal"
    rival = rival_plan(TRAP, "longest-gap", Budget(hbm_bytes=640 * MIB))
    assert rival.predicted is not None and rival.predicted.step_us == 132_500


def test_c7_infeasible_says_what_is_needed_and_where() -> None:
    answer = solve(step({0: ([], [0])}, [1024], 1), Request(Budget(hbm_bytes=512)))
    assert isinstance(answer, Infeasible)
    assert answer.lower_bound_bytes == answer.reachable_bytes == 1024
    assert answer.operator["index"] == 0


def test_a_budget_below_the_base_is_infeasible() -> None:
    profile = step({0: ([], [0])}, [1024], 1, device=Device(base_bytes=4096, host_bytes=1 << 20))
    answer = solve(profile, Request(Budget(hbm_bytes=100)))
    assert isinstance(answer, Infeasible) and answer.lower_bound_bytes == 5120


THREE = step({0: ([], [0]), 1: ([], [1]), 2: ([], [2]), 3: ([0], []), 4: ([1], []), 5: ([2], [])}, [1, 1, 1], 6)


def test_c8_room_for_one_to_stay() -> None:
    """At operators 2 and 3 one byte is in use and one may stay; a plan that keeps two is rejected."""
    plan = planned(THREE, 2)
    moved = {action.storage for action in plan.residency.actions}
    keeps_two = Plan(
        budget=Budget(hbm_bytes=2),
        residency=Residency(actions=tuple(action for action in plan.residency.actions if action.storage == min(moved))),
    )
    assert Code.OUT_OF_MEMORY in {v.code for v in validate(THREE, keeps_two)}


def small_case(seed: int, recomputable: float = 0.0) -> tuple[Profile, int]:
    """A random profile of up to 5 operators and 2 storages, and a budget that binds.

    `recomputable`: share of the operators that may run again; fewer storages can leave then.
    """
    dice = random.Random(seed)
    count, storages = dice.randint(2, 5), dice.randint(1, 2)
    resident = [dice.random() < 0.4 for _ in range(storages)]
    exists = {i for i in range(storages) if resident[i]}
    operators = []
    for _ in range(count):
        reads = tuple(s for s in sorted(exists) if dice.random() < 0.4)
        writes = tuple(s for s in range(storages) if dice.random() < 0.3)
        exists.update(writes)
        operators.append(
            Operator(
                reads=reads,
                writes=writes,
                duration_us=dice.randint(0, 6),
                workspace_bytes=dice.choice([0, 0, 1, 2]),
                recomputable=dice.random() < recomputable,
                stream="compute" if dice.random() < 0.8 else "comm",
            )
        )
    tensors = tuple(
        Storage(
            id=i,
            bytes=dice.randint(1, 5),
            resident_at_start=resident[i],
            resident_at_end=i in exists and dice.random() < 0.5,
            offloadable=not recomputable or dice.random() < 0.5,
        )
        for i in range(storages)
    )
    links = Links(
        d2h_bytes_per_s=10**6 * dice.choice([1, 2]),
        h2d_bytes_per_s=10**6,
        latency_us=dice.choice([0, 0.5]),
        duplex=dice.random() < 0.7,
    )
    device = Device(base_bytes=dice.randint(0, 2), host_bytes=dice.choice([100, 100, 4]), links=links)
    profile = Profile(operators=tuple(operators), storages=tensors, device=device)
    check(profile)
    least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
    return profile, dice.randint(max(0, least - 1), max(least, replay(profile).static_peak_bytes - 1))


@pytest.mark.parametrize("block", range(10))
def test_c8_small_cases_equal_brute_force(block: int) -> None:
    """A thousand random small cases: the optimum of all plans, and a bound that is one."""
    for seed in range(100 * block, 100 * block + 100):
        profile, hbm_bytes = small_case(seed)
        best = optimum_ns(profile, Budget(hbm_bytes=hbm_bytes), trips=1)
        answer = solve(profile, Request(Budget(hbm_bytes=hbm_bytes)))
        if isinstance(answer, Infeasible):
            assert best is None, seed
            assert answer.lower_bound_bytes > hbm_bytes, seed
            continue
        assert answer.predicted is not None and answer.bound is not None and validate(profile, answer) == []
        assert best is None or round(answer.predicted.step_us * 1000) <= best, seed
        assert best is None or round(answer.bound.step_us * 1000) <= best, seed


@pytest.mark.parametrize("block", range(5))
def test_small_cases_with_recompute_equal_brute_force(block: int) -> None:
    """Never slower than the best of keep, move and up to two recomputes; no bound above it."""
    for seed in range(100 * block, 100 * block + 100):
        profile, hbm_bytes = small_case(seed, recomputable=0.7)
        best = optimum_with_recompute_ns(profile, Budget(hbm_bytes=hbm_bytes))
        answer = solve(profile, Request(Budget(hbm_bytes=hbm_bytes)))
        if isinstance(answer, Infeasible):
            assert best is None, seed
            assert answer.lower_bound_bytes > hbm_bytes, seed
            continue
        assert answer.predicted is not None and answer.bound is not None and validate(profile, answer) == []
        assert best is None or round(answer.predicted.step_us * 1000) <= best, seed
        assert best is None or round(answer.bound.step_us * 1000) <= best, seed


def test_infeasible_small_cases_are_settled() -> None:
    """The lower bound and the reachable budget meet: below there is no plan, with it there is one."""
    settled = 0
    for seed in range(200):
        profile, hbm_bytes = small_case(seed, recomputable=0.5)
        answer = solve(profile, Request(Budget(hbm_bytes=hbm_bytes // 2)))
        if isinstance(answer, Infeasible) and answer.reachable_bytes is not None:
            assert answer.lower_bound_bytes == answer.reachable_bytes, seed
            assert isinstance(solve(profile, Request(Budget(hbm_bytes=answer.reachable_bytes))), Plan)
            settled += 1
    assert settled > 50


def test_c9_each_budget_is_kept_and_the_front_never_rises() -> None:
    for share in range(5, 105, 5):
        hbm_bytes = 768 * MIB * share // 100
        answer = solve(TRAP, Request(Budget(hbm_bytes=hbm_bytes)))
        if isinstance(answer, Plan):
            assert replay(TRAP, answer).peak_bytes <= hbm_bytes
    front = solve(TRAP, Request(Budget(hbm_bytes=640 * MIB), objective="pareto"))
    assert isinstance(front, Plan) and len(front.alternatives) >= 2
    steps = [entry["step_us"] for entry in front.alternatives]
    assert steps == sorted(steps, reverse=True)
    for entry in front.alternatives:
        one = Plan(budget=Budget(hbm_bytes=entry["hbm_bytes"]), residency=entry["residency"])
        assert replay(TRAP, one).step_us == entry["step_us"]


def test_c13_views_of_one_storage_are_counted_and_copied_once() -> None:
    """Two operators read the 64 MiB storage through two views: in the profile they access one storage."""
    profile = step({0: ([], [0]), 1: ([], [1]), 2: ([1], []), 4: ([0], []), 5: ([0], [])}, [64 * MIB, 64 * MIB], 6)
    assert replay(profile).peak_bytes == 128 * MIB
    plan = planned(profile, 64 * MIB)
    copies = [copy for copy in replay(profile, plan).copies if copy.storage == 0]
    assert [copy.out for copy in copies] == [True, False]


def test_c14_a_workspace_of_one_operator_sets_the_peak_and_is_never_offloaded() -> None:
    """730 MiB of workspace on top of 29577.8 MiB."""
    resident = round(29577.8 * MIB)
    operators = (
        Operator(reads=(0,), duration_us=10, recomputable=False),
        Operator(reads=(0,), duration_us=10, workspace_bytes=730 * MIB, recomputable=False),
        Operator(reads=(0,), duration_us=10, recomputable=False),
    )
    storage = Storage(id=0, bytes=resident, kind="parameter", resident_at_start=True, resident_at_end=True)
    profile = Profile(operators=operators, storages=(storage,), device=HOST)
    timeline = replay(profile)
    assert timeline.peak_bytes / MIB == pytest.approx(30307.8, abs=0.01)
    assert timeline.peak_op == 1
    answer = solve(profile, Request(Budget(hbm_bytes=30000 * MIB)))
    assert isinstance(answer, Infeasible)
    assert answer.operator["index"] == 1 and answer.operator["workspace_bytes"] == 730 * MIB
    assert answer.lower_bound_bytes == timeline.peak_bytes


def out(op: int, storage: int) -> tuple[Action, Action]:
    copy = Action(op=op, when="after", kind="copy_out", storage=storage)
    return copy, Action(op=op, when="after", kind="release", storage=storage)


def back(op: int, storage: int) -> Action:
    return Action(op=op, when="before", kind="copy_in", storage=storage)


ORDERED = step({0: ([], [0]), 3: ([0], [0]), 5: ([0], [])}, [MIB], 6, recomputable=True)


@pytest.mark.parametrize(
    ("residency", "code"),
    [
        (Residency(actions=(back(1, 0), *out(2, 0))), Code.COPY_IN_WITHOUT_COPY),
        (Residency(actions=out(0, 0)), Code.READ_NOT_IN_HBM),
        (
            Residency(actions=(*out(0, 0), back(2, 0), Action(op=4, when="after", kind="release", storage=0))),
            Code.READ_OF_DROPPED,  # written at 3: the copy made after 0 is stale and gone
        ),
        (
            Residency(actions=(*out(0, 0), back(2, 0)), recompute=(Recompute(storage=0, before_op=2, ops=(0,)),)),
            Code.RECOMPUTE_AND_SWAP,
        ),
    ],
)
def test_c17_wrong_order_is_refused_by_name(residency: Residency, code: Code) -> None:
    plan = Plan(residency=residency)
    assert code in {v.code for v in validate(ORDERED, plan)}
    with pytest.raises(IllegalPlan) as refused:
        replay(ORDERED, plan)
    assert refused.value.violation.code == code


def test_c17_a_copy_back_waits_for_the_copy_out_and_its_use_for_the_copy_back() -> None:
    profile = step({0: ([], [0]), 3: ([0], [])}, [512 * MIB], 4, us=10)
    timeline = replay(profile, Plan(residency=Residency(actions=(*out(0, 0), back(1, 0)))))
    leave, again = timeline.copies
    assert again.start >= leave.end and timeline.start[3] >= again.end


def test_c18_data_dependent_operators_are_never_recomputed_and_shared_inputs_stay() -> None:
    """Storage 0 (a rotary table) feeds two layers; operator 1 (routing) may not run again."""
    operators = (
        Operator(writes=(0,), duration_us=1, recomputable=False),
        Operator(reads=(0,), writes=(1,), duration_us=1, recomputable=False),
        Operator(reads=(0,), writes=(2,), duration_us=1),
        Operator(writes=(3,), duration_us=1),
        Operator(reads=(3,), duration_us=1),
        Operator(reads=(2,), duration_us=1),
        Operator(reads=(1, 0), duration_us=1),
    )
    profile = Profile(operators=operators, storages=tuple(Storage(id=i, bytes=10) for i in range(4)))
    plan = planned(profile, 30)
    assert [(r.storage, r.ops) for r in plan.residency.recompute] == [(2, (2,))]
    assert 0 not in {action.storage for action in plan.residency.actions}


def test_c19_an_empty_plan_where_nothing_helps() -> None:
    plan = planned(TRAP, 800 * MIB)
    assert plan.residency.empty and plan.bound is not None and plan.bound.status == "optimal"
    assert "note" in plan.explain[0]


@pytest.mark.parametrize("seed", range(20))
def test_c19_never_slower_than_a_baseline(seed: int) -> None:
    profile, hbm_bytes = small_case(seed)
    answer = solve(profile, Request(Budget(hbm_bytes=hbm_bytes)))
    if isinstance(answer, Plan):
        assert answer.predicted is not None
        rivals = answer.provenance["rivals_step_us"].values()
        assert all(answer.predicted.step_us <= rival for rival in rivals if isinstance(rival, float))
