"""Times and rates: is the candidate slower than the tolerance allows, and how sure is that?

Samples of several runs are judged by ranks (`ranks.py`), on log ratios, against the tolerance and not against no
change::

    ──────────┼─────────────┼──────────▶ slower by
              0         tolerance
      ├──┼───────┤                         pass: even the upper bound is within the tolerance
               ├─────┼─────┤               inconclusive: the tolerance lies between the bounds
                          ├─────┼─────┤    regression: even the lower bound is beyond it

Each bound is wrong with a chance of at most `level`; one at the tolerance itself is neither beyond it nor within. Where
a clock ticks coarsely (`Samples.tick`), the bounds are further apart by what a tick can hide: no number of pairs tells
21 ticks from 20 and a half. Several metrics are several chances to be wrong: a regression must hold after Holm's
correction, and the lower bound is of that level.

- *Interleaved pairs*: signed ranks of the pairs' log ratios.
- *Separate jobs*: rank sum of the jobs' values. Weaker, and marked so: what lies between the sides may be the hour and
  not the code. So a regression must be beyond the tolerance *and* the spread seen between jobs of one side, at a
  quarter of the level. At 1 % that needs six jobs a side.
- *One number each*, as in two profiles: passes where even the spreads within the runs stay within the tolerance, and is
  inconclusive otherwise, as where a spread is not given. It never fails a build: 1012 and 1231 ms were measured of the
  same code, and 1969 and 3544 ms on a machine that others used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hyperopt.gate.memory import Status
from hyperopt.gate.power import MOST_PAIRS, pairs_needed
from hyperopt.gate.ranks import (
    Estimate,
    Floats,
    holm,
    holm_levels,
    least_jobs,
    least_pairs,
    of_groups,
    of_pairs,
    spread,
)
from hyperopt.gate.samples import Better, Design, Metric, Samples
from hyperopt.profile import Profile

DEFAULT_TOLERANCE_PERCENT = 5.0
DEFAULT_LEVEL = 0.01
DEFAULT_BEYOND_PERCENT = 3.0
DEFAULT_POWER = 0.99

SEPARATE_LEVEL = 0.25
"""Of the level, for jobs that were not interleaved."""

TOLD_SLACK = 1e-3
"""A log ratio: what less than a thousandth may hide is not worth a word."""


@dataclass(frozen=True)
class Sensitivity:
    """`level`: chance of a false regression at the tolerance. `power`: the chance to find what is `beyond_percent`
    further than it, which says how many pairs are needed."""

    level: float = DEFAULT_LEVEL
    beyond_percent: float = DEFAULT_BEYOND_PERCENT
    power: float = DEFAULT_POWER


@dataclass(frozen=True)
class Finding:
    """What the samples of one metric say.

    `baseline`, `candidate`: medians in `unit`. `effect_percent`: how much worse the candidate is (negative: better);
    `low_percent` and `high_percent` its bounds, at `low_level` and `level` (None: so few values allow none).
    `low_level` is the level after Holm's correction, and the level itself where there is one metric. `n`: pairs, or
    jobs of the smaller side. `p`: after Holm's correction. `noise_percent`: standard deviation from pair to pair, or
    between jobs. `needed`: pairs that would find a slowdown of tolerance + `beyond_percent` in that noise
    (None: more than can be asked for, or not interleaved).
    """

    name: str
    unit: str
    better: Better
    status: Status
    reason: str
    design: Design
    weak: bool
    n: int
    baseline: float
    candidate: float
    effect_percent: float
    low_percent: float | None
    high_percent: float | None
    tolerance_percent: float
    level: float
    p: float
    noise_percent: float
    needed: int | None
    low_level: float = 0.0

    def change(self, worse_percent: float) -> float:
        """How much the value itself changes, in percent, where it becomes so much worse: a rate falls."""
        return worse_percent if self.better == "lower" else 100 * (1 / (1 + worse_percent / 100) - 1)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds as changes of the value, in percent, the lower first; None where there are none."""
        if self.low_percent is None or self.high_percent is None:
            return None
        ends = self.change(self.low_percent), self.change(self.high_percent)
        return min(ends), max(ends)


