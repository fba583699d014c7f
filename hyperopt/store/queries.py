"""What people ask of a profile: what fills memory at the peak, what lies idle, what is touched how often.

All three answer from rows and time columns; no document is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from hyperopt.store.columns import Ints, unpack_accesses, unpack_times
from hyperopt.store.tables import OperatorRow, Rank, StorageRow, Timings


class NotPlannable(Exception):
    """The question needs storages, and the profile has times only."""

    def __init__(self, profile_id: str) -> None:
        self.profile_id = profile_id
        super().__init__(f"{profile_id} is timing-only: it lists no storages")


@dataclass(frozen=True)
class AliveStorage:
    storage: int
    name: str
    kind: str
    layer: str
    bytes: int
    offloadable: bool
    alive_from: int
    alive_until: int


@dataclass(frozen=True)
class Peak:
    """HBM at the instant of the replayed peak: `base_bytes` + `workspace_bytes` + all storages alive then.

    `storages` are the largest first, at most as many as asked for; `alive_count` and `alive_bytes` of all.
    """

    peak_op: int
    operator: str
    layer: str
    at_us: float
    peak_bytes: int
    base_bytes: int
    workspace_bytes: int
    alive_count: int
    alive_bytes: int
    storages: list[AliveStorage]


@dataclass(frozen=True)
class IdleStorage:
    """The longest time that a storage lies untouched in HBM: after operator `after_op` until `before_op`.

    None for the step's start and end; where `wraps`, the idle time runs over the step's end into the next
    step. `byte_seconds` = bytes x seconds: what keeping it there costs.
    """

    storage: int
    name: str
    kind: str
    layer: str
    bytes: int
    idle_us: float
    byte_seconds: float
    after_op: int | None
    before_op: int | None
    wraps: bool
    offloadable: bool


@dataclass(frozen=True)
class AccessFrequency:
    """Storages of one kind in one layer. `reads`, `writes`: per step. `frequency`: in which share of the
    observed steps, over all stored profiles of the program, they were touched; None where no profile says.
    """

    kind: str
    layer: str
    storages: int
    bytes: int
    reads: int
    writes: int
    steps_observed: int
    steps_accessed: int
    frequency: float | None


def alive_at_peak(session: Session, profile_id: str, limit: int = 50) -> Peak | None:
    """What is in HBM when the replay without a plan is at its peak; None if there is no such profile.

    Raises `NotPlannable`.
    """
    rank = _rank(session, profile_id)
    if rank is None:
        return None
    if rank.peak_op is None or rank.peak_bytes is None:
        raise NotPlannable(profile_id)
    start, end = _times(session, profile_id)
    moment = start[rank.peak_op]
    # Operators of other streams listed before may still run, and hold what they touch.
    running = np.flatnonzero(end[: rank.peak_op] > moment)
    alive = _alive(session, rank.program_id, rank.peak_op, running)
    at_work = [*running.tolist(), rank.peak_op]
    workspace = session.scalar(
        select(func.sum(OperatorRow.workspace_bytes)).where(
            OperatorRow.program_id == rank.program_id, OperatorRow.position.in_(at_work)
        )
    )
    operator = session.get_one(OperatorRow, (rank.program_id, rank.peak_op))
    alive.sort(key=lambda storage: (-storage.bytes, storage.storage))
    return Peak(
        peak_op=rank.peak_op,
        operator=operator.name or operator.type,
        layer=operator.layer,
        at_us=float(moment) / 1000,
        peak_bytes=rank.peak_bytes,
        base_bytes=rank.base_bytes,
        workspace_bytes=int(workspace or 0),
        alive_count=len(alive),
        alive_bytes=sum(storage.bytes for storage in alive),
        storages=alive[:limit],
    )


def _alive(session: Session, program: int, peak_op: int, running: Ints) -> list[AliveStorage]:
    oldest = int(running[0]) if running.size else peak_op
    at_work = frozenset(running.tolist())
    rows = session.scalars(
        select(StorageRow).where(
            StorageRow.program_id == program,
            StorageRow.alive_from <= peak_op,
            StorageRow.alive_until >= oldest,
        )
    )
    return [
        AliveStorage(
            row.storage,
            row.name,
            row.kind,
            row.layer,
            row.bytes_,
            row.offloadable,
            row.alive_from,
            row.alive_until,
        )
        for row in rows
        if row.alive_until >= peak_op or not at_work.isdisjoint(unpack_accesses(row.accesses))
    ]


def longest_idle(session: Session, profile_id: str, limit: int = 50) -> list[IdleStorage] | None:
    """Storages by their longest idle time x bytes, greatest first; None if there is no such profile.

    Times are of the replay without a plan. Raises `NotPlannable`.
    """
    rank = _rank(session, profile_id)
    if rank is None:
        return None
    if rank.timing_only or rank.step_ns is None:
        raise NotPlannable(profile_id)
    start, end = (times.tolist() for times in _times(session, profile_id))
    rows = session.execute(
        select(
            StorageRow.storage,
            StorageRow.name,
            StorageRow.kind,
            StorageRow.layer,
            StorageRow.bytes_,
            StorageRow.offloadable,
            StorageRow.resident_at_start,
            StorageRow.resident_at_end,
            StorageRow.accesses,
        ).where(StorageRow.program_id == rank.program_id)
    ).all()
    gaps = [_longest_gap(row, start, end, rank.step_ns) for row in rows]
    found = [
        IdleStorage(
            storage=row.storage,
            name=row.name,
            kind=row.kind,
            layer=row.layer,
            bytes=row.bytes_,
            idle_us=gap.ns / 1000,
            byte_seconds=row.bytes_ * gap.ns / 1e9,
            after_op=gap.after_op,
            before_op=gap.before_op,
            wraps=gap.wraps,
            offloadable=row.offloadable,
        )
        for row, gap in sorted(zip(rows, gaps, strict=True), key=lambda pair: -pair[0].bytes_ * pair[1].ns)[:limit]
        if gap.ns > 0
    ]
    return sorted(found, key=lambda storage: (-storage.byte_seconds, storage.storage))


class _Gap(NamedTuple):
    ns: int
    after_op: int | None = None
    before_op: int | None = None
    wraps: bool = False


def _longest_gap(row: Row[*tuple[Any, ...]], start: list[int], end: list[int], step_ns: int) -> _Gap:
    """The longest of: gaps between accesses; before the first or after the last where it is resident there.

    Resident at both ends, the two join: that gap runs over the step's end. Plain integers: a storage has a
    handful of accesses, for which arrays take ten times as long.
    """
    ops = unpack_accesses(row.accesses)
    if not ops:
        return _Gap(step_ns, wraps=row.resident_at_end) if row.resident_at_start else _Gap(0)
    longest = _Gap(0)
    idle_from, last = end[ops[0]], ops[0]
    for op in ops[1:]:
        if start[op] - idle_from > longest.ns:
            longest = _Gap(start[op] - idle_from, last, op)
        # Accesses on several streams overlap: idle begins when all so far have ended.
        idle_from, last = max(idle_from, end[op]), op
    before, after = start[ops[0]], step_ns - idle_from
    if row.resident_at_start and row.resident_at_end:
        ends = _Gap(before + after, last, ops[0], True)
    elif row.resident_at_start:
        ends = _Gap(before, None, ops[0])
    else:
        ends = _Gap(after if row.resident_at_end else 0, last, None)
    return max(longest, ends, key=lambda gap: gap.ns)


def access_frequency(session: Session, profile_id: str) -> list[AccessFrequency] | None:
    """How often storages are touched, by kind and layer, most bytes first; None: no such profile."""
    rank = _rank(session, profile_id)
    if rank is None:
        return None
    total = func.sum(StorageRow.bytes_)
    rows = session.execute(
        select(
            StorageRow.kind,
            StorageRow.layer,
            func.count(),
            total,
            func.sum(StorageRow.reads),
            func.sum(StorageRow.writes),
            func.sum(StorageRow.steps_observed),
            func.sum(StorageRow.steps_accessed),
        )
        .where(StorageRow.program_id == rank.program_id)
        .group_by(StorageRow.kind, StorageRow.layer)
        .order_by(total.desc(), StorageRow.kind, StorageRow.layer)
    )
    return [
        AccessFrequency(
            kind,
            layer,
            count,
            int(size),
            int(reads),
            int(writes),
            int(seen),
            int(hit),
            int(hit) / int(seen) if seen else None,
        )
        for kind, layer, count, size, reads, writes, seen, hit in rows
    ]


def _rank(session: Session, profile_id: str) -> Rank | None:
    return session.get(Rank, profile_id)


def _times(session: Session, profile_id: str) -> tuple[Ints, Ints]:
    timings = session.get_one(Timings, profile_id)
    return unpack_times(timings.start_ns), unpack_times(timings.end_ns)
