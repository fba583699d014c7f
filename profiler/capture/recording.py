"""A few steps under MindSpore's CPU profiler: kernels in launch order, and bytes in use over time.

Both files that the profiler writes carry nanoseconds of the wall clock, so kernels, changes of memory and
whatever the caller stamps with ``time.time_ns`` stand on one axis::

    steps    |------- 0 -------|------- 1 -------|
    kernels    ==  ===  ====     ==  ===  ====
    memory     /\\_/\\__/\\         /\\_/\\__/\

The memory record of a session begins with that of the sessions before it in the process, and the pool is
that of the whole process: only what lies between a step's stamps belongs to the step.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.read.mindspore.cpu_profiler import Execution, MemoryRecord, read_executions, read_memory_record


class CaptureError(RuntimeError):
    """The step cannot be captured as it is; the message says what was seen and what to change."""


@dataclass(frozen=True)
class Kernel:
    """One kernel execution: nanoseconds of the wall clock."""

    start: int
    end: int
    name: str

    @property
    def type(self) -> str:
        """``Default/net-Net/RealDiv-op1`` -> ``RealDiv``."""
        return self.name.rsplit("/", 1)[-1].rsplit("-op", 1)[0]


@dataclass(frozen=True)
class StepRecord:
    """What one step did between ``start`` and ``end`` (ns). ``memory``: pool bytes after each change;
    ``used_before``: pool bytes when the step began."""

    start: int
    end: int
    kernels: tuple[Kernel, ...]
    memory: MemoryRecord
    used_before: int

    @property
    def peak_bytes(self) -> int:
        return max((self.used_before, *self.memory.used))


@dataclass(frozen=True)
class Session:
    """What the profiler wrote of some steps: executions by kernel, the whole memory record, and [start, end) of
    each step (ns). ``began``: when the session did."""

    began: int
    spans: tuple[tuple[int, int], ...]
    executions: dict[str, list[Execution]]
    memory: MemoryRecord


def record_session(run: Callable[[], Any], steps: int) -> Session:
    """Calls ``run`` ``steps`` times under the profiler; ``run`` must wait for its results. What MindSpore prints
    meanwhile goes to standard error.

    Raises `CaptureError` where the profiler's files are missing.
    """
    import mindspore as ms
    from mindspore.profiler import ProfilerActivity

    spans: list[tuple[int, int]] = []
    began = time.time_ns()
    with tempfile.TemporaryDirectory(prefix="hyperopt-record-") as folder, _profiler_output_on_stderr():
        session = ms.profiler.profile(
            activities=[ProfilerActivity.CPU],
            profile_memory=True,
            schedule=ms.profiler.schedule(wait=0, warmup=0, active=steps, repeat=1, skip_first=0),
            # The files that are read here are written either way; analysing them takes a second more.
            on_trace_ready=ms.profiler.tensorboard_trace_handler(folder, analyse_flag=False),
        )
        with session:
            for _ in range(steps):
                start = time.time_ns()
                run()
                spans.append((start, time.time_ns()))
                session.step()
        return Session(
            began,
            tuple(spans),
            read_executions(_only(Path(folder), "cpu_op_execute_timestamp_*.txt")),
            read_memory_record(_only(Path(folder), "cpu_ms_memory_record_*.txt")),
        )


def _only(folder: Path, pattern: str) -> str:
    found = sorted(folder.glob(f"*/FRAMEWORK/{pattern}"))
    if len(found) != 1:
        raise CaptureError(f"expected one {pattern} from the profiler, found {len(found)}: did the steps run anything?")
    return found[0].read_text()


def record_steps(run: Callable[[], Any], steps: int) -> list[StepRecord]:
    """A `record_session`, step by step."""
    session = record_session(run, steps)
    kernels = [Kernel(r.start, r.end, name) for name, runs in session.executions.items() for r in runs]
    kernels.sort(key=lambda kernel: kernel.start)
    return [_step(session.began, start, end, kernels, session.memory) for start, end in session.spans]


def _step(began: int, start: int, end: int, kernels: list[Kernel], memory: MemoryRecord) -> StepRecord:
    """The first step of a session has no row before it: nothing is written between sessions."""
    before = memory.between(began, start) or memory.between(start, end)[:1]
    return StepRecord(
        start=start,
        end=end,
        kernels=tuple(kernel for kernel in kernels if start <= kernel.start <= end),
        memory=MemoryRecord(
            tuple(time for time in memory.times if start <= time < end), tuple(memory.between(start, end))
        ),
        used_before=before[-1] if before else 0,
    )


@contextlib.contextmanager
def _profiler_output_on_stderr() -> Iterator[None]:
    """The profiler's parser, a child process, prints a progress bar on standard output, where a command may
    be printing JSON: file descriptor 1 points at standard error meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
        sys.stdout.flush()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
