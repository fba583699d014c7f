"""The loop of the compiled replay: `script` and `Clock` in one pass over flat integer arrays.

::

    per operator   copies in ─ executions again ─ the operator ─ what stands after it ─ frees by last access
    judged         legality and room in listed order (script.py), and at once the time (replay.py)

All of it is in this file, constants too: numba's cache is as old as the file it compiles, and would not notice a
number that changed elsewhere. Only what the loop is too slow for in Python is compiled. Bytes and nanoseconds are
int64 (`arrays` makes sure that they fit), storages and operators are positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
F = TypeVar("F", bound=Callable[..., Any])

COPY_OUT, RELEASE, RELEASE_HOST = 0, 1, 2
"""Kinds of what stands after an operator."""

READ_NOT_IN_HBM, READ_OF_DROPPED, WRONG_VERSION, WRITE_NOT_IN_HBM, WRITE_OF_DROPPED = 1, 2, 3, 4, 5
COPY_IN_WITHOUT_COPY, COPY_IN_ALREADY_IN_HBM, NO_LINK, UNKNOWN_TIER, NOT_OFFLOADABLE = 6, 7, 8, 9, 10
COPY_OUT_NOT_IN_HBM, RELEASE_NOT_IN_HBM, RELEASE_HOST_ILLEGAL, RECOMPUTE_AND_SWAP = 11, 12, 13, 14
"""Refusals; `outcome` knows their names. 0: none."""

FOR_NOTHING, FOR_COPY_IN, FOR_COPY, FOR_OPERATOR = 0, 1, 2, 3
"""What an operator waited for longest: content that was being copied in, a copy of what it overwrites, another
operator's access."""

IN_HBM, DROPPED, COPIED_SINCE_ACCESS, READY_BY_COPY, BUSY_BY_COPY = 1, 2, 4, 8, 16
"""Bits of `State.flags`."""

READY, BUSY, COPIED = 0, 1, 2
"""Columns of `State.at`: see `replay.Clock`."""

FREE_IN, FREE_OUT, TIER_USED, TIER_PEAK = 0, 1, 2, 3
"""Columns of `State.tiers`: when the link is free in each direction (ns), bytes in use, their peak."""

NOW, LAST_END, STEP, RECOMPUTE, USED, PEAK, PEAK_OP, COMING = 0, 1, 2, 3, 4, 5, 6, 7
STATIC, STATIC_PEAK, STATIC_PEAK_OP, COPIES, SHORT, SHORT_OP, SHORT_TIER, CODE, CODE_OP, CODE_STORAGE = range(8, 18)
REGISTERS = 18
"""Places of `State.register`: the scalars of script and clock. SHORT: bytes that were missing first (0: none), in
tier SHORT_TIER (-1: HBM)."""


class Tables(NamedTuple):
    """A profile. `x_at[i]` to `x_at[i + 1]` are the places in `x` of operator i."""

    read_at: I32
    read: I32
    expected: I32  # per read: the operator whose write it must find, -1: as at step start
    write_at: I32
    write: I32
    dying_at: I32
    dying: I32  # storages whose last access the operator is, and that do not stay
    workspace: I64
    duration: I64
    stream: I32
    size: I64
    offloadable: U8
    last_access: I32
    out_ns: I64  # (tiers, storages): time to copy; -1: no such path
    in_ns: I64
    duplex: U8


class Orders(NamedTuple):
    """A plan, by operator and in the plan's order. Made by `orders.orders_of` or `orders.orders_from`, which check
    that every number is in its range: the loop does not."""

    initial: I32  # storages that start in a tier
    initial_tier: I32
    in_at: I32
    in_storage: I32
    after_at: I32
    after_kind: I32
    after_storage: I32
    after_tier: I32  # of a copy out; -1: no such tier
    rerun_at: I32
    rerun: I32  # operators to execute again
    rerun_for: I32  # at the last one of a recompute: the storage that it is for, else -1
    late: I32  # per storage: the place in `rerun` where it dies instead of at its last access, or -1


class State(NamedTuple):
    """All that the loop changes and needs again: a copy of it is a checkpoint."""

    register: I64
    at: I64  # (storages, 3)
    flags: U8
    version: I32
    tier: I32  # where the storage's copy is, or -1
    heap_time: I64
    heap_bytes: I64
    stream_free: I64
    tiers: I64  # (tiers, 4)


class Record(NamedTuple):
    """What the loop writes down per operator and per copy."""

    start: I64
    end: I64
    wait_ns: I64
    wait_for: I32
    wait_kind: U8
    memory_ns: I64
    static_bytes: I64
    tier_bytes: I64  # (operators, tiers)
    copies: I64  # (copies, 7): storage, operator, tier, out, issue, start, end


def compiled(function: F) -> F:
    return cast(F, njit(cache=True, nogil=True)(function))


@compiled
def _push(register: I64, heap_time: I64, heap_bytes: I64, when: int, size: int) -> None:
    """Puts a coming release on the heap."""
    i = register[COMING]
    register[COMING] = i + 1
    while i > 0:
        above = (i - 1) >> 1
        if heap_time[above] <= when:
            break
        heap_time[i] = heap_time[above]
        heap_bytes[i] = heap_bytes[above]
        i = above
    heap_time[i] = when
    heap_bytes[i] = size


@compiled
def _allocate(register: I64, heap_time: I64, heap_bytes: I64, at: int, need: int, limit: int, op: int) -> int:
    """`Clock._allocate`. Releases of the same time all come together, so that their order does not matter."""
    count = register[COMING]
    used = register[USED]
    while count > 0 and (heap_time[0] <= at or used + need > limit):
        if heap_time[0] > at:
            at = heap_time[0]
        used -= heap_bytes[0]
        count -= 1
        when = heap_time[count]
        size = heap_bytes[count]
        i = 0
        while True:
            below = 2 * i + 1
            if below >= count:
                break
            if below + 1 < count and heap_time[below + 1] < heap_time[below]:
                below += 1
            if heap_time[below] >= when:
                break
            heap_time[i] = heap_time[below]
            heap_bytes[i] = heap_bytes[below]
            i = below
        heap_time[i] = when
        heap_bytes[i] = size
    register[COMING] = count
    used += need
    register[USED] = used
    if used > register[PEAK]:
        register[PEAK] = used
        register[PEAK_OP] = op
    return at


@compiled
def _check_room(register: I64, op: int, need: int, limit: int) -> int:
    """`script._check_room`; returns what is then in use."""
    total: int = register[STATIC] + need
    if total > register[STATIC_PEAK]:
        register[STATIC_PEAK] = total
        register[STATIC_PEAK_OP] = op
    if total > limit and register[SHORT] == 0:
        register[SHORT] = total - limit
        register[SHORT_OP] = op
        register[SHORT_TIER] = -1
    return total


@compiled
def _copy(
    register: I64, tiers: I64, copies: I64, s: int, op: int, tier: int, out: int, duplex: int, lasts: int,
    issue: int, earliest: int,
) -> int:  # fmt: skip
    """`Clock._copy`."""
    queue = FREE_OUT if out and duplex else FREE_IN
    start = max(earliest, tiers[tier, queue])
    end: int = start + lasts
    tiers[tier, queue] = end
    row = register[COPIES]
    register[COPIES] = row + 1
    copies[row, 0] = s
    copies[row, 1] = op
    copies[row, 2] = tier
    copies[row, 3] = out
    copies[row, 4] = issue
    copies[row, 5] = start
    copies[row, 6] = end
    register[STEP] = max(register[STEP], end)
    return end


@compiled
def _gone(
    register: I64, at: I64, flags: U8, tier: I32, heap_time: I64, heap_bytes: I64, tiers: I64, s: int, size: int
) -> None:
    """Frees a storage by its last access, in HBM and outside."""
    if flags[s] & IN_HBM:
        flags[s] = flags[s] & ~IN_HBM
        register[STATIC] -= size
        _push(register, heap_time, heap_bytes, max(register[LAST_END], at[s, BUSY]), size)
    if tier[s] >= 0:
        tiers[tier[s], TIER_USED] -= size
        tier[s] = -1


@compiled
def walk(
    tables: Tables, orders: Orders, state: State, record: Record, limit: int, budgets: I64, first: int, end_op: int
) -> int:
    """Operators `first` to `end_op` - 1. Returns 0, or the first refusal, with its place in the register.

    What does not fit is written down (SHORT) and the walk goes on: legality comes first. Times are then without
    meaning.
    """
    read_at, read, expected = tables.read_at, tables.read, tables.expected
    write_at, write, dying_at, dying = tables.write_at, tables.write, tables.dying_at, tables.dying
    workspace, duration, stream, size = tables.workspace, tables.duration, tables.stream, tables.size
    in_at, after_at, rerun_at, late = orders.in_at, orders.after_at, orders.rerun_at, orders.late
    register, at, flags, version, tier = state.register, state.at, state.flags, state.version, state.tier
    heap_time, heap_bytes, stream_free, tiers = state.heap_time, state.heap_bytes, state.stream_free, state.tiers
    copies, tier_bytes = record.copies, record.tier_bytes
    code = 0
    s = -1
    for op in range(first, end_op):
        for t in range(tiers.shape[0]):
            tier_bytes[op, t] = tiers[t, TIER_USED]
        highest = memory_ns = wait_ns = longest = 0
        wait_for, wait_kind = -1, FOR_NOTHING

        for i in range(in_at[op], in_at[op + 1]):
            s = orders.in_storage[i]
            t = tier[s]
            if t < 0:
                code = COPY_IN_WITHOUT_COPY
            elif flags[s] & IN_HBM:
                code = COPY_IN_ALREADY_IN_HBM
            elif tables.in_ns[t, s] < 0:
                code = NO_LINK
            if code:
                break
            highest = max(highest, _check_room(register, op, size[s], limit))
            register[STATIC] += size[s]
            issue = max(register[NOW], stream_free[0])
            now = _allocate(register, heap_time, heap_bytes, issue, size[s], limit, op)
            memory_ns += now - issue
            register[NOW] = now
            end = _copy(
                register, tiers, copies, s, op, t, 0, tables.duplex[t], tables.in_ns[t, s], now, max(now, at[s, COPIED])
            )
            at[s, READY] = end
            flags[s] = flags[s] | IN_HBM | COPIED_SINCE_ACCESS | READY_BY_COPY
            if end >= at[s, BUSY]:
                at[s, BUSY] = end
                flags[s] = flags[s] | BUSY_BY_COPY
        if code:
            break

        # The executions again, and last the operator itself.
        for k in range(rerun_at[op], rerun_at[op + 1] + 1):
            again = k < rerun_at[op + 1]
            executed = orders.rerun[k] if again else op
            queue = 0 if again else stream[executed]
            free = max(register[NOW], stream_free[queue])
            start, cause, kind = free, -1, FOR_NOTHING
            for i in range(read_at[executed], read_at[executed + 1]):
                s = read[i]
                if not flags[s] & IN_HBM:
                    code = READ_OF_DROPPED if flags[s] & DROPPED else READ_NOT_IN_HBM
                    break
                if version[s] != expected[i]:
                    code = WRONG_VERSION
                    break
                if at[s, READY] > start:
                    start, cause = at[s, READY], s
                    kind = FOR_COPY_IN if flags[s] & READY_BY_COPY else FOR_OPERATOR
            if code:
                break
            fresh = 0
            for i in range(write_at[executed], write_at[executed + 1]):
                s = write[i]
                if flags[s] & IN_HBM:
                    if at[s, BUSY] > start:
                        start, cause = at[s, BUSY], s
                        kind = FOR_COPY if flags[s] & BUSY_BY_COPY else FOR_OPERATOR
                    continue
                if tier[s] >= 0:
                    code = WRITE_NOT_IN_HBM
                    break
                if flags[s] & DROPPED and not again:
                    code = WRITE_OF_DROPPED
                    break
                fresh += size[s]
            if code:
                break
            need = workspace[executed] + fresh
            highest = max(highest, _check_room(register, op, need, limit))
            register[STATIC] += fresh
            waited = start - free
            wait_ns += waited
            if waited > longest:
                longest, wait_for, wait_kind = waited, cause, kind
            if need:
                asked = start
                start = _allocate(register, heap_time, heap_bytes, asked, need, limit, op)
                memory_ns += start - asked
            end = start + duration[executed]
            for i in range(read_at[executed], read_at[executed + 1]):
                s = read[i]
                if not again:
                    flags[s] = flags[s] & ~COPIED_SINCE_ACCESS
                if end > at[s, BUSY]:
                    at[s, BUSY] = end
                    flags[s] = flags[s] & ~BUSY_BY_COPY
            for i in range(write_at[executed], write_at[executed + 1]):
                s = write[i]
                at[s, READY] = end
                kept = flags[s] & ~(DROPPED | READY_BY_COPY)
                if not again:
                    kept = kept & ~COPIED_SINCE_ACCESS
                if end > at[s, BUSY]:
                    at[s, BUSY] = end
                    kept = kept & ~BUSY_BY_COPY
                flags[s] = kept | IN_HBM
                version[s] = executed
                if tier[s] >= 0:
                    tiers[tier[s], TIER_USED] -= size[s]
                    tier[s] = -1
            if workspace[executed]:
                _push(register, heap_time, heap_bytes, end, workspace[executed])
            register[NOW] = start
            register[LAST_END] = end
            stream_free[queue] = end
            register[STEP] = max(register[STEP], end)
            if not again:
                record.start[op] = start
                record.end[op] = end
                continue
            register[RECOMPUTE] += duration[executed]
            for i in range(read_at[executed], read_at[executed + 1]):
                s = read[i]
                if late[s] == k:
                    _gone(register, at, flags, tier, heap_time, heap_bytes, tiers, s, size[s])
            for i in range(write_at[executed], write_at[executed + 1]):
                s = write[i]
                if late[s] == k:
                    _gone(register, at, flags, tier, heap_time, heap_bytes, tiers, s, size[s])
            s = orders.rerun_for[k]
            if s >= 0 and flags[s] & COPIED_SINCE_ACCESS:
                code = RECOMPUTE_AND_SWAP
                break
        if code:
            break
        record.wait_ns[op] = wait_ns
        record.wait_for[op] = wait_for
        record.wait_kind[op] = wait_kind
        record.memory_ns[op] = memory_ns
        record.static_bytes[op] = highest

        for i in range(after_at[op], after_at[op + 1]):
            s = orders.after_storage[i]
            kind = orders.after_kind[i]
            there = flags[s] & IN_HBM
            if kind == COPY_OUT:
                t = orders.after_tier[i]
                if t < 0 or budgets[t] <= 0:
                    code = UNKNOWN_TIER
                elif not tables.offloadable[s]:
                    code = NOT_OFFLOADABLE
                elif not there:
                    code = COPY_OUT_NOT_IN_HBM
                elif tier[s] < 0 and tables.out_ns[t, s] < 0:
                    code = NO_LINK
                if code:
                    break
                if tier[s] >= 0:  # rule 4: the copy is still valid, no bytes move
                    continue
                tier[s] = t
                used = tiers[t, TIER_USED] + size[s]
                tiers[t, TIER_USED] = used
                tiers[t, TIER_PEAK] = max(tiers[t, TIER_PEAK], used)
                tier_bytes[op, t] = max(tier_bytes[op, t], used)
                if used > budgets[t] and register[SHORT] == 0:
                    register[SHORT] = used - budgets[t]
                    register[SHORT_OP] = op
                    register[SHORT_TIER] = t
                issue = register[LAST_END]
                end = _copy(
                    register, tiers, copies, s, op, t, 1, tables.duplex[t], tables.out_ns[t, s], issue,
                    max(issue, at[s, READY]),
                )  # fmt: skip
                at[s, COPIED] = end
                flags[s] = flags[s] | COPIED_SINCE_ACCESS
                if end >= at[s, BUSY]:
                    at[s, BUSY] = end
                    flags[s] = flags[s] | BUSY_BY_COPY
            elif kind == RELEASE:
                if not there:
                    code = RELEASE_NOT_IN_HBM
                    break
                flags[s] = (flags[s] & ~(IN_HBM | DROPPED)) | (DROPPED if tier[s] < 0 else 0)
                register[STATIC] -= size[s]
                _push(register, heap_time, heap_bytes, max(register[LAST_END], at[s, BUSY]), size[s])
            else:
                if not there or tier[s] < 0:
                    code = RELEASE_HOST_ILLEGAL
                    break
                tiers[tier[s], TIER_USED] -= size[s]
                tier[s] = -1
        if code:
            break
        for i in range(dying_at[op], dying_at[op + 1]):
            s = dying[i]
            if late[s] < 0:
                _gone(register, at, flags, tier, heap_time, heap_bytes, tiers, s, size[s])
    if code:
        register[CODE] = code
        register[CODE_OP] = op
        register[CODE_STORAGE] = s
    return code
