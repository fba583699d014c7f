"""Within memory by prices: the problem without a limit, which is solved to the end in a moment, with rent for bytes.

::

    cost(x) + sum over full moments of price x bytes         price up: less memory then, more time

For any prices the least of this, less the rent of the limit, is a bound on every choice that fits: what is paid for
surely lies there (`Formulation.usages`, `temporaries`). Moments at which a program was seen to overflow get a price;
prices go up where it still does and down where it does not, by less each round. What comes out along the way is judged
as a program. This finds what fits where the general search is lost among ties; that one then has the rest of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solver.placement.formulate import Formulation
from solver.sharding import Answer, Problem, solve

Int64s = NDArray[np.int64]

ROUNDS = 60
MOST_MOMENTS = 12
FIRST_PRICE = 1e-5
"""Nanoseconds a byte; a gigabyte then costs ten milliseconds."""

DEAREST = 1e3
FIRST_FACTOR, SHRINKING = 8.0, 0.9
"""By what prices change at first, and the power to which that is taken after each round."""

LEAST_FACTOR = 1.03

SLICES = 60
"""Of the general search, within one round: it is rarely asked at all."""

CLOSE = 1e-3
"""A step that is so near its bound is not worked on further."""

NONE = 2**62
"""Nanoseconds of nothing."""


@dataclass
class Priced:
    """Solves at prices."""

    formulation: Formulation
    seed: int
    base: Problem

    def __post_init__(self) -> None:
        self.usages = self.formulation.tensor_usages()
        self.edge_of = {edge: e for e, edge in enumerate(self.formulation.edges)}

    def solve(self, prices: dict[int, float], seconds: float) -> Answer:
        """The least of cost and rent. Rents are rounded down: the bound stays one."""
        rent, edges = np.zeros(len(self.base.cost)), np.zeros(len(self.base.edge_cost))
        first, edge_first = self.base.first, self.base.edge_first
        for node, size, (lower, upper) in self.usages:
            price = sum(p for m, p in prices.items() if lower <= m < upper)
            if price:
                rent[first[node] : first[node + 1]] += price * size
        for m, price in prices.items():
            for node, size in self._running(m):
                rent[first[node] : first[node + 1]] += price * size
            for edge, size in self._beside(m).items():
                e = self.edge_of[edge]
                edges[edge_first[e] : edge_first[e + 1]] += price * size.ravel()
        priced = replace(
            self.base,
            cost=self.base.cost + np.floor(rent).astype(np.int64),
            edge_cost=self.base.edge_cost + np.floor(edges).astype(np.int64),
        )
        return solve(priced, seconds, self.seed, work_limit=SLICES)

    def used(self, solution: Int64s, m: int) -> int:
        """Bytes that surely lie in memory at a moment."""
        shift = len(self.formulation.operators)
        total = self.formulation.graph.base_bytes
        total += sum(int(size[solution[node]]) for node, size, (lower, upper) in self.usages if lower <= m < upper)
        total += sum(int(size[solution[node]]) for node, size in self._running(m))
        return total + sum(int(size[solution[a], solution[shift + b]]) for (a, b), size in self._beside(m).items())

    def _running(self, m: int) -> list[tuple[int, Int64s]]:
        i, kind = divmod(m, 3)
        return [(self.formulation.operator_class[i], self.formulation.running(i))] if kind == 1 else []

    def _beside(self, m: int) -> dict[tuple[int, int], Int64s]:
        i, kind = divmod(m, 3)
        return self.formulation.temporaries(i, kind == 2) if kind else {}


def search(
    formulation: Formulation,
    limit: int,
    seconds: float,
    seed: int,
    judge: Callable[[Int64s], tuple[int, int, int]],
) -> int:
    """A bound, in nanoseconds, on choices within `limit` bytes.

    `judge` is told every solution on the way, and says how many bytes its program overflows by, its fullest moment, and
    the least nanoseconds of all that fit so far.
    """
    began = time.monotonic()
    run = Priced(formulation, seed, formulation.problem(None))
    answer = run.solve({}, seconds)
    bound = answer.bound
    short, full, best = judge(answer.solution)
    prices: dict[int, float] = {}
    factor = FIRST_FACTOR
    for _ in range(ROUNDS):
        left = seconds - (time.monotonic() - began)
        if left <= 0 or best <= bound * (1 + CLOSE):
            break
        for m in prices:
            over = (short > 0 and m == full) or run.used(answer.solution, m) > limit
            prices[m] = min(DEAREST, max(1e-9, prices[m] * (factor if over else factor**-0.5)))
        if short > 0 and full not in prices and len(prices) < MOST_MOMENTS:
            prices[full] = max(prices.values(), default=FIRST_PRICE)
        factor = max(LEAST_FACTOR, factor**SHRINKING)
        answer = run.solve(prices, left)
        room = limit - formulation.graph.base_bytes
        bound = max(bound, int(answer.bound - sum(prices.values()) * room))
        short, full, best = judge(answer.solution)
    return bound
