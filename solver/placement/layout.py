"""Layouts of a tensor on a mesh, and the cheapest way from one to another.

A layout has one entry for each mesh axis: the dimension that the axis cuts, `REPLICATED`, or `PARTIAL` (every device
along the axis holds a summand). Axes that cut one dimension do so in the mesh's order, the first outermost, so that
each device holds one contiguous block.

::

    all_gather       cut d   -> replicated     the axis must be the innermost of those that cut d
    reduce_scatter   partial -> cut d          and become it
    all_to_all       cut d   -> cut e          both
    all_reduce       partial -> replicated     one axis, or several at once (hierarchical)
    slice            replicated -> cut d       free: every device keeps its block
    zero             any        -> partial     free: the block stays, all else is zero (the first device keeps a whole)

The cheapest way is a shortest path over these steps (Floyd and Warshall, in whole nanoseconds): hierarchical forms, and
detours such as gathering what a wrong order of axes keeps apart, are found rather than written down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from hyperopt.cost import collectives
from hyperopt.mesh import Mesh

REPLICATED, PARTIAL = -1, -2

SLICE, ZERO = "slice", "zero"
FREE = (SLICE, ZERO)
"""Kinds of steps without communication."""

Layout = tuple[int, ...]
"""For each mesh axis a dimension, REPLICATED or PARTIAL."""

FAR = 10**15
"""Nanoseconds of a way that does not exist; sums of some thousands of them stay below 2^63."""


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or a slice: from `source` to `target` along `axes`. `ns` and `total_bytes` of all devices."""

    kind: str
    axes: tuple[int, ...]
    source: Layout
    target: Layout
    ns: int
    total_bytes: int


def local_shape(shape: tuple[int, ...], layout: Layout, mesh: Mesh) -> tuple[int, ...]:
    """What one device holds of a tensor. The layout must fit (`fits`)."""
    parts = [1] * len(shape)
    for axis, place in enumerate(layout):
        if place >= 0:
            parts[place] *= mesh.shape[axis]
    return tuple(length // n for length, n in zip(shape, parts, strict=True))


def shards(layout: Layout, mesh: Mesh) -> int:
    """Into how many different pieces a layout cuts."""
    return prod(mesh.shape[axis] for axis, place in enumerate(layout) if place >= 0)


def fits(shape: tuple[int, ...], layout: Layout, mesh: Mesh) -> bool:
    """Whether every cut falls between elements, in equal pieces."""
    parts = [1] * len(shape)
    for axis, place in enumerate(layout):
        if place >= 0:
            parts[place] *= mesh.shape[axis]
    return all(length % n == 0 for length, n in zip(shape, parts, strict=True))


def layouts(shape: tuple[int, ...], mesh: Mesh, partial: bool = True) -> list[Layout]:
    """All layouts that fit, replicated first. Axes of one device are always replicated."""
    options = [
        [REPLICATED] if n == 1 else [REPLICATED, *range(len(shape)), *([PARTIAL] if partial else [])]
        for n in mesh.shape
    ]
    return [layout for layout in product(*options) if fits(shape, layout, mesh)]


class Ways:
    """The cheapest ways between the layouts of one shape. Built once a shape and item size (`ways`)."""

    def __init__(self, shape: tuple[int, ...], item: int, mesh: Mesh) -> None:
        self.shape, self.item, self.mesh = shape, item, mesh
        self.layouts = layouts(shape, mesh)
        self.index = {layout: i for i, layout in enumerate(self.layouts)}
        n = len(self.layouts)
        cost = np.full((n, n), FAR, np.int64)
        np.fill_diagonal(cost, 0)
        self.steps: dict[tuple[int, int], Step] = {}
        for i, source in enumerate(self.layouts):
            for step in self._steps(source):
                j = self.index[step.target]
                if step.ns < cost[i, j]:
                    cost[i, j] = step.ns
                    self.steps[i, j] = step
        follow = np.where(cost < FAR, np.arange(n)[None, :], -1)
        hops = np.where(cost < FAR, 1, 10**6)
        np.fill_diagonal(hops, 0)
        for k in range(n):  # fewer steps among equally cheap ways
            through, more = cost[:, k, None] + cost[None, k, :], hops[:, k, None] + hops[None, k, :]
            better = (through < cost) | ((through == cost) & (more < hops))
            cost = np.where(better, through, cost)
            hops = np.where(better, more, hops)
            follow = np.where(better, follow[:, k, None], follow)
        self.ns: NDArray[np.int64] = np.minimum(cost, FAR)
        self._follow = follow

    def indices(self, layouts: Iterable[Layout]) -> NDArray[np.int64]:
        return np.array([self.index[layout] for layout in layouts], np.int64)

    def price(self, source: Layout, target: Layout) -> int:
        """Nanoseconds of the cheapest way."""
        return int(self.ns[self.index[source], self.index[target]])

    def way(self, source: Layout, target: Layout) -> list[Step]:
        """The steps from one layout to another; empty if they are equal."""
        i, j = self.index[source], self.index[target]
        assert self.ns[i, j] < FAR, f"no way from {source} to {target}"
        steps = []
        while i != j:
            k = int(self._follow[i, j])
            steps.append(self.steps[i, k])
            i = k
        return steps

    def _steps(self, source: Layout) -> Iterable[Step]:
        """The single steps from a layout."""
        mesh = self.mesh
        held = prod(local_shape(self.shape, source, mesh)) * self.item
        for axis, place in enumerate(source):
            after = source[axis + 1 :]
            if mesh.shape[axis] == 1 or (place >= 0 and place in after):
                continue  # an axis leaves a dimension only as the innermost of it
            for target in (REPLICATED, PARTIAL, *range(len(self.shape))):
                changed = (*source[:axis], target, *after)
                if target == place or changed not in self.index or (target >= 0 and target in after):
                    continue
                kind = _kind(place, target)
                if kind in FREE:
                    yield Step(kind, (axis,), source, changed, 0, 0)
                else:
                    size = held * mesh.shape[axis] if kind == "all_gather" else held
                    yield self._step(kind, (axis,), source, changed, size)
        sums = [axis for axis, place in enumerate(source) if place == PARTIAL]
        for count in range(2, len(sums) + 1):
            for several in combinations(sums, count):
                changed = tuple(REPLICATED if axis in several else place for axis, place in enumerate(source))
                yield self._step("all_reduce", several, source, changed, held)

    def _step(self, kind: str, axes: tuple[int, ...], source: Layout, target: Layout, size: int) -> Step:
        cost = collectives.over(self.mesh, kind, axes, size, self.item)  # type: ignore[arg-type]
        return Step(kind, axes, source, target, round(cost.us * 1000), cost.total_bytes)


def _kind(place: int, target: int) -> str:
    """What turns one entry of a layout into another."""
    if place == PARTIAL:
        return "all_reduce" if target == REPLICATED else "reduce_scatter"
    if target == PARTIAL:
        return ZERO
    if place == REPLICATED:
        return SLICE
    return "all_gather" if target == REPLICATED else "all_to_all"


@lru_cache(maxsize=4096)
def ways(shape: tuple[int, ...], item: int, mesh: Mesh) -> Ways:
    return Ways(shape, item, mesh)
