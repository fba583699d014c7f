"""Where a plan is changed: what it waits for, and what is taken out, shifted or forced in near there; compiled.

::

    operators     0 | 1 | 2 | 3 |....wait....| 4 | 5 |      the longer a wait, the likelier it is the centre
    link back         [ A ][ B ][      C       ]            near it: C, needed at 4; A and B, before it in the queue
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from hyperopt.engine.kernel import FOR_COPY_IN, Record
from solver.residency.problem import Int64s

Bools = npt.NDArray[np.bool_]

TRIES = 3
"""Moves or reruns of which the cheapest is forced in."""

STEP_NS, ON_LINKS, ROWS = range(3)
"""Places of `Known.figures`: step time, time of all copies (the lesser of two plans as fast is taken), copies."""


class Known(NamedTuple):
    """A draft and what became of it."""

    tier: Int64s
    out: Int64s
    back: Int64s
    chosen: Bools
    record: Record
    figures: Int64s


@numba.njit(cache=True, nogil=True)
def ruin(dice, layout, current, trial):  # type: ignore[no-untyped-def]
    """Takes out a few gaps around an operator that waits, or anywhere."""
    n, record, tier = layout.n, current.record, trial.tier
    last, waits = 0, 0.0
    for k in range(n):
        last = max(last, record.end[k])
        waits += _waited(record.memory_ns, record.wait_ns, record.wait_kind, k)
    tail = float(current.figures[STEP_NS] - last)
    if tail > 0 and dice.random() * (waits + tail) < tail:
        _ruin_tail(dice, layout, current, trial, last)
        if dice.random() < 0.5:
            return
    center = _center(dice, layout, record)
    if dice.random() < 0.5:
        _ruin_queue(dice, layout, current, trial, center)
        if dice.random() < 0.5:
            return
    size = 1 + int(dice.random() * 8)
    distance = np.full(len(tier), np.inf)
    for g in range(len(tier)):
        if tier[g] >= 0:
            near = min(abs(trial.back[g] - center), abs(trial.out[g] - center))
            if layout.wraps[g]:
                near = min(near, abs(layout.leave[g] - center))
            distance[g] = near + dice.random() * n / 20
    for g in _nearest(dice, distance, size):
        if g >= 0:
            tier[g] = -1
    if record.wait_for[center] >= 0 and dice.random() < 0.5:
        s = record.wait_for[center]
        tier[layout.first_gap[s] : layout.first_gap[s + 1]] = -1
    if dice.random() < 0.5:
        distance = np.full(len(trial.chosen), np.inf)
        for r in range(len(distance)):
            if trial.chosen[r]:
                distance[r] = abs(layout.rerun_before[r] - center) + dice.random() * n / 20
        for r in _nearest(dice, distance, 1 + int(dice.random() * 3)):
            if r >= 0:
                trial.chosen[r] = False
        settle(layout, trial)


@numba.njit(cache=True, nogil=True)
def shift(dice, layout, current, trial):  # type: ignore[no-untyped-def]
    """Moves one or two copies, mostly near a wait, some operators earlier or later."""
    n = layout.n
    center = _center(dice, layout, current.record)
    distance = np.full(len(trial.tier), np.inf)
    for g in range(len(distance)):
        if trial.tier[g] >= 0:
            near = abs(trial.back[g] - center) if trial.back[g] < n else n
            distance[g] = min(near, abs(trial.out[g] - center)) + dice.random() * n / 20
    for g in _nearest(dice, distance, 1 + int(dice.random() * 2)):
        if g < 0:
            continue
        by = 2 ** int(dice.random() * 6) * (1 if dice.random() < 0.5 else -1)
        if dice.random() < 0.7 and trial.back[g] < n:
            place = _moved(layout.arrivals, trial.back[g], by)
            if (0 if layout.wraps[g] else layout.leave[g] + 1) <= place <= layout.latest[g]:
                trial.back[g] = place
        else:
            place = _moved(layout.departures, trial.out[g], by)
            if layout.written[g] <= place <= layout.leave[g]:
                trial.out[g] = place


@numba.njit(cache=True, nogil=True)
def force_rerun(dice, layout, current, trial, prices, arm):  # type: ignore[no-untyped-def]
    """Makes a rerun that brings something over some operator, and takes out what is in its way; returns which."""
    center = _anywhere(dice, layout, current.record)
    chosen, least, tries = -1, np.inf, 0
    for _ in range(200 if len(trial.chosen) else 0):
        r = int(dice.random() * len(trial.chosen))
        if trial.chosen[r] or layout.rerun_before[r] <= center:
            continue
        gained = 0
        for p in range(layout.part_at[r], layout.part_at[r + 1]):
            if layout.parts[p, 4] == 0 and layout.parts[p, 2] < center:
                gained += layout.size[layout.parts[p, 1]]
        if gained > 0:
            cost = prices.reruns[arm, r] / gained
            if cost < least:
                chosen, least = r, cost
            tries += 1
            if tries >= TRIES:
                break
    if chosen < 0:
        return -1
    for c in range(layout.clash_at[chosen], layout.clash_at[chosen + 1]):
        trial.chosen[layout.clash[c]] = False
    at = layout.rerun_before[chosen]
    for p in range(layout.part_at[chosen], layout.part_at[chosen + 1]):
        s, what = layout.parts[p, 1], layout.parts[p, 4]
        for h in range(layout.first_gap[s], layout.first_gap[s + 1]):
            if trial.tier[h] >= 0 and (what != 1 or (layout.wraps[h] and at > layout.leave[h])):
                trial.tier[h] = -1
    trial.chosen[chosen] = True
    settle(layout, trial)
    return chosen


@numba.njit(cache=True, nogil=True)
def force_move(dice, layout, current, trial, prices, arm):  # type: ignore[no-untyped-def]
    """Moves something that is idle over some operator, and takes out what is in its way; returns which."""
    center = _anywhere(dice, layout, current.record)
    chosen, where, least, tries = -1, -1, np.inf, 0
    for _ in range(200 if len(trial.tier) else 0):
        g = int(dice.random() * len(trial.tier))
        if layout.wraps[g]:
            covers = center < layout.latest[g] or center > layout.leave[g]
        else:
            covers = layout.leave[g] < center < layout.latest[g]
        if trial.tier[g] >= 0 or layout.kept[g] or not covers:
            continue
        for t in range(len(layout.roomy)):
            cost = (prices.out[arm, t, g] + prices.back[arm, t, g]) / max(layout.bytes[g], 1)
            if cost < least:
                chosen, where, least = g, t, cost
        tries += 1
        if tries >= TRIES:
            break
    if chosen < 0:
        return -1
    s, wraps = layout.storage[chosen], layout.wraps[chosen]
    for p in range(len(layout.parts)):
        if layout.parts[p, 1] == s:
            r = layout.parts[p, 0]
            if layout.parts[p, 4] != 1 or (wraps and layout.rerun_before[r] > layout.leave[chosen]):
                trial.chosen[r] = False
    for h in range(layout.first_gap[s], layout.first_gap[s + 1]):
        if layout.wraps[h] != wraps:  # a wrap takes the place of the first and the last gap
            inner = chosen if layout.wraps[h] else h
            if layout.after[inner] < 0 or layout.before[inner] >= layout.n:
                trial.tier[h] = -1
    trial.tier[chosen] = where
    settle(layout, trial)
    return chosen


@numba.njit(cache=True, nogil=True)
def settle(layout, trial):  # type: ignore[no-untyped-def]
    """Takes out moves of what no rerun keeps any more."""
    held = np.zeros(len(layout.size), np.bool_)
    for r in range(len(trial.chosen)):
        if trial.chosen[r]:
            for p in range(layout.part_at[r], layout.part_at[r + 1]):
                if layout.parts[p, 4] == 1 and layout.parts[p, 2] < layout.parts[p, 3]:
                    held[layout.parts[p, 1]] = True
    for g in range(len(trial.tier)):
        if layout.kept[g] and trial.tier[g] >= 0 and not held[layout.storage[g]]:
            trial.tier[g] = -1


@numba.njit(cache=True, nogil=True, inline="always")
def gap_of(first_gap, tier, out, back, s, op):  # type: ignore[no-untyped-def]
    """The used gap of a storage that is copied after, or before, an operator; -1: none."""
    for g in range(first_gap[s], first_gap[s + 1]):
        if tier[g] >= 0 and (out[g] == op or back[g] == op):
            return g
    return -1


@numba.njit(cache=True, nogil=True, inline="always")
def last_used(first_gap, tier, s):  # type: ignore[no-untyped-def]
    for g in range(first_gap[s + 1] - 1, first_gap[s] - 1, -1):
        if tier[g] >= 0:
            return g
    return -1


@numba.njit(cache=True, nogil=True)
def _ruin_tail(dice, layout, current, trial, last):  # type: ignore[no-untyped-def]
    """Takes out some of the moves whose copies outlast the operators."""
    count = 1 + int(dice.random() * 4)
    copies, rows = current.record.copies, current.figures[ROWS]
    for _ in range(count):
        seen, chosen = 0, -1
        for i in range(rows):
            if copies[i, 3] == 1 and copies[i, 6] > last:
                seen += 1
                if dice.random() * seen < 1:
                    chosen = copies[i, 0]
        if chosen >= 0:
            g = last_used(layout.first_gap, trial.tier, chosen)
            if g >= 0:
                trial.tier[g] = -1


@numba.njit(cache=True, nogil=True)
def _ruin_queue(dice, layout, current, trial, center):  # type: ignore[no-untyped-def]
    """Takes out some of the moves whose copies are under way when an operator starts, or have just ended."""
    record, rows = current.record, current.figures[ROWS]
    until = record.start[center]
    since = until - record.memory_ns[center] - record.wait_ns[center] - current.figures[STEP_NS] // 50
    copies = record.copies
    for _ in range(1 + int(dice.random() * 5)):
        seen, chosen = 0, -1
        for i in range(rows):
            if copies[i, 6] > since and copies[i, 5] <= until:
                seen += 1
                if dice.random() * seen < 1:
                    chosen = i
        if chosen < 0:
            return
        g = gap_of(layout.first_gap, trial.tier, trial.out, trial.back, copies[chosen, 0], copies[chosen, 1])
        if g >= 0:
            trial.tier[g] = -1


@numba.njit(cache=True, nogil=True)
def _anywhere(dice, layout, record):  # type: ignore[no-untyped-def]
    return _center(dice, layout, record) if dice.random() < 0.5 else int(dice.random() * layout.n)


@numba.njit(cache=True, nogil=True)
def _center(dice, layout, record):  # type: ignore[no-untyped-def]
    """An operator that waits, mostly, the more the longer; or any."""
    if dice.random() < 0.85:
        total = 0.0
        for k in range(layout.n):
            total += _waited(record.memory_ns, record.wait_ns, record.wait_kind, k)
        left = dice.random() * total
        if total > 0:
            for k in range(layout.n):
                left -= _waited(record.memory_ns, record.wait_ns, record.wait_kind, k)
                if left < 0:
                    return k
    return int(dice.random() * layout.n)


@numba.njit(cache=True, nogil=True, inline="always")
def _waited(memory_ns, wait_ns, wait_kind, op):  # type: ignore[no-untyped-def]
    return memory_ns[op] + (wait_ns[op] if wait_kind[op] == FOR_COPY_IN else 0)


@numba.njit(cache=True, nogil=True)
def _nearest(dice, distance, count):  # type: ignore[no-untyped-def]
    """The places of the `count` least."""
    count = min(count, len(distance))
    found = np.empty(count, np.int64)
    for i in range(count):
        least = -1
        for j in range(len(distance)):
            if distance[j] != np.inf and (least < 0 or distance[j] < distance[least]):
                least = j
        found[i] = least
        if least >= 0:
            distance[least] = np.inf
    return found


@numba.njit(cache=True, nogil=True, inline="always")
def _moved(places, at, by):  # type: ignore[no-untyped-def]
    """The place so many places on; -1 where there is none."""
    i = np.searchsorted(places, at, side="right") - 1 + by
    return places[i] if 0 <= i < len(places) else -1
