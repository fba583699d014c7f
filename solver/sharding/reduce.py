"""Presolve: a smaller problem with the same best solutions, and the way back.

Each step keeps at least one best solution among those that cost less than `FORBIDDEN`:

- a strategy that is forbidden, or that some neighbour has no allowed partner for, goes (arc consistency);
- a strategy that takes more memory above its node's least than is left at a moment of its life goes;
- strategy a goes where b takes no more memory and is cheaper whatever the neighbours choose:
  cost(b) - cost(a) + sum over edges of max over y of (edge(b, y) - edge(a, y)) <= 0;
- a node with one strategy is added to its neighbours' costs, and its memory taken off for good;
- a node whose memory cannot matter (one usage, or no crowded moment in its life) and that has at most two neighbours
  is replaced by what it costs at best for each choice of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from solver.sharding.axis import Axis, make_axis
from solver.sharding.core import Core, Floats, make_core
from solver.sharding.problem import FORBIDDEN, Int64s, Problem

MOST_CAP_BITS = 50
MOST_COMPARED = 20_000_000
"""Steps that comparing the strategies of one node may take; nodes with more are left as they are."""

ROUNDS = 4


class Contradiction(Exception):
    """No solution without a forbidden choice, or none within memory, is left."""


@dataclass
class Reduction:
    """The core and how its solutions become the problem's."""

    core: Core
    axis: Axis
    node_of: Int64s
    """The problem's node of each core node."""
    kept: list[Int64s]
    """The problem's strategy of each core node's strategies."""
    folded: list[tuple[int, tuple[int, ...], Int64s]] = field(repr=False)
    """(node, neighbours, best strategy for each choice of theirs), in the order of folding."""
    nodes: int = 0

    def restore(self, solution: Int64s) -> Int64s:
        """The problem's solution from the core's: one strategy a node."""
        whole = np.full(self.nodes, -1, np.int64)
        for i, kept, x in zip(self.node_of, self.kept, solution, strict=True):
            whole[i] = kept[x]
        for node, neighbours, choice in reversed(self.folded):
            whole[node] = choice[tuple(whole[j] for j in neighbours)]
        return whole


def reduce(problem: Problem, late: Callable[[], bool] = lambda: False, strict: bool = True) -> Reduction:
    """The core of a problem; steps are left out once `late` answers true.

    Raises `Contradiction` if nothing allowed fits. Not `strict`: nothing is taken for forbidden, only capped.
    """
    work = _Work(problem, late, strict)
    work.run()
    return work.result()


