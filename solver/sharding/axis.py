"""The time axis: only the moments that can be the first to run out of memory.

A moment whose live nodes are all alive at another moment too is never fuller than that one. What remains are the
moments just before an end that follows a start (the maximal sets of live nodes), and of those only the ones where the
largest usages together exceed the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.sharding.problem import Int64s


@dataclass(frozen=True)
class Axis:
    """Node i is alive in the columns [lo_i, hi_i); column c is the moment `times[c]` with `room[c]` bytes."""

    lo: Int64s
    hi: Int64s
    times: Int64s
    room: Int64s


def make_axis(lower: Int64s, upper: Int64s, least: Int64s, most: Int64s, limit: int) -> Axis:
    """The axis of nodes that use between `least` and `most` bytes; `room` is what is left of the limit above `least`.

    Room may be negative: then nothing fits.
    """
    alive = lower < upper
    events = np.unique(np.concatenate([lower[alive], upper[alive]]))
    at_lower, at_upper = np.searchsorted(events, lower), np.searchsorted(events, upper)
    starts, ends = (np.bincount(at[alive], minlength=len(events) + 1) for at in (at_lower, at_upper))

    def level(usage: Int64s) -> Int64s:
        change = np.zeros(len(events) + 1, np.int64)
        np.add.at(change, at_lower[alive], usage[alive])
        np.add.at(change, at_upper[alive], -usage[alive])
        return np.cumsum(change)[: len(events)]

    low = level(least)
    # Maximal: something started here or since the last end, and the next event ends something.
    fresh = np.flatnonzero(starts[: len(events)])
    closing = np.flatnonzero(ends[: len(events)])
    following = np.searchsorted(closing, fresh, side="right")
    column = np.unique(closing[following[following < len(closing)]] - 1)
    column = column[level(most)[column] > limit]
    lo = np.searchsorted(column, at_lower)
    hi = np.searchsorted(column, at_upper)
    lo, hi = np.where(alive, lo, 0), np.where(alive, hi, 0)
    return Axis(lo.astype(np.int64), np.maximum(lo, hi).astype(np.int64), events[column], limit - low[column])
