"""A mesh of NumPy arrays: runs the program of a sharded graph, every collective really done, bytes counted as sent.

It knows layouts (what a device holds of a tensor) and what collectives do, nothing of signatures or costs. `Whole` runs
the graph on one device; `Mesh` runs a program and compares every tensor that is kept with it, right after it is
written, so that the first wrong operator is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

from hyperopt.graph import Graph, Operator, Tensor
from hyperopt.mesh import Mesh
from solver.placement import Program
from solver.placement.program import Compute, Move
from tests.solver.placement import kernels
from tests.solver.placement.kernels import Array, Block, Region

PARTIAL, REPLICATED = -2, -1
Place = tuple[int, ...]


def values(graph: Graph, seed: int) -> dict[int, Array]:
    """Random contents of what is there from the start."""
    random = np.random.default_rng(seed)
    found: dict[int, Array] = {}
    for tensor in graph.tensors:
        if not tensor.resident:
            continue
        if "int" in tensor.dtype:
            found[tensor.id] = random.integers(0, _range(graph, tensor), tensor.shape).astype(float)
        elif tensor.kind == "optimizer_state":
            found[tensor.id] = np.abs(random.normal(size=tensor.shape)) + 0.1
        else:
            found[tensor.id] = random.normal(size=tensor.shape)
    return found


def _range(graph: Graph, tensor: Tensor) -> int:
    """Indices go up to the length of the table, or of the dimension, that they point into."""
    for operator in graph.operators:
        if tensor.id in operator.inputs:
            others = [graph.tensors[t] for t in (*operator.inputs, *operator.outputs) if t != tensor.id]
            if operator.type in ("Gather", "EmbeddingGrad"):
                return next(t.shape[0] for t in others if len(t.shape) == 2 and "int" not in t.dtype)
            if operator.type.startswith("CrossEntropy"):
                return max(others, key=lambda t: len(t.shape)).shape[-1]
            if operator.type.startswith("Moe"):
                return next((t.shape[0] for t in others if len(t.shape) == 4), 2)
    return 2


def _whole_run(graph: Graph, operator: Operator, inputs: list[Array]) -> list[Array]:
    blocks = [Block(a, (0,) * a.ndim, a.shape) for a in inputs]
    shapes = [graph.tensors[t].shape for t in operator.outputs]
    if operator.type == "CrossEntropy":
        return kernels.cross_entropy([blocks], lambda parts, how: parts)[0]
    return kernels.run(operator, blocks, [Region((0,) * len(s), s, s) for s in shapes])


def whole(graph: Graph, start: dict[int, Array]) -> Iterator[dict[int, Array]]:
    """The contents of all tensors after each operator, on one device."""
    now = dict(start)
    for operator in graph.operators:
        made = _whole_run(graph, operator, [now[t] for t in operator.inputs])
        now.update(zip(operator.outputs, made, strict=True))
        yield now


@dataclass
class SimulatedMesh:
    """`held[buffer][place]`: what the device at a place of the mesh holds. `sent`: bytes by kind of collective."""

    program: Program
    held: dict[int, dict[Place, Array]] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    @property
    def mesh(self) -> Mesh:
        return self.program.mesh

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def devices(self) -> list[Place]:
        return list(product(*map(range, self.mesh.shape)))

    def check(self, seed: int = 0) -> None:
        """Runs the program and compares with one device; asserts on contents and on bytes."""
        start = values(self.graph, seed)
        for t, array in start.items():
            self.held[self.program.kept[t]] = self.scatter(array, self.program.choice.tensors[t].stored)
        truth = whole(self.graph, start)
        done = -1
        expected: dict[int, Array] = start
        for command in self.program.commands:
            while command.operator > done:
                if done >= 0:
                    self._compare(done, expected)
                expected = dict(next(truth))
                done += 1
            if isinstance(command, Move):
                before = sum(self.sent.values())
                self._move(command)
                counted = sum(self.sent.values()) - before
                assert counted == command.step.total_bytes, (command.step, counted)
            else:
                self._compute(command)
        if done >= 0:
            self._compare(done, expected)
        assert self.sent == self.program.sent_bytes

    # -- layouts -------------------------------------------------------------------------------------------

    def region(self, shape: tuple[int, ...], layout: Place, place: Place) -> Region:
        """The block of a tensor that a device has: the axes that cut a dimension count in the mesh's order."""
        start, size = [0] * len(shape), list(shape)
        for axis, dimension in enumerate(layout):
            if dimension >= 0:
                assert size[dimension] % self.mesh.shape[axis] == 0
                size[dimension] //= self.mesh.shape[axis]
                start[dimension] += place[axis] * size[dimension]
        return Region(tuple(start), tuple(size), shape)

    def scatter(self, array: Array, layout: Place) -> dict[Place, Array]:
        assert PARTIAL not in layout
        return {place: self._cut(array, self.region(array.shape, layout, place)) for place in self.devices}

    @staticmethod
    def _cut(array: Array, region: Region) -> Array:
        part = tuple(slice(a, a + n) for a, n in zip(region.start, region.shape, strict=True))
        return array[part].copy()

    def gather(self, buffer: int) -> Array:
        """The whole tensor that a buffer's parts make; replicas must agree."""
        of = self.program.buffers[buffer]
        shape, layout = self.graph.tensors[of.tensor].shape, of.layout
        made, seen = np.zeros(shape), np.zeros(shape, int)
        replicas: dict[tuple[int, ...], Array] = {}
        for place in self.devices:
            region = self.region(shape, layout, place)
            array = self.held[buffer][place]
            assert array.shape == region.shape, (of, array.shape, region.shape)
            key = tuple(0 if layout[axis] == REPLICATED else p for axis, p in enumerate(place))
            if key in replicas:
                np.testing.assert_allclose(array, replicas[key], rtol=1e-9, atol=1e-9)
                continue
            replicas[key] = array
            part = tuple(slice(a, a + n) for a, n in zip(region.start, region.shape, strict=True))
            made[part] += array
            seen[part] += 1
        sums = prod(self.mesh.shape[axis] for axis, entry in enumerate(layout) if entry == PARTIAL)
        assert (seen == sums).all()
        return made

    def _compare(self, operator: int, expected: dict[int, Array]) -> None:
        for t in self.graph.operators[operator].outputs:
            found = self.gather(self.program.kept[t])
            name = f"operator {operator} {self.graph.operators[operator].type} -> {self.graph.tensors[t].name}"
            np.testing.assert_allclose(found, expected[t], rtol=1e-6, atol=1e-8, err_msg=name)

    # -- commands ------------------------------------------------------------------------------------------

    def _compute(self, command: Compute) -> None:
        operator = self.graph.operators[command.operator]
        blocks: dict[Place, list[Block]] = {}
        regions: dict[Place, list[Region]] = {}
        for place in self.devices:
            blocks[place] = []
            for buffer in command.inputs:
                of = self.program.buffers[buffer]
                shape = self.graph.tensors[of.tensor].shape
                start = self.region(shape, of.layout, place).start
                blocks[place].append(Block(self.held[buffer][place].copy(), start, shape))
            outs = [self.program.buffers[b] for b in command.outputs]
            regions[place] = [self.region(self.graph.tensors[b.tensor].shape, b.layout, place) for b in outs]
        made: dict[Place, list[Array]]
        if operator.type == "CrossEntropy":
            made = self._cross_entropy(blocks, command)
        else:
            made = {place: kernels.run(operator, blocks[place], regions[place]) for place in self.devices}
        for slot, buffer in enumerate(command.outputs):
            self.held[buffer] = {place: made[place][slot] for place in self.devices}

    def _cross_entropy(self, blocks: dict[Place, list[Block]], command: Compute) -> dict[Place, list[Array]]:
        layout = self.program.buffers[command.inputs[0]].layout
        last = len(self.graph.tensors[self.program.buffers[command.inputs[0]].tensor].shape) - 1
        axes = [axis for axis, dimension in enumerate(layout) if dimension == last]

        def reduce_all(parts: list[Array], how: str) -> list[Array]:
            if not axes:
                return parts
            by_place = dict(zip(self.devices, parts, strict=True))
            reduced = self._all_reduce(by_place, tuple(axes), 4, how)
            return [reduced[place] for place in self.devices]

        made = kernels.cross_entropy([blocks[place] for place in self.devices], reduce_all)
        return dict(zip(self.devices, made, strict=True))

    def _move(self, command: Move) -> None:
        step, source = command.step, self.held[command.source]
        of = self.program.buffers[command.source]
        tensor = self.graph.tensors[of.tensor]
        assert of.layout == step.source and self.program.buffers[command.target].layout == step.target
        made: dict[Place, Array]
        if step.kind == "all_reduce":
            made = self._all_reduce(source, step.axes, tensor.item, "add")
        elif step.kind == "slice":
            (axis,) = step.axes
            dimension, n = step.target[axis], self.mesh.shape[axis]
            made = {p: np.split(a, n, dimension)[p[axis]] for p, a in source.items()}
        elif step.kind == "zero":
            made = {p: self._spread(a, tensor, step, p) for p, a in source.items()}
        else:
            (axis,) = step.axes
            made = {}
            for group in self._groups(axis):
                parts = [source[p] for p in group]
                if step.kind == "all_gather":
                    out = self._all_gather(parts, step.source[axis], tensor.item)
                elif step.kind == "reduce_scatter":
                    out = self._reduce_scatter(parts, step.target[axis], tensor.item, "add")
                else:
                    out = self._all_to_all(parts, step.source[axis], step.target[axis], tensor.item)
                made.update(zip(group, out, strict=True))
        # The steps on the way keep what is on it; a reused buffer is overwritten.
        self.held[command.target] = {p: a.copy() for p, a in made.items()}

    def _spread(self, array: Array, tensor: Tensor, step: Any, place: Place) -> Array:
        """Summands of what is whole or cut along the axis: the block among zeros, or all of it on the first device."""
        (axis,) = step.axes
        before = self.region(tensor.shape, step.source, place)
        after = self.region(tensor.shape, step.target, place)
        if step.source[axis] == REPLICATED:
            return array if place[axis] == 0 else np.zeros_like(array)
        made = np.zeros(after.shape)
        part = tuple(slice(a - b, a - b + n) for a, b, n in zip(before.start, after.start, before.shape, strict=True))
        made[part] = array
        return made

    # -- collectives, on rings ------------------------------------------------------------------------------

    def _groups(self, axis: int) -> list[list[Place]]:
        others = [p for p in self.devices if p[axis] == 0]
        return [[(*p[:axis], i, *p[axis + 1 :]) for i in range(self.mesh.shape[axis])] for p in others]

    def _send(self, kind: str, array: Array, item: int) -> Array:
        self.sent[kind] = self.sent.get(kind, 0) + array.size * item
        return array.copy()

    def _ring_reduce(self, chunks: list[list[Array]], kind: str, item: int, how: str) -> list[Array]:
        """`chunks[i][c]`: device i's summand of chunk c. After n - 1 steps device c has the whole of chunk c."""
        n = len(chunks)
        work = [[c.copy() for c in mine] for mine in chunks]
        for step in range(n - 1):
            messages = [(i, (i - step - 1) % n) for i in range(n)]
            arriving = [(i, c, self._send(kind, work[i][c], item)) for i, c in messages]
            for i, c, array in arriving:
                to = (i + 1) % n
                work[to][c] = np.maximum(work[to][c], array) if how == "max" else work[to][c] + array
        return [work[i][i] for i in range(n)]

    def _ring_gather(self, parts: list[Array], kind: str, item: int) -> list[list[Array]]:
        """After n - 1 steps every device has every part."""
        n = len(parts)
        have: list[dict[int, Array]] = [{i: part} for i, part in enumerate(parts)]
        for step in range(n - 1):
            arriving = [(i, (i - step) % n, self._send(kind, have[i][(i - step) % n], item)) for i in range(n)]
            for i, c, array in arriving:
                have[(i + 1) % n][c] = array
        return [[have[i][c] for c in range(n)] for i in range(n)]

    def _all_gather(self, parts: list[Array], dimension: int, item: int) -> list[Array]:
        return [np.concatenate(have, dimension) for have in self._ring_gather(parts, "all_gather", item)]

    def _reduce_scatter(self, parts: list[Array], dimension: int, item: int, how: str) -> list[Array]:
        chunks = [np.split(part, len(parts), dimension) for part in parts]
        return self._ring_reduce(chunks, "reduce_scatter", item, how)

    def _all_to_all(self, parts: list[Array], gathered: int, cut: int, item: int) -> list[Array]:
        n = len(parts)
        pieces = [np.split(part, n, cut) for part in parts]
        made = []
        for j in range(n):
            mine = [pieces[i][j] if i == j else self._send("all_to_all", pieces[i][j], item) for i in range(n)]
            made.append(np.concatenate(mine, gathered))
        return made

    def _all_reduce(self, source: dict[Place, Array], axes: tuple[int, ...], item: int, how: str) -> dict[Place, Array]:
        """On one ring; over several axes reduced and scattered along each, the fastest links first, and gathered back,
        or, where it cannot be cut that far, one ring after the other."""
        n = prod(self.mesh.shape[a] for a in axes)
        size = next(iter(source.values())).size
        now = {p: a.copy() for p, a in source.items()}
        if len(axes) > 1 and size % n == 0:
            order = sorted(axes, key=lambda a: (self.mesh.spans[a], -a))
            flat = {p: a.ravel() for p, a in now.items()}
            for axis in order:
                for group in self._groups(axis):
                    parts = [np.split(flat[p], len(group)) for p in group]
                    flat.update(zip(group, self._ring_reduce(parts, "all_reduce", item, how), strict=True))
            for axis in reversed(order):
                for group in self._groups(axis):
                    have = self._ring_gather([flat[p] for p in group], "all_reduce", item)
                    flat.update(zip(group, (np.concatenate(h) for h in have), strict=True))
            return {p: flat[p].reshape(a.shape) for p, a in now.items()}
        for axis in axes:
            for group in self._groups(axis):
                parts = [np.array_split(now[p].ravel(), len(group)) for p in group]
                reduced = self._ring_reduce(parts, "all_reduce", item, how)
                have = self._ring_gather(reduced, "all_reduce", item)
                now.update({p: np.concatenate(h).reshape(now[p].shape) for p, h in zip(group, have, strict=True)})
        return now
