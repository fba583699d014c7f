"""A partial plan of the exact search, and when one makes another superfluous.

Why dropping a label is right: what follows two labels with the same places is the same list of instructions, each
instruction's time is a maximum of times in the label (an allocation's is an order statistic of release times), and
both are monotone. So the label without any later time does at least as well whatever follows.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

from hyperopt.replay import Clock

GONE, OWED, COPIED, DEAD = 1, 2, 4, 8
"""Marks of a storage: dropped without a copy; owed an access by a recompute; copied since its last ordinary access
(so not to be recomputed, C17); freed for good."""


class Place(NamedTuple):
    """Where a storage is: in HBM or not, the tier with a valid copy ("" for none), the operator that wrote it."""

    in_hbm: bool
    tier: str
    version: int
    marks: int


class Order(NamedTuple):
    """One entry of the plan: an action at `op`, or (kind "rerun") one execution of operator `again` before it."""

    op: int
    kind: str
    storage: int
    tier: str = ""
    again: int = -1


class Label:
    """A partial plan: places of all storages, HBM taken in listed order, clock, and the orders so far."""

    __slots__ = ("clock", "count", "places", "taken", "trail")

    def __init__(self, places: list[Place], taken: int, clock: Clock) -> None:
        self.places, self.taken, self.clock = places, taken, clock
        self.trail: tuple[object, ...] = ()  # linked from the last order to the first, shared among forks
        self.count = 0

    def order(self, order: Order) -> None:
        self.trail = (self.trail, order)
        self.count += 1

    def orders(self) -> list[Order]:
        found: list[Order] = []
        trail = self.trail
        while trail:
            trail, order = trail  # type: ignore[assignment]
            found.append(order)  # type: ignore[arg-type]
        return found[::-1]

    def fork(self) -> Label:
        clock = copy(self.clock)
        for name in ("in_hbm", "ready", "busy", "copied", "coming", "stream_free", "copies", "link_free"):
            setattr(clock, name, getattr(clock, name).copy())
        fork = Label(self.places.copy(), self.taken, clock)
        fork.trail, fork.count = self.trail, self.count
        return fork


def no_later(a: Label, b: Label) -> bool:
    """Whether label `a`, with the same places as `b`, has no later time that still matters."""
    x, y = a.clock, b.clock
    if x.now > y.now or x.step_ns > y.step_ns:
        return False
    if any(max(s, x.now) > max(t, y.now) for s, t in zip(x.stream_free, y.stream_free, strict=True)):
        return False
    for s, place in enumerate(a.places):
        if place.in_hbm and max(x.ready[s], x.now) > max(y.ready[s], y.now):
            return False
        if max(x.busy[s], x.now) > max(y.busy[s], y.now):
            return False
        if place.tier and max(x.copied[s], x.now) > max(y.copied[s], y.now):
            return False
    for queue in x.link_free.keys() | y.link_free.keys():
        if max(x.link_free.get(queue, 0), x.now) > max(y.link_free.get(queue, 0), y.now):
            return False
    # Both fall over time, so it is enough to compare where `b` falls.
    moments = {y.now, *(when for when, _ in y.coming if when > y.now)}
    return all(_outstanding(x, t) <= _outstanding(y, t) for t in moments)


def _outstanding(clock: Clock, moment: int) -> int:
    return sum(size for when, size in clock.coming if when > moment)


def thinned(labels: list[Label], width: int) -> list[Label]:
    """At most `width` of the labels: in turn the earliest and those that hold least, of different places first."""
    if len(labels) <= width:
        return labels
    by_time = sorted(labels, key=lambda label: (label.clock.stream_free[0], label.taken, label.count))
    by_room = sorted(labels, key=lambda label: (label.taken, label.clock.stream_free[0], label.count))
    kept: dict[int, Label] = {}
    seen: set[tuple[Place, ...]] = set()
    for again in (False, True):
        for pair in zip(by_time, by_room, strict=True):
            for label in pair:
                if id(label) in kept or (not again and (places := tuple(label.places)) in seen):
                    continue
                kept[id(label)] = label
                if len(kept) == width:
                    return list(kept.values())
                if not again:
                    seen.add(places)
    return list(kept.values())
