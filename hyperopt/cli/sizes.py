"""Bytes as people read them: several in one line or table in one unit, small ones never as nothing."""

from __future__ import annotations

from collections.abc import Iterable

UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))
LARGE_UNITS = ((1 << 30, "GiB"), *UNITS)


class Unit:
    """The unit in which `amounts` (bytes) are told together: the largest that one of them fills, else bytes."""

    def __init__(self, amounts: Iterable[int], units: Iterable[tuple[int, str]] = UNITS) -> None:
        most = max(amounts, default=0)
        self.bytes, self.name = next(((size, name) for size, name in units if most >= size), (1, "bytes"))

    def of(self, amount: int, digits: int = 2) -> str:
        """An amount in bytes as a number in this unit."""
        return f"{amount / self.bytes:.{digits if self.bytes > 1 else 0}f}"


def told(*amounts: int) -> str:
    """The amounts with their unit: `0.50 -> 0.25 MiB`."""
    unit = Unit(amounts)
    return f"{' -> '.join(map(unit.of, amounts))} {unit.name}"
