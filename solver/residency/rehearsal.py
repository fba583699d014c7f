"""A draft rehearsed: written as the engine's orders and replayed, without leaving compiled code.

::

    Draft (tier, out, back, chosen) ── write ──▶ kernel.Orders ── begin, walk, ended ──▶ kernel.State, Record

`write` is also what `draft.Table.orders` uses; `rehearse` does what `engine.run` does, within arrays that are made
once (`Stage`). `assemble` writes the same plan from `Decisions`; tests hold all of them equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyperopt.engine import Arrays
from hyperopt.engine.kernel import (
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
from solver.residency.compiled import ZERO, entry, inner
from solver.residency.layout import (
    BEFORE,
    FIRST_GAP,
    LAST_ACCESS,
    LEAVE,
    NEXT_COMPUTE,
    PART_AT,
    RERUN_BEFORE,
    RUN_AT,
    STAYS,
    TARGET,
    TURN,
    WRAPS,
    WRITER_AT,
    Layout,
)
from solver.residency.problem import Int64s

Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]

FITS, ILLEGAL, OUT_OF_MEMORY = range(3)
"""What a rehearsal answers."""


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
    expected: Int64s


def stage_for(layout: Layout, arrays: Arrays) -> Stage:
    n, gaps, storages, tiers = layout.n, layout.gaps.shape[1], arrays.storages, len(arrays.tiers)
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
        record=Record(
            start=np.zeros(n, np.int64),
            end=np.zeros(n, np.int64),
            wait_ns=np.zeros(n, np.int64),
            wait_for=np.zeros(n, np.int32),
            wait_kind=np.zeros(n, np.uint8),
            memory_ns=np.zeros(n, np.int64),
            static_bytes=np.zeros(n, np.int64),
            tier_bytes=np.zeros((n, tiers), np.int64),
            copies=np.zeros((most_copies(layout), 7), np.int64),
        ),
        events=np.zeros((events, 6), np.int64),
        places=np.zeros(n + 2, np.int64),
        turn=np.zeros(events, np.int64),
        expected=np.zeros(storages, np.int64),
    )


def most_copies(layout: Layout) -> int:
    return 2 * layout.gaps.shape[1] + 1


def trimmed(orders: Orders, counts: tuple[int, int, int, int]) -> Orders:
    """Orders of their own from those of a stage: `counts` is what `write` answered."""
    initial, copies, after, again = counts
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


@inner
def rehearse(world, layout, stage, tier, out, back, chosen):  # type: ignore[no-untyped-def]
    """FITS, ILLEGAL or OUT_OF_MEMORY; the rest is in the stage."""
    tables, orders, state, expected = world.tables, stage.orders, stage.state, stage.expected
    initial, initial_tier, size, resident, budgets = (
        orders.initial, orders.initial_tier, tables.size, world.resident, world.budgets,
    )  # fmt: skip
    register, at, flags, tiers = state.register, state.at, state.flags, state.tiers
    starts = write(
        tables.read_at, tables.read, tables.write_at, tables.write, layout, orders, stage.events, stage.places,
        stage.turn, tier, out, back, chosen,
    )[0]  # fmt: skip

    # `script._start`: where storages are at step start. That they may be there the table makes sure of.
    register[:] = 0
    at[:] = 0
    state.version[:] = -1
    state.tier[:] = -1
    state.stream_free[:] = 0
    tiers[:] = 0
    used = world.base_bytes
    for s in range(len(size)):
        flags[s] = IN_HBM if resident[s] else 0
        used += size[s] if resident[s] else 0
    for i in range(starts):
        s, t = initial[i], initial_tier[i]
        flags[s] = 0
        state.tier[s] = t
        used -= size[s]
        tiers[t, TIER_USED] += size[s]
    for t in range(len(tiers)):
        tiers[t, TIER_PEAK] = tiers[t, TIER_USED]
        if tiers[t, TIER_USED] > budgets[t] and not register[SHORT]:
            register[SHORT], register[SHORT_TIER] = tiers[t, TIER_USED] - budgets[t], t
    register[STATIC] = register[STATIC_PEAK] = register[USED] = register[PEAK] = used
    if used > world.limit and not register[SHORT]:
        register[SHORT], register[SHORT_TIER] = used - world.limit, -1

    if walk(tables, orders, state, stage.record, world.limit, budgets, ZERO, layout.n):
        return ILLEGAL

    # `script._end`: where storages are at step end, and in which version.
    expected[:] = -1
    for i in range(starts):
        expected[initial[i]] = initial_tier[i]
    for s in range(len(size)):
        if world.returns[s]:
            there = flags[s] & IN_HBM
            away = not there if expected[s] < 0 else (there != 0 or state.tier[s] != expected[s])
            if away or state.version[s] != world.final[s]:
                return ILLEGAL
    return OUT_OF_MEMORY if register[SHORT] else FITS


@entry
def write(  # type: ignore[no-untyped-def]
    read_at, read, write_at, written_to, layout, orders, events, count, turn, tier, out, back, chosen
):
    """The draft as orders; returns how many start in a tier, are copied in, stand after an operator, and are executed
    again. `read_at` to `written_to`: as in `Tables`; `events`, `count`, `turn`: work space, as in `Stage`."""
    n, parts, part_at = layout.n, layout.parts, layout.reruns[PART_AT]
    ranks = _ranks(layout)
    starts, rows = _write_events(layout, tier, out, back, events, orders.initial, orders.initial_tier)
    for r in range(len(chosen)):
        if chosen[r]:
            for p in range(part_at[r], part_at[r + 1]):
                if parts[p, 4] == 0 or parts[p, 4] == 2:  # dropped: released without a copy
                    events[rows, 0], events[rows, 1], events[rows, 2] = parts[p, 2], 2, parts[p, 1]
                    events[rows, 3], events[rows, 4] = -1, 8 * n + parts[p, 1]
                    rows += 1

    # Copies in, then what stands after operators: by operator, kind and rank, in turn where those are the same.
    copies_in = after = 0
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
                key, j = events[row, 1] * ranks + events[row, 4], i
                while j > first:
                    above = turn[j - 1]
                    if events[above, 1] * ranks + events[above, 4] <= key:
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
        if early:
            copies_in = written
        else:
            after = written
    return starts, copies_in, after, _write_reruns(read_at, read, write_at, written_to, layout, orders, chosen)


@inner
def _ranks(layout):  # type: ignore[no-untyped-def]
    """More than any rank: what stands at one operator is sorted by kind, then rank."""
    return 16 * layout.n + 15 + layout.storages.shape[1]


@inner
def _write_reruns(read_at, read, write_at, written_to, layout, orders, chosen):  # type: ignore[no-untyped-def]
    n, run_at = layout.n, layout.reruns[RUN_AT]
    last_access, stays = layout.storages[LAST_ACCESS], layout.storages[STAYS]
    rerun, rerun_for, rerun_at = orders.rerun, orders.rerun_for, orders.rerun_at
    late, late_at, late_dying = orders.late, orders.late_at, orders.late_dying
    rerun_at[:] = 0
    late[:] = -1
    rows = 0
    for i in range(len(chosen)):
        r = layout.reruns[TURN, i]
        if not chosen[r]:
            continue
        before = layout.reruns[RERUN_BEFORE, r]
        for j in range(run_at[r], run_at[r + 1]):
            k = layout.run[j]
            rerun[rows], rerun_for[rows] = k, -1
            for a in range(read_at[k], read_at[k + 1]):
                s = read[a]
                if last_access[s] < before and not stays[s]:
                    late[s] = max(late[s], rows)
            for a in range(write_at[k], write_at[k + 1]):
                s = written_to[a]
                if last_access[s] < before and not stays[s]:
                    late[s] = max(late[s], rows)
            rows += 1
        rerun_for[rows - 1] = layout.reruns[TARGET, r]
        rerun_at[before + 1] += run_at[r + 1] - run_at[r]
    for k in range(n):
        rerun_at[k + 1] += rerun_at[k]
    for i in range(rows + 1):
        late_at[i] = 0
    for s in range(len(late)):
        if late[s] >= 0:
            late_at[late[s] + 1] += 1
    for i in range(rows):
        late_at[i + 1] += late_at[i]
    for s in range(len(late)):
        if late[s] >= 0:
            late_dying[late_at[late[s]]] = s
            late_at[late[s]] += 1
    for i in range(rows, 0, -1):  # each start has become its end
        late_at[i] = late_at[i - 1]
    late_at[0] = 0
    return rows


@inner
def _write_events(layout, tier, out, back, events, initial, initial_tier):  # type: ignore[no-untyped-def]
    """Rows of (operator, 0 copy in / 1 copy out / 2 release / 3 release_host, storage, tier, rank) and the initial
    placements: `assemble`'s journeys, compiled. Returns how many of each there are."""
    n, writer, next_compute = layout.n, layout.writer, layout.operators[NEXT_COMPUTE]
    before, leave, wraps = layout.gaps[BEFORE], layout.gaps[LEAVE], layout.gaps[WRAPS]
    first_gap, writer_at = layout.storages[FIRST_GAP], layout.storages[WRITER_AT]
    last_access, stays = layout.storages[LAST_ACCESS], layout.storages[STAYS]
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
                events[rows, 0], events[rows, 1], events[rows, 2] = back[wrap], 0, s
                events[rows, 3], events[rows, 4] = tier[wrap], before[wrap]
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
                    moves_on = g < last and tier[move] != tier[g] and arrival == out[g]
                    in_time = arrival < n and (g == last or arrival < out[g] or moves_on)
                    dies = not stays[s] and 0 <= last_access[s] <= arrival
                    if not overwritten and in_time and not dies:
                        events[rows, 0], events[rows, 1], events[rows, 2] = arrival, 3, s
                        events[rows, 3], events[rows, 4] = -1, before[move]
                        if moves_on:  # to another tier at once: given up before it is copied there
                            events[rows, 4] -= 3 * _ranks(layout)
                        rows += 1
                        copied = -2
            if g == last:
                break
            gone = max(leave[g], out[g])
            if copied == -2 or _written(writer_at, writer, s, copied + 1, gone):
                copied = out[g]
                events[rows, 0], events[rows, 1], events[rows, 2] = out[g], 1, s
                events[rows, 3], events[rows, 4] = tier[g], leave[g] * 4 + 1
                rows += 1
            events[rows, 0], events[rows, 1], events[rows, 2] = gone, 2, s
            events[rows, 3], events[rows, 4] = -1, before[g]
            rows += 1
            move = -1
            if not wraps[g]:
                events[rows, 0], events[rows, 1], events[rows, 2] = back[g], 0, s
                events[rows, 3], events[rows, 4] = tier[g], before[g]
                rows += 1
                move = g
    return starts, rows


@inner
def _written(writer_at, writer, s, first, last):  # type: ignore[no-untyped-def]
    """Whether storage s is written at one of operators first .. last."""
    for i in range(writer_at[s], writer_at[s + 1]):
        if writer[i] >= first:
            return writer[i] <= last
    return False
