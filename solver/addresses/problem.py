"""Buffers to place, and the plain numbers that the searches work on.

A buffer lives in the half-open interval [lower, upper) and takes [offset, offset + size) of one address space::

    address ▲      ┌────────┐             aliases      one storage: alive from the first to the last of them
            │ ┌────┴──┐  c  │             pinned       the offset is given
            │ │   a   │─────┤             apart        labels: who shares one never shares an address
            └─┴───────┴─────┴──▶ time     pool         an address space of its own

Times only matter in their order: `Packing` numbers the columns between consecutive times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

MOST = 2**53
"""The largest size, time, alignment or offset: as in the documents."""


class AddressError(ValueError):
    """Buffers that cannot be placed as they are described; `field` (a column) and `place` (a row) say where."""

    def __init__(self, field: str, place: str, problem: str, remedy: str) -> None:
        self.field, self.place, self.problem, self.remedy = field, place, problem, remedy
        super().__init__(f"column {field}, {place}: {problem} ({remedy})")


@dataclass(frozen=True, slots=True)
class Buffer:
    """`size` bytes alive in [lower, upper) (any unit of time), at a multiple of `alignment`.

    `pinned`: the offset that it must have. `alias`: buffers of one label are one storage ("" is none). `apart`:
    labels; two buffers with one in common share no address, whenever they live. `pool`: its address space.
    """

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1
    pinned: int | None = None
    alias: str = ""
    apart: tuple[str, ...] = ()
    pool: str = ""


def check(buffers: Sequence[Buffer], places: Sequence[str] | None = None) -> None:
    """Raises `AddressError` for the first buffer that makes no sense; `places` name the buffers in messages."""
    seen: set[str] = set()
    pools: dict[str, Buffer] = {}  # alias -> the first buffer of it
    total = 0
    for i, b in enumerate(buffers):
        place = places[i] if places else f"buffer {b.id!r}"
        first = pools.setdefault(b.alias, b) if b.alias else b
        if first.pool != b.pool:
            problem = f"alias {b.alias!r} is in pool {first.pool!r} too, as buffer {first.id!r}"
            raise AddressError("pool", place, problem, "give one storage one pool, or two labels")
        if b.id in seen:
            raise AddressError("id", place, f"{b.id!r} is there already", "give every buffer its own id")
        seen.add(b.id)
        for name in ("lower", "upper", "size"):
            if not 0 <= getattr(b, name) <= MOST:
                problem = f"{getattr(b, name)} is not between 0 and 2^53"
                raise AddressError(name, place, problem, "shift the times, or give the size in larger units")
        if b.upper <= b.lower:
            problem = f"{b.upper} is not after lower, {b.lower}"
            raise AddressError("upper", place, problem, "intervals are half-open: leave out what never lives")
        if not 1 <= b.alignment <= MOST:
            raise AddressError("alignment", place, f"{b.alignment} is not between 1 and 2^53", "1 is any address")
        if b.pinned is not None and not (0 <= b.pinned <= MOST and b.pinned % b.alignment == 0):
            problem = f"{b.pinned} is not an offset that is a multiple of {b.alignment}"
            raise AddressError("pinned", place, problem, "pin to an aligned offset, or leave it empty")
        total += b.size + b.alignment
    if total > 2**62:
        raise AddressError("size", "all rows", "the sum is more than 2^62 bytes", "give sizes in larger units")


@dataclass(frozen=True)
class Packing:
    """The storages of one pool: arrays of one entry a storage, times as numbers of columns.

    `members`: the buffers of each storage, by position in the caller's list. `grain`: the alignment common to all,
    to which sizes are rounded up, or 0 where alignments differ (then `size` is as given). `slack`: what rounding
    added.
    """

    members: list[list[int]]
    first: Int64s
    end: Int64s
    size: Int64s
    slack: Int64s
    width: Int64s
    alignment: Int64s
    pinned: Int64s
    """-1: not pinned."""
    apart: list[Int64s]
    """The storages of each label."""
    columns: int
    grain: int
    load: Int64s = field(repr=False)
    """Bytes alive in each column."""

    @property
    def plain(self) -> bool:
        """Whether nothing but lifetimes and sizes matters, so that packings can be pushed down."""
        return self.grain > 0 and not len(self.apart) and not (self.pinned >= 0).any()

    def bound(self) -> int:
        """Bytes that no packing can do without."""
        low = 0
        for k_slack, load in zip(self._padding, self.load, strict=True):
            low = max(low, int(load) - int(k_slack))
        for group in self.apart:
            low = max(low, int((self.size[group] - self.slack[group]).sum()))
        there = self.pinned >= 0
        if there.any():
            low = max(low, int((self.pinned + self.size - self.slack)[there].max()))
        return low

    @cached_property
    def _padding(self) -> Int64s:
        """Per column the most that rounding added to one storage: the topmost need not be padded."""
        most = np.zeros(self.columns, np.int64)
        if self.slack.any():
            for i in np.flatnonzero(self.slack):
                np.maximum(most[self.first[i] : self.end[i]], self.slack[i], out=most[self.first[i] : self.end[i]])
        return most

    def peak(self, offsets: Int64s) -> int:
        """Bytes up to the highest end of a storage."""
        return int((offsets + self.size - self.slack).max(initial=0))

    @cached_property
    def components(self) -> list[Int64s]:
        """Storages in groups that no lifetime joins, each by first column."""
        order = np.argsort(self.first, kind="stable")
        reach = np.maximum.accumulate(self.end[order])
        cuts = np.flatnonzero(self.first[order][1:] >= reach[:-1]) + 1
        return [part for part in np.split(order, cuts) if len(part)]

    @cached_property
    def crowd(self) -> Int64s:
        """For each storage the largest load in a column of its life."""
        table, span = [self.load], 1
        while 2 * span <= self.columns:
            table.append(np.maximum(table[-1][:-span], table[-1][span:]))
            span *= 2
        most = np.empty(len(self.size), np.int64)
        level = np.frexp((self.end - self.first).astype(float))[1] - 1
        for i in range(len(table)):
            at = level == i
            most[at] = np.maximum(table[i][self.first[at]], table[i][self.end[at] - (1 << i)])
        return most


def pack(buffers: Sequence[Buffer], chosen: Sequence[int]) -> Packing | None:
    """The storages of the buffers at the positions `chosen`, which are of one pool; None if all are empty.

    What has no bytes is in nobody's way and left out: any offset does.

    Raises `AddressError` where the members of an alias group contradict one another.
    """
    groups: dict[str, list[int]] = {}
    for i in chosen:
        b = buffers[i]
        groups.setdefault(f"alias {b.alias}" if b.alias else f"own {i}", []).append(i)
    merged = [(group, _merged([buffers[i] for i in group])) for group in groups.values()]
    members = [group for group, b in merged if b.size]
    whole = [b for _, b in merged if b.size]
    if not whole:
        return None
    lower, upper = (np.array([getattr(b, at) for b in whole], np.int64) for at in ("lower", "upper"))
    exact = np.array([b.size for b in whole], np.int64)
    times = np.unique(np.concatenate([lower, upper]))
    first, end = np.searchsorted(times, lower), np.searchsorted(times, upper)
    alignments = {b.alignment for b in whole}
    grain = alignments.pop() if len(alignments) == 1 else 0
    size = -(-exact // grain) * grain if grain else exact
    change = np.zeros(len(times), np.int64)
    np.add.at(change, first, size)
    np.add.at(change, end, -size)
    labels: dict[str, list[int]] = {}
    for i, b in enumerate(whole):
        for label in b.apart:
            labels.setdefault(label, []).append(i)
    return Packing(
        members=members,
        first=first.astype(np.int64),
        end=end.astype(np.int64),
        size=size,
        slack=size - exact,
        width=upper - lower,
        alignment=np.array([b.alignment for b in whole], np.int64),
        pinned=np.array([-1 if b.pinned is None else b.pinned for b in whole], np.int64),
        apart=[np.array(group, np.int64) for group in labels.values() if len(group) > 1],
        columns=len(times) - 1,
        grain=grain,
        load=np.cumsum(change)[:-1],
    )


def _merged(group: list[Buffer]) -> Buffer:
    """One storage for an alias group: alive from its first use to its last, as large as its largest."""
    pins = {b.pinned for b in group if b.pinned is not None}
    if len(pins) > 1:
        place = f"buffer {group[-1].id!r}"
        raise AddressError("pinned", place, f"its aliases are pinned to {sorted(pins)}", "pin one of them")
    pinned = pins.pop() if pins else None
    alignment = int(np.lcm.reduce([b.alignment for b in group]))
    if not 1 <= alignment <= MOST or (pinned is not None and pinned % alignment):
        place = f"buffer {group[-1].id!r}"
        raise AddressError("alignment", place, "its aliases' alignments and pin contradict", "give one for all")
    return replace(
        group[0],
        lower=min(b.lower for b in group),
        upper=max(b.upper for b in group),
        size=max(b.size for b in group),
        alignment=alignment,
        pinned=pinned,
        apart=tuple(sorted({label for b in group for label in b.apart})),
    )
