"""The residency solver: from a profile and budgets to the best plan found, with a proven bound.

    moves alone ──▶ rules of thumb ──▶ small? exact search; little? sifted, and
    coarse bound ──▶ guides ──▶ drafts, filled and timed ──▶ ruin and refill
    beside it: fluid bound ──▶ a guide, drafts; guides for slower links, drafts ──▶ contest; the rivals' plans as drafts
                                                                                ──▶ ruin and refill
                                            every plan through `Incumbent.offer`: judged by replay

The parts of the search are in their modules; this one is their order, and when to stop. What takes long calls
`Problem.check` on the way, which raises `Stopped` to end it: `Incumbent.check` says when.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from hyperopt.documents import DocumentError
from hyperopt.plan import Budget, Plan
from hyperopt.profile import Profile
from solver.heap import frozen
from solver.request import Infeasible, OnProgress, Progress, Request
from solver.residency.aside import Aside, Job
from solver.residency.assemble import assemble
from solver.residency.baselines import BASELINES
from solver.residency.bound import memory_bound, step_bound_ns
from solver.residency.candidates import Decisions, Rerun, in_waits, reruns, reruns_for
from solver.residency.columns import COARSE, SPEEDS, Guide, Solution, add_guides, solve_fluid
from solver.residency.document import bound_of, predicted
from solver.residency.draft import Table
from solver.residency.exact import TooLarge
from solver.residency.explain import explain
from solver.residency.fluid import Fluid
from solver.residency.incumbent import Incumbent, TooSlow, Trial
from solver.residency.infeasible import infeasible
from solver.residency.problem import Problem, go_on
from solver.residency.rivals.checkmate import DidNotSolve
from solver.residency.rivals.registry import RIVALS
from solver.residency.rounding import shares_by_gap
from solver.residency.search import Search
from solver.residency.small import (
    LAST_SHARE,
    SIFT_SHARE,
    SMALL_OPERATORS,
    WIDTHS,
    exhaust,
    is_small,
    may_sift,
    options_of,
    sift,
)
from solver.residency.tidy import tidy
from solver.residency.warm import warm
from solver.stop import BoundReached, Cancelled, Criterion, Enough, Stop, Stopped, TimeLimit, WorkLimit

ROWS = 48
"""Moments at which the fluid bound counts memory, for prices and guides."""

FINER_ROWS = (48, 96, 192, 384)
"""More moments, one axis after another, while there is time: as many in equal parts of the best plan's own time line,
which waits where the bound does. They only make the bound higher."""

BOUND_SHARE = 0.6
"""Part of the time limit that the bound that guides the search may take, beside it."""

HAND_IN_S = 0.2
"""Before the time limit is over, for the last bound to be handed in."""

COARSE_SHARE = 0.1
"""Part of it that the bound on the coarse axis may take, before the search."""

EARLY_SHARE = 0.15
"""Part of the time limit after which the search on the coarse axis stops, if only with one draft."""

EARLY_RULE_SHARE = 0.3
"""The same of the strongest rule, where it comes before the bound: it then has its turn after it, with the others."""

DRAFTS_SHARE = 0.1
"""Part of the time limit that drafts by the fine bound's guides may take at a time, before rounds; the rest of them
follow while something is done beside the search."""

SHORT_S = 3.0
"""Time limits up to here leave no time for the fine bound: rules come first."""

FEW_OPERATORS = 4_000
"""Up to here the rules of thumb take well under a second; beyond they wait until there is a plan."""

STRONG = ("capuchin", "two-level", "longest-gap", "offload-all", "recompute-all", "knapsack")
"""Rules whose plans the search starts from too, the strongest first."""

EASY = 0.05
"""A first plan so near the bound, relative, is a sign that copies can hide: there Capuchin's rule is quick and good."""

NEAR = 0.01
"""Where plans are so near it, it matters less which draft the search starts from than how long it has."""

SECONDS_A_GAP = 1e-3
"""What one of them may take, in small steps; half of it in large ones."""

ROUNDS = 3_000
"""Ruins and refills where no limit is given."""


class Finer(NamedTuple):
    """The bound on the fine axis, and all reruns, those that its guides want too."""

    solution: Solution
    reruns: list[Rerun]


