from __future__ import annotations

import pytest

from profiler.read.imbalance import imbalance, told
from profiler.read.manifest import Rank
from profiler.read.mindspore.mindinsight import stage_of


def rank(number: int, computing_us: float | None, stage: int | None = None) -> Rank:
    return Rank(rank=number, status="refused", kind="made up", computing_us=computing_us, stage=stage)


def test_stages_are_compared_by_the_means_of_their_ranks() -> None:
    found = imbalance([rank(0, 231.3e3, 0), rank(1, 230.9e3, 0), rank(2, 400.4e3, 1), rank(3, 401.1e3, 1)])
    assert found is not None and found.of == "stages"
    assert (found.slowest, found.slowest_ranks, found.fastest, found.fastest_ranks) == (1, (2, 3), 0, (0, 1))
    assert found.ratio == pytest.approx(1.734, abs=1e-3)
    assert told(found) == (
        "stage 1 (ranks 2, 3) computes 1.73 times as long as stage 0 (ranks 0, 1): 400.8 ms against 231.1 ms a step"
    )


def test_ranks_are_compared_where_stages_are_not_known() -> None:
    found = imbalance([rank(0, 14e3), rank(2, 123e3), rank(1, None), rank(3, 0.0)])
    assert found is not None
    assert told(found) == "rank 2 computes 8.79 times as long as rank 0: 123.0 ms against 14.0 ms a step"


def test_one_stage_is_compared_by_its_ranks() -> None:
    found = imbalance([rank(0, 10.0, 0), rank(1, 20.0, 0)])
    assert found is not None and (found.of, found.slowest) == ("ranks", 1)


def test_noise_is_not_told_and_nothing_is_compared_with_itself() -> None:
    equal = imbalance([rank(0, 100.0), rank(1, 109.0)])
    assert equal is not None and told(equal) is None
    assert imbalance([rank(0, 100.0), rank(1, None)]) is None
    assert imbalance([]) is None


def test_many_ranks_are_not_all_listed() -> None:
    found = imbalance([rank(n, 10.0 if n < 20 else 20.0, n // 20) for n in range(40)])
    assert found is not None and "ranks 20, 21, 22, 23, 24, 25, 26, 27, ..." in str(told(found))


@pytest.mark.parametrize(
    ("number", "ranks", "stages", "stage"),
    [(0, 4, 2, 0), (1, 4, 2, 0), (2, 4, 2, 1), (3, 4, 2, 1), (3, 4, 3, None), (4, 4, 2, None), (0, None, 2, None)],
)
def test_stages_hold_consecutive_ranks(number: int, ranks: int | None, stages: int | None, stage: int | None) -> None:
    assert stage_of(number, ranks, stages) == stage
