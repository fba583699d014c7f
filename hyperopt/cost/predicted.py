"""A profile with predicted durations in place of measured ones, marked operator by operator.

At a level (0.95: a duration that is not exceeded with that probability) the profile is what a robust plan is made
from. All operators at their 95th percentile at once is more than the step's own 95th percentile, which nothing here
estimates: a plan that holds then holds in more than 95 of 100 steps, as far as durations are independent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isnan

import numpy as np
from msgspec import UNSET, structs

from hyperopt.cost.features import rows_of
from hyperopt.cost.model import CostModel
from hyperopt.cost.work import Table
from hyperopt.documents import DocumentError
from hyperopt.profile import IDLE, MOST_US, Operator, Profile

INTERVAL = 0.9
"""Probability that `interval_us` of a profile speaks of."""

MOST_TOLD = 8
"""Kinds that a note names."""


@dataclass(frozen=True)
class Prediction:
    """`sources`: how many operators each way of predicting has answered; `kept`: reason -> how many kept the duration
    that they had; `strangers`: how many are of element types that the model never met in their family; `before_us`,
    `after_us`: sums over the operators, idle time left out."""

    profile: Profile
    sources: Counter[str]
    kept: Counter[str]
    strangers: Counter[str]
    before_us: float
    after_us: float


def predicted(profile: Profile, model: CostModel, table: Table, level: float | None = None) -> Prediction:
    """`level` between 0.5 and 1: durations not exceeded with that probability; None: the likeliest ones. Raises
    ValueError for another level, `DocumentError` where a duration is none (`readable`). Operators whose work is not
    counted, idle time, and at a level those that the model has no interval for keep their duration, unmarked."""
    if level is not None and not 0.5 < level < 1:
        raise ValueError(f"level {level} is not between 0.5 and 1")
    rows = rows_of(profile, table, model.device)
    found = model.predict_rows(rows, INTERVAL)
    us = found.us if level is None else model.predict_rows(rows, 2 * level - 1).high
    kept = Counter(rows.uncounted)
    operators = list(profile.operators)
    sources: Counter[str] = Counter()
    for row, place in enumerate(rows.place.tolist()):
        if np.isnan(us[row]):
            kept["the model has no interval for it: measured too little"] += 1
            continue
        source = str(found.source[row])
        low, high = float(found.low[row]), float(found.high[row])
        made = structs.replace(
            operators[place],
            duration_us=round(float(us[row]), 3),
            predicted=source,
            interval_us=UNSET if isnan(low) else (round(low, 3), round(high, 3)),
        )
        operators[place] = readable(place, made)
        sources[source] += 1
    told = "likeliest" if level is None else f"not exceeded with probability {level:g}"
    note = f"durations of {sum(sources.values())} operators are predicted ({told}) by a model of {model.device}"
    strangers = model.strangers(rows)
    notes = (note, *stranger_notes(strangers))
    after = structs.replace(
        profile,
        operators=tuple(operators),
        run=structs.replace(profile.run, measured=False, notes=(*profile.run.notes, *notes)),
        measured=None,
    )
    return Prediction(after, sources, kept, strangers, _busy(profile), _busy(after))


def readable(place: int, operator: Operator) -> Operator:
    """As it is. Raises `DocumentError` where it would take longer than a profile may say, and not be read again."""
    most = max(operator.duration_us, *(operator.interval_us or (0.0,)))
    if not most <= MOST_US:
        shapes = ", ".join(str(list(shape)) for shape in operator.shapes)
        problem = f"{operator.type or operator.name} on {shapes} is predicted to take up to {most:g} us, no time at all"
        raise DocumentError(f"$.operators[{place}]", problem, f"check its shapes; a profile may say {MOST_US:g} us")
    return operator


def stranger_notes(strangers: Counter[str]) -> list[str]:
    """In words, if there are any."""
    if not strangers:
        return []
    which = ", ".join(f"{count} {what}" for what, count in strangers.most_common(MOST_TOLD))
    return [
        f"{sum(strangers.values())} operators are of element types never measured in their family: by the roofline, "
        f"intervals twice as wide ({which}{', ...' if len(strangers) > MOST_TOLD else ''})"
    ]


def _busy(profile: Profile) -> float:
    return sum(o.duration_us for o in profile.operators if o.type != IDLE)
