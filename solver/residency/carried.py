"""Journeys found on a coarser axis, on a finer one that has its rows too: what its linear program starts from.

::

    coarser      |           i           |           k           |
    finer        |     |     i     |     |     |     k     |     |
    off least                |---------------|                        at the coarser rows i .. k - 1 and between them
    off most           |-----------------------|                      wherever it is off at no other of them

Which of both is better the prices of the finer axis say; without either, their first ones are far off, for nothing
answers them at the rows between.
"""

from __future__ import annotations

import numpy as np

from solver.residency.fluid import Fluid
from solver.residency.gaps import DROP, WRAP_HEAD, WRAP_TAIL
from solver.residency.master import Option
from solver.residency.problem import Int64s


def carried(fluid: Fluid, coarser: Fluid, journeys: list[list[Option]]) -> list[list[Option]]:
    """The journeys of `coarser` on the axis of `fluid`, twice each: off for as short and as long as that can mean."""
    gaps, old = fluid.gaps, coarser.gaps
    row = np.append(np.searchsorted(fluid.axis.ops, coarser.axis.ops), fluid.axis.rows)
    unit_of = {int(m): u for u, members in enumerate(old.members) for m in members.tolist()}
    own: dict[int, list[list[Option]]] = {}
    for options in journeys:
        u = int(np.searchsorted(old.first_gap, options[0][0], side="right")) - 1
        own.setdefault(u, []).append(options)
    found: list[list[Option]] = []
    for v, members in enumerate(gaps.members):
        u = unit_of[int(members[0])]
        shift = int(gaps.first_gap[v]) - int(old.first_gap[u])
        for options in own.get(u, ()):
            for longest in (False, True):
                moved = [_moved(fluid, row, option, option[0] + shift, longest=longest) for option in options]
                found.append(moved)
    return found


def _moved(fluid: Fluid, row: Int64s, option: Option, g: int, *, longest: bool) -> Option:
    """`row`: where the coarser axis' rows are, and its end."""
    _, choice, t, i, k, pays = option
    gaps, rows = fluid.gaps, fluid.axis.rows
    kind, first, end = int(gaps.kind[g]), int(gaps.first[g]), int(gaps.end[g])
    start = 0 if kind == WRAP_HEAD else int(row[i])
    stop = int(row[k - 1]) + 1 if k else 0
    if longest:
        start = int(row[i - 1]) + 1 if i else 0
        stop = int(row[k])
    start = first if choice == DROP else max(start, first)
    stop = rows if kind == WRAP_TAIL else min(stop, end)
    return g, choice, t, start, max(start, stop), pays
