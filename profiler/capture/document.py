"""A program and its times -> operators, storages and notes of `hyperopt.profile/1`."""

from __future__ import annotations

import bisect
import statistics
from collections import Counter

from hyperopt.profile import IDLE, Kind, Operator, Phase, Storage
from profiler.capture.anatomy import Anatomy
from profiler.capture.lifetimes import lengthened
from profiler.capture.program import Block, Program, Step, operator_name
from profiler.capture.timing import Times

IDLE_SHARE = 1 / 1000
"""Small gaps between kernels are added up to idle operators of at least this share of the step."""

RANDOM_TYPES = ("Dropout", "Random", "Uniform", "Normal", "Bernoulli", "Multinomial", "Rand")


def operators_of(program: Program, times: Times, anatomy: Anatomy) -> tuple[list[Operator], list[int]]:
    """The profile's operators, idle ones between them, and where each of the program's steps stands."""
    found: list[Operator] = []
    places: list[int] = []
    now = owed = 0.0
    phases = _phases(program)
    layers = _layers(program, anatomy, phases)
    copy_gaps = _gaps_with_copies(program)
    extended = lengthened(program)
    usual = statistics.median(times.gaps)
    for number, step in enumerate(program.steps):
        if step.kernels:
            gap = times.gaps[step.kernels[0]]
            owed += min(gap, usual) if step.kernels[0] in copy_gaps else gap
            duration = sum(times.durations[kernel] for kernel in step.kernels)
        else:
            duration = 0.0
            if number + 1 < len(program.steps):
                owner, share = _next_kernel(program, number)
                if owner is not None:
                    duration = max(times.gaps[owner] - usual, 0.0) / share
        if owed >= times.step_us * IDLE_SHARE:
            found.append(Operator(type=IDLE, name=f"idle-op{number}", start_us=now, duration_us=owed))
            now += owed
            owed = 0.0
        places.append(len(found))
        found.append(
            Operator(
                name=operator_name(step, number),
                type=step.type,
                start_us=now,
                duration_us=duration,
                layer=layers[number],
                phase=phases[number],
                reads=tuple(dict.fromkeys([*step.reads, *extended[number]])),
                writes=tuple(step.writes),
                shapes=step.shapes,
                dtypes=step.dtypes,
                inputs=step.inputs,
                recomputable=_recomputable(step, phases[number], layers[number]),
                saves=tuple(step.saves),
                loads=tuple(step.loads),
            )
        )
        now += duration
    if owed + times.tail > 0:
        found.append(Operator(type=IDLE, name="idle-end", start_us=now, duration_us=owed + times.tail))
    return found, places


def _next_kernel(program: Program, number: int) -> tuple[int | None, int]:
    """The kernel in whose gap a copy without a kernel lies, and how many such copies share the gap."""
    after = number
    while after < len(program.steps) and not program.steps[after].kernels:
        after += 1
    before = number
    while before > 0 and not program.steps[before - 1].kernels:
        before -= 1
    return (program.steps[after].kernels[0] if after < len(program.steps) else None), after - before


def _gaps_with_copies(program: Program) -> set[int]:
    owners = {_next_kernel(program, i)[0] for i, step in enumerate(program.steps) if not step.kernels}
    return {owner for owner in owners if owner is not None}


def _phases(program: Program) -> list[Phase]:
    """Outside the network and the autograd engine is forward before the backward pass, optimizer after it."""
    last_backward = max((i for i, step in enumerate(program.steps) if step.place == "backward"), default=-1)
    phases: list[Phase] = []
    for number, step in enumerate(program.steps):
        if step.place == "backward":
            phases.append("backward")
        elif number > last_backward >= 0:
            phases.append("optimizer")
        else:
            phases.append("forward")
    return phases


