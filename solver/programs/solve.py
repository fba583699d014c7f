"""Which way to place programs, and in which order they run: every way bounded, ordered by rule, and the ones that may
be best ordered by CP-SAT.

*Anytime, checked, bounded*: the step in hand is always timed by `simulate` and held against memory; the bound is the
least over all ways of what is proven of each: its loads and ways through the calls (`Placed.bound`), or CP-SAT's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
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
    rivals = [_best(said, some, RIVAL_SHARE * time_limit_s, seed) for some in (together, equal)]
    left = time_limit_s - (time.monotonic() - began)
    best = _best(said, found, left, seed, [rival for rival in rivals if rival is not None])
    if best is None:
        raise NoPlanError("no order was found in time that keeps within memory: give more time", proven=False)
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


def _best(
    said: Programs, some: Sequence[tuple[Group, ...]], seconds: float, seed: int, known: Sequence[Found] = ()
) -> Found | None:
    """The best of some ways, not worse than what is known of them."""
    deadline = time.monotonic() + seconds
    places = sorted((placed(said, way) for way in some), key=lambda p: p.bound)
    best = min(known, key=lambda one: one.value, default=None)
    lines: dict[int, tuple[Orders, Line]] = {}
    for i, p in enumerate(places):
        late = time.monotonic() > deadline - (1 - RULES_SHARE) * seconds
        if best is not None and (p.bound >= best.value or late):
            break
        for rule in RULES:
            orders = by_rule(p, rule)
            line = None if orders is None else simulate(p, orders)
            if orders is not None and line is not None and (i not in lines or line.end < lines[i][1].end):
                lines[i] = orders, line
        if i in lines and (best is None or lines[i][1].end < best.value):
            best = Found(p, *lines[i], 0)
    bound = best.value if best is not None else None
    for i, p in enumerate(places):
        left = deadline - time.monotonic()
        if best is not None and p.bound >= best.value:
            break
        lower = p.bound
        if left > 0 or best is None:
            others = sum(1 for q in places[i:] if best is None or q.bound < best.value)
            cutoff = _longest(p) if best is None else best.value
            answer = best_order(p, lines[i][1] if i in lines else None, cutoff, max(LEAST_S, left / others), seed)
            lower = answer.bound
            line = None if answer.orders is None else simulate(p, answer.orders)
            good = answer.orders is not None and line is not None and _fits(p, answer.orders)
            if good and (best is None or line.end < best.value):
                best = Found(p, answer.orders, line, 0)
        bound = lower if bound is None else min(bound, lower)
    if best is None:
        return None
    return Found(best.placed, best.orders, best.line, min(best.value, bound if bound is not None else 0))


def _longest(p: Placed) -> int:
    """No order without needless waiting ends later."""
    lags = sum(wait.lag * p.runs[c] for c, waits in enumerate(p.waits) for wait in waits)
    copies = sum(n * (p.into[q] + max(p.out.values())) for n, q in zip(p.runs, p.program, strict=True) if q in p.into)
    return sum(n * takes for n, takes in zip(p.runs, p.duration, strict=True)) + lags + copies + 1


def _fits(p: Placed, orders: Orders) -> bool:
    return all(room is None or held(p, order) <= room for room, order in zip(p.room, orders, strict=True))
