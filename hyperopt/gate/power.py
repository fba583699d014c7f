"""How many pairs are enough? Asked before measuring, and told where a verdict is inconclusive.

A slowdown that is `beyond` (log ratio) further than the tolerance must be found with a chance of `power`, by a
one-sided signed-rank test at `level`, with pairs whose log ratios scatter by `noise` (standard deviation)::

    noise of one run 1 %, tolerance 5 %, slowdown 8 %
    noise of a pair  1.41 %           beyond = log(1.08 / 1.05) = 2.82 %

The t-test's power has a closed form (non-central t). The signed-rank test needs at most 1/0.864 times its pairs,
whatever the distribution (Hodges and Lehmann 1956), and the exact bound on n from the level on top
(`ranks.least_pairs`).
"""

from __future__ import annotations

import math

from hyperopt.gate.ranks import least_pairs

WORST_EFFICIENCY = 0.864
"""Of the signed-rank test beside the t-test (Hodges and Lehmann 1956); 0.955 for normal noise."""

MOST_PAIRS = 2000


def pairs_needed(noise: float, beyond: float, level: float, power: float) -> int | None:
    """Pairs that find a shift of `beyond` with the chance `power`; None: more than MOST_PAIRS.

    `noise` and `beyond` are log ratios of one pair; `level` and `power` lie between 0 and 1.
    """
    least = least_pairs(level)
    if noise <= 0:
        return least
    if _power(MOST_PAIRS, noise, beyond, level) < power:
        return None
    low, high = least - 1, MOST_PAIRS
    while high - low > 1:
        middle = (low + high) // 2
        if _power(middle, noise, beyond, level) >= power:
            high = middle
        else:
            low = middle
    return high


def _power(n: int, noise: float, beyond: float, level: float) -> float:
    from scipy.stats import nct, t

    worth = n * WORST_EFFICIENCY
    if worth <= 1:
        return 0.0
    far = beyond / noise * math.sqrt(worth)
    if far > 30:  # certain, and the non-central t overflows
        return 1.0
    return float(nct.sf(t.isf(level, worth - 1), worth - 1, far))
