"""How far outside what was learned from: there it fades, and the roofline, which is physics, takes over::

    correction    learned        fades               none
                |-----------|---------------|-----------------
    work     range of the    up to 4 times      beyond
             training data   more or less

By FLOPs and bytes, for each family by itself; of a family that was never measured, by those of all. Nor does what was
learned of some element types say anything of another one, whose kernels may be other ones altogether (half precision
on a CPU that has no instructions for it): of such nothing is left of the correction, whatever their work.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

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


ElementTypes = Mapping[str, tuple[str, ...]]
"""By family (`ALL`: of all) the element types that were met in it."""


def element_types_of(signatures: Signatures) -> dict[str, tuple[str, ...]]:
    """With `ALL`, which families go by that were never measured."""
    met: dict[str, set[str]] = {ALL: set()}
    families, of = signatures.coded_families
    mixes, mix_of = signatures.coded_dtypes
    for code in np.unique(of * len(mixes) + mix_of).tolist():
        place, mix = divmod(code, len(mixes))
        for family in (families[place], ALL):
            met.setdefault(family, set()).update(mixes[mix].split())
    return {family: tuple(sorted(met[family])) for family in sorted(met)}


def never_met(signatures: Signatures, known: ElementTypes) -> dict[tuple[str, str], npt.NDArray[np.bool_]]:
    """(Family, its element types that were never met in it, in words) -> which signatures; nothing where it is not
    known what was met."""
    found: dict[tuple[str, str], npt.NDArray[np.bool_]] = {}
    if not known:
        return found
    families, of = signatures.coded_families
    mixes, mix_of = signatures.coded_dtypes
    for code in np.unique(of * len(mixes) + mix_of).tolist():
        place, mix = divmod(code, len(mixes))
        family = families[place]
        if strange := sorted(set(mixes[mix].split()) - set(known.get(family, known.get(ALL, ())))):
            mine = (of == place) & (mix_of == mix)
            key = family, " and ".join(strange)
            found[key] = found[key] | mine if key in found else mine
    return found


def strange_of(signatures: Signatures, known: ElementTypes) -> npt.NDArray[np.bool_]:
    """Which are of element types that were never met in their family."""
    found = np.zeros(len(signatures.keys), bool)
    for mine in never_met(signatures, known).values():
        found |= mine
    return found


def work_of(signatures: Signatures) -> F64:
    """Logarithms of FLOPs and of bytes: (signatures, 2)."""
    return np.log1p(np.column_stack([signatures.flops, signatures.bytes]))
