"""Layer descriptions of SAPP-PPB, which places layers on pipeline stages: an input of placement, and no rank's profile.

Two forms, told by their content. JSON describes each type of layer (`hyperopt.layers`: the stage solver reads it too).
YAML has what a dry run measured per stage, from which upstream fits the same figures. Memory is in MB, times in a unit
of their own: the files name neither. Source: hyper-parallel `auto_parallel/sapp_ppb`, toolkits `pipeline_balance`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from hyperopt import layers
from hyperopt.documents import DocumentError
from hyperopt.layers import MAX_BYTES as MAX_BYTES
from hyperopt.layers import Amount, Count, Layer
from profiler.read.findings import UnreadableError

KIND = "sapp_ppb"

SUFFIXES = (".json", ".yaml", ".yml")

@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Memory of one stage in the dry run, MB; `chunk`: of its virtual pipeline chunks, from 0."""

    chunk: int
    stage: int
    memory_mb: float


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A configuration as it was run dry. `offset`, and layers recomputed per level: ``[chunk][stage]``, an empty row
    where a chunk uses the level nowhere. Times of head, body and tail in a unit of their own; None: not given."""

    stages: int
    layers: int
    micro_batches: int | None
    offset: tuple[tuple[int, ...], ...]
    recomputed: dict[str, tuple[tuple[int, ...], ...]]
    head_mb: float
    tail_mb: float
    bodies: tuple[StageMemory, ...]
    times: tuple[float, float, float] | None


@dataclass(frozen=True, kw_only=True)
class LayerModel:
    """One file. `fixed`: layers with a place of their own, 0 the first stage and -1 the last; `counts`: layers to be
    placed. Where `counts` and a layer's `count` differ, a warning says so, and neither is corrected."""

    file: str
    name: str
    layers: tuple[Layer, ...] = ()
    fixed: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    dry_run: DryRun | None = None
    warnings: tuple[str, ...] = ()


def is_layers(path: Path) -> bool:
    """Whether the file is one, by its name's end, its size and the keys in it."""
    if path.suffix.lower() not in SUFFIXES or path.stat().st_size > MAX_BYTES:
        return False
    text = path.read_bytes()
    if path.suffix.lower() == ".json":
        return b'"layers_description"' in text
    return all(re.search(rb"^" + key + rb"\s*:", text, re.MULTILINE) for key in (b"pipeline_config", b"memory_usage"))


def load(path: Path) -> LayerModel:
    """The description in a file. Raises `UnreadableError` naming the field that is wrong and what is."""
    try:
        if path.suffix.lower() == ".json":
            return _described(path)
        return _dry(path, msgspec.convert(_yaml(path), _Configuration))
    except msgspec.ValidationError as error:
        raise UnreadableError(f"{path.name}: {error}") from error
    except (msgspec.DecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, UnreadableError):
            raise
        first = str(error).partition("\n")[0][:200]
        if isinstance(error, RecursionError):
            first = "brackets are nested too deeply"
        raise UnreadableError(f"{path.name} is no {path.suffix[1:]}: {first}") from error


# -- layers, as JSON: hyperopt.layers ----------------------------------------------------------------------


def _described(path: Path) -> LayerModel:
    try:
        said, warnings = layers.load(path.read_bytes())
    except DocumentError as error:
        raise UnreadableError(f"{path.name}: {error.field}: {error.problem}") from error
    return LayerModel(
        file=path.name,
        name=said.name,
        layers=tuple(layers.typed(layer) for layer in said.layers_description),
        fixed=dict(said.pre_defined_layer),
        counts=dict(said.auto_partition_layer),
        warnings=tuple(f"{path.name}: {warning}" for warning in warnings),
    )


# -- dry runs, as YAML -------------------------------------------------------------------------------------

class _Pipeline(msgspec.Struct):
    pipeline_num: Annotated[int, Meta(ge=1, le=10**5)]
    num_layer: Count
    offset: Any = 0


class _Times(msgspec.Struct):
    head: Amount
    body: Amount
    tail: Amount


