"""Events of a caching allocator, replayed -> blocks of memory, by time.

Recording may begin when much is allocated already. What was there before and is freed by a recorded event shows as an
address whose first event is its free: a block that was there from before the first event. What was there before and
stays leaves no trace here (`profiler.read.torch.snapshot` finds it in the allocator's state).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from profiler.read.findings import KEPT_PLACES, Findings
from profiler.read.labels import label
from profiler.read.timeline.events import BLOCKS
from profiler.read.timeline.pools import GHOST

Bytes = int
LARGEST = 2**53
"""What a profile can hold, of bytes and of microseconds."""

UNTIMED_NS = 1000
"""An event without a time is so many ns after the one before: no measurement."""

MOVES = {
    "segment_alloc": 1,
    "segment_map": 1,
    "segment_free": -1,
    "segment_unmap": -1,
}
"""Events that change what the allocator holds, and in which direction."""

QUIET = {"snapshot", "free_requested", "workspace_snapshot"}
"""Events that change no memory: a block is taken until its free has completed."""

MAX_FRAMES = 100
"""Frames of a call stack, from the innermost, in which the user's own is looked for."""

NO_STACK = "no call stack"
"""Name of a block that was asked for outside Python, in backward for one."""

LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<built-in")
"""Where a frame is not the user's."""


class Event(msgspec.Struct, frozen=True):
    """One allocator event; sizes in bytes. `frames`: innermost first; not looked into here, as they are shared."""

    action: str
    size: int = 0
    addr: int = 0
    time_us: int | None = None
    frames: Any = None


@dataclass
class Replay:
    """Blocks found by replaying events, in order of allocation."""

    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    taken: list[int | None] = field(default_factory=list)
    freed: list[int | None] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)
    """Address -> index of the block there."""
    gone_ghosts: Bytes = 0
    moves: list[Bytes] = field(default_factory=list)
    """What the reserved memory changed by, in order."""
    peak: Bytes = 0
    used: Bytes = 0

    def allocate(self, address: int, size: Bytes, now: int | None, name: str) -> None:
        self.live[address] = len(self.names)
        self.names.append(name)
        self.sizes.append(size)
        self.taken.append(now)
        self.freed.append(None)
        self.used += size
        self.peak = max(self.peak, self.used)

    def free(self, address: int, now: int) -> None:
        block = self.live.pop(address)
        self.freed[block] = now
        self.used -= self.sizes[block]

    def frame(self) -> pl.DataFrame:
        columns = {"name": self.names, "bytes": self.sizes, "allocated": self.taken, "freed": self.freed}
        return pl.DataFrame(columns, schema=BLOCKS)

    def most_reserved(self, held: Bytes, peak: Bytes) -> Bytes | None:
        """The most the allocator held: back from what it holds at the end through each change; None where unknown."""
        if not held and not self.moves:
            return None
        most = now = held
        for change in reversed(self.moves):
            now -= change
            most = max(most, now)
        # Where events or segments are missing, the walk can end below what was provably in use.
        return max(most, peak) if now < 0 else most


def times_of(events: list[Event], findings: Findings) -> list[int]:
    """Nanoseconds of the events, each later than the one before, as they happened one after another."""
    if any(event.time_us is None or not 0 <= event.time_us < 2**52 for event in events):
        findings.lacks("times: the events of this snapshot have none, and their order stands for it")
        return [UNTIMED_NS * (index + 1) for index in range(len(events))]
    times: list[int] = []
    last = 0
    for event in events:
        assert event.time_us is not None
        last = max(event.time_us * 1000, last + 1)
        times.append(last)
    return times


def replay(events: list[Event], times: list[int], path: Path, findings: Findings) -> Replay:
    """What the `events` do at their `times`; the file at `path` is named for those that are dropped."""
    done = Replay()
    _ghosts_that_go(events, done)
    unknown: list[int] = []
    again: list[int] = []
    refused: list[Bytes] = []
    twice = 0
    names: dict[int, str] = {}
    for index, (event, now) in enumerate(zip(events, times, strict=True)):
        if event.action == "alloc":
            if event.addr in done.live:
                twice += 1
                done.free(event.addr, now)
            stack = id(event.frames)  # stacks are shared, and live as long as the snapshot
            if stack not in names:
                names[stack] = _asked_by(event.frames)
            done.allocate(event.addr, event.size, now, names[stack])
        elif event.action == "free_completed":
            if event.addr in done.live:
                done.free(event.addr, now)
            else:
                again.append(index + 1)
        elif event.action in MOVES:
            done.moves.append(MOVES[event.action] * event.size)
        elif event.action == "oom":
            refused.append(event.size)
        elif event.action not in QUIET:
            unknown.append(index + 1)
    if refused:
        findings.warn(f"the device ran out of memory {len(refused)} times: up to {max(refused):,} bytes were asked for")
    if twice:
        findings.warn(f"{twice} addresses were allocated again without a free: the block there is taken as freed then")
    findings.drop(path, "frees of what has been freed before", len(again), tuple(again[:KEPT_PLACES]))
    findings.drop(path, "events of an unknown action", len(unknown), tuple(unknown[:KEPT_PLACES]))
    return done


def _ghosts_that_go(events: list[Event], done: Replay) -> None:
    """Blocks from before the first event: an address whose first event is its free. They were there until then."""
    seen: set[int] = set()
    for event in events:
        if event.action not in ("alloc", "free_completed") or event.addr in seen:
            continue
        seen.add(event.addr)
        if event.action == "free_completed":
            done.allocate(event.addr, event.size, None, GHOST)
            done.gone_ghosts += event.size


def _asked_by(frames: object) -> str:
    """The innermost frame of the user's own code, or the innermost one."""
    if not isinstance(frames, list):
        return NO_STACK
    first = ""
    for frame in frames[:MAX_FRAMES]:
        if not isinstance(frame, dict):
            continue
        file = frame.get("filename")
        text = _place(frame)
        first = first or text
        if text and isinstance(file, str) and file.endswith(".py") and not any(part in file for part in LIBRARY):
            return text
    return first or NO_STACK


def _place(frame: dict[object, object]) -> str:
    name, line = label(frame.get("name")), frame.get("line")
    file = frame.get("filename")
    if not isinstance(file, str) or not file:
        return name
    base = label(re.split(r"[/\\]", file[-1000:])[-1])
    return label(f"{name} ({base}:{line})" if isinstance(line, int) and 0 < line < 2**31 else f"{name} ({base})")
