"""Where a plan is changed: where it loses time, and what is taken out, shifted or forced in near there; compiled.

::

    operators     0 | 1 | 2 | 3 |....wait....| 4 | 5 |      the longer a wait, the likelier it is the centre
    link back         [ A ][ B ][      C       ]            near it: C, needed at 4; A and B, before it in the queue
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyperopt.engine.kernel import FOR_COPY_IN
from solver.residency.clockwork import first_from
from solver.residency.compiled import ZERO, inner
from solver.residency.layout import (
    AFTER,
    BEFORE,
    BYTES,
    CLASH_AT,
    FIRST_GAP,
    FULLEST,
    KEPT,
    LATEST,
    LEAVE,
    PART_AT,
    RERUN_BEFORE,
    RERUN_NS,
    SIZE,
    STORAGE,
    WRAPS,
    WRITTEN,
)
from solver.residency.problem import Int64s

Bools = npt.NDArray[np.bool_]

TRIES = 3
"""Moves or reruns of which the cheapest is forced in."""

TIER, OUT, BACK = range(3)
"""Rows of `Known.moves`."""

START, END, WAIT_NS, WAIT_FOR, WAIT_KIND, MEMORY_NS = range(6)
"""Rows of `Known.times`; as in the engine's `Record`."""

STEP_NS, ON_LINKS, ROWS = range(3)
"""Places of `Known.figures`: step time, time of all copies (the lesser of two plans as fast is taken), copies."""


class Known(NamedTuple):
    """A draft, and what became of it: `moves` (field, gap), `times` (field, operator), `copies` as in `Record`."""

    moves: Int64s
    chosen: Bools
    times: Int64s
    copies: Int64s
    figures: Int64s


@inner
def ruin(dice, layout, current, trial):  # type: ignore[no-untyped-def]
    """Takes out a few gaps around an operator at which time is lost, or anywhere."""
    n, times, tier, out, back = layout.n, current.times, trial.moves[TIER], trial.moves[OUT], trial.moves[BACK]
    leave, wraps, first_gap = layout.gaps[LEAVE], layout.gaps[WRAPS], layout.storages[FIRST_GAP]
    last, waits = ZERO, 0.0
    for k in range(n):
        last = max(last, times[END, k])
        waits += _waited(times, k)
    tail = float(current.figures[STEP_NS] - last)
    if tail > 0 and dice.random() * (waits + tail) < tail:
        _ruin_tail(dice, layout, current, trial, last)
        if dice.random() < 0.5:
            return
    center, again = _center(dice, layout, current)
    if again >= 0 and dice.random() < 0.5:
        trial.chosen[again] = False
        settle(layout, trial)
    if dice.random() < 0.5:
        _ruin_queue(dice, layout, current, trial, center)
        if dice.random() < 0.5:
            return
    size = 1 + int(dice.random() * 8)
    distance = np.empty(len(tier))
    for g in range(len(tier)):
        distance[g] = np.inf
        if tier[g] >= 0:
            near = min(abs(back[g] - center), abs(out[g] - center))
            if wraps[g]:
                near = min(near, abs(leave[g] - center))
            distance[g] = near + dice.random() * n / 20
    for _ in range(min(size, len(distance))):
        g = _nearest(distance)
        if g >= 0:
            tier[g] = -1
    if times[WAIT_FOR, center] >= 0 and dice.random() < 0.5:
        s = times[WAIT_FOR, center]
        for g in range(first_gap[s], first_gap[s + 1]):
            tier[g] = -1
    if dice.random() < 0.5:
        distance = np.empty(len(trial.chosen))
        for r in range(len(distance)):
            distance[r] = np.inf
            if trial.chosen[r]:
                distance[r] = abs(layout.reruns[RERUN_BEFORE, r] - center) + dice.random() * n / 20
        for _ in range(min(1 + int(dice.random() * 3), len(distance))):
            r = _nearest(distance)
            if r >= 0:
                trial.chosen[r] = False
        settle(layout, trial)


@inner
def shift(dice, layout, current, trial):  # type: ignore[no-untyped-def]
    """Moves one or two copies, mostly near where time is lost, some operators earlier or later."""
    n, tier, out, back = layout.n, trial.moves[TIER], trial.moves[OUT], trial.moves[BACK]
    leave, latest, wraps = layout.gaps[LEAVE], layout.gaps[LATEST], layout.gaps[WRAPS]
    center = _center(dice, layout, current)[0]
    distance = np.empty(len(tier))
    for g in range(len(distance)):
        distance[g] = np.inf
        if tier[g] >= 0:
            near = abs(back[g] - center) if back[g] < n else n
            distance[g] = min(near, abs(out[g] - center)) + dice.random() * n / 20
    for _ in range(min(1 + int(dice.random() * 2), len(distance))):
        g = _nearest(distance)
        if g < 0:
            continue
        by = (1 << int(dice.random() * 6)) * (1 if dice.random() < 0.5 else -1)
        if dice.random() < 0.7 and back[g] < n:
            place = _moved(layout.arrivals, back[g], by)
            if (0 if wraps[g] else leave[g] + 1) <= place <= latest[g]:
                back[g] = place
        else:
            place = _moved(layout.departures, out[g], by)
            if layout.gaps[WRITTEN, g] <= place <= leave[g]:
                out[g] = place


@inner
def force_rerun(dice, layout, current, trial, prices, arm):  # type: ignore[no-untyped-def]
    """Makes a rerun that brings something over some operator, and takes out what is in its way; returns which."""
    center = _anywhere(dice, layout, current)
    tier, parts, first_gap = trial.moves[TIER], layout.parts, layout.storages[FIRST_GAP]
    part_at, clash_at, rerun_before = layout.reruns[PART_AT], layout.reruns[CLASH_AT], layout.reruns[RERUN_BEFORE]
    chosen, least, tries = -1, np.inf, 0
    for _ in range(200 if len(trial.chosen) else 0):
        r = int(dice.random() * len(trial.chosen))
        if trial.chosen[r] or rerun_before[r] <= center:
            continue
        gained = 0
        for p in range(part_at[r], part_at[r + 1]):
            if parts[p, 4] == 0 and parts[p, 2] < center:
                gained += layout.storages[SIZE, parts[p, 1]]
        if gained > 0:
            cost = prices.reruns[arm, r] / gained
            if cost < least:
                chosen, least = r, cost
            tries += 1
            if tries >= TRIES:
                break
    if chosen < 0:
        return -1
    for c in range(clash_at[chosen], clash_at[chosen + 1]):
        trial.chosen[layout.clash[c]] = False
    at = rerun_before[chosen]
    for p in range(part_at[chosen], part_at[chosen + 1]):
        s, what = parts[p, 1], parts[p, 4]
        for h in range(first_gap[s], first_gap[s + 1]):
            if tier[h] >= 0 and (what != 1 or (layout.gaps[WRAPS, h] and at > layout.gaps[LEAVE, h])):
                tier[h] = -1
    trial.chosen[chosen] = True
    settle(layout, trial)
    return chosen


@inner
def force_move(dice, layout, current, trial, prices, arm):  # type: ignore[no-untyped-def]
    """Moves something that is idle over some operator, and takes out what is in its way; returns which."""
    center = _anywhere(dice, layout, current)
    tier, parts, first_gap = trial.moves[TIER], layout.parts, layout.storages[FIRST_GAP]
    leave, latest, wrapped = layout.gaps[LEAVE], layout.gaps[LATEST], layout.gaps[WRAPS]
    chosen, where, least, tries = -1, -1, np.inf, 0
    for _ in range(200 if len(tier) else 0):
        g = int(dice.random() * len(tier))
        if tier[g] >= 0 or layout.gaps[KEPT, g]:
            continue
        if wrapped[g] and leave[g] >= center >= latest[g]:
            continue
        if not wrapped[g] and not leave[g] < center < latest[g]:
            continue
        for t in range(layout.tiers.shape[1]):
            cost = (prices.out[arm, t, g] + prices.back[arm, t, g]) / max(layout.gaps[BYTES, g], 1)
            if cost < least:
                chosen, where, least = g, t, cost
        tries += 1
        if tries >= TRIES:
            break
    if chosen < 0:
        return -1
    s, wraps = layout.gaps[STORAGE, chosen], wrapped[chosen]
    for p in range(len(parts)):
        if parts[p, 1] == s:
            r = parts[p, 0]
            if parts[p, 4] != 1 or (wraps and layout.reruns[RERUN_BEFORE, r] > leave[chosen]):
                trial.chosen[r] = False
    for h in range(first_gap[s], first_gap[s + 1]):
        if wrapped[h] != wraps:  # a wrap takes the place of the first and the last gap
            within = chosen if wrapped[h] else h
            if layout.gaps[AFTER, within] < 0 or layout.gaps[BEFORE, within] >= layout.n:
                tier[h] = -1
    tier[chosen] = where
    settle(layout, trial)
    return chosen


