"""Kernels and blocks of a rank -> its profile.

::

    choose a step -> when was each kernel launched -> which kernels is each block there for -> who accesses it
    (steps)          (launches)                       (lives)                                 (accesses)

In replay without a plan the profile takes the measured step (`lanes`) and reaches the measured peak to
the byte (`lives`). What a time line cannot say is which kernels in the middle of its life read a block:
that is inferred from shapes, and every storage says so (`certainty`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from hyperopt.profile import COMPUTE, IDLE, Device, Links, Measured, Operator, Profile, Run, check
from profiler.read.findings import Findings
from profiler.read.labels import label
from profiler.read.timeline.accesses import Accesses, accesses
from profiler.read.timeline.events import KERNELS, Events, Memory, Step
from profiler.read.timeline.lanes import Lane, idle_ns, lanes
from profiler.read.timeline.launches import launch_times
from profiler.read.timeline.lives import Lives, lives
from profiler.read.timeline.passes import PEER, Passes, passes, unknown
from profiler.read.timeline.scopes import scope_of
from profiler.read.timeline.shapes import signature
from profiler.read.timeline.steps import Chosen, choose
from profiler.read.timeline.storages import Storages, storages_of

D2H_BYTES_PER_S, H2D_BYTES_PER_S = 20 * 10**9, 55 * 10**9
"""MindSpore 2.10's own defaults for Ascend (HYPER_OFFLOAD_D2H_BANDWIDTH_GBPS, ..._H2D_...), where nothing measured
the links (UPSTREAM, 2.6)."""


def profile_of(events: Events, findings: Findings) -> Profile:
    """A checked profile of the step that stands for all. Raises `UnreadableError` where nothing was recorded."""
    listed_alone = not events.kernels.height
    if listed_alone:
        events = _kernels_from_blocks(events, findings)
    events = _of_one_time(events, findings)
    chosen, since, sure = _launched(_as_long_as_its_kernels(choose(events, findings), findings), events)
    listed = lanes(chosen.kernels, chosen.step.start, round(chosen.step.us * 1e3))
    places = [place for place, lane in enumerate(listed) if lane.kernel >= 0 and lane.stream == COMPUTE]
    own = chosen.kernels[[listed[place].kernel for place in places]]
    found = _lives(events, chosen, own, since)
    way = unknown(chosen.kernels) if listed_alone else passes(chosen.kernels)
    touched = accesses(own, events.blocks, found)
    _tell(events, sure, touched, chosen, findings)
    held = storages_of(events.blocks, found, touched, [way.phase[listed[place].kernel] for place in places])
    if events.blocks.height and not held.listed:
        findings.lacks("storages: no block is there for two operators, so nothing can be planned")
    level = found.peak_bytes
    base, peak = _base_and_peak(events.memory, level, len(events.steps) > 1, findings)
    profile = Profile(
        run=Run(
            framework=events.origin.framework,
            framework_version=events.origin.framework_version,
            rank=events.origin.rank,
            world_size=events.origin.world_size,
            step=chosen.step.number,
            source=events.origin.source,
            notes=(*events.origin.notes, *_notes(events, chosen, way), *_at_peak(events.blocks, own, found, touched)),
        ),
        device=Device(
            name=events.origin.device,
            hbm_bytes=max(events.memory.reserved_bytes or 0, peak),
            base_bytes=base,
            host_bytes=peak,
            links=Links(d2h_bytes_per_s=D2H_BYTES_PER_S, h2d_bytes_per_s=H2D_BYTES_PER_S),
        ),
        operators=tuple(_operators(listed, chosen, way, held, findings.stage)),
        storages=tuple(held.listed),
        measured=Measured(
            step_us=chosen.step.us,
            step_us_spread=chosen.spread_us,
            peak_bytes=peak,
            reserved_bytes=events.memory.reserved_bytes or 0,
            external_bytes=events.memory.external_bytes or 0,
        ),
    )
    check(profile)
    return profile


def _kernels_from_blocks(events: Events, findings: Findings) -> Events:
    """Where no kernels were recorded, the operators that asked for memory stand for them, at the host's times."""
    findings.lacks("kernel times: operators are those that asked for memory, at the host's times")
    had = events.blocks.drop_nulls("allocated").sort("allocated", maintain_order=True)
    if not had.height:
        # Only the pool's record is there: its peak is the base, and there is nothing to plan.
        findings.lacks("kernels and allocations: only the pool's totals are known")
    whole = events.blocks.select(pl.max_horizontal(pl.col("allocated").max(), pl.col("freed").max())).item()
    nothing = [pl.lit(None, kind).alias(name) for name, kind in KERNELS.items() if name not in _GIVEN]
    kernels = had.select(
        "name",
        pl.lit(COMPUTE).alias("stream"),
        pl.col("allocated").alias("start"),
        pl.lit(0, pl.Int64).alias("duration"),
        pl.col("allocated").alias("launched"),
        *nothing,
    ).select(list(KERNELS))
    # A step ends after what starts in it: a block that is asked for at the very end is there then.
    end = max(whole, had["allocated"][-1] + 1) if had.height else 0
    steps = (Step(0, had["allocated"][0], end, (end - had["allocated"][0]) / 1e3),) if had.height else ()
    return replace(events, kernels=kernels, steps=steps)


