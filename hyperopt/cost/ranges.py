"""How far outside what was learned from: there it fades, and the roofline, which is physics, takes over::

    correction    learned        fades               none
                |-----------|---------------|-----------------
    work     range of the    up to 4 times      beyond
             training data   more or less

By FLOPs and bytes, for each family by itself; of a family that was never measured, by those of all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hyperopt.cost.signatures import F64, Signatures

FADE = float(np.log(4.0))

Ranges = Mapping[str, tuple[float, float, float, float]]
"""By family the least and greatest logarithm of FLOPs and of bytes."""

ALL = ""
"""The family of all families."""


def ranges_of(signatures: Signatures, *, whole: bool = False) -> dict[str, tuple[float, float, float, float]]:
    """`whole`: with `ALL`, which families go by that were never measured; else those are out of every range."""
    work = work_of(signatures)
    families, of = signatures.coded_families
    found = {}
    for place, family in [*enumerate(families), *([(-1, ALL)] if whole else [])]:
        mine = work[of == place] if place >= 0 else work
        (low_flops, low_bytes), (high_flops, high_bytes) = mine.min(axis=0).tolist(), mine.max(axis=0).tolist()
        found[family] = (low_flops, high_flops, low_bytes, high_bytes)
    return dict(sorted(found.items()))


def away(signatures: Signatures, ranges: Ranges) -> F64:
    """0: within; 1 and more: nothing is left of the correction."""
    work = work_of(signatures)
    far = np.full(len(work), np.inf)
    families, of = signatures.coded_families
    for place, family in enumerate(families):
        if (reach := ranges.get(family, ranges.get(ALL))) is not None:
            low_flops, high_flops, low_bytes, high_bytes = reach
            low, high = np.array([low_flops, low_bytes]), np.array([high_flops, high_bytes])
            mine = of == place
            far[mine] = np.maximum(np.maximum(low - work[mine], work[mine] - high), 0.0).max(axis=1) / FADE
    return far


def work_of(signatures: Signatures) -> F64:
    """Logarithms of FLOPs and of bytes: (signatures, 2)."""
    return np.log1p(np.column_stack([signatures.flops, signatures.bytes]))
