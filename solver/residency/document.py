"""The figures that a plan document carries, from its replay."""

from __future__ import annotations

from hyperopt.plan import Bound, Predicted
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


def bound_of(step_ns: int, bound_ns: int, stop_reason: str) -> Bound:
    """How far a step time can be from the best possible; `optimal` needs the two to be equal."""
    return Bound(
        step_us=bound_ns / 1000,
        gap=(step_ns - bound_ns) / bound_ns if bound_ns else 0.0,
        status="optimal" if step_ns <= bound_ns else "feasible",
        stop_reason=stop_reason,
    )
