"""Offsets for buffers: quick orders first, then search until the bound, the capacity or the time limit is reached.

::

    orders (skyline) ──▶ best so far ──▶ restarts: depth first under a height, or shaken orders ──▶ peak, bound
                          never worse         small: also a proof that nothing is lower

Each pool is a problem of its own. Every answer has gone through `overlap.violations` before it is handed out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.addresses.exact import BOLD, CAREFUL, FOUND, MOST_ITEMS, NONE, STEADY, Searcher
from solver.addresses.fit import first_fit
from solver.addresses.overlap import violations
from solver.addresses.problem import AddressError, Buffer, Int64s, Packing, check, pack
from solver.addresses.skyline import Skyline

ORDERS = ("TWA", "TAW", "WAT", "CTZ", "ZW", "AT", "TZ", "ZTW")
"""What ranks a storage, largest first: T load of its most crowded column, W lifetime, A area, C columns, Z size."""

FIT_ORDERS = ("ZW", "TZ", "WZ")
"""The same, for first fit."""

NODES = 10_000
"""Of one restart of the exact search, after a first round of a third of it."""

THREADS = 2
"""Searches at a time; compiled code runs without the interpreter's lock."""

PROVABLE = 64
"""Storages up to which a steady search may settle what is least; beyond, it hardly ever ends."""


@dataclass(frozen=True)
class Allocation:
    """Offsets (bytes) by buffer id; `peak_bytes` and `lower_bound_bytes` are sums over the pools.

    `proven`: the peak is the least possible. `fits`: every pool is within the capacity; if not, `impossible` says
    that no offsets are (proven), otherwise they were not found. `pools`: (peak, lower bound) of each.
    """

    offsets: dict[str, int]
    peak_bytes: int
    lower_bound_bytes: int
    proven: bool
    fits: bool
    impossible: bool
    seconds: float
    pools: dict[str, tuple[int, int]]

    @property
    def gap(self) -> float:
        """(peak - bound) / bound; 0 for nothing."""
        return (self.peak_bytes - self.lower_bound_bytes) / max(1, self.lower_bound_bytes)


def allocate(
    buffers: Sequence[Buffer], capacity: int | None = None, time_limit_s: float = 10.0, seed: int = 0
) -> Allocation:
    """The lowest offsets found, with a proven bound on the peak.

    With a `capacity` (bytes, of each pool) the search ends as soon as that is met, else at the bound; at the latest
    about `time_limit_s` seconds after the call, though never without a first answer. The time limit makes answers
    depend on the machine; `seed` steers the order of trials. Raises `AddressError` for buffers that make no sense,
    or pins that clash.
    """
    began = time.monotonic()
    check(buffers)
    pools: dict[str, list[int]] = {}
    for i, b in enumerate(buffers):
        pools.setdefault(b.pool, []).append(i)
    offsets = {b.id: b.pinned or 0 for b in buffers}
    told: dict[str, tuple[int, int]] = {}
    for done, (name, chosen) in enumerate(pools.items()):
        left = began + time_limit_s - time.monotonic()
        packing = pack(buffers, chosen)
        if packing is None:
            told[name] = 0, 0
            continue
        hunt = _Hunt(packing, capacity, time.monotonic() + left / (len(pools) - done), seed)
        hunt.run()
        told[name] = packing.peak(hunt.best), hunt.bound
        for group, offset in zip(packing.members, hunt.best.tolist(), strict=True):
            offsets.update((buffers[i].id, offset) for i in group)
    for fault in violations(buffers, offsets):
        # The searches move what they may: what is wrong now was wrong in the pins.
        if any(b.pinned is not None for b in buffers):
            raise AddressError("pinned", "the pinned buffers", fault, "let go of a pin, or set them apart")
        raise AssertionError(f"a fault of ours: {fault}")
    peak, bound = (sum(pair[at] for pair in told.values()) for at in (0, 1))
    return Allocation(
        offsets=offsets,
        peak_bytes=peak,
        lower_bound_bytes=bound,
        proven=peak == bound,
        fits=capacity is None or all(top <= capacity for top, _ in told.values()),
        impossible=capacity is not None and any(low > capacity for _, low in told.values()),
        seconds=time.monotonic() - began,
        pools=told,
    )


