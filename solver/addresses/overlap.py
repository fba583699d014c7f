"""The judge of addresses: every rule looked at again, from the buffers as given, with no code of the solver.

A sweep over time keeps who is alive by offset; a newcomer may not reach into the neighbours' addresses::

    alive now, by offset   [a 0..64) [b 64..96) [c 128..160)      d 80..112: overlaps b
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from solver.addresses.problem import Buffer


def violations(buffers: Sequence[Buffer], offsets: Mapping[str, int], capacity: int | None = None) -> list[str]:
    """What is wrong with the offsets (bytes, by buffer id), each with its reason's name; empty: nothing.

    Names: missing, negative, alignment, pinned, alias, capacity, overlap, apart. Aliases may overlap one another.
    Of several overlaps at one moment at least one is found.
    """
    found = [f"missing: {b.id} has no offset" for b in buffers if b.id not in offsets]
    if found:
        return found
    storages: dict[tuple[str, str], list[Buffer]] = defaultdict(list)
    for b in buffers:
        at = offsets[b.id]
        storages[(b.pool, f"alias {b.alias}" if b.alias else f"id {b.id}")].append(b)
        if at < 0:
            found.append(f"negative: {b.id} at {at}")
        if at % b.alignment:
            found.append(f"alignment: {b.id} at {at}, no multiple of {b.alignment}")
        if b.pinned is not None and at != b.pinned:
            found.append(f"pinned: {b.id} at {at}, not at {b.pinned}")
        if capacity is not None and at + b.size > capacity:
            found.append(f"capacity: {b.id} ends at {at + b.size}, past {capacity}")
    events: list[tuple[str, int, int, int, int, str]] = []
    labels: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    for (pool, _), group in storages.items():
        name, at, size = group[0].id, offsets[group[0].id], max(b.size for b in group)
        found += [f"alias: {b.id} at {offsets[b.id]}, {name} at {at}" for b in group if offsets[b.id] != at]
        if size:
            events.append((pool, min(b.lower for b in group), 1, at, size, name))
            events.append((pool, max(b.upper for b in group), 0, at, size, name))
            for label in {label for b in group for label in b.apart}:
                labels[(pool, label)].append((at, at + size, name))
    alive: list[tuple[int, int, str]] = []
    for _, _, begins, at, size, name in sorted(events):  # at one time ends come first: intervals are half-open
        entry = (at, at + size, name)
        if not begins:
            alive.pop(bisect_left(alive, entry))
            continue
        place = bisect_left(alive, entry)
        for other in alive[max(0, place - 1) : place + 1]:
            if other[0] < at + size and at < other[1]:
                found.append(f"overlap: {name} [{at}, {at + size}) and {other[2]} [{other[0]}, {other[1]})")
        insort(alive, entry)
    for (_, label), held in labels.items():
        held.sort()
        for below, above in pairwise(held):
            if above[0] < below[1]:
                found.append(f"apart: {below[2]} and {above[2]} share addresses, and the label {label}")
    return found
