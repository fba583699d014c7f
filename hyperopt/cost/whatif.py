"""What if: a profile of another batch, sequence, element type or device, made from one that was measured.

Shapes and sizes follow from the step itself (`hyperopt.cost.followed`). A duration that changes is

    measured before  x  predicted(new shapes) / predicted(old shapes)

because what the model does not know of a kernel (its place in the step, what lies in the cache, how its library treats
such shapes) is in the measured duration, and is about the same at both sizes: it cancels, where a prediction alone has
all of it. On another device nothing was measured, and the prediction stands alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Literal

import numpy as np
from msgspec import UNSET, structs

from hyperopt.cost import collectives
from hyperopt.cost.features import device_of, rows_of
from hyperopt.cost.followed import Seen, bytes_of, follow, inputs_of, see
from hyperopt.cost.formulas import Tensor
from hyperopt.cost.messages import level_of
from hyperopt.cost.model import SEEN, CostModel, Predictions
from hyperopt.cost.predicted import readable, stranger_notes
from hyperopt.cost.ranges import never_met
from hyperopt.cost.resized import Told, rewritten
from hyperopt.cost.work import Table
from hyperopt.documents import DocumentError
from hyperopt.mesh import Mesh
from hyperopt.profile import IDLE, Operator, Profile

SCALED: Literal["scaled"] = "scaled"
"""How a duration was predicted whose work is not counted: as it was, times how its bytes grow."""

COMMUNICATION = "communication"
LEVEL = 0.9
RINGS: Mapping[str, collectives.Kind] = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "AllToAll": "all_to_all",
    "Broadcast": "broadcast",
}  # fmt: skip


@dataclass(frozen=True)
class Growth:
    """Of the ``batch`` or the ``sequence``, from `old` to `new`. `old` None: as the step's inputs show it."""

    axis: str
    new: int
    old: int | None = None


@dataclass(frozen=True)
class WhatIf:
    """`sources`: how many durations were predicted in which way; `kept`: why others that changed were not; `grown`: of
    how many storages the size changed; `before_us`, `after_us`: sums of durations, idle time left out."""

    profile: Profile
    sources: Counter[str]
    kept: Counter[str]
    grown: int
    before_us: float
    after_us: float
    notes: tuple[str, ...]


