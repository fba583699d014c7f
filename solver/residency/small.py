"""Small problems, answered by exhaustion: the best plan, and the least HBM in which there is one at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations

import msgspec

from hyperopt.plan import Residency
from solver.residency.baselines import compatible
from solver.residency.candidates import Decisions, Rerun, moves, reruns
from solver.residency.exact import TooLarge, best_plan
from solver.residency.incumbent import Incumbent
from solver.residency.problem import Problem

SMALL_OPERATORS, SMALL_MOVABLE, SMALL_RERUNS = 12, 5, 8
"""Up to these counts the exact search is tried; it gives up by itself past MAX_LABELS."""

MAX_LABELS = 60_000

NEVER_NS = 1 << 62


def options_of(problem: Problem) -> Decisions:
    """Every move and rerun there is."""
    return Decisions(tuple(moves(problem)), tuple(reruns(problem)))


def is_small(problem: Problem, options: Decisions) -> bool:
    again = len(options.reruns)
    if problem.profile.adapter.recompute == "operator":
        again = sum(o.recomputable and bool(o.writes) for o in problem.profile.operators)
    return problem.n <= SMALL_OPERATORS and len(problem.movable) <= SMALL_MOVABLE and again <= SMALL_RERUNS


def exhaust(problem: Problem, incumbent: Incumbent, options: Decisions) -> bool:
    """Offers the best of all plans that the adapter can carry out; true when the search was complete."""
    for chosen in _rerun_sets(problem, options):
        below = incumbent.best_ns if incumbent.best_ns is not None else NEVER_NS
        found = best_plan(problem, chosen, below_ns=below, max_labels=MAX_LABELS)
        if found is not None:
            incumbent.offer(found[0], "exact")
        if incumbent.stopped():
            return False
    return True


def _rerun_sets(problem: Problem, options: Decisions) -> Iterable[tuple[Rerun, ...] | None]:
    """What may be recomputed together; None where the search may run single operators again as it likes."""
    if problem.profile.adapter.recompute == "operator":
        return [None]
    sets = (chosen for count in range(len(options.reruns) + 1) for chosen in combinations(options.reruns, count))
    return (chosen for chosen in sets if len(compatible(list(chosen))) == len(chosen))


def least_budget(problem: Problem, low: int, high: int, late: Callable[[], bool]) -> tuple[int, Residency] | None:
    """The least HBM, from `low` up to below `high` bytes, in which a plan runs, and such a plan; None: there is none.

    `low` must be a proven bound. Raises `TooLarge` where that cannot be settled, or not before it is `late`.
    """
    best: tuple[int, Residency] | None = None
    while low < high:
        if late():
            raise TooLarge
        middle = (low + high) // 2
        found = _any_plan(problem, middle)
        if found is None:
            low = middle + 1
        else:
            best, high = (middle, found), middle
    return best


def _any_plan(problem: Problem, hbm_bytes: int) -> Residency | None:
    if problem.n > SMALL_OPERATORS:
        raise TooLarge
    trial = Problem(problem.profile, msgspec.structs.replace(problem.budget, hbm_bytes=hbm_bytes))
    options = options_of(trial)
    if not is_small(trial, options):
        raise TooLarge
    for chosen in _rerun_sets(trial, options):
        found = best_plan(trial, chosen, below_ns=NEVER_NS, max_labels=MAX_LABELS // 4)
        if found is not None:
            return found[0]
    return None
