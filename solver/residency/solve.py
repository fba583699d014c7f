"""From a profile and a budget to a plan with a bound, or to the reasons why there is none.

Anytime: baselines first, then selections at several prices with their timetables, then the exact search where
the problem is small, then local search; a stop criterion may end it anywhere after the first plan. The result is
never worse than any baseline, since all of them go through the same incumbent.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import msgspec

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Bound, Budget, Plan
from hyperopt.profile import Profile
from hyperopt.script import write_script
from solver.request import Infeasible, OnProgress, Progress, Request
from solver.residency.assemble import assemble
from solver.residency.baselines import BASELINES, compatible
from solver.residency.bound import memory_bound, step_bound_ns
from solver.residency.candidates import Move, Rerun, moves, reruns
from solver.residency.document import predicted
from solver.residency.exact import TooLarge, best_plan
from solver.residency.explain import explain
from solver.residency.incumbent import Incumbent, Trial
from solver.residency.infeasible import infeasible
from solver.residency.polish import Decisions, polish, try_decisions
from solver.residency.problem import Problem
from solver.residency.selection import select, smallest_load
from solver.residency.timetable import schedule
from solver.stop import BoundReached, Cancelled, Criterion, Stop, TimeLimit, WorkLimit

PRICES = (0.01, 0.1, 0.5, 2.0)
"""Prices of link time, per nanosecond, at which selections are tried."""

SMALL_OPERATORS, SMALL_MOVABLE, SMALL_RERUNS = 12, 5, 4
"""Up to these counts the exact search is tried; it gives up by itself past MAX_LABELS."""

MAX_LABELS = 60_000

ROUNDS = 200


class NotPlannable(ValueError):
    """A profile that no plan can be made for; the message says why."""


def solve_residency(
    profile: Profile, request: Request, cancelled: Callable[[], bool], on_progress: OnProgress
) -> Plan | Infeasible:
    """The best plan found for `request.budget`, or `Infeasible` with what would be needed."""
    if profile.timing_only:
        raise NotPlannable("the profile has times but no storages: there is nothing to place")
    problem = Problem(profile, request.budget)
    stop = _stop(request, cancelled)
    bound_ns = step_bound_ns(problem)
    incumbent = Incumbent(problem, stop, bound_ns, lambda trial: report(trial))

    def report(trial: Trial) -> None:
        plan = _plan(problem, request, incumbent, trial, exact=False)
        on_progress(Progress(trial.stage, trial.timeline.step_us, bound_ns / 1000, plan))

    exact = _search(problem, incumbent, request)
    if incumbent.best is None:
        return infeasible(problem, incumbent, exact)
    return _plan(problem, request, incumbent, incumbent.best, exact)


def _stop(request: Request, cancelled: Callable[[], bool]) -> Stop:
    criteria: list[Criterion] = [BoundReached(), Cancelled(cancelled)]
    if request.time_limit_s is not None:
        criteria.append(TimeLimit(request.time_limit_s))
    if request.work_limit is not None:
        criteria.append(WorkLimit(request.work_limit))
    return Stop(*criteria)


def _search(problem: Problem, incumbent: Incumbent, request: Request) -> bool:
    """Fills the incumbent; returns whether what it holds (or that it holds none) is proven by exhaustion."""
    for name, baseline in BASELINES.items():
        incumbent.offer(baseline(problem), name)
        if incumbent.stopped():
            return False
    if problem.hbm_bytes < memory_bound(problem).bytes:
        _smallest(problem, incumbent, request)
        return False
    options = Decisions(tuple(moves(problem)), tuple(reruns(problem)))
    if _is_small(problem, options):
        try:
            return _exhaust(problem, incumbent, options)
        except TooLarge:
            incumbent.stages["exact"] = "too large"
    start = _selections(problem, incumbent, options, request)
    if start is None and not incumbent.stopped():
        start = _smallest(problem, incumbent, request)
    if start is not None and not incumbent.stopped():
        polish(problem, incumbent, start, options, request.seed, ROUNDS)
    return False


def _is_small(problem: Problem, options: Decisions) -> bool:
    movable = {move.gap.storage for move in options.moves}
    return problem.n <= SMALL_OPERATORS and len(movable) <= SMALL_MOVABLE and len(options.reruns) <= SMALL_RERUNS


def _exhaust(problem: Problem, incumbent: Incumbent, options: Decisions) -> bool:
    """Every plan of moves, with every set of reruns; proof only where reruns play no part."""
    for count in range(len(options.reruns) + 1):
        for chosen in combinations(options.reruns, count):
            if len(compatible(list(chosen))) < len(chosen):
                continue
            below = incumbent.best_ns if incumbent.best_ns is not None else 1 << 62
            found = best_plan(problem, chosen, below_ns=below, max_labels=MAX_LABELS)
            if found is not None:
                incumbent.offer(found[0], "exact")
            if incumbent.stopped():
                return False
    return not any(operator.recomputable and operator.writes for operator in problem.profile.operators) or (
        problem.profile.adapter.recompute == "none"
    )


def _selections(
    problem: Problem, incumbent: Incumbent, options: Decisions, request: Request
) -> Decisions | None:
    """Selections at several prices with their timetables; the decisions of the fastest."""
    best: tuple[tuple[int, int, int], Decisions] | None = None
    for price in PRICES:
        hbm_bytes = problem.hbm_bytes
        for _ in range(4):
            if incumbent.stopped():
                break
            found = select(
                problem,
                options.moves,
                options.reruns,
                hbm_bytes=hbm_bytes,
                price=price,
                seconds=_share(incumbent.stop.seconds_left(), len(PRICES)),
                work=5.0,
                seed=request.seed,
            )
            if found is None:
                break
            trial, decisions = _timetabled(problem, incumbent, found.moves, found.reruns)
            if trial is not None and (best is None or trial.rank() < best[0]):
                best = trial.rank(), decisions
            if trial is not None:
                break
            hbm_bytes -= max(1, _excess(problem, decisions))  # what the linear model did not see
    return None if best is None else best[1]


def _timetabled(
    problem: Problem, incumbent: Incumbent, chosen: list[Move], again: list[Rerun]
) -> tuple[Trial | None, Decisions]:
    """The chosen options with copies back timed by the unlimited step, then by their own time line."""
    times, best = problem.unlimited, None
    decisions = Decisions(tuple(schedule(problem, chosen, again, times)), tuple(again))
    for _ in range(3):
        trial = try_decisions(problem, incumbent, decisions, "selection")
        if trial is None or (best is not None and trial.rank() >= best[0].rank()):
            break
        best = trial, decisions
        decisions = Decisions(tuple(schedule(problem, chosen, again, trial.timeline)), tuple(again))
    return best if best is not None else (None, decisions)


def _excess(problem: Problem, decisions: Decisions) -> int:
    """Bytes by which a plan is over the budget in listed order."""
    residency = assemble(problem, decisions.moves, decisions.reruns)
    roomy = Plan(budget=Budget(hbm_bytes=2**53, tiers=problem.budget.tiers), residency=residency)
    try:
        return write_script(problem.profile, roomy, None).static_peak - problem.hbm_bytes
    except (IllegalPlan, OutOfMemory):
        return problem.hbm_bytes // 50


def _smallest(problem: Problem, incumbent: Incumbent, request: Request) -> Decisions | None:
    """The options that need the least HBM, however slow."""
    options = moves(problem), reruns(problem)
    found = smallest_load(problem, *options, seconds=incumbent.stop.seconds_left(), work=10.0, seed=request.seed)
    if found is None:
        return None
    decisions = Decisions(tuple(schedule(problem, found.moves, found.reruns, problem.unlimited)), tuple(found.reruns))
    trial = try_decisions(problem, incumbent, decisions, "smallest")
    late = Decisions(tuple(found.moves), tuple(found.reruns))
    return decisions if trial is not None else (late if try_decisions(problem, incumbent, late, "smallest") else None)


def _share(seconds: float | None, parts: int) -> float | None:
    return None if seconds is None else max(0.1, seconds / (2 * parts))


def _plan(problem: Problem, request: Request, incumbent: Incumbent, trial: Trial, exact: bool) -> Plan:
    timeline, bound_ns = trial.timeline, incumbent.bound_ns
    if exact:
        bound_ns = timeline.step_ns
    optimal = timeline.step_ns <= bound_ns
    reason = "exhausted" if exact else incumbent.stop.why or "no improvement"
    plan = Plan(
        profile_digest=problem.profile.digest,
        program_digest=problem.profile.program_digest,
        budget=Budget(hbm_bytes=problem.hbm_bytes, tiers=problem.budget.tier_bytes(problem.profile)),
        objective=request.objective,
        residency=trial.residency,
        predicted=predicted(problem, timeline),
        bound=Bound(
            step_us=bound_ns / 1000,
            gap=(timeline.step_ns - bound_ns) / bound_ns if bound_ns else 0.0,
            status="optimal" if optimal else "feasible",
            stop_reason=reason,
        ),
        explain=explain(problem, trial),
        provenance={
            "solver": "residency",
            "stage": trial.stage,
            "seed": request.seed,
            "work": incumbent.stop.work,
            "adapter": msgspec.to_builtins(problem.profile.adapter),
            "rivals_step_us": dict(incumbent.stages),
        },
    )
    return msgspec.structs.replace(plan, plan_id=plan.content_id)