def what_if(
    profile: Profile,
    model: CostModel,
    table: Table,
    growths: Sequence[Growth] = (),
    dtypes: dict[str, str] | None = None,
    device: Profile | None = None,
    shards: int = 1,
    mesh: Mesh | None = None,
) -> WhatIf:
    """`dtypes`: old element type -> new one. `device`: a profile of the device to be on, of which `model` is. `shards`:
    over how many devices, all of `mesh`, the batch is cut.

    The same sizes on the same device give back the same profile. Raises `DocumentError` where something cannot be
    followed, by operator and remedy.
    """
    told = Told()
    if profile.timing_only and (growths or dtypes or shards > 1):
        raise DocumentError(
            "$.storages", "there are none, so nothing tells how tensors go together", "profile memory too"
        )
    after = profile
    for growth in growths:
        after = _grown(after, table, growth, told)
    if shards > 1:
        batch = next((growth.new for growth in growths if growth.axis == "batch"), None) or _old(after, "batch")
        if batch % shards:
            raise DocumentError(
                "$.operators", f"a batch of {batch} is not cut into {shards}", "use one that divides it"
            )
        after = _grown(after, table, Growth("batch", batch // shards, batch), told)
    for old_type, new_type in (dtypes or {}).items():
        after = _cast(after, table, old_type, new_type, told)
    if device is None and not is_of(model, profile):
        problem = f"the profile is of {device_of(profile) or 'no named device'}, the model of {model.device}"
        raise DocumentError(
            "$.device.name", problem, "give --device, a profile of the model's device, to move the step"
        )
    if device is not None:
        after = _moved(after, device, model)
    if after is profile:
        return WhatIf(profile, Counter(), Counter(), 0, _busy(profile), _busy(profile), ())
    after, sources, kept, strangers = _timed(profile, after, model, table, outright=device is not None)
    told.notes += stranger_notes(strangers)
    sizes = {s.id: s.bytes for s in profile.storages}
    grown = sum(s.bytes != sizes[s.id] for s in after.storages)
    if shards > 1:
        after = _summed(after, table, model, mesh, shards, told)
    if told.assumed:
        told.notes.append(f"{told.assumed} blocks are split where a dimension has the old length")
    if told.workspaces:
        told.notes.append(f"workspaces of {told.workspaces} operators are taken to grow as their tensors do")
    if told.unread:
        told.notes.append(f"no operator reads these inputs, which keep their size: {', '.join(told.unread.values())}")
    idle = sum(o.type == IDLE for o in after.operators)
    if idle:
        told.notes.append(f"idle time, of {idle} operators, is as it was")
    run = structs.replace(after.run, measured=False, notes=(*after.run.notes, *told.notes))
    operators = tuple(structs.replace(o, start_us=0.0) for o in after.operators)
    after = structs.replace(after, run=run, measured=None, operators=operators)
    return WhatIf(after, sources, kept, grown, _busy(profile), _busy(after), tuple(told.notes))


def is_of(model: CostModel, profile: Profile) -> bool:
    """Whether the model is of the profile's device and framework. What stands in brackets is about the way of
    capturing: PyNative's profiles are of ``CPU (MindSpore memory pool)``, calibration's of ``cpu``."""
    mine, theirs = (re.sub(r"\s*\([^)]*\)", "", name).lower() for name in (device_of(profile), model.device))
    return mine == theirs


def _busy(profile: Profile) -> float:
    return sum(o.duration_us for o in profile.operators if o.type != IDLE)


# -- shapes and sizes ----------------------------------------------------------------------------------------


def _old(profile: Profile, axis: str) -> int:
    """What all inputs of two dimensions and more agree on: the first is the batch, the second the sequence."""
    place = ("batch", "sequence").index(axis)
    found = {shape[place] for shape in inputs_of(profile) if len(shape) >= 2}
    if len(found) != 1:
        what = "no input is read in two dimensions" if not found else f"inputs have {sorted(found)} there"
        raise DocumentError("$.operators", f"the {axis} of the step is not told: {what}", f"give --{axis} as OLD=NEW")
    return found.pop()


def _grown(profile: Profile, table: Table, growth: Growth, told: Told) -> Profile:
    old = growth.old if growth.old is not None else _old(profile, growth.axis)
    if old == growth.new:
        return profile
    if old == 1:
        problem = f"a {growth.axis} of 1 cannot be told from dimensions that are 1 anyway"
        raise DocumentError("$.operators", problem, f"profile with a {growth.axis} of 2 or more")
    if not any(s.kind == "input" for s in profile.storages):
        problem = f"no storage is an input, from which the {growth.axis} could be followed"
        raise DocumentError("$.storages", problem, "capture the step with `hyperopt capture`")
    followed = follow(profile, table, growth.axis, old)
    if not any(any(seen.powers) for s, seen in followed.storages.items() if profile.by_id[s].kind == "input"):
        problem = f"no input has a {growth.axis} of {old}"
        shapes = ", ".join(str(list(shape)) for shape in inputs_of(profile)) or "none that operators name by shape"
        raise DocumentError("$.operators", problem, f"give --{growth.axis} as OLD=NEW; the inputs are {shapes}")
    told.assumed += followed.assumed
    told.notes.append(f"{growth.axis} {old} -> {growth.new}: shapes and sizes followed through the step")

    def shape_of(seen: Seen) -> tuple[int, ...]:
        return tuple(
            n if not power else n // old**power * growth.new**power
            for n, power in zip(seen.shape, seen.powers, strict=True)
        )

    return rewritten(profile, followed, {s: (shape_of(t), t.dtype) for s, t in followed.storages.items()},
                      [[(shape_of(t), t.dtype) for t in tensors] for tensors in followed.operators], told)  # fmt: skip


def _cast(profile: Profile, table: Table, old: str, new: str, told: Told) -> Profile:
    """Every tensor of the type, but optimizer states, which training keeps as they are, and single numbers."""
    for name in (old, new):
        if not bytes_of((1,), name):
            raise DocumentError(
                "--dtype", f"element type {name!r} is unknown", "use a name such as float32 or bfloat16"
            )
    if (was := _sort_of(old)) != (will := _sort_of(new)):
        problem = f"{old} is {was}, {new} is {will}: no other precision of it"
        raise DocumentError("--dtype", problem, "give a type of the same sort, such as bfloat16 for float32")
    if old == new:
        return profile
    followed = see(profile, table)
    types = {dtype for o in profile.operators for dtype in o.dtypes}
    if old not in types:
        there = ", ".join(sorted(types)) or "not said"
        raise DocumentError("--dtype", f"no tensor of the step is of type {old}", f"element types are: {there}")
    by_id = profile.by_id

    def dtype_of(seen: Seen) -> str:
        kept = seen.storage is not None and by_id[seen.storage].kind == "optimizer_state"
        return new if seen.dtype == old and prod(seen.shape) > 1 and not kept else seen.dtype

    told.notes.append(
        f"{old} -> {new} for all but optimizer states and single numbers; no casts are added between them"
    )
    return rewritten(profile, followed, {s: (t.shape, dtype_of(t)) for s, t in followed.storages.items()},
                      [[(t.shape, dtype_of(t)) for t in tensors] for tensors in followed.operators], told)  # fmt: skip


def _sort_of(dtype: str) -> str:
    """What its numbers are: a type of another sort holds other numbers, not the same more or less exactly."""
    if Tensor((), dtype).whole:
        return "a float"
    name = dtype.lower()
    return "complex" if name.startswith("complex") else "of truth values" if name == "bool" else "an integer"


def _moved(profile: Profile, device: Profile, model: CostModel) -> Profile:
    """The step on another device: its memory, links and framework."""
    if not is_of(model, device):
        problem = (
            f"the profile of the device is of {device_of(device) or 'no named device'}, the model of {model.device}"
        )
        raise DocumentError("$.device.name", problem, "give a profile of the device that the model is of")
    run = structs.replace(
        profile.run, framework=device.run.framework, framework_version=device.run.framework_version,
        notes=(*profile.run.notes, f"moved from {device_of(profile)} to {model.device}: durations predicted outright"),
    )  # fmt: skip
    there = structs.replace(device.device, base_bytes=profile.device.base_bytes)
    return structs.replace(profile, device=there, run=run)


# -- times ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """Predictions with and without what was measured of the very signature, and of the roofline alone, and an
    operator's row in them. `strange`: for each row what of it the model never met, "" if nothing."""

    full: Predictions
    bare: Predictions
    base: Predictions
    strange: list[str]
    row: dict[int, int]
    uncounted: Counter[str]


def _predicted(profile: Profile, model: CostModel, table: Table) -> _Rows:
    rows = rows_of(profile, table, model.device)
    full = model.predict_rows(rows, LEVEL)
    bare = structs.replace(model, seen={}).predict_rows(rows, LEVEL)
    base = structs.replace(model, seen={}, learned={}, process=None).predict_rows(rows, LEVEL)
    strange = [""] * len(rows.us)
    for (family, what), mine in never_met(rows.signatures, model.element_types).items():
        for row in np.flatnonzero(mine[rows.signature]).tolist():
            strange[row] = f"{family} of {what}"
    return _Rows(full, bare, base, strange, {place: i for i, place in enumerate(rows.place.tolist())}, rows.uncounted)


def _timed(
    before: Profile, after: Profile, model: CostModel, table: Table, *, outright: bool
) -> tuple[Profile, Counter[str], Counter[str], Counter[str]]:
    """Durations of the operators whose tensors have changed, or of all (`outright`: by the prediction alone); how many
    were predicted in which way, why others were not, and how many are now of element types the model never met."""
    old, new = _predicted(before, model, table), _predicted(after, model, table)
    sources: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    strangers: Counter[str] = Counter()
    found = []
    for place, (was, now) in enumerate(zip(before.operators, after.operators, strict=True)):
        if now.type == IDLE or (
            not outright
            and _traffic(before, was) == _traffic(after, now)
            and (was.shapes, was.dtypes) == (now.shapes, now.dtypes)
        ):
            found.append(now)
            continue
        row, former = new.row.get(place), old.row.get(place)
        if row is None or (former is None and not outright) or (not outright and _ring(now, after, model, table)):
            if outright:
                kept[f"{now.type}: its work is not counted, and what was measured was another device"] += 1
                found.append(now)
                continue
            factor = _scale(before, was, after, now, model, table)
            found.append(structs.replace(now, duration_us=round(was.duration_us * factor, 3), predicted=SCALED,
                                         interval_us=UNSET))  # fmt: skip
            sources[SCALED] += 1
            continue
        if outright or former is None:
            pick, us = new.full, float(new.full.us[row])
        else:
            both = new.full.source[row] == SEEN and old.full.source[former] == SEEN
            # What was learned of the old element type is no part of the new one's.
            apart = bool(new.strange[row]) and not old.strange[former]
            pick, past = (new.full, old.full) if both else (new.base, old.base) if apart else (new.bare, old.bare)
            us = was.duration_us * float(pick.us[row] / past.us[former])
        low, high = (us * float(end[row] / pick.us[row]) for end in (pick.low, pick.high))
        if new.strange[row]:
            strangers[new.strange[row]] += 1
        source = str(pick.source[row])
        sources[source] += 1
        between = UNSET if np.isnan(low) or np.isnan(high) else (round(low, 3), round(high, 3))
        found.append(structs.replace(now, duration_us=round(us, 3), predicted=source, interval_us=between))
    return structs.replace(after, operators=tuple(map(readable, count(), found))), sources, kept, strangers


def _traffic(profile: Profile, operator: Operator) -> int:
    """Bytes of its tensors, or, where they are not told, of the storages that it uses."""
    sizes = [bytes_of(shape, dtype) for shape, dtype in zip(operator.shapes, operator.dtypes, strict=False)]
    return sum(sizes) if sizes and all(sizes) else sum(profile.by_id[id].bytes for id in operator.accesses)


def _scale(before: Profile, was: Operator, after: Profile, now: Operator, model: CostModel, table: Table) -> float:
    """By bytes; of a collective by its ring, where the model has latency and bandwidth of messages."""
    sizes = _traffic(before, was), _traffic(after, now)
    level = level_of(model.messages)
    if level is not None and (ring := _ring(now, after, model, table)) is not None:
        us = [collectives.along(ring, after.run.world_size, size // 2, level).us for size in sizes]
        return us[1] / us[0] if us[0] else 1.0
    return sizes[1] / sizes[0] if sizes[0] else 1.0


def _ring(operator: Operator, profile: Profile, model: CostModel, table: Table) -> collectives.Kind | None:
    """The kind of collective, if it is one that the model can price."""
    kind = table.kind(operator.type, operator.name)
    return RINGS.get(kind.name) if kind and model.messages and profile.run.world_size > 1 else None


# -- more devices --------------------------------------------------------------------------------------------


def _summed(profile: Profile, table: Table, model: CostModel, mesh: Mesh | None, shards: int, told: Told) -> Profile:
    """The gradients that optimizers read are added up over all devices, each as soon as it is written, on a stream of
    its own."""
    if mesh is None or mesh.devices != shards:
        have = "no mesh is given" if mesh is None else f"the mesh has {mesh.devices} devices"
        raise DocumentError("--mesh", f"{have} for a batch over {shards}", "give a mesh of that many")
    followed = see(profile, table)
    writer: dict[int, int] = {}
    gradients: dict[int, int] = {}
    for place, operator in enumerate(profile.operators):
        kind = table.kind(operator.type, operator.name)
        if kind is not None and kind.family == "optimizer" and operator.writes:
            for id in operator.reads:
                if profile.by_id[id].kind == "gradient" and id in writer:
                    gradients.setdefault(id, writer[id])
        for id in operator.writes:
            writer[id] = place
    if not gradients:
        raise DocumentError("$.operators", "no optimizer reads a gradient", "profile a whole training step")
    after: dict[int, list[Operator]] = {}
    sent = 0
    axes = tuple(range(len(mesh.shape)))
    for id, place in gradients.items():
        seen = followed.storages.get(id)
        shape, dtype = (seen.shape, seen.dtype) if seen else ((profile.by_id[id].bytes,), "uint8")
        size = bytes_of(shape, dtype)
        sent += size
        us = collectives.over(mesh, "all_reduce", axes, size, bytes_of((1,), dtype)).us
        after.setdefault(place, []).append(
            Operator(
                name=f"{profile.by_id[id].name}/all_reduce", type="AllReduce", stream=COMMUNICATION, reads=(id,),
                writes=(id,), duration_us=round(us, 3), phase="backward", shapes=(shape, shape), dtypes=(dtype, dtype),
                inputs=1, recomputable=False, predicted=SCALED,
            )
        )  # fmt: skip
    operators: list[Operator] = []
    moved: list[int] = []
    for place, operator in enumerate(profile.operators):
        moved.append(len(operators))
        operators += [operator, *after.get(place, ())]
    storages = tuple(
        s if s.window is None else structs.replace(s, window=(moved[s.window[0]], moved[s.window[1]]))
        for s in profile.storages
    )
    told.notes.append(
        f"batch over {shards} devices: {len(gradients)} gradients, {sent} bytes, all-reduced as they are written; "
        "times by rings, of this mesh's links"
    )
    run = structs.replace(profile.run, world_size=shards)
    return structs.replace(profile, operators=tuple(operators), storages=storages, run=run)


__all__ = ["Growth", "WhatIf", "what_if"]
