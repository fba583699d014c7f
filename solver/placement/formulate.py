"""A graph on a mesh as a sharding problem (`solver.sharding`), and the way back from its solution to a choice.

::

    operator ──┐ edge: redistribution between what it needs or makes and what is kept
    tensor   ──┘ node cost: copies; usage: bytes of one device, alive from first writer to last reader

Costs are nanoseconds. Identical layers and micro-batches are treated alike: operators in the same place of layers that
look the same are one class, with one node; so are their tensors. A class pays for all its members. Members that live at
other times than the first are nodes of their own without cost, tied to it by an edge that allows equal strategies only:
the solver's presolve melts them into one node whose usage is a step function of time.

Every operator has three moments: inputs are brought, it runs, outputs are stored. What surely lies there at each is in
the usage: kept tensors from the store of the first writer to the last reader's bringing, and, while an operator runs,
what it makes and what ends with it, in its own layouts. Other temporaries of a redistribution depend on two choices at
once and are left out (`temporaries` has them, for prices), so that the problem's memory is a lower bound; `shard` looks
at the program that comes out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from hyperopt.graph import VIEWS, Tensor
from hyperopt.mesh import Mesh
from solver.placement.alike import classes
from solver.placement.choice import Choice, Frame, Keep
from solver.placement.layout import Layout, Ways, local_shape, ways
from solver.placement.price import Kernels, closed_cost, operator_ns, workspace_bytes
from solver.placement.signature import Strategy
from solver.sharding import Problem

Int64s = NDArray[np.int64]

NEVER = 10**18
"""The cost of a pair that must not be chosen."""

Allowed = Callable[[Tensor, Keep], bool]
"""Restricts how tensors are kept (for rivals and for tests); where it leaves nothing, it does not hold."""


@dataclass
class _Operators:
    """A class of operators."""

    members: list[int]
    strategies: list[Strategy]
    ns: Int64s


@dataclass
class _Tensors:
    """A class of tensors."""

    members: list[int]
    keeps: list[Keep]
    ways: Ways
    phases: tuple[str, ...]
    stored: Int64s
    copies: dict[str, Int64s] = field(default_factory=dict)


class Formulation:
    """The problem of a graph, and what its strategies mean."""

    def __init__(self, frame: Frame, kernels: Kernels, allowed: Allowed | None = None) -> None:
        self.frame, self.graph, self.mesh, self.kernels = frame, frame.graph, frame.mesh, kernels
        self.operator_class, self.tensor_class = classes(frame)
        self.operators = [self._operators(members) for members in _members(self.operator_class)]
        self.tensors = [self._tensors(members, allowed) for members in _members(self.tensor_class)]
        self.edges = self._edges()

    # -- nodes ---------------------------------------------------------------------------------------------

    def _operators(self, members: list[int]) -> _Operators:
        found = self.frame.strategies(members[0])
        total = np.zeros(len(found), np.int64)
        durations = Counter(self.graph.operators[i].duration_us for i in members)
        for duration, count in durations.items():
            i = next(i for i in members if self.graph.operators[i].duration_us == duration)
            known = self.frame.signatures[i]
            each = [
                operator_ns(self.graph, i, known, s, self.mesh, self.kernels)
                + closed_cost(self.graph, i, known, s, self.mesh)[0]
                for s in found
            ]
            total += count * np.array(each, np.int64)
        return _Operators(members, found, total)

    def _tensors(self, members: list[int], allowed: Allowed | None) -> _Tensors:
        t = members[0]
        tensor = self.graph.tensors[t]
        keeps = self.frame.keeps(t)
        if allowed is not None:
            keeps = [keep for keep in keeps if allowed(tensor, keep)] or keeps
        known = ways(tensor.shape, tensor.item, self.mesh)
        found = _Tensors(members, keeps, known, self.frame.shared(t), known.indices(k.stored for k in keeps))
        for p, phase in enumerate(found.phases):
            found.copies[phase] = np.array(
                [-1 if (copy := k.copies[p]) is None else known.index[copy] for k in keeps], np.int64
            )
        return found

    def _copy_cost(self, c: _Tensors) -> Int64s:
        total = np.zeros(len(c.keeps), np.int64)
        for t in c.members:
            for group in self.frame.groups[t]:
                if len(group.readers) > 1:
                    copy = c.copies[group.phase]
                    total += np.where(copy >= 0, c.ways.ns[c.stored, copy], 0)
        return total

    # -- edges ---------------------------------------------------------------------------------------------

    def _edges(self) -> dict[tuple[int, int], Int64s]:
        """(operator class, tensor class) -> redistribution costs, rows by the operator's strategies."""
        kinds: Counter[tuple[int, int, tuple[int, ...], tuple[int, ...], str]] = Counter()
        for i, operator in enumerate(self.graph.operators):
            a = self.operator_class[i]
            for t in dict.fromkeys((*operator.inputs, *operator.outputs)):
                ins = tuple(j for j, x in enumerate(operator.inputs) if x == t)
                outs = tuple(j for j, x in enumerate(operator.outputs) if x == t)
                shared = any(len(g.readers) > 1 for g in self.frame.groups[t] if i in g.readers)
                kinds[a, self.tensor_class[t], ins, outs, operator.phase if shared else ""] += 1
        edges: dict[tuple[int, int], Int64s] = {}
        for (a, b, ins, outs, phase), count in kinds.items():
            matrix = count * self._matrix(self.operators[a], self.tensors[b], ins, outs, phase)
            edges[a, b] = edges[a, b] + matrix if (a, b) in edges else matrix
        return edges

    def _matrix(self, a: _Operators, b: _Tensors, ins: tuple[int, ...], outs: tuple[int, ...], phase: str) -> Int64s:
        known, total = b.ways, np.zeros((len(a.strategies), len(b.keeps)), np.int64)
        needs: list[Int64s] = []
        for slot in ins:
            need = known.indices(s.inputs[slot] for s in a.strategies)
            cost = known.ns[b.stored[None, :], need[:, None]]
            if phase in b.copies:
                copy = b.copies[phase][None, :]
                cost = np.where(copy >= 0, np.minimum(cost, known.ns[copy, need[:, None]]), cost)
            fresh = np.ones(len(need), bool)
            for other in needs:
                fresh &= other != need
            total += np.where(fresh[:, None], cost, 0)
            needs.append(need)
        for slot in outs:
            made = known.indices(s.outputs[slot] for s in a.strategies)
            total += known.ns[made[:, None], b.stored[None, :]]
        return total

    # -- the problem ---------------------------------------------------------------------------------------

    def problem(self, memory_bytes: int | None) -> Problem:
        """Within `memory_bytes` of one device, of which the graph's `base_bytes` are taken."""
        costs = [c.ns for c in self.operators] + [self._copy_cost(c) for c in self.tensors]
        usages = [np.zeros(len(c), np.int64) for c in costs]
        intervals = [(0, 0)] * len(costs)
        pairs = [(a, len(self.operators) + b) for a, b in self.edges]
        matrices = list(self.edges.values())
        for node, usage, interval in self.usages() if memory_bytes is not None else ():
            if intervals[node] == (0, 0):
                usages[node], intervals[node] = usage, interval
                continue
            pairs.append((node, len(costs)))
            matrices.append(np.where(np.eye(len(usage), dtype=bool), 0, NEVER))
            costs.append(np.zeros(len(usage), np.int64))
            usages.append(usage)
            intervals.append(interval)
        starts = np.zeros(len(costs) + 1, np.int64)
        np.cumsum([len(c) for c in costs], out=starts[1:])
        edge_first = np.zeros(len(pairs) + 1, np.int64)
        np.cumsum([m.size for m in matrices], out=edge_first[1:])
        limit = 0 if memory_bytes is None else max(0, memory_bytes - self.graph.base_bytes)
        return Problem(
            name=self.graph.name,
            first=starts,
            cost=np.concatenate(costs),
            usage=np.concatenate(usages),
            lower=np.array([lower for lower, _ in intervals], np.int64),
            upper=np.array([upper for _, upper in intervals], np.int64),
            edges=np.array(pairs, np.int64).reshape(-1, 2),
            edge_first=edge_first,
            edge_cost=np.concatenate([m.ravel() for m in matrices]) if matrices else np.zeros(0, np.int64),
            usage_limit=limit,
        )

    def usages(self) -> list[tuple[int, Int64s, tuple[int, int]]]:
        """(node, bytes by its strategies, moments) of all that surely lies in memory; of operators, those that are the
        first or the last of their class."""
        found: list[tuple[int, Int64s, tuple[int, int]]] = []
        for a, operators in enumerate(self.operators):
            ends = dict.fromkeys((operators.members[0], operators.members[-1]))
            found.extend((a, self.running(i), (3 * i + 1, 3 * i + 2)) for i in ends)
        return [entry for entry in (*found, *self.tensor_usages()) if entry[1].any()]

    def tensor_usages(self) -> list[tuple[int, Int64s, tuple[int, int]]]:
        """Of tensors alone."""
        shift = len(self.operators)
        return [(shift + b, u, life) for b, tensors in enumerate(self.tensors) for u, life in self.usage(tensors)]

    @cached_property
    def ties(self) -> int:
        """Entries of the matrices that tie members to their class."""
        seen: Counter[int] = Counter()
        for node, usage, _ in self.usages():
            seen[node] += 1 if node not in seen else len(usage) ** 2
        return sum(seen.values())

    def usage(self, c: _Tensors) -> list[tuple[Int64s, tuple[int, int]]]:
        """(bytes by strategy, moments) of what is kept, and of copies: members that live together are added up.

        A copy that is worth its memory serves two readers at least, and so lives until the second; how much longer
        depends on what the others choose. Where it serves the last readers, what is kept may go as soon as it is made.
        """
        tensor = self.graph.tensors[c.members[0]]
        stored = np.array([_held(tensor, keep.stored, self.mesh) for keep in c.keeps], np.int64)
        lives: Counter[tuple[int, int, str]] = Counter()
        for t in c.members:
            life = self._life(t)
            if life is None:
                continue
            shared = [g for g in self.frame.groups[t] if len(g.readers) > 1 and g.readers[-1] == self._last[t]]
            group = shared[0] if shared else None
            if group is None or group.readers[-1] in self.graph.writers[t]:
                lives[*life, ""] += 1
            else:
                made = 3 * group.readers[0] + 1
                lives[life[0], made, ""] += 1
                lives[made, life[1], group.phase] += 1
        found = []
        for (start, end, phase), n in lives.items():
            kept = stored if not phase else np.where(c.copies[phase] < 0, stored, 0)
            found.append((kept * n, (start, end)))
        for phase, copy in c.copies.items():
            size = np.array(
                [
                    0 if k < 0 or k == s else _held(tensor, c.ways.layouts[k], self.mesh)
                    for k, s in zip(copy, c.stored, strict=True)
                ],
                np.int64,
            )
            spans = Counter(
                (3 * g.readers[0] + 1, 3 * g.readers[1] + 1)
                for t in c.members
                for g in self.frame.groups[t]
                if g.phase == phase and len(g.readers) > 1
            )
            found.extend((size * n, span) for span, n in spans.items())
        return found

    def _life(self, t: int) -> tuple[int, int] | None:
        """Moments at which a tensor surely lies where it is kept; None: never, or it is a view."""
        first, end = self.graph.lives[t]
        if first == end or self.graph.bases[t] != t:
            return None
        last = self._last[t]
        if last is None:
            return 0, 3 * len(self.graph.operators)
        until = 3 * last + (3 if last in self.graph.writers[t] or last == first else 1)
        return (0 if self.graph.tensors[t].resident else 3 * first + 2), until

    @cached_property
    def _last(self) -> list[int | None]:
        """For each tensor the last operator that touches it or a view of it; None: it stays. Inputs of the step do not:
        the next step brings its own."""
        graph = self.graph
        last = [-1] * len(graph.tensors)
        for t, base in enumerate(graph.bases):
            last[base] = max(last[base], *graph.writers[t], *graph.readers[t], -1)
        stays = [t.resident and t.kind != "input" for t in graph.tensors]
        return [None if stays[t] or i < 0 else i for t, i in enumerate(last)]

    def running(self, i: int) -> Int64s:
        """Bytes by strategy of what operator i makes, of what ends with it, and of its workspace, while it runs."""
        operator, found = self.graph.operators[i], self.operators[self.operator_class[i]].strategies
        total = np.array([workspace_bytes(self.graph, i, s) for s in found], np.int64)
        if operator.type in VIEWS:
            return total
        for slot, t in enumerate(operator.inputs):
            if t not in operator.inputs[:slot] and t not in operator.outputs and self._ends(t, i):
                total += np.array([_held(self.graph.tensors[t], s.inputs[slot], self.mesh) for s in found], np.int64)
        for slot, t in enumerate(operator.outputs):
            if self._begins(t, i):
                total += np.array([_held(self.graph.tensors[t], s.outputs[slot], self.mesh) for s in found], np.int64)
        return total

    def _ends(self, t: int, i: int) -> bool:
        return self._last[self.graph.bases[t]] == i

    def _begins(self, t: int, i: int) -> bool:
        return self.graph.bases[t] == t and not self.graph.tensors[t].resident and self.graph.lives[t][0] == i

    def temporaries(self, i: int, stores: bool) -> dict[tuple[int, int], Int64s]:
        """Edge -> bytes by both strategies of what lies beside what is kept, while operator i runs or (`stores`) while
        its outputs are stored."""
        operator, a = self.graph.operators[i], self.operator_class[i]
        found: dict[tuple[int, int], Int64s] = {}
        choices = self.operators[a].strategies
        if operator.type in VIEWS:
            return found
        for slot, t in enumerate(() if stores else operator.inputs):
            if t in operator.inputs[:slot] or (self._ends(t, i) and t not in operator.outputs):
                continue
            c = self.tensors[self.tensor_class[t]]
            need = c.ways.indices(s.inputs[slot] for s in choices)
            beside = need[:, None] != c.stored[None, :]
            if any(len(g.readers) > 1 for g in self.frame.groups[t] if i in g.readers):
                beside &= need[:, None] != c.copies[operator.phase][None, :]
            size = np.array([_held(self.graph.tensors[t], s.inputs[slot], self.mesh) for s in choices], np.int64)
            key = (a, self.tensor_class[t])
            found[key] = found.get(key, 0) + beside * size[:, None]
        for slot, t in enumerate(operator.outputs):
            if not stores and self._begins(t, i):
                continue
            c = self.tensors[self.tensor_class[t]]
            made = c.ways.indices(s.outputs[slot] for s in choices)
            size = np.array([_held(self.graph.tensors[t], s.outputs[slot], self.mesh) for s in choices], np.int64)
            key = (a, self.tensor_class[t])
            found[key] = found.get(key, 0) + (made[:, None] != c.stored[None, :]) * size[:, None]
        return found

    def lean(self, solution: Int64s) -> Int64s:
        """The solution with every tensor kept in as few bytes as can be had at no more than its cost now."""
        lean, shift = solution.copy(), len(self.operators)
        for b, tensors in enumerate(self.tensors):
            cost = self._copy_cost(tensors)
            for (a, other), matrix in self.edges.items():
                if other == b:
                    cost = cost + matrix[solution[a]]
            size = np.zeros(len(cost), np.int64)
            for usage, (lower, upper) in self.usage(tensors):
                size += usage * min(upper - lower, 2**16)
            allowed = np.flatnonzero(cost <= cost[solution[shift + b]])
            lean[shift + b] = allowed[np.lexsort((cost[allowed], size[allowed]))[0]]
        return lean

    # -- back ----------------------------------------------------------------------------------------------

    def choice(self, solution: Int64s) -> Choice:
        """What a solution of `problem` says, made lean."""
        solution = self.lean(solution)
        operators = [self.operators[c].strategies[int(solution[c])] for c in self.operator_class]
        shift = len(self.operators)
        tensors = [self.tensors[c].keeps[int(solution[shift + c])] for c in self.tensor_class]
        return Choice(tuple(operators), tuple(tensors))


def _held(tensor: Tensor, layout: Layout, mesh: Mesh) -> int:
    return prod(local_shape(tensor.shape, layout, mesh)) * tensor.item


def _members(of: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(max(of, default=-1) + 1)]
    for i, c in enumerate(of):
        found[c].append(i)
    return found
