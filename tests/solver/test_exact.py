"""The exhaustive search tries what is easily forgotten: its answers are called proven."""

from __future__ import annotations

from hyperopt.plan import Budget, Plan
from hyperopt.profile import Device, Links, Operator, Profile, Storage, Tier
from hyperopt.replay import replay
from hyperopt.validate import validate
from solver import Request, solve


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
