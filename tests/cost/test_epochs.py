"""Profiles of one device, parted where it has changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hyperopt.cost.epochs import epochs
from hyperopt.cost.features import F64, Rows, rows_of
from hyperopt.cost.work import Table
from tests.cost.synthetic import device

TABLE = Table.load()
BASE = rows_of(device(1, 90), TABLE)


def run(seed: int, factor: float = 1.0, each: float = 0.03, whole: float = 0.01, only: slice = slice(None)) -> Rows:
    """The same signatures once more: the run off by `whole` (logarithm), each of them by `each`."""
    chance = np.random.default_rng(seed)
    off: F64 = np.exp(chance.normal(0, whole) + chance.normal(0, each, len(BASE.us)))
    chosen = np.zeros(len(BASE.us), bool)
    chosen[only] = True
    return replace(BASE, us=BASE.us * off * factor).only(chosen)


def test_runs_of_one_device_are_of_one_epoch() -> None:
    for seed in range(20):
        found = epochs([run(10 * seed + i) for i in range(5)], None)
        assert found.of == (0,) * 5 and not found.found


@pytest.mark.parametrize("factor", [0.5, 1.5, 2.0])
def test_what_is_older_than_a_contradiction_is_of_another_epoch(factor: float) -> None:
    found = epochs([run(1), run(2), run(3, factor), run(4, factor)], None)
    assert found.of == (1, 1, 0, 0)
    (one,) = found.found
    assert (one.place, one.signatures, one.family) == (1, len(BASE.us), "")
    assert one.factor == pytest.approx(factor, rel=0.1) and "times as long later, on 90 shared" in one.told()


def test_the_oldest_goes_with_what_contradicts_though_it_shares_nothing_with_the_newest() -> None:
    """It shares nothing, and what lies between says that the device has changed."""
    first, second = slice(0, 45), slice(45, 90)
    assert epochs([run(1, only=first), run(2, only=second), run(3, 2.0, only=second)], None).of == (1, 1, 0)
    assert epochs([run(1, only=second), run(2, only=first), run(3, 2.0, only=second)], None).of == (1, 0, 0)


def test_each_change_makes_an_epoch() -> None:
    assert epochs([run(1), run(2, 2.0), run(3, 3.0), run(4, 3.0)], None).of == (2, 1, 0, 0)


def test_scatter_without_a_common_factor_is_no_change() -> None:
    assert epochs([run(1, each=0.8), run(2, each=0.8)], None).of == (0, 0)
    assert epochs([run(1), run(2, 2.0, only=slice(0, 15))], None).of == (0, 0), "too few to say"


def test_one_family_may_change_alone() -> None:
    moved = np.where(BASE.families == "matmul", 2.0, 1.0)
    found = epochs([run(1), replace(run(2), us=run(2).us * moved)], None)
    assert found.of == (1, 0) and found.found[0].family == "matmul" and "signatures of matmul" in found.found[0].told()


def test_what_is_known_of_their_age_counts() -> None:
    assert epochs([run(1), run(2), run(3)], None, [2, 1, 0]).of == (2, 1, 0)
    assert epochs([run(1), run(2), run(3)], None, [1, 1, 0]).of == (1, 1, 0)
