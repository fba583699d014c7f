"""A coarse time axis for the fluid bound: rows are moments at which memory is counted, slots the time between.

::

    time      0 ──slot 0── t(b0) ──slot 1── t(b1) ── ... ── t(b last) ──slot m── end of the step
    rows                    row 0            row 1           row m-1

Row r is the start of compute operator `ops[r]`, after its allocation. A slot is at least as long as the compute
operators that start in it take, since they run one at a time; and any stretch of slots is at least as long as the
longest chain of operators in it that wait for each other, on whichever streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from solver.residency.compiled import entry
from solver.residency.problem import Int64s, Problem


@dataclass(frozen=True)
class Axis:
    """`ops`: the operator of each row; `floor_ns`: least nanoseconds of each slot from compute operators alone (one
    more slot than rows); `stretches`: (first slot, end slot, nanoseconds) that other streams make longer."""

    ops: Int64s
    floor_ns: Int64s
    stretches: tuple[tuple[int, int, int], ...]

    @property
    def rows(self) -> int:
        return len(self.ops)

    def slot_of(self, op: npt.ArrayLike) -> Int64s:
        """The slot in which an operator starts."""
        return np.asarray(np.searchsorted(self.ops, op, side="right"), dtype=np.int64)

    def deadline_slot(self, op: npt.ArrayLike) -> Int64s:
        """The last slot of which some part comes before an operator starts."""
        return np.asarray(np.searchsorted(self.ops, op, side="left"), dtype=np.int64)


def make_axis(problem: Problem, rows: int) -> Axis:
    """About `rows` rows: every compute operator where there are no more, else the fullest of each stretch of time.

    With several streams also, of each stretch, the fullest of the operators on which the step's length hangs. Between
    two of those a chain of operators is as long in the plan as it is in the step, and adds up: what is recomputed
    between them can hide in the waits between them, and in no others.
    """
    compute = np.asarray(problem.compute, dtype=np.int64)
    critical = np.zeros(0, dtype=np.int64)
    flat = _laid_out(problem)
    if problem.program.streams > 1 and len(compute):
        tails = _tails(problem.n, *flat)
        slack = problem.unlimited.step_ns - np.asarray(problem.unlimited.start, dtype=np.int64) - tails
        critical = compute[slack[compute] <= 0]
    ops = compute
    if len(compute) > rows:
        ops = _fullest(problem, compute, rows)
        if len(critical):
            critical = _fullest(problem, critical, rows)
            ops = np.union1d(ops, critical)
    duration, stream = flat[1], flat[0]
    before = np.concatenate([[0], np.cumsum(np.where(stream == 0, duration, 0))])
    edges = np.concatenate([[0], ops, [problem.n]])
    floor = before[edges[1:]] - before[edges[:-1]]
    stretches = _stretches(problem, ops, floor, critical, flat)
    return Axis(np.asarray(ops, dtype=np.int64), np.asarray(floor, dtype=np.int64), tuple(stretches))


def _fullest(problem: Problem, ops: Int64s, rows: int) -> Int64s:
    starts = np.asarray(problem.unlimited.start, dtype=np.int64)[ops]
    piece = starts * rows // max(1, problem.unlimited.step_ns)
    order = np.lexsort((-problem.load[ops], piece))
    first = np.concatenate([[True], np.diff(piece[order]) > 0])
    return np.asarray(np.sort(ops[order[first]]), dtype=np.int64)


def _stretches(
    problem: Problem, ops: Int64s, floor: Int64s, critical: Int64s, flat: tuple[Int64s, ...]
) -> list[tuple[int, int, int]]:
    """Longest chains over slots [first, end): the whole step, between critical rows, and 1, 2, 4, ... slots."""
    if problem.program.streams == 1:
        return []
    edges = [0, *ops.tolist(), problem.n]
    slots = len(edges) - 1
    found = [(0, slots, problem.unlimited.step_ns)]
    marks = [0, *(1 + np.searchsorted(ops, critical)).tolist(), slots]
    spans = {(a, b) for a, b in pairwise(marks) if b > a}
    width = 1
    while width < slots:
        spans |= {(first, first + width) for first in range(0, slots - width + 1, max(1, width // 2))}
        width *= 2
    for first, end in sorted(spans - {(0, slots)}):
        longest = int(_longest(edges[first], edges[end], end == slots, *flat))
        if longest > int(floor[first:end].sum()):
            found.append((first, end, longest))
    return found


def _laid_out(problem: Problem) -> tuple[Int64s, ...]:
    """What `_longest` needs of the operators: streams, durations, accesses (write or not), laid out flat."""
    program = problem.program
    accesses = [
        [(s, 0) for s in reads] + [(s, 1) for s in writes]
        for reads, writes in zip(program.reads, program.writes, strict=True)
    ]
    first = np.concatenate([[0], np.cumsum([len(a) for a in accesses])])
    both = np.asarray([pair for a in accesses for pair in a], dtype=np.int64).reshape(-1, 2)
    count = len(program.size)
    return (
        np.asarray(program.stream, dtype=np.int64),
        np.asarray(program.duration, dtype=np.int64),
        np.asarray(first, dtype=np.int64),
        np.ascontiguousarray(both[:, 0]),
        np.ascontiguousarray(both[:, 1]),
        np.zeros(program.streams, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
    )


@entry
def _longest(begin, end, to_the_end, stream, duration, first, storage, is_write, free, ready, busy):  # type: ignore[no-untyped-def]
    """Least nanoseconds from the start of operator `begin` to that of `end` (or of all of them to be over).

    `free`, per stream, and `ready` and `busy`, per storage, are work space.
    """
    free[:] = 0
    for i in range(first[begin], first[end]):
        ready[storage[i]] = 0
        busy[storage[i]] = 0
    now = latest = 0
    for k in range(begin, end):
        start = max(now, free[stream[k]])
        for i in range(first[k], first[k + 1]):
            start = max(start, busy[storage[i]] if is_write[i] else ready[storage[i]])
        now = start
        over = start + duration[k]
        free[stream[k]] = over
        latest = max(latest, over)
        for i in range(first[k], first[k + 1]):
            busy[storage[i]] = max(busy[storage[i]], over)
            if is_write[i]:
                ready[storage[i]] = over
    if to_the_end:
        return latest
    return max(now, free[0])  # `end` is a compute operator


@entry
def _tails(n, stream, duration, first, storage, is_write, free, ready, busy):  # type: ignore[no-untyped-def]
    """Least nanoseconds from the start of each operator to the end of the step: `_longest`, backwards.

    `free`: of the next operator on each stream; `ready`: of the next reader of a storage, `busy`: of its next writer.
    """
    free[:] = 0
    ready[:] = 0
    busy[:] = 0
    tails = np.zeros(n, np.int64)
    after = 0
    for k in range(n - 1, -1, -1):
        longest = free[stream[k]]
        for i in range(first[k], first[k + 1]):
            s = storage[i]
            longest = max(longest, busy[s])
            if is_write[i]:
                longest = max(longest, ready[s])
        tails[k] = max(after, duration[k] + longest)
        after = tails[k]
        free[stream[k]] = tails[k]
        for i in range(first[k], first[k + 1]):
            if is_write[i]:
                busy[storage[i]] = tails[k]
                ready[storage[i]] = 0
        for i in range(first[k], first[k + 1]):
            if not is_write[i]:
                ready[storage[i]] = tails[k]
    return tails