def judge_samples(
    samples: Samples, tolerance_percent: float, sensitivity: Sensitivity | None = None
) -> tuple[Finding, ...]:
    """A finding for each metric, in the order given. `tolerance_percent`: of metrics that do not say their own."""
    asked = sensitivity or Sensitivity()
    weak = samples.design == "separate"
    level = asked.level * (SEPARATE_LEVEL if weak else 1)
    drawn = [_look(samples, metric, tolerance_percent, level) for metric in samples.metrics]
    adjusted = holm([one.estimate.p for one in drawn])
    lower = holm_levels([one.estimate.p for one in drawn], level)
    return tuple(
        _finding(one, p, asked, level, at, len(drawn)) for one, p, at in zip(drawn, adjusted, lower, strict=True)
    )


@dataclass(frozen=True)
class _Look:
    """One metric before the correction: log ratios, above 0 where the candidate is worse."""

    metric: Metric
    design: Design
    n: int
    before: list[float]
    after: list[float]
    noise: float
    tolerance_percent: float
    estimate: Estimate
    tick: float
    slack: float
    at: Callable[[float], Estimate]


def _look(samples: Samples, metric: Metric, default_percent: float, level: float) -> _Look:
    before, after = samples.values(metric)
    sign = 1 if metric.better == "lower" else -1
    old, new = (sign * np.log(np.asarray(side)) for side in (before, after))
    percent = default_percent if metric.tolerance_percent is None else metric.tolerance_percent
    tolerance = math.log1p(percent / 100)
    tick = samples.tick(metric)
    slack = _slack(tick, min(*before, *after))
    paired = samples.design == "interleaved"
    noise = spread(new - old) if paired else _between(old, new)
    n = min(len(old), len(new))

    def at(level: float) -> Estimate:
        if paired:
            return of_pairs(new - old, tolerance, level, slack)
        return of_groups(old, new, tolerance + noise, level, slack)

    return _Look(metric, samples.design, n, before, after, noise, percent, at(level), tick, slack, at)


def _slack(tick: float, least: float) -> float:
    """By how much a log ratio may be off where either value may be by half a tick, and none is below `least`."""
    share = tick / (2 * least)
    return 2 * math.atanh(share) if share < 1 else math.inf


def _between(old: Floats, new: Floats) -> float:
    """Standard deviation between jobs of the same code, log ratio: of each job to its side's median."""
    return max(spread(side) for side in (old, new))


def _finding(look: _Look, p: float, asked: Sensitivity, level: float, low_level: float, metrics: int) -> Finding:
    weak = look.design == "separate"
    found = look.estimate
    if (
        low_level < level
    ):  # a regression is surer where there are many metrics, and its bound as far away; a pass is not
        found = replace(found, low=look.at(low_level).low)
    tolerance = math.log1p(look.tolerance_percent / 100)
    beyond = math.log1p(asked.beyond_percent / (100 + look.tolerance_percent))
    needed = None if weak else pairs_needed(look.noise, beyond, level / metrics, asked.power)
    least = least_jobs(level) if weak else least_pairs(level)
    sign = 1 if look.metric.better == "lower" else -1  # told as the value itself changes, and judged by what is worse
    told = f"{look.metric.name} {_percent(sign * found.center):+.2f} %{_between_bounds(found, sign, level, low_level)}"
    told += "" if sign > 0 else ", more is better"
    allowed = f"{look.tolerance_percent:g}" if sign > 0 else f"{_percent(-tolerance):+.2f}"
    told += f", tolerance {allowed} %, {_count(look)}"
    if look.slack > TOLD_SLACK:
        told += f", of a clock that ticks by {look.tick:.4g} {look.metric.unit}".rstrip()
    if weak:
        known = min(len(look.before), len(look.after)) > 1
        apart = f"{100 * look.noise:.2f} % apart by themselves" if known else "how far apart by themselves is not known"
        told += f", weaker: separate jobs, {apart}"
    status: Status
    if look.n < least:
        status = "inconclusive"
        told += f"; fewer than {least} cannot show anything at {100 * level:g} %"
    elif p <= level:
        status = "regression"
        told += f"; p {p:.2g}"
    elif found.high < tolerance or look.before == look.after:
        status = "pass"
    else:
        status = "inconclusive"
        told += _more(look, needed, asked, p, metrics)
    return Finding(
        name=look.metric.name,
        unit=look.metric.unit,
        better=look.metric.better,
        status=status,
        reason=told,
        design=look.design,
        weak=weak,
        n=look.n,
        baseline=float(np.median(look.before)),
        candidate=float(np.median(look.after)),
        effect_percent=_percent(found.center),
        low_percent=_percent(found.low) if math.isfinite(found.low) else None,
        high_percent=_percent(found.high) if math.isfinite(found.high) else None,
        tolerance_percent=look.tolerance_percent,
        level=level,
        p=p,
        noise_percent=100 * look.noise,
        needed=needed,
        low_level=low_level,
    )


