"""Where a branch's figures changed: advice, with the commits around, never a verdict.

A gate compares a candidate with its baseline; ten changes of half the tolerance pass it one by one. In the series of
all runs they show, as one of three::

    exact   a figure without noise (replayed memory): it changed where it changed, no statistics needed
    step    one level before a commit, another from it on
    trend   a creep over the whole series, of which no commit is the one to blame

Steps are sought on the log of the values (Killick's PELT, by `ruptures`, on absolute deviations, so that a wild value
is no change). The place was chosen because it looks like a change, so the values of the two stretches beside it are
held against themselves in random orders: how often has any place of these as much of a step? Values far out count as
little further out than the noise reaches. A trend is Mann's (1945) and Kendall's, its size by Theil and Sen. All steps
and trends of all series are corrected together (Holm), and of a series' steps and its trend that is told which lies
closer to its values.

Both tests take runs of one code to come in any order. A machine that drifts for days is a change to them, and so is
another machine or framework: look at what else happened at that commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np

from hyperopt.gate.ranks import Floats, holm, spread

PEAK = "replayed peak"
"""The series without noise."""

STEP = "step_us"
"""The series of the step times that profiles measured, where there are no samples."""

LEVEL = 0.04
"""For 5 % of histories without a change that are told of one (simulated, docs/why/gate.md): that the stretches are
chosen too costs the rest. Wider than a verdict's: advice is cheaper when it is wrong."""

SHORTEST = 3
"""Runs on either side of a step."""

SHORTEST_TREND = 6
"""Fewer runs are in order by chance too often: one of 60 fives is, either way."""

ORDERS = 9999
"""Random orders that a step is held against: p cannot be below one in so many."""

REACH = 5.0
"""Values count as at most so many times the noise away from the middle of theirs."""


@dataclass(frozen=True)
class Point:
    """One run of the branch: a commit, and its value in any unit, above 0."""

    commit: str
    value: float


@dataclass(frozen=True)
class Change:
    """`series` changed by `effect_percent` between the commits `before` and `after`, at positions `index` - 1 and
    `index`; a trend between the first and the last.

    `drift_percent`: from the start of the series to just after it. `p`: corrected for the places and the series looked
    at; 0 where there is no noise.
    """

    series: str
    index: int
    before: str
    after: str
    effect_percent: float
    p: float
    kind: Literal["exact", "step", "trend"] = "step"
    drift_percent: float = 0.0

    @property
    def told(self) -> str:
        effect = f"{self.series} {self.effect_percent:+.2f} %"
        if self.kind == "trend":
            return f"{effect} crept from {self.before} to {self.after} (p {self.p:.2g})"
        sure = "exact" if self.kind == "exact" else f"p {self.p:.2g}"
        return f"{effect} between {self.before} and {self.after} ({sure}; {self.drift_percent:+.2f} % since the start)"


class _Memory(msgspec.Struct):
    status: str
    candidate_peak_bytes: int = 0


class _Throughput(msgspec.Struct):
    candidate_us: float = 0.0


class _Finding(msgspec.Struct):
    name: str
    candidate: float


class Answer(msgspec.Struct):
    """Of what a check answers (`Check.document`), what is charted. `commit`, `branch`, `at`: where it says so."""

    verdict: str
    memory: _Memory
    throughput: _Throughput
    metrics: tuple[_Finding, ...] = ()
    commit: str = ""
    branch: str = ""
    at: str = ""

    def figures(self) -> dict[str, float]:
        """Value of each series, of the candidate."""
        found: dict[str, float] = {one.name: one.candidate for one in self.metrics}
        if not self.metrics:
            found[STEP] = self.throughput.candidate_us
        if self.memory.status != "not judged":
            found[PEAK] = self.memory.candidate_peak_bytes
        return {name: float(value) for name, value in found.items() if value > 0}


def of_answers(answers: Sequence[tuple[str, dict[str, Any] | Answer]]) -> dict[str, list[Point]]:
    """The series of (commit, answer of its check), oldest first. Raises msgspec.ValidationError for what is none."""
    return _series([(commit, _answer(given).figures()) for commit, given in answers])


def of_commits(answers: Sequence[tuple[str, dict[str, Any] | Answer]]) -> dict[str, list[Point]]:
    """The same where a commit may have been checked more than once: one point of each series, at the place of its first
    answer, with the newest value. Raises msgspec.ValidationError."""
    told: dict[str, list[Answer]] = {}
    for commit, given in answers:
        told.setdefault(commit, []).append(_answer(given))
    return _series([(commit, _newest(found)) for commit, found in told.items()])


def _newest(answers: Sequence[Answer]) -> dict[str, float]:
    found: dict[str, float] = {}
    sampled = any(answer.metrics for answer in answers)
    for answer in answers:
        figures = answer.figures()
        if sampled and not answer.metrics:
            figures.pop(STEP, None)  # a profile's, one number: where samples were taken of the commit, theirs count
        found |= figures
    return found


def _answer(given: dict[str, Any] | Answer) -> Answer:
    return given if isinstance(given, Answer) else msgspec.convert(given, Answer)


def _series(figures: Sequence[tuple[str, dict[str, float]]]) -> dict[str, list[Point]]:
    series: dict[str, list[Point]] = {}
    for commit, values in figures:
        for name, value in values.items():
            series.setdefault(name, []).append(Point(commit, value))
    return series


