"""MindSpore's CPU profiler files -> executions of operators, and memory in use over time.

Both are in the folder ``FRAMEWORK`` of a profiler output:

* ``cpu_op_execute_timestamp_*.txt``, a line an operator, a triple an execution::

      Default/net-Net/MatMul-op0;HostCpuOps;1795959599007074115,0.272147,0 1795959599302511744,0.285987,0

  (start in ns, duration in ms, thread)
* ``cpu_ms_memory_record_*.txt``, a row each time memory is taken or given back::

      Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)
      1795959598762637984,169472,0,169472

The record counts the runtime's memory pool, to the byte; in graph mode parameters and
optimizer states are not in that pool.
"""

from __future__ import annotations

from dataclasses import dataclass


class CpuProfilerError(ValueError):
    """A file of the CPU profiler that cannot be read; the message names the line."""


@dataclass(frozen=True, order=True)
class Execution:
    """One run of an operator: start and end in nanoseconds of the wall clock."""

    start: int
    end: int


@dataclass(frozen=True)
class MemoryRecord:
    """Bytes in use after each change: ``times`` in nanoseconds ascending, ``used`` in bytes."""

    times: tuple[int, ...]
    used: tuple[int, ...]

    def between(self, start: int, end: int) -> list[int]:
        """Bytes in use at the changes with start <= time < end."""
        return [used for time, used in zip(self.times, self.used, strict=True) if start <= time < end]


def read_executions(text: str) -> dict[str, list[Execution]]:
    """Operator name -> its executions in order of start. Raises ``CpuProfilerError``."""
    found: dict[str, list[Execution]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            name, _, triples = line.split(";")
            runs = [_execution(triple) for triple in triples.split()]
        except ValueError as error:
            raise CpuProfilerError(f"line {number} of the execution times: {error}") from error
        found.setdefault(name, []).extend(runs)
    return {name: sorted(runs) for name, runs in found.items()}


def _execution(triple: str) -> Execution:
    start, duration_ms, _ = triple.split(",")
    return Execution(int(start), int(start) + round(float(duration_ms) * 1_000_000))


def read_memory_record(text: str) -> MemoryRecord:
    """The memory record. Raises ``CpuProfilerError`` on another header or a damaged row."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("Timestamp(ns),Total Allocated(Byte)"):
        raise CpuProfilerError(f"not a memory record: {lines[:1]}")
    rows: list[tuple[int, int]] = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            time, used = line.split(",")[:2]
            rows.append((int(time), int(used)))
        except ValueError as error:
            raise CpuProfilerError(f"line {number} of the memory record: {error}") from error
    rows.sort(key=lambda row: row[0])
    return MemoryRecord(tuple(time for time, _ in rows), tuple(used for _, used in rows))
