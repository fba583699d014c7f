"""Ranks instead of means: is a sample beyond a limit, by how much, and between which bounds?

Everything is judged by the order of the values, never by their size alone: one wild value is one rank, whether it is
5 % or 500 % off, and none is thrown away.

    pairs       signed ranks (Wilcoxon 1945): of differences, all tested against a limit
    two groups  rank sum (Mann and Whitney 1947): of values that have no partner

Both come with the estimate that belongs to the test (Hodges and Lehmann 1963): the median of all pairwise means, or of
all differences between the groups; and with the bounds that say the same as the test: the lower one is above the limit
exactly when the test says so at that level (but for ties, where the bounds are the more careful of the two).
Source: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed. 2014, chapters 3 and 4.

scipy is imported where it is used: it takes longer to load than most commands take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXACT_PAIRS = 50
"""Up to so many values the distribution of the statistic is counted; above, the normal one is within rounding of it."""

EXACT_TIED = 13
"""The same where values tie: every sign of every value is tried."""

MOST_VALUES = 2000
"""Above, the pairwise means would fill the memory; the medians of blocks say the same."""


@dataclass(frozen=True)
class Estimate:
    """`center`: Hodges-Lehmann; `low`, `high`: one-sided bounds, each at the level (minus and plus infinity where so
    few values allow none); `p`: of the test that the center is above the limit."""

    center: float
    low: float
    high: float
    p: float


def of_pairs(differences: Sequence[float] | Floats, limit: float, level: float) -> Estimate:
    """The center of symmetric `differences` (any unit) against `limit`: one-sided Wilcoxon signed-rank.

    Raises ValueError without any value, or with more than MOST_VALUES.
    """
    from scipy.stats import norm

    d = _sample(differences)
    n = len(d)
    means = np.sort((d[:, None] + d[None, :])[np.triu_indices(n)] / 2)
    if n <= EXACT_PAIRS:
        cut = int(np.searchsorted(np.cumsum(signed_rank_pmf(n)), level, side="right"))
    else:
        middle, spread = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        cut = max(0, math.floor(middle - 0.5 + float(norm.ppf(level)) * spread) + 1)
    return Estimate(float(np.median(means)), *_bounds(means, cut), _signed_rank_p(d - limit))


def of_groups(
    before: Sequence[float] | Floats, after: Sequence[float] | Floats, limit: float, level: float
) -> Estimate:
    """How much higher `after` lies than `before`, against `limit`: one-sided Mann-Whitney rank sum.

    Raises ValueError where one is empty, or has more than MOST_VALUES.
    """
    from scipy.stats import mannwhitneyu

    a, b = _sample(before), _sample(after)
    differences = np.sort((b[:, None] - a[None, :]).ravel())
    tied = len(np.unique(np.concatenate([a + limit, b]))) < len(a) + len(b)
    exact = not tied and len(a) + len(b) <= EXACT_PAIRS
    method = "exact" if exact else "asymptotic"
    if tied and math.comb(len(a) + len(b), len(a)) <= 20_000:
        from scipy.stats import PermutationMethod

        method = PermutationMethod(n_resamples=20_000)
    p = float(mannwhitneyu(b, a + limit, alternative="greater", method=method).pvalue)
    cut = _rank_sum_cut(len(a), len(b), level)
    return Estimate(float(np.median(differences)), *_bounds(differences, cut), p)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values: the chance that any of the tests that reject is wrong stays below the level."""
    adjusted = [0.0] * len(ps)
    worst = 0.0
    for i, at in enumerate(sorted(range(len(ps)), key=lambda at: ps[at])):
        worst = max(worst, min(1.0, (len(ps) - i) * ps[at]))
        adjusted[at] = worst
    return adjusted


def spread(values: Sequence[float] | Floats) -> float:
    """Standard deviation as the median of absolute differences to the median shows it (normal values: unbiased)."""
    d = np.asarray(values, dtype=np.float64)
    return float(np.median(np.abs(d - np.median(d)))) / 0.6744897501960817


def least_pairs(level: float) -> int:
    """Fewer pairs than this cannot show anything at `level`, however far they are off: all n signs agree by chance
    once in 2^n."""
    return math.ceil(-math.log2(level))


def least_jobs(level: float) -> int:
    """The same for two groups of n: one order of C(2n, n)."""
    n = 1
    while math.comb(2 * n, n) * level < 1:
        n += 1
    return n


def signed_rank_pmf(n: int) -> Floats:
    """Chances of the sums 0 .. n(n+1)/2 of the ranks whose sign is positive, where each is by a fair coin."""
    chance = np.ones(1)
    for rank in range(1, n + 1):
        chance = np.concatenate([chance, np.zeros(rank)]) + np.concatenate([np.zeros(rank), chance])
        chance /= 2
    return chance


def _sample(values: Sequence[float] | Floats) -> Floats:
    d = np.asarray(values, dtype=np.float64)
    if not 0 < len(d) <= MOST_VALUES:
        raise ValueError(f"{len(d)} values: between 1 and {MOST_VALUES} can be ranked")
    return d


def _signed_rank_p(d: Floats) -> float:
    """Zeros keep their rank and count for neither side (Pratt 1959)."""
    from scipy.stats import PermutationMethod, wilcoxon

    if not d.any():
        return 1.0
    size = np.abs(d)
    if len(np.unique(size)) == len(d) and size.all():
        method = "exact" if len(d) <= EXACT_PAIRS else "asymptotic"
        return float(wilcoxon(d, alternative="greater", method=method, correction=True).pvalue)
    if len(d) <= EXACT_TIED:
        every = PermutationMethod(n_resamples=2**EXACT_TIED)
        return float(wilcoxon(d, alternative="greater", zero_method="pratt", method=every).pvalue)
    tied = wilcoxon(d, alternative="greater", zero_method="pratt", method="asymptotic", correction=True)
    return float(tied.pvalue)


def _rank_sum_cut(a: int, b: int, level: float) -> int:
    """How many of the a x b differences the lower bound leaves below it, plus one; 0: no bound at this level."""
    if a + b > EXACT_PAIRS:
        from scipy.stats import norm

        middle, spread = a * b / 2, math.sqrt(a * b * (a + b + 1) / 12)
        return max(0, math.floor(middle - 0.5 + float(norm.ppf(level)) * spread) + 1)
    # ways[k][u]: of choosing k of the values looked at so far with statistic u.
    ways = np.zeros((a + 1, a * b + 1))
    ways[0, 0] = 1
    for seen in range(1, a + b + 1):
        for k in range(min(a, seen), 0, -1):
            shift = seen - k  # values of the other group below this one
            if shift <= b:
                ways[k, shift:] += ways[k - 1, : a * b + 1 - shift]
    chance = np.cumsum(ways[a]) / math.comb(a + b, a)
    return int(np.searchsorted(chance, level, side="right"))


def _bounds(ordered: Floats, cut: int) -> tuple[float, float]:
    """The values that leave cut - 1 outside at either end: the statistic is below `cut` with at most the level."""
    if cut == 0:
        return -math.inf, math.inf
    return float(ordered[cut - 1]), float(ordered[-cut])
