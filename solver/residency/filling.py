"""Making a draft fit: the cheapest gaps and reruns, by price per byte of overload removed, until every operator fits.

Memory here is by listed order: what must hold for the plan to run at all. Costs come from the bound's prices and from
what earlier plans waited for; the search asks for many fillings with other costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.residency.compiled import ZERO, entry, inner
from solver.residency.draft import STAYS, Draft, Table
from solver.residency.layout import (
    AFTER,
    BEFORE,
    BYTES,
    CLASH_AT,
    EXTRA,
    FIRST_GAP,
    GIVEN_UP,
    KEPT,
    LEAVE,
    LOAD,
    PART_AT,
    RERUN_BEFORE,
    ROOM,
    ROOMY,
    SIZE,
    STORAGE,
    VERSION,
    WRAPS,
)
from solver.residency.problem import Int64s
from solver.residency.rooms import occupy, tier_load

Floats = npt.NDArray[np.float64]


BATCH, DRAFT_BATCH = 3_000, 5_000
"""Operators of a step for each option more that is taken before all are ranked anew; and gaps for each, in drafts,
which are many and are searched from afterwards."""

NOWHERE = np.int64(STAYS)
"""STAYS, but no literal: see `compiled`."""


@dataclass(frozen=True)
class Costs:
    """Nanoseconds for each (tier, gap), apart the copy out, which a version pays once, and for each rerun; infinity:
    not to be used."""

    out: Floats
    back: Floats
    reruns: Floats


@dataclass(frozen=True)
class Spans:
    """Per gap the operators at which HBM is counted without it: `first` .. `end` - 1 (a wrap: outside of those)."""

    first: Int64s
    end: Int64s


def listed(table: Table) -> Spans:
    """Off HBM in listed order, from the release to the latest copy back: what must fit for the plan to run."""
    return Spans(np.minimum(table.leave + 1, table.problem.n), table.latest)


def in_time(table: Table, start: Int64s, end: Int64s) -> Spans:
    """Off HBM on a time line, when a copy that nobody hinders has ended, until one has to start."""
    n = table.problem.n
    tier = int(np.flatnonzero(table.usable)[0]) if table.usable.any() else 0
    out_ns, in_ns = table.out_ns[tier], table.in_ns[tier]
    leave = np.minimum(table.leave, n - 1)
    gone = np.maximum(end[leave], end[np.minimum(table.written, n - 1)] + np.where(table.unpaid, 0, out_ns))
    first = np.maximum(np.searchsorted(start, gone), table.leave + 1)
    need = np.append(start, end.max(initial=0))[np.minimum(table.latest, n)]
    back = np.minimum(np.searchsorted(start, need - in_ns), table.latest)
    back = np.where(table.latest >= n, n, back)
    return Spans(np.minimum(first, n), np.where(table.wraps > 0, back, np.maximum(back, np.minimum(first, n))))


def fill(table: Table, draft: Draft, costs: Costs, budget: int, spans: Spans) -> int:
    """Adds gaps and reruns to the draft, in place, until each operator's load is within `budget`: then -1, else the
    operator at which nothing more can be done."""
    return int(
        add_until_fits(
            table.layout, budget, spans.first, spans.end, costs.out, costs.back, costs.reruns,
            1 + max(table.problem.n // BATCH, table.count // DRAFT_BATCH), draft.tier, draft.chosen,
        )
    )  # fmt: skip


def prune(table: Table, draft: Draft, costs: Costs, budget: int, spans: Spans) -> None:
    """Takes out of the draft, dearest first, what it fits without."""
    table.settle(draft)
    tier = np.maximum(draft.tier, 0), np.arange(table.count)
    dear = (costs.out[tier] + costs.back[tier]) / np.maximum(table.bytes, 1)
    order = np.argsort(-np.where(draft.tier >= 0, dear, -1.0))
    remove_surplus(
        table.layout, budget, spans.first, spans.end, order, np.arange(len(draft.chosen)), draft.tier, draft.chosen
    )
    table.settle(draft)


@inner
def shortened(layout, first, end, chosen):  # type: ignore[no-untyped-def]
    """`end` of each gap where chosen reruns need its storage earlier: it has to be back before them."""
    parts, wraps, leave, first_gap = layout.parts, layout.gaps[WRAPS], layout.gaps[LEAVE], layout.storages[FIRST_GAP]
    part_at, rerun_before = layout.reruns[PART_AT], layout.reruns[RERUN_BEFORE]
    until = np.empty(len(end), np.int64)
    for g in range(len(end)):
        until[g] = min(end[g], layout.n)
    for r in range(len(chosen)):
        if chosen[r]:
            for p in range(part_at[r], part_at[r + 1]):
                if parts[p, 4] == 1:
                    s, at = parts[p, 1], rerun_before[r]
                    for h in range(first_gap[s], first_gap[s + 1]):
                        if (wraps[h] or leave[h] < at) and at < until[h]:
                            until[h] = at if wraps[h] else max(at, first[h])
    return until


@inner
def load_without(layout, first, end, tier, chosen):  # type: ignore[no-untyped-def]
    """Bytes at each operator with the chosen gaps and reruns off."""
    n, parts, size, wraps = layout.n, layout.parts, layout.gaps[BYTES], layout.gaps[WRAPS]
    load, storage_size = layout.operators[LOAD], layout.storages[SIZE]
    part_at, extra, rerun_before = layout.reruns[PART_AT], layout.reruns[EXTRA], layout.reruns[RERUN_BEFORE]
    change = np.zeros(n + 2, np.int64)
    peaks = np.zeros(n, np.int64)
    for g in range(len(tier)):
        if tier[g] < 0:
            continue
        if wraps[g]:
            change[0] -= size[g]
            change[end[g]] += size[g]
            change[first[g]] -= size[g]
        else:
            change[first[g]] -= size[g]
            change[end[g]] += size[g]
    for r in range(len(chosen)):
        if not chosen[r]:
            continue
        at = rerun_before[r]
        for p in range(part_at[r], part_at[r + 1]):
            s, since, what = parts[p, 1], parts[p, 2], parts[p, 4]
            if what == 0:
                change[since + 1] -= storage_size[s]
                change[at] += storage_size[s]
            elif (what == 1 or what == 3) and since < at:
                change[since] += storage_size[s]
                change[at + 1] -= storage_size[s]
        peaks[at] = max(peaks[at], extra[r])
    held = np.empty(n, np.int64)
    total = 0
    for k in range(n):
        total += change[k]
        held[k] = load[k] + total + peaks[k]
    return held


@entry
def add_until_fits(layout, budget, first, end, out_cost, back_cost, rerun_cost, batch, tier, chosen):  # type: ignore[no-untyped-def]
    n, parts, clash = layout.n, layout.parts, layout.clash
    storage, size, after, before = layout.gaps[STORAGE], layout.gaps[BYTES], layout.gaps[AFTER], layout.gaps[BEFORE]
    leave, wraps, version, kept = layout.gaps[LEAVE], layout.gaps[WRAPS], layout.gaps[VERSION], layout.gaps[KEPT]
    first_gap, storage_size = layout.storages[FIRST_GAP], layout.storages[SIZE]
    part_at, rerun_before, clash_at = layout.reruns[PART_AT], layout.reruns[RERUN_BEFORE], layout.reruns[CLASH_AT]
    roomy, room = layout.tiers[ROOMY], layout.tiers[ROOM]
    gaps, reruns, tiers = len(tier), len(chosen), len(roomy)
    end = shortened(layout, first, end, chosen)
    held = load_without(layout, first, end, tier, chosen)
    used = tier_load(n, tiers, size, layout.gaps[GIVEN_UP], leave, wraps, version, first_gap, roomy, tier)
    shut = np.zeros((tiers, gaps), np.bool_)
    shut_rerun = np.zeros(reruns, np.bool_)
    crowd = np.zeros(n + 1, np.int64)
    score = np.empty(gaps + reruns)
    option = np.empty(gaps + reruns, np.int64)
    where = np.empty(gaps + reruns, np.int64)
    paid = np.zeros((tiers, gaps), np.bool_)  # another gap of the version pays for the copy out
    for g in range(gaps):
        if tier[g] >= 0:
            _pay(g, storage, version, wraps, first_gap, paid[tier[g]])
    dropped = np.zeros(len(storage_size), np.int64)  # by chosen reruns: not to be moved
    needed = np.zeros(len(storage_size), np.int64)  # by chosen reruns, past its last access
    for r in range(reruns):
        if chosen[r]:
            for p in range(part_at[r], part_at[r + 1]):
                if parts[p, 4] != 1:
                    dropped[parts[p, 1]] += 1
                elif parts[p, 2] < parts[p, 3]:
                    needed[parts[p, 1]] += 1
            for c in range(clash_at[r], clash_at[r + 1]):
                shut_rerun[clash[c]] = True
    # What is asked of every option in each round below stands together: where a gap that is not used yet is off (of a
    # wrap, everywhere), and the first operator after which a rerun has something off.
    since, until, drops = np.empty(gaps, np.int64), np.empty(gaps, np.int64), np.empty(reruns, np.int64)
    for g in range(gaps):
        since[g], until[g] = _asked(g, n, first, end, wraps)
        if tier[g] >= 0:
            since[g] = n
    for r in range(reruns):
        drops[r] = n
        for p in range(part_at[r], part_at[r + 1]):
            if parts[p, 4] == 0:
                drops[r] = min(drops[r], parts[p, 2])
    while True:
        worst, most = -1, 0
        for k in range(n):
            over = held[k] - budget
            crowd[k + 1] = crowd[k] + (1 if over > 0 else 0)
            if over > most:
                worst, most = k, over
        if worst < 0:
            return -1
        found = 0
        for g in range(gaps):
            if not (since[g] <= worst < until[g]):
                continue
            if dropped[storage[g]] or (kept[g] and not needed[storage[g]]):
                continue
            if wraps[g]:
                if end[g] <= worst < first[g]:
                    continue
                relief, covered, saved = crowd[end[g]] + crowd[n] - crowd[first[g]], False, 0.0
                for h in range(first_gap[storage[g]], g):  # what a wrap takes the place of relieves already
                    if tier[h] >= 0 and (after[h] < 0 or before[h] >= n):
                        covered = covered or first[h] <= worst < end[h]
                        relief -= crowd[end[h]] - crowd[first[h]]
                        saved += back_cost[tier[h], h]
                if covered or relief <= 0:
                    continue
            else:
                relief, saved = crowd[end[g]] - crowd[first[g]], 0.0
            best, best_tier = np.inf, -1
            for t in range(tiers):
                if shut[t, g]:
                    continue
                cost = max(back_cost[t, g] - saved, 0.0) + (0.0 if paid[t, g] else out_cost[t, g]) + 1.0
                if cost < best:
                    best, best_tier = cost, t
            if best_tier >= 0:
                score[found], option[found], where[found] = best / (size[g] * relief), g, best_tier
                found += 1
        for r in range(reruns):
            at = rerun_before[r]
            if not (drops[r] < worst < at) or chosen[r] or shut_rerun[r] or rerun_cost[r] == np.inf:
                continue
            relief = 0.0
            for p in range(part_at[r], part_at[r + 1]):
                s, begin, what = parts[p, 1], parts[p, 2], parts[p, 4]
                if what == 0:
                    relief += float(storage_size[s]) * (crowd[at] - crowd[begin + 1])
                elif (what == 1 or what == 3) and begin < at:
                    relief -= float(storage_size[s]) * (crowd[at + 1] - crowd[begin])
            if relief > 0:
                if not _able(r, at, parts, part_at, first_gap, wraps, leave, tier):
                    shut_rerun[r] = True
                    continue
                score[found], option[found], where[found] = rerun_cost[r] / relief, r, -1
                found += 1
        if found == 0:
            return worst
        taken = 0
        while taken < batch:  # what turns out to be in the way of another changes nothing: the next best is asked
            i = 0
            for j in range(1, found):
                if score[j] < score[i]:
                    i = j
            if held[worst] <= budget or score[i] == np.inf:
                break
            score[i] = np.inf
            if where[i] < 0:
                taken += _make_again(
                    layout, option[i], held, first, end, until, tier, chosen, shut_rerun, dropped, needed
                )
                continue
            g, t = option[i], where[i]
            if tier[g] >= 0 or (kept[g] and not needed[storage[g]]):
                continue
            s = storage[g]
            able = dropped[s] == 0
            for h in range(first_gap[s], first_gap[s + 1]):
                if tier[h] < 0 or h == g:
                    continue
                if wraps[h]:  # a wrap takes the place of the first and the last gap
                    able = able and after[g] >= 0 and before[g] < n
            if able and not roomy[t]:
                able = _enter(layout, g, t, room[t], used, tier)
            if not able:
                shut[t, g] = True
                continue
            tier[g], since[g] = t, n
            taken += 1
            for h in range(first_gap[s], first_gap[s + 1]):
                if wraps[g] and h != g and tier[h] >= 0 and (after[h] < 0 or before[h] >= n):
                    if not roomy[tier[h]]:
                        _go(layout, h, NOWHERE, tier[h], used, tier)
                    tier[h] = -1
                    since[h], until[h] = _asked(h, n, first, end, wraps)
                    _add(held, size[h], first[h], end[h])
            _pay(g, storage, version, wraps, first_gap, paid[t])
            _add_off(held, -size[g], first[g], end[g], wraps[g])


@inner
def _asked(g, n, first, end, wraps):  # type: ignore[no-untyped-def]
    """The operators (first, one past the last) about which gap g may be asked."""
    if wraps[g]:
        return ZERO, n
    return first[g], end[g]


@inner
def _enter(layout, g, t, room, used, tier):  # type: ignore[no-untyped-def]
    """Counts gap g in tier t, if there is room for it; else nothing changes. Returns whether there was."""
    n, size, alone, over = layout.n, layout.gaps[BYTES, g], True, False
    s = layout.gaps[STORAGE, g]
    for h in range(layout.storages[FIRST_GAP, s], layout.storages[FIRST_GAP, s + 1]):
        alone = alone and tier[h] != t
    first, last = layout.gaps[LEAVE, g], layout.gaps[GIVEN_UP, g]
    second = n + 1
    if layout.gaps[WRAPS, g]:
        first, last, second = 0, n, n + 1
        if layout.gaps[VERSION, g] >= 0:
            last, second = layout.gaps[GIVEN_UP, g], min(layout.gaps[LEAVE, g], n)
    if alone and last < second:  # as `occupy` has it where nothing else of the storage is there
        for k in range(n + 1):
            there = first <= k <= last or k >= second
            over = over or used[t, k] + (size if there else 0) > room
        if over:
            return False
        for k in range(n + 1):
            if first <= k <= last or k >= second:
                used[t, k] += size
        return True
    _go(layout, g, t, t, used, tier)
    for k in range(n + 1):
        over = over or used[t, k] > room
    if over:
        _go(layout, g, NOWHERE, t, used, tier)
    return not over


@inner
def _go(layout, g, to, of, used, tier):  # type: ignore[no-untyped-def]
    """Sends gap g to a tier, or nowhere, and counts anew what its storage has in tier `of`."""
    n, s, size, given_up = layout.n, layout.gaps[STORAGE, g], layout.gaps[BYTES], layout.gaps[GIVEN_UP]
    leave, wraps, version = layout.gaps[LEAVE], layout.gaps[WRAPS], layout.gaps[VERSION]
    first_gap = layout.storages[FIRST_GAP]
    for sign in (-1, 1):
        occupy(used[of], n, sign, s, of, size, given_up, leave, wraps, version, first_gap, tier)
        tier[g] = to


@inner
def _make_again(layout, r, held, first, end, until, tier, chosen, shut_rerun, dropped, needed):  # type: ignore[no-untyped-def]
    """Chooses rerun r unless what it drops or needs is moved at the time; returns whether it did."""
    parts, clash = layout.parts, layout.clash
    size, leave, wraps = layout.gaps[BYTES], layout.gaps[LEAVE], layout.gaps[WRAPS]
    first_gap, storage_size = layout.storages[FIRST_GAP], layout.storages[SIZE]
    part_at, extra, rerun_before = layout.reruns[PART_AT], layout.reruns[EXTRA], layout.reruns[RERUN_BEFORE]
    clash_at = layout.reruns[CLASH_AT]
    if chosen[r] or shut_rerun[r]:
        return False
    at = rerun_before[r]
    shut_rerun[r] = True
    if not _able(r, at, parts, part_at, first_gap, wraps, leave, tier):
        return False
    chosen[r] = True
    for c in range(clash_at[r], clash_at[r + 1]):
        shut_rerun[clash[c]] = True
    for p in range(part_at[r], part_at[r + 1]):
        s, since, what = parts[p, 1], parts[p, 2], parts[p, 4]
        if what != 1:
            dropped[s] += 1
        elif since < at:
            needed[s] += 1
        if what == 0:
            _add(held, -storage_size[s], since + 1, at)
        elif (what == 1 or what == 3) and since < at:
            _add(held, storage_size[s], since, at + 1)
        if what == 1:
            for h in range(first_gap[s], first_gap[s + 1]):
                if (wraps[h] or leave[h] < at) and at < end[h]:
                    sooner = at if wraps[h] else max(at, first[h])
                    if tier[h] >= 0:
                        _add(held, size[h], sooner, end[h])
                    end[h] = sooner
                    if not wraps[h]:
                        until[h] = sooner
    held[at] += extra[r]
    return True


@inner
def _able(r, at, parts, part_at, first_gap, wraps, leave, tier):  # type: ignore[no-untyped-def]
    """Whether nothing that rerun r drops is moved, nor what it needs at the time."""
    for p in range(part_at[r], part_at[r + 1]):
        s, what = parts[p, 1], parts[p, 4]
        for h in range(first_gap[s], first_gap[s + 1]):
            if tier[h] >= 0 and (what != 1 or (wraps[h] and at > leave[h])):
                return False
    return True


@inner
def _pay(g, storage, version, wraps, first_gap, paid):  # type: ignore[no-untyped-def]
    s = storage[g]
    for h in range(first_gap[s], first_gap[s + 1]):
        if version[h] == version[g] or (wraps[g] and version[h] < 0):
            paid[h] = True


@inner
def _add(held, amount, first, end):  # type: ignore[no-untyped-def]
    for k in range(first, end):
        held[k] += amount


@inner
def _add_off(held, amount, first, end, wraps):  # type: ignore[no-untyped-def]
    """Adds to the operators at which a gap is off HBM: a wrap outside of first .. end - 1."""
    if wraps:
        _add(held, amount, ZERO, end)
        _add(held, amount, first, len(held))
    else:
        _add(held, amount, first, end)


@inner
def _fits(held, amount, budget, first, end, wraps):  # type: ignore[no-untyped-def]
    """Whether so much more is within the budget where a gap is off HBM."""
    for k in range(ZERO if wraps else first, end):
        if held[k] + amount > budget:
            return False
    for k in range(first if wraps else len(held), len(held)):
        if held[k] + amount > budget:
            return False
    return True


@entry
def remove_surplus(layout, budget, first, end, order, rerun_order, tier, chosen):  # type: ignore[no-untyped-def]
    parts, size, wraps = layout.parts, layout.gaps[BYTES], layout.gaps[WRAPS]
    part_at, rerun_before = layout.reruns[PART_AT], layout.reruns[RERUN_BEFORE]
    storage_size = layout.storages[SIZE]
    end = shortened(layout, first, end, chosen)
    held = load_without(layout, first, end, tier, chosen)
    for i in range(len(rerun_order)):
        r = rerun_order[i]
        if not chosen[r]:
            continue
        at, fits = rerun_before[r], True
        for p in range(part_at[r], part_at[r + 1]):  # several drops overlap: all of them are put back at once
            if parts[p, 4] == 0:
                _add(held, storage_size[parts[p, 1]], parts[p, 2] + 1, at)
        for p in range(part_at[r], part_at[r + 1]):
            if parts[p, 4] == 0:
                for k in range(parts[p, 2] + 1, at):
                    fits = fits and held[k] <= budget
        if fits:
            chosen[r] = False
            continue
        for p in range(part_at[r], part_at[r + 1]):
            if parts[p, 4] == 0:
                _add(held, -storage_size[parts[p, 1]], parts[p, 2] + 1, at)
    for i in range(len(order)):
        g = order[i]
        if tier[g] >= 0 and _fits(held, size[g], budget, first[g], end[g], wraps[g]):
            tier[g] = -1
            _add_off(held, size[g], first[g], end[g], wraps[g])