class _Work:
    """The problem as one array a node and one matrix a pair, while it shrinks."""

    def __init__(self, problem: Problem, late: Callable[[], bool], strict: bool) -> None:
        self.problem, self.late, self.strict = problem, late, strict
        self.cap = _cap(problem)
        n, first = problem.nodes, problem.first
        cut = first[1:-1]
        cost = np.minimum(problem.cost, int(self.cap)).astype(np.float64)
        self.cost: dict[int, Floats] = dict(enumerate(np.split(cost, cut)))
        least = np.minimum.reduceat(problem.usage, first[:-1])
        self.least = least
        above = (problem.usage - np.repeat(least, problem.strategies)).astype(np.float64)
        self.usage: list[Floats] = np.split(above, cut)
        self.kept: list[Int64s] = [np.arange(k) for k in problem.strategies.tolist()]
        self.pair: dict[int, dict[int, Floats]] = {i: {} for i in range(n)}
        """pair[i][j] is the matrix with i's strategies along the rows; pair[j][i] is its transpose."""
        self.folded: list[tuple[int, tuple[int, ...], Int64s]] = []
        self.fixed_cost = 0
        self._merge_edges()
        self._measure()

    def _merge_edges(self) -> None:
        p = self.problem
        k = p.strategies.tolist()
        cost = np.minimum(p.edge_cost, int(self.cap)).astype(np.float64)
        starts = p.edge_first.tolist()
        for e, (a, b) in enumerate(p.edges.tolist()):
            matrix = cost[starts[e] : starts[e + 1]].reshape(k[a], k[b])
            if a == b:
                self.cost[a] = np.minimum(self.cost[a] + matrix.diagonal(), self.cap)
            else:
                self._add(a, b, matrix)

    def _add(self, a: int, b: int, matrix: Floats) -> None:
        there = self.pair[a].get(b)
        if there is not None:
            matrix = np.minimum(there + matrix, self.cap)
        self.pair[a][b], self.pair[b][a] = matrix, matrix.T

    def _measure(self) -> None:
        """The time axis for the usages that are left; usage above the least is moved there."""
        for i in self.cost:
            low = self.usage[i].min()
            if low > 0:
                self.usage[i] = self.usage[i] - low
                self.least[i] += int(low)
        most = self.least.copy()
        for i in self.cost:
            most[i] += int(self.usage[i].max())
        p = self.problem
        self.axis = make_axis(p.lower, p.upper, self.least, most, p.usage_limit)
        if (self.axis.room < 0).any():
            raise Contradiction("memory")
        self.matters = {
            i: bool(self.axis.lo[i] < self.axis.hi[i] and self.usage[i].max() > 0) for i in self.cost
        }

    def run(self) -> None:
        changed: Iterable[int] = list(self.cost)
        for _ in range(ROUNDS):
            before = sum(map(len, self.cost.values()))
            if self.strict:
                self._consistent(changed)
            touched = self._too_large() | self._dominated()
            self._measure()
            touched |= self._fold()
            if self.late() or (not touched and sum(map(len, self.cost.values())) == before):
                break
            changed = [i for i in touched if i in self.cost]

    def _keep(self, i: int, mask: Any) -> None:
        if not mask.any():
            raise Contradiction("no strategy is left")
        self.cost[i], self.usage[i], self.kept[i] = self.cost[i][mask], self.usage[i][mask], self.kept[i][mask]
        for j, matrix in self.pair[i].items():
            self.pair[i][j] = matrix = np.ascontiguousarray(matrix[mask])
            self.pair[j][i] = matrix.T

    def _consistent(self, changed: Iterable[int]) -> None:
        """Arc consistency: the neighbours of what changed are looked at again until nothing does."""
        queue = set(changed)
        for i in list(queue):
            mask = self.cost[i] < self.cap
            if not mask.all():
                self._keep(i, mask)
        while queue:
            i = queue.pop()
            for j in list(self.pair[i]):
                mask = self.pair[i][j].min(axis=0) < self.cap
                if not mask.all():
                    self._keep(j, mask)
                    queue.add(j)

    def _too_large(self) -> set[int]:
        touched = set()
        least = _window_least(self.axis.room.astype(np.float64), self.axis.lo, self.axis.hi)
        for i in list(self.cost):
            if self.matters[i] and self.usage[i].max() > least[i]:
                self._keep(i, self.usage[i] <= least[i])
                touched.add(i)
        return touched

    def _dominated(self) -> set[int]:
        touched = set()
        for count, i in enumerate(list(self.cost)):
            k = len(self.cost[i])
            if k == 1:
                continue
            if count % 100 == 0 and self.late():
                break
            blocks = list(self.pair[i].values())
            width = sum(b.shape[1] for b in blocks)
            if k * k * width > MOST_COMPARED:
                continue
            wide = np.concatenate(blocks, axis=1) if blocks else np.zeros((k, 0))
            ends = np.cumsum([b.shape[1] for b in blocks], dtype=np.int64) if blocks else np.zeros(0, np.int64)
            usage = self.usage[i] if self.matters[i] else np.zeros(k)
            mask = undominated(self.cost[i], usage, np.ascontiguousarray(wide), ends)
            if not mask.all():
                self._keep(i, mask)
                touched.add(i)
        return touched

    def _fold(self) -> set[int]:
        """Nodes that go altogether. Returns the neighbours whose costs changed."""
        touched: set[int] = set()
        queue = list(self.cost)
        while queue:
            i = queue.pop()
            if i not in self.cost:
                continue
            neighbours = list(self.pair[i])
            if len(self.cost[i]) > 1 and (self.matters[i] or len(neighbours) > 2):
                continue
            if len(self.cost[i]) == 1:
                self.folded.append((i, (), self.kept[i][0]))
                self.fixed_cost += int(self.cost[i][0])
                for j in neighbours:
                    self.cost[j] = self.cost[j] + self.pair[i][j][0]
            elif not neighbours:
                best = int(self.cost[i].argmin())
                self.folded.append((i, (), self.kept[i][best]))
                self.fixed_cost += int(self.cost[i][best])
            elif len(neighbours) == 1:
                (j,) = neighbours
                total = self.cost[i][:, None] + self.pair[i][j]
                self._record(i, (j,), total.argmin(axis=0))
                self.cost[j] = self.cost[j] + total.min(axis=0)
            else:
                a, b = neighbours
                size = len(self.cost[a]) * len(self.cost[b])
                there = sum(len(self.cost[j]) for j in (a, b)) * len(self.cost[i])
                if b not in self.pair[a] and size > 2 * there:
                    continue  # the new matrix would be larger than the two that it replaces
                total = self.cost[i][:, None, None] + self.pair[i][a][:, :, None] + self.pair[i][b][:, None, :]
                self._record(i, (a, b), total.argmin(axis=0))
                self._add(a, b, np.minimum(total.min(axis=0), self.cap))
            for j in neighbours:
                self.cost[j] = np.minimum(self.cost[j], self.cap)
                del self.pair[j][i]
            del self.pair[i], self.cost[i], self.matters[i]
            touched.update(neighbours)
            queue.extend(neighbours)
        return {i for i in touched if i in self.cost}

    def _record(self, i: int, neighbours: tuple[int, ...], best: Int64s) -> None:
        """`best` of i's strategies for the neighbours' remaining ones, in the problem's numbers."""
        choice = np.full([int(self.problem.strategies[j]) for j in neighbours], -1, np.int64)
        choice[np.ix_(*(self.kept[j] for j in neighbours))] = self.kept[i][best]
        self.folded.append((i, neighbours, choice))

    def result(self) -> Reduction:
        self._measure()
        left = sorted(self.cost)
        number = {i: c for c, i in enumerate(left)}
        pairs = {(number[i], number[j]): m for i in left for j, m in self.pair[i].items() if i < j}
        lo, hi = self.axis.lo[left], self.axis.hi[left]
        idle = np.array([not self.matters[i] for i in left], bool)
        core = make_core(
            [self.cost[i] for i in left],
            [self.usage[i] if self.matters[i] else np.zeros(len(self.usage[i])) for i in left],
            np.where(idle, 0, lo),
            np.where(idle, 0, hi),
            self.axis.room.astype(np.float64),
            pairs,
            self.cap,
            self.fixed_cost,
        )
        kept = [self.kept[i] for i in left]
        return Reduction(core, self.axis, np.array(left, np.int64), kept, self.folded, self.problem.nodes)


