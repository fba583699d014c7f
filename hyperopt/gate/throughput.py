"""Step times of one run each: judged only as far as the spread that was measured allows.

With d the difference of the two step times and s the larger spread, the true difference is taken to lie within
d - s and d + s::

    ────────┼──────────────────────────────▶ slower by
          allowed
      ├─────d─────┤         both sides of the allowed: inconclusive
    ├──d──┤                 all within: pass                (not: allowed ├──d──┤, a regression)

One run each says no more than that. Many interleaved runs do; that judge replaces this one.
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperopt.gate.memory import Status
from hyperopt.profile import Profile

DEFAULT_TOLERANCE_PERCENT = 5.0


@dataclass(frozen=True)
class Throughput:
    """Measured step times and the larger of the two spreads (highest minus lowest observed step), microseconds."""

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
    """The measured step times of two profiles against a tolerance in percent of the baseline's."""
    before, after = _measured(baseline), _measured(candidate)
    if before is None or after is None:
        silent = [name for name, m in (("baseline", before), ("candidate", after)) if m is None]
        return Throughput("not judged", f"step time not measured in {' and '.join(silent)}")
    difference, spread = after[0] - before[0], max(before[1], after[1])
    allowed = before[0] * tolerance_percent / 100
    told = (
        f"measured step {before[0] / 1000:.3f} -> {after[0] / 1000:.3f} ms "
        f"({100 * difference / before[0]:+.1f} %, tolerance {tolerance_percent:g} %"
    )
    told += f", spread within a run {spread / 1000:.3f} ms)" if spread else ", spread not given)"
    status: Status
    if baseline.digest == candidate.digest or difference + spread <= allowed:
        status = "pass"
    elif difference - spread > allowed:
        status = "regression"
    else:
        status = "inconclusive"
        told += ": the spread covers the tolerance; measure more steps, or on a quieter machine"
    return Throughput(status, told, before[0], after[0], spread, allowed)


def _measured(profile: Profile) -> tuple[float, float] | None:
    """(step, spread) in microseconds; None where the profile's times are not measured."""
    if not profile.run.measured or profile.measured is None or not profile.measured.step_us:
        return None
    return profile.measured.step_us, profile.measured.step_us_spread
