"""Little steps beyond the exact search: plans that the search for large steps has no words for are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hyperopt.plan import Budget, Plan
from hyperopt.profile import Device, Links, Operator, Profile, Storage, Tier
from hyperopt.replay import Clock, replay
from hyperopt.validate import validate
from solver import Infeasible, Request, solve
from solver.residency import small
from solver.residency import solve as solving
from solver.residency.exact import CHECK_EVERY, TooLarge, best_plan, better_plans
from solver.residency.incumbent import Incumbent
from solver.residency.label import Label, Place, thinned
from solver.residency.problem import Problem
from solver.residency.small import NEVER_NS, is_small, options_of
from solver.stop import Cancelled, Stop
from tests.generators import profiles

Accesses = list[tuple[tuple[int, ...], tuple[int, ...]]]


def padded(accesses: Accesses, sizes: dict[int, int], workspace: dict[int, int], start: tuple[int, ...]) -> Profile:
    """Operators of 1 us, and eight more that touch nothing: more than the exact search is tried with."""
    operators = [
        Operator(reads=r, writes=w, duration_us=1.0, workspace_bytes=workspace.get(k, 0))
        for k, (r, w) in enumerate([*accesses, *[((), ())] * 8])
    ]
    storages = tuple(Storage(id=i, bytes=size, resident_at_start=i in start) for i, size in sizes.items())
    tier = Tier(name="host", bytes=4, d2h_bytes_per_s=1e7, h2d_bytes_per_s=1e7)
    return Profile(operators=tuple(operators), storages=storages, device=Device(links=Links(tiers=(tier,))))


def test_a_rerun_before_an_overwrite_of_what_was_dropped() -> None:
    """0 (8 bytes) is updated by 2 and dropped there; 3 needs 12 bytes of 18. 5 overwrites 0 without reading it, so that
    any of its versions will do: 0 is made again by operator 0 alone."""
    accesses: Accesses = [((), (0,)), ((0,), (1,)), ((0,), (0,)), ((), ()), ((1,), ()), ((), (0,)), ((0,), (2,))]
    profile = padded(accesses, {0: 8, 1: 2, 2: 1}, {3: 12}, ())
    answer = solve(profile, Request(Budget(hbm_bytes=18), time_limit_s=None))
    assert isinstance(answer, Plan) and validate(profile, answer) == []


def test_a_chain_through_an_update_in_place() -> None:
    """1 (8 bytes) is made from the first content of 0, which 2 updates: to make it again, 0 is made from its start."""
    accesses: Accesses = [
        ((), (0,)), ((0,), (1,)), ((0,), (0,)), ((), ()), ((1,), ()), ((0,), (2,)), ((), (1,)), ((1, 2), ()),
    ]  # fmt: skip
    profile = padded(accesses, {0: 2, 1: 8, 2: 3}, {3: 12}, (0,))
    answer = solve(profile, Request(Budget(hbm_bytes=19), time_limit_s=None))
    assert isinstance(answer, Plan) and validate(profile, answer) == []


@settings(max_examples=40)
@given(profiles(max_operators=6, max_storages=3), st.sampled_from([0.6, 0.8]), st.sampled_from([2, 16]))
def test_with_few_labels_it_finds_plans_and_none_better_than_the_best(
    profile: Profile, part: float, width: int
) -> None:
    problem = Problem(profile, Budget(hbm_bytes=int(replay(profile).static_peak_bytes * part)))
    assume(is_small(problem, options_of(problem)) and profile.adapter.recompute == "operator")
    try:
        best = best_plan(problem, None, below_ns=NEVER_NS, max_labels=20_000)
    except TooLarge:
        assume(False)
    for residency, step_ns in better_plans(problem, None, below_ns=NEVER_NS, max_labels=200_000, width=width):
        plan = Plan(budget=problem.budget, residency=residency)
        assert best is not None and best[1] <= step_ns
        assert validate(profile, plan) == [] and replay(profile, plan).step_ns == step_ns


def test_it_keeps_to_a_limit_of_work_and_is_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "SMALL_OPERATORS", 0)
    accesses: Accesses = [((), (0,)), ((0,), (1,)), ((0,), (0,)), ((), ()), ((1,), ()), ((), (0,)), ((0,), (2,))]
    profile = padded(accesses, {0: 8, 1: 2, 2: 1}, {3: 12}, ())
    for limit in (50, 6_000):
        asked = Request(Budget(hbm_bytes=18), time_limit_s=None, work_limit=limit)
        answer = solve(profile, asked)
        again = solve(profile, asked)
        assert msgspec.json.encode(again) == msgspec.json.encode(answer)
        if isinstance(answer, Infeasible):
            assert not answer.proven


def nowhere(accesses: Accesses, workspace: int) -> Profile:
    """What is large stays: nothing may leave, and nothing can be made again."""
    operators = [
        Operator(reads=r, writes=w, duration_us=1.0, workspace_bytes=workspace, recomputable=False) for r, w in accesses
    ]
    storages = tuple(Storage(id=i, bytes=10, offloadable=False) for i in range(3))
    return Profile(operators=tuple(operators), storages=storages)


def test_below_the_proven_least_nothing_is_sifted(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = nowhere([((), (0,)), ((0,), (1,)), ((1,), (2,)), ((0, 2), ())] * 4, 5)
    monkeypatch.setattr(solving, "sift", lambda *_: pytest.fail("sifted") if _[2] else ())
    answer = solve(profile, Request(Budget(hbm_bytes=12), time_limit_s=None))
    assert isinstance(answer, Infeasible) and answer.proven


def test_without_a_limit_it_ends_by_itself_and_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five storages in two tiers over 24 operators: far more than can be tried; 1,000 labels each time here."""
    monkeypatch.setattr(small, "MAX_LABELS", 1_000)
    accesses: Accesses = [
        ((0, 1), (2,)), ((1, 2), (3,)), ((3,), (4,)), ((0, 4), ()), ((1, 2), ()), ((3, 4), (0,)),
    ]  # fmt: skip
    operators = tuple(Operator(reads=r, writes=w, duration_us=5.0) for r, w in accesses * 4)
    storages = tuple(
        Storage(id=i, bytes=size, resident_at_start=i < 2, resident_at_end=i < 2)
        for i, size in enumerate((9, 7, 8, 11, 10))
    )
    tiers = tuple(Tier(name=name, bytes=12, d2h_bytes_per_s=1e6, h2d_bytes_per_s=2e6) for name in ("host", "pool"))
    profile = Profile(operators=operators, storages=storages, device=Device(links=Links(tiers=tiers)))
    problem = Problem(profile, Budget(hbm_bytes=30))
    incumbent = Incumbent(problem, Stop(Cancelled(lambda: False)), 0)
    left = small.sift(problem, incumbent, small.WIDTHS, 0.2)
    assert left and incumbent.stop.work <= 1_000 + 2 * CHECK_EVERY
    assert incumbent.bound_ns == 0  # whatever it finds proves nothing


