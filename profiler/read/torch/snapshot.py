"""Memory snapshots of torch and torch_npu (pickles of `_dump_snapshot`) -> blocks by time.

A snapshot holds, for each device, the last allocator events and the allocator's state when it was taken. The two do
not tell the same story: what was allocated before recording began (or before the oldest event that was kept) is in the
state and in no event. Such *ghosts* are part of every peak::

    bytes  │          ┌──┐  peak = base + what the events replay to
           │      ┌───┘  └────── state at the end: ghosts and live blocks
           │ ─────┴───────────── base: ghosts still there at the end
           └──────────────────── events

A ghost that goes while events are recorded (a free of an address that nothing allocated) is a block from before the
first event; one that stays has no event at all and is `base_bytes`. Sizes are what was asked for; the allocator
rounds them up to 512 bytes inside what it has reserved.

Kernels are not in a snapshot. Events have a time in newer versions (`time_us`); else their order stands for it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hyperopt.profile import Profile
from profiler.read.findings import KEPT_PLACES, Findings, UnreadableError
from profiler.read.ranks import RankFiles, Source
from profiler.read.timeline.events import Events, Memory, Origin, no_kernels
from profiler.read.torch.allocator import LARGEST, Bytes, Event, Replay, replay, times_of
from profiler.read.torch.pickles import read_plain

SUFFIXES = (".pkl", ".pickle")

MAX_DEVICES = 1024
MAX_BLOCKS = 4_000_000
"""Of all segments: lists in a pickle may be shared, so that a small file can say much."""

T = TypeVar("T")


class NoSnapshot(UnreadableError):
    """A pickle of plain values, but of something else."""


class Block(msgspec.Struct, frozen=True):
    """A block of a segment when the snapshot was taken."""

    size: int
    state: str
    address: int | None = None
    requested_size: int | None = None

    @property
    def taken(self) -> bool:
        return self.state.startswith("active")

    @property
    def asked(self) -> Bytes:
        """Bytes that were asked for, as in events; older versions only say how many were given."""
        wanted = self.requested_size
        return wanted if wanted is not None and 0 < wanted <= self.size else self.size


class Segment(msgspec.Struct, frozen=True):
    address: int
    total_size: int
    device: int = 0
    blocks: Any = None


def find(path: Path) -> list[RankFiles]:
    """The file, if it is a snapshot: one rank for each device that has events. One that cannot be read is a rank all
    the same: reading says why."""
    if path.suffix not in SUFFIXES or not path.is_file() or not _is_pickle(path):
        return []
    try:
        devices = _devices_with_events(_load(path))
    except NoSnapshot:
        return []
    except UnreadableError:
        devices = []
    if len(devices) > 1:
        return [RankFiles(path, device) for device in devices]
    named = re.search(r"rank[_-]?(\d{1,6})(?!\d)", path.stem)
    return [RankFiles(path, int(named[1]) if named else None)]


def _is_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(1) == b"\x80"
    except OSError:
        return False


def _load(path: Path) -> dict[object, object]:
    status = path.stat()
    return _parse(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _parse(path: Path, _mtime: int, _size: int) -> dict[object, object]:
    """The snapshot at `path`. The last one is kept: it is asked for once for each device in it."""
    value = read_plain(path)
    if not isinstance(value, dict) or not isinstance(value.get("device_traces"), list):
        raise NoSnapshot(f"{path.name} is no memory snapshot: it has no list device_traces")
    if len(value["device_traces"]) > MAX_DEVICES:
        raise UnreadableError(f"{path.name} has more than {MAX_DEVICES} devices")
    return value


def _traces(snapshot: dict[object, object]) -> list[list[object]]:
    traces = snapshot["device_traces"]
    assert isinstance(traces, list)
    return [trace if isinstance(trace, list) else [] for trace in traces]


def _devices_with_events(snapshot: dict[object, object]) -> list[int]:
    return [device for device, trace in enumerate(_traces(snapshot)) if trace]


def read(files: RankFiles, findings: Findings) -> Profile:
    """The profile of one device. Raises `UnreadableError`."""
    from profiler.read.timeline.join import profile_of

    return profile_of(events_of(files, findings), findings)


def events_of(files: RankFiles, findings: Findings) -> Events:
    """Blocks by time of the device `files.rank`, or of the only one that has events."""
    path = files.path
    snapshot = _load(path)
    devices = _devices_with_events(snapshot)
    if not devices:
        raise UnreadableError(
            f"{path.name} has no allocator events; switch recording on before the step (_record_memory_history)"
        )
    device = devices[0] if len(devices) == 1 else files.rank
    if device not in devices:
        raise UnreadableError(f"{path.name} has events of devices {devices}: say which one")
    assert device is not None
    events = _events(_traces(snapshot)[device], path, findings)
    segments = _segments(snapshot, device, path, findings)
    times = times_of(events, findings)
    replayed = replay(events, times, path, findings)
    base, held = _state(segments, replayed, path, findings)
    if base + replayed.peak > LARGEST:
        raise UnreadableError(f"{path.name} adds up to {base + replayed.peak:,} bytes: no device has so many")
    _tell_ghosts(base, replayed.gone_ghosts, findings)
    return Events(
        origin=Origin(
            framework="torch",
            source=SOURCE.kind,
            rank=files.rank or 0,
            notes=(f"device {device} of {path.name}",),
        ),
        kernels=no_kernels(),
        blocks=replayed.frame(),
        memory=Memory(
            peak_bytes=base + replayed.peak,
            base_bytes=base,
            reserved_bytes=replayed.most_reserved(held, base + replayed.peak),
        ),
    )


def _checked(values: list[object], kind: type[T]) -> tuple[list[T], list[int]]:
    """`values` as `kind`, and the places, counted from 1, of those that are none or hold figures that cannot be."""
    good: list[T] = []
    bad: list[int] = []
    for place, value in enumerate(values, 1):
        try:
            item = msgspec.convert(value, kind, strict=True)
        except (msgspec.ValidationError, RecursionError, OverflowError):
            bad.append(place)
            continue
        numbers = [getattr(item, name, 0) or 0 for name in ("size", "total_size", "requested_size")]
        if all(0 <= number <= LARGEST for number in numbers):
            good.append(item)
        else:
            bad.append(place)
    return good, bad


def _events(trace: list[object], path: Path, findings: Findings) -> list[Event]:
    events, bad = _checked(trace, Event)
    findings.drop(path, "events without the fields or figures of one", len(bad), tuple(bad[:KEPT_PLACES]))
    return events


def _segments(
    snapshot: dict[object, object], device: int, path: Path, findings: Findings
) -> list[tuple[Segment, list[Block]]]:
    listed = snapshot.get("segments")
    if not isinstance(listed, list):
        findings.lacks("the allocator's state at the end: what was allocated before recording began is not known")
        return []
    segments, bad = _checked(listed, Segment)
    findings.drop(path, "segments without the fields or figures of one", len(bad), tuple(bad[:KEPT_PLACES]))
    found: list[tuple[Segment, list[Block]]] = []
    room, lost = MAX_BLOCKS, 0
    for segment in segments:
        blocks = segment.blocks if isinstance(segment.blocks, list) else []
        if segment.device == device:
            room -= len(blocks)
            if room < 0:
                raise UnreadableError(f"{path.name} has more than {MAX_BLOCKS:,} blocks in its segments")
            good, bad = _checked(blocks, Block)
            lost += len(bad)
            found.append((segment, good))
    findings.drop(path, "blocks of segments without the fields or figures of one", lost)
    return found


def _state(
    segments: list[tuple[Segment, list[Block]]], replayed: Replay, path: Path, findings: Findings
) -> tuple[Bytes, Bytes]:
    """What ghosts still take at the end, and what the allocator then holds."""
    base = held = matched = 0
    for segment, blocks in segments:
        held += segment.total_size
        address = segment.address
        for block in blocks:
            at = block.address if block.address is not None else address
            address = at + block.size
            if not block.taken:
                continue
            if at in replayed.live:
                matched += 1
            else:
                base += block.asked
    if segments and matched < len(replayed.live):
        lost = len(replayed.live) - matched
        findings.warn(f"{lost} blocks are live by the events of {path.name}, but not in its segments: they are counted")
    return base, held


def _tell_ghosts(base: Bytes, gone: Bytes, findings: Findings) -> None:
    if base:
        findings.warn(
            f"{base:,} bytes ({base / 2**20:.1f} MiB) were allocated before recording began and are still there: "
            "counted as base_bytes"
        )
    if gone:
        findings.warn(
            f"{gone:,} bytes ({gone / 2**20:.1f} MiB) were allocated before recording began and freed during it: "
            "counted from the start"
        )


SOURCE = Source(
    kind="torch_snapshot",
    about="memory snapshot of torch or torch_npu (.pkl, .pickle)",
    find=find,
    read=read,
)
