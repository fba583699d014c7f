"""The description of a model's layers for placement: SAPP-PPB's JSON, and what unequal devices and offload add to it.

::

    {"name": .., "pre_defined_layer": {name: 0 | -1}, "auto_partition_layer": {name: count},
     "layers_description": [{"name", "type": HEAD | BODY | TAIL, "time", "nb_layer", "memory_parameter", ..}],
     "memory_limits": .., "layer_types": [..], "device_groups": [..], ..}

Memory is in MB and times in a unit of their own: the files name neither. docs/reference/stages.md has every field. The
readers of profiles and the stage solver both use it. Source: hyper-parallel `auto_parallel/sapp_ppb`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hyperopt.documents import DocumentError, decompress, unknown_keys

MAX_BYTES = 1 << 20
"""A description is a page; what is longer is none."""

REMEDY = "see docs/reference/stages.md"

LEVELS = {
    "none": ("memory_activation", "backward_coef", 0.0),
    "select": ("memory_select_rec", "select_rec_coef", 0.04),
    "comm": ("memory_select_comm", "select_comm_coef", 0.125),
    "both": ("memory_both_comm_select", "both_comm_select_coef", 0.165),
    "full": ("memory_recompute", "recompute_coef", 0.5),
}
"""Level of recomputation -> keys of its memory and of its extra backward time, and upstream's default of that."""

LevelName = Literal["none", "select", "comm", "both", "full"]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Positive = Annotated[float, Meta(gt=0, le=1e15)]
Count = Annotated[int, Meta(ge=0, le=10**6)]
Devices = Annotated[int, Meta(ge=1, le=10**5)]
Name = Annotated[str, Meta(max_length=200)]
PerStage = Amount | Annotated[list[Amount], Meta(min_length=1, max_length=10**4)]


@dataclass(frozen=True, kw_only=True)
class Level:
    """One way to keep a layer's activations: `memory_mb` per micro-batch; backward takes 1 + `extra_backward` times
    its time."""

    name: LevelName
    memory_mb: float
    extra_backward: float


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A type of layer. `forward`, `backward`: in the file's own unit of time, backward as 2 x forward where it is not
    given; `weight`: of backward, what only weights' gradients take, half of it where that is not given. `levels`: those
    that the file has memory for; none for head and tail. `weight_mb`: MB per micro-batch that the weights' gradients
    need, whatever the level; `memory_activation` where it is not given."""

    name: str
    type: Literal["HEAD", "BODY", "TAIL"]
    count: int
    forward: float
    backward: float
    weight: float
    parameter_mb: float
    weight_mb: float
    levels: tuple[Level, ...] = ()


class RecomputeLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A level of recomputation besides upstream's: MB per micro-batch that stay, and `coef`, extra backward time as a
    fraction of backward."""

    name: Name
    memory: Amount
    coef: Amount


class OffloadLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Activations of a layer that leave the device after forward and return before backward.

    `memory`: MB per micro-batch that stay; `moved`: MB that leave, what is missing from `memory_activation` unless
    given; `coef`: extra backward time as a fraction of backward, where something is recomputed besides."""

    name: Name
    memory: Amount
    moved: Amount | None = None
    coef: Amount = 0.0


class LayerFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of `layers_description`, as it stands in the file."""

    name: Name
    type: Literal["HEAD", "BODY", "TAIL"]
    nb_layer: Annotated[int, Meta(ge=1, le=10**6)] = 1
    memory_parameter: Amount = 0.0
    model_name: Name = ""
    time: Amount | None = None
    forward_time: Amount | None = None
    backward_time: Amount | None = None
    backward_weight_time: Amount | None = None
    memory_activation: Amount | None = None
    memory_select_rec: Amount | None = None
    memory_select_comm: Amount | None = None
    memory_both_comm_select: Amount | None = None
    memory_recompute: Amount | None = None
    memory_backward_weight: Amount | None = None
    backward_coef: Amount | None = None
    select_rec_coef: Amount | None = None
    select_comm_coef: Amount | None = None
    both_comm_select_coef: Amount | None = None
    recompute_coef: Amount | None = None
    recompute_levels: tuple[RecomputeLevel, ...] = ()
    offload_levels: tuple[OffloadLevel, ...] = ()
    serial_fraction: Annotated[float, Meta(ge=0, le=1)] | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """So many layers of one type in a row."""

    name: Name
    count: Annotated[int, Meta(ge=1, le=10**6)]


