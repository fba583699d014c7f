"""From a profile and a budget to a plan with a bound, or to the reasons why there is none.

Anytime: baselines first, then selections at several prices with their timetables, then the exact search where
the problem is small, then local search; a stop criterion may end it anywhere after the first plan. The result is
never worse than any baseline, since all of them go through the same incumbent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Budget, Plan
from hyperopt.profile import Profile
from hyperopt.script import write_script
from solver.request import Infeasible, OnProgress, Progress, Request
from solver.residency.assemble import assemble
from solver.residency.baselines import BASELINES
from solver.residency.blame import blame
from solver.residency.bound import memory_bound, step_bound_ns
from solver.residency.candidates import Decisions, Move, Rerun, moves, reruns
from solver.residency.document import bound_of, predicted
from solver.residency.exact import TooLarge
from solver.residency.explain import explain
from solver.residency.greedy import everything, greedy
from solver.residency.incumbent import Incumbent, Trial
from solver.residency.infeasible import infeasible
from solver.residency.polish import polish, try_decisions
from solver.residency.problem import Int64s, Problem
from solver.residency.selection import Choice, Selection, select, smallest_load
from solver.residency.small import exhaust, is_small, options_of
from solver.residency.timetable import schedule
from solver.stop import BoundReached, Cancelled, Criterion, Stop, TimeLimit, WorkLimit

PRICES = (0.01, 0.1, 0.5, 2.0)
"""Prices of link time, per nanosecond, at which selections are tried."""

LIGHT_PRICE = 1.0
"""Price of link time where speed is settled and only traffic is left to save."""

ROUNDS = 200

GREEDY_ROUNDS, OPTIMAL_ROUNDS = 8, 2
"""Selections per price, each with the waiting of the one before charged to its moves."""

TIGHTENINGS = 4
"""How often a selection over the budget is repeated with a smaller one."""


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
        _everything(problem, incumbent)
    if incumbent.best is None and (refusal := infeasible(problem, incumbent)) is not None:
        return refusal
    assert incumbent.best is not None
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
    for name, baseline in BASELINES.items():  # all of them, however short the time: no answer is worse than these
        decisions = baseline(problem)
        try_decisions(problem, incumbent, decisions, name)
        if incumbent.best_ns == incumbent.bound_ns:
            _lighten(problem, incumbent, decisions)
            break
    if incumbent.stopped():
        return False
    if problem.hbm_bytes < memory_bound(problem).bytes:
        _smallest(problem, incumbent, Choice(problem, moves(problem), reruns(problem)), request)
        return False
    options = options_of(problem)
    if is_small(problem, options):
        try:
            return exhaust(problem, incumbent, options)
        except TooLarge:
            incumbent.stages["exact"] = "too large"
    choice = Choice(problem, options.moves, options.reruns)
    start = _selections(problem, incumbent, choice, request)
    if start is None and not incumbent.stopped():
        start = _smallest(problem, incumbent, choice, request)
    if start is not None and not incumbent.stopped():
        polish(problem, incumbent, start, options, request.seed, ROUNDS)
    return False


def _everything(problem: Problem, incumbent: Incumbent) -> None:
    """All that can leave, leaves, however slow: what must be tried before "no plan" is said, late or not."""
    chosen = everything(Choice(problem, moves(problem), reruns(problem)))
    try_decisions(problem, incumbent, Decisions(tuple(chosen.moves), tuple(chosen.reruns)), "everything")


def _lighten(problem: Problem, incumbent: Incumbent, rule: Decisions) -> None:
    """Where a rule of thumb is as fast as can be: its copies back with more lead, and fewer bytes moved."""
    best = incumbent.best
    if best is None or best.residency.empty:
        return
    _timetabled(problem, incumbent, rule.moves, rule.reruns)
    choice = Choice(problem, moves(problem), reruns(problem))
    found = greedy(choice, choice.costs(LIGHT_PRICE), hbm_bytes=problem.hbm_bytes)
    if found is not None:
        _timetabled(problem, incumbent, found.moves, found.reruns)


def _selections(problem: Problem, incumbent: Incumbent, choice: Choice, request: Request) -> Decisions | None:
    """Selections at several prices, each repeated with what its plan waited for charged to those it waited for.

    Returns the decisions of the fastest.
    """
    best: tuple[Trial, Decisions] | None = None
    for price in PRICES:
        costs = choice.costs(price)
        for pick, rounds in ((_pick_greedy, GREEDY_ROUNDS), (_pick_optimal, OPTIMAL_ROUNDS)):
            for _ in range(rounds):
                found = _fitting(problem, incumbent, choice, costs, pick, request)
                if found is None or incumbent.stopped():
                    break
                trial, decisions = found
                if best is None or trial.rank() < best[0].rank():
                    best = trial, decisions
                waits = blame(problem, trial.timeline)
                if not waits:
                    break
                choice.charge(costs, decisions.moves, waits)
    return None if best is None else best[1]


Pick = Callable[[Choice, Int64s, int, Request, Incumbent], Selection | None]


def _pick_greedy(choice: Choice, costs: Int64s, hbm: int, request: Request, incumbent: Incumbent) -> Selection | None:
    return greedy(choice, costs, hbm_bytes=hbm)


def _pick_optimal(choice: Choice, costs: Int64s, hbm: int, request: Request, incumbent: Incumbent) -> Selection | None:
    seconds = incumbent.stop.seconds_left()
    share = None if seconds is None else max(0.1, seconds / (2 * len(PRICES)))
    return select(choice, costs, hbm_bytes=hbm, seconds=share, work=5.0, seed=request.seed)


def _fitting(
    problem: Problem, incumbent: Incumbent, choice: Choice, costs: Int64s, pick: Pick, request: Request
) -> tuple[Trial, Decisions] | None:
    """A selection that really fits: the budget is tightened by what the linear model did not see of reruns."""
    hbm_bytes = problem.hbm_bytes
    for _ in range(TIGHTENINGS):
        if incumbent.stopped():
            return None
        found = pick(choice, costs, hbm_bytes, request, incumbent)
        if found is None:
            return None
        trial, decisions = _timetabled(problem, incumbent, found.moves, found.reruns)
        if trial is not None:
            return trial, decisions
        hbm_bytes -= max(1, _excess(problem, decisions))
    return None


def _timetabled(
    problem: Problem, incumbent: Incumbent, chosen: Sequence[Move], again: Sequence[Rerun]
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
    residency = assemble(problem, decisions)
    roomy = Plan(budget=Budget(hbm_bytes=2**53, tiers=problem.budget.tiers), residency=residency)
    try:
        return write_script(problem.profile, roomy, None).static_peak - problem.hbm_bytes
    except (IllegalPlan, OutOfMemory):
        return problem.hbm_bytes // 50


def _smallest(problem: Problem, incumbent: Incumbent, choice: Choice, request: Request) -> Decisions | None:
    """The options that need the least HBM, however slow; copies back at the last moment if need be."""
    seconds = incumbent.stop.seconds_left()
    found = smallest_load(choice, seconds=seconds, work=10.0, seed=request.seed)
    if found is None:
        return None
    late = Decisions(tuple(found.moves), tuple(found.reruns))
    early = Decisions(tuple(schedule(problem, found.moves, found.reruns, problem.unlimited)), late.reruns)
    for decisions in (early, late):
        if try_decisions(problem, incumbent, decisions, "smallest") is not None:
            return decisions
    return None


def _plan(problem: Problem, request: Request, incumbent: Incumbent, trial: Trial, exact: bool) -> Plan:
    timeline, bound_ns = trial.timeline, incumbent.bound_ns
    if exact:
        bound_ns = timeline.step_ns
    reason = "exhausted" if exact else incumbent.stop.why or "no improvement"
    plan = Plan(
        profile_digest=problem.profile.digest,
        program_digest=problem.profile.program_digest,
        budget=Budget(hbm_bytes=problem.hbm_bytes, tiers=problem.budget.tier_bytes(problem.profile)),
        objective=request.objective,
        residency=trial.residency,
        predicted=predicted(problem, timeline),
        bound=bound_of(timeline.step_ns, bound_ns, reason),
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
