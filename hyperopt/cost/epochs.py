"""Profiles of one device in order of time, parted where the device has changed.

Times from before a change and from after it say nothing together: their median is neither, and what they differ by
would pass for what runs differ by. From the newest on, each older profile is held against the newest duration of every
signature. Where it contradicts them it ends an epoch: it, and all that is older, is from before::

    oldest                                 newest
    p0     p1     p2     │     p3     p4             p2 takes half as long as p3 and p4 on what they share
    ── epoch 1 ──────────┘     ── epoch 0 ──         (p0 and p1 may share nothing with them)

A profile that shares too little with any newer one, and is newer than what contradicts, stays: nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc

from hyperopt.cost.drift import CHANCE, FEWEST_OF_FAMILY, FEWEST_SAMPLES, allowed
from hyperopt.cost.features import F64, Rows, samples_of
from hyperopt.cost.model import LINK
from hyperopt.cost.repeats import Repeats

MOST = 0.75
"""Share of the shared signatures that must have moved the same way, by more than runs differ by as a whole: load moves
some of them, either way; a change moves them together."""


@dataclass(frozen=True)
class Contradiction:
    """What is newer than profile `place` takes `factor` times as long (median) on `signatures` that both measured, all
    of them or those of `family`."""

    place: int
    factor: float
    signatures: int
    family: str

    def told(self) -> str:
        of = f" of {self.family}" if self.family else ""
        return f"{self.factor:.2f} times as long later, on {self.signatures} shared signatures{of}"


@dataclass(frozen=True)
class Epochs:
    """`of`: for each profile, 0 if it is of the device as it is now, 1 and more the longer ago. `found`: newest
    first."""

    of: tuple[int, ...]
    found: tuple[Contradiction, ...]


def epochs(parts: Sequence[Rows], repeats: Repeats | None, levels: Sequence[int] | None = None) -> Epochs:
    """Of profiles, oldest first. `repeats`: what runs are known to differ by (None: what is assumed); `levels`: what is
    known of them already: one of a higher level than the next newer one is of an older epoch."""
    of, found = [0] * len(parts), []
    newest: dict[str, float] = {}
    epoch = level = 0
    for place in reversed(range(len(parts))):
        samples = samples_of(parts[place].only(parts[place].families != LINK))
        keys, families = samples.signatures.keys, samples.signatures.families
        shared = np.array([key in newest for key in keys], bool)
        new = np.array([newest[key] for key in keys if key in newest], np.float64)
        contradicts = _contradicts(place, samples.us[shared], new, families[shared].tolist(), repeats)
        older = levels is not None and levels[place] > level
        if contradicts is not None or older:
            epoch, newest = epoch + 1, {}
        if contradicts is not None:
            found.append(contradicts)
        if levels is not None:
            level = max(level, levels[place])
        of[place] = epoch
        for key, us in zip(keys, samples.us.tolist(), strict=True):
            newest.setdefault(key, us)
    return Epochs(tuple(of), tuple(found))


def _contradicts(
    place: int, old: F64, new: F64, families: Sequence[str], repeats: Repeats | None
) -> Contradiction | None:
    """All of what is shared is judged, and each family by itself, since a library of one may have changed alone: most
    have moved the same way, and more than chance explains if each went either way (sign test)."""
    if not len(old):
        return None
    off = np.log(new / old)
    clock = 0.0 if repeats is None else repeats.short_us
    moved = np.sign(off) * ((np.abs(off) > allowed(repeats)) & (np.abs(new - old) > clock))
    ways = ["", *sorted(set(families))]
    for family in ways:
        mine = np.array([family in ("", one) for one in families], bool)
        count, way = int(mine.sum()), np.sign(np.median(off[mine]))
        fewest = FEWEST_OF_FAMILY if family else FEWEST_SAMPLES
        gone = int((moved[mine] == way).sum()) if way else 0
        if count >= fewest and gone >= MOST * count and bdtrc(gone - 1, count, 0.5) < CHANCE / len(ways):
            return Contradiction(place, float(np.exp(np.median(off[mine]))), count, family)
    return None
