"""Whether one of two errs less, as groups of samples say that were held out together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

USUAL_GROUPS = 4.0
"""As many groups as the usual scatter of groups counts for, in the standard error of a family's gain."""


def pooled(gains: Sequence[tuple[float, float]], groups: Sequence[int]) -> list[tuple[float, float]]:
    """Gains with their standard errors, each of so many groups, drawn towards their mean as far as they are alike
    (empirical Bayes; variance between them after DerSimonian and Laird, "Meta-analysis in clinical trials", 1986).
    Standard errors of few groups are drawn towards the usual scatter of groups: two that agree by chance are not sure.
    A gain of one group is what the others say."""
    count, gain, doubt = np.array(groups, float), np.array([g for g, _ in gains]), np.array([d for _, d in gains])
    many = count > 1
    if not many.any():
        return list(gains)
    scatter = np.where(many, doubt, 0.0) ** 2 * count
    usual = float((scatter * (count - 1)).sum() / (count - 1)[many].sum())
    variance = np.maximum((scatter * (count - 1) + usual * USUAL_GROUPS) / (count - 1 + USUAL_GROUPS) / count, 1e-12)
    own, its = gain[many], variance[many]
    weight = 1 / its
    apart = float((weight * (own - (weight * own).sum() / weight.sum()) ** 2).sum())
    freedom = float(weight.sum() - (weight**2).sum() / weight.sum())
    between = max(0.0, (apart - (len(own) - 1)) / freedom) if freedom > 0 else 0.0
    weight = 1 / (its + between)
    middle, unsure = float((weight * own).sum() / weight.sum()), float(1 / weight.sum())
    keep = np.where(many, between / (between + variance), 0.0)
    mean = keep * gain + (1 - keep) * middle
    error = np.sqrt(np.where(many, keep * variance, between) + (1 - keep) ** 2 * unsure)
    return list(zip(mean.tolist(), error.tolist(), strict=True))


def gain_of(lower: F64, groups: npt.NDArray[np.str_]) -> tuple[float, float]:
    """Mean over the groups of how much the error is lower, and the standard error of that: samples of one group are
    alike, and count once. One group says nothing: its standard error is infinite."""
    means = np.array([lower[groups == name].mean() for name in np.unique(groups)])
    doubt = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else np.inf
    return float(means.mean()), doubt
