"""From a guide, which mixes journeys by shares, to a draft, in which every storage does one thing."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np

from solver.residency.columns import Guide
from solver.residency.draft import DROPPED, HELD, STAYS, Draft, Table
from solver.residency.filling import Costs
from solver.residency.fluid import Fluid
from solver.residency.gaps import DROP, WRAP_HEAD, WRAP_TAIL
from solver.residency.rooms import Rooms


def rounded(table: Table, fluid: Fluid, guide: Guide, costs: Costs, least: float) -> Draft:
    """The draft of what a guide does with a share of at least `least`."""
    draft = table.empty()
    place = {
        (int(s), bool(w), -1 if w else int(a)): g
        for g, (s, w, a) in enumerate(zip(table.storage, table.wraps, table.after, strict=True))
    }
    moves, drops = shares_by_gap(fluid, guide)
    rooms = Rooms(table, draft)
    for (s, wraps, after, t), share in sorted(moves.items(), key=lambda item: -item[1]):
        g = place.get((s, wraps, after))
        tier = table.tier_index[fluid.names[t]]
        if share >= least and g is not None and table.takes[tier, g] and _free_for(table, draft, g):
            rooms.take(g, tier)
    _take_reruns(table, draft, {key for key, share in drops.items() if share >= least})
    _move_kept(table, draft, costs, rooms)
    return draft


def _move_kept(table: Table, draft: Draft, costs: Costs, rooms: Rooms) -> None:
    """What chosen reruns keep past its last access leaves meanwhile."""
    if table.kept.any() and draft.chosen.any():
        best = np.argmin(costs.out + costs.back, axis=0)
        kept = np.zeros(table.count, dtype=np.int64)
        draft.tier[table.kept] = best[table.kept]
        table.settle(draft)
        wanted = np.flatnonzero(table.kept & (draft.tier >= 0))
        kept[wanted], draft.tier[wanted] = draft.tier[wanted], STAYS
        for g in wanted.tolist():
            rooms.take(g, int(kept[g]))


def _free_for(table: Table, draft: Draft, g: int) -> bool:
    """Whether the storage's other moves leave this gap to be moved."""
    s = int(table.storage[g])
    for h in range(int(table.first_gap[s]), int(table.first_gap[s + 1])):
        if draft.tier[h] == STAYS:
            continue
        if table.wraps[h] != table.wraps[g]:
            inner = h if table.wraps[g] else g
            if table.after[inner] < 0 or table.before[inner] >= table.problem.n:
                return False
    return True


def _take_reruns(table: Table, draft: Draft, wanted: set[tuple[int, int]]) -> None:
    """The largest reruns of nothing but what is wanted away, and what is dead by then anyway."""
    program = table.problem.program
    clash_at, clash = table.rerun_clashes
    able = []
    for r in range(len(table.reruns)):
        parts = table.parts[table.part_at[r] : table.part_at[r + 1]]
        gone = [(s, leave) for s, leave in parts[parts[:, 4] == DROPPED, 1:3].tolist()]
        useful = [program.size[s] for s, leave in gone if (s, _last_access(table, s, leave)) in wanted]
        if useful and sum(useful) >= 0.9 * sum(program.size[s] for s, _ in gone):
            able.append((-sum(useful), int(table.rerun_ns[r] + table.kept_ns[r]), r))
    shut: set[int] = set()
    for _, _, r in sorted(able):
        at = table.rerun_before[r]
        busy = any(  # as `filling._able`: what it drops or makes anew is moved, or what it reads is away at the time
            draft.tier[h] != STAYS and (what != HELD or (table.wraps[h] and at > table.leave[h]))
            for s, what in table.parts[table.part_at[r] : table.part_at[r + 1], [1, 4]].tolist()
            for h in range(int(table.first_gap[s]), int(table.first_gap[s + 1]))
        )
        if r not in shut and not busy:
            draft.chosen[r] = True
            shut.update(clash[clash_at[r] : clash_at[r + 1]].tolist())


def _last_access(table: Table, s: int, op: int) -> int:
    touched = table.problem.accesses[s]
    return touched[bisect_right(touched, op) - 1]


def shares_by_gap(
    fluid: Fluid, guide: Guide
) -> tuple[dict[tuple[int, bool, int, int], float], dict[tuple[int, int], float]]:
    """The shares of a guide: of moves, by (storage, wraps, operator after which, tier); of drops, by
    (storage, operator after which)."""
    gaps = fluid.gaps
    moves: dict[tuple[int, bool, int, int], float] = {}
    drops: dict[tuple[int, int], float] = {}
    taken: dict[int, float] = {}  # of a unit's members, how many have been given a journey
    for share, options in guide.shares:
        u = int(np.searchsorted(gaps.first_gap, options[0][0], side="right")) - 1
        members = gaps.members[u]
        first = taken.get(u, 0.0)
        taken[u] = last = first + share * len(members)
        for m in range(int(first), min(len(members), math.ceil(last - 1e-9))):
            part = min(last, m + 1) - max(first, m)
            for g, choice, t, _, _, _ in options:
                row = int(members[m]) + g - int(gaps.first_gap[u])
                s, wraps = int(gaps.row_storage[row]), int(gaps.kind[g]) in (WRAP_HEAD, WRAP_TAIL)
                after = -1 if wraps else int(gaps.row_after[row])
                if choice == DROP:
                    drops[s, after] = drops.get((s, after), 0.0) + part
                elif int(gaps.kind[g]) != WRAP_TAIL:  # counted with its head
                    moves[s, wraps, after, t] = moves.get((s, wraps, after, t), 0.0) + part
    return moves, drops
