"""One replay by the compiled loop, whole or from a checkpoint of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hyperopt.engine import kernel as k
from hyperopt.engine.arrays import Arrays
from hyperopt.engine.kernel import I64, Orders, Record, State
from hyperopt.engine.orders import first_change
from hyperopt.legality import Code

NO_LIMIT = 1 << 62

Refusal = tuple[Code, int | None, int]
"""Why, at which operator (None: step start), for which storage."""

REFUSALS = {
    k.READ_NOT_IN_HBM: Code.READ_NOT_IN_HBM,
    k.READ_OF_DROPPED: Code.READ_OF_DROPPED,
    k.WRONG_VERSION: Code.WRONG_VERSION,
    k.WRITE_NOT_IN_HBM: Code.WRITE_NOT_IN_HBM,
    k.WRITE_OF_DROPPED: Code.WRITE_OF_DROPPED,
    k.COPY_IN_WITHOUT_COPY: Code.COPY_IN_WITHOUT_COPY,
    k.COPY_IN_ALREADY_IN_HBM: Code.COPY_IN_ALREADY_IN_HBM,
    k.NO_LINK: Code.NO_LINK,
    k.UNKNOWN_TIER: Code.UNKNOWN_TIER,
    k.NOT_OFFLOADABLE: Code.NOT_OFFLOADABLE,
    k.COPY_OUT_NOT_IN_HBM: Code.COPY_OUT_NOT_IN_HBM,
    k.RELEASE_NOT_IN_HBM: Code.RELEASE_NOT_IN_HBM,
    k.RELEASE_HOST_ILLEGAL: Code.RELEASE_HOST_ILLEGAL,
    k.RECOMPUTE_AND_SWAP: Code.RECOMPUTE_AND_SWAP,
}


@dataclass(frozen=True)
class Checkpoints:
    """States before certain operators (ascending), for `resume`."""

    orders: Orders
    limit: int
    budgets: I64
    states: tuple[tuple[int, State], ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a plan. Nanoseconds and bytes; storages, operators and tiers are positions.

    `status` "illegal": `code` at operator `op` (None: at step start) for `storage`, the first violation; the rest is
    without meaning. "out_of_memory": legal, but `short_bytes` are missing first at operator `op` in tier `tier` (-1:
    HBM); figures that depend on listed order alone (static, tiers, recompute) hold, times do not. "fits": all holds.

    Per operator: `start`, `end`; `wait_ns`, which it and what runs again before it waited for inputs and for what
    they overwrite, `wait_for`, the storage waited for longest (-1: none), `wait_kind` (`kernel.FOR_...`);
    `memory_ns`, waits for room, copies in before it included; `static_bytes`, the highest need of HBM at it in listed
    order (base and workspace included; what it needs at least to run); `tier_bytes` (operators, tiers), the highest
    use of each tier at it. `copies`: rows of storage, operator, tier, out, issue, start, end, in order of issue.
    """

    status: Literal["fits", "illegal", "out_of_memory"]
    code: Code | None
    op: int | None
    storage: int | None
    short_bytes: int
    tier: int
    step_ns: int
    peak_bytes: int
    peak_op: int
    static_peak_bytes: int
    static_peak_op: int
    recompute_ns: int
    tier_peak_bytes: I64
    record: Record
    copies: I64
    checkpoints: Checkpoints | None

    @property
    def start(self) -> I64:
        return self.record.start

    @property
    def end(self) -> I64:
        return self.record.end


