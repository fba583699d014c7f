"""Which way to place programs, and in which order they run: every way bounded, ordered by rule, and the ones that may
be best ordered by CP-SAT.

*Anytime, checked, bounded*: the step in hand is always timed by `simulate` and held against memory; the bound is the
least over all ways of what is proven of each: its loads and ways through the calls (`Placed.bound`), or CP-SAT's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hyperopt.programs import Programs
from solver.programs.order import best_order
from solver.programs.problem import Group, Placed, placed
from solver.programs.simulate import RULES, Line, Orders, by_rule, held, simulate
from solver.programs.ways import all_devices, ways
from solver.stages.problem import NoPlanError

RULES_SHARE = 0.3
"""Of the time limit, at most, for orders by rule."""

RIVAL_SHARE = 0.15
"""For each of what it is compared with."""

LEAST_S = 0.2

NEVER = 2**62
"""Ticks of a way that has no order at all."""


@dataclass(frozen=True, eq=False)
class Found:
    """A way with an order and its time line; ticks that no order of the ways it was chosen from is below."""

    placed: Placed
    orders: Orders
    line: Line
    bound: int

    @property
    def value(self) -> int:
        return self.line.end


@dataclass(frozen=True, eq=False)
class Solution:
    """The best that was found of so many `ways`. `together`: the best with all programs on all devices, in turn;
    `equal`: the best on two or more groups of as many devices each; None where none fits."""

    best: Found
    together: Found | None
    equal: Found | None
    ways: int
    status: Literal["optimal", "feasible"]
    stop_reason: str
    seconds: float


def solve(said: Programs, time_limit_s: float = 60.0, seed: int = 0) -> Solution:
    """The best way and order found within the time limit, with a bound that none is below, and what it is compared
    with. Raises `NoPlanError` where no way fits, or none was found in time, and `DocumentError` where there are too
    many."""
    began = time.monotonic()
    found = ways(said)
    everything = all_devices(said).devices
    together = [way for way in found if len(way) == 1 and way[0].on.devices == everything]
    equal = [
        way for way in found
        if len(way) > 1 and len({g.on.devices for g in way}) == 1 and sum(g.on.devices for g in way) == everything
    ]  # fmt: skip
    rivals = [_Search(said, some, RIVAL_SHARE * time_limit_s, seed).run() for some in (together, equal)]
    left = time_limit_s - (time.monotonic() - began)
    search = _Search(said, found, left, seed, [rival for rival in rivals if rival is not None])
    best = search.run()
    if best is None:
        proven = min(search.lower) == NEVER
        told = "keeps within memory" if proven else "was found in time that keeps within memory"
        raise NoPlanError(f"no order of the calls {told}: give larger groups, or smaller activations", proven)
    optimal = best.value <= best.bound
    return Solution(
        best=best,
        together=rivals[0],
        equal=rivals[1],
        ways=len(found),
        status="optimal" if optimal else "feasible",
        stop_reason="bound reached" if optimal else "time limit",
        seconds=time.monotonic() - began,
    )


class _Search:
    """Some ways, the least bound first; ticks that each is proven not to end below, and the best so far."""

    def __init__(
        self, said: Programs, some: Sequence[tuple[Group, ...]], seconds: float, seed: int, known: Sequence[Found] = ()
    ) -> None:
        self.began, self.seconds, self.seed = time.monotonic(), seconds, seed
        self.places = sorted((placed(said, way) for way in some), key=lambda p: p.bound)
        self.lower = [p.bound for p in self.places]
        self.lines: dict[int, Line] = {}
        self.best = min(known, key=lambda one: one.value, default=None)

    def run(self) -> Found | None:
        self._by_rule()
        while self._left() > 0 and self._open():
            self._by_program()
        if self.best is None:
            return None
        return replace(self.best, bound=min(self.best.value, *self.lower))

    def _left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def _open(self) -> list[int]:
        """Ways that may still hold something better."""
        most = NEVER if self.best is None else self.best.value
        return [i for i, lower in enumerate(self.lower) if lower < most]

    def _by_rule(self) -> None:
        for i, p in enumerate(self.places):
            late = self._left() < (1 - RULES_SHARE) * self.seconds
            if self.best is not None and (p.bound >= self.best.value or late):
                break
            for rule in RULES:
                orders = by_rule(p, rule)
                if orders is not None:
                    self._take(i, orders)

    def _by_program(self) -> None:
        """One round: every open way has the same share of what time is left."""
        open_ways = self._open()
        for k, i in enumerate(open_ways):
            p, most = self.places[i], _longest(self.places[i]) if self.best is None else self.best.value
            if self.lower[i] >= most:
                continue
            seconds = max(LEAST_S, self._left() / (len(open_ways) - k))
            answer = best_order(p, self.lines.get(i), most, seconds, self.seed)
            none = self.best is None and answer.bound >= most
            self.lower[i] = NEVER if none else max(self.lower[i], answer.bound)
            if answer.orders is not None:
                self._take(i, answer.orders)
            if self._left() <= 0:
                break

    def _take(self, way: int, orders: Orders) -> None:
        """Times an order and holds it against memory."""
        p = self.places[way]
        line = simulate(p, orders)
        fits = all(room is None or held(p, order) <= room for room, order in zip(p.room, orders, strict=True))
        if line is None or not fits:
            return
        if way not in self.lines or line.end < self.lines[way].end:
            self.lines[way] = line
        if self.best is None or line.end < self.best.value:
            self.best = Found(p, orders, line, 0)


def _longest(p: Placed) -> int:
    """No order without needless waiting ends later."""
    lags = sum(wait.lag * p.runs[c] for c, waits in enumerate(p.waits) for wait in waits)
    copies = sum(n * (p.into[q] + max(p.out.values())) for n, q in zip(p.runs, p.program, strict=True) if q in p.into)
    return sum(n * takes for n, takes in zip(p.runs, p.duration, strict=True)) + lags + copies + 1
