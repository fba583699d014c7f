"""Whether a new model takes the place of the one in use, and whether that still fits what is measured.

A new model has seen new measurements; that alone does not make it better. Both are compared on groups of shapes that
neither has seen: the one in use because they are new, the new one because they are held out of it, fold by fold.

    measurements of ──▶ shapes that are new to the model in use ──▶ who errs less?  ──▶ promoted, or not
    all profiles        shapes that it knows                    ──▶ drifted?        ──▶ promoted: the device has changed
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hyperopt.cost.features import Rows, Samples, samples_of
from hyperopt.cost.gains import gain_of
from hyperopt.cost.model import LINK, SURE, CostModel, fit, held_out

FEWEST_GROUPS = 8
"""Groups of shapes that are new to the model in use, below which nothing is said about who is better on such."""

FEWEST_SAMPLES = 20


@dataclass(frozen=True)
class Drift:
    """Of `samples` that the model has an interval for, `outside` lie beyond it, where 1 - `level` is expected.
    `drifted`: more than chance explains (three standard errors), and there are enough to say. `families`: share
    outside by family."""

    samples: int
    outside: float
    level: float
    drifted: bool
    families: dict[str, float]


@dataclass(frozen=True)
class Trained:
    """`model` is the new one; `promoted`: it is to be used, for the reason `why`."""

    model: CostModel
    promoted: bool
    why: str
    drift: Drift | None


def drift_of(model: CostModel, samples: Samples, level: float = 0.9) -> Drift:
    """What new measurements say of a model's intervals."""
    found = model.predict(samples.signatures, samples.context, level, samples.times)
    known = ~np.isnan(found.low)
    outside = ((samples.us < found.low) | (samples.us > found.high))[known]
    count = len(outside)
    share = float(outside.mean()) if count else 0.0
    chance = 1 - level
    limit = chance + 3 * np.sqrt(chance * level / max(count, 1))
    families = samples.signatures.families[known]
    return Drift(
        samples=count,
        outside=share,
        level=level,
        drifted=bool(count >= FEWEST_SAMPLES and share > limit),
        families={str(family): float(outside[families == family].mean()) for family in np.unique(families)},
    )


def train(rows: Rows, current: CostModel | None, seed: int = 0) -> Trained:
    """A model of all rows, and whether it takes the place of `current`. Raises ValueError for another device, and
    without any duration."""
    if current is not None and current.device != rows.device:
        raise ValueError(f"measurements of {rows.device}, a model of {current.device}: train one model for each device")
    model = fit(rows, seed)
    if current is None:
        return Trained(model, True, "there was no model in use", None)
    if model.data_digest == current.data_digest:
        return Trained(model, False, "nothing was measured since", None)
    samples = samples_of(rows.only(rows.families != LINK))
    known = np.array([key in current.seen for key in samples.signatures.keys])
    groups = np.array(samples.signatures.groups, np.str_)
    new = ~np.isin(groups, np.unique(groups[known]))
    drift = drift_of(current, samples.only(known)) if known.any() else None
    if drift is not None and drift.drifted:
        return Trained(model, True, f"{drift.outside:.0%} of what is measured again is outside its intervals", drift)
    count = len(np.unique(groups[new]))
    if count < FEWEST_GROUPS:
        return Trained(model, False, f"{count} groups of shapes are new: too few to say who is better on such", drift)
    ours, _ = held_out(samples, seed)
    theirs = current.predict(samples.signatures.only(new), samples.context[new]).us
    us = samples.us[new]
    gain, doubt = gain_of(np.abs(np.log(theirs / us)) - np.abs(np.log(ours[new] / us)), groups[new])
    better = gain > SURE * doubt
    why = (
        f"on {count} groups of shapes that neither has seen its error of the logarithm is {abs(gain):.3f} "
        f"{'lower' if gain > 0 else 'higher'} (standard error {doubt:.3f})"
    )
    return Trained(model, bool(better), why, drift)