class _Bodies(msgspec.Struct):
    stage_id: list[Any]
    memories: list[Any]


class _Usage(msgspec.Struct):
    head_memory: Amount
    tail_memory: Amount
    body_memories: _Bodies


class _Profiling(msgspec.Struct, frozen=True):
    micro_batch_num: Annotated[int, Meta(ge=1, le=10**6)] | None = None


class _Configuration(msgspec.Struct):
    pipeline_config: _Pipeline
    memory_usage: _Usage
    time_config: _Times | None = None
    recompute_config: dict[str, Any] = {}
    profiling_config: _Profiling = _Profiling()


def _dry(path: Path, said: _Configuration) -> LayerModel:
    stages, total = said.pipeline_config.pipeline_num, said.pipeline_config.num_layer
    offset = _rows(path, "pipeline_config.offset", said.pipeline_config.offset, stages)
    chunks = max(len(offset), 1)
    recomputed = {
        key: rows
        for key, value in said.recompute_config.items()
        if any(rows := _rows(path, f"recompute_config.{key}", value, stages))
    }
    warnings = []
    each = total // (stages * chunks)
    placed = each * stages * chunks + sum(map(sum, offset))
    if placed != total:
        warnings.append(
            f"{path.name}: offset places {placed} of num_layer {total} ({each} a stage and chunk, and the offsets)"
        )
    times = said.time_config
    return LayerModel(
        file=path.name,
        name=path.stem,
        dry_run=DryRun(
            stages=stages,
            layers=total,
            micro_batches=said.profiling_config.micro_batch_num,
            offset=offset,
            recomputed=recomputed,
            head_mb=said.memory_usage.head_memory,
            tail_mb=said.memory_usage.tail_memory,
            bodies=_bodies(path, said.memory_usage.body_memories, stages),
            times=None if times is None else (times.head, times.body, times.tail),
        ),
        warnings=tuple(warnings),
    )


def _rows(path: Path, where: str, value: Any, stages: int) -> tuple[tuple[int, ...], ...]:
    """``[chunk][stage]`` from a matrix, or the one row of a single chunk; nothing from false or 0, for a row too."""
    if value is False or value == 0:
        return ()
    rows = value if isinstance(value, list) and any(isinstance(row, list | bool) for row in value) else [value]
    found: list[tuple[int, ...]] = []
    for row in rows:
        if row is False:
            found.append(())
            continue
        try:
            numbers = msgspec.convert(row, list[Annotated[int, Meta(ge=-(10**6), le=10**6)]])
        except msgspec.ValidationError as error:
            raise UnreadableError(f"{path.name}: {where}: {error}") from error
        if len(numbers) != stages:
            raise UnreadableError(f"{path.name}: {where} has {len(numbers)} entries for pipeline_num {stages}")
        found.append(tuple(numbers))
    return tuple(found)


def _bodies(path: Path, said: _Bodies, stages: int) -> tuple[StageMemory, ...]:
    nested = any(isinstance(row, list) for row in said.stage_id)
    where = "memory_usage.body_memories"
    ids = msgspec.convert(said.stage_id if nested else [said.stage_id], list[list[int]])
    sizes = msgspec.convert(said.memories if nested else [said.memories], list[list[Amount]])
    if [len(row) for row in ids] != [len(row) for row in sizes]:
        raise UnreadableError(f"{path.name}: {where} has not as many memories as stage_id")
    for stage in (stage for row in ids for stage in row):
        if not 0 <= stage < stages:
            raise UnreadableError(f"{path.name}: {where}.stage_id names stage {stage} of {stages}")
    return tuple(
        StageMemory(chunk=chunk, stage=stage, memory_mb=size)
        for chunk, (row, memories) in enumerate(zip(ids, sizes, strict=True))
        for stage, size in zip(row, memories, strict=True)
    )


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain values only, and no aliases: a page of them would stand for more than any memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not accepted")
        return super().compose_node(parent, index)


def _yaml(path: Path) -> Any:
    return yaml.load(path.read_bytes(), Loader=_Loader)
