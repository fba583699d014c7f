"""Entries of the manifest: a profile's own figures beside what replaying it gives, and what that explains."""

from __future__ import annotations

import numpy as np

from hyperopt.profile import COMPUTE, IDLE, Measured, Profile
from hyperopt.replay import Timeline, replay
from profiler.peaks import excluded_bytes
from profiler.read.findings import Findings
from profiler.read.manifest import Coverage, DroppedRows, Rank

STEP_TOLERANCE = 0.01
"""Replay without a plan gives the measured step within this (docs/reference/documents.md)."""


def accepted(number: int, kind: str, path: str, file: str | None, profile: Profile, findings: Findings) -> Rank:
    """The entry of a rank with a profile, which was written to `file`.

    Raises `legality.IllegalPlan` where the profile is no step that can be replayed.
    """
    digest = profile.program_digest  # first: it and the replay each take much memory for a while
    timeline, measured = replay(profile), profile.measured
    peak = None if profile.timing_only else timeline.peak_bytes
    step_us = (measured.step_us or None) if measured else None
    peak_bytes = (measured.peak_bytes or None) if measured else None
    warnings = [*findings.warnings]
    if step_us is not None and abs(timeline.step_us - step_us) > STEP_TOLERANCE * step_us:
        warnings.append(f"replayed, the step takes {timeline.step_us:.1f} us; measured were {step_us:.1f}")
    if peak is not None and peak_bytes is not None and peak != (comparable := peak_bytes + excluded_bytes(profile)):
        warnings.append(f"replayed, the peak is {peak} bytes; measured were {comparable}")
    return Rank(
        rank=number,
        status="degraded" if findings.missing else "accepted",
        reason=clean("; ".join(findings.missing)),
        kind=kind,
        path=path,
        file=file,
        stage=_stage(profile, findings),
        operators=len(profile.operators),
        storages=len(profile.storages),
        timing_only=profile.timing_only,
        peak_bytes=peak_bytes,
        replayed_peak_bytes=peak,
        base_bytes=None if profile.timing_only else profile.device.base_bytes,
        reserved_bytes=(measured.reserved_bytes or None) if measured else None,
        external_bytes=(measured.external_bytes or None) if measured else None,
        fragmentation_bytes=_fragmentation(measured),
        step_us=step_us,
        step_us_spread=measured.step_us_spread if measured and step_us is not None else None,
        replayed_step_us=timeline.step_us,
        computing_us=_computing_us(profile, findings),
        coverage=coverage(profile, timeline),
        program_digest=digest,
        warnings=tuple(clean(text) for text in warnings),
        dropped=dropped(findings),
        units=tuple(clean(text) for text in findings.units),
        notes=tuple(clean(text) for text in profile.run.notes),
    )


def refused(number: int, kind: str, path: str, reason: str, findings: Findings) -> Rank:
    """The entry of a rank without a profile; its computing time may be known all the same."""
    return Rank(
        rank=number,
        status="refused",
        reason=clean(reason),
        kind=kind,
        path=path,
        stage=findings.stage,
        computing_us=findings.computing_us,
        warnings=tuple(clean(text) for text in findings.warnings),
        dropped=dropped(findings),
        units=tuple(clean(text) for text in findings.units),
    )


def dropped(findings: Findings) -> tuple[DroppedRows, ...]:
    return tuple(
        DroppedRows(file=clean(d.file), why=clean(d.why), rows=d.rows, lines=d.lines) for d in findings.dropped
    )


def clean(text: str) -> str:
    """Text that JSON can hold: names of files may be no UTF-8."""
    return text.encode("utf-8", "replace").decode()


def coverage(profile: Profile, timeline: Timeline) -> Coverage:
    """What operators explain of the measured step, where there is one, and storages of the replayed peak."""
    step_ns = round(profile.measured.step_us * 1000) if profile.measured else 0
    step = _busy_ns(profile, timeline) / (step_ns or timeline.step_ns) if timeline.step_ns else None
    step = None if step is None else round(min(step, 1.0), 6)
    if profile.timing_only or not timeline.peak_bytes:
        return Coverage(step=step)
    peak, base, workspace = timeline.peak_bytes, profile.device.base_bytes, _workspace_at_peak(profile, timeline)
    return Coverage(
        step=step,
        peak=round((peak - base - workspace) / peak, 6),
        workspace=round(workspace / peak, 6),
        base=round(base / peak, 6),
    )


def _workspace_at_peak(profile: Profile, timeline: Timeline) -> int:
    """Bytes of the peak that operators hold while they run, as `hyperopt.occupancy` has them, in a tenth of its time:
    those of the operator that makes the peak, and of the ones listed before that still run then."""
    resident = sum(storage.bytes for storage in profile.storages if storage.resident_at_start)
    if timeline.peak_bytes == profile.device.base_bytes + resident:
        return 0  # the peak is the step's very start
    operators, last = profile.operators, timeline.peak_op
    now = timeline.start[last]
    running = (o.workspace_bytes for o, end in zip(operators[:last], timeline.end, strict=False) if end > now)
    return operators[last].workspace_bytes + sum(running)


def _busy_ns(profile: Profile, timeline: Timeline) -> int:
    """Nanoseconds of the replayed step in which an operator runs on any stream; idle time is none."""
    works = np.fromiter((operator.type != IDLE for operator in profile.operators), np.bool_, len(profile.operators))
    kind = np.int64 if timeline.step_ns < 2**62 else object
    start, end = np.array(timeline.start, kind)[works], np.array(timeline.end, kind)[works]
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate([[0], until])[:-1]
    return int(np.maximum(until - np.maximum(start, before), 0).sum())


def _fragmentation(measured: Measured | None) -> int | None:
    """What the pool had reserved and not given out; None where a figure is not known, or the two contradict."""
    if measured is None or not measured.peak_bytes or measured.reserved_bytes < measured.peak_bytes:
        return None
    return measured.reserved_bytes - measured.peak_bytes


def _computing_us(profile: Profile, findings: Findings) -> float | None:
    """The source's own figure, else the sum over the compute stream, where one operator runs at a time."""
    if findings.computing_us is not None:
        return findings.computing_us
    return sum(o.duration_us for o in profile.operators if o.stream == COMPUTE and o.type != IDLE)


def _stage(profile: Profile, findings: Findings) -> int | None:
    """The stage that the source says, else that of the operators, where all that have one agree."""
    if findings.stage is not None:
        return findings.stage
    stages = {operator.stage for operator in profile.operators if operator.stage is not None}
    return stages.pop() if len(stages) == 1 else None
