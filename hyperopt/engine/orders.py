"""A plan as flat integer arrays: from a plan document, or directly from the arrays that a search works on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hyperopt.engine.arrays import Arrays, arrays_of
from hyperopt.engine.kernel import COPY_OUT, I32, I64, RELEASE, RELEASE_HOST, Orders
from hyperopt.plan import HOST, Plan
from hyperopt.profile import Profile
from hyperopt.script import write_script

KINDS = {"copy_out": COPY_OUT, "release": RELEASE, "release_host": RELEASE_HOST, "copy_in": 3}
NONE: tuple[int, ...] = ()


class OutOfPlace(ValueError):
    """Orders that no walk along the step could meet: they name no operator of the compute stream, no storage, or
    executions that may not be repeated there."""


def orders_of(profile: Profile, plan: Plan) -> Orders:
    """The orders of a plan document.

    Raises `legality.IllegalPlan` for what `script` refuses before it walks along the step, and `OverflowError` as
    `arrays_of` does.
    """
    arrays = arrays_of(profile)
    position, residency = arrays.program.position, plan.residency
    actions, recomputes = residency.actions, residency.recompute
    tiers: dict[str | None, int] = {name: t for t, name in enumerate(arrays.tiers)}
    tiers[None] = tiers[""] = tiers[HOST]
    kind = _array([KINDS[a.kind] for a in actions])
    op = _array([a.op for a in actions])
    storage = _array([position.get(a.storage, -1) for a in actions])
    tier = _array([tiers.get(a.tier, -1) for a in actions])
    early = kind == KINDS["copy_in"]
    late = ~early
    right_side = bool((early == np.array([a.when == "before" for a in actions], np.bool_)).all())
    initial = _array([position.get(id, -1) for id in residency.initial])
    try:
        if not right_side or (initial < 0).any():
            raise OutOfPlace("a kind on the wrong side, or an initial storage that does not exist")
        return orders_from(
            arrays,
            initial=(initial, [tiers.get(name, -1) if name else -1 for name in residency.initial.values()]),
            copy_in=(op[early], storage[early]),
            after=(op[late], kind[late], storage[late], tier[late]),
            recompute=(
                [r.before_op for r in recomputes],
                [position.get(r.storage, -1) for r in recomputes],
                [r.ops for r in recomputes],
            ),
        )
    except OutOfPlace:
        write_script(profile, plan, None)  # names the first violation
        raise


def orders_from(
    arrays: Arrays,
    *,
    initial: tuple[ArrayLike, ArrayLike] = (NONE, NONE),
    copy_in: tuple[ArrayLike, ArrayLike] = (NONE, NONE),
    after: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike] = (NONE, NONE, NONE, NONE),
    recompute: tuple[ArrayLike, ArrayLike, Sequence[Sequence[int]]] = (NONE, NONE, ()),
) -> Orders:
    """Orders from arrays; storages, operators and tiers are positions, and what stands at one operator stays in
    the order given.

    `initial`: storages, tiers. `copy_in`: operators (before), storages. `after`: operators, kinds (`kernel.COPY_OUT`,
    `RELEASE`, `RELEASE_HOST`), storages, tiers (of copies out, else ignored). `recompute`: operators (before),
    storages, lists of operators. Raises `OutOfPlace`.
    """
    operators, storages = arrays.operators, arrays.storages
    start, start_tier = map(_array, initial)
    in_op, in_storage = map(_array, copy_in)
    after_op, after_kind, after_storage, after_tier = map(_array, after)
    before, target = map(_array, recompute[:2])
    lists = recompute[2]
    _check(_within(start, storages) and (not len(start) or int(np.bincount(start).max()) == 1), "initial")
    _check(_within(start_tier, len(arrays.tiers), least=-1), "initial")
    _check(_within(after_kind, 3) and _within(after_tier, len(arrays.tiers), least=-1), "kind or tier")
    for op, storage in ((in_op, in_storage), (after_op, after_storage), (before, target)):
        _check(_within(op, operators) and _within(storage, storages), "operator or storage")
        _check(len(op) == len(storage) and bool(arrays.on_compute[op].all()), "stream")
    _check(len(start) == len(start_tier) and len(after_op) == len(after_kind) == len(after_tier), "lengths")
    _check(len(before) == len(lists), "lengths")

    in_turn, after_turn = np.argsort(in_op, kind="stable"), np.argsort(after_op, kind="stable")
    return Orders(
        _int32(start),
        _int32(start_tier),
        _starts(in_op, operators),
        _int32(in_storage[in_turn]),
        _starts(after_op, operators),
        _int32(after_kind[after_turn]),
        _int32(after_storage[after_turn]),
        _int32(after_tier[after_turn]),
        *_reruns(arrays, before, target, lists),
    )


def _reruns(
    arrays: Arrays, before: I64, target: I64, lists: Sequence[Sequence[int]]
) -> tuple[I32, I32, I32, I32, I32, I32]:
    """The fields of `Orders` from `rerun_at` on."""
    none, late = np.zeros(0, np.int32), np.full(arrays.storages, -1, np.int32)
    if len(lists) == 0:
        return np.zeros(arrays.operators + 1, np.int32), none, none, late, np.zeros(1, np.int32), none
    turn = np.argsort(before, kind="stable")
    ends = np.fromiter(accumulate(map(len, lists), initial=0), np.int64, len(lists) + 1)
    again = np.fromiter(chain.from_iterable(lists[i] for i in turn), np.int64, int(ends[-1]))
    owner = np.repeat(turn, np.diff(ends)[turn])
    _check_recompute(arrays, before, target, again, owner)
    rerun_for = np.full(len(again), -1, np.int32)
    last = np.flatnonzero(np.diff(owner, append=-1))
    rerun_for[last] = target[owner[last]]
    _keep(arrays, again, before[owner], late)
    dying = np.flatnonzero(late >= 0)
    return (
        _starts(before[owner], arrays.operators),
        _int32(again),
        rerun_for,
        late,
        _starts(late[dying], len(again)),
        _int32(dying[np.argsort(late[dying], kind="stable")]),
    )


def first_change(arrays: Arrays, old: Orders, new: Orders) -> int:
    """The first operator at which the two plans may differ in listed order; the number of operators if nowhere.

    A recompute late in the step can keep a storage that died early: then its old end is the first change.
    """
    if not (np.array_equal(old.initial, new.initial) and np.array_equal(old.initial_tier, new.initial_tier)):
        return 0
    found = arrays.operators
    for at, contents in (
        ("in_at", ("in_storage",)),
        ("after_at", ("after_kind", "after_storage", "after_tier")),
        ("rerun_at", ("rerun", "rerun_for")),
    ):
        one, other = getattr(old, at), getattr(new, at)
        found = min(found, _first(one != other, found + 1) - 1)
        for name in contents:
            a, b = getattr(old, name), getattr(new, name)
            shared = min(len(a), len(b))
            differs = _first(a[:shared] != b[:shared], shared)
            if differs < shared:
                found = min(found, int(np.searchsorted(one, differs, side="right")) - 1)
    moved = np.flatnonzero(old.late != new.late)
    for orders in (old, new):
        place = orders.late[moved]
        died = np.where(
            place < 0, arrays.tables.last_access[moved], np.searchsorted(orders.rerun_at, place, side="right") - 1
        )
        found = min(found, int(died.min(initial=found)))
    return found


def _first(differs: NDArray[np.bool_], otherwise: int) -> int:
    place = int(differs.argmax()) if len(differs) else 0
    return place if len(differs) and differs[place] else otherwise


def _check_recompute(arrays: Arrays, before: I64, target: I64, again: I64, owner: I64) -> None:
    """What `script._check_recompute` asks of a recompute."""
    _check(_within(again, arrays.operators), "operator")
    _check(bool((again < before[owner]).all()) and bool(arrays.recomputable[again].all()), "recompute")
    keys, wanted = arrays.write_keys, again * arrays.storages + target[owner]
    if len(keys):
        written = keys[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)] == wanted
    else:
        written = np.zeros(len(wanted), np.bool_)
    writers = np.zeros(len(before), np.int64)
    np.add.at(writers, owner[written], 1)
    _check(bool((writers > 0).all()), "recompute without its writer")


def _keep(arrays: Arrays, again: I64, before: I64, late: I32) -> None:
    """Writes to `late`, per storage, the place in `again` where it dies instead of at its last access
    (`script._dying`)."""
    t = arrays.tables
    for at, accessed in ((t.read_at, t.read), (t.write_at, t.write)):
        count = at[again + 1] - at[again]
        place = np.repeat(np.arange(len(again)), count)
        within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        storage = accessed[at[again][place] + within]
        keeps = (t.last_access[storage] < before[place]) & ~arrays.stays[storage]
        np.maximum.at(late, storage[keeps], place[keeps].astype(np.int32))


def _array(values: ArrayLike) -> I64:
    return np.asarray(values, np.int64)


def _int32(values: I64) -> I32:
    return np.ascontiguousarray(values, np.int32)


def _starts(op: I64 | I32, operators: int) -> I32:
    at = np.zeros(operators + 1, np.int32)
    at[1:] = np.cumsum(np.bincount(op, minlength=operators))
    return at


def _within(values: I64, end: int, least: int = 0) -> bool:
    return not len(values) or bool(values.min() >= least and values.max() < end)


def _check(right: bool, what: str) -> None:
    if not right:
        raise OutOfPlace(f"orders out of place: {what}")
