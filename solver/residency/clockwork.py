"""When the storages of a draft leave and return, on a given time line: list scheduling, compiled.

Copies out start as early as the content is final and the link is free, in the order in which the storages fall idle.
Memory is free when the copy has ended, not when the release is listed. Copies back are placed backwards, the one needed
last first, each as late as its consumer and the link allow, where memory (in time, not only in listed order) has room::

    link out     [ A ][ B ]                       A, B fall idle at 1, 2
    operators    0 |1 |2 |3 |4 |5 |6 |7 |
    link back                  [ B  ][ A ]        B needed at 6, A at 7
    memory       ─────┐A  ┐B        ┌B  ┌A

`plan_times` sets a draft's positions in place. It does not decide what leaves.
"""

from __future__ import annotations

import numpy as np

from solver.residency.compiled import ZERO, entry, inner
from solver.residency.draft import Bools, Draft, Table
from solver.residency.layout import (
    BY_LATEST,
    BY_LEAVE,
    BYTES,
    EXTRA,
    FIRST_GAP,
    IN_NS,
    LAST_ARRIVAL,
    LAST_DEPARTURE,
    LATEST,
    LEAVE,
    LOAD,
    NEXT_ARRIVAL,
    OUT_NS,
    PART_AT,
    RERUN_BEFORE,
    ROOMY,
    SIZE,
    STORAGE,
    VERSION,
    WRAPS,
    WRITTEN,
)
from solver.residency.problem import Int64s

LEAD = 1.25
"""Copies back are given this many times their own duration where memory allows: measured times vary."""


NEVER = np.iinfo(np.int64).max


def plan_times(
    table: Table, draft: Draft, start: Int64s, end: Int64s, lead: float = LEAD, fixed: Bools | None = None
) -> None:
    """Positions for the draft's moves on the time line `start`, `end`; those of `fixed` gaps stay as they are."""
    problem = table.problem
    if fixed is None:
        fixed = np.zeros(table.count, dtype=np.bool_)
    set_positions(
        table.layout, problem.hbm_bytes, start, end, lead, draft.tier, draft.out, draft.back, draft.chosen, fixed
    )