def run(
    arrays: Arrays,
    orders: Orders,
    hbm_bytes: int | None = None,
    tiers: Mapping[str, int] | None = None,
    *,
    checkpoints: int = 0,
) -> Outcome:
    """The outcome of a plan within `hbm_bytes` (None: no limit) and `tiers` (bytes by name; a tier left out has what
    the profile says, 0: no such tier). Keeps so many checkpoints for `resume`.

    Raises `OverflowError` where the plan's sums may not fit 64 bits, `ValueError` for orders made for another profile.
    """
    own = arrays.profile.device.tiers
    given = tiers or {}
    budgets = np.array([min(given.get(name, own[name].bytes), NO_LIMIT) for name in arrays.tiers], np.int64)
    limit = NO_LIMIT if hbm_bytes is None else min(hbm_bytes, NO_LIMIT)
    _check_fit(arrays, orders)
    state = _blank(arrays, orders)
    refused = _start(arrays, orders, state, budgets, limit)
    record = _record(arrays, orders)
    if refused is not None:
        return _outcome(arrays, state, record, refused, None)
    every = -(-arrays.operators // (checkpoints + 1))
    stops = range(every, arrays.operators, every) if checkpoints else ()
    return _walk(arrays, Checkpoints(orders, limit, budgets, ()), state, record, 0, list(stops))


def resume(arrays: Arrays, base: Outcome, orders: Orders, *, keep: bool = False) -> Outcome:
    """As `run` with the budgets of `base`, from its last checkpoint before the first operator that `orders` change.

    `base` must have been run with checkpoints. `keep`: the outcome has checkpoints of its own.
    """
    known = base.checkpoints
    assert known is not None, "the base keeps no checkpoints"
    _check_fit(arrays, orders)
    first = first_change(arrays, known.orders, orders)
    shared = tuple((op, state) for op, state in known.states if op <= first)
    if not shared:
        budgets = dict(zip(arrays.tiers, known.budgets.tolist(), strict=True))
        return run(arrays, orders, known.limit, budgets, checkpoints=len(known.states) if keep else 0)
    op, found = shared[-1]
    state = _copy_of(found, _room(arrays, orders))
    record = _record(arrays, orders)
    for name in Record._fields:
        rows = int(state.register[k.COPIES]) if name == "copies" else op
        getattr(record, name)[:rows] = getattr(base.record, name)[:rows]
    stops = [at for at, _ in known.states if at > op] if keep else []
    return _walk(arrays, Checkpoints(orders, known.limit, known.budgets, shared), state, record, op, stops)


def _walk(arrays: Arrays, known: Checkpoints, state: State, record: Record, first: int, stops: list[int]) -> Outcome:
    """From operator `first` to the end, with a checkpoint at each of `stops`."""
    states = list(known.states)
    refused: Refusal | None = None
    for stop in (*stops, arrays.operators):
        if k.walk(arrays.tables, known.orders, state, record, known.limit, known.budgets, first, stop):
            at = state.register
            refused = (REFUSALS[int(at[k.CODE])], int(at[k.CODE_OP]), int(at[k.CODE_STORAGE]))
            break
        if stop < arrays.operators:
            states.append((stop, _copy_of(state, int(state.register[k.COMING]))))
        first = stop
    else:
        refused = _end(arrays, known.orders, state)
    kept = Checkpoints(known.orders, known.limit, known.budgets, tuple(states)) if states else None
    return _outcome(arrays, state, record, refused, kept)


def _start(arrays: Arrays, orders: Orders, state: State, budgets: I64, limit: int) -> Refusal | None:
    """`script._start`: where storages are at step start."""
    start, tier = orders.initial, orders.initial_tier
    exists = (tier >= 0) & (budgets[tier] > 0) if len(start) else np.zeros(0, np.bool_)
    wrong = ~exists | ~arrays.resident[start] | (arrays.tables.offloadable[start] == 0)
    if wrong.any():
        first = int(wrong.argmax())
        s = int(start[first])
        if not exists[first]:
            return Code.UNKNOWN_TIER, None, s
        return (Code.NOT_OFFLOADABLE if arrays.resident[s] else Code.INITIAL_NOT_RESIDENT), None, s
    state.flags[arrays.resident] = k.IN_HBM
    state.flags[start] = 0
    state.tier[start] = tier
    np.add.at(state.tiers[:, k.TIER_USED], tier, arrays.tables.size[start])
    state.tiers[:, k.TIER_PEAK] = state.tiers[:, k.TIER_USED]
    at = state.register
    for t in np.flatnonzero(state.tiers[:, k.TIER_USED] > budgets)[:1]:
        at[k.SHORT], at[k.SHORT_TIER] = state.tiers[t, k.TIER_USED] - budgets[t], t
    used = arrays.base_bytes + int(arrays.tables.size[state.flags > 0].sum())
    at[k.STATIC] = at[k.STATIC_PEAK] = at[k.USED] = at[k.PEAK] = used
    if used > limit and not at[k.SHORT]:
        at[k.SHORT], at[k.SHORT_TIER] = used - limit, -1
    return None


def _end(arrays: Arrays, orders: Orders, state: State) -> Refusal | None:
    """`script._end`: where storages are at step end, and in which version."""
    expected = np.full(arrays.storages, -1, np.int32)
    expected[orders.initial] = orders.initial_tier
    in_hbm = (state.flags & k.IN_HBM) > 0
    away = np.where(expected < 0, ~in_hbm, in_hbm | (state.tier != expected)) & arrays.returns
    wrong = away | ((state.version != arrays.final) & arrays.returns)
    if not wrong.any():
        return None
    s = int(wrong.argmax())
    return (Code.END_LOCATION if away[s] else Code.END_VERSION), arrays.operators - 1, s


def _outcome(
    arrays: Arrays, state: State, record: Record, refused: Refusal | None, kept: Checkpoints | None
) -> Outcome:
    at = state.register
    short = refused is None and bool(at[k.SHORT])
    code, op, storage = refused if refused is not None else (None, int(at[k.SHORT_OP]) if short else None, None)
    return Outcome(
        status="illegal" if refused is not None else "out_of_memory" if short else "fits",
        code=code,
        op=op,
        storage=storage,
        short_bytes=int(at[k.SHORT]) if short else 0,
        tier=int(at[k.SHORT_TIER]) if short else -1,
        step_ns=int(at[k.STEP]),
        peak_bytes=int(at[k.PEAK]),
        peak_op=int(at[k.PEAK_OP]),
        static_peak_bytes=int(at[k.STATIC_PEAK]),
        static_peak_op=int(at[k.STATIC_PEAK_OP]),
        recompute_ns=int(at[k.RECOMPUTE]),
        tier_peak_bytes=state.tiers[:, k.TIER_PEAK].copy(),
        record=record,
        copies=record.copies[: int(at[k.COPIES])],
        checkpoints=kept,
    )


def _check_fit(arrays: Arrays, orders: Orders) -> None:
    if len(orders.in_at) != arrays.operators + 1 or len(orders.late) != arrays.storages:
        raise ValueError("the orders are for another profile")
    if not arrays.fit(len(orders.in_storage) + len(orders.after_storage), len(orders.rerun)):
        raise OverflowError("bytes or nanoseconds of the plan do not fit 64 bits")


def _room(arrays: Arrays, orders: Orders) -> int:
    """Releases under way are at most these: each workspace, each release ordered, each storage's last access."""
    return arrays.operators + arrays.storages + len(orders.rerun) + len(orders.after_storage)


def _blank(arrays: Arrays, orders: Orders) -> State:
    storages, room = arrays.storages, _room(arrays, orders)
    return State(
        register=np.zeros(k.REGISTERS, np.int64),
        at=np.zeros((storages, 3), np.int64),
        flags=np.zeros(storages, np.int8),
        version=np.full(storages, -1, np.int32),
        tier=np.full(storages, -1, np.int32),
        heap_time=np.empty(room, np.int64),
        heap_bytes=np.empty(room, np.int64),
        stream_free=np.zeros(arrays.streams, np.int64),
        tiers=np.zeros((len(arrays.tiers), 4), np.int64),
    )


def _copy_of(state: State, room: int) -> State:
    """The state with room for so many releases under way."""
    used = int(state.register[k.COMING])
    copied = {name: getattr(state, name).copy() for name in State._fields if not name.startswith("heap")}
    for name in ("heap_time", "heap_bytes"):
        heap = copied[name] = np.empty(room, np.int64)
        heap[:used] = getattr(state, name)[:used]
    return State(**copied)


def _record(arrays: Arrays, orders: Orders) -> Record:
    operators = arrays.operators
    copies = len(orders.in_storage) + int((orders.after_kind == k.COPY_OUT).sum())
    return Record(
        start=np.zeros(operators, np.int64),
        end=np.zeros(operators, np.int64),
        wait_ns=np.zeros(operators, np.int64),
        wait_for=np.zeros(operators, np.int32),
        wait_kind=np.zeros(operators, np.uint8),
        memory_ns=np.zeros(operators, np.int64),
        static_bytes=np.zeros(operators, np.int64),
        tier_bytes=np.zeros((operators, len(arrays.tiers)), np.int64),
        copies=np.zeros((copies, 7), np.int64),
    )
