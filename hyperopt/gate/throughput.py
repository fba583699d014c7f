"""Step times of one run each: judged only as far as the spread that was measured allows.

The difference d of the two step times is a pass if it stays within the tolerance even when the larger spread within
a run is added. Two jobs on one machine differ by more than their steps do (1012 and 1231 ms were measured of the same
code, and 1969 and 3544 ms on a machine that others used), and one run each cannot show by how much. So a regression
is only what exceeds the tolerance, the spreads of both runs, and an allowance for what jobs differ by: as much as the
tolerance again, and at least 25 % of the baseline::

    ────────┼─────────────┼───────────┼────────▶ slower by
        tolerance     + spreads   + allowance
      d─┤                                        pass, up to the end of its spread
              d─┤                                inconclusive
                                        d        regression

One run each says no more than that. Many interleaved runs do; that judge replaces this one.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperopt.gate.memory import Status
from hyperopt.profile import Profile

DEFAULT_TOLERANCE_PERCENT = 5.0

BETWEEN_JOBS_PERCENT = 25.0
"""The least allowance for the difference between two jobs that run the same code."""


@dataclass(frozen=True)
class Throughput:
    """Measured step times and the sum of the two spreads (highest minus lowest observed step), microseconds.

    `allowed_us`: the tolerance; `between_jobs_us`: what a regression must exceed on top of it.
    """

    status: Status
    reason: str
    baseline_us: float = 0.0
    candidate_us: float = 0.0
    spread_us: float = 0.0
    allowed_us: float = 0.0
    between_jobs_us: float = 0.0

    @property
    def difference_percent(self) -> float | None:
        """How much slower the candidate is; None where that was not measured."""
        return 100 * (self.candidate_us / self.baseline_us - 1) if self.baseline_us else None


def compare_throughput(baseline: Profile, candidate: Profile, tolerance_percent: float) -> Throughput:
    """The measured step times of two profiles against a tolerance in percent of the baseline's."""
    before, after = _measured(baseline), _measured(candidate)
    if before is None or after is None:
        silent = [name for name, m in (("baseline", before), ("candidate", after)) if m is None]
        return Throughput("not judged", f"step time not measured in {' and '.join(silent)}")
    difference, spread = after[0] - before[0], before[1] + after[1]
    allowed = before[0] * tolerance_percent / 100
    between = before[0] * max(tolerance_percent, BETWEEN_JOBS_PERCENT) / 100
    told = (
        f"measured step {before[0] / 1000:.3f} -> {after[0] / 1000:.3f} ms "
        f"({100 * difference / before[0]:+.1f} %, tolerance {tolerance_percent:g} %"
    )
    told += f", spread within the runs {spread / 1000:.3f} ms)" if spread else ", spread not given)"
    status: Status
    if baseline.digest == candidate.digest or difference + max(before[1], after[1]) <= allowed:
        status = "pass"
    elif difference - spread > allowed + between:
        status = "regression"
    else:
        status = "inconclusive"
        told += (
            ": one run each cannot tell; a regression is beyond tolerance, spread and "
            f"{max(tolerance_percent, BETWEEN_JOBS_PERCENT):g} % between jobs"
        )
    return Throughput(status, told, before[0], after[0], spread, allowed, between)


def _measured(profile: Profile) -> tuple[float, float] | None:
    """(step, spread) in microseconds; None where the profile's times are not measured."""
    if not profile.run.measured or profile.measured is None or not profile.measured.step_us:
        return None
    return profile.measured.step_us, profile.measured.step_us_spread
