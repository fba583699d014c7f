"""Whether a new model takes the place of the one in use, and whether that still fits what is measured.

A new model has seen new measurements; that alone does not make it better, and it takes no place where it covers less
than the one in use (`lacks`). Both are compared on groups of shapes that neither has seen: the one in use because they
are new, the new one because they are held out of it, fold by fold.

    measurements of ──▶ shapes that are new to the model in use ──▶ who errs less?  ──▶ promoted, or not
    all profiles        shapes that it knows                    ──▶ drifted?        ──▶ promoted: the device has changed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hyperopt.cost.drift import Drift, drift_of
from hyperopt.cost.features import Rows, Samples, samples_of
from hyperopt.cost.gains import gain_of
from hyperopt.cost.model import LINK, SURE, CostModel, fit, held_out
from hyperopt.cost.ranges import FADE

FEWEST_GROUPS = 8
"""Groups of shapes that are new to the model in use, below which nothing is said about who is better on such."""

FEWEST_SHAPES = 19
"""Groups of shapes below which there is no model: it could give no 90 % interval (`intervals.Errors.quantile`), so
that neither a robust plan nor drift could be had of it."""


TOLD = 3
"""Of what a model lacks."""


class TooFew(ValueError):
    """Not enough was measured to say anything; the message says how much there is, and what is needed."""


@dataclass(frozen=True)
class Trained:
    """`model` is the new one; `promoted`: it is to be used, for the reason `why`."""

    model: CostModel
    promoted: bool
    why: str
    drift: Drift | None


def groups_of(device: str, samples: Samples) -> int:
    """Of shapes. Raises `TooFew`."""
    groups = len(set(samples.signatures.groups))
    if groups < FEWEST_SHAPES:
        raise TooFew(
            f"{groups} groups of shapes were measured on {device or 'a device without a name'}, {FEWEST_SHAPES} are "
            "needed for intervals: profile more, with shapes and durations, for example with `hyperopt calibrate`"
        )
    return groups


def lacks(new: CostModel, current: CostModel) -> str:
    """What the model in use covers and the new one does not, in words; empty: nothing. A family is covered by at least
    half as many signatures, which reach as far as those in FLOPs and bytes, but for as much as a correction is used
    beyond its data (`ranges.FADE`)."""
    found = []
    for family, count in sorted(current.counts.items()):
        own = new.counts.get(family, 0)
        if 2 * own < count:
            found.append(f"{own} signatures of {family} where that has {count}")
        elif family in new.ranges and family in current.ranges:
            ours, theirs = new.ranges[family], current.ranges[family]
            for what, low, high in (("FLOPs", 0, 1), ("bytes", 2, 3)):
                if ours[low] > theirs[low] + FADE or ours[high] < theirs[high] - FADE:
                    found.append(f"{what} of {family} from {_span(ours, low)} where that has {_span(theirs, low)}")
            met, before = (set(model.element_types.get(family, ())) for model in (new, current))
            if missing := sorted(before - met):
                found.append(f"no {' and '.join(missing)} of {family}")
    more = [f"{len(found) - TOLD} more"] if len(found) > TOLD else []
    return "; ".join([*found[:TOLD], *more])


def _span(ends: Sequence[float], first: int) -> str:
    return f"{np.expm1(ends[first]):.3g} to {np.expm1(ends[first + 1]):.3g}"


def train(rows: Rows, current: CostModel | None, seed: int = 0) -> Trained:
    """A model of all rows, and whether it takes the place of `current`. Raises ValueError for another device, and
    without any duration; `TooFew`."""
    if current is not None and current.device != rows.device:
        raise ValueError(f"measurements of {rows.device}, a model of {current.device}: train one model for each device")
    samples = samples_of(rows.only(rows.families != LINK))
    if len(samples.us):
        groups_of(rows.device, samples)
    model = fit(rows, seed)
    if current is None:
        return Trained(model, True, "there was no model in use", None)
    if model.data_digest == current.data_digest:
        return Trained(model, False, "nothing was measured since", None)
    known = np.array([key in current.seen for key in samples.signatures.keys])
    groups = np.array(samples.signatures.groups, np.str_)
    new = ~np.isin(groups, np.unique(groups[known]))
    drift = drift_of(current, samples.only(known)) if known.any() else None
    changed = drift is not None and drift.drifted
    if missing := lacks(model, current):
        why = f"it covers less than the one in use: {missing} (give the profiles that this was fitted to as well)"
        return Trained(model, False, f"{drift.told()}, but {why}" if drift is not None and changed else why, drift)
    if drift is not None and changed:
        return Trained(model, True, drift.told(), drift)
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
