"""What one storage would do at given prices: the subproblem of the fluid bound, exact and fast.

Prices: `held` per byte of HBM at each row of the axis (nanoseconds of step time that a byte less there saves), and
per nanosecond of link time in each slot, out of HBM and back, for each tier. A storage then decides alone, gap by
gap, whether it stays, is moved, or is dropped and made again::

    rows        0    1    2    3    4    5
    gap              |---- may be off ---|          rows first .. end - 1
    move        out in slots <= i        back in slots >= k
                      off at rows i .. k - 1: saves bytes x (held_i + ... + held_k-1), pays the cheapest slots

A copy out is paid once for a version (the content between two writes): what is in a tier already leaves for nothing.
Being resident at both ends, a storage may also start outside (`wrap`): then it ends there.
"""

from __future__ import annotations

import numpy as np

from solver.residency.compiled import ZERO, entry, inner
from solver.residency.turns import in_turns


@entry
def cheapest(prices, table):  # type: ignore[no-untyped-def]
    """Fills a table of minima of `prices` over 1, 2, 4, ... slots, for `_least`."""
    count = len(prices)
    for i in range(count):
        table[0, i] = prices[i]
    width, level = 1, 1
    while 2 * width <= count:
        for i in range(count - 2 * width + 1):
            table[level, i] = min(table[level - 1, i], table[level - 1, i + width])
        width *= 2
        level += 1


@inner
def _least(table, first, last):  # type: ignore[no-untyped-def]
    """The least price in slots first .. last."""
    level = 0
    while (2 << level) <= last - first + 1:
        level += 1
    return min(table[level, first], table[level, last - (1 << level) + 1])


@inner
def _move(size, first, end, written, due, out_ns, in_ns, held, out_table, in_prices):  # type: ignore[no-untyped-def]
    """Best (saving, row off from, row back at) of one move; `held` summed up; out_ns 0: nothing to copy out.

    `due` < 0: it need not come back. A move off at no row at all counts as (-infinity).
    """
    best, best_i, best_k = -np.inf, -1, -1
    left, left_i = -np.inf, -1
    back = np.empty(end - first + 1)
    if due >= 0:
        least = np.inf
        for k in range(due, end, -1):
            least = min(least, in_prices[k])
        for k in range(end, first, -1):
            least = min(least, in_prices[k]) if k <= due else least
            back[k - first] = least
    paid = _least(out_table, written, first) if out_ns > 0 else 0.0
    for i in range(first, end):
        if out_ns > 0 and i > first:
            paid = min(paid, out_table[0, i])
        value = -size * held[i] - (out_ns * paid if out_ns > 0 else 0.0)
        if value > left:
            left, left_i = value, i
        k = i + 1
        value = left + size * held[k] - (in_ns * back[k - first] if due >= 0 else 0.0)
        if value > best:
            best, best_i, best_k = value, left_i, k
    return best, best_i, best_k


@inner
def _drop(  # type: ignore[no-untyped-def]
    size,
    first,
    end,
    due,
    rerun_ns,
    held,
    rerun_prices,
    input_first,
    input_end,
    in_row,
    in_slot,
    in_bytes,
    in_rerun,
    in_out,
    in_back,
    share,
    work_table,
    out_best,
    back_best,
    ending,
):
    """As `_move`, for dropping and making again: off from row `first`, made again in a slot from `k` on.

    `ending[k - first]`: the saving when it ends at row k.
    """
    best, best_k = -np.inf, -1
    charge = np.zeros(end - first + 1)
    for i in range(input_first, input_end):
        _charge(
            charge, first, end, due, in_row[i], in_slot[i], in_bytes[i], in_rerun[i], in_out[i], in_back[i], share[i],
            held, work_table, out_best, back_best,
        )  # fmt: skip
    least = np.inf
    for k in range(due, first, -1):
        least = min(least, rerun_prices[k])
        if k > end:
            continue
        value = size * (held[k] - held[first]) - rerun_ns * least - charge[k - first]
        ending[k - first] = value
        if value > best:
            best, best_k = value, k
    return best, first, best_k


@inner
def _charge(  # type: ignore[no-untyped-def]
    charge, first, end, due, row, slot, size, rerun_ns, out_ns, in_ns, share, held, work_table, out_best, back_best
):
    """Adds what a freed input costs at least, where the gap ends at row first + 1 .. end and is made again by slot
    `due`: held all along; or copied out in some slot and held until then, and back in some slot and held from then;
    or made again, and held from then, or copied out and back once more."""
    away = there = made = np.inf  # the best in slots up to the row: a copy out, one back, made again
    again = rerun_ns * _least(work_table, slot, due) if rerun_ns >= 0 else np.inf
    leave = out_ns * _least(out_best, slot, due) if out_ns >= 0 else np.inf
    at = slot
    for k in range(first + 1, end + 1):
        while at < k and at <= due:
            if out_ns >= 0:
                away = min(away, out_ns * out_best[0, at] + (size * max(0.0, held[at] - held[row]) if out_ns else 0.0))
                there = min(there, in_ns * back_best[0, at] - size * held[at])
            if rerun_ns >= 0:
                made = min(made, rerun_ns * work_table[0, at] - size * held[at])
            at += 1
        other = size * max(0.0, held[k] - held[min(row, k)])
        late = max(k, slot)
        if other > 0.0 and late <= due:
            if out_ns >= 0:
                back = min(in_ns * _least(back_best, late, due), there + size * held[k])
                other = min(other, min(away, again + leave) + back)
            if rerun_ns >= 0:
                other = min(other, min(rerun_ns * _least(work_table, late, due), made + size * held[k]))
        charge[k - first] += share * other


