"""Robust plans: for durations as they may turn out, not only as they are taken to be.

    plan as ever ─────────────────────┐
    plan for slower copies ───────────┤   each started     replayed in scenarios  ──▶ the least quantile of
    plan for those and fast kernels ──┼── from the      ──▶ that all plans share       the step wins
    plans for the worst scenarios ────┘   ones before                                       │
                                                       fresh scenarios: what it is worth ◀──┘

A bound on every operator at once is neither: for the sum of a step it is too much, and for what hides behind it too
little, since a copy shows where kernels are *shorter* than thought, or copies longer. So durations are drawn together
(`hyperopt.cost.scenarios`) and whole steps replayed. Which plan is chosen and what it is worth are told by different
draws, because the best of several looks better than it is on those that chose it.

Whether a plan fits does not depend on durations at all: by the execution model an operator waits for memory that is
being released, and it runs out only where listed order leaves too little. What durations change is how long it waits.
The peak is looked at in every scenario all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

from hyperopt.cost.scenarios import Scenarios, shaped
from hyperopt.engine import Arrays, arrays_of, orders_of, run
from hyperopt.plan import EMPTY, Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from solver import Infeasible, Request, solve
from solver.labels import in_order_of_use
from solver.request import OnProgress
from solver.residency.absence import Replayed
from solver.residency.document import bound_of, predicted
from solver.residency.explain import explain
from solver.residency.problem import Problem

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

WORST = 2
"""Scenarios that are planned for by themselves: those in which the plan as ever waits longest."""

FIRST_SHARE = 0.4
"""Of the time, and of the work, for the plan as ever; the others, which start from it, share the rest."""


@dataclass(frozen=True)
class Worth:
    """A plan over scenarios, simulated: step and stall in us at the median and at the quantile, the highest peak in
    bytes of any, and in how many it fitted. `step_us_between`: where the quantile of all steps that could be drawn lies
    with probability `SURE` (`between`)."""

    step_us: float
    step_us_at: float
    step_us_between: tuple[float, float | None]
    stall_us: float
    stall_us_at: float
    peak_bytes: int
    fitted: int

    def told(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Robust:
    """`plan` is the one to use, `ordinary` the one that was made for the durations as they are; `unlimited`: the step
    without a plan and without a limit. `chosen`: how the plan came about. All worth by the same fresh scenarios."""

    plan: Plan
    ordinary: Plan
    chosen: str
    quantile: float
    scenarios: int
    robust_worth: Worth
    ordinary_worth: Worth
    unlimited: Worth
    notes: tuple[str, ...]


def plan_robustly(
    profile: Profile,
    request: Request,
    chosen_on: Scenarios,
    told_on: Scenarios,
    quantile: float,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = lambda _: None,
) -> Robust | Infeasible:
    """The plan with the least `quantile` of the step over `chosen_on`, and what it is worth over `told_on`.

    Limits of time and work are for all plans together. Raises as `solver.solve`, and ValueError for another objective
    than `min_step_time`, or a node.
    """
    if request.objective != "min_step_time" or request.node is not None:
        raise ValueError("robust plans are made for the least step time, of a rank by itself")
    ordinary = solve(profile, _part(request, FIRST_SHARE), cancelled=cancelled, on_progress=on_progress)
    if isinstance(ordinary, Infeasible):
        return ordinary
    steps = Steps(profile)
    limit = ordinary.budget.hbm_bytes
    plans = {"the durations as they are": ordinary}
    others = _others(profile, chosen_on, steps, ordinary, quantile)
    share = (1 - FIRST_SHARE) / len(others)
    for name, likely in others.items():
        if cancelled():
            break
        starts = tuple(plan.residency for plan in plans.values())
        found = solve(likely, replace(_part(request, share), starts=starts), cancelled=cancelled)
        if isinstance(found, Plan) and all(found.residency != plan.residency for plan in plans.values()):
            plans[name] = found
    ranked = {name: steps.worth(plan, chosen_on, quantile, limit) for name, plan in plans.items()}
    chosen = min(ranked, key=lambda name: (-ranked[name].fitted, ranked[name].step_us_at))
    plan = ordinary if plans[chosen] is ordinary else _as_made_for(profile, plans[chosen], ordinary)
    robust_worth = steps.worth(plan, told_on, quantile, limit)
    ordinary_worth = robust_worth if plan is ordinary else steps.worth(ordinary, told_on, quantile, limit)
    unlimited = steps.worth(EMPTY, told_on, quantile, None)
    told = {
        "quantile": quantile,
        "scenarios": len(told_on),
        "made_for": chosen,
        "candidates": {name: round(worth.step_us_at, 3) for name, worth in ranked.items()},
        "robust": robust_worth.told(),
        "ordinary": ordinary_worth.told(),
        "unlimited": unlimited.told(),
        "notes": list(told_on.notes),
    }
    plan = msgspec.structs.replace(plan, provenance={**plan.provenance, "robust": told})
    return Robust(
        plan, ordinary, chosen, quantile, len(told_on), robust_worth, ordinary_worth, unlimited, told_on.notes
    )


def _part(request: Request, share: float) -> Request:
    time_limit = None if request.time_limit_s is None else request.time_limit_s * share
    work = None if request.work_limit is None else max(1, round(request.work_limit * share))
    return replace(request, time_limit_s=time_limit, work_limit=work)


def _others(
    profile: Profile, scenarios: Scenarios, steps: Steps, ordinary: Plan, quantile: float
) -> dict[str, Profile]:
    """Steps to plan for besides the one as it is."""
    slow = float(np.quantile(scenarios.copies, quantile))
    usual = np.median(scenarios.duration_ns, axis=0).astype(np.int64)
    totals = scenarios.duration_ns.sum(axis=1)
    quick = float(np.quantile(totals, 1 - quantile) / np.median(totals))
    found = {
        "slower copies": shaped(profile, usual, slow),
        "slower copies and faster kernels": shaped(profile, np.round(usual * quick).astype(np.int64), slow),
    }
    _, stall, _, _ = steps.figures(ordinary, scenarios, ordinary.budget.hbm_bytes)
    for number in np.argsort(-stall)[:WORST].tolist():
        found[f"scenario {number}, one of the {WORST} with the longest waits"] = scenarios.step(number)
    return found


def _as_made_for(profile: Profile, plan: Plan, ordinary: Plan) -> Plan:
    """A plan that was made for other durations, as one for the profile: its figures replayed there, and the bound of
    the ordinary plan's search, which holds for all plans of the profile."""
    problem, timeline = Problem(in_order_of_use(profile), plan.budget), replay(profile, plan)
    assert ordinary.bound is not None
    made = msgspec.structs.replace(
        plan,
        profile_digest=ordinary.profile_digest,
        program_digest=ordinary.program_digest,
        predicted=predicted(problem, timeline),
        bound=bound_of(timeline.step_ns, round(ordinary.bound.step_us * 1000), ordinary.bound.stop_reason),
        explain=explain(problem, Replayed(plan.residency, timeline)),
    )
    return msgspec.structs.replace(made, plan_id=made.content_id)


