"""Kernels of a step -> operators in order of start, on streams that never overlap themselves, with idle time between.

::

    kernels       ====A====   ==B==        ===C===             of the compute stream
                        ~~~~hcom~~~~~                          of another
    operators     A   idle B  hcom    idle   C        idle     = the measured step, in replay

Replay starts operators in listed order as soon as it may: other streams never start later than they did, and the
compute stream with its idle time is the step. Idle shorter than a ten-thousandth of the step is gathered into the
next idle operator; so times in between are off by that at most. Times are integer ns.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import polars as pl

from hyperopt.profile import COMPUTE

IDLE_SHARE = 10_000


@dataclass(frozen=True, slots=True)
class Lane:
    """`kernel`: row of the kernels' table, or -1 for idle time. Times in ns."""

    kernel: int
    stream: str
    start: int
    duration: int


def lanes(kernels: pl.DataFrame, start: int, step_ns: int) -> list[Lane]:
    """All kernels, in order of start, with the compute stream filled with idle time from `start` on for `step_ns`.

    The compute stream is the one that works most of those that do not communicate. Kernels that overlap the one
    before on their stream go to one beside it, "NAME-2" and so on.
    """
    names = _streams(kernels)
    begins, durations = kernels["start"].to_list(), kernels["duration"].to_list()
    free: dict[str, int] = {}
    beside: dict[str, list[tuple[int, str]]] = {}
    least = max(step_ns // IDLE_SHARE, 1)
    listed: list[Lane] = []
    done, waiting = start, 0
    for row, (name, begin, duration) in enumerate(zip(names, begins, durations, strict=True)):
        if free.get(name, begin) <= begin:
            stream, free[name] = name, begin + duration
        else:
            others = beside.setdefault(name, [])
            is_free = bool(others) and others[0][0] <= begin
            stream = heapq.heappop(others)[1] if is_free else f"{name}-{len(others) + 2}"
            heapq.heappush(others, (begin + duration, stream))
        if stream == COMPUTE:
            waiting += max(begin - done, 0)
            if waiting >= least:
                listed.append(Lane(-1, COMPUTE, done, waiting))
                waiting = 0
            done = begin + duration
        listed.append(Lane(row, stream, begin, duration))
    rest = waiting + start + step_ns - done
    if rest > 0:
        listed.append(Lane(-1, COMPUTE, done, rest))
    # Idle time begins where the kernel before ended: before all that starts while it lasts, after what starts with it.
    return sorted(listed, key=lambda lane: (lane.start, lane.kernel < 0))


def _streams(kernels: pl.DataFrame) -> list[str]:
    raw = kernels["stream"].fill_null(COMPUTE)
    work = kernels.select(raw.alias("stream"), "duration").group_by("stream").agg(pl.col("duration").sum())
    work = work.filter(pl.col("stream") != "communication").sort("duration", "stream", descending=[True, False])
    main = work["stream"][0] if work.height else COMPUTE
    return [COMPUTE if name == main else name if name == "communication" else f"stream-{name}" for name in raw]


def idle_ns(kernels: pl.DataFrame, step_ns: int, during: pl.Expr) -> tuple[int, int]:
    """Time of the step in which the compute stream does nothing, and the part of it in which a kernel that fulfils
    `during` runs, on whatever stream."""
    compute = kernels.filter(pl.Series(_streams(kernels)) == COMPUTE) if kernels.height else kernels
    others = kernels.filter(during.fill_null(False))
    together = pl.concat([compute, others]).sort("start")
    return step_ns - busy_ns(compute), busy_ns(together) - busy_ns(compute)


def busy_ns(kernels: pl.DataFrame) -> int:
    """Time in which at least one of the kernels runs."""
    if not kernels.height:
        return 0
    begins = kernels["start"].to_numpy()
    ends = np.maximum.accumulate(begins + kernels["duration"].to_numpy())
    before = np.concatenate([begins[:1], ends[:-1]])
    return int(np.sum(np.maximum(ends - np.maximum(begins, before), 0)))