class OffloadLink(msgspec.Struct, frozen=True, kw_only=True):
    """MB per unit of time that a stage moves out and back, one layer after another."""

    out_mb_per_time: Positive
    in_mb_per_time: Positive


class DeviceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one kind: `speed` divides times, `memory` is MB of one device (None: no limit)."""

    name: Name = ""
    devices: Devices = 1
    speed: Positive = 1.0
    memory: Amount | None = None


class SubModel(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the model that has stages of its own: consecutive layer types, in the model's order."""

    name: Name
    layers: Annotated[tuple[Name, ...], Meta(min_length=1)]


class Description(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document. Lists per stage have an entry for each of the stages that are asked for."""

    layers_description: Annotated[tuple[LayerFields, ...], Meta(min_length=1, max_length=1000)]
    name: Name = ""
    pre_defined_layer: dict[Name, Literal[0, -1]] = {}
    auto_partition_layer: dict[Name, Count] = {}
    memory_limits: PerStage | None = None
    host_limits: PerStage | None = None
    layer_types: tuple[Name | Run, ...] = ()
    transfer_times: PerStage | None = None
    offload_link: OffloadLink | None = None
    device_groups: tuple[DeviceGroup, ...] = ()
    pool: tuple[DeviceGroup, ...] = ()
    sub_models: tuple[SubModel, ...] = ()

    @property
    def bodies(self) -> tuple[LayerFields, ...]:
        """The types that are placed."""
        return tuple(layer for layer in self.layers_description if layer.type == "BODY")

    def count(self, layer: LayerFields) -> int:
        """Layers of a type that are placed: `auto_partition_layer` before `nb_layer`."""
        return self.auto_partition_layer.get(layer.name, layer.nb_layer)

    def runs(self) -> tuple[Run, ...]:
        """The layers in the order in which they stand: `layer_types`, or each type in turn."""
        if not self.layer_types:
            return tuple(Run(name=layer.name, count=self.count(layer)) for layer in self.bodies if self.count(layer))
        runs: list[Run] = []
        for entry in self.layer_types:
            one = Run(name=entry, count=1) if isinstance(entry, str) else entry
            if runs and runs[-1].name == one.name:
                one = Run(name=one.name, count=runs.pop().count + one.count)
            runs.append(one)
        return tuple(runs)

    def first(self, layer: LayerFields) -> bool:
        """Whether a HEAD or TAIL stands on the first stage, else it is the last."""
        return self.pre_defined_layer.get(layer.name, 0 if layer.type == "HEAD" else -1) == 0


def load(data: bytes) -> tuple[Description, list[str]]:
    """A description from JSON (plain, gzip or zstd), and warnings. Raises `DocumentError`."""
    plain = decompress(data, MAX_BYTES)
    try:
        said = msgspec.json.decode(plain, type=Description)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise DocumentError(place.replace("`", "") or "$", problem, REMEDY) from error
    except RecursionError as error:
        raise DocumentError("$", "brackets are nested too deeply", "send a layer description") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DocumentError("$", f"no json: {error}", "send a complete UTF-8 JSON document") from error
    for field, problem, remedy in _faults(said):
        raise DocumentError(field, problem, remedy)
    warnings = [
        f"auto_partition_layer says {count} {layer.name}, its description nb_layer {layer.nb_layer}"
        for layer in said.layers_description
        if (count := said.auto_partition_layer.get(layer.name, layer.nb_layer)) != layer.nb_layer
    ]
    return said, warnings + unknown_keys(plain, Description)


def typed(layer: LayerFields) -> Layer:
    """A type of layer with its defaults filled in."""
    forward = layer.time if layer.forward_time is None else layer.forward_time
    assert forward is not None  # `_faults`
    levels = []
    for name, (memory_key, coefficient_key, default) in LEVELS.items():
        memory, extra = getattr(layer, memory_key), getattr(layer, coefficient_key)
        if memory is not None:
            level = Level(name=name, memory_mb=memory, extra_backward=default if extra is None else extra)  # type: ignore[arg-type]
            levels.append(level)
    backward = 2 * forward if layer.backward_time is None else layer.backward_time
    kept = layer.memory_activation if layer.memory_backward_weight is None else layer.memory_backward_weight
    return Layer(
        name=layer.name,
        type=layer.type,
        count=layer.nb_layer,
        forward=forward,
        backward=backward,
        weight=backward / 2 if layer.backward_weight_time is None else layer.backward_weight_time,
        parameter_mb=layer.memory_parameter,
        weight_mb=kept or 0.0,
        levels=tuple(levels),
    )


def _faults(said: Description) -> Iterator[tuple[str, str, str]]:
    """(field, problem, remedy) of what is wrong across fields."""
    names = [layer.name for layer in said.layers_description]
    for i, layer in enumerate(said.layers_description):
        at = f"$.layers_description[{i}]"
        if layer.name in names[:i]:
            yield at, f"describes {layer.name} a second time", "give each type of layer a name of its own"
        if layer.time is None and layer.forward_time is None:
            yield at, f"{layer.name} has neither time nor forward_time", "give one of them"
        elif typed(layer).weight > typed(layer).backward:
            problem = f"{layer.name} takes longer for weights' gradients than its whole backward"
            yield f"{at}.backward_weight_time", problem, "it is a part of backward_time: give less"
        if layer.offload_levels and said.offload_link is None:
            yield f"{at}.offload_levels", "nothing says how fast activations move", "give offload_link"
        names_known = [*LEVELS]
        for field in ("recompute_levels", "offload_levels"):
            for j, level in enumerate(getattr(layer, field)):
                if level.name in names_known:
                    yield f"{at}.{field}[{j}].name", f"{level.name} is a level already", "give it another name"
                names_known.append(level.name)
        for j, level in enumerate(layer.offload_levels):
            if level.moved is None and (layer.memory_activation or 0.0) < level.memory:
                yield f"{at}.offload_levels[{j}].memory", "more than memory_activation stays", "give moved, or less"
    for key in ("pre_defined_layer", "auto_partition_layer"):
        for name in getattr(said, key):
            if name not in names:
                yield f"$.{key}", f"names {name}, which is not in $.layers_description", "describe it, or leave it out"
    yield from _misplaced(said)


def _misplaced(said: Description) -> Iterator[tuple[str, str, str]]:
    bodies = [layer.name for layer in said.bodies]
    for i, entry in enumerate(said.layer_types):
        name = entry if isinstance(entry, str) else entry.name
        if name not in bodies:
            yield f"$.layer_types[{i}]", f"{name} is no BODY of $.layers_description", "name one"
    if said.layer_types:
        for name, wanted in said.auto_partition_layer.items():
            listed = sum(run.count for run in said.runs() if run.name == name)
            if name in bodies and listed != wanted:
                problem = f"lists {listed} {name} where auto_partition_layer says {wanted}"
                yield "$.layer_types", problem, "make them agree"
    parts = [name for part in said.sub_models for name in part.layers]
    if said.sub_models and parts != list(dict.fromkeys(run.name for run in said.runs())):
        yield "$.sub_models", f"have the layers {', '.join(parts)}", "name every BODY once, in the model's order"
    if said.pool and said.device_groups:
        yield "$.pool", "is given beside device_groups", "give a pool to be divided, or the groups it is divided into"
