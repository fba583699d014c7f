"""The solver's process: it answers, stops when told to, and cannot take more memory than it was given."""

from __future__ import annotations

import pytest

from hyperopt.documents import canonical
from hyperopt.plan import Budget, Plan
from hyperopt.profile import Device, Links, Operator, Profile, Storage
from solver.child import SolveFailed, solve_in_child
from solver.request import Infeasible, Request


def long_step(count: int) -> Profile:
    """`count` storages written one after the other and read in reverse, over a slow link: hard to plan."""
    writes = [Operator(writes=(i,), duration_us=10.0 + i % 7, recomputable=False) for i in range(count)]
    reads = [Operator(reads=(i,), duration_us=20.0 + i % 5, recomputable=False) for i in reversed(range(count))]
    storages = tuple(Storage(id=i, bytes=1000 + 37 * (i % 11)) for i in range(count))
    links = Links(d2h_bytes_per_s=50_000_000, h2d_bytes_per_s=50_000_000)
    return Profile(operators=(*writes, *reads), storages=storages, device=Device(host_bytes=1 << 30, links=links))


def budget_of(profile: Profile, share: float) -> Budget:
    return Budget(hbm_bytes=int(share * sum(s.bytes for s in profile.storages)))


def test_answers_as_a_solve_in_this_process_does() -> None:
    profile = long_step(20)
    request = Request(budget_of(profile, 0.6), time_limit_s=None, work_limit=50)
    seen: list[dict[str, object]] = []
    answer = solve_in_child(
        canonical(profile), request, memory_limit_bytes=None, cancelled=lambda: False, progress=seen.append
    )
    assert isinstance(answer, Plan) and answer.predicted is not None
    assert seen and seen[-1]["step_us"] == answer.predicted.step_us


def test_infeasible_comes_back_whole() -> None:
    profile = long_step(3)
    answer = solve_in_child(
        canonical(profile),
        Request(Budget(hbm_bytes=10)),
        memory_limit_bytes=None,
        cancelled=lambda: False,
        progress=lambda _: None,
    )
    assert isinstance(answer, Infeasible) and answer.lower_bound_bytes > 10


def test_cancelling_gives_the_best_plan_so_far() -> None:
    profile = long_step(400)
    found: list[dict[str, object]] = []
    answer = solve_in_child(
        canonical(profile),
        Request(budget_of(profile, 0.5), time_limit_s=None),
        memory_limit_bytes=None,
        cancelled=lambda: bool(found),
        progress=found.append,
    )
    assert isinstance(answer, Plan) and answer.bound is not None and answer.bound.stop_reason == "cancelled"


def test_a_solve_stays_within_its_memory() -> None:
    with pytest.raises(SolveFailed, match=r"memory|ended with code"):
        solve_in_child(
            canonical(long_step(30_000)),  # a small one fits in what Python already holds
            Request(Budget(hbm_bytes=10_000)),
            memory_limit_bytes=1 << 20,
            cancelled=lambda: False,
            progress=lambda _: None,
        )
