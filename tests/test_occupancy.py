from __future__ import annotations

import pytest

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.occupancy import occupancy
from hyperopt.plan import Action, Budget, Plan, Residency
from hyperopt.replay import replay
from tests.samples import MIB, random_profile, worked_example

OUT_AND_BACK = Plan(
    budget=Budget(hbm_bytes=640 * MIB),
    residency=Residency(
        actions=(
            Action(op=2, when="after", kind="copy_out", storage=1),
            Action(op=2, when="after", kind="release", storage=1),
            Action(op=6, when="before", kind="copy_in", storage=1),
        )
    ),
)


def test_the_level_of_the_worked_example() -> None:
    found = occupancy(worked_example())
    assert [(time // 10**6, used // MIB) for time, used in zip(found.times, found.used, strict=True)] == [
        (0, 512),
        (20, 640),
        (40, 768),
        (60, 640),
        (80, 512),
        (100, 0),
    ]
    assert found.peak_op == 4 and {block.storage for block in found.at_peak} == {0, 1, 2}


def test_under_a_plan_the_moved_storage_is_two_blocks() -> None:
    found = occupancy(worked_example(), OUT_AND_BACK)
    assert found.peak_bytes == 640 * MIB == max(found.used)


def test_the_limit_holds_as_in_the_replay() -> None:
    with pytest.raises(OutOfMemory):
        occupancy(worked_example(), None, 700 * MIB)
    with pytest.raises(IllegalPlan):
        occupancy(worked_example(), Plan(residency=Residency(actions=OUT_AND_BACK.residency.actions[2:])))


@pytest.mark.parametrize("seed", range(60))
def test_the_peak_is_the_replay_s_and_its_blocks_add_up_to_it(seed: int) -> None:
    profile = random_profile(seed, operators=20)
    found = occupancy(profile)
    assert found.peak_bytes == replay(profile).peak_bytes
    assert found.peak_bytes == found.base_bytes + sum(block.bytes for block in found.at_peak)
