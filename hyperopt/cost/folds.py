"""Samples dealt out to folds by group: what is of one group is held out together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Chosen = npt.NDArray[np.bool_]


def folds(groups: Sequence[str], count: int = 5, seed: int = 0) -> Iterator[Chosen]:
    """True for the samples of each fold in turn; folds are of about one size, and no group is in two. Fewer than
    `count` groups make as many folds as there are."""
    names, place, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    chance = np.random.default_rng(seed)
    count = min(count, len(names))
    filled = np.zeros(max(count, 1))
    fold_of = np.zeros(len(names), int)
    shuffled = chance.permutation(len(names))
    for group in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        fold_of[group] = int(np.argmin(filled))
        filled[fold_of[group]] += sizes[group]
    for fold in range(count):
        yield fold_of[place] == fold
