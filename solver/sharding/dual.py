"""Prices and bound: a Lagrangian dual of memory and message passing together.

For prices lambda >= 0 a byte in each column and any messages, with theta' the costs after both (see `sweep`),

    bound(lambda, messages) = sum_i min theta'_i + sum_ij min theta'_ij - sum_c lambda_c * room_c

is at most the cost of any feasible solution x: the messages cancel, so the first two sums are at most
cost(x) + sum_c lambda_c * use_c(x), and use_c(x) <= room_c. The bound is concave in both; message passing climbs along
the messages, a subgradient (expected usage less room, averaged over rounds) along the prices, with Polyak's step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from solver.sharding import sweep
from solver.sharding.core import Core, Floats
from solver.sharding.problem import Int64s

WARMTH = 0.1
"""Strategies within this share of the gap a node count as chosen in part."""

MEMORY = 0.8
"""The weight of past subgradients."""

PATIENCE, SHORTER, SHORTEST = 20, 0.8, 1e-3
"""Rounds without progress after which the step is shortened, by what, and to what at least."""

PROGRESS = 1e-5
FAR = 0.2
"""A step aims no further than this share above the bound, whatever the best cost known."""

CHILD_STEP = 0.2
"""The first step where only a few strategies went: most of the way is gone already."""

MOST_WHOLE = 2**61
"""What the messages to one node and its cost stay below together: 64 bits hold the sum."""

MOST_FINE = 16
"""Messages are rounded to multiples of 2^-16 for it, where 64 bits allow."""


class Dual:
    """`lam` and `messages` are those of the best bound so far, `value` (a float; `exact` proves it)."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.lam, self.messages = np.zeros(core.columns), np.zeros(core.messages)
        self.value = -np.inf
        self._lam, self._messages = self.lam.copy(), self.messages.copy()
        self._priced = np.empty(len(core.cost))
        self._level = np.empty(core.columns)
        self._direction = np.zeros(core.columns)
        self.step, self._stale, self._mark = 1.0, 0, -np.inf
        self.rounds = 0

    def child(self, excluded: NDArray[np.bool_]) -> Dual:
        """The dual where these strategies may not be taken, begun from the best prices and messages here."""
        cost = self.core.cost.copy()
        cost[excluded] = self.core.cap
        child = Dual(replace(self.core, cost=cost))
        child._lam[:], child._messages[:] = self.lam, self.messages
        child.step = CHILD_STEP
        return child

    def rest(self) -> None:
        """No more rounds are to come: what they work on is let go."""
        self._lam, self._messages = self.lam, self.messages
        self._level = self._direction = np.zeros(0)

    def excess(self) -> Floats:
        """By how much each strategy's share of the bound is above its node's least, at the best prices and messages."""
        c = self.core
        self._price(self.lam)
        total = self._priced.copy()
        widths = np.diff(c.first)
        for i in range(c.nodes):
            f, k = int(c.first[i]), int(widths[i])
            into = self.messages[c.message[c.at[i]] : c.message[c.at[i + 1]]].reshape(-1, k).sum(axis=0)
            total[f : f + k] += into
            total[f : f + k] -= total[f : f + k].min()
        return total

    def rent(self) -> Floats:
        """What each strategy pays for its usage at the best prices."""
        self._price(self.lam)
        rent: Floats = self._priced - self.core.cost
        return rent

    def round(self, upper: float) -> None:
        """One sweep forth and back, and a step of the prices towards `upper`, the best cost known (or inf)."""
        c = self.core
        self._price(self._lam)
        args = (c.first, self._priced, c.at, c.to, c.back, c.matrix, c.message, c.table, self._messages)
        sweep.sweep(*args, True)
        value = float(sweep.sweep(*args, False)) - float(self._lam @ c.room)
        self.rounds += 1
        if value > self.value:
            self.value = value
            self.lam[:], self.messages[:] = self._lam, self._messages
        if value > self._mark + PROGRESS * abs(self._mark) or self._mark == -np.inf:
            self._mark, self._stale = value, 0
        else:
            self._stale += 1
            if self._stale > PATIENCE:
                self.step, self._stale = max(SHORTEST, self.step * SHORTER), 0
        if not c.columns:
            return
        gap = min(upper - value, FAR * abs(value) + 1.0)
        if gap <= 0:
            return
        warmth = max(1e-9, WARMTH * gap / c.nodes)
        sweep.soft_usage(
            c.first, self._priced, c.piece_at, c.lo, c.hi, c.usage_at, c.usage, c.at, c.message, self._messages,
            warmth, self._level,
        )  # fmt: skip
        self._direction *= MEMORY
        self._direction += (1 - MEMORY) * (self._level - c.room)
        # Columns that stay at price 0 do not count for the length of the step.
        moving = (self._lam > 0) | (self._direction > 0)
        length = float(self._direction[moving] @ self._direction[moving])
        if length > 0:
            self._lam[moving] += self.step * gap / length * self._direction[moving]
            np.maximum(self._lam, 0.0, out=self._lam)

    def _price(self, lam: Floats) -> None:
        c = self.core
        sweep.price_nodes(c.first, c.cost, c.piece_at, c.lo, c.hi, c.usage_at, c.usage, lam, self._priced)

    def decoded(self) -> Int64s:
        """A solution that the best messages suggest; it need not fit."""
        c = self.core
        self._price(self.lam)
        x = np.zeros(c.nodes, np.int64)
        sweep.decode(c.first, self._priced, c.at, c.to, c.matrix, c.message, c.table, self.messages, x)
        return x

    def exact(self) -> int:
        """The best bound in whole numbers, proven: nothing is rounded in its favour.

        Messages and prices are rounded to binary fractions (any of them will do), the price of a strategy's usage down,
        that of the room, a Python integer, up.
        """
        c = self.core
        if not c.nodes:
            return c.fixed_cost
        most = MOST_WHOLE // (2 + int(np.diff(c.at).max(initial=0)))
        # Rounding costs up to 1 a message: where costs are small, in units that are smaller still.
        fine = max(0, min(MOST_FINE, most.bit_length() - int(c.cap).bit_length() - 2))
        unit = 1 << fine
        sums, shift = self._fractions(fine)
        if shift < 0:
            return c.fixed_cost  # prices beyond what 64 bits hold: costs are not negative, and that is all
        rent = np.zeros(len(c.cost), np.int64)
        sweep.rents(c.first, c.piece_at, c.lo, c.hi, c.usage_at, c.usage, sums, rent)
        node = np.minimum(most, np.rint(c.cost).astype(np.int64) * unit + (rent >> shift))
        each = np.diff(sums)
        room = sum(int(each[i]) * int(c.room[i]) for i in np.flatnonzero(each))
        whole = np.clip(np.rint(self.messages * unit), -most, most).astype(np.int64)
        high, low = sweep.settle(c.first, node, c.at, c.to, c.back, c.matrix, c.message, c.table, unit, whole, most)
        total = (int(high) << 32) + int(low)
        # Costs are whole: so is the least of them above the bound.
        return c.fixed_cost - ((-(total + (-room >> shift))) // unit)

    def _fractions(self, fine: int) -> tuple[Int64s, int]:
        """(prefix sums of the prices in whole numbers, shift): in units of 2^-(shift + fine), any rent below 2^60.

        A negative shift: they are too large for that.
        """
        c = self.core
        self._price(self.lam)
        top = max(float((self._priced - c.cost).max(initial=0.0)), float(self.lam.sum()))
        shift = min(62, MOST_WHOLE.bit_length() - 3 - fine - int(np.frexp(top)[1])) if top > 0 else 0
        if shift < 0:
            return np.zeros(0, np.int64), shift
        each = np.floor(np.ldexp(self.lam, shift + fine)).astype(np.int64)
        return np.concatenate([[0], np.cumsum(each)]).astype(np.int64), shift
