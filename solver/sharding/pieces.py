"""Usage over time of nodes that stand for many: pieces put together, levelled and moved to a smaller axis."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from solver.sharding.core import Floats, Pieces
from solver.sharding.problem import Int64s


def join(parts: list[Pieces]) -> Pieces:
    """The sum of several usages over time, as pieces that do not overlap."""
    if len(parts) == 1 and len(parts[0].lo) <= 1:
        return parts[0]
    lo, hi = np.concatenate([p.lo for p in parts]), np.concatenate([p.hi for p in parts])
    usage = np.concatenate([p.usage for p in parts])
    breaks = np.unique(np.concatenate([lo, hi]))
    if not len(breaks):
        return Pieces(lo, hi, usage)
    change = np.zeros((len(breaks), usage.shape[1]))
    np.add.at(change, np.searchsorted(breaks, lo), usage)
    np.add.at(change, np.searchsorted(breaks, hi), -usage)
    return Pieces(breaks[:-1], breaks[1:], np.cumsum(change, axis=0)[:-1])


def level(pieces: Pieces, room: Floats) -> Pieces:
    """The usage above the least of the strategies, in as few pieces as that takes; `room` loses the least, in place."""
    least = pieces.usage.min(axis=1, initial=np.inf) if len(pieces.lo) else np.zeros(0)
    for p in np.flatnonzero(least):
        room[pieces.lo[p] : pieces.hi[p]] -= least[p]
    usage = pieces.usage - least[:, None]
    some = usage.any(axis=1)
    lo, hi, usage = pieces.lo[some], pieces.hi[some], usage[some]
    if len(lo) < 2:
        return Pieces(lo, hi, usage)
    opens = np.ones(len(lo), bool)
    opens[1:] = (lo[1:] != hi[:-1]) | (usage[1:] != usage[:-1]).any(axis=1)
    closes = np.append(opens[1:], True)
    return Pieces(lo[opens], hi[closes], usage[opens])


def narrow(uses: dict[int, Pieces], room: Floats) -> tuple[Int64s, dict[int, Pieces]]:
    """(columns that stay, the usages on them).

    A column goes where the largest usages together fit, and where no piece begins or ends between it and a neighbour
    that has no more room.
    """
    columns = len(room)
    breaks = np.zeros(columns + 1, bool)
    change = np.zeros(columns + 1)
    for u in uses.values():
        breaks[u.lo] = breaks[u.hi] = True
        most = u.usage.max(axis=1, initial=0.0)
        np.add.at(change, u.lo, most)
        np.add.at(change, u.hi, -most)
    full = np.cumsum(change)[:-1] > room
    group = np.cumsum(breaks[:-1])
    best = np.full(int(group.max(initial=0)) + 1, np.inf)
    np.minimum.at(best, group, room)
    first = np.zeros(columns, bool)
    at = np.flatnonzero(room == best[group])
    first[at[np.unique(group[at], return_index=True)[1]]] = True
    stays = full & first
    place = np.concatenate([[0], np.cumsum(stays)]).astype(np.int64)
    moved = {}
    for i, u in uses.items():
        lo, hi = place[u.lo], place[u.hi]
        some = lo < hi
        moved[i] = u if some.all() else Pieces(u.lo[some], u.hi[some], u.usage[some])
        moved[i] = Pieces(lo[some], hi[some], moved[i].usage)
    return np.flatnonzero(stays), moved


def window_least(room: Floats, windows: Iterable[tuple[Int64s, Int64s]]) -> list[Floats]:
    """For each (lo, hi): the least of room[lo_p : hi_p], all of them non-empty."""
    table, span = [room], 1
    while 2 * span <= len(room):
        table.append(np.minimum(table[-1][:-span], table[-1][span:]))
        span *= 2
    found = []
    for lo, hi in windows:
        least = np.empty(len(lo))
        for p, size in enumerate((hi - lo).tolist()):
            row = size.bit_length() - 1
            least[p] = min(table[row][lo[p]], table[row][hi[p] - (1 << row)])
        found.append(least)
    return found
