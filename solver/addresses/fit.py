"""A packing from an order, with every rule: each storage at the lowest gap among those that stand in its way.

::

    ▲ ├────────┤ placed             of the placed storages that live with b, or share a label with it, by rising
    │      ├ gap ┤◀── b             offset: the first aligned gap that is large enough, else on top;
    │   ├───────────┤ placed        a pinned storage is where it is pinned, before all others
    └──────────────────▶ time
"""

from __future__ import annotations

import numpy as np

from hyperopt.engine.compiled import compiled
from solver.addresses.problem import Int64s, Packing


def first_fit(packing: Packing, rank: Int64s) -> Int64s:
    """Offsets; pinned storages first, then by rank."""
    order = np.lexsort((rank, packing.pinned < 0))
    count = np.zeros(len(packing.size) + 1, np.int64)
    of: list[list[int]] = [[] for _ in packing.size]
    for label, group in enumerate(packing.apart):
        for i in group:
            of[i].append(label)
    count[1:] = np.cumsum([len(labels) for labels in of])
    labels = np.array([label for labels in of for label in labels], np.int64)
    return _fit(  # type: ignore[no-any-return]
        order, packing.first, packing.end, packing.size, packing.alignment, packing.pinned, count, labels,
        np.zeros(len(packing.apart), np.int64),
    )  # fmt: skip


@compiled(nogil=True)
def _fit(order, first, end, size, alignment, pinned, begins, labels, marked):  # type: ignore[no-untyped-def]
    n = len(order)
    offset = np.zeros(n, np.int64)
    stack = np.empty(n, np.int64)  # placed storages by rising offset
    for k in range(n):
        b = order[k]
        low = np.int64(0)
        if pinned[b] >= 0:
            low = pinned[b]
        elif size[b] > 0:
            for x in range(begins[b], begins[b + 1]):
                marked[labels[x]] = b + 1
            for j in range(k):
                c = stack[j]
                hit = first[c] < end[b] and end[c] > first[b]
                if not hit:
                    for x in range(begins[c], begins[c + 1]):
                        hit = hit or marked[labels[x]] == b + 1
                if hit and size[c] > 0:
                    if offset[c] >= low + size[b]:
                        break
                    low = max(low, -(-(offset[c] + size[c]) // alignment[b]) * alignment[b])
        offset[b] = low
        j = k
        while j > 0 and offset[stack[j - 1]] > low:
            stack[j] = stack[j - 1]
            j -= 1
        stack[j] = b
    return offset
