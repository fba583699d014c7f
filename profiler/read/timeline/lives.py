"""Blocks of host time -> lives in operators, such that the peak stays what it was, to the byte.

The host's launches cut its time line into windows; what is allocated when operator k is launched is there while k
runs. The most that was allocated within k's window, above that, is k's own transient: its workspace, and temporaries
of the host's code that no launch ever saw::

    host          ..... launch k-1 ........ launch k .... launch k+1
    allocated     ___/----------\\___/-----\\__/-----------------
    block A          [----------------------------------------        written by k-1
    block B                      [-----]                              in no launch: transient of k
                  used at launch k = L,  most in (launch k-1, launch k] = H,  workspace of k = H - L

So base + L + workspace is the highest level of each window, and their maximum is the peak. Sizes are bytes, times ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NEVER = np.iinfo(np.int64).max
ALWAYS = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Lives:
    """Per block: `first` and `last` operator (positions among the launches) that it is there for; first > last for
    those that no launch saw. `before`: it was there when the step began; `after`: it is there when the step ends.
    `level`: per operator, bytes of the blocks that it was launched with; `transient`: most bytes beyond them."""

    first: Ints
    last: Ints
    before: NDArray[np.bool_]
    after: NDArray[np.bool_]
    level: Ints
    transient: Ints

    @property
    def peak_bytes(self) -> int:
        """Highest level, without what no block describes."""
        return int((self.level + self.transient).max(initial=0))


def lives(blocks: pl.DataFrame, launches: Ints, start: int | None, end: int | None) -> Lives:
    """Lives of the blocks in a step whose operators the host launched at `launches` (never falling).

    `start`, `end`: host time at which the step begins and ends; None: with everything that was recorded. Blocks of
    other steps have no life here.
    """
    begin, finish = (ALWAYS if start is None else start), (NEVER if end is None else end)
    had = blocks["allocated"].fill_null(ALWAYS).to_numpy()
    gone = blocks["freed"].fill_null(NEVER).to_numpy()
    size = blocks["bytes"].to_numpy()
    if not len(launches):
        none, nothing = np.zeros(len(size), np.bool_), np.zeros(0, np.int64)
        return Lives(np.ones(len(size), np.int64), np.zeros(len(size), np.int64), none, none, nothing, nothing)
    inside = (gone > begin) & (had < finish)
    before = inside & ((had < begin) | (had == ALWAYS))
    after = inside & ((gone >= finish) | (gone == NEVER))
    first = np.where(before, 0, np.searchsorted(launches, had, side="left"))
    last = np.where(after, len(launches) - 1, np.searchsorted(launches, gone, side="left") - 1)
    first, last = np.where(inside, first, 1), np.where(inside, last, 0)
    level = _level(first, last, size, len(launches))
    top = _tops(had, gone, size, inside, before, after, launches)
    return Lives(first, last, before, after, level, np.maximum(top - level, 0))


def _level(first: Ints, last: Ints, size: Ints, count: int) -> Ints:
    """Bytes of the blocks that are there for each operator."""
    live = first <= last
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, first[live], size[live])
    np.add.at(change, last[live] + 1, -size[live])
    return np.cumsum(change)[:-1]


def _tops(
    had: Ints,
    gone: Ints,
    size: Ints,
    inside: NDArray[np.bool_],
    before: NDArray[np.bool_],
    after: NDArray[np.bool_],
    launches: Ints,
) -> Ints:
    """Highest level within each operator's window, after each change in it. The first window begins with the step,
    the last one ends with it: blocks that are gone before the first launch, or come after the last, count there."""
    took, gave = inside & ~before, inside & ~after
    times = np.concatenate([had[took], gone[gave]])
    change = np.concatenate([size[took], -size[gave]])
    order = np.lexsort((change, times))
    level = np.cumsum(change[order]) + int(size[before].sum())
    window = np.minimum(np.searchsorted(launches, times[order], side="left"), len(launches) - 1)
    top = np.zeros(len(launches), np.int64)
    top[0] = size[before].sum()
    np.maximum.at(top, window, level)
    return top