def _layers(program: Program, anatomy: Anatomy, phases: list[Phase]) -> list[str]:
    """A backward operator has no cell: it belongs to the layer that saved what was loaded last."""
    layers: list[str] = []
    for step, phase in zip(program.steps, phases, strict=True):
        if phase == "forward":
            layers.append(anatomy.layer(step.cell) if step.cell else "")
        elif phase == "backward":
            layers.append(layers[step.saved_by[0]] if step.saved_by else layers[-1] if layers else "")
        else:
            layers.append("")
    return layers


def _recomputable(step: Step, phase: Phase, layer: str) -> bool:
    """What `Cell.recompute` of the operator's layer can run again: no randomness, no update in place."""
    return phase == "forward" and bool(layer) and not step.in_place and not step.type.startswith(RANDOM_TYPES)


def storages_of(program: Program, operators: list[Operator], places: list[int], steps: int) -> list[Storage]:
    windows = _windows(program, operators, places)
    makers = {id: operator.phase for operator in operators for id in operator.writes}
    return [
        Storage(
            id=block.id,
            bytes=block.bytes,
            name=block.name,
            kind=_kind(block, makers),
            resident_at_start=block.origin != "made",
            resident_at_end=block.origin != "made",
            offloadable=block.id in windows,
            certainty="inferred" if block.inferred else "measured",
            steps_observed=steps,
            steps_accessed=steps,
            window=windows.get(block.id),
        )
        for block in program.blocks
    ]


def _windows(program: Program, operators: list[Operator], places: list[int]) -> dict[int, tuple[int, int]]:
    """For what autograd saved and loads again: from the last forward access or save to the first load or
    backward access. Where no other call of the hooks lies in between, nothing can be done in between."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    saved: set[int] = set()
    loaded: set[int] = set()
    for place in places:
        operator = operators[place]
        if operator.phase == "forward":
            touched = {*operator.accesses, *operator.saves}
            saved.update(operator.saves)
            last.update(dict.fromkeys(touched, place))
        else:
            loaded.update(operator.loads)
            for id in {*operator.accesses, *operator.loads}:
                first.setdefault(id, place)
    made = {block.id for block in program.blocks if block.origin == "made"}
    calls = [place for place in places if operators[place].saves or operators[place].loads]
    return {
        id: (last[id], first[id])
        for id in sorted(made & saved & loaded)
        if bisect.bisect_right(calls, last[id]) < bisect.bisect_left(calls, first[id])
    }


def _kind(block: Block, makers: dict[int, Phase]) -> Kind:
    if block.origin != "made":
        return block.origin
    made_in = makers.get(block.id)
    return "gradient" if made_in == "backward" else "activation" if made_in == "forward" else "other"


def notes_of(program: Program, times: Times, storages: list[Storage]) -> list[str]:
    notes = ["training steps in PyNative mode; times are medians of the CPU profiler's kernel times"]
    kernels = Counter(step.type for step in program.steps if step.unseen and step.kernels)
    if kernels:
        notes.append(f"kernels that the dispatcher does not show, accesses inferred: {_counts(kernels)}")
    copies = sum(1 for step in program.steps if step.unseen and not step.kernels)
    if copies:
        notes.append(f"copies of strided views have no kernel: {copies}, time taken from the gap they lie in")
    longer = sum(len(held) for held in lengthened(program))
    if longer:
        notes.append(f"reads added where memory was still held, by a Python variable or a backward formula: {longer}")
    if program.unclaimed:
        notes.append(f"no operator was seen to read the output of: {_counts(program.unclaimed)}")
    constants = [s for s in storages if s.kind == "other" and s.resident_at_start]
    if constants:
        size = sum(storage.bytes for storage in constants)
        notes.append(f"taken for constants, maker not seen: {len(constants)} storages, {size} bytes")
    if program.never_loaded:
        notes.append(f"saved for backward and never fetched: {program.never_loaded}")
    if times.scaled != 1.0:
        notes.append(f"kernel times exceed the plain step: scaled by {times.scaled:.4f}")
    return notes


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} x {count}" for name, count in sorted(counter.items()))
