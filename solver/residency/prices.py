"""What moves and reruns cost at the bound's prices: what a filling ranks them by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solver.residency.draft import Table
from solver.residency.filling import Costs
from solver.residency.fluid import Fluid, Prices

Floats = npt.NDArray[np.float64]


def costs_at(table: Table, fluid: Fluid, prices: Prices, toll: float) -> Costs:
    """Nanoseconds: link time at its prices and `toll` more, what its own gap cannot hide, and recompute time less the
    waits of the compute stream that it fills."""
    axis, problem = fluid.axis, table.problem
    tiers = len(table.usable)
    out_cost, back_cost = np.full((2, tiers, table.count), np.inf)
    start, end = np.asarray(problem.unlimited.start), np.asarray(problem.unlimited.end)
    n, step = problem.n, problem.unlimited.step_ns
    first = axis.slot_of(np.maximum(table.written, 0))
    gone = axis.slot_of(np.minimum(table.leave, n - 1))
    come = axis.slot_of(np.minimum(table.leave + 1, n - 1))
    come = np.where(table.wraps > 0, 0, come)
    due = np.minimum(axis.deadline_slot(table.before), axis.rows)
    back_at = np.append(start, step)[np.minimum(table.latest, n)]
    left_at = np.append(end, step)[np.minimum(table.leave, n)]
    for name, t in table.tier_index.items():
        if not table.takes[t].any():
            continue
        p = fluid.names.index(name)
        out_ns, in_ns = (np.maximum(of[t], 0).astype(float) for of in (table.out_ns, table.in_ns))  # -1: no such link
        out_ns = np.where((table.wraps > 0) & (table.version < 0), 0, out_ns)
        in_ns = np.where(table.latest >= n, 0, in_ns)
        out_price = _least_between(prices.out[p], first, np.maximum(gone, first))
        in_price = _least_between(prices.back[p], np.minimum(come, due), due)
        span = np.where(table.wraps > 0, step - left_at + back_at, back_at - left_at)
        stall = np.maximum(0, in_ns + out_ns - span)
        out_cost[t] = out_ns * (out_price + toll)
        back_cost[t] = in_ns * (in_price + toll) + stall + 1
        back_cost[t, (table.bytes > table.room[t]) | ~table.takes[t]] = np.inf
    idle = problem.idle_ns[table.rerun_before] if len(table.reruns) else table.rerun_ns
    again = table.rerun_ns.astype(np.float64)
    return Costs(out_cost, back_cost, np.asarray(np.maximum(again - idle, 0.2 * again) + 1, dtype=np.float64))


def _least_between(prices: Floats, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> Floats:
    """The least of prices[first .. last], element by element."""
    levels = [prices]
    while 2 ** len(levels) <= len(prices):
        half = 2 ** (len(levels) - 1)
        levels.append(np.minimum(levels[-1][:-half], levels[-1][half:]))
    last = np.maximum(last, first)
    level = np.floor(np.log2(last - first + 1)).astype(int)
    found = np.empty(len(first))
    for depth in np.unique(level).tolist():
        here = level == depth
        table = levels[depth]
        found[here] = np.minimum(table[first[here]], table[last[here] - 2**depth + 1])
    return found
