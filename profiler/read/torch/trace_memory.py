"""Memory in a Chrome trace: Kineto's ``[memory]`` events -> blocks by time, and the totals they carry.

Each says an address, the bytes taken there (negative: given back) and what the framework has in use after it. So what
was taken before the first event is known exactly: the first total less the first event's own bytes.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from profiler.read.findings import Findings, UnreadableError
from profiler.read.timeline.events import Memory, no_blocks
from profiler.read.timeline.pools import GHOST
from profiler.read.torch.allocator import LARGEST, Event, replay
from profiler.read.torch.trace_spans import NOT_KNOWN, MemoryEvent, Trace

CPU = 0
"""Torch's number of this type of device."""


def memory_of(trace: Trace, operators: pl.DataFrame, path: Path, findings: Findings) -> tuple[pl.DataFrame, Memory]:
    """Blocks with the columns of `BLOCKS`, named by the outermost of the framework's `operators` that asked for them,
    and figures. Of several devices the one with most events; the host's memory only where there is no other."""
    events = sorted(_of_one_device(trace, findings), key=lambda event: event.time)
    if not events:
        findings.lacks("memory: the trace has no memory events")
        return no_blocks(), Memory()
    times: list[int] = []
    for event in events:
        times.append(max(event.time, times[-1] + 1) if times else event.time)
    done = replay(
        [Event("alloc" if event.bytes > 0 else "free_completed", abs(event.bytes), event.address) for event in events],
        times,
        path,
        findings,
    )
    base = max(events[0].allocated - events[0].bytes - done.gone_ghosts, 0) if events[0].allocated != NOT_KNOWN else 0
    if base + done.peak > LARGEST:
        raise UnreadableError(f"{path.name} adds up to {base + done.peak:,} bytes: no device has so many")
    if base + done.gone_ghosts:
        findings.warn(f"{base + done.gone_ghosts:,} bytes were in use before the first memory event: they are counted")
    told = max(event.allocated for event in events)
    if told not in (NOT_KNOWN, base + done.peak):
        findings.warn(f"memory events replay to {base + done.peak:,} bytes where the trace says {told:,}")
    held = max(event.reserved for event in events)
    blocks = done.frame()
    names = _asked_by(events, operators)
    ghosts = blocks.height - sum(event.bytes > 0 for event in events)
    own = [GHOST] * ghosts + [name for name, event in zip(names, events, strict=True) if event.bytes > 0]
    named = blocks.with_columns(pl.Series("name", own, pl.String))
    peak = base + done.peak
    return named, Memory(peak_bytes=peak, base_bytes=base, reserved_bytes=None if held == NOT_KNOWN else held)


def _of_one_device(trace: Trace, findings: Findings) -> list[MemoryEvent]:
    count = Counter((event.kind, event.device) for event in trace.memory)
    devices = sorted((place for place in count if place[0] != CPU), key=lambda place: -count[place])
    places = devices or sorted(count)
    if len(devices) > 1:
        findings.warn(f"memory events of {len(devices)} devices: only those of device {places[0][1]} are read")
    return [event for event in trace.memory if (event.kind, event.device) == places[0]] if places else []


def _asked_by(events: list[MemoryEvent], operators: pl.DataFrame) -> list[str]:
    """The operator on the same thread in which the event happened; empty where there is none."""
    lanes = {
        lane: (rows["start"].to_numpy(), (rows["start"] + rows["duration"]).to_numpy(), rows["name"].to_list())
        for (lane,), rows in operators.partition_by("lane", as_dict=True, maintain_order=True).items()
    }
    names: list[str] = []
    for event in events:
        starts, ends, texts = lanes.get(event.lane, (np.empty(0), np.empty(0), []))
        place = int(np.searchsorted(starts, event.time, side="right")) - 1
        names.append(texts[place] or "" if place >= 0 and event.time <= ends[place] else "")
    return names