def _of_one_time(events: Events, findings: Findings) -> Events:
    """Without kernels and blocks a day away from the others: a clock was read wrongly, and idle time would fill what
    lies between."""
    if not events.kernels.height:
        return events
    middle = events.kernels["start"].sort()[events.kernels.height // 2]
    near = ((pl.col("start") - middle).abs() < FAR_NS) & (pl.col("duration") < LONG_NS)
    times = [((pl.col(column) - middle).abs() < FAR_NS).fill_null(True) for column in ("allocated", "freed")]
    kernels, blocks = events.kernels.filter(near), events.blocks.filter(pl.all_horizontal(times))
    if away := events.kernels.height - kernels.height:
        findings.warn(f"{away} kernels are left out: more than a day from the others, or longer than an hour")
    if away := events.blocks.height - blocks.height:
        findings.warn(f"{away} allocations are left out: more than a day from the kernels")
    steps = tuple(step for step in events.steps if abs(step.start - middle) < FAR_NS)
    return replace(events, kernels=kernels, blocks=blocks, steps=steps)


FAR_NS, LONG_NS = 86_400 * 10**9, 3600 * 10**9
"""A day and an hour."""

SIDES = ("inputs", "input_types", "outputs", "output_types")
_GIVEN = ("name", "stream", "start", "duration", "launched")


def _as_long_as_its_kernels(chosen: Chosen, findings: Findings) -> Chosen:
    """A step is at least as long as from its first kernel to the end of its last."""
    if not chosen.kernels.height:
        return chosen
    span = (chosen.kernels.select((pl.col("start") + pl.col("duration")).max()).item() - chosen.step.start) / 1e3
    if span <= 1.01 * chosen.step.us:
        return chosen
    findings.warn(
        f"the kernels of the step take {span / 1e3:.1f} ms, the profiler says {chosen.step.us / 1e3:.1f}: the kernels' "
        "time is taken"
    )
    return replace(chosen, step=replace(chosen.step, us=span))


def _launched(chosen: Chosen, events: Events) -> tuple[Chosen, int | None, int]:
    """The chosen step with the launch times of its kernels, host time of the last launch before it, and how many of
    its launches are by evidence. The step before it is matched too, so that its blocks are not taken for this one's."""
    kernels, blocks, skip = chosen.kernels, events.blocks, 0
    if (before := chosen.before) is not None:
        span = (pl.col("start") >= before.start) & (pl.col("start") < chosen.step.start)
        earlier = events.kernels.filter(span)
        skip = earlier.height
        kernels = pl.concat([earlier, kernels])
        # The host is ahead of the device, but not by more than a step.
        blocks = blocks.filter(pl.col("allocated") >= before.start - (chosen.step.start - before.start))
    launched, sure = launch_times(kernels, blocks.filter(pl.col("allocated") < chosen.step.end))
    own = chosen.kernels.with_columns(pl.Series("launched", launched[skip:], pl.Int64))
    return replace(chosen, kernels=own), int(launched[skip - 1]) if skip else None, sure


def _lives(events: Events, chosen: Chosen, own: pl.DataFrame, since: int | None) -> Lives:
    """Lives in the chosen step's compute kernels `own`. Of several steps, the host's share of one is from the last
    launch of the step before, `since`, to its own last launch."""
    host = own["launched"].to_numpy()
    start = since + 1 if since is not None else None
    end = int(host[-1]) + 1 if len(host) and chosen.until is not None else None
    return lives(events.blocks, host, start, end)


def _base_and_peak(memory: Memory, level: int, several: bool, findings: Findings) -> tuple[int, int]:
    """Bytes that no storage describes, and the peak; together with the storages' `level` they agree. Of `several` steps
    the peak is the chosen one's: what blocks reach in another one is not base."""
    base = memory.base_bytes or 0
    if memory.peak_bytes is None:
        return base, base + level
    if memory.peak_bytes < base + level:
        more = (base + level - memory.peak_bytes) / 2**20
        findings.warn(f"the blocks reach {more:.2f} MiB above the peak that the pool reports: theirs is taken")
        return base, base + level
    elsewhere = max((memory.listed_bytes or 0) - base - level, 0) if several else 0
    unlisted = max(memory.peak_bytes - base - level - elsewhere, 0)
    if elsewhere:
        findings.warn(
            f"the record's peak of {memory.peak_bytes / 2**20:.1f} MiB is in another step, {elsewhere / 2**20:.1f} MiB "
            "above this one's"
        )
    if unlisted >= 2**20:
        findings.warn(f"{unlisted / 2**20:.1f} MiB of the peak are in no listed block: counted as base")
    return base + unlisted, base + unlisted + level


def _tell(events: Events, sure: int, touched: Accesses, chosen: Chosen, findings: Findings) -> None:
    if not events.blocks.height:
        findings.lacks("allocations: no storages, so nothing can be planned")
    elif not sure:
        findings.lacks("launch times: blocks are joined to kernels by device time")
    if events.blocks.height and not touched.shaped:
        findings.lacks("shapes: where a block is read between its first and its last operator is unknown")
    if chosen.steps == 1 and len(events.steps) <= 1:
        findings.warn("one step was recorded: times have no spread")


def _notes(events: Events, chosen: Chosen, way: Passes) -> list[str]:
    notes = [
        f"the step begins at {chosen.step.start} ns of the device's clock",
        "links and host memory were not measured: 20 GB/s out, 55 GB/s back (MindSpore's defaults for Ascend), and as "
        "much host memory as the peak",
    ]
    if way.layers:
        notes.append(f"{way.micro_batches} micro-batches through {way.layers} layers, by their attention kernels")
    peers = pl.col("name").str.contains(f"(?i){PEER.pattern}")
    idle, bubble = idle_ns(chosen.kernels, round(chosen.step.us * 1e3), peers)
    if bubble:
        notes.append(
            f"the compute stream is idle for {idle / 1e6:.1f} ms, {bubble / 1e6:.1f} ms of it while the rank sends or "
            "receives (the pipeline's bubbles)"
        )
    if events.memory.external:
        parts = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in events.memory.external.items())
        notes.append(f"beside the framework's pool: {parts}")
    reserved, peak = events.memory.reserved_bytes, events.memory.peak_bytes
    if reserved and peak and reserved > peak:
        notes.append(f"fragmentation at the peak: {(reserved - peak) / 2**20:.1f} MiB reserved and not allocated")
    if chosen.steps > 1:
        notes.append(f"times are medians over {chosen.steps} steps")
    return notes


