"""A draft rehearsed: written as the engine's orders and replayed, without leaving compiled code.

::

    Draft (tier, out, back, chosen) ── write ──▶ kernel.Orders ── begin, walk, ended ──▶ kernel.State, Record

`write` is also what `draft.Table.orders` uses; `rehearse` does what `engine.run` does, within arrays that are made
once (`Stage`). `assemble` writes the same plan from `Decisions`; tests hold all of them equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from hyperopt.engine import Arrays
from hyperopt.engine.kernel import (
    CODE_OP,
    IN_HBM,
    PEAK,
    REGISTERS,
    SHORT,
    SHORT_TIER,
    STATIC,
    STATIC_PEAK,
    TIER_PEAK,
    TIER_USED,
    USED,
    Orders,
    Record,
    State,
    Tables,
    walk,
)
from solver.residency.problem import Int64s

Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]

FITS, ILLEGAL, OUT_OF_MEMORY = range(3)
"""What a rehearsal answers."""


class Layout(NamedTuple):
    """What a table's gaps and reruns are, for compiled code; fields as in `draft.Table`. `run[run_at[r] :
    run_at[r + 1]]` are the operators of rerun r, in order; `turns` are the reruns in the order of their execution."""

    n: int
    load: Int64s
    storage: Int64s
    bytes: Int64s
    after: Int64s
    before: Int64s
    leave: Int64s
    latest: Int64s
    written: Int64s
    wraps: Int64s
    version: Int64s
    kept: Bools
    first_gap: Int64s
    writer_at: Int64s
    writer: Int64s
    next_compute: Int64s
    next_departure: Int64s
    last_departure: Int64s
    next_arrival: Int64s
    last_arrival: Int64s
    arrivals: Int64s
    departures: Int64s
    roomy: Bools
    room: Int64s
    duplex: Bools
    out_ns: Int64s
    in_ns: Int64s
    by_leave: Int64s
    by_latest: Int64s
    clash_at: Int64s
    clash: Int64s
    last_access: Int64s
    stays: Bools
    size: Int64s
    parts: Int64s
    part_at: Int64s
    extra: Int64s
    rerun_before: Int64s
    run_at: Int64s
    run: Int64s
    target: Int64s
    turns: Int64s


class World(NamedTuple):
    """The profile and the budgets, for compiled code; as in `engine.Arrays`."""

    tables: Tables
    resident: Bools
    returns: Bools
    final: Int32s
    base_bytes: int
    limit: int
    budgets: Int64s


class Stage(NamedTuple):
    """Room in which drafts are written and replayed, one after another."""

    orders: Orders
    state: State
    record: Record
    events: Int64s
    places: Int64s
    turn: Int64s


def stage_for(layout: Layout, arrays: Arrays) -> Stage:
    n, gaps, storages, tiers = layout.n, len(layout.storage), len(layout.size), len(arrays.tiers)
    drops = int((layout.parts[:, 4] != 1).sum())
    events, reruns = 5 * gaps + drops + 1, len(layout.run) + 1
    i32 = np.int32
    return Stage(
        orders=Orders(
            initial=np.zeros(gaps, i32),
            initial_tier=np.zeros(gaps, i32),
            in_at=np.zeros(n + 1, i32),
            in_storage=np.zeros(gaps + 1, i32),
            after_at=np.zeros(n + 1, i32),
            after_kind=np.zeros(events, i32),
            after_storage=np.zeros(events, i32),
            after_tier=np.zeros(events, i32),
            rerun_at=np.zeros(n + 1, i32),
            rerun=np.zeros(reruns, i32),
            rerun_for=np.zeros(reruns, i32),
            late=np.full(storages, -1, i32),
            late_at=np.zeros(reruns + 1, i32),
            late_dying=np.zeros(storages, i32),
        ),
        state=State(
            register=np.zeros(REGISTERS, np.int64),
            at=np.zeros((storages, 3), np.int64),
            flags=np.zeros(storages, np.int8),
            version=np.full(storages, -1, i32),
            tier=np.full(storages, -1, i32),
            heap_time=np.empty(n + storages + reruns + events, np.int64),
            heap_bytes=np.empty(n + storages + reruns + events, np.int64),
            stream_free=np.zeros(arrays.streams, np.int64),
            tiers=np.zeros((tiers, 4), np.int64),
        ),
        record=record_for(layout, tiers),
        events=np.zeros((events, 6), np.int64),
        places=np.zeros(n + 2, np.int64),
        turn=np.zeros(events, np.int64),
    )


def record_for(layout: Layout, tiers: int) -> Record:
    n = layout.n
    return Record(
        start=np.zeros(n, np.int64),
        end=np.zeros(n, np.int64),
        wait_ns=np.zeros(n, np.int64),
        wait_for=np.zeros(n, np.int32),
        wait_kind=np.zeros(n, np.uint8),
        memory_ns=np.zeros(n, np.int64),
        static_bytes=np.zeros(n, np.int64),
        tier_bytes=np.zeros((n, tiers), np.int64),
        copies=np.zeros((2 * len(layout.storage) + 1, 7), np.int64),
    )


def trimmed(orders: Orders, counts: Int64s) -> Orders:
    """Orders of their own from those of a stage: `counts` is what `write` answered."""
    initial, copies, after, again = counts.tolist()
    lengths = {
        "initial": initial, "initial_tier": initial, "in_storage": copies, "after_kind": after, "after_storage": after,
        "after_tier": after, "rerun": again, "rerun_for": again, "late_at": again + 1,
    }  # fmt: skip
    dying = int(orders.late_at[again])
    return Orders(
        **{
            name: getattr(orders, name)[: lengths.get(name, dying if name == "late_dying" else None)].copy()
            for name in Orders._fields
        }
    )


@numba.njit(cache=True, nogil=True)
def rehearse(world, layout, stage, initial, tier, out, back, chosen):  # type: ignore[no-untyped-def]
    """FITS, ILLEGAL or OUT_OF_MEMORY; the rest is in the stage."""
    counts = write(world, layout, stage, tier, out, back, chosen)
    orders, state = stage.orders, stage.state
    _begin(world, orders, state, counts[0])
    if walk(world.tables, orders, state, stage.record, world.limit, world.budgets, 0, layout.n):
        return ILLEGAL
    # `script._end`: where storages are at step end, and in which version.
    expected = initial
    expected[:] = -1
    for i in range(counts[0]):
        expected[orders.initial[i]] = orders.initial_tier[i]
    for s in range(len(layout.size)):
        if world.returns[s]:
            there = state.flags[s] & IN_HBM
            away = not there if expected[s] < 0 else (there != 0 or state.tier[s] != expected[s])
            if away or state.version[s] != world.final[s]:
                return ILLEGAL
    return OUT_OF_MEMORY if state.register[SHORT] else FITS


@numba.njit(cache=True, nogil=True)
def _begin(world, orders, state, starts):  # type: ignore[no-untyped-def]
    """`script._start`: where storages are at step start. That they may be there the table makes sure of."""
    size, register = world.tables.size, state.register
    register[:] = 0
    state.at[:] = 0
    state.version[:] = -1
    state.tier[:] = -1
    state.stream_free[:] = 0
    state.tiers[:] = 0
    used = world.base_bytes
    for s in range(len(size)):
        state.flags[s] = IN_HBM if world.resident[s] else 0
        used += size[s] if world.resident[s] else 0
    for i in range(starts):
        s, t = orders.initial[i], orders.initial_tier[i]
        state.flags[s] = 0
        state.tier[s] = t
        used -= size[s]
        state.tiers[t, TIER_USED] += size[s]
    for t in range(len(state.tiers)):
        state.tiers[t, TIER_PEAK] = state.tiers[t, TIER_USED]
        if state.tiers[t, TIER_USED] > world.budgets[t] and not register[SHORT]:
            register[SHORT], register[SHORT_TIER] = state.tiers[t, TIER_USED] - world.budgets[t], t
    register[STATIC] = register[STATIC_PEAK] = register[USED] = register[PEAK] = used
    if used > world.limit and not register[SHORT]:
        register[SHORT], register[SHORT_TIER] = used - world.limit, -1
    register[CODE_OP] = 0


@numba.njit(cache=True, nogil=True)
def write(world, layout, stage, tier, out, back, chosen):  # type: ignore[no-untyped-def]
    """The draft as orders, in the stage; returns how many start in a tier, are copied in, stand after an operator, and
    are executed again."""
    n, orders, events, count, turn = layout.n, stage.orders, stage.events, stage.places, stage.turn
    starts, rows = _write_events(layout, tier, out, back, events, orders.initial, orders.initial_tier)
    for r in range(len(chosen)):
        if chosen[r]:
            for p in range(layout.part_at[r], layout.part_at[r + 1]):
                if layout.parts[p, 4] == 0 or layout.parts[p, 4] == 2:  # dropped: released without a copy
                    s = layout.parts[p, 1]
                    events[rows, 0], events[rows, 1], events[rows, 2] = layout.parts[p, 2], 2, s
                    events[rows, 3], events[rows, 4] = -1, 8 * n + s
                    rows += 1

    # Copies in, then what stands after operators: by operator, kind and rank, in turn where those are the same.
    sizes = np.zeros(4, np.int64)
    sizes[0] = starts
    for early in (True, False):
        count[:] = 0
        for i in range(rows):
            if (events[i, 1] == 0) == early:
                count[events[i, 0] + 1] += 1
        for k in range(n):
            count[k + 1] += count[k]
        for i in range(rows):
            if (events[i, 1] == 0) == early:
                turn[count[events[i, 0]]] = i
                count[events[i, 0]] += 1
        # Now `count[k]` is where operator k's end.
        written, first = 0, 0
        at = orders.in_at if early else orders.after_at
        at[0] = 0
        for k in range(n):
            for i in range(first + 1, count[k]):
                row = turn[i]
                key, j = events[row, 1] * (16 * n + 16 + len(layout.size)) + events[row, 4], i
                while j > first:
                    above = turn[j - 1]
                    if events[above, 1] * (16 * n + 16 + len(layout.size)) + events[above, 4] <= key:
                        break
                    turn[j] = above
                    j -= 1
                turn[j] = row
            for i in range(first, count[k]):
                row = turn[i]
                s = events[row, 2]
                if early:
                    orders.in_storage[written] = s
                else:
                    if i > first:  # several reruns may drop the same
                        above = turn[i - 1]
                        if events[row, 4] >= 8 * n and events[above, 4] == events[row, 4]:
                            continue
                    orders.after_kind[written] = events[row, 1] - 1
                    orders.after_storage[written] = s
                    orders.after_tier[written] = max(events[row, 3], 0)
                written += 1
            first = count[k]
            at[k + 1] = written
        sizes[1 if early else 2] = written
    sizes[3] = _write_reruns(layout, world.tables, orders, chosen)
    return sizes


@numba.njit(cache=True, nogil=True)
def _write_reruns(layout, tables, orders, chosen):  # type: ignore[no-untyped-def]
    n = layout.n
    orders.rerun_at[:] = 0
    orders.late[:] = -1
    rows = 0
    for i in range(len(layout.turns)):
        r = layout.turns[i]
        if not chosen[r]:
            continue
        before = layout.rerun_before[r]
        for j in range(layout.run_at[r], layout.run_at[r + 1]):
            k = layout.run[j]
            orders.rerun[rows], orders.rerun_for[rows] = k, -1
            for a in range(tables.read_at[k], tables.read_at[k + 1]):
                s = tables.read[a]
                if tables.last_access[s] < before and not layout.stays[s]:
                    orders.late[s] = max(orders.late[s], rows)
            for a in range(tables.write_at[k], tables.write_at[k + 1]):
                s = tables.write[a]
                if tables.last_access[s] < before and not layout.stays[s]:
                    orders.late[s] = max(orders.late[s], rows)
            rows += 1
        orders.rerun_for[rows - 1] = layout.target[r]
        orders.rerun_at[before + 1] += layout.run_at[r + 1] - layout.run_at[r]
    for k in range(n):
        orders.rerun_at[k + 1] += orders.rerun_at[k]
    orders.late_at[: rows + 1] = 0
    for s in range(len(orders.late)):
        if orders.late[s] >= 0:
            orders.late_at[orders.late[s] + 1] += 1
    for i in range(rows):
        orders.late_at[i + 1] += orders.late_at[i]
    for s in range(len(orders.late)):
        if orders.late[s] >= 0:
            orders.late_dying[orders.late_at[orders.late[s]]] = s
            orders.late_at[orders.late[s]] += 1
    for i in range(rows, 0, -1):  # each start has become its end
        orders.late_at[i] = orders.late_at[i - 1]
    orders.late_at[0] = 0
    return rows


@numba.njit(cache=True, nogil=True)
def _write_events(layout, tier, out, back, events, initial, initial_tier):  # type: ignore[no-untyped-def]
    """Rows of (operator, 0 copy in / 1 copy out / 2 release / 3 release_host, storage, tier, rank) and the initial
    placements: `assemble`'s journeys, compiled. Returns how many of each there are."""
    n, first_gap, before, leave, wraps = layout.n, layout.first_gap, layout.before, layout.leave, layout.wraps
    writer_at, writer = layout.writer_at, layout.writer
    next_compute, last_access, stays = layout.next_compute, layout.last_access, layout.stays
    rows = starts = 0
    for s in range(len(first_gap) - 1):
        wrap = -1
        some = False
        for g in range(first_gap[s], first_gap[s + 1]):
            if tier[g] >= 0:
                some = True
                if wraps[g]:
                    wrap = g
        if not some:
            continue
        copied = -2  # the operator after which the copy in a tier was made; -1: there from the start; -2: no copy
        last = first_gap[s + 1]
        move = -1
        if wrap >= 0:
            initial[starts], initial_tier[starts] = s, tier[wrap]
            starts += 1
            if back[wrap] < n:
                copied = -1
                move = wrap
                _put(events, rows, back[wrap], 0, s, tier[wrap], before[wrap])
                rows += 1
        for g in range(first_gap[s], last + 1):
            # The next gap used after `move`, or none at `last`.
            if g < last and (tier[g] < 0 or (wraps[g] and leave[g] >= n)):
                continue
            if move >= 0:  # the copy that `move` has left: kept for g, or given up at its consumer
                keep = False
                arrival = next_compute[min(before[move], n - 1)]
                if g < last and tier[move] == tier[g]:
                    keep = copied != -2 and not _written(writer_at, writer, s, copied + 1, max(leave[g], out[g]))
                if not keep:
                    overwritten = _written(writer_at, writer, s, before[move], arrival)
                    in_time = arrival < n and (g == last or arrival < out[g])
                    dies = not stays[s] and 0 <= last_access[s] <= arrival
                    if not overwritten and in_time and not dies:
                        _put(events, rows, arrival, 3, s, -1, before[move])
                        rows += 1
                        copied = -2
            if g == last:
                break
            gone = max(leave[g], out[g])
            if copied == -2 or _written(writer_at, writer, s, copied + 1, gone):
                copied = out[g]
                _put(events, rows, out[g], 1, s, tier[g], leave[g] * 4 + 1)
                rows += 1
            _put(events, rows, gone, 2, s, -1, before[g])
            rows += 1
            move = -1
            if not wraps[g]:
                _put(events, rows, back[g], 0, s, tier[g], before[g])
                rows += 1
                move = g
    return starts, rows


@numba.njit(cache=True, nogil=True, inline="always")
def _put(events, row, op, kind, s, t, rank):  # type: ignore[no-untyped-def]
    events[row, 0], events[row, 1], events[row, 2], events[row, 3], events[row, 4] = op, kind, s, t, rank


@numba.njit(cache=True, nogil=True, inline="always")
def _written(writer_at, writer, s, first, last):  # type: ignore[no-untyped-def]
    """Whether storage s is written at one of operators first .. last."""
    for i in range(writer_at[s], writer_at[s + 1]):
        if writer[i] >= first:
            return writer[i] <= last
    return False
