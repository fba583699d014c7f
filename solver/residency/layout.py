"""A table's gaps and reruns in few arrays, for compiled code.

Numba takes every array that is handed over apart and counts its references: what that takes to compile grows with the
square of how many are handed over together. So fields that go by the same number are rows of one array; a function
takes the rows that it reads at its start, which costs nothing when it runs::

    leave, wraps = layout.gaps[LEAVE], layout.gaps[WRAPS]
"""

from __future__ import annotations

from typing import NamedTuple

from solver.residency.problem import Int64s

STORAGE, BYTES, AFTER, BEFORE, LEAVE, LATEST, WRITTEN, WRAPS, VERSION, KEPT, BY_LEAVE, BY_LATEST, GIVEN_UP = range(13)
"""Rows of `Layout.gaps`; fields as in `draft.Table`."""

LOAD, NEXT_COMPUTE, NEXT_DEPARTURE, LAST_DEPARTURE, NEXT_ARRIVAL, LAST_ARRIVAL = range(6)
"""Rows of `Layout.operators`: one place more than there are operators."""

FIRST_GAP, WRITER_AT, LAST_ACCESS, STAYS, SIZE = range(5)
"""Rows of `Layout.storages`: one place more than there are storages."""

PART_AT, EXTRA, RERUN_BEFORE, RUN_AT, TARGET, CLASH_AT, TURN, RERUN_NS, FULLEST = range(9)
"""Rows of `Layout.reruns`: one place more than there are reruns. TURN: the reruns in the order of their execution.
FULLEST: the operator that needs most, without a plan, of those over which a rerun has something off."""

ROOMY, ROOM, DUPLEX = range(3)
"""Rows of `Layout.tiers`."""

OUT_NS, IN_NS = range(2)
"""Places in `Layout.links`: (direction, tier, gap)."""


class Layout(NamedTuple):
    """`run[RUN_AT of r : RUN_AT of r + 1]` are the operators of rerun r, in order; `parts` as in `draft.Table`."""

    n: int
    gaps: Int64s
    operators: Int64s
    storages: Int64s
    reruns: Int64s
    tiers: Int64s
    links: Int64s
    parts: Int64s
    writer: Int64s
    arrivals: Int64s
    departures: Int64s
    clash: Int64s
    run: Int64s