def _more(look: _Look, needed: int | None, asked: Sensitivity, p: float, metrics: int) -> str:
    """What would decide."""
    beside = f" (p {p:.2g} of {metrics} metrics together)" if metrics > 1 else ""
    if look.slack >= math.log1p(asked.beyond_percent / (100 + look.tolerance_percent)):
        return f"; a tick is {_percent(look.slack):.1f} % of a run{beside}: measure longer runs, or by a finer clock"
    if look.design == "separate":
        return f"; the tolerance is between the bounds{beside}: interleave base and candidate in one job"
    if needed is None:
        return f"; noise {100 * look.noise:.1f} % a pair{beside}: more than {MOST_PAIRS} pairs would be needed"
    if look.n < needed:
        aim = f"{look.tolerance_percent + asked.beyond_percent:g} %"
        return f"; noise {100 * look.noise:.1f} % a pair{beside}: {needed} pairs would be needed to find {aim}"
    return f"; the tolerance is between the bounds{beside}: so close to it more pairs decide, or a wider tolerance"


def _count(look: _Look) -> str:
    if look.design == "interleaved":
        return f"{look.n} pairs"
    return f"{len(look.before)} and {len(look.after)} jobs"


def _between_bounds(found: Estimate, sign: int, level: float, low_level: float) -> str:
    if not math.isfinite(found.high):
        return ""
    low, high = (f"{_percent(sign * bound):+.2f}" if math.isfinite(bound) else "" for bound in (found.low, found.high))
    if low_level == level:
        return f" ({100 - 200 * level:g} % interval {' to '.join((low, high)[::sign])})"
    better = f"{low} (at {100 * low_level:.2g} %, of many metrics)" if low else "a bound that so few cannot give"
    return f" (between {better} and {high} (at {100 * level:g} %))"


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


@dataclass(frozen=True)
class Throughput:
    """Measured step times of one run each and the sum of the two spreads (highest minus lowest observed step),
    microseconds. `allowed_us`: the tolerance."""

    status: Status
    reason: str
    baseline_us: float = 0.0
    candidate_us: float = 0.0
    spread_us: float = 0.0
    allowed_us: float = 0.0

    @property
    def difference_percent(self) -> float | None:
        """How much slower the candidate is; None where that was not measured."""
        return 100 * (self.candidate_us / self.baseline_us - 1) if self.baseline_us else None


def compare_throughput(baseline: Profile, candidate: Profile, tolerance_percent: float) -> Throughput:
    """The measured step times of two profiles against a tolerance in percent of the baseline's: one number each."""
    before, after = _measured(baseline), _measured(candidate)
    if before is None or after is None:
        silent = [name for name, m in (("baseline", before), ("candidate", after)) if m is None]
        return Throughput("not judged", f"step time not measured in {' and '.join(silent)}")
    difference, apart = after[0] - before[0], before[1] + after[1]
    allowed = before[0] * tolerance_percent / 100
    told = (
        f"measured step {before[0] / 1000:.3f} -> {after[0] / 1000:.3f} ms "
        f"({100 * difference / before[0]:+.1f} %, tolerance {tolerance_percent:g} %"
    )
    spreads = before[1] > 0 and after[1] > 0
    told += f", spread within the runs {apart / 1000:.3f} ms)" if spreads else ", spread not given)"
    status: Status = "pass"
    within = spreads and difference + max(before[1], after[1]) < allowed
    if baseline.digest != candidate.digest and not within:
        status = "inconclusive"
        told += ": one run each cannot tell; measure interleaved pairs (docs/howto/ci.md)"
    return Throughput(status, told, before[0], after[0], apart, allowed)


def _measured(profile: Profile) -> tuple[float, float] | None:
    """(step, spread) in microseconds; None where the profile's times are not measured."""
    if not profile.run.measured or profile.measured is None or not profile.measured.step_us:
        return None
    return profile.measured.step_us, profile.measured.step_us_spread
