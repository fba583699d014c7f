"""What the roofline misses, learned: the logarithm of measured over roofline, by group of operator families.

Trees know nothing beyond what they have seen: outside the range of the training data their last leaf is all there is.
So the correction fades there, and the roofline, which is physics, takes over::

    correction    learned        fades               none
                |-----------|---------------|-----------------
    work     range of the    up to 4 times      beyond
             training data   more or less

The guard goes by FLOPs and bytes, for each family by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hyperopt.cost.features import CONTEXT, F64, NUMBERS, Signatures
from hyperopt.cost.trees import Forest, Trees, grow

GROUPS: Mapping[str, str] = {
    "matmul": "compute", "batch_matmul": "compute", "attention": "compute", "convolution": "compute",
}  # fmt: skip
"""Families that are bound by arithmetic; all others by memory."""

FEWEST = 24
"""Signatures of a group below which nothing is learned."""

FADE = float(np.log(4.0))

SEEN_OF = tuple(place for place, name in enumerate(NUMBERS) if name != "intensity")
"""Columns of the signatures' numbers that trees see: intensity falls with traffic, and would undo `RISING`."""

FIXED = (*(NUMBERS[place] for place in SEEN_OF), *CONTEXT, "roofline", "type", "family")

RISING = tuple(FIXED.index(name) for name in ("flops", "read", "written", "roofline"))
"""With all else the same, more arithmetic or traffic never takes less time: neither roofline nor correction falls."""

OPTIONS: Mapping[str, Any] = {
    "loss": "absolute_error",
    "learning_rate": 0.06,
    "max_iter": 300,
    "max_leaf_nodes": 24,
    "min_samples_leaf": 5,
    "max_features": 0.5,
}


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """The correction of one group. `order`: rank of each canonical type; `ranges`: by family the least and greatest
    logarithm of FLOPs and of bytes."""

    trees: Trees
    order: Mapping[str, int]
    families: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float, float, float]]

    def correction(self, signatures: Signatures, context: F64, base: F64) -> tuple[F64, F64]:
        """Logarithm of the factor on the roofline, faded; and how far outside the range: 0 within, 1 and more where
        nothing is left of the correction."""
        columns = _columns(signatures, context, base, self.order, self.families)
        away = self.away(signatures)
        return Forest(self.trees).predict(columns) * np.clip(1.0 - away, 0.0, 1.0), away

    def away(self, signatures: Signatures) -> F64:
        work = np.log1p(np.column_stack([signatures.flops, signatures.bytes]))
        far = np.full(len(work), np.inf)
        for family, (low_flops, high_flops, low_bytes, high_bytes) in self.ranges.items():
            mine = signatures.families == family
            low, high = np.array([low_flops, low_bytes]), np.array([high_flops, high_bytes])
            beyond = np.maximum(np.maximum(low - work[mine], work[mine] - high), 0.0).max(axis=1)
            far[mine] = beyond / FADE
        return far


def group_of(families: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    return np.array([GROUPS.get(str(family), "memory") for family in families], np.str_)


def learn(signatures: Signatures, context: F64, base: F64, us: F64, seed: int = 0) -> Learned:
    """From samples of one group with their rooflines and durations. Types are put in order of their usual correction:
    to trees that is one cut between slow and quick ones."""
    target = np.log(us / base)
    names = np.unique(signatures.names)
    usual = {str(name): float(np.median(target[signatures.names == name])) for name in names}
    order = {name: rank for rank, name in enumerate(sorted(usual, key=lambda name: (usual[name], name)))}
    families = tuple(sorted({str(family) for family in signatures.families}))
    columns = _columns(signatures, context, base, order, families)
    work = np.log1p(np.column_stack([signatures.flops, signatures.bytes]))
    ranges = {}
    for family in families:
        mine = work[signatures.families == family]
        low, high = mine.min(axis=0), mine.max(axis=0)
        ranges[family] = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    trees = grow(columns, target, rising=RISING, seed=seed, **OPTIONS)
    return Learned(trees=trees, order=order, families=families, ranges=ranges)


def _columns(
    signatures: Signatures, context: F64, base: F64, order: Mapping[str, int], families: tuple[str, ...]
) -> F64:
    ranks = np.array([order.get(str(name), np.nan) for name in signatures.names], np.float64)
    places = {family: float(place) for place, family in enumerate(families)}
    kinds = np.array([places.get(str(family), np.nan) for family in signatures.families], np.float64)
    each = [(signatures.names == name).astype(np.float64) for name in order]
    return np.column_stack([signatures.numbers[:, SEEN_OF], context, np.log(base), ranks, kinds, *each])


def importances(learned: Learned, most: int = 10) -> list[tuple[str, float]]:
    """The features that the trees go by most, and their share of what all cuts gained."""
    named = zip(column_names(learned), learned.trees.gains, strict=True)
    return sorted(((name, share) for name, share in named if share > 0), key=lambda pair: -pair[1])[:most]


def column_names(learned: Learned) -> tuple[str, ...]:
    """What the trees see, in the order of their features."""
    return (*FIXED, *(f"is {name}" for name in learned.order))
