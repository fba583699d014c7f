"""The statistics, against counting and against scipy."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from hyperopt.gate.power import pairs_needed
from hyperopt.gate.ranks import (
    MOST_VALUES,
    holm,
    least_jobs,
    least_pairs,
    of_groups,
    of_pairs,
    signed_rank_pmf,
    spread,
)

LEVEL = 0.01


@pytest.mark.parametrize("n", range(1, 9))
def test_the_signed_rank_distribution_is_that_of_all_signs(n: int) -> None:
    sums = [sum(rank for rank, sign in enumerate(signs, 1) if sign) for signs in product((0, 1), repeat=n)]
    assert signed_rank_pmf(n) == pytest.approx(np.bincount(sums) / 2**n)


@pytest.mark.parametrize("seed", range(40))
def test_the_lower_bound_says_what_the_test_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    limit = float(rng.normal(0, 0.01))
    for n in (1, 6, 7, 10, 20, 60):
        pairs = rng.normal(0.012, 0.02, n)
        found = of_pairs(pairs, limit, LEVEL)
        assert (found.low > limit) == (found.p <= LEVEL) and found.low <= found.center <= found.high
        before, after = rng.normal(0, 0.02, n), rng.normal(0.02, 0.02, rng.integers(1, 12))
        found = of_groups(before, after, limit, LEVEL)
        assert (found.low > limit) == (found.p <= LEVEL)


@pytest.mark.parametrize("seed", range(10))
def test_ties_and_zeros_are_counted_exactly(seed: int) -> None:
    """Against all signs of all values: zeros have a rank and no sign (Pratt)."""
    from scipy.stats import rankdata

    d = np.random.default_rng(seed).integers(-2, 4, 8).astype(float)
    ranks = rankdata(np.abs(d))
    seen = ranks[d > 0].sum()
    signed = ranks[d != 0]
    sums = [
        sum(r for r, sign in zip(signed, signs, strict=True) if sign) for signs in product((0, 1), repeat=len(signed))
    ]
    assert of_pairs(d, 0.0, LEVEL).p == pytest.approx(np.mean([total >= seen for total in sums]))


@pytest.mark.parametrize("seed", range(10))
def test_tied_groups_are_counted_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.integers(0, 4, 5).astype(float), rng.integers(1, 5, 4).astype(float)
    both = np.concatenate([before, after])

    def statistic(chosen: tuple[int, ...]) -> float:
        others = np.delete(both, chosen)
        return float(sum((value > others).sum() + (value == others).sum() / 2 for value in both[list(chosen)]))

    seen = statistic((5, 6, 7, 8))
    chance = np.mean([statistic(chosen) >= seen for chosen in combinations(range(9), 4)])
    assert of_groups(before, after, 0.0, LEVEL).p == pytest.approx(chance)


def test_a_wild_value_is_one_rank() -> None:
    pairs = [0.01, 0.012, 0.008, 0.011, 0.009, 0.0105, 0.0095, 0.0101]
    for wild in (0.02, 0.5, 50.0):
        found = of_pairs([*pairs, wild], 0.0, LEVEL)
        assert found.center == pytest.approx(0.01, abs=0.001) and found.p == 2.0**-9
        # 33 of the 512 sets of ranks sum up to 9 or less.
        assert of_pairs([*pairs, -wild], 0.0, LEVEL).p == pytest.approx(33 / 2**9)


def test_few_values_allow_no_bound_and_no_value_no_answer() -> None:
    found = of_pairs([0.5] * (least_pairs(LEVEL) - 1), 0.0, LEVEL)
    assert (found.low, found.high) == (-math.inf, math.inf) and found.p > LEVEL
    assert least_pairs(LEVEL) == 7 and least_jobs(LEVEL) == 5
    assert of_groups([1.0], [9.0], 0.0, LEVEL).low == -math.inf
    for none in ([], [0.0] * (MOST_VALUES + 1)):
        with pytest.raises(ValueError, match="ranked"):
            of_pairs(none, 0.0, LEVEL)


def test_equal_values_are_no_difference() -> None:
    found = of_pairs([0.0] * 10, 0.0, LEVEL)
    assert found.p == 1.0 and found.low == found.center == found.high == 0.0


def test_holm_adjusts_step_by_step() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_the_spread_is_the_standard_deviation_of_normal_values_and_blind_to_a_wild_one() -> None:
    values = np.random.default_rng(0).normal(5.0, 0.02, 4000)
    assert spread(values) == pytest.approx(0.02, rel=0.05)
    assert spread([*values[:100], 500.0]) == pytest.approx(spread(values[:100]), rel=0.1)


def test_pairs_needed_find_what_they_are_needed_for() -> None:
    """At run to run noise of 1 % ten pairs find the tolerance + 3 %; and in simulation they do."""
    beyond = math.log(1.08 / 1.05)
    assert pairs_needed(0.01 * math.sqrt(2), beyond, LEVEL, 0.99) == 10
    assert pairs_needed(0.0, beyond, LEVEL, 0.99) == least_pairs(LEVEL)
    assert pairs_needed(5.0, beyond, LEVEL, 0.99) is None
    rng = np.random.default_rng(0)
    for noise in (0.01, 0.03):
        n = pairs_needed(noise, beyond, LEVEL, 0.9)
        assert n is not None
        found = [of_pairs(rng.normal(beyond, noise, n), 0.0, LEVEL).p <= LEVEL for _ in range(300)]
        assert np.mean(found) >= 0.87
    more = [pairs_needed(noise, beyond, LEVEL, 0.99) or 9999 for noise in (0.01, 0.02, 0.04, 0.08, 0.16, 0.3)]
    assert more == sorted(more)
