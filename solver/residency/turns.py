"""What a storage can do in one gap in several turns: dropped and made again first, then in one tier after another.

::

    rows      first ........................................... end
    dropped   |------|
    in tier 0            |---------|
    in tier 1                            |-------------------|

A bound has to grant this to every plan; columns leave it out. Savings are as in `journeys`: bytes times prices of HBM
at the rows off it, less link time at the cheapest price in the slots where a copy may lie.

*No plan gains more.* The turns of a plan in a gap are moves by some tier and drops. One that ends with a drop is no
better than dropped throughout, for the last making again is paid in both; so of any turns a first drop and then moves
remain. Each pays for its copy out, unless a copy is at hand (`copied`: then none is charged, in whichever tier), in
slots from where the content is final to its first row off, and for its copy back in slots from its last row off to the
end. Two moves by one tier whose copy stays there meanwhile take its room throughout, and gain no more than one. That
copies of one storage come one after another is left out, which only adds to the saving.
"""

from __future__ import annotations

import numpy as np

from solver.residency.compiled import inner


@inner
def in_turns(  # type: ignore[no-untyped-def]
    kind, size, first, end, written, due, out_ns, in_ns, held, out_prices, in_prices, ending, dropped, copied
):
    """The best saving with at least one move; -infinity: none.

    `held` (tier, row): prices summed over the rows before; `ending[k - first]`, where `dropped`: the saving of being
    dropped until row k. `kind` 3: it starts outside; 4: it has to end outside, at the last row `end`.
    """
    tiers, slots = len(out_ns), in_prices.shape[1]
    outside = kind == 3
    stays = 0.0 if not outside else -np.inf  # in HBM at row k, not moved yet
    moved = -np.inf  # the same, moved before
    left = np.empty(tiers)  # off HBM by tier: the saving so far, less that of the rows before
    paid = np.empty(tiers)
    back = np.empty((tiers, end - first + 1))
    left[:], paid[:], back[:] = -np.inf, np.inf, np.inf
    for t in range(tiers):
        if in_ns[t] < 0:
            continue
        least = np.inf
        for k in range(min(due, slots - 1), first - 1, -1):
            least = min(least, in_prices[t, k])
            if k <= end:
                back[t, k - first] = in_ns[t] * least
        if due >= slots:  # it need not come back
            back[t, :] = 0.0
        for j in range(written, first):
            paid[t] = min(paid[t], out_prices[t, j])
        if outside:
            left[t] = -size * held[t, first]
    ended = -np.inf
    for k in range(first, end + 1):
        if dropped and k > first:
            stays = max(stays, ending[k - first])
        for t in range(tiers):
            if in_ns[t] >= 0:
                moved = max(moved, left[t] + size * held[t, k] - back[t, k - first])
        for t in range(tiers):
            if in_ns[t] < 0 or (out_ns[t] < 0 and not copied):
                continue
            paid[t] = min(paid[t], out_prices[t, k])
            cost = 0.0 if copied else out_ns[t] * paid[t]
            left[t] = max(left[t], max(stays, moved) - size * held[t, k] - cost)
            ended = max(ended, left[t] + size * held[t, end])
    return ended if kind == 4 else moved
