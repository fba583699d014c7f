"""What is left of a problem after presolve, laid out for compiled loops.

Every edge is stored twice, once from either side, so that both directions run along rows::

    neighbours of node i      entries a in at[i]:at[i + 1] of `to`; the edge's other entry is `back[a]`
    costs of entry a          table[matrix[a] + x * k_to + y], x a strategy of i, y one of to[a]
    a message to i along a    k_i numbers at message[a] of an array of `messages` numbers

Costs are floats that hold whole numbers up to 2^53 exactly; what is forbidden costs `cap`, which is more than all that
is allowed adds up to, or 2^50. Node i takes `usage` bytes (above its least, which `room` has taken off) in the columns
[lo_i, hi_i) of the time axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.sharding.problem import Int64s

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Core:
    """See above. `room[c]`: bytes that are left in column c. `fixed_cost`: what folded nodes cost in any case."""

    first: Int64s
    cost: Floats
    usage: Floats
    lo: Int64s
    hi: Int64s
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
        return len(self.lo)

    @property
    def columns(self) -> int:
        return len(self.room)

    @property
    def messages(self) -> int:
        return int(self.message[-1])


def make_core(
    costs: list[Floats],
    usages: list[Floats],
    lo: Int64s,
    hi: Int64s,
    room: Floats,
    pairs: dict[tuple[int, int], Floats],
    cap: float,
    fixed_cost: int,
) -> Core:
    """The layout from one array a node and one matrix a pair (a, b), a < b."""
    n = len(costs)
    k = np.array([len(c) for c in costs], np.int64)
    first = np.concatenate([[0], np.cumsum(k)]).astype(np.int64)
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
    sizes = k[owner] * k[other]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    pieces = [np.ascontiguousarray(m).ravel() for m in pairs.values()]
    pieces += [np.ascontiguousarray(m.T).ravel() for m in pairs.values()]
    return Core(
        first=first,
        cost=np.concatenate(costs) if costs else np.zeros(0),
        usage=np.concatenate(usages) if usages else np.zeros(0),
        lo=lo,
        hi=hi,
        room=room,
        at=at,
        to=to,
        back=back,
        matrix=starts[:-1][order],
        message=np.concatenate([[0], np.cumsum(k[owner[order]])]).astype(np.int64),
        table=np.concatenate(pieces) if pieces else np.zeros(0),
        cap=cap,
        fixed_cost=fixed_cost,
    )
