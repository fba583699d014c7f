"""The figures that a plan document carries, from its replay."""

from __future__ import annotations

from hyperopt.plan import Predicted
from hyperopt.replay import Timeline
from solver.residency.problem import Problem


def predicted(problem: Problem, timeline: Timeline) -> Predicted:
    """Simulated figures of a plan beside those of the unlimited step without one."""
    return Predicted(
        step_us=timeline.step_us,
        peak_bytes=timeline.peak_bytes,
        stall_us=timeline.stall_us,
        tier_peak_bytes=timeline.tier_peak_bytes,
        baseline_step_us=problem.unlimited.step_us,
        baseline_peak_bytes=problem.unlimited.peak_bytes,
    )
