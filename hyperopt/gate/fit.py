"""Must it fit? A limit of HBM and of slowdown as a gate, told apart by what makes it fit::

    by itself     the replayed peak is within the limit
    with a plan   it is not, but a plan brings it there within the slowdown: the memory is gone all the same
    not           proven: no plan does
    unknown       none was found, and none is ruled out

The solver finds plans (`solver.fit`); here is what its answer means.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from hyperopt.gate.memory import Status
from hyperopt.plan import Plan
from hyperopt.profile import Profile, ns

How = Literal["by itself", "with a plan", "not", "unknown"]

VERDICT: dict[How, Status] = {
    "by itself": "pass",
    "with a plan": "pass",
    "not": "regression",
    "unknown": "inconclusive",
}


@dataclass(frozen=True)
class Requirement:
    """`hbm_bytes` that it must fit in, `tiers` that it may use (what is left out: the device's), and how much longer
    than without a limit a step may take, in percent."""

    hbm_bytes: int
    max_slowdown_percent: float
    tiers: dict[str, int] | None = None


@dataclass(frozen=True)
class Fit:
    """`peak_bytes`: without a plan. With one (`plan_id`): its peak, its slowdown, and what it takes of other tiers.

    `least_bytes`: below it no plan exists (proven), 0 where that was not asked. All simulated.
    """

    how: How
    reason: str
    hbm_bytes: int
    max_slowdown_percent: float
    peak_bytes: int
    plan_id: str = ""
    plan_peak_bytes: int | None = None
    slowdown_percent: float | None = None
    host_peak_bytes: int | None = None
    least_bytes: int = 0

    @property
    def status(self) -> Status:
        return VERDICT[self.how]


def by_itself(required: Requirement, peak_bytes: int) -> Fit | None:
    """The answer where no plan is needed; None where one is."""
    if peak_bytes > required.hbm_bytes:
        return None
    reason = f"fits by itself: peak {peak_bytes} of {required.hbm_bytes} bytes"
    limits = (required.hbm_bytes, required.max_slowdown_percent, peak_bytes)
    return Fit("by itself", reason, *limits, host_peak_bytes=0)


def not_known(required: Requirement, profile: Profile) -> Fit | None:
    """The answer for a profile that says nothing of memory; None for one that does."""
    if profile.operators and profile.storages:
        return None
    lack = "has times but no storages" if profile.operators else "has no operators"
    reason = f"whether it fits is not known: the candidate {lack}; capture with memory profiling on"
    return Fit("unknown", reason, required.hbm_bytes, required.max_slowdown_percent, 0)


def with_plan(required: Requirement, peak_bytes: int, plan: Plan) -> Fit:
    """What a plan for the limit means: a plan in hand, with its prediction and its bound."""
    assert plan.predicted is not None
    seen = plan.predicted
    slower = _slower(seen.step_us, seen.baseline_step_us)
    told = f"peak {peak_bytes} -> {seen.peak_bytes} of {required.hbm_bytes} bytes, step {slower:+.2f} % (simulated"
    told += f", allowed {required.max_slowdown_percent:+g} %)"
    how: How = "with a plan"
    if _within(required, seen.step_us, seen.baseline_step_us):
        told = f"fits only thanks to a plan: {told}"
    elif plan.bound and not _within(required, plan.bound.step_us, seen.baseline_step_us):
        least = _slower(plan.bound.step_us, seen.baseline_step_us)
        how, told = "not", f"does not fit fast enough: {told}; no plan is below {least:+.2f} % (proven)"
    else:
        how, told = "unknown", f"no plan fast enough was found, and none is ruled out: {told}"
    return Fit(
        how=how,
        reason=told,
        hbm_bytes=required.hbm_bytes,
        max_slowdown_percent=required.max_slowdown_percent,
        peak_bytes=peak_bytes,
        plan_id=plan.plan_id or plan.content_id,
        plan_peak_bytes=seen.peak_bytes,
        slowdown_percent=slower,
        host_peak_bytes=sum(seen.tier_peak_bytes.values()),
    )


def without_plan(required: Requirement, peak_bytes: int, least_bytes: int, proven: bool) -> Fit:
    """What it means that no plan was found: below `least_bytes` none exists."""
    told = f"peak {peak_bytes}, at least {least_bytes} bytes are needed by any plan, limit {required.hbm_bytes}"
    how: How = "not" if proven else "unknown"
    told = f"no longer fits: {told}" if proven else f"no plan was found, and none is ruled out: {told}"
    limits = (required.hbm_bytes, required.max_slowdown_percent, peak_bytes)
    return Fit(how, told, *limits, least_bytes=least_bytes)


def compared(before: Fit, after: Fit) -> str:
    """What the change did to it, in a line."""
    if before.how == after.how:
        return f"fits {after.how}, as the baseline does" if after.status == "pass" else f"as the baseline: {after.how}"
    return f"the baseline fits {before.how}, the candidate {after.how}"


def _within(required: Requirement, step_us: float, free_us: float) -> bool:
    """In whole nanoseconds, as replay counts: 103 is within 3 % of 100."""
    return ns(step_us) * 100 <= ns(free_us) * (100 + Fraction(str(required.max_slowdown_percent)))


def _slower(step_us: float, free_us: float) -> float:
    return 100 * (step_us / free_us - 1) if free_us else 0.0
