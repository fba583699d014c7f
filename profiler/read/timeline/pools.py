"""The framework's memory pools: what their own totals say that the listed allocations do not.

A profiler lists the allocations that happened while it ran, and beside each the pool's total. Where the total moves by
more than the allocation, something else was taken or given back: mostly blocks that are older than the record
("ghosts", case C15)::

    total         |   +8   +8    -8   -234   +8        level as the pool reports it
    listed        |   +8   +8    -8          +8        allocations of the record
    so            base                 ^ a block of 234 that was there before is gone: resident at start, freed here

Components are cumulative: `PTA+GE` repeats `PTA` and adds the graph engine's pool. They are never summed; the most
complete one is the framework's. Sizes are bytes, times ns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import polars as pl

from profiler.read.findings import Findings
from profiler.read.timeline.events import BLOCKS, Memory

GHOST = "allocated before the record began"
UNLISTED = "allocated without a row in the record"
KIB_PER_MB = 1000
"""MindSpore's memory_record.csv: its MB are so many KiB (PROFILE_FORMATS, finding 1)."""


ROUNDING = 4 << 10
"""Bytes by which figures of one pool may differ for their decimals."""


@dataclass(frozen=True)
class Pool:
    """`blocks` (columns `BLOCKS`): the listed ones, and those that the totals prove. `base_bytes`: there all the
    time. `peak_bytes`, `reserved_bytes`: most allocated and most held, by the pool's totals."""

    blocks: pl.DataFrame
    base_bytes: int
    peak_bytes: int
    reserved_bytes: int


_Block = tuple[str, int, int | None, int | None]
"""Name, bytes, allocated, freed."""


@dataclass(frozen=True)
class _Change:
    time: int
    bytes: int
    total: int | None
    """Of the pool, after the change."""


def pools_of(rows: pl.DataFrame, findings: Findings, precision: int = 512) -> list[Pool]:
    """The framework's pool and the graph engine's, each with its blocks.

    `rows`: name, bytes, allocated, freed (null: not freed), total_after and total_freed (the pool's total after
    either, null: not said), reserved, graph_engine (bool). `precision`: totals that differ from the sum by less
    say nothing (they are rounded).
    """
    parts = [rows.filter(pl.col("graph_engine") == engine) for engine in (False, True)]
    return [_pool(part, findings, precision) for part in parts if part.height]


def _pool(rows: pl.DataFrame, findings: Findings, precision: int) -> Pool:
    pool, found = _by_totals(rows, precision)
    if pool.base_bytes < 0:
        findings.warn("the pool's totals contradict its allocations: the totals are not used")
        unsaid = [pl.lit(None, pl.Int64).alias(column) for column in ("total_after", "total_freed")]
        pool, found = _by_totals(rows.with_columns(unsaid), precision)
    _tell(found, findings)
    return pool


def _by_totals(rows: pl.DataFrame, precision: int) -> tuple[Pool, list[_Block]]:
    """The pool, and those of its blocks that the totals prove."""
    took = rows.select(time="allocated", bytes="bytes", total="total_after")
    gave = rows.select(time="freed", bytes=-pl.col("bytes"), total="total_freed").drop_nulls("time")
    changes = pl.concat([took, gave]).sort("time", "bytes")
    listed = rows.select(pl.col(name).cast(kind) for name, kind in BLOCKS.items())
    reserved = int(rows["reserved"].max() or 0)  # type: ignore[arg-type]
    level = changes["bytes"].cum_sum()
    apart = changes["total"] - level
    start = int(apart.drop_nulls().head(1).sum())
    if not apart.is_not_null().any() or (apart - start).abs().max() < precision:  # type: ignore[operator]
        peak = start + max(int(level.max() or 0), 0)  # type: ignore[arg-type]
        return Pool(listed, start, peak, reserved), []
    walk = _walk([_Change(*change) for change in changes.iter_rows()], start, precision)
    extra = pl.DataFrame(walk.found, schema=BLOCKS, orient="row")
    return Pool(pl.concat([listed, extra]), walk.base, walk.peak, reserved), walk.found


@dataclass(frozen=True)
class _Walk:
    """What the totals prove: blocks by name, bytes, allocated and freed; what is there all the time; and the peak."""

    found: list[_Block]
    base: int
    peak: int


