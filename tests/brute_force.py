"""Every plan of moves for a tiny profile, judged by replay: what the solver is measured against."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import Action, ActionKind, Budget, Plan, Recompute, Residency
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
            actions = tuple(_action(op, kind, id) for id, _, slots in order for op, kind in slots)
            best = _better(best, profile, budget, Residency(initial=initial, actions=actions))
    return best


def optimum_with_recompute_ns(profile: Profile, budget: Budget) -> int | None:
    """As `optimum_ns` with one trip or drop a storage and up to two single recomputes; one order of actions."""
    compute = [k for k, o in enumerate(profile.operators) if o.stream == COMPUTE]
    operators = profile.operators
    single = [
        Recompute(storage=s, before_op=k, ops=(j,))
        for k in compute
        for j in range(k)
        if operators[j].recomputable
        for s in operators[j].writes
    ]
    pairs = [(a, b) for a in single for b in single if a.before_op <= b.before_op]
    recomputes: list[tuple[Recompute, ...]] = [(), *((one,) for one in single), *pairs]
    own = []
    for storage in profile.storages:
        drops: list[tuple[bool, tuple[Slot, ...]]] = [(False, ((k, "release"),)) for k in compute]
        own.append([*_itineraries(profile, storage, 1), *drops])
    best: int | None = None
    for chosen in product(*own):
        actions, initial = [], {}
        for storage, (starts_out, slots) in zip(profile.storages, chosen, strict=True):
            if starts_out:
                initial[storage.id] = "host"
            actions += [_action(op, kind, storage.id) for op, kind in slots]
        dropped = any([kind for _, kind in slots] == ["release"] for _, slots in chosen)
        for again in recomputes if dropped else [()]:
            residency = Residency(initial=initial, actions=tuple(actions), recompute=again)
            best = _better(best, profile, budget, residency)
    return best


def _better(best: int | None, profile: Profile, budget: Budget, residency: Residency) -> int | None:
    try:
        found = replay(profile, Plan(budget=budget, residency=residency)).step_ns
    except (IllegalPlan, OutOfMemory):
        return best
    return found if best is None else min(best, found)


def _action(op: int, kind: ActionKind, storage: int) -> Action:
    return Action(op=op, when="before" if kind == "copy_in" else "after", kind=kind, storage=storage)


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
