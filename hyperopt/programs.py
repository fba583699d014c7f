"""The description of an MPMD step: programs that are no chain, the calls that they run, and the devices there are.

::

    programs   rollout   actor   critic   reward            each with its own sizes of group and memory
    calls      generate ─▶ score ─▶ update, value ─▶ ..     what a program does for a micro-batch, or once a step
    pool       16 old, 48 new

Programs are what holds memory and stands on a group of devices; calls are what takes time and depends on each other (a
program may have several: an actor computes probabilities and is updated). Memory is in MB, times in any one unit.
docs/reference/programs.md has every field. Programs and calls apart, and groups that several share, are as in
HybridFlow (Sheng et al. 2024, arXiv 2409.19256).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hyperopt.documents import DocumentError, decompress, unknown_keys
from hyperopt.layers import MAX_BYTES, Amount, DeviceGroup, Devices, LayerFields, Name, Positive

REMEDY = "see docs/reference/programs.md"

MOST_PROGRAMS, MOST_CALLS = 12, 40

Sized = Amount | dict[Devices, Amount]
"""A number for one device, shared out over more, or a table: devices -> what holds for a group of so many."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has to be done first, and MB that one run of it sends."""

    call: Name
    mb: Amount = 0.0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a program does for every micro-batch, or once a step for all of them.

    `time`: of one run; a number is one device's, n devices take q + (1 - q) / n of it (q: `serial_fraction`).
    `layers`: instead, that pass of the program's layers. `activation`: MB that a run holds, on all devices together, or
    on each by table, to its end or that of the same micro-batch's run of the call `until`, of the same program.
    """

    name: Name
    program: Name
    time: Sized | None = None
    serial_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.0
    layers: Literal["forward", "backward"] | None = None
    per: Literal["micro_batch", "step"] = "micro_batch"
    activation: Sized = 0.0
    until: Name = ""
    after: tuple[Input, ...] = ()


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Something with weights. `memory`: MB of them and what belongs to them, on all devices together, or on each by
    table; that of its layers unless given. `devices`: the sizes of group it can have, all unless given or in a table;
    `kinds`: names of the pool's; `parallel`: how it is parallel inside, by devices, only told on. `read_only`: it need
    not be copied out to make room."""

    name: Name
    memory: Sized | None = None
    devices: tuple[Devices, ...] = ()
    kinds: tuple[Name, ...] = ()
    parallel: dict[Devices, Name] = {}
    read_only: bool = False
    layers_description: tuple[LayerFields, ...] = ()


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Between groups: MB per unit of time of each device; as many pairs of devices as the smaller group has work at
    once."""

    mb_per_time: Positive
    latency: Amount = 0.0


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """Between a device and its host: MB per unit of time, and MB of the host for each device (None: no limit)."""

    out_mb_per_time: Positive
    in_mb_per_time: Positive
    host_memory: Amount | None = None


class Programs(msgspec.Struct, frozen=True, kw_only=True):
    """The document. Without `link` transfers take no time; without `swap` programs that share devices stay on them."""

    programs: Annotated[tuple[Program, ...], Meta(min_length=1, max_length=MOST_PROGRAMS)]
    calls: Annotated[tuple[Call, ...], Meta(min_length=1, max_length=MOST_CALLS)]
    pool: Annotated[tuple[DeviceGroup, ...], Meta(min_length=1, max_length=10)]
    micro_batches: Annotated[int, Meta(ge=1, le=1000)] = 1
    name: Name = ""
    link: Link | None = None
    swap: Swap | None = None


def load(data: bytes) -> tuple[Programs, list[str]]:
    """A description from JSON (plain, gzip or zstd), and warnings. Raises `DocumentError`."""
    plain = decompress(data, MAX_BYTES)
    try:
        said = msgspec.json.decode(plain, type=Programs)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise DocumentError(place.replace("`", "") or "$", problem, REMEDY) from error
    except RecursionError as error:
        raise DocumentError("$", "brackets are nested too deeply", "send a description of programs") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DocumentError("$", f"no json: {error}", "send a complete UTF-8 JSON document") from error
    for field, problem, remedy in _faults(said):
        raise DocumentError(field, problem, remedy)
    return said, unknown_keys(plain, Programs)


def _faults(said: Programs) -> Iterator[tuple[str, str, str]]:
    """(field, problem, remedy) of what is wrong across fields."""
    for field in ("programs", "calls", "pool"):
        names = [entry.name for entry in getattr(said, field)]
        for i, name in enumerate(names):
            if name in names[:i] or not name:
                yield f"$.{field}[{i}].name", f"{name!r} names nothing, or a second one", "give each a name of its own"
    kinds = [kind.name for kind in said.pool]
    for i, program in enumerate(said.programs):
        for j, kind in enumerate(program.kinds):
            if kind not in kinds:
                yield f"$.programs[{i}].kinds[{j}]", f"no {kind!r} in the pool", f"name some of {', '.join(kinds)}"
        if not any(call.program == program.name for call in said.calls):
            yield f"$.programs[{i}]", f"{program.name} has no call", "say in calls what it does, or leave it out"
        for layer in program.layers_description:
            if layer.time is None and layer.forward_time is None:
                yield (
                    f"$.programs[{i}].layers_description",
                    f"{layer.name} has neither time nor forward_time",
                    "give one",
                )
    yield from _calls(said)


def _calls(said: Programs) -> Iterator[tuple[str, str, str]]:
    programs = {program.name: program for program in said.programs}
    calls = {call.name: call for call in said.calls}
    for i, call in enumerate(said.calls):
        at = f"$.calls[{i}]"
        if call.program not in programs:
            yield f"{at}.program", f"no program {call.program!r}", f"name one of {', '.join(programs)}"
        elif (call.time is None) == (call.layers is None):
            yield at, f"{call.name} has neither time nor layers, or both", "give one of them"
        elif call.layers is not None and not programs[call.program].layers_description:
            yield f"{at}.layers", f"{call.program} has no layers_description", "give it one, or give time"
        for j, source in enumerate(call.after):
            if source.call not in calls:
                yield f"{at}.after[{j}].call", f"no call {source.call!r}", f"name one of {', '.join(calls)}"
        if call.until:
            other = calls.get(call.until)
            if other is None or other.program != call.program or other.per != call.per:
                problem = f"{call.until!r} is no call of {call.program} that runs as often"
                yield f"{at}.until", problem, "name the call of the same program that frees the activations"
            elif call.name not in _before(calls, call.until):
                yield f"{at}.until", f"{call.until} does not come after {call.name}", "let it depend on it in after"
        if call.name in _before(calls, call.name):
            yield (
                f"{at}.after",
                f"{call.name} waits for itself",
                "what is for the next step is no dependency: leave it out",
            )


def _before(calls: Mapping[str, Call], name: str) -> set[str]:
    """All that a call waits for."""
    found: set[str] = set()
    left = [name]
    while left:
        call = calls.get(left.pop())
        for source in call.after if call else ():
            if source.call not in found:
                found.add(source.call)
                left.append(source.call)
    return found
