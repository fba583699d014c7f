"""A training step in PyNative mode -> `hyperopt.profile/1`.

Four looks at the same step, because each disturbs what another measures (docs/why/pynative.md)::

    plain      nothing attached              -> step time
    recorded   MindSpore's CPU profiler      -> kernel times, bytes in use
    observed   profiler + dispatch + hooks   -> operators, storages, saves and loads (memory is doubled:
    unused)

The kernels of the recorded steps and of the observed one must be the same, in the same order; that is what
joins a time to an operator.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from hyperopt.profile import Adapter, Bytes, Device, Kind, Measured, Profile, Run, check
from profiler.apply.copies import address_of
from profiler.capture.document import notes_of, operators_of, storages_of
from profiler.capture.graph import anatomy_of
from profiler.capture.lifetimes import hold_dead_blocks
from profiler.capture.machine import host_bytes, measured_links
from profiler.capture.observation import Observation, observe, tensors_in
from profiler.capture.program import Block, Known, Program, assemble
from profiler.capture.recording import CaptureError, record_steps
from profiler.capture.timing import Times, same_kernels

ARENA_GAP = 4 << 30
"""Two blocks farther apart are of different regions of the address space: the CPU pool asks the system for 1 GiB
or one block at a time, whichever is more."""

ADAPTER = Adapter(name="mindspore-pynative", mode="pynative", moves="window", recompute="cell")


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

    It is run ``warmup`` + 2 x ``steps`` + 2 times, and trains as it does so. ``hbm_bytes``: budget of the
    device (default: the measured peak). Call ``mindspore.runtime.launch_blocking()`` before the process's
    first operator: kernel times overlap with dispatch otherwise, and on two cores the step takes three times
    as long.

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
    gc.collect()  # what the observer kept refers to itself in circles: free it now, not some steps later
    same_kernels([*recorded, observed])

    program = assemble(observation[0], observed.kernels, _known(step, args, net))
    used_before = int(statistics.median(record.used_before for record in recorded))
    outside = outside_pool(program, used_before)
    base = _base_bytes(program, used_before, outside)
    hold_dead_blocks(program, recorded, base)
    times = Times.of(recorded, statistics.median(plain) * 1e6)
    operators, places = operators_of(program, times, anatomy_of(net))
    storages = storages_of(program, operators, places, steps)
    peak = max(record.peak_bytes for record in recorded)
    profile = Profile(
        run=Run(
            name=name,
            framework="mindspore",
            framework_version=str(ms.__version__),
            model=type(net).__name__,
            source="capture",
            notes=tuple(notes_of(program, times, storages)),
        ),
        device=Device(
            name="CPU (MindSpore memory pool)",
            hbm_bytes=hbm_bytes or peak + sum(block.bytes for block in program.blocks if block.origin in outside),
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
            excludes=outside,
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


def _wait(result: Any) -> None:
    for tensor in tensors_in(result):
        tensor.asnumpy()


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def outside_pool(program: Program, used_before: int) -> tuple[Kind, ...]:
    """Kinds of storages that the pool's record does not count: `Tensor(array)` keeps numpy's memory, so parameters
    that were never assigned to stay where numpy put them. The pool's blocks are those that lie in one of its
    `_arenas`; small blocks of numpy's may lie there too, which shows where more is there than the pool has in use
    when a step begins (``used_before``)."""
    arenas = _arenas([block for block in program.blocks if block.origin == "made"])
    resident: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    for block in program.blocks:
        if block.origin != "made":
            resident[block.origin] += block.bytes
            inside = any(low <= block.address <= high for low, high in arenas)
            outside[block.origin] += 0 if inside else block.bytes
    found = {kind for kind in resident if 2 * outside[kind] > resident[kind]}
    suspects: tuple[Kind, ...] = ("optimizer_state", "parameter", "input", "other")
    for kind in suspects:
        if sum(size for k, size in resident.items() if k not in found) > used_before:
            found.add(kind)
    return tuple(kind for kind in suspects if kind in found and resident[kind])


def _arenas(made: list[Block]) -> list[tuple[int, int]]:
    """Lowest and highest address of the step's own blocks in each region that the pool got from the system. A few
    tensors of a step are numpy's too (Python scalars), in the heap and terabytes away: a region counts where at
    least a twentieth of the bytes lie.

    ::

        heap  . .                          arena  |||||||||||||||||||||    arena  ||||||||
              scalars and parameters              ^ low               ^ high
    """
    regions: list[list[Block]] = []
    for block in sorted(made, key=lambda block: block.address):
        if not regions or block.address - regions[-1][-1].address > ARENA_GAP:
            regions.append([])
        regions[-1].append(block)
    total = sum(block.bytes for block in made)
    return [
        (region[0].address, region[-1].address)
        for region in regions
        if 20 * sum(block.bytes for block in region) >= total
    ]


def _base_bytes(program: Program, used_before: int, outside: tuple[Kind, ...]) -> int:
    """Pool bytes at a step's start that no storage of the program describes."""
    described = sum(b.bytes for b in program.blocks if b.origin != "made" and b.origin not in outside)
    return max(used_before - described, 0)
