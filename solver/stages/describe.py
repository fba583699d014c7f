"""From a layer description to a problem in ticks and grains.

A layer's time on a stage: `time` over the group's speed; where it has a `serial_fraction` q, `time` is that of one
device and n devices take q + (1 - q) / n of it (Amdahl), each with an n-th of the layer's memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hyperopt.documents import DocumentError
from hyperopt.layers import Description, DeviceGroup, Layer, LayerFields, PerStage, typed
from solver.stages.problem import NO_LIMIT, Column, Problem, Schedule, fastest_split, parts, uniform

I64 = NDArray[np.int64]

MOST_TICKS, MOST_GRAINS = 2**50, 2**44
"""Ticks of the longest schedule (a float holds them exactly) and grains of memory."""

FINE = 10**5
"""Steps of rounding in an average layer's time, and in a limit for each activation below it, at the least: an error of
5 in a million."""

FAR = 1e4
"""Times all that the whole model could ever hold on one stage: a limit beyond that is none."""

APART = "are too far apart to be added up exactly"
REMEDY = "leave out what is not meant (no limit: no entry), or mend the unit of the largest or the smallest"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a description: `stages` x `chunks` groups, `micro_batches` a step, in the order of `schedule`;
    every group has at least `min_layers` of the layers that are placed."""

    stages: int
    micro_batches: int
    schedule: Schedule = "1f1b"
    chunks: int = 1
    min_layers: int = 1


@dataclass(frozen=True)
class _Option:
    """A level of a layer in the description's units: MB per micro-batch on the device and moved out of it; of
    `backward` what the `weight`s' gradients take, and MB (`late`) that they need."""

    name: str
    offloaded: bool
    forward: float
    backward: float
    weight: float
    device: float
    moved: float
    late: float


