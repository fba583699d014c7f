"""When copies can run: the time that is still free on each link, as moves are added one by one."""

from __future__ import annotations

import numpy as np

from solver.residency.problem import Problem

SLOTS = 8192
"""Slots of the step's time line; a copy is placed to a slot."""


class Lane:
    """Free nanoseconds of one link direction per slot. Copies are exclusive: one ends before the next starts."""

    def __init__(self, end_ns: int) -> None:
        self.width = max(1, -(-end_ns // SLOTS))
        self.count = -(-end_ns // self.width) if end_ns else 1
        self.free = np.full(self.count, self.width, dtype=np.int64).tolist()
        self.earlier = list(range(self.count))  # nearest slot at or before with time left; -1: none
        self.later = list(range(self.count + 1))

    def latest_start(self, deadline: int, duration: int) -> tuple[int, list[tuple[int, int]]]:
        """When a copy of `duration` has to start to end by `deadline`, and the slots that it takes.

        Negative where it does not end by then even if it starts with the step.
        """
        slot, left, taken = min(deadline // self.width, self.count) - 1, duration, list[tuple[int, int]]()
        while left > 0:
            slot = self._find(self.earlier, slot)
            if slot < 0:
                return -left, taken
            part = min(left, self.free[slot])
            taken.append((slot, part))
            left -= part
            slot -= 1
        if not taken:
            return deadline, taken
        slot, part = taken[-1]
        return (slot + 1) * self.width - part, taken

    def earliest_end(self, release: int, duration: int) -> tuple[int, list[tuple[int, int]]]:
        """When a copy that may start at `release` ends, and the slots that it takes."""
        slot, left, taken = min(release // self.width, self.count), duration, list[tuple[int, int]]()
        while left > 0:
            slot = self._find(self.later, slot)
            if slot >= self.count:
                return self.count * self.width + left, taken
            part = min(left, self.free[slot])
            taken.append((slot, part))
            left -= part
            slot += 1
        if not taken:
            return release, taken
        slot, part = taken[-1]
        return max(slot * self.width + part, release + duration), taken

    def take(self, taken: list[tuple[int, int]]) -> None:
        for slot, part in taken:
            self.free[slot] -= part
            if self.free[slot] <= 0:
                self.earlier[slot] = slot - 1
                self.later[slot] = slot + 1

    @staticmethod
    def _find(parent: list[int], slot: int) -> int:
        if slot < 0:
            return slot
        root = slot
        while root >= 0 and parent[root] != root:
            root = parent[root]
        while slot != root and slot >= 0:
            parent[slot], slot = root, parent[slot]
        return root


class Lanes:
    """Both directions of every tier."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        end = problem.unlimited.step_ns
        self.out: dict[str, Lane] = {name: Lane(end) for name in problem.tiers}
        self.back = {name: Lane(end) if problem.tiers[name].duplex else self.out[name] for name in problem.tiers}
        self._copy_ns: dict[tuple[str, int, bool], int] = {}

    def copy_ns(self, tier: str, size: int, *, out: bool) -> int:
        key = (tier, size, out)
        if key not in self._copy_ns:
            self._copy_ns[key] = self.problem.tiers[tier].copy_ns(size, out=out)
        return self._copy_ns[key]
