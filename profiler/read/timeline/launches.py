"""When the host launched each kernel: what joins kernels, which have device times, to blocks, which have host times.

Some sources say it. For the others the sizes do: an operator of an eager framework asks for its outputs right before
it launches the kernel that writes them, and both sequences are in the same order::

    blocks    8192.5K  16.5K   8192.5K  20481K      2048.5K              (sizes, in order of host time)
                 |       |         |                   |
    kernels   GatherV2  Range    MatMul              ConcatD             (bytes of their output shapes)

The longest common subsequence, weighted by bytes, matches them; a kernel was launched after the last of the blocks
asked for together with its own. Between matches the host's lead over the device changes slowly: it is interpolated.
Times are integer ns, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from profiler.read.timeline.shapes import sizes_of

Ints = NDArray[np.int64]

WINDOW = 4096
"""Kernels matched at a time: the table of the subsequence stays small, and a lost thread is found again."""


def launch_times(kernels: pl.DataFrame, blocks: pl.DataFrame) -> tuple[Ints, int]:
    """Host time of each kernel, ns, never falling, and how many of them are by evidence (said, or matched by size).

    `kernels`, `blocks`: columns as in `events`, kernels in order of start. A kernel's launch is never
    after its start. Where the source says most launches, the others are those of the kernel before. Without any
    evidence the launches are the starts.
    """
    start = kernels["start"].to_numpy()
    unsaid = kernels["launched"].null_count()
    if unsaid * 2 < len(start):
        said = kernels["launched"].fill_null(strategy="forward").fill_null(strategy="backward").to_numpy()
        return np.minimum(np.maximum.accumulate(said.astype(np.int64)), start), len(start) - unsaid
    listed = blocks.drop_nulls("allocated").sort("allocated", maintain_order=True)
    at, size = listed["allocated"].to_numpy(), listed["bytes"].to_numpy()
    match = _matches(sizes_of(kernels), start, size, at)
    found = np.flatnonzero(match >= 0)
    if not len(found):
        return start.astype(np.int64).copy(), 0
    launched = _after_its_blocks(match[found], at, listed["name"].to_list())
    lead = np.interp(np.arange(len(start)), found, (start[found] - launched).astype(np.float64))
    guess: Ints = start - lead.astype(np.int64)
    guess[found] = launched
    return np.minimum(np.maximum.accumulate(guess), start), len(found)


def _matches(outputs: Sequence[Sequence[int]], start: Ints, size: Ints, at: Ints) -> Ints:
    """For each kernel the block that its output is, or -1. A block is had before its kernel starts."""
    match = np.full(len(outputs), -1, np.int64)
    if not len(size) or not any(outputs):
        return match
    low = 0
    for begin in range(0, len(outputs), WINDOW):
        part = slice(begin, min(begin + WINDOW, len(outputs)))
        high = int(np.searchsorted(at, start[part][-1], side="right"))
        found = _subsequence(outputs[part], start[part], size[low:high], at[low:high])
        match[part] = np.where(found >= 0, found + low, -1)
        taken = found[found >= 0]
        low += int(taken[-1]) + 1 if len(taken) else 0
    return match


def _subsequence(outputs: Sequence[Sequence[int]], start: Ints, size: Ints, at: Ints) -> Ints:
    """The heaviest common subsequence of kernels and blocks, block by kernel (-1: none), by dynamic programming over
    kernels; a row is the best weight with the first j blocks."""
    n, m = len(outputs), len(size)
    best = np.zeros(m + 1)
    takes, gains = np.zeros((n, m), np.bool_), np.zeros((n, m + 1), np.bool_)
    weight = np.log2(np.maximum(size, 2).astype(np.float64))
    for k in range(n):
        had = int(np.searchsorted(at, start[k], side="right"))
        fits = np.isin(size[:had], outputs[k]) if len(outputs[k]) else np.zeros(had, np.bool_)
        if not fits.any():
            continue
        through = np.where(fits, best[:had] + weight[:had], -1.0)
        row = best.copy()
        row[1 : had + 1] = np.maximum(row[1 : had + 1], through)
        np.maximum.accumulate(row, out=row)
        takes[k, :had] = (through > best[1 : had + 1]) & (through >= row[1 : had + 1])
        gains[k] = row > best
        best = row
    return _walk(takes, gains, n, m)


def _walk(takes: NDArray[np.bool_], gains: NDArray[np.bool_], n: int, m: int) -> Ints:
    """Back from the last kernel: where a kernel gained, it took the last block in reach that was worth as much."""
    match = np.full(n, -1, np.int64)
    reach = m
    for k in range(n - 1, -1, -1):
        if gains[k, reach]:
            match[k] = reach = int(np.flatnonzero(takes[k, :reach])[-1])
    return match


def _after_its_blocks(match: Ints, at: Ints, names: Sequence[str]) -> Ints:
    """Host time right after the last of the blocks that the same operator asked for in one go (its outputs, then its
    workspace)."""
    last = match.copy()
    ends = np.append(match[1:], len(names))
    for i, (here, end) in enumerate(zip(match, ends, strict=True)):
        j = int(here)
        while j + 1 < end and names[j + 1] == names[here]:
            j += 1
        last[i] = j
    return at[last] + 1