def test_cancelled_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    accesses: Accesses = [((), (0,)), ((0,), (1,)), ((0,), (0,)), ((), ()), ((1,), ()), ((), (0,)), ((0,), (2,))]
    problem = Problem(padded(accesses, {0: 8, 1: 2, 2: 1}, {3: 12}, ()), Budget(hbm_bytes=18))
    incumbent = Incumbent(problem, Stop(Cancelled(lambda: True)), 0)
    assert small.sift(problem, incumbent, small.WIDTHS, 1.0) == small.WIDTHS and incumbent.best is None


def test_thinned_keeps_the_earliest_and_the_emptiest_and_different_places_first() -> None:
    def label(at: int, taken: int, place: int) -> Label:
        clock = SimpleNamespace(stream_free=[at])
        return Label([Place(True, "", place, 0)], taken, cast(Clock, clock))

    labels = [label(at, 100 - at, at // 4) for at in range(40)]
    kept = thinned(labels, 6)
    assert len(kept) == 6 and kept == thinned(labels, 6)
    assert labels[0] in kept and labels[-1] in kept
    assert len({tuple(one.places) for one in kept}) == 6
    assert thinned(labels, 40) == labels
    assert len(thinned([label(1, 1, 0) for _ in range(9)], 4)) == 4  # all in one place