class NotPlannable(ValueError):
    """A profile that no plan can be made for; the message says why."""


def solve_residency(
    profile: Profile, request: Request, cancelled: Callable[[], bool], on_progress: OnProgress
) -> Plan | Infeasible:
    """The best plan found for `request.budget`, or `Infeasible` with what would be needed."""
    with frozen():
        try:
            return _solve(profile, request, cancelled, on_progress)
        except OverflowError as error:
            raise DocumentError("$", str(error), "use bytes and durations that add up to less than 2^63") from error


def _solve(
    profile: Profile, request: Request, cancelled: Callable[[], bool], on_progress: OnProgress
) -> Plan | Infeasible:
    if profile.timing_only:
        raise NotPlannable("the profile has times but no storages: there is nothing to place")
    problem = Problem(profile, request.budget)
    if not _small(problem):
        warm()
    incumbent = Incumbent(problem, _stop(request, cancelled), step_bound_ns(problem), lambda trial: report(trial))

    def report(trial: Trial) -> None:
        plan = _plan(problem, request, incumbent, trial, exact=False, explained=False)
        on_progress(Progress(trial.stage, trial.step_ns / 1000, incumbent.bound_ns / 1000, plan))

    problem.check = incumbent.check
    done: set[str] = set()
    try:
        exact = _search(problem, incumbent, request, done)
        if not exact and request.time_limit_s is None:
            _complete(problem, incumbent, request, done)
    except Stopped:
        exact = False
        incumbent.stopped()  # for the reason
    problem.check = go_on  # what is left is the answer
    if not exact and problem.n <= FEW_OPERATORS and incumbent.best_ns is not None:
        tidy(incumbent, request.time_limit_s)
    if incumbent.best is None and (refusal := infeasible(problem, incumbent)) is not None:
        return refusal
    assert incumbent.best is not None
    incumbent.tell()
    return _plan(problem, request, incumbent, incumbent.best, exact, explained=True)


def _stop(request: Request, cancelled: Callable[[], bool]) -> Stop:
    criteria: list[Criterion] = [BoundReached(), Cancelled(cancelled)]
    if request.enough_ns is not None:
        criteria.append(Enough(request.enough_ns))
    if request.time_limit_s is not None:
        criteria.append(TimeLimit(request.time_limit_s))
    if request.work_limit is not None:
        criteria.append(WorkLimit(request.work_limit))
    return Stop(*criteria)


def _search(problem: Problem, incumbent: Incumbent, request: Request, done: set[str]) -> bool:
    """Fills the incumbent; returns whether what it holds (or that it holds none) is proven by exhaustion. `done`: rules
    that have been offered."""
    for start in request.starts:
        incumbent.offer(start, "start")
    for name, rule in BASELINES.items():
        if incumbent.best_ns == incumbent.bound_ns:
            break
        if problem.n <= FEW_OPERATORS or name == "keep-all":
            _offer_rule(problem, incumbent, name, rule(problem))
            done.add(name)
        if incumbent.best is None and name == "keep-all" and problem.n > SMALL_OPERATORS:
            _soon(problem, incumbent, request)
    reached = incumbent.best_ns == incumbent.bound_ns
    if not reached and incumbent.stopped():
        return False
    if not reached and _small(problem):
        for name in RIVALS:  # before the exact search takes the time, which what they find makes shorter
            if name not in done:
                _offer_quick(problem, incumbent, name)
                done.add(name)
        try:
            exhaust(problem, incumbent, options_of(problem))
            return True
        except TooLarge:
            incumbent.stages["exact"] = "too large"
    if reached and incumbent.best is not None and incumbent.best.residency.empty:
        return False
    widths = sift(problem, incumbent, WIDTHS if not reached and _little(problem) else (), SIFT_SHARE)
    _refine(problem, incumbent, request, done)
    if not incumbent.stopped():  # it has ended by itself, mostly without a plan
        sift(problem, incumbent, widths, LAST_SHARE)
    return False