def _at_peak(blocks: pl.DataFrame, own: pl.DataFrame, found: Lives, touched: Accesses) -> list[str]:
    """Which operator the peak is at, and the largest of what is there then."""
    if not found.peak_bytes:
        return []
    k = int((found.level + found.transient).argmax())
    there = (found.first <= k) & (k <= found.last)
    alone = there & (found.first == found.last) & ~found.before & ~found.after
    size = blocks["bytes"].to_numpy()
    workspace = int(size[alone].sum() + found.transient[k])
    alike: dict[str, list[int]] = {}
    for block in (there & ~alone).nonzero()[0].tolist():
        alike.setdefault(f"{blocks['name'][block]} ({touched.tensor.get(block, 'shape unknown')})", []).append(block)
    parts = [(workspace, "of workspace")]
    parts += [(int(size[group].sum()), f"in {len(group)} x {label(name)}") for name, group in alike.items()]
    parts.sort(key=lambda part: -part[0])
    told = ", ".join(f"{bytes / 2**20:.1f} MiB {what}" for bytes, what in parts[:4] if bytes)
    return [f"the peak is at {label(own['name'][k])}: {told}"]


def _operators(
    listed: list[Lane], chosen: Chosen, way: Passes, held: Storages, stage: int | None
) -> Iterator[Operator]:
    rows = chosen.kernels.select("name", "type", *SIDES).iter_rows()  # in the order of the lanes
    # From the step's begin: a double holds microseconds since 1970 to a quarter of one only.
    origin = chosen.step.start
    k = -1  # counts the compute kernels, as the storages do
    for place, lane in enumerate(listed):
        if lane.kernel < 0:
            yield Operator(
                name=f"idle-{place}",
                type=IDLE,
                start_us=(lane.start - origin) / 1e3,
                duration_us=lane.duration / 1e3,
                recomputable=False,
            )
            continue
        name, kind, *sides = next(rows)
        shapes, dtypes, inputs = signature(*sides)
        computes = lane.stream == COMPUTE
        k += computes
        yield Operator(
            name=label(name),
            type=label(kind),
            stream=lane.stream,
            start_us=(lane.start - origin) / 1e3,
            duration_us=lane.duration / 1e3,
            workspace_bytes=held.workspace[k] if computes else 0,
            layer=label(scope_of(name or "")[0]),
            phase=way.phase[lane.kernel],
            reads=tuple(held.reads[k]) if computes else (),
            writes=tuple(held.writes[k]) if computes else (),
            shapes=shapes,
            dtypes=dtypes,
            inputs=inputs,
            # What it reads is inferred, so running it again is not known to be right.
            recomputable=False,
            micro_batch=way.micro_batch[lane.kernel],
            stage=stage,
        )
