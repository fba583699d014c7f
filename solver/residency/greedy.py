"""Our own greedy: time-aware, for any size; the start of the search and what is left when time is short.

While some operator's load is over the budget, take the option that costs least per byte of overload it removes,
counted over all overloaded operators that it covers. Costs are `selection`'s: stall that the gap cannot hide,
priced link time, recompute time.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from solver.residency.selection import Choice, Selection


def greedy(choice: Choice, costs: npt.NDArray[np.int64], *, hbm_bytes: int) -> Selection | None:
    """Options that bring every operator's load within `hbm_bytes`; None where these rules do not get there."""
    problem, hbm = choice.problem, choice.hbm
    if not choice.count:
        return None
    cost = costs.astype(np.float64) + 1.0
    open_ = np.ones(choice.count, dtype=bool)
    taken = np.zeros(choice.count, dtype=bool)
    rivals: dict[int, list[int]] = defaultdict(list)
    for i, j in choice.conflicts:
        rivals[i].append(j)
        rivals[j].append(i)
    load = problem.load.copy()
    first, end = np.minimum(hbm.first, problem.n), np.minimum(hbm.end, problem.n)
    while True:
        over = np.maximum(load - hbm_bytes, 0)
        worst = int(np.argmax(over)) if over.size else 0
        if not over.size or not over[worst]:
            return choice.selection(taken)
        covers = np.zeros(choice.count, dtype=bool)
        covers[hbm.option[(first <= worst) & (worst < end) & (hbm.delta < 0)]] = True
        able = covers & open_ & ~taken
        if not able.any():
            return None
        crowded = np.concatenate([[0], np.cumsum(over > 0)])
        gain = np.zeros(choice.count)
        np.add.at(gain, hbm.option, -hbm.delta * (crowded[end] - crowded[first]).astype(np.float64))
        score = np.where(able & (gain > 0), cost / np.maximum(gain, 1.0), np.inf)
        best = int(np.argmin(score))
        if not np.isfinite(score[best]):
            return None
        open_[best] = False
        if not _fits(choice, taken, best):
            continue
        taken[best] = True
        open_[rivals[best]] = False
        for piece in np.flatnonzero(hbm.option == best):
            load[first[piece] : end[piece]] += hbm.delta[piece]


def everything(choice: Choice) -> Selection:
    """As much as can be away at once: options by bytes and length of their span, moves first."""
    hbm = choice.hbm
    length = np.minimum(hbm.end, choice.problem.n) - np.minimum(hbm.first, choice.problem.n)
    gain = np.zeros(choice.count)
    np.add.at(gain, hbm.option, (-hbm.delta * length).astype(np.float64))
    rivals: dict[int, list[int]] = defaultdict(list)
    for i, j in choice.conflicts:
        rivals[i].append(j)
        rivals[j].append(i)
    taken = np.zeros(choice.count, dtype=bool)
    order = sorted(range(choice.count), key=lambda i: (i >= len(choice.moves), -gain[i], i))
    for i in order:
        if gain[i] > 0 and not any(taken[j] for j in rivals[i]) and _fits(choice, taken, i):
            taken[i] = True
    return choice.selection(taken)


def _fits(choice: Choice, taken: npt.NDArray[np.bool_], option: int) -> bool:
    """Whether the tier of a move has room for it beside those taken."""
    if option >= len(choice.moves):
        return True
    tier = choice.moves[option].tier
    budget = choice.problem.tier_bytes[tier]
    own = choice.tiers[tier]
    if int(own.delta.sum()) <= budget:
        return True
    trial = taken.copy()
    trial[option] = True
    return bool(own.sum(trial, choice.problem.n).max(initial=0) <= budget)
