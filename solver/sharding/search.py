"""The search for good solutions of a core: forests of many sizes, greedy or under falling heat.

A slice is one call of the compiled loop, some milliseconds of a fixed effort: what is done depends on the seed and the
number of slices, never on the clock.
"""

from __future__ import annotations

import numpy as np

from solver.sharding import trees
from solver.sharding.core import Core, Floats
from solver.sharding.problem import Int64s

EFFORT, SMALL_EFFORT = 2_000_000.0, 200.0
"""Additions and comparisons, more or less, in one slice; for small cores so many times what all nodes take."""

SIZES = ((8, 1), (25, 2), (80, 4), (250, 8), (800, 16), (2500, 64), (2**62, 2**62))
"""Forests: nodes of more than one neighbour, and seeds that they grow from."""

SHY = 64
"""Nodes of more neighbours rarely join a small forest: they bring all their leaves."""

ATTEMPTS = 6
HEATS = (0.3, 0.1, 0.03, 0.01)
"""Where annealing starts, in units of the cost a node; it ends at a thousandth of that."""

FIRST_CYCLE, LONGER, LONGEST = 60, 1.3, 1000
GREEDY = 0.3
"""Slices of the first annealing, what the next is longer by, up to how many; the share of greedy slices after it."""


class Search:
    """`x` is the solution at hand, `best` the cheapest feasible one seen (None: none yet), at `best_cost`."""

    def __init__(self, core: Core, seed: int) -> None:
        self.core = core
        self.dice = np.random.default_rng(seed)
        n, k = core.nodes, np.diff(core.first)
        degree = np.diff(core.at)
        self.owner = np.repeat(np.arange(n), degree)
        self.roots = np.flatnonzero(degree != 1)
        if not len(self.roots):
            self.roots = np.arange(n)
        towards = np.bincount(self.owner, weights=k[core.to], minlength=n) / np.maximum(1, degree)
        self.weight = k * (8.0 + np.diff(core.piece_at) + towards) + 0.3 * core.columns / max(1, n)
        self.effort = min(EFFORT, SMALL_EFFORT * float(self.weight.sum()))
        sizes = [s for s in SIZES if s[0] < len(self.roots)]
        self.sizes = [*sizes, (n + 1, len(self.roots))]
        self.score = np.ones(len(self.sizes))
        self.lam = np.zeros(core.columns)
        self.x = np.zeros(n, np.int64)
        self.cond = np.empty(len(core.cost))
        self.use = np.empty(core.columns)
        self.buffers = (
            np.zeros(n, np.int64), np.zeros(2 * n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64),
            np.empty(len(core.to) + 1, np.int64), np.empty(len(core.cost)), np.zeros(n, np.int64),
            np.zeros(core.columns + 1), np.empty(core.columns), np.zeros(1, np.int64),
        )  # fmt: skip
        self.best: Int64s | None = None
        self.best_cost = np.inf
        self.start(self.x)
        self.left, self.length, self.cycle, self.heat, self.stale = 0, int(FIRST_CYCLE / LONGER), 0, 0.0, 0
        self.fresh: Int64s | None = None

    def start(self, x: Int64s) -> None:
        """Takes up `x`, with everything that follows from it computed anew."""
        c = self.core
        self.x[:] = x
        trees.fill(c.piece_at, c.lo, c.hi, c.usage_at, c.usage, self.x, self.use)
        trees.condition(c.first, c.cost, c.at, c.to, c.matrix, c.table, self.x, self.cond)
        self.overflow = float(np.maximum(0.0, self.use - c.room).sum())
        self.cost = float(trees.total_cost(c.first, c.cost, c.at, c.to, c.matrix, c.table, self.x))
        self._note()

    def price(self, lam: Floats) -> None:
        """Prices a byte in each column."""
        self.lam = lam.copy()

    @property
    def scale(self) -> float:
        """A price to begin surcharges with."""
        some = self.lam[self.lam > 0]
        return float(some.mean()) if len(some) else max(1.0, self.cost) / max(1.0, float(self.core.room.sum()))

    def slice(self) -> None:
        """A slice of what is due: repair and greedy descent first, then annealing and descent in turn."""
        if self.left > 0:
            self.left -= 1
            done = 1 - self.left / self.length
            warm = done < 1 - GREEDY
            self._run(self.heat * 10 ** (-3 * done / (1 - GREEDY)) if warm else 0.0)
            if self.left == 0:
                self.start(self.x)
                if self.best is not None and (self.cost > self.best_cost or self.overflow > 0):
                    self.start(self.best)
            return
        before = (self.overflow, self.cost)
        self._run(0.0)
        if before == (self.overflow, self.cost):
            self.stale += 1
            if self.stale > 3 * len(self.sizes):
                self._reheat()
        else:
            self.stale = 0

    def suggest(self, x: Int64s) -> None:
        """Another start, to be taken up when the descent under way is through."""
        self.fresh = x

    def _reheat(self) -> None:
        if self.fresh is not None:
            # What better prices and messages suggest, repaired and descended from like the first.
            self.start(self.fresh)
            self.fresh, self.stale = None, 0
            return
        if self.best is None:
            # Nothing fits yet: memory is dearer than the prices say where it runs short.
            self.lam[self.use > self.core.room] += self.scale
            self.start(self.x)
            self.stale = 0
            return
        self.start(self.best)
        self.length = min(LONGEST, int(self.length * LONGER) + 1)
        self.left, self.stale = self.length, 0
        self.heat = HEATS[self.cycle % len(HEATS)] * max(1.0, self.best_cost) / self.core.nodes
        self.cycle += 1

    def _run(self, heat: float) -> None:
        chances = self.score / self.score.sum()
        uniform = heat > 0 or self.dice.random() < 0.3
        s = int(self.dice.integers(len(self.sizes)) if uniform else self.dice.choice(len(self.sizes), p=chances))
        target, spread = self.sizes[s]
        shy = SHY if target < 1000 and target < self.core.nodes else 2**62
        c = self.core
        gained, self.overflow = trees.improve(
            int(self.dice.integers(2**31)), self.effort, target, spread, shy, 0.0, 1.2, ATTEMPTS, self.scale, heat,
            c.first, c.piece_at, c.lo, c.hi, c.usage_at, c.usage, c.room, c.at, c.to, c.back, self.owner, c.matrix,
            c.table, self.roots, self.lam, self.weight, self.x, self.cond, self.use, self.overflow, *self.buffers,
        )  # fmt: skip
        self.cost += gained
        if heat == 0:
            worth = max(0.0, -gained) / max(1.0, self.cost) * 1e6 + 1e-3
            self.score[s] = 0.8 * self.score[s] + 0.2 * worth
        self._note()

    def _note(self) -> None:
        if self.overflow == 0 and self.cost < self.best_cost:
            self.best, self.best_cost = self.x.copy(), self.cost
