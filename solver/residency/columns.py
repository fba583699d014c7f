"""Column generation for the fluid bound: the linear program asks at its prices, storages answer with journeys.

::

    master ──prices──▶ fluid.answer: a bound, and journeys ──columns──▶ master ...

The bound is the best that any prices have proven; it holds wherever this stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from solver.residency.carried import carried
from solver.residency.fluid import PARTS, Fluid, Prices
from solver.residency.master import TIME, Master, Option

SMOOTHING = (1.0, 0.4, 0.15, 0.05)
"""Weights of the linear program's own prices, against the best known, at which journeys are asked for."""

COARSE = 12
"""Rows of the axis on which first prices are found: they start the search for those on the finer one."""

SETTLED = 1e-3
"""A guide is good enough when a round shortens it by less than this part."""

SPEEDS = (0.8, 0.6)
"""Of links, in guides beside the true one."""

STALLED, STALL_ROUNDS = 0.05, 3
"""The program is solved where so many rounds close less than such a part of what is between it and the bound. Proofs
grant storages more than journeys can (several turns in one gap), so that the two may never meet."""

GUIDE_ROUNDS = 12
"""Of column generation, for a guide."""

CARRIED = 0.02
"""Share of a journey from which it is among those that a finer axis starts from."""

GUIDES_FROM = 0.6
"""Part of the time after which what is left is for guides."""


@dataclass(frozen=True)
class Guide:
    """What the program would do with links of `speed` times their bandwidth: prices, and (share, journey) pairs.

    Whole copies that queue do not use a link as fully as a fluid does; slower links make a guide that leaves room.
    """

    speed: float
    prices: Prices
    shares: list[tuple[float, list[Option]]]


@dataclass
class Solution:
    """The proven bound (ns), the prices that prove it, guides to plans, and the journeys that a finer axis starts
    from."""

    bound_ns: float
    prices: Prices
    guides: list[Guide] = field(default_factory=list)
    rounds: int = 0
    journeys: list[list[Option]] = field(default_factory=list)
    master: Master | None = field(default=None, repr=False)  # to go on with, where there may be more guides

    @classmethod
    def blank(cls, fluid: Fluid) -> Solution:
        """What is known before anything is solved."""
        prices = fluid.no_prices()
        return cls(0.0, prices, [Guide(1.0, prices, [])])


def solve_fluid(
    fluid: Fluid,
    seconds: float | None,
    stopped: Callable[[], bool] = lambda: False,
    tolerance: float = 5e-4,
    rounds: int = 200,
    guided: bool = True,
    speeds: tuple[float, ...] = SPEEDS,
    coarse: tuple[Fluid, Solution] | None = None,
    proven: Callable[[float], None] = lambda _: None,
) -> Solution:
    """Column generation until the bound is within `tolerance` (relative) of the program's optimum, they have stopped to
    come nearer to each other, or time is up.

    First prices are those of `coarse`, the same program solved on a coarser axis, which else is done here. `guided`:
    with guides, for the links as they are and for `speeds` times that. Prices are smoothed: those asked at lie between
    the best known and the linear program's, which converges in fewer rounds. `proven` is told of every better bound
    (nanoseconds) at once.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    best_prices = fluid.no_prices()
    best, found = fluid.answer(best_prices)
    solution = Solution(best, best_prices)
    master = Master(fluid, stopped)
    if coarse is None and fluid.axis.rows > 2 * COARSE:
        coarser = Fluid(fluid.problem, COARSE)
        known = solve_fluid(coarser, None if seconds is None else seconds / 4, stopped, guided=False)
        coarse = coarser, known
    if coarse is not None:
        coarser, known = coarse
        prices = fluid.from_coarser(coarser, known.prices)
        bound, _ = fluid.answer(prices)
        _, found = fluid.answer(prices, proof=False)
        master.add(found, prices)
        for options in carried(fluid, coarser, known.journeys):
            u = int(np.searchsorted(fluid.gaps.first_gap, options[0][0], side="right")) - 1
            master.add_journey(u, options, prices)
        solution.bound_ns = known.bound_ns
        if bound > solution.bound_ns:
            solution.bound_ns, solution.prices = bound, prices
        else:
            solution.prices = prices
    until = None if seconds is None or deadline is None else deadline - (1 - GUIDES_FROM if guided else 0) * seconds
    raised = False  # whether a round has raised the bound
    apart: list[float] = []  # from then on, how far the program is from it
    for number in range(rounds):
        left = None if until is None else until - time.monotonic()
        if (left is not None and left <= 0) or stopped():
            break
        raw = master.solve(left)
        if raw is None:
            break
        value = master.value / TIME
        solution.rounds = number + 1
        solution.journeys = [options for _, options in master.shares(CARRIED)]
        prices = fluid.feasible(raw)
        added = 0
        for weight in SMOOTHING:  # of the linear program's own prices
            if stopped():
                break
            mixed = prices if weight == 1.0 else fluid.feasible(_mix(solution.prices, prices, weight))
            bound, _ = fluid.answer(mixed)
            _, found = fluid.answer(mixed, proof=False)
            added += master.add(found, mixed)
            if bound > solution.bound_ns:
                solution.bound_ns, solution.prices, raised = bound, mixed, True
                proven(bound)
        if not added or value - solution.bound_ns <= tolerance * value:
            break
        if raised:
            apart.append(value - solution.bound_ns)
        if len(apart) > STALL_ROUNDS and apart[-1] > (1 - STALLED) * apart[-1 - STALL_ROUNDS]:
            break
    if guided:
        able = master.corner(None if deadline is None else deadline - time.monotonic())
        solution.guides.append(Guide(1.0, solution.prices, master.shares() if able else []))
        solution.master = master if able else None
        if speeds:
            add_guides(fluid, solution, speeds, None if deadline is None else deadline - time.monotonic(), stopped)
    return solution


def add_guides(
    fluid: Fluid,
    solution: Solution,
    speeds: tuple[float, ...],
    seconds: float | None,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Guides for slower links, from where `solve_fluid` has left the program, which is given up then; returns how many
    were made."""
    deadline, before = None if seconds is None else time.monotonic() + seconds, len(solution.guides)
    master, solution.master = solution.master, None
    if master is None:
        return 0
    for speed in speeds:
        left = None if deadline is None else deadline - time.monotonic()
        if (left is not None and left <= 0) or stopped():
            break
        guide = _guide(fluid, master, speed, left)
        if guide is not None:
            solution.guides.append(guide)
    return len(solution.guides) - before


def _guide(fluid: Fluid, master: Master, speed: float, seconds: float | None) -> Guide | None:
    deadline = None if seconds is None else time.monotonic() + seconds / 2
    master.set_speed(speed)
    prices: Prices | None = None
    value = np.inf
    for _ in range(GUIDE_ROUNDS):
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        raw = master.solve(left)
        if raw is None:
            break
        prices = Prices(*(np.maximum(getattr(raw, name), 0) for name in PARTS))
        before, value = value, master.value
        _, found = fluid.answer(prices, proof=False)
        if value > before * (1 - SETTLED) or not master.add(found, prices):
            break
    able = prices is not None and master.lightest(value * 1.002, None if seconds is None else seconds / 2)
    guide = Guide(speed, prices, master.shares()) if prices is not None and able else None
    master.shortest()  # for the next
    return guide


def _mix(a: Prices, b: Prices, weight: float) -> Prices:
    return Prices(*((1 - weight) * getattr(a, name) + weight * getattr(b, name) for name in PARTS))
