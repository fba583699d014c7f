"""Presolve: a smaller problem with the same best solutions, and the way back.

Each step keeps at least one best solution among those that cost less than `FORBIDDEN`:

- a strategy that is forbidden, or that some neighbour has no allowed partner for, goes (arc consistency);
- a strategy that takes more memory above its node's least than is left at a moment of its life goes;
- strategy a goes where b takes no more memory and is cheaper whatever the neighbours choose:
  cost(b) - cost(a) + sum over edges of max over y of (edge(b, y) - edge(a, y)) <= 0;
- a node whose strategy is decided by a neighbour's (one allowed partner for each) becomes one with that neighbour;
- a node with one strategy is added to its neighbours' costs, and its memory taken off for good;
- a node whose memory cannot matter (one usage, or no crowded moment in its life) and that has at most two neighbours
  is replaced by what it costs at best for each choice of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hyperopt.engine.compiled import compiled
from solver.sharding.axis import make_axis
from solver.sharding.core import Core, Floats, Pieces, make_core
from solver.sharding.pieces import join, level, narrow, window_least
from solver.sharding.problem import FORBIDDEN, MOST_USAGE, Int64s, Problem

MOST_CAP_BITS = 50
MOST_COMPARED = 20_000_000
"""Steps that comparing the strategies of one node may take; nodes with more are left as they are."""

ROUNDS = 4


class Contradiction(Exception):
    """No solution without a forbidden choice, or none within memory, is left."""


Group = list[tuple[int, Int64s]]
"""(node of the problem, its strategy for each of the group's); the node that leads comes first."""


@dataclass(frozen=True)
class Folded:
    """A group that is gone: choice[strategies of the neighbours] is its own, theirs in the problem's numbers."""

    group: Group
    neighbours: tuple[int, ...]
    choice: Int64s


@dataclass
class Reduction:
    """The core and how its solutions become the problem's."""

    core: Core
    times: Int64s
    """The moment of each of the core's columns."""
    groups: list[Group]
    """What each core node stands for."""
    folded: list[Folded] = field(repr=False)
    """In the order of folding."""
    nodes: int
    ceiling: int
    """Solutions that cost as much or more may be lost: no bound is above it."""

    def restore(self, solution: Int64s) -> Int64s:
        """The problem's solution from the core's: one strategy a node."""
        whole = np.full(self.nodes, -1, np.int64)
        for group, x in zip(self.groups, solution, strict=True):
            for node, kept in group:
                whole[node] = kept[x]
        for fold in reversed(self.folded):
            x = fold.choice[tuple(whole[j] for j in fold.neighbours)]
            for node, kept in fold.group:
                whole[node] = kept[x]
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
        self.cap, total = _cap(problem)
        self.ceiling = FORBIDDEN if total < self.cap else int(self.cap)
        n, first = problem.nodes, problem.first
        cut = first[1:-1]
        cost = np.minimum(problem.cost, int(self.cap)).astype(np.float64)
        self.cost: dict[int, Floats] = dict(enumerate(np.split(cost, cut)))
        # What is above the limit fits as little as just above it: sums stay small.
        limit = min(problem.usage_limit, MOST_USAGE)
        usage = np.minimum(problem.usage, limit + 1)
        least = np.minimum.reduceat(usage, first[:-1])
        most = np.maximum.reduceat(usage, first[:-1])
        axis = make_axis(problem.lower, problem.upper, least, most, limit)
        self.times, self.room = axis.times, axis.room.astype(np.float64)
        above = (usage - np.repeat(least, problem.strategies)).astype(np.float64)
        some = (axis.lo < axis.hi) & (most > least)
        self.uses: dict[int, Pieces] = {
            i: Pieces(axis.lo[i : i + some[i]], axis.hi[i : i + some[i]], u[None, :][: int(some[i])])
            for i, u in enumerate(np.split(above, cut))
        }
        self.groups: dict[int, Group] = {i: [(i, np.arange(k))] for i, k in enumerate(problem.strategies.tolist())}
        self.pair: dict[int, dict[int, Floats]] = {i: {} for i in range(n)}
        """pair[i][j] is the matrix with i's strategies along the rows; pair[j][i] is its transpose."""
        self.folded: list[Folded] = []
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
        """What every strategy of a node uses is taken off the room; then only columns that can overflow stay."""
        self.uses = {i: level(u, self.room) for i, u in self.uses.items()}
        if (self.room < 0).any():
            raise Contradiction("memory")
        stays, self.uses = narrow(self.uses, self.room)
        self.times, self.room = self.times[stays], self.room[stays]

    def run(self) -> None:
        changed: Iterable[int] = list(self.cost)
        for _ in range(ROUNDS):
            before = sum(map(len, self.cost.values()))
            if self.strict:
                self._consistent(changed)
                touched = self._tie()
                self._measure()
            else:
                touched = set()
            touched |= self._too_large() | self._dominated()
            self._measure()
            touched |= self._fold()
            if self.late() or (not touched and sum(map(len, self.cost.values())) == before):
                break
            changed = [i for i in touched if i in self.cost]

    def _keep(self, i: int, mask: Any) -> None:
        if not mask.any():
            raise Contradiction("no strategy is left")
        self.cost[i], self.uses[i] = self.cost[i][mask], self.uses[i].of(mask)
        self.groups[i] = [(node, kept[mask]) for node, kept in self.groups[i]]
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

    def _tie(self) -> set[int]:
        """Nodes whose strategy a neighbour's decides become one with it. Returns what grew."""
        grown: set[int] = set()
        parts: dict[int, list[Pieces]] = {}
        queue = list(self.cost)
        while queue:
            i = queue.pop()
            if i not in self.cost:
                continue
            for j in list(self.pair[i]):
                allowed = self.pair[i][j] < self.cap
                one_j, one_i = (allowed.sum(axis=1) == 1).all(), (allowed.sum(axis=0) == 1).all()
                if one_j and (not one_i or len(self.pair[i]) >= len(self.pair[j])):
                    lead, led, choice = i, j, allowed.argmax(axis=1)
                elif one_i:
                    lead, led, choice = j, i, allowed.argmax(axis=0)
                else:
                    continue
                moved = parts.pop(led, [self.uses[led]])
                parts.setdefault(lead, [self.uses[lead]]).extend(u.of(choice) for u in moved)
                self._absorb(lead, led, choice)
                grown.add(lead)
                if led == i:
                    queue.append(lead)
                    break
        for i, moved in parts.items():
            self.uses[i] = join(moved)
        return {i for i in grown if i in self.cost}

    def _absorb(self, lead: int, led: int, choice: Int64s) -> None:
        """`led` takes strategy choice[x] where `lead` takes x; all but the usage."""
        between = self.pair[lead].pop(led)
        total = self.cost[lead] + self.cost[led][choice] + between[np.arange(len(choice)), choice]
        self.cost[lead] = np.minimum(total, self.cap)
        self.groups[lead] += [(node, kept[choice]) for node, kept in self.groups[led]]
        for j, matrix in self.pair[led].items():
            if j != lead:
                del self.pair[j][led]
                self._add(lead, j, matrix[choice])
        del self.pair[led], self.cost[led], self.uses[led], self.groups[led]

    def _too_large(self) -> set[int]:
        touched = set()
        some = [i for i, u in self.uses.items() if len(u.lo)]
        rooms = window_least(self.room, ((self.uses[i].lo, self.uses[i].hi) for i in some))
        for i, room in zip(some, rooms, strict=True):
            mask = (self.uses[i].usage <= room[:, None]).all(axis=0)
            if not mask.all():
                self._keep(i, mask)
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
            usage = np.ascontiguousarray(self.uses[i].usage.T)
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
            # A single strategy uses nothing any more: `level` has taken it off.
            if len(self.cost[i]) > 1 and (len(self.uses[i].lo) or len(neighbours) > 2):
                continue
            if len(self.cost[i]) == 1 or not neighbours:
                best = int(self.cost[i].argmin())
                self._record(i, (), np.array(best))
                self.fixed_cost += int(self.cost[i][best])
                for j in neighbours:
                    self.cost[j] = self.cost[j] + self.pair[i][j][0]
            elif len(neighbours) == 1:
                (j,) = neighbours
                total = self.cost[i][:, None] + self.pair[i][j]
                self._record(i, (j,), total.argmin(axis=0))
                self.cost[j] = self.cost[j] + total.min(axis=0)
            else:
                a, b = neighbours
                size = len(self.cost[a]) * len(self.cost[b])
                there = sum(len(self.cost[j]) for j in (a, b)) * len(self.cost[i])
                if (b not in self.pair[a] and size > 2 * there) or size * len(self.cost[i]) > MOST_COMPARED:
                    continue  # the new matrix would be larger than the two that it replaces
                total = self.cost[i][:, None, None] + self.pair[i][a][:, :, None] + self.pair[i][b][:, None, :]
                self._record(i, (a, b), total.argmin(axis=0))
                self._add(a, b, np.minimum(total.min(axis=0), self.cap))
            for j in neighbours:
                self.cost[j] = np.minimum(self.cost[j], self.cap)
                del self.pair[j][i]
            del self.pair[i], self.cost[i], self.uses[i], self.groups[i]
            touched.update(neighbours)
            queue.extend(neighbours)
        return {i for i in touched if i in self.cost}

    def _record(self, i: int, neighbours: tuple[int, ...], best: Int64s) -> None:
        """`best` of i's strategies for the neighbours' remaining ones, in the problem's numbers of those."""
        choice = np.full([int(self.problem.strategies[j]) for j in neighbours], -1, np.int64)
        if neighbours:
            choice[np.ix_(*(self.groups[j][0][1] for j in neighbours))] = best
        else:
            choice[...] = best
        self.folded.append(Folded(self.groups[i], neighbours, choice))

    def result(self) -> Reduction:
        self._measure()
        left = sorted(self.cost)
        number = {i: c for c, i in enumerate(left)}
        pairs = {(number[i], number[j]): m for i in left for j, m in self.pair[i].items() if i < j}
        core = make_core(
            [self.cost[i] for i in left],
            [self.uses[i] for i in left],
            self.room,
            pairs,
            self.cap,
            self.fixed_cost,
        )
        return Reduction(
            core, self.times, [self.groups[i] for i in left], self.folded, self.problem.nodes, self.ceiling
        )


def _cap(problem: Problem) -> tuple[float, int]:
    """(cap, the most that a solution without a forbidden choice may cost); the cap is above it, or 2^50."""
    total = 0
    for cost, starts in ((problem.cost, problem.first), (problem.edge_cost, problem.edge_first)):
        if len(cost):
            allowed = np.where(cost < FORBIDDEN, cost, 0)
            total += int(np.maximum.reduceat(allowed, starts[:-1]).astype(object).sum())
    return float(2 ** min(MOST_CAP_BITS, total.bit_length())), total


@compiled(nogil=True)
def undominated(cost, usage, wide, ends):  # type: ignore[no-untyped-def]
    """Which strategies stay; `wide` has the matrices of all edges side by side, `ends` where each of them ends."""
    k = len(cost)
    stays = np.ones(k, np.bool_)
    for a in range(k):
        for b in range(k):
            if a == b or not stays[b]:
                continue
            more = False
            for p in range(usage.shape[1]):
                if usage[b, p] > usage[a, p]:
                    more = True
                    break
            if more:
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
