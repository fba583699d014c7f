"""One problem out of several: orders of a zero-bubble schedule, or ways to divide a pool of devices.

Each gets a short search and, once there is something to beat, the bound of its linear relaxation; those that this
leaves a chance are solved, the most promising ones first and with most of the time. The bound is the least over all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.stages.master import TOLERANCE, relaxed, stage_reasons
from solver.stages.problem import NoPlanError, Objective, Problem, fastest_split, uniform
from solver.stages.schedule import graph_of
from solver.stages.search import NO_VALUE, Search
from solver.stages.solve import Solution, solve_order
from solver.stages.warm import warm

QUICK_STEPS, QUICK_TASKS = 3_000, 20_000_000
"""Moves of the first look at each problem; fewer where so many tasks have been timed."""

QUICK_SHARE = 0.3
"""Of the time limit, at most, for these looks, once one of them has found something."""

LATER = 1e300
"""What a problem is worth that nobody has looked at: behind those that have been, before those that do not fit."""

LEAST_S = 0.2
"""Seconds of a problem whose turn it is, at the least."""

KEPT, RELAX_S = 4, 0.3
"""How many share the time at first, and seconds for the relaxation of each."""


@dataclass(frozen=True, eq=False)
class Decided:
    """The best solution, which of the problems it is of, and the bound of them all in the description's unit."""

    index: int
    solution: Solution
    bound: float

    @property
    def value(self) -> float:
        """In the description's unit."""
        return self.solution.value * self.solution.problem.tick


def solve(
    problem: Problem,
    objective: Objective = "makespan",
    time_limit_s: float = 60.0,
    seed: int = 0,
    cancelled: Callable[[], bool] = lambda: False,
) -> Solution:
    """The best split found within the time limit, and a bound that no split is below; for a zero-bubble schedule the
    best order with it.

    Raises `NoPlanError` where no split fits, which is then proven, or none was found in time.
    """
    warm()
    orders = zero_bubble(problem)
    if len(orders) == 1:
        return solve_order(orders[0], objective, time_limit_s, seed, cancelled)
    began = time.monotonic()
    decided = decide(orders, objective, time_limit_s, seed, cancelled)
    found, proven = decided.solution, decided.value <= decided.bound
    return replace(
        found,
        bound=float(found.value) if proven else decided.bound / problem.tick,
        status="optimal" if proven else "feasible",
        stop_reason=found.stop_reason if proven or found.status == "feasible" else "time limit",
        seconds=time.monotonic() - began,
    )


def zero_bubble(problem: Problem) -> list[Problem]:
    """The problem with every order of a zero-bubble schedule that is tried, those that hold least first: the first is
    1F1B's. Of other schedules the problem itself.

    Where activations are moved, 1F1B with undivided backwards is one of them too: its copies back are hidden behind
    all of a backward, those of a divided one behind B alone.
    """
    if problem.schedule != "zero-bubble":
        return [problem]
    made: list[Problem] = [_undivided(problem)] if problem.copy_in.any() else []
    for ahead in (1, 2)[: problem.stages]:
        most = min(ahead * (problem.stages - 1), problem.micro_batches)
        lags = {0, most, *(2**i for i in range(most.bit_length()) if 2**i < most)}
        made += [replace(problem, ahead=ahead, lag=lag) for lag in sorted(lags)]
    return made


def _undivided(problem: Problem) -> Problem:
    """1F1B, each backward in one piece."""
    first, last = ((f, b + w) for f, b, w in (problem.first, problem.last))
    nothing = np.zeros_like(problem.weight)
    return replace(
        problem,
        schedule="1f1b",
        backward=problem.backward + problem.weight,
        weight=nothing,
        late=nothing,
        first=first,
        last=last,
    )


def floor(p: Problem, objective: Objective) -> float:
    """Ticks that no split is below, in no time: all layers' least work, as if it could be shared evenly by stages."""
    work = p.forward + p.backward + p.weight if p.parts == 3 else p.forward + p.backward
    least = [int(work[:, p.type_of == t].min()) for t in range(len(p.types))]
    total = sum(least[t] for t in p.layer_types) + int(p.extra.sum())
    return float(total) / p.stages * (1 if objective == "slowest" else p.micro_batches)


def decide(
    problems: Sequence[Problem],
    objective: Objective,
    time_limit_s: float,
    seed: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> Decided:
    """The best of these problems. Raises `NoPlanError` where none of them has a split that fits.

    The limit is looked at before each of them; once it has passed and there is an answer, those that are left have no
    bound but `floor`.
    """
    warm()
    began = time.monotonic()

    def spent() -> float:
        return time.monotonic() - began

    values: list[float] = []
    for p in problems:
        late = spent() > QUICK_SHARE * time_limit_s and min(values, default=np.inf) < np.inf
        values.append(LATER if late else _quick(p, objective, seed) * p.tick)
    best: Decided | None = None
    bounds: list[float] = []
    told: list[str] = []
    for rank, i in enumerate(sorted(range(len(problems)), key=values.__getitem__)):
        p, left = problems[i], time_limit_s - spent()
        if best is not None:
            lower = floor(p, objective) * p.tick
            if left > 0 and not cancelled():
                scale, known = max(1, round(best.value / p.tick)), stage_reasons(p, objective)
                until = time.monotonic() + min(RELAX_S, left)
                lower = max(lower, relaxed(p, objective, scale, known, until)[0] * p.tick)
            if lower * (1 + 2 * TOLERANCE) >= best.value or left <= 0 or cancelled():
                bounds.append(lower)
                continue
        others = KEPT if rank < KEPT else len(problems)
        share = left / (min(others, len(problems)) - rank)
        try:
            found = solve_order(p, objective, max(LEAST_S, share), seed, cancelled)
        except NoPlanError as none:
            told.append(str(none))
            bounds.append(np.inf if none.proven else 0.0)
            continue
        one = Decided(i, found, found.bound * p.tick)
        bounds.append(one.bound)
        if best is None or one.value < best.value:
            best = one
    if best is None:
        raise NoPlanError(told[-1], proven=min(bounds) == np.inf)
    bound = min(bounds)
    return replace(best, bound=best.value if best.value <= bound * (1 + 2 * TOLERANCE) else bound)


def _quick(p: Problem, objective: Objective, seed: int) -> float:
    if p.layers < p.min_layers * p.groups:
        return np.inf
    steps = min(QUICK_STEPS, QUICK_TASKS // len(graph_of(p).duration))
    found, _ = Search(p, objective).walk(fastest_split(p, uniform(p)), steps, seed)
    return float(found) if found < NO_VALUE else np.inf
