"""Powers with which dimensions grow: which are the same, which are known, and which add up.

::

    rows [4096] = [32, 128] of a view:      power(4096) = power(32) + power(128)
"""

from __future__ import annotations

from dataclasses import dataclass

HIGHEST = 2
"""Power: two sequence dimensions in one, at most."""


class Clash(Exception):
    """Two powers for one dimension."""


class Powers:
    """Dimensions that grow alike, as a forest (union and find), with the power where it is known."""

    def __init__(self) -> None:
        self.up: list[int] = []
        self.power: list[int | None] = []

    def new(self, power: int | None) -> int:
        self.up.append(len(self.up))
        self.power.append(power)
        return len(self.up) - 1

    def root(self, a: int) -> int:
        while self.up[a] != a:
            self.up[a] = self.up[self.up[a]]
            a = self.up[a]
        return a

    def of(self, a: int) -> int | None:
        return self.power[self.root(a)]

    def fix(self, a: int, power: int) -> bool:
        """Whether that was news. Raises `Clash`."""
        root = self.root(a)
        if self.power[root] is None and 0 <= power <= HIGHEST:
            self.power[root] = power
            return True
        if self.power[root] != power:
            raise Clash
        return False

    def join(self, a: int, b: int) -> bool:
        """Whether that was news. Raises `Clash`."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return False
        known = self.power[a] if self.power[a] is not None else self.power[b]
        if None not in (self.power[a], self.power[b]) and self.power[a] != self.power[b]:
            raise Clash
        self.up[b] = a
        self.power[a] = known
        return True


@dataclass
class Balance:
    """The powers of `left` add up to those of `right` and `plus`; `at`: the operator that says so."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    plus: int
    at: int
