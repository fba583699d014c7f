"""The loop of the compiled replay: `script` and `Clock` in one pass over flat integer arrays.

::

    an operator's turns   copy in · copy in · execution again · the operator, and what stands after it
    each turn             judged by legality ─ asks for room ─ booked ─ frees what dies with it

Legality and room go by listed order (script.py), and the time is told at once (replay.py). The loop is one function
with local scalars, because numba counts references of every array that is handed to another; with helper functions it
took three times as long. There is no wrapper for C, and nothing that numba would rewrite: that takes less to compile.
Bytes and nanoseconds are int64 (`arrays` makes sure that they fit), storages and operators are positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyperopt.engine.compiled import compiled

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
I8 = NDArray[np.int8]

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

NOW, LAST_END, STEP, RECOMPUTE, USED, PEAK, PEAK_OP, COMING, ORDERED = range(9)
STATIC, STATIC_PEAK, STATIC_PEAK_OP, COPIES, SHORT, SHORT_OP, SHORT_TIER, CODE, CODE_OP, CODE_STORAGE = range(9, 19)
REGISTERS = 19
"""Places of `State.register`: the scalars of script and clock. COMING: releases under way, of which the first
ORDERED are a heap and the others have come since. SHORT: bytes that were missing first (0: none), in tier
SHORT_TIER (-1: HBM)."""


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
    late_at: I32  # per place in `rerun`: what dies there
    late_dying: I32


class State(NamedTuple):
    """All that the loop changes and needs again: a copy of it is a checkpoint."""

    register: I64
    at: I64  # (storages, 3)
    flags: I8
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


@compiled(nogil=True, error_model="numpy", no_rewrites=True, no_cfunc_wrapper=True)
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
    offloadable, out_ns, in_ns, duplex = tables.offloadable, tables.out_ns, tables.in_ns, tables.duplex
    in_at, in_storage, after_at, after_kind = orders.in_at, orders.in_storage, orders.after_at, orders.after_kind
    after_storage, after_tier, rerun_at = orders.after_storage, orders.after_tier, orders.rerun_at
    rerun, rerun_for, late = orders.rerun, orders.rerun_for, orders.late
    late_at, late_dying = orders.late_at, orders.late_dying
    at, flags, version, tier, register = state.at, state.flags, state.version, state.tier, state.register
    heap_time, heap_bytes, stream_free, tiers = state.heap_time, state.heap_bytes, state.stream_free, state.tiers
    copies, tier_bytes, record_start, record_end = record.copies, record.tier_bytes, record.start, record.end
    record_wait, record_for, record_kind = record.wait_ns, record.wait_for, record.wait_kind
    record_memory, record_static = record.memory_ns, record.static_bytes
    now, last_end, step_ns, recompute_ns = register[NOW], register[LAST_END], register[STEP], register[RECOMPUTE]
    used, peak, peak_op = register[USED], register[PEAK], register[PEAK_OP]
    coming, ordered, row = register[COMING], register[ORDERED], register[COPIES]
    static, static_peak, static_peak_op = register[STATIC], register[STATIC_PEAK], register[STATIC_PEAK_OP]
    short, short_op, short_tier = register[SHORT], register[SHORT_OP], register[SHORT_TIER]
    code, s, op = 0, -1, first

    for op in range(first, end_op):
        for t in range(tiers.shape[0]):
            tier_bytes[op, t] = tiers[t, TIER_USED]
        highest = memory_ns = wait_ns = longest = 0
        wait_for, wait_kind = -1, FOR_NOTHING
        copies_in, reruns = in_at[op + 1] - in_at[op], rerun_at[op + 1] - rerun_at[op]

        for turn in range(copies_in + reruns + 1):
            copy_in, again = turn < copies_in, turn < copies_in + reruns
            k = rerun_at[op] + turn - copies_in
            executed = rerun[k] if again and not copy_in else op
            queue = 0 if again else stream[op]
            free = max(now, stream_free[queue])
            start, cause, kind, fresh = free, -1, FOR_NOTHING, 0

            # May it? What is it waiting for, and how much does it need?
            if copy_in:
                s = in_storage[in_at[op] + turn]
                if tier[s] < 0:
                    code = COPY_IN_WITHOUT_COPY
                elif flags[s] & IN_HBM:
                    code = COPY_IN_ALREADY_IN_HBM
                elif in_ns[tier[s], s] < 0:
                    code = NO_LINK
                fresh = need = size[s]
            else:
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
                need = workspace[executed] + fresh
            if code:
                break

            # Room in listed order (`script._check_room`).
            total = static + need
            static += fresh
            highest = max(highest, total)
            if total > static_peak:
                static_peak, static_peak_op = total, op
            if total > limit and short == 0:
                short, short_op, short_tier = total - limit, op, -1

            # Room in time (`Clock._allocate`). Releases of the same time all come at once, in whichever order.
            asked = start
            if need or copy_in:
                for new in range(ordered, coming):
                    when, size_of = heap_time[new], heap_bytes[new]
                    i = new
                    while i > 0 and heap_time[(i - 1) >> 1] > when:
                        above = (i - 1) >> 1
                        heap_time[i], heap_bytes[i] = heap_time[above], heap_bytes[above]
                        i = above
                    heap_time[i], heap_bytes[i] = when, size_of
                while coming > 0 and (heap_time[0] <= start or used + need > limit):
                    start = max(start, heap_time[0])
                    used -= heap_bytes[0]
                    coming -= 1
                    when, size_of = heap_time[coming], heap_bytes[coming]
                    i = 0
                    while 2 * i + 1 < coming:
                        below = 2 * i + 1
                        if below + 1 < coming and heap_time[below + 1] < heap_time[below]:
                            below += 1
                        if heap_time[below] >= when:
                            break
                        heap_time[i], heap_bytes[i] = heap_time[below], heap_bytes[below]
                        i = below
                    heap_time[i], heap_bytes[i] = when, size_of
                ordered = coming
                used += need
                if used > peak:
                    peak, peak_op = used, op
            memory_ns += start - asked
            now = start

            if copy_in:
                t = tier[s]
                begin = max(now, at[s, COPIED], tiers[t, FREE_IN])
                end = begin + in_ns[t, s]
                tiers[t, FREE_IN] = end
                copies[row, 0], copies[row, 1], copies[row, 2], copies[row, 3] = s, op, t, 0
                copies[row, 4], copies[row, 5], copies[row, 6] = now, begin, end
                row += 1
                step_ns = max(step_ns, end)
                at[s, READY] = end
                flags[s] = flags[s] | IN_HBM | COPIED_SINCE_ACCESS | READY_BY_COPY
                if end >= at[s, BUSY]:
                    at[s, BUSY] = end
                    flags[s] = flags[s] | BUSY_BY_COPY
                continue

            # The execution (`Clock.execute`), and what its writes make of copies.
            wait_ns += asked - free
            if asked - free > longest:
                longest, wait_for, wait_kind = asked - free, cause, kind
            end = start + duration[executed]
            accessed = 0 if again else COPIED_SINCE_ACCESS
            for i in range(read_at[executed], read_at[executed + 1]):
                s = read[i]
                flags[s] = flags[s] & ~accessed
                if end > at[s, BUSY]:
                    at[s, BUSY] = end
                    flags[s] = flags[s] & ~BUSY_BY_COPY
            for i in range(write_at[executed], write_at[executed + 1]):
                s = write[i]
                at[s, READY] = end
                flags[s] = (flags[s] & ~(DROPPED | READY_BY_COPY | accessed)) | IN_HBM
                if end > at[s, BUSY]:
                    at[s, BUSY] = end
                    flags[s] = flags[s] & ~BUSY_BY_COPY
                version[s] = executed
                if tier[s] >= 0:
                    tiers[tier[s], TIER_USED] -= size[s]
                    tier[s] = -1
            if workspace[executed]:
                heap_time[coming], heap_bytes[coming] = end, workspace[executed]
                coming += 1
            last_end = stream_free[queue] = end
            step_ns = max(step_ns, end)
            if again:
                recompute_ns += duration[executed]
                s = rerun_for[k]
                if s >= 0 and flags[s] & COPIED_SINCE_ACCESS:
                    code = RECOMPUTE_AND_SWAP
                    break
                first_dead, end_dead = late_at[k], late_at[k + 1]
            else:
                record_start[op], record_end[op] = start, end
                record_wait[op], record_for[op], record_kind[op] = wait_ns, wait_for, wait_kind
                record_memory[op], record_static[op] = memory_ns, highest
                first_dead, end_dead = dying_at[op], dying_at[op + 1]

                for i in range(after_at[op], after_at[op + 1]):
                    s = after_storage[i]
                    there = flags[s] & IN_HBM
                    if after_kind[i] == COPY_OUT:
                        t = after_tier[i]
                        if t < 0 or budgets[t] <= 0:
                            code = UNKNOWN_TIER
                        elif not offloadable[s]:
                            code = NOT_OFFLOADABLE
                        elif not there:
                            code = COPY_OUT_NOT_IN_HBM
                        elif tier[s] < 0 and out_ns[t, s] < 0:
                            code = NO_LINK
                        if code:
                            break
                        if tier[s] >= 0:  # rule 4: the copy is still valid, no bytes move
                            continue
                        tier[s] = t
                        held = tiers[t, TIER_USED] + size[s]
                        tiers[t, TIER_USED] = held
                        tiers[t, TIER_PEAK] = max(tiers[t, TIER_PEAK], held)
                        tier_bytes[op, t] = max(tier_bytes[op, t], held)
                        if held > budgets[t] and short == 0:
                            short, short_op, short_tier = held - budgets[t], op, t
                        link = FREE_OUT if duplex[t] else FREE_IN
                        begin = max(last_end, at[s, READY], tiers[t, link])
                        end = begin + out_ns[t, s]
                        tiers[t, link] = end
                        copies[row, 0], copies[row, 1], copies[row, 2], copies[row, 3] = s, op, t, 1
                        copies[row, 4], copies[row, 5], copies[row, 6] = last_end, begin, end
                        row += 1
                        step_ns = max(step_ns, end)
                        at[s, COPIED] = end
                        flags[s] = flags[s] | COPIED_SINCE_ACCESS
                        if end >= at[s, BUSY]:
                            at[s, BUSY] = end
                            flags[s] = flags[s] | BUSY_BY_COPY
                    elif after_kind[i] == RELEASE:
                        if not there:
                            code = RELEASE_NOT_IN_HBM
                            break
                        flags[s] = (flags[s] & ~(IN_HBM | DROPPED)) | (DROPPED if tier[s] < 0 else 0)
                        static -= size[s]
                        heap_time[coming], heap_bytes[coming] = max(last_end, at[s, BUSY]), size[s]
                        coming += 1
                    else:
                        if not there or tier[s] < 0:
                            code = RELEASE_HOST_ILLEGAL
                            break
                        tiers[tier[s], TIER_USED] -= size[s]
                        tier[s] = -1
                if code:
                    break

            # Frees by last access (`script._free`).
            for i in range(first_dead, end_dead):
                s = late_dying[i] if again else dying[i]
                if not again and late[s] >= 0:
                    continue
                if flags[s] & IN_HBM:
                    flags[s] = flags[s] & ~IN_HBM
                    static -= size[s]
                    heap_time[coming], heap_bytes[coming] = max(last_end, at[s, BUSY]), size[s]
                    coming += 1
                if tier[s] >= 0:
                    tiers[tier[s], TIER_USED] -= size[s]
                    tier[s] = -1
        if code:
            break

    register[NOW], register[LAST_END], register[STEP], register[RECOMPUTE] = now, last_end, step_ns, recompute_ns
    register[USED], register[PEAK], register[PEAK_OP] = used, peak, peak_op
    register[COMING], register[ORDERED], register[COPIES] = coming, ordered, row
    register[STATIC], register[STATIC_PEAK], register[STATIC_PEAK_OP] = static, static_peak, static_peak_op
    register[SHORT], register[SHORT_OP], register[SHORT_TIER] = short, short_op, short_tier
    register[CODE], register[CODE_OP], register[CODE_STORAGE] = code, op, s
    return code
