"""A training step in PyNative mode -> `hyperopt.profile/1`.

Four looks at the same step, because each disturbs what another measures (docs/why/pynative.md)::

    plain      nothing attached              -> step time
    recorded   MindSpore's CPU profiler      -> kernel times, bytes in use
    observed   profiler + dispatch + hooks   -> operators, storages, saves and loads (memory is doubled: unused)

The kernels of the recorded steps and of the observed one must be the same, in the same order; that is what
joins a time to an operator.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hyperopt.profile import (
    IDLE,
    Adapter,
    Bytes,
    Device,
    Kind,
    Measured,
    Operator,
    Phase,
    Profile,
    Run,
    Storage,
    check,
)
from profiler.apply.copies import address_of
from profiler.capture.anatomy import Anatomy
from profiler.capture.lifetimes import hold_dead_blocks, lengthened
from profiler.capture.machine import host_bytes, measured_links
from profiler.capture.observation import Observation, observe, tensors_in
from profiler.capture.program import Block, Known, Program, Step, assemble, operator_name
from profiler.capture.recording import StepRecord, record_steps

ADAPTER = Adapter(name="mindspore-pynative", mode="pynative", moves="window", recompute="layer")

IDLE_SHARE = 1 / 1000
"""Small gaps between kernels are added up to idle operators of at least this share of the step."""

RANDOM_TYPES = ("Dropout", "Random", "Uniform", "Normal", "Bernoulli", "Multinomial", "Rand")


class CaptureError(RuntimeError):
    """The step cannot be profiled; the message says what was seen and what to do."""


def capture_pynative(
    step: Callable[..., Any],
    *args: Any,
    net: Any,
    steps: int = 3,
    warmup: int = 2,
    hbm_bytes: Bytes | None = None,
    name: str = "",
) -> Profile:
    """Profiles ``step(*args)``, which does one training step of ``net`` and returns a tensor (the loss).

    It is run ``warmup`` + 2 x ``steps`` + 2 times, and trains as it does so. ``hbm_bytes``: budget of the device
    (default: the measured peak). Call ``mindspore.runtime.launch_blocking()`` before the process's first
    operator: kernel times overlap with dispatch otherwise, and on two cores the step takes three times as long.

    Raises `CaptureError` where the mode is not PyNative, or where two steps do not launch the same kernels.
    """
    import mindspore as ms

    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        raise CaptureError("the mode is not PyNative: call mindspore.set_context(mode=mindspore.PYNATIVE_MODE)")
    if steps < 3:
        raise CaptureError(f"{steps} steps give no median: ask for at least 3")

    def run() -> None:
        _wait(step(*args))

    for _ in range(max(warmup, 1)):
        run()
    plain = [_seconds(run) for _ in range(steps)]
    recorded = record_steps(run, steps + 1)[1:]  # the first one also starts the profiler
    observation: list[Observation] = []
    observed = record_steps(lambda: observation.append(observe(run, net)), 1)[0]
    _same_kernels([*recorded, observed])

    program = assemble(observation[0], observed.kernels, _known(step, args, net))
    base = _base_bytes(program, recorded)
    hold_dead_blocks(program, recorded, base)
    times = _Times.of(recorded, statistics.median(plain) * 1e6)
    operators, places = _operators(program, times, anatomy_of(net))
    storages = _storages(program, operators, places, steps)
    peak = max(record.peak_bytes for record in recorded)
    outside = _outside_pool(program)
    profile = Profile(
        run=Run(
            name=name,
            framework="mindspore",
            framework_version=str(ms.__version__),
            model=type(net).__name__,
            source="capture",
            notes=tuple(_notes(program, times, storages)),
        ),
        device=Device(
            name="CPU (MindSpore memory pool)",
            hbm_bytes=hbm_bytes or peak + sum(program.blocks[id].bytes for id in outside),
            base_bytes=base,
            host_bytes=host_bytes(),
            links=measured_links(),
        ),
        operators=tuple(operators),
        storages=tuple(storages),
        measured=Measured(
            step_us=times.step_us,
            step_us_spread=(max(plain) - min(plain)) * 1e6,
            peak_bytes=peak,
            excludes=tuple(sorted({storages[id].kind for id in outside})),
        ),
        adapter=ADAPTER,
    )
    check(profile)
    return profile


def _known(step: Callable[..., Any], args: tuple[Any, ...], net: Any) -> Known:
    from mindspore import nn

    states = step.get_parameters() if isinstance(step, nn.Cell) else ()
    return Known(
        parameters={address_of(parameter): parameter.name for parameter in net.get_parameters()},
        states={address_of(parameter): parameter.name for parameter in states},
        inputs={address_of(tensor): f"input{number}" for number, tensor in enumerate(tensors_in(args))},
    )


def anatomy_of(net: Any) -> Anatomy:
    """The network's cells, for `Anatomy.layer`: which cell of the network an operator's layer is."""
    from mindspore import nn

    cells = dict(net.cells_and_names())
    containers = {name for name, cell in cells.items() if isinstance(cell, (nn.CellList, nn.SequentialCell))}
    return Anatomy(cells=frozenset(cells), containers=frozenset(containers), owners={})


def _wait(result: Any) -> None:
    for tensor in tensors_in(result):
        tensor.asnumpy()


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _same_kernels(records: list[StepRecord]) -> None:
    """Raises `CaptureError` at the first kernel in which a step differs from the first one."""
    first = [kernel.type for kernel in records[0].kernels]
    if not first:
        raise CaptureError("the profiler recorded no kernels")
    for number, record in enumerate(records[1:], 1):
        types = [kernel.type for kernel in record.kernels]
        if types == first:
            continue
        place = next((i for i, (a, b) in enumerate(zip(first, types, strict=False)) if a != b), min(len(first), len(types)))
        here = f"{first[place : place + 1]} and {types[place : place + 1]}"
        raise CaptureError(
            f"steps launch different kernels: {len(first)} and {len(types)} in all, first difference at kernel {place}: "
            f"{here} (step 0 and {number}). Capture a step whose work does not depend on the data"
        )


@dataclass(frozen=True)
class _Times:
    """Medians over the recorded steps, in microseconds: of each kernel, of the gap before each, and of the gap
    after the last. Scaled so that all together are the plain step."""

    durations: list[float]
    gaps: list[float]
    tail: float
    step_us: float
    scaled: float

    @staticmethod
    def of(records: list[StepRecord], step_us: float) -> _Times:
        kernels = list(zip(*(record.kernels for record in records), strict=True))
        durations = [statistics.median((k.end - k.start) / 1e3 for k in same) for same in kernels]
        gaps = [statistics.median(_gap(record, i) for record in records) for i in range(len(kernels))]
        tail = statistics.median((record.end - record.kernels[-1].end) / 1e3 for record in records)
        busy, idle = sum(durations), sum(gaps) + tail
        if busy < step_us and idle > 0:
            share = (step_us - busy) / idle
            return _Times(durations, [gap * share for gap in gaps], tail * share, step_us, 1.0)
        share = step_us / busy
        return _Times([d * share for d in durations], [0.0] * len(gaps), 0.0, step_us, share)


def _gap(record: StepRecord, number: int) -> float:
    """Microseconds between the end of the kernel before and the start of this one."""
    before = record.kernels[number - 1].end if number else record.start
    return max((record.kernels[number].start - before) / 1e3, 0.0)


def _operators(program: Program, times: _Times, anatomy: Anatomy) -> tuple[list[Operator], list[int]]:
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


def _storages(program: Program, operators: list[Operator], places: list[int], steps: int) -> list[Storage]:
    windows = _windows(program, operators, places)
    gradients = _gradients(operators)
    return [
        Storage(
            id=block.id,
            bytes=block.bytes,
            name=block.name,
            kind=_kind(block, operators, gradients),
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
    backward access."""
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
    return {id: (last[id], first[id]) for id in sorted(made & saved & loaded) if last[id] < first[id]}


