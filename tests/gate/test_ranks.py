"""The statistics, against counting and against scipy."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from hyperopt.gate.power import pairs_needed
from hyperopt.gate.ranks import (
    MOST_VALUES,
    holm,
    holm_levels,
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
def test_without_ties_it_is_scipys_exact_test(seed: int) -> None:
    from scipy.stats import mannwhitneyu, wilcoxon

    rng = np.random.default_rng(seed)
    for n in (3, 10, 21):
        d, more = rng.normal(0.3, 1, n), rng.normal(0.5, 1, n + 2)
        expected = wilcoxon(d - 0.1, alternative="greater", method="exact").pvalue
        assert of_pairs(d, 0.1, LEVEL).p == pytest.approx(expected)
        expected = mannwhitneyu(more, d + 0.1, alternative="greater", method="exact").pvalue
        assert of_groups(d, more, 0.1, LEVEL).p == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
def test_ties_are_told_apart_against_the_claim(seed: int) -> None:
    """However a finer clock would have told tied values apart: it would have been no less sure. At the limit too,
    whatever rounding does to it."""
    rng = np.random.default_rng(seed)
    before, after = rng.integers(18, 23, 9) / 10, rng.integers(19, 25, 9) / 10
    limit = math.log(1.05)
    d = np.log(after) - np.log(before)
    found, groups = of_pairs(d, limit, LEVEL), of_groups(np.log(before), np.log(after), limit, LEVEL)
    assert (found.low > limit) == (found.p <= LEVEL) and (groups.low > limit) == (groups.p <= LEVEL)
    for _ in range(20):
        finer = rng.uniform(-1e-9, 1e-9, (2, 9))
        assert of_pairs(d + finer[0], limit, LEVEL).p <= found.p
        assert of_groups(np.log(before) + finer[0], np.log(after) + finer[1], limit, LEVEL).p <= groups.p


@pytest.mark.parametrize("count", [7, 10, 20, 60])
@pytest.mark.parametrize("base", [100.0, 40.0, 0.02, 0.3, 1e7])
def test_exactly_the_limit_is_on_neither_side(count: int, base: float) -> None:
    """The difference of two logarithms is one off in the seventeenth digit: no sign of anything."""
    limit = math.log1p(0.05)
    d = np.full(count, math.log(base * 1.05) - math.log(base))
    found = of_pairs(d, limit, LEVEL)
    assert found.p == 1.0 and found.low == limit == found.high
    assert of_pairs(-d, -limit, LEVEL).p == 1.0
    groups = of_groups(np.full(count, math.log(base)), np.full(count, math.log(base * 1.05)), limit, LEVEL)
    assert groups.p == 1.0 and groups.low == limit == groups.high


def test_slack_moves_both_bounds_and_the_test() -> None:
    d = np.random.default_rng(0).normal(0.1, 0.01, 10)
    exact, wide = of_pairs(d, 0.05, LEVEL), of_pairs(d, 0.05, LEVEL, slack=0.04)
    assert (wide.low, wide.high) == pytest.approx((exact.low - 0.04, exact.high + 0.04)) and wide.p >= exact.p
    blind = of_pairs(d, 0.05, LEVEL, slack=math.inf)
    assert (blind.low, blind.high, blind.p) == (-math.inf, math.inf, 1.0)
    for slack in (0.02, 0.04, 0.045, 0.05, 0.06):
        found = of_pairs(d, 0.05, LEVEL, slack)
        assert (found.low > 0.05) == (found.p <= LEVEL)


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


@pytest.mark.parametrize("seed", range(20))
def test_holms_levels_reject_what_his_p_values_do(seed: int) -> None:
    ps = [float(p) for p in np.random.default_rng(seed).choice([0.001, 0.004, 0.01, 0.02, 0.6], 5)]
    rejected = [p <= at for p, at in zip(ps, holm_levels(ps, 0.01), strict=True)]
    assert rejected == [p <= 0.01 for p in holm(ps)]
    assert holm_levels([0.5], 0.01) == [0.01] and holm_levels([], 0.01) == []


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
