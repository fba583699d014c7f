"""Ranks instead of means: is a sample beyond a limit, by how much, and between which bounds?

Everything is judged by the order of the values, never by their size alone: one wild value is one rank, whether it is
5 % or 500 % off, and none is thrown away.

    pairs       signed ranks (Wilcoxon 1945): of differences, all tested against a limit
    two groups  rank sum (Mann and Whitney 1947): of values that have no partner

Both come with the estimate that belongs to the test (Hodges and Lehmann 1963): the median of all pairwise means, or of
all differences between the groups; and with the bounds that say the same as the test: the lower one is above the limit
exactly when the test says so at that level. Source: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods,
3rd ed. 2014, chapters 3 and 4.

Ties: what lies at the limit, to within the rounding of a logarithm, does not count as beyond it. Had tied values been
told apart by a finer measure, the statistic could only be higher, and its distribution would be the one that is counted
here: so the level holds for any ties and zeros, and test and bounds stay one (docs/why/gate.md has the other
treatments).

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

MOST_VALUES = 2000
"""Above, the pairwise means would fill the memory; the medians of blocks say the same."""

ROUNDING = 1e-12
"""Log ratios closer than this are equal: the logarithm of a measured value is that uncertain at worst."""


@dataclass(frozen=True)
class Estimate:
    """`center`: Hodges-Lehmann; `low`, `high`: one-sided bounds, each at the level (minus and plus infinity where so
    few values allow none); `p`: of the test that the center is above the limit (ties against it)."""

    center: float
    low: float
    high: float
    p: float


def of_pairs(differences: Sequence[float] | Floats, limit: float, level: float, slack: float = 0.0) -> Estimate:
    """The center of symmetric `differences` (any unit) against `limit`: one-sided Wilcoxon signed-rank.

    `slack`: by how much each difference may be off, whatever was measured: the bounds are that much further apart.
    Raises ValueError without any value, or with more than MOST_VALUES.
    """
    d = _sample(differences)
    n = len(d)
    means = np.sort((d[:, None] + d[None, :])[np.triu_indices(n)] / 2)
    if n <= EXACT_PAIRS:
        below = np.cumsum(signed_rank_pmf(n))
    else:
        below = _normal(n * (n + 1) // 2, math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    return _estimate(means, below, limit, level, slack)


def of_groups(
    before: Sequence[float] | Floats, after: Sequence[float] | Floats, limit: float, level: float, slack: float = 0.0
) -> Estimate:
    """How much higher `after` lies than `before`, against `limit`: one-sided Mann-Whitney rank sum.

    `slack`: as of pairs. Raises ValueError where one is empty, or has more than MOST_VALUES.
    """
    a, b = _sample(before), _sample(after)
    differences = np.sort((b[:, None] - a[None, :]).ravel())
    if len(a) + len(b) <= EXACT_PAIRS:
        below = np.cumsum(rank_sum_pmf(len(a), len(b)))
    else:
        below = _normal(len(a) * len(b), math.sqrt(len(a) * len(b) * (len(a) + len(b) + 1) / 12))
    return _estimate(differences, below, limit, level, slack)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values: the chance that any of the tests that reject is wrong stays below the level."""
    adjusted = [0.0] * len(ps)
    worst = 0.0
    for i, at in enumerate(sorted(range(len(ps)), key=lambda at: ps[at])):
        worst = max(worst, min(1.0, (len(ps) - i) * ps[at]))
        adjusted[at] = worst
    return adjusted


def holm_levels(ps: Sequence[float], level: float) -> list[float]:
    """The level that each test is held to in Holm's procedure: one rejects exactly where its own p is at most that.

    From the first that does not reject on, all are held to the level of that one.
    """
    levels = [level] * len(ps)
    order = sorted(range(len(ps)), key=lambda at: ps[at])
    left = len(ps)
    for i, at in enumerate(order):
        left = len(ps) - i if i == 0 or ps[order[i - 1]] * left <= level else left
        levels[at] = level / left
    return levels


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


def rank_sum_pmf(a: int, b: int) -> Floats:
    """Chances of the statistics 0 .. a b: of how many pairs (one of each group) the second group's value is higher."""
    # ways[k][u]: of choosing k of the values looked at so far with statistic u.
    ways = np.zeros((a + 1, a * b + 1))
    ways[0, 0] = 1
    for seen in range(1, a + b + 1):
        for k in range(min(a, seen), 0, -1):
            shift = seen - k  # values of the other group below this one
            if shift <= b:
                ways[k, shift:] += ways[k - 1, : a * b + 1 - shift]
    return np.asarray(ways[a] / math.comb(a + b, a), dtype=np.float64)


def _sample(values: Sequence[float] | Floats) -> Floats:
    d = np.asarray(values, dtype=np.float64)
    if not 0 < len(d) <= MOST_VALUES:
        raise ValueError(f"{len(d)} values: between 1 and {MOST_VALUES} can be ranked")
    return d


def _normal(most: int, deviation: float) -> Floats:
    """Chances of a statistic of at most 0 .. `most`, around their middle, by the normal distribution."""
    from scipy.special import ndtr

    return np.asarray(ndtr((np.arange(most + 1) + 0.5 - most / 2) / deviation), dtype=np.float64)


def _estimate(ordered: Floats, below: Floats, limit: float, level: float, slack: float) -> Estimate:
    """From the pairwise values in order, of which the statistic counts those above the limit, and `below`, the chances
    of at most 0, 1, ... of them. Test and bounds look at the same count, so they agree."""
    near = limit + np.array([-slack, 0.0, slack])
    for edge in near:  # what is at an edge is put there: a value is beyond it, or it is not
        ordered = np.where(np.abs(ordered - edge) <= ROUNDING, edge, ordered)
    not_above = int((ordered <= near[2]).sum())
    # The distribution is symmetric: as many above as there are is as likely as so few.
    p = min(1.0, float(below[not_above])) if not_above < len(ordered) else 1.0
    center = float(np.median(ordered))
    cut = int(np.searchsorted(below, level, side="right"))  # so many may be outside
    if cut == 0:
        return Estimate(center, -math.inf, math.inf, p)
    low, high = float(ordered[cut - 1]), float(ordered[-cut])
    return Estimate(center, _off(low, -slack, limit), _off(high, slack, limit), p)


def _off(bound: float, by: float, limit: float) -> float:
    """The bound moved; one that comes to lie at the limit lies there exactly."""
    moved = bound + by
    return limit if abs(moved - limit) <= ROUNDING else moved
