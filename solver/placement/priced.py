"""Within memory by prices: the problem without a limit, which is solved to the end in a moment, with rent for bytes.

::

    cost(x) + price x (bytes alive at the full moments)          price up: less memory, more time

For any price the least of this, less the rent of the limit, is a bound on every choice that fits. The price is halved
in on; moments that overflow join those that are paid for. What comes out along the way is judged as a program, with its
temporaries. It finds what fits where the general search is lost among ties; that one then has the rest of the time.
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

ROUNDS = 24
MOST_MOMENTS = 4
FIRST_PRICE = 1e-6
"""Nanoseconds a byte; a gigabyte then costs a millisecond."""

DEAREST = 1e3


@dataclass
class Priced:
    """Solves at a price. `used` of a solution: bytes over time, as the problem counts them."""

    formulation: Formulation
    seed: int
    base: Problem

    def __post_init__(self) -> None:
        shift = len(self.formulation.operators)
        first = self.base.first
        lower, upper, where, size = [], [], [], []
        for c, tensors in enumerate(self.formulation.tensors):
            for usage, (start, end), _ in self.formulation.usage(tensors):
                lower.append(start)
                upper.append(end)
                where.append(int(first[shift + c]))
                size.append(usage)
        self.lower, self.upper, self.where, self.size = np.array(lower), np.array(upper), where, size
        self.nodes = np.searchsorted(first, where, side="right") - 1

    def used(self, solution: Int64s) -> Int64s:
        """Bytes alive at each operator."""
        length = len(self.formulation.graph.operators)
        change = np.zeros(length + 1, np.int64)
        sizes = np.array([size[solution[node]] for size, node in zip(self.size, self.nodes, strict=True)], np.int64)
        np.add.at(change, self.lower, sizes)
        np.add.at(change, self.upper, -sizes)
        return np.cumsum(change)[:length]

    def solve(self, price: float, moments: list[int], seconds: float) -> Answer:
        """The least of cost and rent, the price shared by the moments."""
        rent = np.zeros(len(self.base.cost))
        for lower, upper, where, size in zip(self.lower, self.upper, self.where, self.size, strict=True):
            alive = sum(lower <= m < upper for m in moments)
            if alive:
                rent[where : where + len(size)] += price * alive / len(moments) * size
        # Rounded down, so that the bound stays one.
        priced = replace(self.base, cost=self.base.cost + np.floor(rent).astype(np.int64))
        return solve(priced, seconds, self.seed, work_limit=60)


def search(formulation: Formulation, limit: int, seconds: float, seed: int, judge: Callable[[Int64s], int]) -> int:
    """A bound, in nanoseconds, on choices within `limit` bytes; `judge` is told every solution on the way, and says how
    many bytes its program overflows by."""
    began = time.monotonic()
    run = Priced(formulation, seed, formulation.problem(None))
    answer = run.solve(0.0, [0], seconds)
    bound = answer.bound
    short = judge(answer.solution)
    if short <= 0:
        return bound
    moments = [int(np.argmax(run.used(answer.solution)))]
    low, high = 0.0, float("inf")
    price = FIRST_PRICE
    for _ in range(ROUNDS):
        left = seconds - (time.monotonic() - began)
        if left <= 0 or price > DEAREST or high / max(low, 1e-12) < 1.02:
            break
        answer = run.solve(price, moments, left)
        bound = max(bound, int(answer.bound - price * limit))
        short = judge(answer.solution)
        used = run.used(answer.solution)
        if short <= 0:
            high = price
        else:
            low = price
            full = int(np.argmax(used))
            if full not in moments and used[full] > limit and len(moments) < MOST_MOMENTS:
                moments.append(full)
        price = price * 4 if high == float("inf") else (low * high) ** 0.5 if low else high / 4
    return bound