def _walk(changes: list[_Change], level: int, precision: int) -> _Walk:
    """Through all changes in order of time, from `level` on."""
    base = peak = level
    unlisted: list[tuple[int, int]] = []  # still there: bytes, allocated
    found: list[_Block] = []
    for _, together in groupby(changes, key=lambda change: change.time):
        left = list(together)
        while left:
            # The clock of some profilers ticks once in 100 ns: the totals tell the order of what it puts together.
            change = next((c for c in left if c.total == level + c.bytes), left[0])
            left.remove(change)
            level += change.bytes
            gap = change.total - level if change.total is not None else 0
            if abs(gap) >= precision:
                level += gap
                if gap > 0:
                    unlisted.append((gap, change.time))
                gone = max(-gap, 0)
                while gone and unlisted:
                    size, since = unlisted.pop()
                    part = min(size, gone)
                    found.append((UNLISTED, part, since, change.time))
                    gone -= part
                    if size > part:
                        unlisted.append((size - part, since))
                if gone:
                    found.append((GHOST, gone, None, change.time))
                    base -= gone
            peak = max(peak, level)
    return _Walk(found + [(UNLISTED, size, since, None) for size, since in unlisted], base, peak)


def _tell(found: list[_Block], findings: Findings) -> None:
    for name, say in ((GHOST, "are gone before the record ends"), (UNLISTED, "appear in the pool's totals only")):
        sizes = [size for kind, size, _, _ in found if kind == name]
        if sum(sizes) >= 1 << 20:
            findings.warn(f"{len(sizes)} blocks of {sum(sizes) / 2**20:.1f} MiB in all were {name} and {say}")


def memory_of(
    pools: list[Pool],
    record: Mapping[str, tuple[int, int]],
    modules: Mapping[str, int],
    mindspore: bool,
    findings: Findings,
) -> Memory:
    """Figures of the rank.

    `record`: component -> most allocated and most reserved, as written in MB of 1 MiB. `modules`: what the runtime
    counts for each of its parts. `mindspore`: the record's unit is MindSpore's, unless its peak or what it reserved is
    the same as beside the allocations, which are in MiB.
    """
    component = _most_complete(record)
    allocated, reserved = record.get(component, (0, 0)) if component is not None else (0, 0)
    application = record.get("APP", (0, 0))[1]
    listed = _peak(pools)
    held = sum(pool.reserved_bytes for pool in pools)
    if mindspore and allocated and not (_same(allocated, listed) or _same(reserved, held)):
        figures = (allocated, reserved, application)
        allocated, reserved, application = ((size * KIB_PER_MB + 512) // 1024 for size in figures)
        told = "memory_record.csv calls 1000 KiB an MB (MindSpore): its figures are divided by 1.024"
        findings.normalised(told)
        findings.warn(told)
    base = sum(pool.base_bytes for pool in pools) if pools else None
    reserved = reserved or held
    application = application or modules.get("APP", 0)
    return Memory(
        listed_bytes=listed,
        peak_bytes=_agreed(listed, allocated or None, findings),
        base_bytes=base,
        reserved_bytes=reserved or None,
        external_bytes=max(application - reserved, 0) if application and reserved else None,
        external={name: size for name, size in sorted(modules.items()) if name not in ("APP", "GE")},
    )


def _same(recorded: int, listed: int | None) -> bool:
    """Whether two figures are of one unit: MindSpore's, taken for MiB, is 2.4 % above."""
    return bool(listed) and abs(recorded / (listed or 1) - 1) < 0.002


def _most_complete(record: Mapping[str, tuple[int, int]]) -> str | None:
    """The cumulative component that contains the others: `PTA+GE` before `PTA`."""
    named = [name for name in record if name not in ("APP", "WORKSPACE", "GE")]
    return max(named, key=lambda name: (name.count("+"), record[name]), default=None)


def _peak(pools: list[Pool]) -> int | None:
    """Most bytes that the pools held together."""
    if not pools:
        return None
    if len(pools) == 1:
        return pools[0].peak_bytes
    blocks = pl.concat([pool.blocks for pool in pools])
    base = sum(pool.base_bytes for pool in pools) + sum(blocks.filter(pl.col("allocated").is_null())["bytes"])
    took = blocks.select(time="allocated", change="bytes").drop_nulls("time")
    gave = blocks.select(time="freed", change=-pl.col("bytes")).drop_nulls("time")
    changes = pl.concat([took, gave]).sort("time", "change")["change"]
    return base + max(int(changes.cum_sum().max() or 0), 0)  # type: ignore[arg-type]


def _agreed(listed: int | None, recorded: int | None, findings: Findings) -> int | None:
    """The pool's record samples less often and is rounded more than the allocations: theirs is the peak, unless
    the record saw more."""
    if listed is None or recorded is None:
        return recorded if listed is None else listed
    if recorded > listed + ROUNDING:
        return recorded
    if recorded < listed * 0.999:
        findings.warn(
            f"the pool's record peaks at {recorded / 2**20:.1f} MiB, its own allocations at {listed / 2**20:.1f} MiB: "
            "the allocations are taken"
        )
    return listed
