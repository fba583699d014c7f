"""What else could say how long an operator takes: each learns from samples and answers for others.

All see the same as ours: canonical type, family, FLOPs and bytes, shapes as numbers. Where a type was not met in
training they go by its family, and else by all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hyperopt.cost.analytic import fit_rooflines
from hyperopt.cost.features import F64, Samples, Signatures

Rival = Callable[[Samples, Signatures], F64]

NEIGHBOURS = 3


def mean_per_type(train: Samples, test: Signatures) -> F64:
    """The mean duration of the type."""
    found = np.full(len(test.names), float(np.mean(train.us)))
    for own, theirs in ((train.signatures.families, test.families), (train.signatures.names, test.names)):
        for name in np.unique(theirs):
            if (own == name).any():
                found[theirs == name] = float(np.mean(train.us[own == name]))
    return found


def roofline(train: Samples, test: Signatures) -> F64:
    """The fitted roofline of the family, alone."""
    return fit_rooflines(train.signatures, train.us).us(test)


def linear_on_logs(train: Samples, test: Signatures) -> F64:
    """log us = type's constant + a log FLOPs + b log bytes, with slopes of the family; a little ridge, since types
    with one sample would be fitted exactly."""
    names, families = np.unique(train.signatures.names), np.unique(train.signatures.families)

    def design(s: Signatures) -> F64:
        work = np.log1p(np.column_stack([s.flops, s.read, s.written]))
        own = (s.families[:, None] == families[None, :]).astype(float)
        slopes = (own[:, :, None] * work[:, None, :]).reshape(len(work), -1)
        return np.column_stack([np.ones(len(work)), work, own, slopes, (s.names[:, None] == names).astype(float)])

    a, target = design(train.signatures), np.log(train.us)
    weight = np.linalg.solve(a.T @ a + 0.1 * np.eye(a.shape[1]), a.T @ target)
    return np.exp(np.clip(design(test) @ weight, -10, 20))


def nearest(train: Samples, test: Signatures) -> F64:
    """Geometric mean of the three nearest samples by all numbers of the shapes (standardised); of the same type where
    there are any, else of the same family."""
    numbers = train.signatures.numbers
    middle, width = numbers.mean(axis=0), numbers.std(axis=0) + 1e-9
    mine, logs = (numbers - middle) / width, np.log(train.us)
    found = np.zeros(len(test.names))
    for i, row in enumerate((test.numbers - middle) / width):
        same = np.flatnonzero(train.signatures.names == test.names[i])
        if not len(same):
            same = np.flatnonzero(train.signatures.families == test.families[i])
        if not len(same):
            same = np.arange(len(logs))
        far = np.sum((mine[same] - row) ** 2, axis=1)
        found[i] = float(np.mean(logs[same[np.argsort(far)[:NEIGHBOURS]]]))
    return np.exp(found)


RIVALS: dict[str, Rival] = {
    "mean per type": mean_per_type,
    "roofline alone": roofline,
    "linear on logs": linear_on_logs,
    "k-nearest": nearest,
}
