"""A program walked through by a logical clock, no kernel timed: who is in memory at which operator, to the byte.

A memory tracker stamps tasks, allocations and releases with one counter; how long anything took it does not say. Task
by task, what happens up to the next one is one operator's doing::

    stamp     3        4 5        6 7          8        9
              task 0   +A +ws     -ws task 1   +B       -A          B is still there at the end
    operator  |------------- 0 -------|------------- 1 ----------|
    storages  A written by 0, read by 1; B written by 1
    workspace ws, of 0: what comes and goes between two tasks belongs to the operator, and is no storage

Replay allocates what an operator makes, with its workspace, at the operator's start, and frees a storage at its last
access. So that it meets the tracker's own level of memory exactly, `walk`

* gives every storage an access at the last operator before its release (most have one: the release follows the use);
  where the release came before that operator's own allocations, and they would not fit beside it in the level that
  was, the operator before is the last;
* makes an operator's workspace what its highest level has beyond the storages that replay holds.

Then the level of each operator that allocates is the highest that the tracker saw in it, all others are not above
their neighbours', and so the peak is the tracker's. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiler.read.mindspore.tracker_names import STANDING

I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEVER = 2**63 - 1
"""Stamp of a release that did not happen while the tracker ran."""

UNKNOWN = -1
"""Stamp of a producer that is not named."""

_FREE, _ALLOCATE, _ALLOCATE_BY_TASK = 0, 1, 2


@dataclass(frozen=True)
class Tasks:
    """Stamps, ascending, and the names of tasks, of their nodes and their graphs ("" where not known)."""

    stamps: I64
    task: Sequence[str]
    node: Sequence[str]
    graph: Sequence[str]


@dataclass(frozen=True)
class Blocks:
    """One entry an allocation: stamps of start and end (`NEVER`), bytes, stamp of the producing task (`UNKNOWN`),
    the tracker's type ("" for blocks that no tensor is bound to) and the producing node.

    `user`, `user_stamp`: one entry an access, the block's position and the task's stamp. `writer`, `writer_stamp`: the
    same of accesses that write, besides those of producers.
    """

    start: I64
    end: I64
    size: I64
    producer: I64
    type: Sequence[str]
    node: Sequence[str]
    user: I64
    user_stamp: I64
    writer: I64
    writer_stamp: I64


@dataclass(frozen=True)
class Walk:
    """Per block: `storage` (it is one; else workspace), `at_start`, `at_end` (resident then), `held` (nothing is seen
    to use it in the operator that has it last: the access there stands for its being held), and the operator `born`.

    `reads`, `writes`: pairs of operator and block, ordered. Per operator: `workspace`, and `level`, the bytes in use
    while it runs. `peak_op` is the first operator at the peak; `peak_workspace` is what of the peak is workspace.
    `moved`: accesses that count to the operator before, because the block was released before the operator
    allocated. `outside`: accesses at stamps at which the block was not there; they are left out.
    """

    storage: Flags
    at_start: Flags
    at_end: Flags
    held: Flags
    born: I64
    reads: tuple[I64, I64]
    writes: tuple[I64, I64]
    workspace: I64
    level: I64
    peak_op: int
    peak_workspace: int
    moved: int
    outside: int

    @property
    def peak(self) -> int:
        return int(self.level[self.peak_op])


@dataclass(frozen=True)
class _Events:
    """Allocations and releases in order: block, operator, and the level right after, of all and of workspace."""

    block: I64
    op: I64
    allocates: Flags
    level: I64
    scratch: I64


def walk(tasks: I64, blocks: Blocks) -> Walk:
    """`tasks`: stamps, ascending, at least one. What comes before the first task counts to it.

    Blocks must have `start` < `end` and bytes whose sum an int64 holds.
    """
    count = len(tasks)
    born, by_task = _births(tasks, blocks)
    gone = np.where(blocks.end == NEVER, count, np.maximum(np.searchsorted(tasks, blocks.end, "left") - 1, 0))
    storage = gone > born
    events = _events(blocks, born, gone, by_task, storage)
    last, workspace, level = _levels(events, blocks, born, gone, storage, count)
    at_start = storage & (blocks.start < tasks[0]) & ~by_task
    peak_op = int(np.argmax(level))
    standing, level = _found_there(blocks, born, gone, storage, level, peak_op)
    at_start |= standing
    life = _Life(born, last, gone, storage)
    used = _located(tasks, blocks, life, blocks.user, blocks.user_stamp)
    wrote = _located(tasks, blocks, life, blocks.writer, blocks.writer_stamp)
    held = _held(life, at_start, len(tasks), used, wrote)
    top = int(np.argmax(events.level)) if len(events.level) else -1
    return Walk(
        storage=storage,
        at_start=at_start,
        at_end=storage & (gone == count),
        held=held,
        born=born,
        reads=_reads(life, at_start, held, used),
        writes=_writes(tasks, blocks, life, at_start, wrote),
        workspace=workspace,
        level=level,
        peak_op=peak_op,
        peak_workspace=int(events.scratch[top]) if top >= 0 else 0,
        moved=used.moved,
        outside=used.outside,
    )


def _births(tasks: I64, blocks: Blocks) -> tuple[I64, Flags]:
    """The operator in which each block is allocated, and whether at the very stamp of its producing task.

    Two counters are in use. In one, a task may share its stamp with the allocation just before it; in the other (the
    dry run's), allocations have the stamp of the task that makes them. The producer tells which it is.
    """
    at = np.searchsorted(tasks, blocks.start, "right") - 1
    by_task = (at >= 0) & (tasks[np.maximum(at, 0)] == blocks.start) & (blocks.producer == blocks.start)
    before = np.searchsorted(tasks, blocks.start, "left") - 1
    return np.maximum(np.where(by_task, at, before), 0), by_task


def _events(blocks: Blocks, born: I64, gone: I64, by_task: Flags, storage: Flags) -> _Events:
    freed = np.flatnonzero(blocks.end != NEVER)
    every = np.arange(len(blocks.start))
    block = np.concatenate([every, freed])
    stamp = np.concatenate([blocks.start, blocks.end[freed]])
    kind = np.concatenate([np.where(by_task, _ALLOCATE_BY_TASK, _ALLOCATE), np.full(len(freed), _FREE)])
    order = np.lexsort((kind, stamp))
    block, allocates = block[order], kind[order] != _FREE
    change = np.where(allocates, blocks.size[block], -blocks.size[block])
    return _Events(
        block=block,
        op=np.where(allocates, born[block], gone[block]),
        allocates=allocates,
        level=np.cumsum(change),
        scratch=np.cumsum(np.where(storage[block], 0, change)),
    )


def _levels(events: _Events, blocks: Blocks, born: I64, gone: I64, storage: Flags, count: int) -> tuple[I64, I64, I64]:
    """The operator that has each block last, and per operator its workspace and its level."""
    highest = np.full(count, -1)
    np.maximum.at(highest, events.op[events.allocates], events.level[events.allocates])
    size = np.where(storage, blocks.size, 0)
    made = _sum(born, size, count)
    given_back = _sum(gone, size, count + 1)[:count]
    found = np.cumsum(made - given_back) - made + given_back  # before the operator's own doings
    beside = found + made
    # Releases that came before the operator's last lasting allocation, where both would be above the level that was.
    lasting = events.allocates & storage[events.block]
    final = np.full(count, -1)
    np.maximum.at(final, events.op[lasting], np.flatnonzero(lasting))
    crowded = (final >= 0) & (beside > highest)
    releases = np.flatnonzero(~events.allocates & storage[events.block])
    early = releases[crowded[events.op[releases]] & (releases < final[events.op[releases]])]
    last = gone.copy()
    last[events.block[early]] -= 1
    beside -= _sum(events.op[early], blocks.size[events.block[early]], count)
    workspace = np.maximum(highest - beside, 0)
    return last, workspace, beside + workspace


def _sum(index: I64, values: I64, length: int) -> I64:
    """Exact sums by index: `np.bincount` would go through doubles."""
    total = np.zeros(length, np.int64)
    np.add.at(total, index, values)
    return total


def _found_there(blocks: Blocks, born: I64, gone: I64, storage: Flags, level: I64, peak_op: int) -> tuple[Flags, I64]:
    """Standing blocks that are allocated on the way and never released: resident from the start, as the step repeats
    with them there. Only if the peak stays what and where it was, else none of them. With the level they make."""
    standing = np.fromiter((type in STANDING for type in blocks.type), np.bool_, len(blocks.type))
    late = storage & standing & (gone == len(level))
    more = _sum(born[late], blocks.size[late], len(level))
    raised = level + more.sum() - np.cumsum(more)
    if (raised[:peak_op] < level[peak_op]).all() and (raised <= level[peak_op]).all():
        return late, raised
    return np.zeros_like(late), level


@dataclass(frozen=True)
class _Life:
    """Per block: the operators in which it is allocated, that have it last, and in which it is released; whether it
    is a storage."""

    born: I64
    last: I64
    gone: I64
    storage: Flags


@dataclass(frozen=True)
class _Accesses:
    """Block and operator of each; how many were `moved` to the operator before, and how many fell `outside`."""

    block: I64
    op: I64
    moved: int
    outside: int


def _located(tasks: I64, blocks: Blocks, life: _Life, block: I64, stamp: I64) -> _Accesses:
    known = life.storage[block]
    block, stamp = block[known], stamp[known]
    op = np.searchsorted(tasks, stamp, "right") - 1
    own = (op < life.born[block]) & (stamp == blocks.producer[block])
    late = (op == life.gone[block]) & (life.last[block] < life.gone[block])
    op = np.where(late, life.last[block], op)
    there = (op >= life.born[block]) & (op <= life.last[block])
    return _Accesses(block[there], op[there], int((late & there).sum()), int((~there & ~own).sum()))


def _held(life: _Life, at_start: Flags, count: int, *found: _Accesses) -> Flags:
    """Storages that nothing is seen to access in the operator that has them last."""
    latest = np.where(at_start, -1, life.born)
    for accesses in found:
        np.maximum.at(latest, accesses.block, accesses.op)
    return life.storage & (life.last < count) & (latest < life.last)


def _reads(life: _Life, at_start: Flags, held: Flags, used: _Accesses) -> tuple[I64, I64]:
    extra = np.flatnonzero(held)
    op, block = np.concatenate([used.op, life.last[extra]]), np.concatenate([used.block, extra])
    fresh = ~at_start[block] & (op == life.born[block])  # written there: nothing to read before
    return _pairs(op[~fresh], block[~fresh], len(held))


def _writes(tasks: I64, blocks: Blocks, life: _Life, at_start: Flags, wrote: _Accesses) -> tuple[I64, I64]:
    """Each storage is written where it is allocated, where its producer runs, if that is later, and in place."""
    first = np.flatnonzero(life.storage & ~(at_start & (blocks.start < tasks[0])))
    at = np.minimum(np.searchsorted(tasks, blocks.producer, "left"), len(tasks) - 1)
    later = life.storage & (tasks[at] == blocks.producer) & (at > life.born) & (at <= life.last)
    again = np.flatnonzero(later)
    op = np.concatenate([life.born[first], at[again], wrote.op])
    return _pairs(op, np.concatenate([first, again, wrote.block]), len(at_start))


def _pairs(op: I64, block: I64, blocks: int) -> tuple[I64, I64]:
    """Pairs without repetition, by operator and then block."""
    keys = np.unique(op * blocks + block)
    return keys // max(blocks, 1), keys % max(blocks, 1)