@entry
def set_positions(layout, budget, start, end, lead, tier, out, back, chosen, fixed):  # type: ignore[no-untyped-def]
    n, parts, links = layout.n, layout.parts, layout.links
    storage, size, leave, latest = layout.gaps[STORAGE], layout.gaps[BYTES], layout.gaps[LEAVE], layout.gaps[LATEST]
    written, wraps, version = layout.gaps[WRITTEN], layout.gaps[WRAPS], layout.gaps[VERSION]
    by_leave, by_latest = layout.gaps[BY_LEAVE], layout.gaps[BY_LATEST]
    load, next_arrival = layout.operators[LOAD], layout.operators[NEXT_ARRIVAL]
    last_departure, last_arrival = layout.operators[LAST_DEPARTURE], layout.operators[LAST_ARRIVAL]
    first_gap, storage_size = layout.storages[FIRST_GAP], layout.storages[SIZE]
    part_at, extra, rerun_before = layout.reruns[PART_AT], layout.reruns[EXTRA], layout.reruns[RERUN_BEFORE]
    roomy = layout.tiers[ROOMY]
    gaps, tiers = len(tier), len(roomy)
    change = np.zeros(n + 2, np.int64)  # of HBM in time, as differences along the operators
    sooner = np.zeros(n + 2, np.int64)  # what of it is off sooner in listed order
    peaks = np.zeros(n, np.int64)
    due = latest.copy()
    for r in range(len(chosen)):
        if not chosen[r]:
            continue
        at = rerun_before[r]
        for p in range(part_at[r], part_at[r + 1]):
            s, first, what = parts[p, 1], parts[p, 2], parts[p, 4]
            if what == 0:
                change[first + 1] -= storage_size[s]
                change[at] += storage_size[s]
            elif what == 1 or what == 3:
                if first < at:
                    change[first] += storage_size[s]
                    change[at + 1] -= storage_size[s]
                for g in range(first_gap[s], first_gap[s + 1]):
                    if tier[g] >= 0 and (wraps[g] or leave[g] < at) and at < due[g]:
                        if not wraps[g] or at < due[g]:
                            due[g] = max(last_arrival[at], 0)
        peaks[at] = max(peaks[at], extra[r])

    link = np.zeros(tiers, np.int64)
    off = np.zeros(gaps, np.int64)  # the first operator at whose start the block is free
    for i in range(gaps):
        g = by_leave[i]
        t = tier[g]
        if t < 0:
            continue
        if leave[g] >= n:  # a wrap that never comes into HBM again, or dies there
            off[g] = n
            continue
        s = storage[g]
        needs = not (wraps[g] and version[g] < 0)
        if needs and version[g] < 0:
            for h in range(first_gap[s], first_gap[s + 1]):
                if wraps[h] and tier[h] >= 0:
                    needs = False
        if needs:
            for h in range(first_gap[s], g):
                if tier[h] == t and version[h] == version[g]:
                    needs = False
        free = end[leave[g]]
        place = out[g] if fixed[g] else leave[g]
        free = max(free, end[place])
        if needs:
            final = min(written[g], leave[g])
            ready = end[final]
            begin = max(ready, link[t])
            # The last departure that has ended by then: the copy is issued no earlier than it can start.
            if not fixed[g]:  # in a tight tier no earlier than need be: its room counts from there
                place = _last_ended(end, last_departure, final, leave[g], begin) if roomy[t] else leave[g]
            begin = max(begin, end[place])
            link[t] = begin + links[OUT_NS, t, g]
            free = max(free, link[t])
        out[g] = place
        first = max(leave[g], place) + 1
        off[g] = max(first, first_from(start, first, n, free))
    for g in range(gaps):
        if tier[g] < 0:
            continue
        if wraps[g]:
            change[0] -= size[g]
            change[min(due[g], n)] += size[g]
            if off[g] < n:
                change[off[g]] -= size[g]
        elif off[g] < due[g]:
            change[off[g]] -= size[g]
            change[due[g]] += size[g]
        listed = max(leave[g], out[g]) + 1
        if listed < n and (wraps[g] or listed < due[g]):
            sooner[listed] -= size[g]
            sooner[off[g] if wraps[g] else min(off[g], due[g])] += size[g]
    held, plain = np.empty(n, np.int64), np.empty(n, np.int64)
    total = earlier = ZERO
    for k in range(n):
        total += change[k]
        earlier += sooner[k]
        held[k] = load[k] + total + peaks[k]
        plain[k] = held[k] + earlier

    link[:] = NEVER
    for i in range(gaps):
        g = by_latest[i]
        t = tier[g]
        if t < 0:
            continue
        kept = back[g]
        back[g] = due[g]
        if due[g] >= n:
            continue
        finish = min(start[due[g]], link[t])
        duration = links[IN_NS, t, g]
        link[t] = finish - duration
        # The last arrival whose issue is early enough for the copy to end in time.
        wanted = due[g]
        first = 0 if wraps[g] else leave[g] + 1
        low = first_from(start, first, due[g], finish - int(lead * duration) + 1) - 1
        wanted = max(first, min(wanted, low))
        stays = fixed[g] and kept <= due[g]
        if stays:
            wanted = max(first, kept)
        limit = wanted
        k = due[g] - 1
        while k >= wanted:
            if (plain[k] if stays else held[k]) + size[g] > budget:
                limit = k + 1
                break
            k -= 1
        place = next_arrival[min(limit, n)]
        if place > due[g]:
            place = due[g]
        back[g] = place
        for k in range(place, due[g]):
            held[k] += size[g]
            plain[k] += size[g]


@inner
def first_from(times, first, last, at):  # type: ignore[no-untyped-def]
    """The first operator in first .. last - 1 with times >= at; `last` where there is none. `times` rise."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if times[middle] >= at:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def _last_ended(end, last_departure, first, last, at):  # type: ignore[no-untyped-def]
    """The last departure in first .. last whose operator has ended by `at`; `first` where there is none."""
    low, high = first, last
    while low < high:
        middle = (low + high + 1) // 2
        if end[middle] <= at:
            low = middle
        else:
            high = middle - 1
    place = last_departure[low]
    return place if place >= first else first