def _complete(problem: Problem, incumbent: Incumbent, request: Request, done: set[str]) -> None:
    """Offers the rules that a limit in work came before: never worse than any, where time is no matter."""
    enough_ns = max(incumbent.bound_ns, request.enough_ns or 0)
    for name in STRONG:
        if name not in done and (incumbent.best_ns is None or incumbent.best_ns > enough_ns):
            _offer_rule(problem, incumbent, name, RIVALS[name](problem))


def _small(problem: Problem) -> bool:
    return problem.n <= SMALL_OPERATORS and is_small(problem, options_of(problem))


def _little(problem: Problem) -> bool:
    """Whether sifting may find a plan."""
    return may_sift(problem) and problem.hbm_bytes >= memory_bound(problem).bytes


def _soon(problem: Problem, incumbent: Incumbent, request: Request) -> None:
    """A first plan, of moves alone, at what copies take: before rules, reruns and the bound."""
    fluid = Fluid(problem, ROWS)
    Search(problem, incumbent, Table(problem, []), fluid, Solution.blank(fluid), request.seed).first()


def _offer_quick(problem: Problem, incumbent: Incumbent, name: str) -> None:
    """Offers a rule's plan if it has one; on small problems each takes a fraction of a second."""
    if incumbent.best_ns == incumbent.bound_ns or incumbent.stopped():
        return
    try:
        _offer_rule(problem, incumbent, name, RIVALS[name](problem))
    except DidNotSolve:
        incumbent.stages[name] = "did not solve"


def _offer_rule(problem: Problem, incumbent: Incumbent, name: str, decisions: Decisions) -> None:
    incumbent.offer(assemble(problem, decisions), name)


def _refine(problem: Problem, incumbent: Incumbent, request: Request, done: set[str]) -> None:
    """The search proper, also where a rule is as fast as can be: then for fewer bytes moved."""
    known = reruns(problem)
    fluid = Fluid(problem, ROWS)
    plain = Search(problem, incumbent, Table(problem, known), fluid, Solution.blank(fluid), request.seed)
    plain.first()  # a plan in hand early, whatever the bound takes
    if incumbent.best is None:
        plain.least()
    elif incumbent.best.step_ns <= (1 + EASY) * incumbent.bound_ns:
        _take_rule(problem, incumbent, plain, STRONG[0], done, EARLY_RULE_SHARE)
    if incumbent.stopped() or problem.hbm_bytes < memory_bound(problem).bytes:
        return
    incumbent.tell()
    limit, began = request.time_limit_s, time.monotonic()
    coarse = Fluid(problem, COARSE)
    rough = solve_fluid(coarse, None if limit is None else COARSE_SHARE * limit, incumbent.stopped)
    incumbent.prove(rough.bound_ns)
    left = None if limit is None else BOUND_SHARE * limit - (time.monotonic() - began)
    problem.check()
    known = list(dict.fromkeys([*known, *_guided(problem, coarse, rough.guides, known)]))
    early = Search(problem, incumbent, Table(problem, known), coarse, rough, request.seed)
    early.start(spares=(0.0,), share=EARLY_SHARE)
    early.go_on_from(plain)
    incumbent.tell()

    proven = [(coarse, rough)]  # the finest so far

    def unwanted() -> bool:
        return aside.closed() or incumbent.asked()

    def finer() -> Finer:
        solution = solve_fluid(fluid, left, unwanted, speeds=(), coarse=(coarse, rough))
        proven.append((fluid, solution))
        return with_reruns(solution)

    def slower() -> Finer | None:
        axis, solution = proven[-1]
        seconds = None if limit is None else BOUND_SHARE * limit - (time.monotonic() - began)
        if axis is not fluid or not add_guides(fluid, solution, SPEEDS, seconds, unwanted):
            return None
        return with_reruns(solution)

    def with_reruns(solution: Solution) -> Finer:
        solution = replace(solution, guides=solution.guides.copy(), master=None)  # which go on in the thread
        found = list(dict.fromkeys([*known, *_guided(problem, fluid, solution.guides, known)]))
        return Finer(solution, list(dict.fromkeys([*found, *in_waits(problem, found)])))

    def rule(name: str) -> Callable[[], Decisions]:
        return lambda: RIVALS[name](problem)

    def finest() -> None:
        _prove_finer(problem, incumbent, *proven[-1], unwanted)

    jobs: list[Job] = [(name, rule(name)) for name in STRONG if name not in done]
    at = 0 if limit is None or limit > SHORT_S else len(jobs)
    jobs[at:at] = [("fluid", finer), ("slower", slower)]
    if limit is not None:
        jobs.append(("finer", finest))
    aside = Aside(jobs, beside=limit is not None)
    with aside:
        try:
            _beside(problem, incumbent, request, aside, early, fluid, done)
        finally:
            incumbent.over = limit is not None  # what is under way beside the search ends when it next asks


