"""Room in tiers that cannot hold a copy of everything alive, in listed order."""

from __future__ import annotations

import numpy as np

from solver.residency.compiled import entry
from solver.residency.draft import STAYS, Draft, Table

ONE = np.int64(1)
"""No literal: see `compiled`."""


class Rooms:
    """What a draft has in its tiers, while moves are added to it."""

    def __init__(self, table: Table, draft: Draft) -> None:
        self.table, self.draft = table, draft
        self.used = tier_load(
            table.problem.n, len(table.roomy), table.bytes, table.given_up, table.leave, table.wraps, table.version,
            table.first_gap, table.roomy.astype(np.int64), draft.tier,
        )  # fmt: skip

    def take(self, g: int, tier: int) -> bool:
        """Moves gap g to a tier, if there is room for it."""
        table, draft = self.table, self.draft
        if table.roomy[tier]:
            draft.tier[g] = tier
            return True
        self._count(g, tier, -1)
        draft.tier[g] = tier
        self._count(g, tier, 1)
        if self.used[tier].max() <= table.room[tier]:
            return True
        self._count(g, tier, -1)
        draft.tier[g] = STAYS
        self._count(g, tier, 1)
        return False

    def _count(self, g: int, tier: int, sign: int) -> None:
        table = self.table
        occupy(
            self.used[tier], table.problem.n, sign, int(table.storage[g]), tier, table.bytes, table.given_up,
            table.leave, table.wraps, table.version, table.first_gap, self.draft.tier,
        )  # fmt: skip


@entry
def tier_load(n, tiers, size, given_up, leave, wraps, version, first_gap, roomy, tier):  # type: ignore[no-untyped-def]
    """Bytes in each tier that is not roomy at each operator: a copy stays from its version's first release until it
    is given up after the last return."""
    used = np.zeros((tiers, n + 1), np.int64)
    for s in range(len(first_gap) - 1):
        leaves = False
        for g in range(first_gap[s], first_gap[s + 1]):
            leaves = leaves or tier[g] >= 0
        for t in range(tiers):
            if leaves and not roomy[t]:
                occupy(used[t], n, ONE, s, t, size, given_up, leave, wraps, version, first_gap, tier)
    return used


@entry
def occupy(used, n, sign, s, t, size, given_up, leave, wraps, version, first_gap, tier):  # type: ignore[no-untyped-def]
    """Adds (or, with sign -1, takes off) what storage s has in tier t."""
    wrap = -1
    for g in range(first_gap[s], first_gap[s + 1]):
        if wraps[g] and tier[g] == t:
            wrap = g
    low, high, content = n + 1, -1, -1
    if wrap >= 0:
        low, high = 0, min(given_up[wrap], n)
    amount = 0
    for g in range(first_gap[s], first_gap[s + 1] + 1):
        last = g == first_gap[s + 1]
        if not last and (tier[g] != t or wraps[g]):
            continue
        if last and wrap >= 0 and version[wrap] == content:
            low, high = min(low, leave[wrap]), n
        if last or version[g] != content:
            for k in range(low, min(high, n) + 1):
                used[k] += sign * amount if amount else sign * size[wrap]
            if last:
                break
            low, high, content = n + 1, -1, version[g]
        amount = size[g]
        low, high = min(low, leave[g]), max(high, given_up[g])
    if wrap >= 0 and version[wrap] != content:
        for k in range(min(leave[wrap], n), n + 1):
            used[k] += sign * size[wrap]
