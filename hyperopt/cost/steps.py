"""How long a whole step takes: its kernels as they run inside it, what lies between them, and what a step costs once.

    step  =  share x sum of kernels  +  gap x number of kernels  +  once

A sweep measures kernels one beside the other, each on tensors of its own; in a step they find what the kernel before
has left in the cache. What that changes is learned from steps that were captured, as a process on top of the model of
the sweep (`process`): effects of family, type, work and shapes, drawn towards no change where captures say little.
`gap`, `once` and `share` (kernels that wait for their second thread count more than they take alone) are fitted to the
captured steps' own kernels, none below 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hyperopt.cost import process as processes
from hyperopt.cost.features import F64, Rows, joined, samples_of
from hyperopt.cost.model import CostModel
from hyperopt.cost.process import Process

FEWEST = 24
"""Signatures of captured steps below which nothing is learned of what a step changes."""


@dataclass(frozen=True)
class StepModel:
    """`inside`: what running in a step changes; None: too little was captured. Times in us."""

    kernels: CostModel
    inside: Process | None
    share: float
    gap_us: float
    once_us: float

    def kernels_us(self, rows: Rows) -> F64:
        """Of every kernel."""
        us = self.kernels.predict_rows(rows).us
        if self.inside is not None:
            us = us * np.exp(self.inside.correction(rows.signatures)[0][rows.signature])
        return us

    def us(self, rows: Rows) -> float:
        """Of the step that these kernels make."""
        kernels = self.kernels_us(rows)
        return float(self.share * kernels.sum() + self.gap_us * len(kernels) + self.once_us)


def fit_steps(kernels: CostModel, steps: Sequence[tuple[Rows, float]]) -> StepModel:
    """From a model of kernels that has not learned from these steps, and the steps: rows as captured, and the step's
    time (us) without a profiler. Raises ValueError without any step."""
    if not steps:
        raise ValueError("no captured step to fit to")
    samples = samples_of(joined([rows for rows, _ in steps]))
    whole = samples.us * samples.times
    longest = np.sort(np.argsort(-whole, kind="stable")[: processes.MOST])
    chosen = np.isin(np.arange(len(whole)), longest)
    samples = samples.only(chosen)
    inside = None
    if len(samples.us) >= FEWEST:
        base = kernels.predict(samples.signatures, samples.context).us
        inside = processes.learn(samples.signatures, base, samples.us)
    share, gap, once = _constants(
        np.array([rows.us.sum() for rows, _ in steps]),
        np.array([len(rows.us) for rows, _ in steps], np.float64),
        np.array([us for _, us in steps]),
    )
    return StepModel(kernels, inside, share, gap, once)


def _constants(kernels: F64, counts: F64, us: F64) -> tuple[float, float, float]:
    """Share, gap and once of least squares of the relative errors, none below 0."""
    from scipy.optimize import nnls

    found, _ = nnls(np.column_stack([kernels, counts, np.ones(len(us))]) / us[:, None], np.ones(len(us)))
    return float(found[0]), float(found[1]), float(found[2])
