"""A plan for the eye of the saved-tensor hooks: which save is which storage, and when to act.

The hooks are the only clock that costs nothing (dispatch mode doubles the memory). The profile says where
each of their calls stands, so a call is a moment on the axis of operators::

    moment    2k-1         2k          2k+1
           load before   operator k   save after

An action is carried out at the first call at or past its moment. A copy back must be ahead of its consumer:
if the first call at or past its moment is the consumer's own load, it is issued at the call before that one.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from msgspec import structs

from hyperopt.plan import Action, Plan, Recompute
from hyperopt.profile import Profile
from profiler.apply.capability import dropped_by_recompute, forward_operators, layer_input, recomputed_layers


def before(op: int) -> int:
    return 2 * op - 1


def after(op: int) -> int:
    return 2 * op + 1


@dataclass(frozen=True)
class Save:
    """One expected call of the pack hook."""

    storage: int
    op: int
    layer: str


@dataclass(frozen=True)
class Move:
    """One storage's planned way out and back. Moments on the axis above; `op`s as the plan gives them."""

    storage: int
    bytes: int
    out_op: int
    release_op: int
    in_op: int
    in_moment: int
    consumer_op: int
    host_release_op: int | None
    saves: int
    loads: int


@dataclass(frozen=True)
class Schedule:
    """Everything the hooks need. ``loads[storage]``: operators before which its loads stand, in order."""

    saves: tuple[Save, ...]
    loads: dict[int, tuple[int, ...]]
    moves: dict[int, Move]
    recomputed: tuple[str, ...]
    inputs: dict[str, int | None]
    """Storage that is the input of each recomputed layer; None where it is not one that autograd saves."""
    drops: dict[str, tuple[Action, ...]]
    """Planned releases that recomputing each layer carries out by itself."""
    again: dict[str, tuple[Recompute, ...]]
    """Planned recomputes, by layer."""
    names: dict[int, str]
    bytes: dict[int, int]
    made: frozenset[int]
    operators: tuple[str, ...]


def schedule(profile: Profile, plan: Plan) -> Schedule:
    """The schedule of a plan that `profiler.apply.capability` has let pass."""
    layers = tuple(recomputed_layers(profile, plan))
    inner = {op for layer in layers for op in forward_operators(profile, layer)}
    gone = {id for layer in layers for id in dropped_by_recompute(profile, layer)}
    inputs = {layer: layer_input(profile, layer) for layer in layers}
    saves = tuple(
        Save(id, number, operator.layer if number in inner else "")
        for number, operator in enumerate(profile.operators)
        for id in operator.saves
    )
    loads: dict[int, list[int]] = {}
    moments: set[int] = {after(save.op) for save in saves if not save.layer}
    recomputing: set[str] = set()
    for number, operator in enumerate(profile.operators):
        if operator.phase == "backward" and operator.layer in layers and operator.loads:
            if operator.layer not in recomputing:
                recomputing.add(operator.layer)
                source = inputs[operator.layer]
                moments.add(before(number))
                if source is not None:
                    loads.setdefault(source, []).append(number)
            continue
        for id in operator.loads:
            if id not in gone:
                loads.setdefault(id, []).append(number)
                moments.add(before(number))
    axis = sorted(moments)
    return Schedule(
        saves=saves,
        loads={id: tuple(ops) for id, ops in loads.items()},
        moves=_moves(profile, plan, saves, loads, inputs, axis),
        recomputed=layers,
        inputs=inputs,
        drops={layer: _drops(profile, plan, layer) for layer in layers},
        again={
            layer: tuple(entry for entry in plan.residency.recompute if profile.operators[entry.ops[0]].layer == layer)
            for layer in layers
        },
        names={storage.id: storage.name for storage in profile.storages},
        bytes={storage.id: storage.bytes for storage in profile.storages},
        made=frozenset(storage.id for storage in profile.storages if not storage.resident_at_start),
        operators=tuple(operator.name for operator in profile.operators),
    )


def as_issued(profile: Profile, plan: Plan) -> Plan:
    """The plan as the hooks will carry it out: each copy_in at the operator of the call that issues it.

    A copy back that the plan wants between two calls is moved to one of them; replaying this plan instead of
    the given one shows what that means for the peak.
    """
    moves = schedule(profile, plan).moves
    at = {id: max((move.in_moment + 1) // 2, move.release_op + 1) for id, move in moves.items()}
    actions = tuple(
        structs.replace(action, op=at[action.storage]) if action.kind == "copy_in" and action.storage in at else action
        for action in plan.residency.actions
    )
    return structs.replace(plan, residency=structs.replace(plan.residency, actions=actions))


def _drops(profile: Profile, plan: Plan, layer: str) -> tuple[Action, ...]:
    inside = dropped_by_recompute(profile, layer)
    return tuple(action for action in plan.residency.actions if action.storage in inside)


def _moves(
    profile: Profile,
    plan: Plan,
    saves: tuple[Save, ...],
    loads: dict[int, list[int]],
    inputs: dict[str, int | None],
    axis: list[int],
) -> dict[int, Move]:
    ops: dict[tuple[int, str], int] = {(a.storage, a.kind): a.op for a in plan.residency.actions}
    moves = {}
    for (id, kind), out_op in sorted(ops.items()):
        if kind != "copy_out" or id not in loads:
            continue
        entries = sum(source == id for source in inputs.values())
        consumer = loads[id][0]
        moves[id] = Move(
            storage=id,
            bytes=profile.by_id[id].bytes,
            out_op=out_op,
            release_op=ops[id, "release"],
            in_op=ops[id, "copy_in"],
            in_moment=_in_moment(axis, ops[id, "copy_in"], consumer),
            consumer_op=consumer,
            host_release_op=ops.get((id, "release_host")),
            saves=sum(save.storage == id and not save.layer for save in saves) + entries,
            loads=len(loads[id]),
        )
    return moves


def _in_moment(axis: list[int], planned: int, consumer: int) -> int:
    """The call at which to issue the copy back; see the module's head."""
    at = bisect.bisect_left(axis, before(planned))
    if at < len(axis) and axis[at] < before(consumer):
        return axis[at]
    last = bisect.bisect_left(axis, before(consumer)) - 1
    return axis[last] if last >= 0 else before(consumer)
