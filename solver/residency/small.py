"""Small problems, answered by exhaustion: the best plan, and the least HBM in which there is one at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations

import msgspec

from hyperopt.plan import Residency
from solver.residency.baselines import compatible
from solver.residency.candidates import Decisions, Rerun, moves, reruns
from solver.residency.exact import TooLarge, better_plans
from solver.residency.incumbent import Incumbent
from solver.residency.problem import Problem
from solver.stop import Stop, Stopped

SMALL_OPERATORS, SMALL_MOVABLE, SMALL_RERUNS = 12, 5, 8
"""Up to these counts the exact search is tried; it gives up by itself past MAX_LABELS."""

MAX_LABELS, MOST_LABELS = 60_000, 300_000
"""Without a limit in time, and with one (some ten seconds of it)."""

SIFT_OPERATORS, SIFT_SETS, WIDTHS = 40, 64, (16, 64, 256, 1024)
"""Up to so many operators, and sets of reruns, the exact search is tried with so many labels an operator, without a
proof: it finds plans that the search for large steps has no words for."""

SIFT_SHARE, SIFT_LABELS, REACH_WIDTH = 0.2, 1_000, 32
"""Part of a limit that this may take before that search (where that finds no plan it has what is left); labels, fewer
of which are not worth it; and labels an operator for the least budget in which there is a plan."""

EXACT_SHARE, LONG_S = 0.5, 4.0
"""Part of a limit that the exact search may take where others could find better plans in the rest; of a time limit
shorter than LONG_S seconds all, for they take a second to begin."""

NEVER_NS = NO_LIMIT = 1 << 62


def options_of(problem: Problem) -> Decisions:
    """Every move and rerun there is."""
    return Decisions(tuple(moves(problem)), tuple(reruns(problem)))


def is_small(problem: Problem, options: Decisions) -> bool:
    return problem.n <= SMALL_OPERATORS and _few(problem, options)


def _few(problem: Problem, options: Decisions) -> bool:
    again = len(options.reruns)
    if problem.profile.adapter.recompute == "operator":
        again = sum(o.recomputable and bool(o.writes) for o in problem.profile.operators)
    return len(problem.movable) <= SMALL_MOVABLE and again <= SMALL_RERUNS


def exhaust(problem: Problem, incumbent: Incumbent, options: Decisions) -> None:
    """Offers the best of all plans that the adapter can carry out, and each better one on the way.

    Labels count as work. Raises `TooLarge` past so many of them, or past EXACT_SHARE of a limit where what is left is
    enough for the search without proofs, and `Stopped` where nobody waits for more.
    """
    stop = incumbent.stop
    share = 1.0 if (left := stop.seconds_left()) is not None and left < LONG_S else EXACT_SHARE
    labels = MAX_LABELS if left is None else MOST_LABELS
    most = stop.work + int(stop.work_left(NO_LIMIT) * EXACT_SHARE)

    def check(labels: int) -> None:
        stop.work += labels
        problem.check()
        if incumbent.stopped():  # late too without a plan in hand: more of the same need not find one
            raise Stopped
        if (share < 1.0 and stop.spent() >= share) or stop.work >= most:
            raise TooLarge

    for chosen in _rerun_sets(problem, options):
        check(0)
        below = incumbent.best_ns if incumbent.best_ns is not None else NEVER_NS
        for residency, _ in better_plans(problem, chosen, below_ns=below, max_labels=labels, check=check):
            incumbent.offer(residency, "exact")


def may_sift(problem: Problem, options: Decisions) -> bool:
    small = problem.n <= SIFT_OPERATORS and _few(problem, options)
    return small and (problem.profile.adapter.recompute == "operator" or 2 ** len(options.reruns) <= SIFT_SETS)


def sift(problem: Problem, incumbent: Incumbent, options: Decisions, share: float = 1.0) -> None:
    """Offers plans from the exact search with ever more labels an operator, until it stops gaining, `share` of a limit
    has been taken, or the widest has been tried."""
    stop = incumbent.stop
    until, allowed = min(1.0, stop.spent() + share), int(stop.work_left(NO_LIMIT) * share)
    most = stop.work + allowed
    if allowed < SIFT_LABELS:
        return

    def check(labels: int) -> None:
        stop.work += labels
        if incumbent.stopped() or (until < 1.0 and stop.spent() >= until) or stop.work >= most:
            raise TooLarge

    try:
        for width in WIDTHS:
            before = incumbent.best_ns
            for chosen in _rerun_sets(problem, options):
                below = incumbent.best_ns if incumbent.best_ns is not None else NEVER_NS
                for residency, _ in better_plans(
                    problem, chosen, below_ns=below, max_labels=NO_LIMIT, check=check, width=width
                ):
                    incumbent.offer(residency, "sifted")
            if before is not None and incumbent.best_ns == before:
                return
    except TooLarge:
        pass


def _rerun_sets(problem: Problem, options: Decisions) -> Iterable[tuple[Rerun, ...] | None]:
    """What may be recomputed together; None where the search may run single operators again as it likes."""
    if problem.profile.adapter.recompute == "operator":
        return [None]
    sets = (chosen for count in range(len(options.reruns) + 1) for chosen in combinations(options.reruns, count))
    return (chosen for chosen in sets if len(compatible(list(chosen))) == len(chosen))


def least_budget(
    problem: Problem, low: int, high: int, stop: Stop, width: int | None = None
) -> tuple[int, Residency] | None:
    """The least HBM, from `low` up to below `high` bytes, in which a plan runs, and such a plan; None: there is none.

    `low` must be a proven bound. Raises `TooLarge` where that cannot be settled, or not before a limit of `stop` has
    been reached, or it is cancelled. With `width`, the least in which so many labels an operator find a plan, which
    proves nothing.
    """

    def check(labels: int) -> None:
        stop.work += labels
        if stop.late() or stop.cancelled() or stop.work_left(1) <= 0:
            raise TooLarge

    best: tuple[int, Residency] | None = None
    while low < high:
        try:
            check(0)
            middle = (low + high) // 2
            found = _any_plan(problem, middle, check, width)
        except TooLarge:
            if width is None:
                raise
            return best
        if found is None:
            low = middle + 1
        else:
            best, high = (middle, found), middle
    return best


def _any_plan(problem: Problem, hbm_bytes: int, check: Callable[[int], None], width: int | None) -> Residency | None:
    if problem.n > (SMALL_OPERATORS if width is None else SIFT_OPERATORS):
        raise TooLarge
    trial = Problem(problem.profile, msgspec.structs.replace(problem.budget, hbm_bytes=hbm_bytes))
    options = options_of(trial)
    if not (is_small(trial, options) if width is None else may_sift(trial, options)):
        raise TooLarge
    most = MAX_LABELS // 4 if width is None else NO_LIMIT
    for chosen in _rerun_sets(trial, options):
        for residency, _ in better_plans(trial, chosen, below_ns=NEVER_NS, max_labels=most, check=check, width=width):
            return residency
    return None
