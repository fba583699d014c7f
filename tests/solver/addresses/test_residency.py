"""The buffers of a plan: their load is the replayed peak, and a storage that leaves and returns is two."""

from __future__ import annotations

import pytest

from hyperopt.plan import Action, Budget, Plan, Residency
from hyperopt.replay import replay
from solver.addresses import allocate, buffers_of, violations
from tests.samples import MIB, random_profile, worked_example


@pytest.mark.parametrize("seed", range(20))
def test_the_load_is_the_replayed_peak(seed: int) -> None:
    profile = random_profile(seed)
    buffers = buffers_of(profile)
    found = allocate(buffers, time_limit_s=0.2, seed=seed)
    assert violations(buffers, found.offsets) == []
    assert found.lower_bound_bytes == replay(profile).peak_bytes - profile.device.base_bytes


def test_a_storage_that_returns_has_two_stays() -> None:
    actions = tuple(
        Action(op=op, when=when, kind=kind, storage=1)  # type: ignore[arg-type]
        for op, when, kind in [(2, "after", "copy_out"), (2, "after", "release"), (6, "before", "copy_in")]
    )
    plan = Plan(budget=Budget(hbm_bytes=640 * MIB), residency=Residency(actions=actions))
    buffers = buffers_of(worked_example(), plan)
    assert sorted(b.id for b in buffers) == ["0/0", "1/0", "1/1", "2/0"]
    found = allocate(buffers, 640 * MIB)
    assert found.fits
    assert found.peak_bytes == replay(worked_example(), plan).peak_bytes == 640 * MIB
