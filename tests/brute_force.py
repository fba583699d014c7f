"""Every plan of moves for a tiny profile, judged by replay: what the solver is measured against."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Action, ActionKind, Budget, Plan, Residency
from hyperopt.profile import COMPUTE, Profile, Storage
from hyperopt.replay import replay

Slot = tuple[int, ActionKind]


def optimum_ns(profile: Profile, budget: Budget, trips: int = 2) -> int | None:
    """The least step time (ns) over all plans with at most `trips` round trips a storage; None: none runs.

    Tries every position of every action, every `initial`, and every order of the storages in a slot.
    """
    best: int | None = None
    own = [list(_itineraries(profile, storage, trips)) for storage in profile.storages]
    for chosen in product(*own):
        moved = [(s.id, *way) for s, way in zip(profile.storages, chosen, strict=True) if way[0] or way[1]]
        initial = {id: "host" for id, starts_out, _ in moved if starts_out}
        for order in permutations(moved):
            actions = tuple(
                Action(op=op, when="before" if kind == "copy_in" else "after", kind=kind, storage=id)
                for id, _, slots in order
                for op, kind in slots
            )
            try:
                plan = Plan(budget=budget, residency=Residency(initial=initial, actions=actions))
                found = replay(profile, plan).step_ns
            except (IllegalPlan, OutOfMemory):
                continue
            if best is None or found < best:
                best = found
    return best


def _itineraries(profile: Profile, storage: Storage, trips: int) -> Iterator[tuple[bool, tuple[Slot, ...]]]:
    """(starts out, actions): nothing, round trips, or a start (and end) in the tier."""
    yield False, ()
    if not storage.offloadable or not storage.bytes:
        return
    places = [k for k, o in enumerate(profile.operators) if o.stream == COMPUTE]
    middle = list(_trips(places, trips, -1))
    for slots in middle:
        if slots:
            yield False, slots
    if storage.resident_at_start:
        yield True, ()
        for back in places:
            for slots in middle:
                if not slots or slots[0][0] >= back:
                    last = slots[-1][0] if slots else back
                    yield True, ((back, "copy_in"), *slots)
                    for out in (k for k in places if k >= last):
                        for leave in (k for k in places if k >= out):
                            yield True, ((back, "copy_in"), *slots, (out, "copy_out"), (leave, "release"))


def _trips(places: list[int], trips: int, after: int) -> Iterator[tuple[Slot, ...]]:
    yield ()
    if not trips:
        return
    for out in (k for k in places if k >= after):
        for leave in (k for k in places if k >= out):
            for back in (k for k in places if k > leave):
                for rest in _trips(places, trips - 1, back):
                    yield ((out, "copy_out"), (leave, "release"), (back, "copy_in"), *rest)