@entry
def decide(  # type: ignore[no-untyped-def]
    unit_first,
    kind,
    size,
    first,
    end,
    written,
    due,
    version,
    rerun_ns,
    out_ns,
    in_ns,
    held,
    out_prices,
    in_prices,
    rerun_prices,
    out_tables,
    input_at,
    in_row,
    in_slot,
    in_bytes,
    in_rerun,
    in_out,
    in_back,
    share,
    work_table,
    out_best,
    back_best,
    proof,
    choice,
    tier,
    row_from,
    row_back,
    pays_out,
    saving,
):
    """The best journey of every storage at the given prices; returns the sum of savings (nanoseconds, all >= 0).

    With `proof`, what a plan can do in one gap in several turns counts too; the journeys reported leave that out.

    `held` (tier or -1 last, row): prices of HBM summed over the rows before, less those of the tier; `*_prices`
    (tier, slot); `out_tables`: `cheapest` of them. Results per gap: `choice`, `tier`, rows, whether the copy out is
    paid; per storage `saving`.
    """
    units, tiers = len(unit_first) - 1, out_ns.shape[1]
    total = 0.0
    most = 0
    for u in range(units):
        most = max(most, unit_first[u + 1] - unit_first[u])
    paid = np.empty((most, 4))  # value with the copy out paid, tier, rows
    free = np.empty((most, 4))  # the same with a copy at hand
    lone = np.empty((most, 3))  # dropped: value, rows
    ending = np.empty(held.shape[1] + 1)
    for u in range(units):
        begin, stop = unit_first[u], unit_first[u + 1]
        wraps = kind[begin] == 3
        for g in range(begin, stop):
            at = g - begin
            paid[at, 0] = free[at, 0] = lone[at, 0] = -np.inf
            if kind[g] == 3:
                for t in range(tiers):
                    if in_ns[g, t] < 0:
                        continue
                    # Outside from the start: off at rows 0 .. k - 1, or not even at row 0.
                    least = np.inf
                    never = due[g] >= len(in_prices[t])
                    for k in range(min(due[g], len(in_prices[t]) - 1), -1, -1):
                        least = min(least, in_prices[t, k])
                        if k <= end[g]:
                            value = size[g] * held[t, k] - (0.0 if never else in_ns[g, t] * least)
                            if value > free[at, 0]:
                                free[at, 0], free[at, 1], free[at, 2], free[at, 3] = value, t, 0, k
            elif kind[g] == 4:
                for t in range(tiers):
                    if in_ns[g, t] < 0:
                        continue
                    last = held.shape[1] - 1
                    value = size[g] * (held[t, last] - held[t, first[g]])
                    if value > free[at, 0]:
                        free[at, 0], free[at, 1], free[at, 2], free[at, 3] = value, t, first[g], last
                    if out_ns[g, t] < 0:
                        continue
                    least = _least(out_tables[t], written[g], first[g])
                    for i in range(first[g], last + 1):
                        least = min(least, out_prices[t, i])
                        value = size[g] * (held[t, last] - held[t, i]) - out_ns[g, t] * least
                        if value > paid[at, 0]:
                            paid[at, 0], paid[at, 1], paid[at, 2], paid[at, 3] = value, t, i, last
            elif first[g] >= end[g]:
                continue
            for t in range(tiers if kind[g] < 3 else 0):
                if in_ns[g, t] < 0:
                    continue
                if out_ns[g, t] >= 0:  # else no copy can be made there, only be there from the start
                    value, i, k = _move(
                        size[g],
                        first[g],
                        end[g],
                        written[g],
                        due[g],
                        out_ns[g, t],
                        in_ns[g, t],
                        held[t],
                        out_tables[t],
                        in_prices[t],
                    )
                    if value > paid[at, 0]:
                        paid[at, 0], paid[at, 1], paid[at, 2], paid[at, 3] = value, t, i, k
                value, i, k = _move(
                    size[g],
                    first[g],
                    end[g],
                    written[g],
                    due[g],
                    ZERO,
                    in_ns[g, t],
                    held[t],
                    out_tables[t],
                    in_prices[t],
                )
                if value > free[at, 0]:
                    free[at, 0], free[at, 1], free[at, 2], free[at, 3] = value, t, i, k
            if rerun_ns[g] >= 0 and kind[g] < 3:
                lone[at, 0], lone[at, 1], lone[at, 2] = _drop(
                    size[g],
                    first[g],
                    end[g],
                    due[g],
                    rerun_ns[g],
                    held[tiers],
                    rerun_prices,
                    input_at[g],
                    input_at[g + 1],
                    in_row,
                    in_slot,
                    in_bytes,
                    in_rerun,
                    in_out,
                    in_back,
                    share,
                    work_table,
                    out_best,
                    back_best,
                    ending,
                )
            if proof and (tiers > 1 or (rerun_ns[g] >= 0 and kind[g] < 3)):
                for copied in range(2 if kind[g] != 3 else 1):
                    value = in_turns(
                        kind[g], size[g], first[g], end[g], written[g], due[g], out_ns[g], in_ns[g], held, out_prices,
                        in_prices, ending, rerun_ns[g] >= 0 and kind[g] != 3, copied == 1,
                    )
                    if copied == 1 or kind[g] == 3:
                        free[at, 0] = max(free[at, 0], value)
                    else:
                        paid[at, 0] = max(paid[at, 0], value)
        value, again = -1.0, wraps
        for turn in range(3 if wraps else 1):  # wrapped, not, and wrapped again where that was no worse
            wrapped = wraps and turn != 1
            if turn == 2 and not again:
                break
            other = _journey(
                begin, stop, kind, version, paid, free, lone, wrapped, choice, tier, row_from, row_back, pays_out
            )
            again = other <= value
            value = max(value, other)
        saving[u] = value
        total += value
    return total


