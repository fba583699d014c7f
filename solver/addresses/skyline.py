"""A packing from an order: always fill the lowest stretch of the skyline, or raise it where nothing fits.

::

    ▲     ┌───┐                 the lowest stretch is [l, r): of the storages that live within it, the first in the
    │ ┌───┘   └──┐     ┌──┐     order is put there; where none does, it is raised to the lower of its neighbours
    │ │          └─────┘  │
    └─┴──────────l─────r──┴─▶   (a waste that a good order keeps out of crowded columns)

After Burke, Kendall and Whitwell's best fit for strip packing (2004), with the horizontal place given.
"""

from __future__ import annotations

import numpy as np

from hyperopt.engine.compiled import compiled
from solver.addresses.problem import Int64s, Packing


class Skyline:
    """The heuristic for one packing without pins, labels or mixed alignments."""

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self.by_first = np.argsort(packing.first, kind="stable")
        self.begins = np.searchsorted(packing.first[self.by_first], np.arange(packing.columns + 1)).astype(np.int64)

    def place(self, rank: Int64s) -> Int64s:
        """Offsets; a lower `rank` goes first."""
        p = self.packing
        return _fill(rank, p.first, p.end, p.size, p.columns, self.by_first, self.begins)  # type: ignore[no-any-return]


@compiled(nogil=True)
def _fill(rank, first, end, size, columns, by_first, begins):  # type: ignore[no-untyped-def]
    n = len(size)
    never = np.int64(1) << 62
    offset = np.zeros(n, np.int64)
    # Stretches are known by their left column.
    height = np.zeros(columns + 1, np.int64)
    right = np.zeros(columns + 1, np.int64)
    left = np.full(columns + 1, -1, np.int64)
    right[0] = columns
    later = np.arange(
        n + 1
    )  # of the storages by first column: the next that is not placed, shortened as it is followed
    placed = 0
    while placed < n:
        low, west, k = never, np.int64(0), np.int64(0)
        while k < columns:
            if height[k] < low:
                low, west = height[k], k
            k = right[k]
        east = right[west]
        best, best_rank = np.int64(-1), never
        i = begins[west]
        while True:
            j = i
            while later[j] != j:
                j = later[j]
            while later[i] != j:
                step = later[i]
                later[i] = j
                i = step
            i = j
            if i >= begins[east]:
                break
            b = by_first[i]
            if end[b] <= east and rank[b] < best_rank:
                best, best_rank = i, rank[b]
            i += 1
        a, z, top = west, east, never
        if best < 0:
            if west > 0:
                top = height[left[west]]
            if east < columns:
                top = min(top, height[east])
        else:
            b = by_first[best]
            later[best] = best + 1
            placed += 1
            offset[b] = low
            a, z, top = first[b], end[b], low + size[b]
        if z < east:
            right[z], left[z], height[z] = east, west, low
            left[east] = z
            right[west] = z
        if a > west:
            right[a], left[a] = right[west], west
            left[right[a]] = a
            right[west] = a
        height[a] = top
        if right[a] < columns and height[right[a]] == top:
            right[a] = right[right[a]]
            left[right[a]] = a
        if a > 0 and height[left[a]] == top:
            right[left[a]] = right[a]
            left[right[a]] = left[a]
    return offset
