"""Whether what is measured now still lies in a model's intervals.

The intervals are too narrow by some: more outside than the expected tenth is usual on a device that never changed, and
of thousands of signatures any such difference is beyond chance. So three times as many are allowed. Nor are signatures
of one run measured independently: a run is a little quicker or slower as a whole (clocks, temperature). What all of
them are off by is set aside, as far as runs may differ. A device changes one family at a time, too (another library of
products): each family is judged by itself, against the same allowed share, and by how many families there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, stdtrit

from hyperopt.cost.features import F64, Samples
from hyperopt.cost.intervals import OWN
from hyperopt.cost.model import CostModel
from hyperopt.cost.repeats import RUN_TO_RUN, USUAL, Repeats

FEWEST_SAMPLES = 20

FEWEST_OF_FAMILY = 8

CHANGED = 3.0
"""Times as many outside the intervals as expected, from which on the device has changed. Of signatures that were
measured a few times the intervals are too narrow by some (their median is off too): on a made-up device that never
changed 15 % of 60 signatures measured 8 times were outside, 3 to 23 % in single runs, where 10 % are expected."""

CHANCE = 0.00135
"""Probability that is beyond chance: three standard errors of a normal number."""


@dataclass(frozen=True)
class Drift:
    """Of `samples` that the model has an interval for, `outside` (a share) lie beyond it, where 1 - `level` is
    expected. `drifted`: more than chance explains and at least `CHANGED` times that, of all or of the families in
    `changed`, and there are enough to say. `families`: share outside by family."""

    samples: int
    outside: float
    level: float
    drifted: bool
    families: dict[str, float]
    changed: tuple[str, ...] = ()

    def told(self) -> str:
        """In words, what is outside."""
        of = [f"{self.families[name]:.0%} of {name}" for name in self.changed]
        return ", ".join([f"{self.outside:.0%} of what is measured again", *of]) + " is outside its intervals"


def drift_of(model: CostModel, samples: Samples, level: float = 0.9) -> Drift:
    """What new measurements say of a model's intervals."""
    found = model.predict(samples.signatures, samples.context, level, samples.times)
    known = ~np.isnan(found.low)
    again = known & np.array([key in model.seen for key in samples.signatures.keys], bool)
    us = samples.us * np.where(again, np.exp(-_whole(model.repeats, np.log(samples.us / found.us)[again])), 1.0)
    outside = ((us < found.low) | (us > found.high))[known]
    count = len(outside)
    share = float(outside.mean()) if count else 0.0
    chance = 1 - level
    limit = max(chance + 3 * np.sqrt(chance * level / max(count, 1)), CHANGED * chance)
    families = samples.signatures.families[known]
    # An interval that is of all families says nothing about one: what is like no other is outside without a change.
    own = np.array([model.errors.counts.get(str(family), 0) >= OWN for family in families], bool)
    if model.repeats is not None:
        own |= again[known]
    changed = _changed(outside[own], families[own], CHANGED * chance) if count >= FEWEST_SAMPLES else ()
    return Drift(
        samples=count,
        outside=share,
        level=level,
        drifted=bool(count >= FEWEST_SAMPLES and share > limit) or bool(changed),
        families={str(family): float(outside[families == family].mean()) for family in np.unique(families)},
        changed=changed,
    )


def allowed(repeats: Repeats | None) -> float:
    """By how much (logarithm) a run may be off as a whole without the device having changed: what runs differ by is
    known of as many as were learned from, with what is assumed of one counting for `USUAL` of them (Student's
    distribution). None: nothing is known but what is assumed."""
    runs, drift = (1, 0.0) if repeats is None else (repeats.runs, repeats.drift)
    freedom = USUAL + runs - 1
    spread = np.sqrt((USUAL * RUN_TO_RUN**2 + (runs - 1) * drift**2) / freedom)
    return float(stdtrit(freedom, 1 - CHANCE) * spread * np.sqrt(1 + 1 / runs))


def _whole(repeats: Repeats | None, off: F64) -> float:
    """By how much (logarithm) a run is off as a whole, as far as that is no change."""
    if repeats is None or not len(off):
        return 0.0
    most = allowed(repeats)
    return float(np.clip(np.median(off), -most, most))


def _changed(outside: npt.NDArray[np.bool_], families: npt.NDArray[np.str_], allowed: float) -> tuple[str, ...]:
    """Families of which more are outside than the allowed share explains, each tested at its part of the chance
    (Bonferroni)."""
    every = np.unique(families)
    found = []
    for family in every:
        mine = outside[families == family]
        if len(mine) >= FEWEST_OF_FAMILY and bdtrc(mine.sum() - 1, len(mine), allowed) < CHANCE / len(every):
            found.append(str(family))
    return tuple(found)