def _cap(problem: Problem) -> float:
    """More than any solution without a forbidden choice costs, where that is below 2^50; a power of two."""
    total = 0
    for cost, starts in ((problem.cost, problem.first), (problem.edge_cost, problem.edge_first)):
        if len(cost):
            allowed = np.where(cost < FORBIDDEN, cost, 0)
            total += int(np.maximum.reduceat(allowed, starts[:-1]).astype(object).sum())
    return float(2 ** min(MOST_CAP_BITS, total.bit_length()))


def _window_least(values: Floats, lo: Int64s, hi: Int64s) -> Floats:
    """The least of values[lo_i : hi_i]; infinite where that is empty."""
    least: Floats = np.full(len(lo), np.inf)
    table, span = [values], 1
    while 2 * span <= len(values):
        table.append(np.minimum(table[-1][:-span], table[-1][span:]))
        span *= 2
    level = np.frexp(np.maximum(hi - lo, 1).astype(float))[1] - 1
    for i, row in enumerate(table):
        at = (level == i) & (lo < hi)
        least[at] = np.minimum(row[lo[at]], row[hi[at] - (1 << i)])
    return least


@numba.njit(cache=True, nogil=True)
def undominated(cost, usage, wide, ends):  # type: ignore[no-untyped-def]
    """Which strategies stay; `wide` has the matrices of all edges side by side, `ends` where each of them ends."""
    k = len(cost)
    stays = np.ones(k, np.bool_)
    for a in range(k):
        for b in range(k):
            if a == b or not stays[b] or usage[b] > usage[a]:
                continue
            total = cost[b] - cost[a]
            start = 0
            for e in range(len(ends)):
                most = -np.inf
                for y in range(start, ends[e]):
                    most = max(most, wide[b, y] - wide[a, y])
                total += most
                start = ends[e]
            if total <= 0:
                stays[a] = False
                break
    return stays