@inner
def settle(layout, trial):  # type: ignore[no-untyped-def]
    """Takes out moves of what no rerun keeps any more."""
    tier, parts, part_at = trial.moves[TIER], layout.parts, layout.reruns[PART_AT]
    storage, kept = layout.gaps[STORAGE], layout.gaps[KEPT]
    held = np.zeros(layout.storages.shape[1], np.bool_)
    for r in range(len(trial.chosen)):
        if trial.chosen[r]:
            for p in range(part_at[r], part_at[r + 1]):
                if parts[p, 4] == 1 and parts[p, 2] < parts[p, 3]:
                    held[parts[p, 1]] = True
    for g in range(len(tier)):
        if kept[g] and tier[g] >= 0 and not held[storage[g]]:
            tier[g] = -1


@inner
def gap_of(first_gap, tier, out, back, s, op):  # type: ignore[no-untyped-def]
    """The used gap of a storage that is copied after, or before, an operator; -1: none."""
    for g in range(first_gap[s], first_gap[s + 1]):
        if tier[g] >= 0 and (out[g] == op or back[g] == op):
            return g
    return -1


@inner
def last_used(first_gap, tier, s):  # type: ignore[no-untyped-def]
    for g in range(first_gap[s + 1] - 1, first_gap[s] - 1, -1):
        if tier[g] >= 0:
            return g
    return -1


@inner
def _ruin_tail(dice, layout, current, trial, last):  # type: ignore[no-untyped-def]
    """Takes out some of the moves whose copies outlast the operators."""
    count = 1 + int(dice.random() * 4)
    copies, rows = current.copies, current.figures[ROWS]
    first_gap, tier = layout.storages[FIRST_GAP], trial.moves[TIER]
    for _ in range(count):
        seen, chosen = 0, ZERO - 1
        for i in range(rows):
            if copies[i, 3] == 1 and copies[i, 6] > last:
                seen += 1
                if dice.random() * seen < 1:
                    chosen = copies[i, 0]
        if chosen >= 0:
            g = last_used(first_gap, tier, chosen)
            if g >= 0:
                tier[g] = -1


@inner
def _ruin_queue(dice, layout, current, trial, center):  # type: ignore[no-untyped-def]
    """Takes out some of the moves whose copies are under way when an operator starts, or have just ended."""
    times, copies, rows = current.times, current.copies, current.figures[ROWS]
    first_gap, tier, out, back = layout.storages[FIRST_GAP], trial.moves[TIER], trial.moves[OUT], trial.moves[BACK]
    until = times[START, center]
    since = until - times[MEMORY_NS, center] - times[WAIT_NS, center] - current.figures[STEP_NS] // 50
    for _ in range(1 + int(dice.random() * 5)):
        seen, chosen = 0, -1
        for i in range(rows):
            if copies[i, 6] > since and copies[i, 5] <= until:
                seen += 1
                if dice.random() * seen < 1:
                    chosen = i
        if chosen < 0:
            return
        g = gap_of(first_gap, tier, out, back, copies[chosen, 0], copies[chosen, 1])
        if g >= 0:
            tier[g] = -1


@inner
def _anywhere(dice, layout, current):  # type: ignore[no-untyped-def]
    return _center(dice, layout, current)[0] if dice.random() < 0.5 else int(dice.random() * layout.n)


@inner
def _center(dice, layout, current):  # type: ignore[no-untyped-def]
    """An operator at which time is lost, mostly, the more the likelier: it waits, or is the fullest over which a rerun
    has something off (that rerun; -1: none); or any."""
    n, times, reruns = layout.n, current.times, layout.reruns
    if dice.random() < 0.85:
        total = 0.0
        for k in range(n):
            total += _waited(times, k)
        for r in range(len(current.chosen)):
            if current.chosen[r]:
                total += reruns[RERUN_NS, r]
        left = dice.random() * total
        if total > 0:
            for k in range(n):
                left -= _waited(times, k)
                if left < 0:
                    return k, -1
            for r in range(len(current.chosen)):
                if current.chosen[r]:
                    left -= reruns[RERUN_NS, r]
                    if left < 0:
                        return reruns[FULLEST, r], r
    return int(dice.random() * n), -1


@inner
def _waited(times, op):  # type: ignore[no-untyped-def]
    return times[MEMORY_NS, op] + (times[WAIT_NS, op] if times[WAIT_KIND, op] == FOR_COPY_IN else 0)


@inner
def _nearest(distance):  # type: ignore[no-untyped-def]
    """The place of the least, which is taken out; -1 where all have been."""
    least = -1
    for j in range(len(distance)):
        if distance[j] != np.inf and (least < 0 or distance[j] < distance[least]):
            least = j
    if least >= 0:
        distance[least] = np.inf
    return least


@inner
def _moved(places, at, by):  # type: ignore[no-untyped-def]
    """The place so many places on; -1 where there is none."""
    i = first_from(places, ZERO, len(places), at + 1) - 1 + by
    return places[i] if 0 <= i < len(places) else -1
