"""One list of events that a profiler may have seen: the truth that files say in their several ways."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20
HEADER, UNIT = 32, 512
T0 = 1764246877073569640
"""A time as these files have it: 19 digits of ns, more than a double holds."""


@dataclass(frozen=True)
class Kernel:
    """One execution. `launched`: when the host did, ns; shapes without the quotes that tools put around them."""

    name: str
    type: str
    start: int
    duration: int
    step: int
    launched: int
    stream: int = 2
    inputs: str = ""
    input_types: str = ""
    outputs: str = ""
    output_types: str = ""
    communication: bool = False

    @property
    def end(self) -> int:
        return self.start + self.duration


@dataclass(frozen=True)
class Block:
    """One allocation. `freed` None: still there at the end. `engine`: of the graph engine's pool."""

    name: str
    bytes: int
    allocated: int
    freed: int | None
    engine: bool = False


@dataclass(frozen=True)
class Run:
    """`base`, `engine_base`: what the pools hold before the first block, to the end. `ghosts`: (bytes, freed) of
    blocks that are older than the record; they are no part of `base`."""

    kernels: tuple[Kernel, ...]
    blocks: tuple[Block, ...]
    base: int = 4 * MIB
    engine_base: int = 64 * KIB
    reserved: int = 96 * MIB
    engine_reserved: int = 16 * MIB
    process: int = 160 * MIB
    modules: dict[str, int] = field(default_factory=lambda: {"HCCL": 20 * MIB, "RUNTIME": 3 * MIB + 512, "SLOG": 0})
    ghosts: tuple[tuple[int, int], ...] = ()
    rank: int = 2
    device: int = 4

    @property
    def steps(self) -> list[int]:
        return sorted({kernel.step for kernel in self.kernels})

    def span(self, step: int) -> tuple[int, int]:
        inside = [kernel for kernel in self.kernels if kernel.step == step]
        return min(k.start for k in inside), max(k.end for k in inside)

    def times(self, step: int) -> dict[str, int]:
        """What step_trace_time says of a step, ns: it is idle where neither a kernel nor a collective runs."""
        inside = [kernel for kernel in self.kernels if kernel.step == step]
        computing = _covered([(k.start, k.end) for k in inside if not k.communication])
        communication = _covered([(k.start, k.end) for k in inside if k.communication])
        both = _covered([(k.start, k.end) for k in inside])
        begin, end = self.span(step)
        return {
            "computing": computing,
            "not_overlapped": both - computing,
            "overlapped": communication - (both - computing),
            "communication": communication,
            "free": end - begin - both,
            "stage": end - begin,
        }

    @property
    def changes(self) -> list[Change]:
        """Allocations and releases in order of time, with the totals of their pool before and after."""
        found = []
        for engine in (False, True):
            events = [(b.allocated, b.bytes, i) for i, b in enumerate(self.blocks) if b.engine == engine]
            events += [(b.freed, -b.bytes, i) for i, b in enumerate(self.blocks) if b.engine == engine and b.freed]
            if not engine:
                events += [(freed, -size, -1) for size, freed in self.ghosts]
            total = self.engine_base if engine else self.base + sum(size for size, _ in self.ghosts)
            for time, size, block in sorted(events):
                found.append(Change(time, size, total, total + size, block, engine))
                total += size
        return sorted(found, key=lambda change: (change.time, change.bytes))

    @property
    def peak(self) -> int:
        """Most that both pools hold together."""
        return max(total for _, total in self.together)

    @property
    def together(self) -> list[tuple[int, int]]:
        total = {False: self.base + sum(size for size, _ in self.ghosts), True: self.engine_base}
        if not any(block.engine for block in self.blocks):
            total[True] = 0
        found = []
        for change in self.changes:
            total[change.engine] = change.after
            found.append((change.time, sum(total.values())))
        return found


@dataclass(frozen=True)
class Change:
    time: int
    bytes: int
    before: int
    after: int
    block: int
    engine: bool


def random_run(seed: int, kernels: int = 40, *, engine: bool = True, steps: int = 1, communication: bool = True) -> Run:
    """Layers that read the previous output and write their own, with workspace and some that stay: sizes and shapes
    agree as they do in files (header, rounding), the host runs ahead of the device."""
    rng = random.Random(seed)
    host, device = T0, T0 + 3_000_000
    made: list[Kernel] = []
    blocks: list[Block] = []
    shape, size = "64,64", 64 * 64 * 4
    for step in range(10, 10 + steps):
        for place in range(kernels):
            host += rng.randrange(20, 900) * 100
            rows, columns = rng.randrange(1, 300), rng.randrange(1, 300)
            output = f"{rows},{columns}"
            size = rows * columns * 4
            block = -(-(size + HEADER) // UNIT) * UNIT
            freed = None if rng.random() < 0.1 else host + rng.randrange(500_000, 4_000_000) // 100 * 100
            blocks.append(Block(f"aten::op{rng.randrange(9)}", block, host, freed))
            if engine and rng.random() < 0.3:
                took = host + 5_000
                blocks.append(Block(f"Node{place}", rng.randrange(1, 500) * UNIT, took, took + 3_000, engine=True))
            host += 10_000
            device = max(device, host + 40_000) + rng.randrange(1_000)
            duration = rng.randrange(1_001, 90_000)
            made.append(
                Kernel(
                    f"aclnnOp{place}_Mul", "Mul", device, duration, step, host,
                    inputs=f"{shape};", input_types="FLOAT;FLOAT", outputs=output, output_types="FLOAT",
                )
            )  # fmt: skip
            shape = output
            if communication and rng.random() < 0.1:
                name = f"hcom_allReduce__{place}_0_1"
                overlap = rng.randrange(duration)
                made.append(
                    Kernel(name, "hcom_allReduce_", device + overlap, 120_000, step, host + 1_000, communication=True)
                )
            device += duration
        host = device = device + 2_000_000
    device_end = max(kernel.end for kernel in made)
    blocks = [
        b if b.freed is None or b.freed < device_end else Block(b.name, b.bytes, b.allocated, None) for b in blocks
    ]
    return Run(tuple(sorted(made, key=lambda kernel: kernel.start)), tuple(blocks))


def released_total(change: Change) -> int:
    """The graph engine says the total before the release, the framework the one after it (in shared/data/
    ascend_convnet all 228 of its releases)."""
    return change.before if change.engine else change.after


def records(run: Run, framework: str) -> Iterator[tuple[str, int, int, int, bool]]:
    """Rows of the pools' record: component, time, allocated, reserved, of the graph engine alone."""
    level = {False: 0, True: 0}
    held = {False: 0, True: 0}
    for change in run.changes:
        level[change.engine], held[change.engine] = change.after, run.engine_reserved if change.engine else run.reserved
        own = "GE" if change.engine else framework
        yield own, change.time, level[change.engine], held[change.engine], change.engine
        yield f"{framework}+GE", change.time, sum(level.values()), sum(held.values()), change.engine


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Length of the union."""
    total, until = 0, -(2**63)
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total