@inner
def _journey(  # type: ignore[no-untyped-def]
    begin, stop, kind, version, paid, free, lone, wrapped, choice, tier, row_from, row_back, pays_out
):
    """The best choices of one storage, wrapped or not, written to the result arrays; returns their saving."""
    total = 0.0
    g = begin
    for h in range(begin, stop):
        choice[h] = 0
        pays_out[h] = 0
    while g < stop:
        after = g
        while after < stop and version[after] == version[g]:
            after += 1
        # The version's gaps are g .. after - 1; the copy out is paid at one of them, or never.
        had = wrapped and version[g] < 0
        must = wrapped and kind[after - 1] == 4  # it has to end outside
        never, pay_at = 0.0, -2
        best, ahead = 0.0, 0.0
        for h in range(g, after):
            never += _alone(h, begin, kind, lone, wrapped)
        best = -np.inf if must else never
        if had:
            best, pay_at = 0.0, -1
            for h in range(g, after):
                best += _with_copy(h, begin, kind, free, lone, wrapped)
        else:
            later = 0.0
            for h in range(after - 1, g - 1, -1):
                if not _skipped(kind[h], wrapped) and kind[h] != 3 and paid[h - begin, 0] > -np.inf:
                    ahead = 0.0
                    for e in range(g, h):
                        ahead += _alone(e, begin, kind, lone, wrapped)
                    value = ahead + paid[h - begin, 0] + later
                    if value > best:
                        best, pay_at = value, h
                later += _with_copy(h, begin, kind, free, lone, wrapped)
        total += best
        for h in range(g, after):
            if _skipped(kind[h], wrapped):
                continue
            at = h - begin
            if h == pay_at:
                choice[h], pays_out[h] = 1, 1
                tier[h], row_from[h], row_back[h] = int(paid[at, 1]), int(paid[at, 2]), int(paid[at, 3])
            elif pay_at != -2 and h > pay_at and (free[at, 0] > max(0.0, lone[at, 0]) or (kind[h] > 2 and wrapped)):
                choice[h] = 1
                tier[h], row_from[h], row_back[h] = int(free[at, 1]), int(free[at, 2]), int(free[at, 3])
            elif lone[at, 0] > 0.0:
                choice[h] = 2
                row_from[h], row_back[h] = int(lone[at, 1]), int(lone[at, 2])
        g = after
    return total


@inner
def _skipped(kind, wrapped):  # type: ignore[no-untyped-def]
    """Whether a gap does not exist in this mode: head and tail are other gaps when the storage wraps."""
    return (kind == 1 or kind == 2) if wrapped else kind > 2


@inner
def _alone(h, begin, kind, lone, wrapped):  # type: ignore[no-untyped-def]
    return 0.0 if _skipped(kind[h], wrapped) else max(0.0, lone[h - begin, 0])


@inner
def _with_copy(h, begin, kind, free, lone, wrapped):  # type: ignore[no-untyped-def]
    if _skipped(kind[h], wrapped):
        return 0.0
    if kind[h] > 2:  # a wrap must be used whole
        return free[h - begin, 0]
    return max(0.0, max(free[h - begin, 0], lone[h - begin, 0]))
