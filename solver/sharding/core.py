"""What is left of a problem after presolve, laid out for compiled loops.

Every edge is stored twice, once from either side, so that both directions run along rows::

    neighbours of node i      entries a in at[i]:at[i + 1] of `to`; the edge's other entry is `back[a]`
    costs of entry a          table[matrix[a] + x * k_to + y], x a strategy of i, y one of to[a]
    a message to i along a    k_i numbers at message[a] of an array of `messages` numbers

Costs are floats that hold whole numbers up to 2^53 exactly; what is forbidden costs `cap`, which is more than all that
is allowed adds up to, or 2^50.

A node may stand for many, tied together, and so uses memory in pieces of the time axis::

    pieces p in piece_at[i]:piece_at[i + 1]: usage[usage_at[p] + x] bytes in the columns [lo_p, hi_p)

above the least of its strategies in each column, which `room` has taken off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.sharding.problem import Int64s

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pieces:
    """Memory of one node: `usage[p, x]` bytes in the columns [lo_p, hi_p), shape (pieces, strategies)."""

    lo: Int64s
    hi: Int64s
    usage: Floats

    def of(self, strategies: NDArray[Any]) -> Pieces:
        """For these strategies alone, in this order (indices or a mask)."""
        return Pieces(self.lo, self.hi, self.usage[:, strategies])


@dataclass(frozen=True)
class Core:
    """See above. `room[c]`: bytes that are left in column c. `fixed_cost`: what folded nodes cost in any case."""

    first: Int64s
    cost: Floats
    piece_at: Int64s
    lo: Int64s
    hi: Int64s
    usage_at: Int64s
    usage: Floats
    room: Floats
    at: Int64s
    to: Int64s
    back: Int64s
    matrix: Int64s
    message: Int64s
    table: Floats
    cap: float
    fixed_cost: int

    @property
    def nodes(self) -> int:
        return len(self.first) - 1

    @property
    def columns(self) -> int:
        return len(self.room)

    @property
    def messages(self) -> int:
        return int(self.message[-1])


def make_core(
    costs: list[Floats],
    uses: list[Pieces],
    room: Floats,
    pairs: dict[tuple[int, int], Floats],
    cap: float,
    fixed_cost: int,
) -> Core:
    """The layout from one array a node and one matrix a pair (a, b), a < b."""
    n = len(costs)
    k = np.array([len(c) for c in costs], np.int64)
    ends = np.array(list(pairs), np.int64).reshape(-1, 2)
    owner = np.concatenate([ends[:, 0], ends[:, 1]])
    other = np.concatenate([ends[:, 1], ends[:, 0]])
    order = np.lexsort((other, owner))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    half = len(ends)
    back = np.empty(len(order), np.int64)
    back[place[:half]], back[place[half:]] = place[half:], place[:half]
    at = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=n), out=at[1:])
    to = other[order]
    starts = _starts(k[owner] * k[other])
    rows = [np.ascontiguousarray(m).ravel() for m in pairs.values()]
    rows += [np.ascontiguousarray(m.T).ravel() for m in pairs.values()]
    count = np.array([len(u.lo) for u in uses], np.int64)
    return Core(
        first=_starts(k),
        cost=np.concatenate(costs) if costs else np.zeros(0),
        piece_at=_starts(count),
        lo=np.concatenate([u.lo for u in uses]) if uses else np.zeros(0, np.int64),
        hi=np.concatenate([u.hi for u in uses]) if uses else np.zeros(0, np.int64),
        usage_at=_starts(np.repeat(k, count))[:-1],
        usage=np.concatenate([u.usage.ravel() for u in uses]) if uses else np.zeros(0),
        room=room,
        at=at,
        to=to,
        back=back,
        matrix=starts[:-1][order],
        message=_starts(k[owner[order]]),
        table=np.concatenate(rows) if rows else np.zeros(0),
        cap=cap,
        fixed_cost=fixed_cost,
    )


def _starts(sizes: Int64s) -> Int64s:
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts
