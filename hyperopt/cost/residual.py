"""What the roofline misses, learned: the logarithm of measured over roofline, by group of operator families.

Trees know nothing beyond what they have seen: outside the range of the training data their last leaf is all there is,
and the correction fades (`ranges`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hyperopt.cost.features import CONTEXT, F64, NUMBERS, Signatures
from hyperopt.cost.ranges import Ranges, away, ranges_of
from hyperopt.cost.trees import Forest, Trees, grow

GROUPS: Mapping[str, str] = {
    "matmul": "compute", "batch_matmul": "compute", "attention": "compute", "convolution": "compute",
}  # fmt: skip
"""Families that are bound by arithmetic."""

MEMORY = "memory"
"""The group of all others."""

FEWEST = 24
"""Signatures of a group below which nothing is learned."""

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


class Learned(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The correction of one group. `order`: rank of each canonical type."""

    trees: Trees
    order: Mapping[str, int]
    families: tuple[str, ...]
    ranges: Ranges

    def correction(self, signatures: Signatures, context: F64, base: F64) -> tuple[F64, F64]:
        """Logarithm of the factor on the roofline, faded; and how far outside the range: 0 within, 1 and more where
        nothing is left of the correction."""
        columns = _columns(signatures, context, base, self.order, self.families)
        far = away(signatures, self.ranges)
        return self.forest.predict(columns) * np.clip(1.0 - far, 0.0, 1.0), far

    @cached_property
    def forest(self) -> Forest:
        return Forest(self.trees)

    def between(self, signatures: Signatures, contexts: Sequence[F64], base: F64) -> list[F64]:
        """The correction in each of several contexts: of what runs in both phases the mean of the two by its share of
        each. All are asked together: so many trees take long for few rows, and hardly longer for more."""
        phases = (0.0, 1.0)
        asked = []
        for context in contexts:
            for phase in phases:
                one = context.copy()
                one[:, CONTEXT.index("backward")] = phase
                asked.append(_columns(signatures, one, base, self.order, self.families))
        fades = np.clip(1.0 - away(signatures, self.ranges), 0.0, 1.0)
        ends = self.forest.predict(np.concatenate(asked)).reshape(len(contexts), len(phases), len(base)) * fades
        shares = [context[:, CONTEXT.index("backward")] for context in contexts]
        return [(1 - backward) * end[0] + backward * end[1] for backward, end in zip(shares, ends, strict=True)]


def group_of(families: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    return np.array([GROUPS.get(family, MEMORY) for family in families.tolist()], np.str_)


def learn(signatures: Signatures, context: F64, base: F64, us: F64, seed: int = 0) -> Learned:
    """From samples of one group with their rooflines and durations. Types are put in order of their usual correction:
    to trees that is one cut between slow and quick ones."""
    target = np.log(us / base)
    names = np.unique(signatures.names)
    usual = {str(name): float(np.median(target[signatures.names == name])) for name in names}
    order = {name: rank for rank, name in enumerate(sorted(usual, key=lambda name: (usual[name], name)))}
    families = tuple(sorted({str(family) for family in signatures.families}))
    columns = _columns(signatures, context, base, order, families)
    trees = grow(columns, target, rising=RISING, seed=seed, **OPTIONS)
    return Learned(trees=trees, order=order, families=families, ranges=ranges_of(signatures))


def _columns(
    signatures: Signatures, context: F64, base: F64, order: Mapping[str, int], families: tuple[str, ...]
) -> F64:
    """(signatures, features), column by column in memory: trees ask for whole columns."""
    columns = np.empty((len(base), len(FIXED) + len(order)), order="F")
    columns[:, : len(SEEN_OF)] = signatures.numbers[:, SEEN_OF]
    columns[:, len(SEEN_OF) : len(SEEN_OF) + len(CONTEXT)] = context
    columns[:, FIXED.index("roofline")] = np.log(base)
    types, type_of = signatures.coded_names
    kinds, kind_of = signatures.coded_families
    columns[:, FIXED.index("type")] = np.array([order.get(name, np.nan) for name in types])[type_of]
    places = {family: place for place, family in enumerate(families)}
    columns[:, FIXED.index("family")] = np.array([places.get(family, np.nan) for family in kinds])[kind_of]
    numbers = {name: number for number, name in enumerate(types)}
    for place, name in enumerate(order, len(FIXED)):
        columns[:, place] = type_of == numbers[name] if name in numbers else 0.0
    return columns


def importances(learned: Learned, most: int = 10) -> list[tuple[str, float]]:
    """The features that the trees go by most, and their share of what all cuts gained."""
    named = zip(column_names(learned), learned.trees.gains, strict=True)
    return sorted(((name, share) for name, share in named if share > 0), key=lambda pair: -pair[1])[:most]


def column_names(learned: Learned) -> tuple[str, ...]:
    """What the trees see, in the order of their features."""
    return (*FIXED, *(f"is {name}" for name in learned.order))
