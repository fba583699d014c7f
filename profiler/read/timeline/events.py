"""What a profiler saw of one rank, whatever wrote it: kernels, blocks of memory, figures.

Sources that know accesses only by time (Ascend's CSV files and databases, allocator snapshots, Kineto traces) fill
these tables, and `join` makes a profile of them. Two clocks meet here: kernels run on the device, blocks
are taken and given back by the host that launches them::

    host     launch k0 | alloc A | launch k1 | free B, alloc C | launch k2
    device                 k0 ======    k1 ===          k2 ========

Times are integer nanoseconds since the epoch, sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

KERNELS = {
    "name": pl.String,
    "type": pl.String,  # null: not known (profiler level 0)
    "stream": pl.String,  # "compute", "communication", or a further stream's own name
    "start": pl.Int64,  # ns, on the device
    "duration": pl.Int64,  # ns, >= 0
    "launched": pl.Int64,  # ns, on the host; null: not known
    "step": pl.Int64,  # null: in no step
    "inputs": pl.String,  # shapes as profilers write them, "2,3;4;" (a scalar is empty); null: not known
    "input_types": pl.String,  # "FLOAT;DT_BF16;INT64"
    "outputs": pl.String,
    "output_types": pl.String,
}
"""Columns of `Events.kernels`; one row per execution, in order of start."""

BLOCKS = {
    "name": pl.String,  # who asked for it: an operator of the framework
    "bytes": pl.Int64,
    "allocated": pl.Int64,  # ns, on the host; null: before what was recorded
    "freed": pl.Int64,  # null: not within what was recorded
}
"""Columns of `Events.blocks`; one row per allocation, in any order."""


@dataclass(frozen=True)
class Step:
    """One iteration, [start, end) in ns on the device's clock; `us`: its length as the profiler itself gives it."""

    number: int
    start: int
    end: int
    us: float


@dataclass(frozen=True)
class Memory:
    """Figures in bytes; None: the source does not say.

    `peak_bytes`: most that the framework had allocated, by its own totals; `listed_bytes`: most that base and blocks
    are at one time, in all that was recorded. `base_bytes`: allocated before the first
    block of the record, and still there. `reserved_bytes`: most that the framework's pool held. `external_bytes`:
    on the device beside that pool; `external`: parts of it by module.
    """

    peak_bytes: int | None = None
    listed_bytes: int | None = None
    base_bytes: int | None = None
    reserved_bytes: int | None = None
    external_bytes: int | None = None
    external: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """Where the rank's figures come from: becomes `run` and `device` of the profile."""

    framework: str = ""
    framework_version: str = ""
    source: str = ""
    device: str = ""
    rank: int = 0
    world_size: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Events:
    """`kernels` and `blocks` have the columns `KERNELS` and `BLOCKS`. `steps`: complete ones first to last; empty
    where the source marks none, and then all that was recorded is the step."""

    origin: Origin
    kernels: pl.DataFrame
    blocks: pl.DataFrame
    memory: Memory = Memory()
    steps: tuple[Step, ...] = ()


def no_kernels() -> pl.DataFrame:
    return pl.DataFrame(schema=KERNELS)


def no_blocks() -> pl.DataFrame:
    return pl.DataFrame(schema=BLOCKS)