def problem(description: Description, asked: Request, groups: Sequence[DeviceGroup] = ()) -> Problem:
    """The problem on these groups of devices (the description's, or equal ones, unless given).

    Raises `DocumentError` where lists do not fit the number of stages.
    """
    groups = groups or description.device_groups or [DeviceGroup()] * asked.stages
    if len(groups) != asked.stages:
        told = f"{len(groups)} groups for {asked.stages} stages"
        raise DocumentError("$.device_groups", told, "give one for each stage, in the order of the pipeline")
    bodies = [layer for layer in description.bodies if any(run.name == layer.name for run in description.runs())]
    index = {layer.name: t for t, layer in enumerate(bodies)}
    runs = tuple((index[run.name], run.count) for run in description.runs())
    if not runs:
        raise DocumentError("$.layers_description", "there is no layer to be placed", "describe a BODY")
    columns: list[Column] = []
    options: list[_Option] = []
    for t, layer in enumerate(bodies):
        for option in _options(layer):
            columns.append(Column(t, option.name, "offload" if option.offloaded else "recompute"))
            options.append(option)
    body_of = [bodies[c.type] for c in columns]
    link = description.offload_link
    out, back = (link.out_mb_per_time, link.in_mb_per_time) if link else (1.0, 1.0)
    halved = parts(asked.schedule) == 3
    fixed = [layer for layer in description.layers_description if layer.type != "BODY"]
    ends = [[layer for layer in fixed if description.first(layer) is first] for first in (True, False)]

    def by_stage(values: Sequence[float]) -> list[list[float]]:
        return [[x * time_share(b.serial_fraction, g) for x, b in zip(values, body_of, strict=True)] for g in groups]

    def copies(rate: float) -> list[list[float]]:
        return [
            [o.moved * memory_share(b.serial_fraction, g) / rate for o, b in zip(options, body_of, strict=True)]
            for g in groups
        ]

    def at_end(layers: list[LayerFields], part: int) -> list[float]:
        each = [_tasks(typed(layer), halved)[part] * description.count(layer) for layer in layers]
        return [
            sum(time * time_share(layer.serial_fraction, g) for time, layer in zip(each, layers, strict=True))
            for g in groups
        ]

    times = [by_stage([_tasks(o, halved)[part] for o in options]) for part in range(3)]
    times += [copies(out), copies(back)]
    extra = [[at_end(layers, part)] for layers in ends for part in range(parts(asked.schedule))]
    links = _per_stage(description.transfer_times, "transfer_times", asked.stages)
    transfer = [[0.0 if x is None else x for x in links]]
    if asked.chunks == 1:
        transfer[0][-1] = 0.0  # nothing goes from the last stage back to the first
    tick, ticks, time_step = _whole([*times, *extra, transfer], MOST_TICKS // _most(asked, runs))

    def held(value: Callable[[_Option], float]) -> list[list[float]]:
        return [
            [value(o) * memory_share(b.serial_fraction, g) for o, b in zip(options, body_of, strict=True)]
            for g in groups
        ]

    parameter = [[layer.memory_parameter * memory_share(layer.serial_fraction, g) for layer in bodies] for g in groups]
    static = [0.0] * asked.stages
    for layers, stage in zip(ends, (0, asked.stages - 1), strict=True):
        for layer in layers:
            static[stage] += (
                layer.memory_parameter * description.count(layer) * memory_share(layer.serial_fraction, groups[stage])
            )
    beside = [[0.0] * (asked.stages * asked.chunks) for _ in range(2)]
    for layers, group, stage in ((ends[0], 0, 0), (ends[1], -1, asked.stages - 1)):
        for layer in layers:
            share = description.count(layer) * memory_share(layer.serial_fraction, groups[stage])
            beside[0][group] += share * (layer.memory_activation or 0.0)
            beside[1][group] += share * typed(layer).weight_mb if halved else 0.0
    hosts = _per_stage(description.host_limits, "host_limits", asked.stages)
    # A limit that nothing comes near is none: it must not make the others coarse.
    everything = sum(static) + asked.micro_batches * sum(map(sum, beside))
    for t, count in runs:
        of_type = [o for o, c in zip(options, columns, strict=True) if c.type == t]
        alive = max(o.device + o.moved + o.late for o in of_type)
        everything += count * (bodies[t].memory_parameter + asked.micro_batches * alive)
    bounds = [
        [None if x is not None and x > FAR * everything else x for x in said]
        for said in (_limits(description, asked.stages, groups), hosts)
    ]
    known = [[x or 0.0 for x in each] for each in bounds]
    activations = [held(lambda o: o.device), held(lambda o: o.moved), held(lambda o: o.late if halved else 0.0)]
    grain, memory, memory_step = _whole([*activations, parameter, [static, *known], beside], MOST_GRAINS)
    limits = [
        np.array([NO_LIMIT if x is None else y for x, y in zip(said, row, strict=True)], np.int64)
        for said, row in zip(bounds, memory[4][1:], strict=True)
    ]
    made = Problem(
        stages=asked.stages,
        chunks=asked.chunks,
        micro_batches=asked.micro_batches,
        schedule=asked.schedule,
        runs=runs,
        columns=tuple(columns),
        types=tuple(layer.name for layer in bodies),
        forward=ticks[0],
        backward=ticks[1],
        weight=ticks[2],
        copy_out=ticks[3],
        copy_in=ticks[4],
        device=memory[0],
        late=memory[2],
        host=memory[1],
        parameter=memory[3],
        first=tuple(rows[0] for rows in ticks[5 : 5 + len(extra) // 2]),
        last=tuple(rows[0] for rows in ticks[5 + len(extra) // 2 : -1]),
        beside=np.ascontiguousarray(memory[5].T),
        static=memory[4][0],
        limit=limits[0],
        host_limit=limits[1],
        transfer=ticks[-1][0],
        min_layers=asked.min_layers,
        tick=tick,
        grain=grain,
    )
    # Each number is off by half a step at the most: what they are added up to must not be.
    if made.durations(fastest_split(made, uniform(made))).sum() * tick < FINE * made.layers * time_step:
        raise DocumentError("$.layers_description", f"times {APART}", REMEDY)
    finite = [int(x) for x in (*made.limit, *made.host_limit) if x < NO_LIMIT]
    if min(finite, default=NO_LIMIT) * grain < FINE * made.layers * made.micro_batches * memory_step:
        held_mb = [x for rows in (*activations, parameter, [static], beside) for row in rows for x in row if x > 0]
        raise DocumentError(_odd(description, bounds, groups, held_mb), f"MB, limits among them, {APART}", REMEDY)
    return made


def _odd(
    description: Description,
    bounds: Sequence[Sequence[float | None]],
    groups: Sequence[DeviceGroup],
    held: Sequence[float],
) -> str:
    """The field of the amount that the others are far from: the smallest limit, or else what layers hold."""
    limit, host, s = min((x, host, s) for host, row in enumerate(bounds) for s, x in enumerate(row) if x is not None)
    middle = sorted(held)[len(held) // 2] if held else 1.0
    if held and limit > 0 and max(held) / middle > middle / limit:
        return "$.layers_description"
    said = description.host_limits if host else description.memory_limits
    if not host and groups[s].memory == limit:
        return f"$.device_groups[{s}].memory" if description.device_groups else "$.pool"
    return f"$.{'host_limits' if host else 'memory_limits'}" + (f"[{s}]" if isinstance(said, list) else "")


def _options(layer: LayerFields) -> list[_Option]:
    """A layer's levels, the fastest first; what another level beats in time and memory both is left out."""
    of = typed(layer)

    def option(name: str, offloaded: bool, extra: float, memory: float, moved: float) -> _Option:
        backward = of.backward * (1 + extra)
        return _Option(name, offloaded, of.forward, backward, of.weight, memory, moved, of.weight_mb)

    found = [option(v.name, False, v.extra_backward, v.memory_mb, 0.0) for v in of.levels]
    found += [option(level.name, False, level.coef, level.memory, 0.0) for level in layer.recompute_levels]
    kept = layer.memory_activation or 0.0
    for level in layer.offload_levels:
        moved = kept - level.memory if level.moved is None else level.moved
        found.append(option(level.name, True, level.coef, level.memory, moved))
    if not of.levels:  # no memory is given at all: activations are kept and weigh nothing
        found.append(option("none", False, 0.0, 0.0, 0.0))
    found.sort(key=lambda o: (o.backward, o.moved, o.device))
    return [
        o for i, o in enumerate(found)
        if not any(a.backward <= o.backward and a.device <= o.device and a.moved <= o.moved for a in found[:i])
    ]  # fmt: skip


def _tasks(of: _Option | Layer, halved: bool) -> tuple[float, float, float]:
    """Forward, backward and what is kept apart of it."""
    return (of.forward, of.backward - of.weight, of.weight) if halved else (of.forward, of.backward, 0.0)


def time_share(serial_fraction: float | None, group: DeviceGroup) -> float:
    """What a group takes of a layer's time."""
    q = serial_fraction
    return (1.0 if q is None else q + (1 - q) / group.devices) / group.speed


def memory_share(serial_fraction: float | None, group: DeviceGroup) -> float:
    """What each device of a group holds of a layer."""
    return 1.0 if serial_fraction is None else 1.0 / group.devices


def _per_stage(given: PerStage | None, field: str, stages: int) -> list[float | None]:
    if given is None:
        return [None] * stages
    if isinstance(given, list):
        if len(given) != stages:
            problem = f"{len(given)} entries for {stages} stages"
            raise DocumentError(f"$.{field}", problem, "give one number, or one for each stage")
        return list(given)
    return [given] * stages


def _limits(description: Description, stages: int, groups: Sequence[DeviceGroup]) -> list[float | None]:
    """MB of a device on each stage: the smaller of `memory_limits` and the group's own."""
    said = _per_stage(description.memory_limits, "memory_limits", stages)
    return [
        min((x for x in (limit, group.memory) if x is not None), default=None)
        for limit, group in zip(said, groups, strict=True)
    ]


def _most(asked: Request, runs: Iterable[tuple[int, int]]) -> int:
    """No schedule is longer than so many of the longest times: every task, one after another, and its links."""
    layers = sum(count for _, count in runs)
    return 4 * asked.micro_batches * (layers + 2 * asked.stages * asked.chunks + 2)


def _whole(values: Sequence[Sequence[Sequence[float]]], most: int) -> tuple[float, list[I64], float]:
    """What one is worth, and numbers as integers: exact where decimals allow, else as fine as `most` allows for the
    largest (`most` itself then, or a little less); and the step that they were rounded to (0: exact)."""
    flat = [x for rows in values for row in rows for x in row]
    largest = max(flat, default=0.0)
    digits = max((-int(Decimal(repr(float(x))).as_tuple().exponent) for x in flat if x), default=0)
    room = math.floor(math.log10(most / largest)) if largest else 0
    scale = Fraction(10) ** min(digits, room)
    whole = [[[round(Fraction(x) * scale) for x in row] for row in rows] for rows in values]
    common = math.gcd(*(x for rows in whole for row in rows for x in row)) or 1
    integers = [np.array([[x // common for x in row] for row in rows], np.int64) for rows in whole]
    return float(common / scale), integers, 0.0 if digits <= room else float(1 / scale)
