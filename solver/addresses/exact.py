"""Exact search for a packing under a given height: depth first, lowest offset first, jumping back to the culprit.

A packing can be pushed down until every item rests on the floor or on another, and then be read off by rising
offset; the search tries such readings only. `low` is the lowest offset that what is placed leaves to an item::

    height ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄     next: an item of least `low` (ties: by rank), here c or d; not e, which
              ┌─────┐                   could wait: d fits below it. A column is hopeless when its unplaced items,
        ┌───┐ │  b  │ low of e          stacked by rising `low`, end above the height (one machine, release dates).
        │ a │ └─────┘
    ────┴───┴──d────c─────────▶ time    Columns that no unplaced item joins are solved apart.

`why[i]` is the item that raised `low[i]`; a hopeless column blames the raisers of its items, and alternatives of an
item that is not to blame are passed over. The order of placement ties items in ways that blame does not follow, so an
exhausted search proves something only without jumps. Many short searches with shaken ranks find more than a long one:
run times have heavy tails.

Sources: Moffitt, "MiniMalloc" (ASPLOS 2023): order by offset, dominance, decomposition. Additions: the bound by release
dates; the jumps (conflict-directed backjumping, Prosser 1993); and that what could have been placed before and was not
will rest on something still to come, which raises its `low` (a fifth of the time on minimalloc's E).
"""

from __future__ import annotations

import numpy as np

from hyperopt.engine.compiled import compiled
from solver.addresses.problem import Int64s, Packing

FOUND, NONE, STOPPED = 1, 0, -1

STEADY, CAREFUL, BOLD = 0, 1, 2
"""Whether to jump: never (then an exhausted search is a proof); blaming also the item placed last where the order of
placement alone forbids a branch; or not blaming it. Either jumper solves in a moment what the other does not."""

MOST_ITEMS = 2000
"""Beyond, one dive takes longer than many runs of the skyline, and the stack grows with the square."""


class Searcher:
    """Memory of the search for one packing, kept between restarts."""

    def __init__(self, packing: Packing) -> None:
        n = len(packing.size)
        self.packing = packing
        self.arena = np.zeros(n * n + 4 * n + 8, np.int64)
        self.column = np.zeros(packing.columns + 1, np.int64)
        self.blame = np.zeros((n + 2) * n, np.uint8)
        self.trail = np.zeros(3 * (n * n + 8 * n + 8), np.int64)

    def search(self, height: int, rank: Int64s, nodes: int, jumps: int) -> tuple[int, Int64s]:
        """(FOUND, NONE or STOPPED after so many nodes, offsets). NONE is a proof if STEADY."""
        packing = self.packing
        n = len(packing.size)
        low, why = np.zeros(n, np.int64), np.full(n, -1, np.int64)
        state = np.array([0, nodes, jumps], np.int64)
        for component in packing.components:
            items = component[np.argsort(rank[component])]
            self.arena[: len(items)] = items
            found = _dig(
                0, 0, len(items), len(items), 0, -1, -1, height, packing.first, packing.end, packing.size, rank,
                low, why, self.arena, self.column, self.blame, self.trail, state,
            )  # fmt: skip
            if found != FOUND:
                return found, low
        return FOUND, low