class Steps:
    """Replays of one profile under many durations: the compiled engine with other numbers in its tables."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.arrays = arrays_of(profile)
        self.unlimited: dict[int, I64] = {}

    def figures(self, plan: Plan, scenarios: Scenarios, limit: int | None) -> tuple[I64, I64, I64, int]:
        """Step and stall in ns and peak in bytes by scenario, and in how many the plan fitted."""
        orders = orders_of(self.profile, plan)
        step, stall, peak = (np.zeros(len(scenarios), np.int64) for _ in range(3))
        fitted = 0
        before = self._unlimited(scenarios) if plan is not EMPTY else np.zeros(len(scenarios), np.int64)
        for i in range(len(scenarios)):
            outcome = run(self._in(scenarios, i), orders, limit, plan.budget.tiers)
            fitted += outcome.status == "fits" and (limit is None or outcome.peak_bytes <= limit)
            step[i], peak[i] = outcome.step_ns, outcome.peak_bytes
            stall[i] = 0 if plan is EMPTY else outcome.step_ns - int(before[i]) - outcome.recompute_ns
        return step, stall, peak, fitted

    def worth(self, plan: Plan, scenarios: Scenarios, quantile: float, limit: int | None) -> Worth:
        step, stall, peak, fitted = self.figures(plan, scenarios, limit)
        return Worth(
            step_us=_at(step, 0.5),
            step_us_at=_at(step, quantile),
            step_us_between=between(step, quantile),
            stall_us=_at(stall, 0.5),
            stall_us_at=_at(stall, quantile),
            peak_bytes=int(peak.max(initial=0)),
            fitted=fitted,
        )

    def _unlimited(self, scenarios: Scenarios) -> I64:
        key = id(scenarios)
        if key not in self.unlimited:
            orders = orders_of(self.profile, EMPTY)
            found = [run(self._in(scenarios, i), orders, None, {}).step_ns for i in range(len(scenarios))]
            self.unlimited[key] = np.array(found, np.int64)
        return self.unlimited[key]

    def _in(self, scenarios: Scenarios, number: int) -> Arrays:
        tables, factor = self.arrays.tables, float(scenarios.copies[number])
        duration = np.ascontiguousarray(scenarios.duration_ns[number])
        out_ns, in_ns = (
            np.where(table < 0, table, np.ceil(table * factor).astype(np.int64))
            for table in (tables.out_ns, tables.in_ns)
        )
        longest = max(duration.max(initial=0), out_ns.max(initial=0), in_ns.max(initial=0))
        return replace(
            self.arrays, tables=tables._replace(duration=duration, out_ns=out_ns, in_ns=in_ns),
            most_ns=float(duration.sum(dtype=np.float64)), longest_ns=float(longest),
        )  # fmt: skip


def _at(values: I64, quantile: float) -> float:
    return round(float(np.quantile(values, quantile)) / 1000, 3)


SURE = 0.9
"""Probability of the interval that is told of a quantile."""


def between(step_ns: I64, quantile: float) -> tuple[float, float | None]:
    """The interval (us) that the quantile lies in with probability `SURE`, by the ranks of what was drawn, whatever the
    distribution (David and Nagaraja, "Order statistics", 2003, section 7.1); None: no step that was drawn is high
    enough to say. Draws that are spread evenly over their chance are nearer than independent ones, which it is for."""
    ordered, n = np.sort(step_ns), len(step_ns)
    fewer = bdtr(np.arange(n), n, quantile)  # at most so many lie below the quantile
    lows, highs = np.flatnonzero(fewer <= (1 - SURE) / 2), np.flatnonzero(fewer >= (1 + SURE) / 2)
    low = int(lows[-1]) if len(lows) else 0
    return round(float(ordered[low]) / 1000, 3), round(float(ordered[highs[0]]) / 1000, 3) if len(highs) else None


def lines(robust: Robust) -> Sequence[str]:
    """The price of safety as a table."""
    at = f"{robust.quantile:.0%}"
    heads = ("step", f"step, {at}", "stall", f"stall, {at}", "peak, most")
    rows = [
        f"{robust.scenarios} steps drawn anew, simulated, median and {at}; robust: made for {robust.chosen}",
        f"{'':10} " + " ".join(f"{head:>14}" for head in heads),
    ]
    for name, worth in (
        ("ordinary", robust.ordinary_worth), ("robust", robust.robust_worth), ("unlimited", robust.unlimited)
    ):  # fmt: skip
        times = (worth.step_us, worth.step_us_at, worth.stall_us, worth.stall_us_at)
        cells = "".join(f" {us / 1000:11.2f} ms" for us in times)
        rows.append(
            f"{name:10}{cells} {worth.peak_bytes / 2**20:10.1f} MiB, fits in {worth.fitted} of {robust.scenarios}"
        )
    low, high = robust.robust_worth.step_us_between
    ends = f"between {low / 1000:.2f} and {high / 1000:.2f} ms" if high is not None else f"above {low / 1000:.2f} ms"
    rows.append(
        f"drawn are {robust.scenarios} steps of all that could be: the robust plan's {at} is {ends} with probability "
        f"{SURE:g}" + ("" if high is not None else "; too few were drawn to say below what")
    )
    price = robust.robust_worth.step_us / robust.ordinary_worth.step_us - 1
    gain = 1 - robust.robust_worth.step_us_at / robust.ordinary_worth.step_us_at
    rows.append(f"safety: {price:+.2%} of the median step, for {gain:.2%} less at {at}")
    return rows
