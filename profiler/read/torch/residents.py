"""Which storages are there when a step starts: those that are read before anything writes them.

For sources that list accesses, and neither allocations nor frees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hyperopt.profile import Operator


def read_before_written(operators: Iterable[Operator]) -> set[int]:
    """Ids of storages whose first access is a read; reading and writing at once is one."""
    written: set[int] = set()
    found: set[int] = set()
    for operator in operators:
        found.update(id for id in operator.reads if id not in written)
        written.update(operator.writes)
    return found


def in_order(ids: Iterable[int]) -> tuple[int, ...]:
    """Each once, in the order of their first appearance."""
    return tuple(dict.fromkeys(ids))


def busiest_first(streams: Sequence[tuple[str, float]]) -> list[str]:
    """Names of streams by time spent on them, given (name, duration) of what runs there."""
    spent: dict[str, float] = {}
    for name, duration in streams:
        spent[name] = spent.get(name, 0.0) + duration
    return sorted(spent, key=lambda name: (-spent[name], name))
