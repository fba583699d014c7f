"""Kernel times of several steps -> one time a kernel and one idle gap before it.

Medians over the recorded steps, scaled so that kernels and gaps together are the step as it runs without a
profiler::

    | gap 0 | kernel 0 | gap 1 | kernel 1 | ... | tail |  =  step_us
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from profiler.capture.recording import CaptureError, StepRecord


def same_kernels(records: list[StepRecord]) -> None:
    """Raises `CaptureError` at the first kernel in which a step differs from the first one."""
    first = [kernel.type for kernel in records[0].kernels]
    if not first:
        raise CaptureError("the profiler recorded no kernels")
    for number, record in enumerate(records[1:], 1):
        types = [kernel.type for kernel in record.kernels]
        if types == first:
            continue
        place = next(
            (i for i, (a, b) in enumerate(zip(first, types, strict=False)) if a != b),
            min(len(first), len(types)),
        )
        here = f"{first[place : place + 1]} and {types[place : place + 1]}"
        raise CaptureError(
            f"steps launch different kernels: {len(first)} and {len(types)} in all, first difference at "
            f"kernel {place}: {here} (step 0 and {number}). "
            "Capture a step whose work does not depend on the data"
        )


@dataclass(frozen=True)
class Times:
    """Medians over the recorded steps, in microseconds: of each kernel, of the gap before each, and of the
    gap after the last. Scaled so that all together are the plain step."""

    durations: list[float]
    gaps: list[float]
    tail: float
    step_us: float
    scaled: float

    @staticmethod
    def of(records: list[StepRecord], step_us: float) -> Times:
        kernels = list(zip(*(record.kernels for record in records), strict=True))
        durations = [statistics.median((k.end - k.start) / 1e3 for k in same) for same in kernels]
        gaps = [statistics.median(_gap(record, i) for record in records) for i in range(len(kernels))]
        tail = statistics.median((record.end - record.kernels[-1].end) / 1e3 for record in records)
        busy, idle = sum(durations), sum(gaps) + tail
        if busy < step_us and idle > 0:
            share = (step_us - busy) / idle
            return Times(durations, [gap * share for gap in gaps], tail * share, step_us, 1.0)
        share = step_us / busy
        return Times([d * share for d in durations], [0.0] * len(gaps), 0.0, step_us, share)


def _gap(record: StepRecord, number: int) -> float:
    """Microseconds between the end of the kernel before and the start of this one."""
    before = record.kernels[number - 1].end if number else record.start
    return max((record.kernels[number].start - before) / 1e3, 0.0)