def _prove_finer(
    problem: Problem, incumbent: Incumbent, fluid: Fluid, solution: Solution, stopped: Callable[[], bool]
) -> None:
    """Higher bounds on finer axes, for what is left of the time."""
    for rows in FINER_ROWS:
        left, best = incumbent.stop.seconds_left(), incumbent.best
        if stopped() or left is None or left <= HAND_IN_S or best is None:
            return
        clock = np.asarray(best.timeline.start, dtype=np.int64)
        finer = Fluid(problem, rows, clock, fluid.axis)
        if finer.axis.rows == fluid.axis.rows:
            return
        solution = solve_fluid(
            finer, left - HAND_IN_S, stopped, guided=False, coarse=(fluid, solution), proven=incumbent.prove
        )
        fluid = finer


def _beside(
    problem: Problem,
    incumbent: Incumbent,
    request: Request,
    aside: Aside,
    search: Search,
    fluid: Fluid,
    done: set[str],
) -> None:
    """The search, which takes over what is found beside it: prices and guides of the finer bound, plans of rules."""
    rounds = {"slower": ROUNDS // 4, STRONG[0]: ROUNDS // 4}  # where nothing is done beside it
    while aside.left:
        search.start((0.0,), until=aside.ready)  # what has not been drafted yet: one may be what no rounds come to
        search.improve(rounds.get(aside.next, 0), until=aside.ready)
        if incumbent.stopped():
            return
        name, answer = aside.take()
        if isinstance(answer, Decisions):
            _offer_rule(problem, incumbent, name, answer)
            done.add(name)
            search.take(answer, name)
        elif isinstance(answer, Finer):
            incumbent.prove(answer.solution.bound_ns)
            table = Table(problem, answer.reruns)
            finer = Search(problem, incumbent, table, fluid, answer.solution, request.seed)
            finer.go_on_from(search)
            finer.start(share=incumbent.stop.spent() + DRAFTS_SHARE)
            search = finer
        best_ns = incumbent.best_ns
        if name == "slower" and best_ns is not None and best_ns > (1 + NEAR) * incumbent.bound_ns:
            search.contest()
    search.improve(ROUNDS)


def _take_rule(
    problem: Problem, incumbent: Incumbent, search: Search, name: str, done: set[str], share: float
) -> None:
    """Offers a rule's plan, and has it searched from, unless that has been done, or there is no time for it before
    `share` of the limit has passed."""
    if name in done or not _time_for_a_rule(problem, incumbent):
        return
    try:
        with incumbent.until(share):
            decisions = RIVALS[name](problem)
    except TooSlow:
        return
    done.add(name)
    _offer_rule(problem, incumbent, name, decisions)
    search.take(decisions, name)


def _time_for_a_rule(problem: Problem, incumbent: Incumbent) -> bool:
    left = incumbent.stop.seconds_left()
    a_gap = SECONDS_A_GAP if problem.n <= FEW_OPERATORS else SECONDS_A_GAP / 2
    return not incumbent.stopped() and (left is None or left > a_gap * len(problem.gaps))


def _guided(problem: Problem, fluid: Fluid, guides: list[Guide], known: list[Rerun]) -> list[Rerun]:
    found: list[Rerun] = []
    for guide in guides:
        drops = shares_by_gap(fluid, guide)[1]
        found += reruns_for(problem, {key for key, share in drops.items() if share >= 0.5}, known)
    return found


def _plan(
    problem: Problem, request: Request, incumbent: Incumbent, trial: Trial, exact: bool, *, explained: bool
) -> Plan:
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
        explain=explain(problem, trial) if explained else (),
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