def _gradients(operators: list[Operator]) -> set[int]:
    return {id for operator in operators if operator.phase == "backward" for id in operator.writes}


def _kind(block: Block, operators: list[Operator], gradients: set[int]) -> Kind:
    if block.origin == "made":
        if block.id in gradients:
            return "gradient"
        forward = any(block.id in o.writes and o.phase == "forward" for o in operators)
        return "activation" if forward else "other"
    return block.origin


def _outside_pool(program: Program) -> set[int]:
    """Storages that the pool's record does not count: `Tensor(array)` keeps numpy's memory, so parameters that
    were never assigned to stay where numpy put them. The pool's blocks are those between the lowest and the
    highest address that an operator of the step got from it."""
    made = [block.address for block in program.blocks if block.origin == "made"]
    low, high = min(made), max(made)
    return {block.id for block in program.blocks if block.origin != "made" and not low <= block.address <= high}


def _base_bytes(program: Program, records: list[StepRecord]) -> int:
    """Pool bytes at a step's start that no storage of the program describes."""
    outside = _outside_pool(program)
    described = sum(block.bytes for block in program.blocks if block.origin != "made" and block.id not in outside)
    return max(int(statistics.median(record.used_before for record in records)) - described, 0)


def _notes(program: Program, times: _Times, storages: list[Storage]) -> list[str]:
    notes = ["training steps in PyNative mode; times are medians of the CPU profiler's kernel times"]
    kernels = Counter(step.type for step in program.steps if step.unseen and step.kernels)
    if kernels:
        notes.append(f"kernels that the dispatcher does not show, accesses inferred: {_counts(kernels)}")
    copies = sum(1 for step in program.steps if step.unseen and not step.kernels)
    if copies:
        notes.append(f"contiguous copies of strided views have no kernel: {copies}, time taken from the gap they lie in")
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



