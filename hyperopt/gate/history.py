"""Where a branch's figures changed: advice, with the commits around, never a verdict.

A gate compares a candidate with its baseline; ten changes of half the tolerance pass it one by one. In the series of
all runs they show. Change points are sought on the log of the values (Killick's PELT, by `ruptures`, on absolute
deviations, so that a wild value is no change), and each is held against the two stretches beside it by ranks. The place
was chosen because it looks like a change, so its p-value is multiplied by the number of places it was chosen from;
several series are corrected together (Holm).

Change of the machine or of the framework shows as well: look at what else happened at that commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hyperopt.gate.ranks import Floats, holm, of_groups, spread

LEVEL = 0.01
SHORTEST = 4
"""Runs on either side of a change: of fewer, ranks cannot say anything that outlives the correction."""


@dataclass(frozen=True)
class Point:
    """One run of the branch: a commit, and its value in any unit, above 0."""

    commit: str
    value: float


@dataclass(frozen=True)
class Change:
    """`series` changed by `effect_percent` between the commits `before` and `after`, at positions `index` - 1 and
    `index`.

    `p`: corrected for the places and the series looked at.
    """

    series: str
    index: int
    before: str
    after: str
    effect_percent: float
    p: float

    @property
    def told(self) -> str:
        return f"{self.series} {self.effect_percent:+.2f} % between {self.before} and {self.after} (p {self.p:.2g})"


def changes(history: Mapping[str, Sequence[Point]], level: float = LEVEL) -> list[Change]:
    """Changes of all series, oldest first within each. Raises ValueError for a value that is not above 0."""
    found = [change for name, points in history.items() for change in _of(name, points)]
    adjusted = holm([change.p for change in found])
    sure = [replace(change, p=p) for change, p in zip(found, adjusted, strict=True)]
    return [change for change in sure if change.p <= level]


def _of(name: str, points: Sequence[Point]) -> list[Change]:
    if any(not 0 < point.value < float("inf") for point in points):
        raise ValueError(f"{name}: a value is not above 0")
    values = np.log(np.array([point.value for point in points]))
    ends = _segments(values)
    found = []
    for start, at, end in zip(ends, ends[1:], ends[2:], strict=False):
        seen = of_groups(values[start:at], values[at:end], 0.0, LEVEL)
        # Either way: better is worth knowing too.
        back = of_groups(values[at:end], values[start:at], 0.0, LEVEL)
        p = min(1.0, 2 * min(seen.p, back.p) * (len(points) - 1))
        effect = 100 * float(np.expm1(seen.center))
        found.append(Change(name, at, points[at - 1].commit, points[at].commit, effect, p))
    return found


def _segments(values: Floats) -> list[int]:
    """0, the first position of each stretch after the first, and the length."""
    if len(values) < 2 * SHORTEST:
        return [0, len(values)]
    from ruptures import Pelt  # with scipy it takes a second to load

    # Of neighbours, so that a change is one difference among many and not part of the noise.
    noise = spread(np.diff(values)) / np.sqrt(2)
    scaled = values / noise if noise > 0 else values * 1e9
    search = Pelt(model="l1", min_size=SHORTEST, jump=1).fit(scaled.reshape(-1, 1))
    return [0, *search.predict(pen=2 * np.log(len(values)))]
