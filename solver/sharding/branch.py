"""Branching: a bound above that of the dual alone, for cores small enough.

Where memory is scarce the dual mixes strategies of a node that differ in usage and cost the same once memory is priced.
Such a node is split: in one part those that pay more rent for memory, in the other those that pay less. Every solution
is in one of the parts, so the least of the parts' bounds holds for all. The part with the least bound is split next.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import numpy as np
from numpy.typing import NDArray

from solver.sharding.core import Floats
from solver.sharding.dual import Dual
from solver.sharding.problem import Int64s

ROUNDS, LONG = 60, 400
"""Rounds of a part's dual: at a time, and at most while they gain."""

GAIN = 2e-4
"""Of the gap, what ROUNDS have to gain for more of them."""

SURE = 0.99
"""Costs are whole: what is above the best cost less this cannot be below it."""


class Branching:
    """Parts by bound; `value` is the float bound, `exact` the proven one, of all solutions cheaper than `upper`."""

    def __init__(self, root: Dual) -> None:
        self.root = root
        self._number = count()
        k = len(root.core.cost)
        self.parts: list[tuple[float, int, Dual, NDArray[np.bool_]]] = [(root.value, 0, root, np.zeros(k, bool))]
        next(self._number)
        self.closed: int | None = None
        """The least proven bound of a part that was given up."""
        self.stuck = False
        self.latest = root

    @property
    def value(self) -> float:
        return self.parts[0][0] if self.parts else np.inf

    def decoded(self) -> Int64s:
        """A solution that the part split last suggests; it need not fit."""
        return self.latest.decoded()

    def split(self, upper: float, late: Callable[[], bool] = lambda: False) -> bool:
        """Splits the part with the least bound; False if there is nothing to split, or `late` came to be true.

        Costs are whole: a part whose bound is above `upper` - 1 holds nothing cheaper.
        """
        if not self.parts or self.stuck:
            return False
        value, _, dual, excluded = self.parts[0]
        halves = self._halves(dual, excluded, upper)
        if halves is None:
            self.stuck = True
            return False
        children = []
        for half in halves:
            child = dual.child(excluded | half)
            before = value
            for done in range(0, LONG, ROUNDS):
                for _ in range(ROUNDS):
                    child.round(upper)
                if late():
                    return False
                if child.value > upper - SURE or (done and child.value < before + GAIN * (upper - before)):
                    break
                before = max(before, child.value)
            if child.value < value:
                child.value, child.lam, child.messages = value, dual.lam.copy(), dual.messages.copy()
            child.rest()
            children.append((child, excluded | half))
        self.latest = min((child for child, _ in children), key=lambda child: child.value)
        heapq.heappop(self.parts)
        for child, without in children:
            if child.value > upper - SURE:
                proven = child.exact()
                self.closed = proven if self.closed is None else min(self.closed, proven)
            else:
                heapq.heappush(self.parts, (child.value, next(self._number), child, without))
        return True

    def _halves(self, dual: Dual, excluded: NDArray[np.bool_], upper: float) -> tuple[NDArray[np.bool_], ...] | None:
        """Two sets of strategies to exclude, all of one node; None if every node has one strategy left."""
        core = dual.core
        excess, rent = dual.excess(), dual.rent()
        gap = max(1e-9, upper - dual.value)
        near = ~excluded & (excess < 0.5 * gap)
        owner = np.repeat(np.arange(core.nodes), np.diff(core.first))
        # How far strategies that may all be right differ in what they pay for memory.
        spread = _spread(rent, near, owner, core.nodes)
        node = int(spread.argmax())
        f, g = int(core.first[node]), int(core.first[node + 1])
        left = np.flatnonzero(~excluded[f:g]) + f
        if spread[node] <= 0:
            free = np.bincount(owner[~excluded], minlength=core.nodes)
            node = int(free.argmax())
            if free[node] < 2:
                return None
            f, g = int(core.first[node]), int(core.first[node + 1])
            left = np.flatnonzero(~excluded[f:g]) + f
            order = left[np.argsort(excess[left], kind="stable")]
            high = order[1:]
        else:
            some = left[near[left]]
            middle = (rent[some].min() + rent[some].max()) / 2
            high = left[rent[left] > middle]
        above, below = np.zeros(len(excluded), bool), np.zeros(len(excluded), bool)
        above[high] = True
        below[np.setdiff1d(left, high)] = True
        return above, below

    def exact(self) -> int:
        """The proven bound: the least of the parts', each proven by itself, closed ones included."""
        bounds = [part[2].exact() for part in self.parts]
        if self.closed is not None:
            bounds.append(self.closed)
        return max(min(bounds, default=0), self.root.exact())


def _spread(rent: Floats, near: NDArray[np.bool_], owner: NDArray[np.int64], nodes: int) -> Floats:
    low, high = np.full(nodes, np.inf), np.full(nodes, -np.inf)
    np.minimum.at(low, owner[near], rent[near])
    np.maximum.at(high, owner[near], rent[near])
    spread: Floats = np.where(high > low, high - low, 0.0)
    return spread
