"""Small problems, answered by exhaustion: the best plan, and the least HBM in which there is one at all.

Little ones that are too large for that are *sifted*: the same search with so many partial plans an operator, which
finds plans and proves nothing.
"""

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
"""Up to these counts the exact search is tried; it gives up by itself past so many labels for a set of reruns:"""

MAX_LABELS, MOST_LABELS = 60_000, 300_000
"""Without a limit in time or with a short one, and with one that leaves time for more (some ten seconds)."""

SIFT_OPERATORS, SIFT_SETS, WIDTHS = 40, 64, (16, 64, 256)
"""Up to so many operators and sets of reruns steps are sifted, with so many labels an operator, one after another: what
the search for large steps has no words for is found so."""

SIFT_SHARE, LAST_SHARE = 0.2, 0.7
"""Parts of what is left of the limits that it may take before that search, and after it where that ends by itself."""

SIFT_LABELS, REACH_WIDTH = 1_000, 32
"""Labels, fewer of which are not worth it; and labels an operator for the least budget in which there is a plan."""

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

    Labels count as work. Raises `TooLarge` past so many of them for a set of reruns, or past EXACT_SHARE of a limit
    where what is left is enough for the search without proofs, and `Stopped` where nobody waits for more.
    """
    stop = incumbent.stop
    long = (left := stop.seconds_left()) is not None and left >= LONG_S
    share, max_labels = (EXACT_SHARE, MOST_LABELS) if long else (1.0, MAX_LABELS)
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
        for residency, _ in better_plans(problem, chosen, below_ns=below, max_labels=max_labels, check=check):
            incumbent.offer(residency, "exact")


def may_sift(problem: Problem) -> bool:
    if problem.n > SIFT_OPERATORS:
        return False
    options = options_of(problem)
    few_sets = problem.profile.adapter.recompute == "operator" or 2 ** len(options.reruns) <= SIFT_SETS
    return few_sets and _few(problem, options)


def sift(problem: Problem, incumbent: Incumbent, widths: tuple[int, ...], share: float) -> tuple[int, ...]:
    """Offers plans from the exact search with so many labels an operator, until more of them gain nothing, `share` of
    what is left of the limits has been taken, or, without a limit, MAX_LABELS have been made.

    Returns the widths that have not been tried to their end.
    """
    stop = incumbent.stop
    until = stop.spent() + share * (1 - stop.spent())
    allowed = min(int(stop.work_left(NO_LIMIT) * share), NO_LIMIT if stop.seconds_left() is not None else MAX_LABELS)
    most = stop.work + allowed
    if allowed < SIFT_LABELS:
        return widths

    def check(labels: int) -> None:
        stop.work += labels
        if incumbent.stopped() or stop.spent() > until or stop.work >= most:
            raise TooLarge

    options = options_of(problem)
    for place, width in enumerate(widths):
        before = incumbent.best_ns
        try:
            for chosen in _rerun_sets(problem, options):
                check(0)
                below = incumbent.best_ns if incumbent.best_ns is not None else NEVER_NS
                plans = better_plans(problem, chosen, below_ns=below, max_labels=NO_LIMIT, check=check, width=width)
                for residency, _ in plans:
                    incumbent.offer(residency, "sifted")
        except TooLarge:
            return widths[place:]
        if before is not None and incumbent.best_ns == before:
            break
    return ()


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
    been reached, or it is cancelled. With `width`, the least in which so many labels an operator find a plan, as far as
    limits (MAX_LABELS at most) let it be looked for; that proves nothing.
    """
    most = stop.work + MAX_LABELS

    def check(labels: int) -> None:
        stop.work += labels
        if stop.late() or stop.cancelled() or stop.work_left(1) <= 0 or (width is not None and stop.work >= most):
            raise TooLarge

    best: tuple[int, Residency] | None = None
    while low < high:
        middle = (low + high) // 2
        try:
            check(0)
            found = _any_plan(problem, middle, check, width)
        except TooLarge:
            if width is None:
                raise
            break
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
    if not (is_small(trial, options) if width is None else may_sift(trial)):
        raise TooLarge
    max_labels = MAX_LABELS // 4 if width is None else NO_LIMIT
    for chosen in _rerun_sets(trial, options):
        plans = better_plans(trial, chosen, below_ns=NEVER_NS, max_labels=max_labels, check=check, width=width)
        for residency, _ in plans:
            return residency
    return None
