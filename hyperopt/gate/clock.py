"""The tick of the clock that readings come from: the step of which all of them are multiples, found in them alone.

Two ways, and the coarser step counts:

    exactly   Euclid's greatest common divisor, to within the rounding of a number: whole milliseconds
    nearly    multiples up to a small jitter: 1/60 s printed with some decimals, or a little work beside the wait

Any values are near the multiples of some small step, so for the second one chance is asked. A step is tried as one of
the median's parts, 1/k for k = 1, 2, ...; each further level that is taken lies within a share `d` of the step of a
multiple by chance 2 d, so k (2 d)^levels says how often a lattice as good is found where there is none. Levels count
that differ within a side: what lies between the sides may be the change. Each counts once, however often it was read:
two modes of a machine are no clock. But where hardly any reading is another than the ones before it, no work was
timed that finely: chance is not asked then.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from hyperopt.gate.ranks import Floats

FINER, FINEST = 1e-5, 1e-7
"""Shares of the smallest reading: a clock that ticks by less than the first is fine enough, and readings that differ
by the second from a multiple of a tick are one."""

MOST_TICKS = 1000
"""A run of more ticks than this is read finely enough, jitter or not (a tick hides a thousandth)."""

JITTER = 0.1
"""Share of a tick: readings further than this from a multiple are of no clock that ticks so."""

CHANCE = 0.003
"""At most so often levels that only happen to lie so are taken for a tick's."""

TIED = 3
"""Readings to a value, on average, that no work has of itself, but for a clock (or where it is counted)."""

MOST_READINGS = 256
"""Of a side, evenly over its sorted values: more say the same."""


def tick(before: Sequence[float], after: Sequence[float]) -> float:
    """The tick of the readings (above 0) of two sides, in their unit; 0 where there is none that matters.

    Readings that never vary on either side say nothing of their clock: they are taken as counted, 0.
    """
    old, new = set(before), set(after)
    if len(old) == len(new) == 1:
        return 0.0
    exact = _exact(old | new)
    tied = len(before) + len(after) >= TIED * len(old | new)
    return max(exact, _nearly(old, new, exact, 1.0 if tied else CHANCE))


def _exact(readings: Set[float]) -> float:
    least = min(readings)
    step = 0.0
    for value in readings:
        step = _common(value, step, FINEST * least)
        if step <= FINER * least:
            return 0.0
    return step


def _common(one: float, other: float, rounding: float) -> float:
    """The greatest common divisor of two values that are not exact (Euclid)."""
    while other > rounding:
        rest = one % other
        one, other = other, 0.0 if other - rest <= rounding else rest
    return one


def _nearly(before: Set[float], after: Set[float], told: float, most: float) -> float:
    """`told`: the step of the digits that the readings are told in, 0 where it is none; `most`: of chance."""
    sides = [_some(side) for side in (before, after)]
    values = np.concatenate(sides)
    middle = float(np.median(values))
    parts = np.arange(1, MOST_TICKS + 1)
    steps = middle / parts
    for _ in range(2):  # the median has a jitter too: each step is fitted to what it counts
        counts = np.round(values[:, None] / steps)
        squares = (counts**2).sum(axis=0)
        steps = (values[:, None] * counts).sum(axis=0) / np.maximum(squares, 1)
        steps = np.where(squares > 0, steps, middle)
    counts = np.round(values[:, None] / steps)
    off = np.abs(values[:, None] / steps - counts).max(axis=0)
    fits = (off <= JITTER) & (counts.min(axis=0) >= 1)
    best, found = most, 0.0
    for at in np.flatnonzero(fits):
        within = [np.unique(counts[rows, at]) for rows in (slice(len(sides[0])), slice(len(sides[0]), None))]
        levels = min(len(np.union1d(*within)) - 1, sum(len(one) - 1 for one in within))
        near = max(float(off[at]), told / (2 * steps[at]), FINEST)
        chance = parts[at] * (2 * near) ** levels
        if chance < best:
            best, found = chance, float(steps[at])
    return found


def _some(side: Set[float]) -> Floats:
    ordered = np.sort(np.fromiter(side, dtype=np.float64))
    if len(ordered) <= MOST_READINGS:
        return ordered
    return np.asarray(ordered[np.linspace(0, len(ordered) - 1, MOST_READINGS).astype(int)], np.float64)