def changes(
    history: Mapping[str, Sequence[Point]], level: float = LEVEL, exact: Collection[str] = (PEAK,)
) -> list[Change]:
    """Changes of all series, oldest first within each. `exact`: names of those without noise.

    Raises ValueError for a value that is not above 0.
    """
    for name, points in history.items():
        if any(not 0 < point.value < float("inf") for point in points):
            raise ValueError(f"{name}: a value is not above 0")
    noisy = {name: points for name, points in history.items() if name not in exact}
    found = [
        change for name, points in noisy.items() for change in (*_steps(name, points, level), *_trend(name, points))
    ]
    adjusted = holm([change.p for change in found])
    sure = [replace(change, p=p) for change, p in zip(found, adjusted, strict=True) if p <= level]
    told = []
    for name, points in history.items():
        if name in exact:
            told += _exact(name, points)
        else:
            told += _closer([change for change in sure if change.series == name], points)
    return told


def _exact(name: str, points: Sequence[Point]) -> list[Change]:
    return [
        Change(
            name,
            at,
            old.commit,
            new.commit,
            100 * (new.value / old.value - 1),
            0.0,
            "exact",
            100 * (new.value / points[0].value - 1),
        )
        for at, (old, new) in enumerate(pairwise(points), 1)
        if new.value != old.value
    ]


def _logs(points: Sequence[Point]) -> Floats:
    found: Floats = np.log(np.array([point.value for point in points], dtype=np.float64))
    return found


def _steps(name: str, points: Sequence[Point], level: float) -> list[Change]:
    values = _logs(points)
    noise = _noise(values)
    ends = _segments(values, noise)
    while True:
        ps = [_by_chance(values[start:end], noise) for start, end in zip(ends, ends[2:], strict=False)]
        if len(ps) < 2 or max(ps) <= level:
            break
        # Stretches cut too short show nothing: the least sure cut goes first, and its neighbours are seen again.
        del ends[1 + ps.index(max(ps))]
    levels = [float(np.median(values[start:end])) for start, end in pairwise(ends)]
    found = []
    for i, (at, p) in enumerate(zip(ends[1:], ps, strict=False)):
        effect, drift = (100 * float(np.expm1(levels[i + 1] - before)) for before in (levels[i], levels[0]))
        found.append(Change(name, at, points[at - 1].commit, points[at].commit, effect, p, "step", drift))
    return found


def _noise(values: Floats) -> float:
    """Standard deviation of neighbours, so that a change is one difference among many and not part of it."""
    return spread(np.diff(values)) / float(np.sqrt(2)) if len(values) > 1 else 0.0


def _segments(values: Floats, noise: float) -> list[int]:
    """0, the first position of each stretch after the first, and the length."""
    if len(values) < 2 * SHORTEST:
        return [0, len(values)] if len(values) else [0]
    from ruptures import Pelt  # with scipy it takes a second to load

    scaled = values / noise if noise > 0 else values * 1e9
    search = Pelt(model="l1", min_size=SHORTEST, jump=1).fit(scaled.reshape(-1, 1))
    return [0, *search.predict(pen=2 * np.log(len(values)))]


def _by_chance(values: Floats, noise: float) -> float:
    """How often the values in a random order have as much of a step, at any place, as they have in theirs."""
    if noise > 0:
        middle = np.median(values)
        values = np.clip(values, middle - REACH * noise, middle + REACH * noise)
    orders = np.random.default_rng(0).permuted(np.tile(values, (ORDERS, 1)), axis=1)
    seen = _largest_step(values[None, :])[0]
    # Sums in another order differ by rounding.
    return float(1 + np.count_nonzero(_largest_step(orders) >= seen * (1 - 1e-9))) / (1 + ORDERS)


def _largest_step(orders: Floats) -> Floats:
    """Of each row, the largest share of the squares that any split of it explains."""
    n = orders.shape[1]
    left = np.arange(SHORTEST, n - SHORTEST + 1)
    away = np.cumsum(orders - orders.mean(axis=1, keepdims=True), axis=1)[:, left - 1]
    found: Floats = (away**2 * n / (left * (n - left))).max(axis=1)
    return found


def _trend(name: str, points: Sequence[Point]) -> list[Change]:
    values = _logs(points)
    if len(values) < SHORTEST_TREND or np.ptp(values) == 0:
        return []
    from scipy.stats import kendalltau

    slope = _line(values)[1]
    p = float(kendalltau(np.arange(len(values)), values).pvalue)
    effect = 100 * float(np.expm1(slope * (len(values) - 1)))
    return [Change(name, len(values) - 1, points[0].commit, points[-1].commit, effect, p, "trend", effect)]


def _line(values: Floats) -> tuple[Floats, float]:
    """Theil's and Sen's line through the values, and its slope."""
    from scipy.stats import theilslopes

    at: Floats = np.arange(len(values), dtype=np.float64)
    slope, middle = (float(one) for one in theilslopes(values, at)[:2])
    return slope * at + middle, slope


def _closer(found: list[Change], points: Sequence[Point]) -> list[Change]:
    """The steps or the trend of a series, whichever lies closer to its values."""
    steps, trend = ([change for change in found if change.kind == kind] for kind in ("step", "trend"))
    if not steps or not trend:
        return steps or trend
    values = _logs(points)
    stairs = [np.abs(part - np.median(part)).sum() for part in np.split(values, [step.index for step in steps])]
    return steps if sum(stairs) <= np.abs(values - _line(values)[0]).sum() else trend