@compiled(nogil=True)
def _dig(  # type: ignore[no-untyped-def]
    depth, p, q, free, floor, tie, last, height, first, end, size, rank, low, why, arena, column, blame, trail, state
):
    """Places the items arena[p:q] of one component, given by rising (low, rank), at or above (floor, tie).

    arena[free:] may be used. On failure row `depth` of `blame` marks the items that are to blame. `state`:
    length of the trail, nodes left, how to jump. `last` was placed just before (-1: none).
    """
    state[1] -= 1
    if state[1] < 0:
        return -1
    n = len(size)
    mine, sub = depth * n, depth * n + n
    for i in range(n):
        blame[mine + i] = 0
    a, z, roof = end[arena[p]], 0, height + 1
    for i in range(p, q):
        b = arena[i]
        a, z, roof = min(a, first[b]), max(z, end[b]), min(roof, low[b] + size[b])
    # What could have been placed before and was not rests on something that is still to come.
    t = state[0]
    for i in range(p, q):
        b = arena[i]
        if low[b] > floor or (low[b] == floor and rank[b] > tie):
            break
        rest = height + 1
        for j in range(p, q):
            c = arena[j]
            if c != b and first[c] < end[b] and end[c] > first[b]:
                rest = min(rest, max(low[c], floor) + size[c])
        trail[t], trail[t + 1], trail[t + 2] = b, low[b], why[b]
        t += 3
        low[b] = rest
        if state[2] == CAREFUL:
            why[b] = last
    if t > state[0]:
        state[0] = t
        for i in range(p + 1, q):
            b, j = arena[i], i
            while j > p and (
                low[arena[j - 1]] > low[b] or (low[arena[j - 1]] == low[b] and rank[arena[j - 1]] > rank[b])
            ):
                arena[j] = arena[j - 1]
                j -= 1
            arena[j] = b
    for k in range(a, z):
        column[k] = floor
    for i in range(p, q):
        b = arena[i]
        for k in range(first[b], end[b]):
            top = max(column[k], low[b]) + size[b]
            column[k] = top
            if top > height:  # blame the raisers of the block that ends too high, back to where it began
                total, j = 0, i
                while j >= p:
                    c = arena[j]
                    if first[c] <= k and k < end[c]:
                        total += size[c]
                        if why[c] >= 0:
                            blame[mine + why[c]] = 1
                        if low[c] + total > height:
                            break
                    j -= 1
                if j < p and last >= 0 and state[2] == CAREFUL:
                    blame[mine + last] = 1
                return 0
    tried = False
    for e in range(p, q):
        b = arena[e]
        offset = low[b]
        if offset >= roof:  # some item fits below: that reading is another branch
            break
        top = offset + size[b]
        mark = state[0]
        t, m, answer = mark, free, 1
        for i in range(p, q):
            c = arena[i]
            if c == b:
                continue
            if first[c] < end[b] and end[c] > first[b] and low[c] < top:
                trail[t], trail[t + 1], trail[t + 2] = c, low[c], why[c]
                t += 3
                low[c] = top
                why[c] = b
                if top + size[c] > height:
                    for j in range(n):
                        blame[sub + j] = 0
                    blame[sub + b] = 1
                    answer = 0
                    break
            j = m
            while j > free and (
                low[arena[j - 1]] > low[c] or (low[arena[j - 1]] == low[c] and rank[arena[j - 1]] > rank[c])
            ):
                arena[j] = arena[j - 1]
                j -= 1
            arena[j] = c
            m += 1
        state[0] = t
        if answer == 1:  # column[k]: how far the items that begin at k reach
            for k in range(a, z):
                column[k] = k
            for i in range(free, m):
                c = arena[i]
                column[first[c]] = max(column[first[c]], end[c])
            k = a
            while k < z and answer == 1:
                j, reach = k + 1, column[k]
                while j < reach:
                    reach = max(reach, column[j])
                    j += 1
                if reach > k:
                    y = m
                    for i in range(free, m):
                        c = arena[i]
                        if first[c] >= k and first[c] < reach:
                            arena[y] = c
                            y += 1
                    answer = _dig(
                        depth + 1, m, y, y, offset, rank[b], b, height, first, end, size, rank,
                        low, why, arena, column, blame, trail, state,
                    )  # fmt: skip
                    k = reach
                else:
                    k += 1
        if answer == 1:
            return 1
        t = state[0]
        while t > mark:
            t -= 3
            c = trail[t]
            low[c], why[c] = trail[t + 1], trail[t + 2]
        state[0] = mark
        if answer < 0:
            return answer
        if state[2] != STEADY and blame[sub + b] == 0:  # another place for b would not help
            for j in range(n):
                blame[mine + j] = blame[sub + j]
            return 0
        tried = True
        for j in range(n):
            blame[mine + j] |= blame[sub + j]
        blame[mine + b] = 0
        if why[b] >= 0:
            blame[mine + why[b]] = 1
    if not tried:
        for j in range(n):
            blame[mine + j] = 1
    return 0