class _Hunt:
    """The search in one pool: `best` offsets so far and `bound` on the peak."""

    def __init__(self, packing: Packing, capacity: int | None, deadline: float, seed: int) -> None:
        self.packing = packing
        self.capacity = capacity
        self.deadline = deadline
        self.dice = np.random.default_rng(seed)
        self.bound = packing.bound()
        self.best = np.zeros(0, np.int64)
        self.peak = -1
        self.by_fit = ""
        self.keys = {
            "T": np.log(packing.crowd + 1.0),
            "W": np.log(packing.width.astype(float)),
            "A": np.log(packing.width * (packing.size + 1.0)),
            "C": np.log((packing.end - packing.first).astype(float)),
            "Z": np.log(packing.size + 1.0),
        }

    def run(self) -> None:
        place = Skyline(self.packing).place if self.packing.plain else lambda rank: first_fit(self.packing, rank)
        small = self.packing.plain and len(self.packing.size) <= MOST_ITEMS
        if small and self.capacity is not None and self.bound <= self.capacity:
            self._restart(2 * len(ORDERS))  # often enough, and then the skyline need not even be compiled
            if self.peak >= 0 and self._done():
                return
        for order in ORDERS:
            self._keep(place(self._rank(order, 0.0)))
            if self._done():
                return
        if small:
            if len(self.packing.size) <= PROVABLE:
                self._settle(Searcher(self.packing))
            self._restart()
            return
        places = [place]
        if self.packing.plain:  # the skyline loses where one stretch after another has to be raised
            places.append(lambda rank: first_fit(self.packing, rank))
            for order in FIT_ORDERS:
                if self._keep(places[1](self._rank(order, 0.0))):
                    self.by_fit = order
                if self._done():
                    return
        self._shake(places)

    def _keep(self, offsets: Int64s) -> bool:
        peak = self.packing.peak(offsets)
        if self.peak < 0 or peak < self.peak:
            self.best, self.peak = offsets, peak
            return True
        return False

    def _done(self) -> bool:
        enough = 0 <= self.peak <= max(self.bound, -1 if self.capacity is None else self.capacity)
        hopeless = self.capacity is not None and self.bound > self.capacity
        return enough or hopeless or time.monotonic() >= self.deadline

    def _rank(self, order: str, noise: float) -> Int64s:
        """Ranks by the keys named in `order`, each shaken by `noise` (in e-folds; crowds a third of it)."""
        n = len(self.packing.size)
        keys = []
        for name in reversed(order):
            key = -self.keys[name]
            if noise:
                key = key + (noise / 3 if name == "T" else noise) * self.dice.standard_normal(n)
            keys.append(key)
        return _ranks(np.lexsort(keys))

    def _restart(self, most: int | None = None) -> None:
        """Short depth-first searches under heights from the bound to just below the best, two at a time; `most` of
        them.

        Both of a pair are waited for, and taken in order: who is faster must not decide.
        """
        searchers = [Searcher(self.packing) for _ in range(THREADS)]
        heights, trial = self._heights(), 0
        with ThreadPoolExecutor(THREADS) as pool:
            while not self._done() and (most is None or trial < most):
                height = next(heights)
                jobs = []
                for searcher in searchers:
                    fresh = trial < 2 * len(ORDERS)
                    order = ORDERS[trial // 2 % len(ORDERS)]
                    jumps = (BOLD, CAREFUL)[trial % 2] if fresh or trial % 8 == 1 else BOLD
                    rank = self._rank(order, 0.0 if fresh else 0.4 * self.dice.random())
                    nodes = NODES // 3 if fresh else NODES
                    jobs.append(pool.submit(searcher.search, height, rank, nodes, jumps))
                    trial += 1
                for job in jobs:
                    found, offsets = job.result()
                    if found == FOUND:
                        self._keep(offsets)

    def _heights(self) -> Iterator[int]:
        """Heights to try: the capacity; without one the bound, and levels between it and the best."""
        grain = max(1, self.packing.grain)
        turn = 0
        while True:
            if self.capacity is not None:
                yield self.capacity + grain - 1
            else:
                share = (0.0, 0.0, 0.5, 0.0, 0.0, 0.25, 0.0, 0.9)[turn % 8]
                height = self.bound + int((self.peak - self.bound) * share)
                yield min(height, self.peak - 1) + grain - 1
            turn += 1

    def _settle(self, searcher: Searcher) -> None:
        """Halves the span between bound and best as long as the steady search ends."""
        grain = self.packing.grain
        rank = self._rank("TWA", 0.0)
        while not self._done():
            height = self.bound if grain > 1 else (self.bound + self.peak - 1) // 2
            if self.capacity is not None and self.bound <= self.capacity < self.peak:
                height = self.capacity
            # Offsets are multiples of the grain and sizes rounded up to it: the topmost may end past the height.
            found, offsets = searcher.search(height + grain - 1, rank, 20 * NODES, STEADY)
            if found == FOUND and not self._keep(offsets):
                return
            if found == NONE:
                self.bound = height + 1
            elif found != FOUND:
                return

    def _shake(self, places: Sequence[Callable[[Int64s], Int64s]]) -> None:
        """Climbs by shaking the keys of the best order; every other trial shakes an order of the table."""
        n = len(self.packing.size)
        base: NDArray[np.float64] | None = None
        place, level, trial = places[0], -1, 0
        if self.by_fit:
            place, level = places[-1], self.peak
            base = sum(10.0 ** (-3 * i) * self.keys[name] for i, name in enumerate(self.by_fit))
        while not self._done():
            chosen = place
            if base is None or trial % 2:
                order = ORDERS[int(self.dice.integers(len(ORDERS)))]
                key = sum(10.0 ** (-3 * i) * self.keys[name] for i, name in enumerate(order))
                chosen = places[0]  # the quicker one; the other comes back where it holds the best
            else:
                key = base
            key = key + 0.3 * self.dice.random() ** 3 * self.dice.standard_normal(n)
            offsets = chosen(_ranks(np.argsort(-key, kind="stable")))
            peak = self.packing.peak(offsets)
            if level < 0 or peak <= level:
                base, place, level = key, chosen, peak
            self._keep(offsets)
            trial += 1


def _ranks(order: NDArray[np.intp]) -> Int64s:
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank
