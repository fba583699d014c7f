"""The exhaustive search tries what is easily forgotten: its answers are called proven."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from hyperopt.legality import OutOfMemory
from hyperopt.plan import Budget, Objective, Plan
from hyperopt.profile import Device, Links, Operator, Profile, Storage, Tier
from hyperopt.replay import replay
from hyperopt.validate import validate
from solver import Request, solve
from solver.residency import small
from solver.residency.exact import CHECK_EVERY
from solver.residency.rival import rival_plan
from solver.residency.rivals.checkmate import DidNotSolve
from solver.residency.rivals.registry import RIVALS


def test_a_copy_is_given_up_for_another_at_the_same_operator() -> None:
    """A tier of 10 bytes holds A (0: 8 bytes) or C (2: 10 bytes), and each has to be in it for a while: A for 1 and 2,
    C for 4 and 5, A again for 7 and 8. Only after operators 3 and 6 can they change places."""
    accesses: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((), (0,)), ((), (1,)), ((1,), ()), ((), (2,)), ((), (3,)), ((3,), ()), ((2,), ()), ((), (4,)), ((4,), ()),
        ((0,), ()),
    ]  # fmt: skip
    operators = tuple(Operator(reads=r, writes=w, duration_us=9.0, recomputable=False) for r, w in accesses)
    storages = tuple(Storage(id=i, bytes=size, offloadable=size <= 10) for i, size in enumerate((8, 13, 10, 12, 13)))
    tier = Tier(name="host", bytes=10, d2h_bytes_per_s=1e7, h2d_bytes_per_s=1e7)
    profile = Profile(operators=operators, storages=storages, device=Device(links=Links(tiers=(tier,))))
    answer = solve(profile, Request(Budget(hbm_bytes=20), time_limit_s=None))
    assert isinstance(answer, Plan) and validate(profile, answer) == []
    assert replay(profile, answer).step_ns == 94_400


def test_what_a_recompute_keeps_may_be_in_a_tier_meanwhile() -> None:
    """Made from 0 (4 bytes), which nobody else reads, 1 (10 bytes) is dropped for 2 (20 bytes) and made again: in 20
    bytes if 0 is in the tier meanwhile, where in the profile it is gone."""
    accesses: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((), (0,)), ((0,), (1,)), ((), (2,)), ((2,), ()), ((1,), ()),
    ]  # fmt: skip
    operators = tuple(
        Operator(reads=r, writes=w, duration_us=5.0, recomputable=k == 1) for k, (r, w) in enumerate(accesses)
    )
    storages = tuple(Storage(id=i, bytes=size, offloadable=i == 0) for i, size in enumerate((4, 10, 20)))
    tier = Tier(name="host", bytes=10, d2h_bytes_per_s=1e7, h2d_bytes_per_s=1e7)
    profile = Profile(operators=operators, storages=storages, device=Device(links=Links(tiers=(tier,))))
    answer = solve(profile, Request(Budget(hbm_bytes=20), time_limit_s=None))
    assert isinstance(answer, Plan) and validate(profile, answer) == []
    assert answer.bound is not None and answer.bound.status == "optimal"


def crowded() -> tuple[Profile, Budget]:
    """Six operators and five storages that may all leave, three of them made again: too much to try in a moment."""
    accesses: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((0, 1), (2,)), ((1, 2), (3,)), ((3,), (4,)), ((0, 4), ()), ((1, 2), ()), ((3, 4), (0,)),
    ]  # fmt: skip
    operators = tuple(Operator(reads=r, writes=w, duration_us=5.0 + k) for k, (r, w) in enumerate(accesses))
    storages = tuple(
        Storage(id=i, bytes=size, resident_at_start=i < 2, resident_at_end=i < 2)
        for i, size in enumerate((9, 7, 8, 11, 10))
    )
    tiers = tuple(Tier(name=name, bytes=100, d2h_bytes_per_s=1e6, h2d_bytes_per_s=2e6) for name in ("host", "pool"))
    profile = Profile(operators=operators, storages=storages, device=Device(links=Links(tiers=tiers)))
    return profile, Budget(hbm_bytes=31)


def rules(profile: Profile, budget: Budget) -> list[int]:
    """Step times (ns) of the rules of thumb that run within the budget."""
    found = []
    for name in RIVALS:
        with suppress(OutOfMemory, DidNotSolve):
            found.append(replay(profile, rival_plan(profile, name, budget)).step_ns)
    return found


@pytest.mark.parametrize("objective", ["min_step_time", "min_peak", "pareto"])
def test_the_exact_search_keeps_to_a_limit_of_work(objective: Objective) -> None:
    profile, budget = crowded()
    for limit in (100, 1000):
        asked = Request(budget, objective, time_limit_s=None, work_limit=limit, points=1)
        answer = solve(profile, asked)
        assert isinstance(answer, Plan) and answer.provenance["work"] < limit + 2 * CHECK_EVERY
        assert msgspec.json.encode(solve(profile, asked)) == msgspec.json.encode(answer)


@pytest.mark.parametrize("asks", [40, 100, 200])
def test_cancelled_in_its_midst_it_gives_the_best_so_far(asks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, budget = crowded()
    monkeypatch.setattr(small, "EXACT_SHARE", 1.0)
    asked = [0]

    def cancelled() -> bool:
        asked[0] += 1
        return asked[0] > asks

    answer = solve(profile, Request(budget, time_limit_s=None), cancelled=cancelled)
    assert isinstance(answer, Plan) and answer.bound is not None and answer.bound.stop_reason == "cancelled"
    assert asked[0] < asks + 20
    assert replay(profile, answer).step_ns <= min(rules(profile, budget))


def test_out_of_time_it_is_no_slower_than_any_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules are asked before the exact search, whatever that finds in the time it has."""
    monkeypatch.setattr(small, "MAX_LABELS", 10)
    profile, budget = crowded()
    answer = solve(profile, Request(budget, time_limit_s=None, work_limit=40))
    assert isinstance(answer, Plan) and replay(profile, answer).step_ns <= min(rules(profile, budget))
