"""In which order each stage runs the forwards and backwards of its chunks, and what is alive meanwhile.

::

    gpipe         F0 F1 F2 F3 | B0 B1 B2 B3
    1f1b          F0 .. F(w-1) | Fw B0 F(w+1) B1 .. | B ..             w = stages - stage - 1
    interleaved   the same over chunks: micro-batches in groups of `stages`, all chunks of a group in turn, backward
                  the other way round; w = 2 (stages - stage - 1) + (chunks - 1) x the first group
    zero-bubble   F0 .. F(w-1) | Fw B0 F(w+1) B1 .. Fx B(d) W0 .. | B W .. | W ..
                  w = ahead x (stages - stage - 1), d = the smaller of `lag` and ahead x stage

1F1B is PipeDream-Flush (Narayanan et al. 2021), interleaved that of Megatron-LM. Where the micro-batches are no
multiple of the stages the first group takes the rest, as Fast-Tuner has it; Megatron-LM refuses that.

Zero-bubble is that of Qi et al. (2023, arXiv 2401.10241): B is the gradient of a chunk's inputs, for which the stage
before it waits, W that of its weights, for which nobody does. W may stay d micro-batches behind B. With one forward
`ahead` for each stage behind, and `lag` as large as it gets, it is their ZB-H1, with two their ZB-H2; with `lag` 0
each W stands right behind its B, and it is 1F1B whose backwards send before they end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solver.stages.problem import NoPlanError, Problem, Schedule, parts

I64 = NDArray[np.int64]
FORWARD, BACKWARD, WEIGHT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Task:
    """One forward or backward of a chunk for one micro-batch, or what a zero-bubble schedule keeps apart of it."""

    direction: int
    chunk: int
    micro_batch: int


def orders(
    schedule: Schedule, stages: int, chunks: int, micro_batches: int, ahead: int = 1, lag: int = 0
) -> list[list[Task]]:
    """[stage]: its tasks in order; `ahead` and `lag` are a zero-bubble schedule's. Raises `NoPlanError` where the
    schedule has no such order."""
    if schedule != "interleaved" and chunks > 1:
        raise NoPlanError(f"{schedule} has one chunk a stage, not {chunks}: use the interleaved schedule")
    if schedule == "zero-bubble":
        return [
            _halved(micro_batches, ahead * (stages - stage - 1), min(lag, ahead * stage)) for stage in range(stages)
        ]
    blocks = _blocks(stages, micro_batches)
    forward = [Task(FORWARD, c, m) for block in blocks for c in range(chunks) for m in block]
    backward = [Task(BACKWARD, c, m) for block in blocks for c in reversed(range(chunks)) for m in block]
    if schedule == "gpipe":
        return [forward + backward for _ in range(stages)]
    made = []
    for stage in range(stages):
        behind = stages - stage - 1
        warm = behind if chunks == 1 else 2 * behind + (chunks - 1) * len(blocks[0])
        warm = min(warm, len(forward))
        order = forward[:warm]
        for f, b in zip(forward[warm:], backward, strict=False):
            order += [f, b]
        made.append(order + backward[len(forward) - warm :])
    return made


def _halved(micro_batches: int, warm: int, late: int) -> list[Task]:
    """One stage's order with so many forwards first, and each W so many micro-batches `late`."""
    order = [Task(FORWARD, 0, m) for m in range(min(warm, micro_batches))]
    for m in range(micro_batches):
        if warm + m < micro_batches:
            order.append(Task(FORWARD, 0, warm + m))
        order.append(Task(BACKWARD, 0, m))
        if m >= late:
            order.append(Task(WEIGHT, 0, m - late))
    return order + [Task(WEIGHT, 0, m) for m in range(max(0, micro_batches - late), micro_batches)]


def _blocks(stages: int, micro_batches: int) -> list[range]:
    count, rest = divmod(micro_batches, stages)
    if not count:
        return [range(micro_batches)]
    starts = [0, *range(stages + rest, micro_batches + 1, stages)]
    return [range(a, b) for a, b in pairwise(starts)]


def most_alive(order: Sequence[Task], chunks: int) -> list[tuple[int, ...]]:
    """Micro-batches alive per chunk, at every prefix of the order; those that others exceed throughout are left out.

    Where backward is in halves, a second number for each chunk counts those between them. Nothing is counted between
    halves that stand side by side: that is an undivided backward.
    """
    halved = any(task.direction == WEIGHT for task in order)
    alive = [0] * (2 * chunks if halved else chunks)
    seen = set()
    for task, behind in zip(order, [*order[1:], None], strict=True):
        if task.direction != WEIGHT:
            alive[task.chunk] += 1 if task.direction == FORWARD else -1
        if halved and task.direction != FORWARD:
            alive[chunks + task.chunk] += 1 if task.direction == BACKWARD else -1
        if task.direction != BACKWARD or behind != Task(WEIGHT, task.chunk, task.micro_batch):
            seen.add(tuple(alive))
    kept: list[tuple[int, ...]] = []
    for one in sorted(seen, reverse=True):
        if not any(all(a >= b for a, b in zip(other, one, strict=True)) for other in kept):
            kept.append(one)
    return kept


@dataclass(frozen=True, eq=False)
class Graph:
    """All tasks so that each stands after what it waits for: one pass over them tells the times of any durations.

    `duration[i]`: index into durations [group, part], flattened; `before[i]`: the task ahead of it on its stage,
    `needs[i]`: the one whose data it takes (-1: none), which come over the link of stage `link[i]` (-1: none).
    `alive[stage, j, chunk]`: `most_alive`, padded with zeros; `late`: of it those between the halves of backward.
    """

    stages: int
    chunks: int
    orders: tuple[tuple[Task, ...], ...]
    stage: I64
    duration: I64
    before: I64
    needs: I64
    link: I64
    alive: I64
    late: I64
    position: dict[tuple[int, Task], int]


def graph_of(problem: Problem, micro_batches: int | None = None) -> Graph:
    """The graph of a problem's schedule, for all its micro-batches or so many."""
    count = problem.micro_batches if micro_batches is None else micro_batches
    return graph(problem.schedule, problem.stages, problem.chunks, count, problem.ahead, problem.lag)


@lru_cache(maxsize=64)
def graph(schedule: Schedule, stages: int, chunks: int, micro_batches: int, ahead: int = 1, lag: int = 0) -> Graph:
    """The graph of a schedule. Raises `NoPlanError` where tasks wait for each other for ever."""
    listed = orders(schedule, stages, chunks, micro_batches, ahead, lag)
    each = parts(schedule)
    position: dict[tuple[int, Task], int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    reached = [0] * stages
    while len(rows) < sum(map(len, listed)):
        moved = False
        for stage, order in enumerate(listed):
            while reached[stage] < len(order):
                task = order[reached[stage]]
                source, link = _source(stage, task, stages, chunks)
                if source is not None and source not in position:
                    break
                ahead = position[stage, order[reached[stage] - 1]] if reached[stage] else -1
                position[stage, task] = len(rows)
                index = each * (task.chunk * stages + stage) + task.direction
                rows.append((stage, index, ahead, -1 if source is None else position[source], link))
                reached[stage] += 1
                moved = True
        if not moved:
            raise NoPlanError(f"{schedule} over {stages} stages waits for ever with {micro_batches} micro-batches")
    live = [most_alive(order, chunks) for order in listed]
    counted = np.zeros((stages, max(map(len, live)), 2 * chunks), np.int64)
    for stage, rows_of in enumerate(live):
        counted[stage, : len(rows_of), : len(rows_of[0])] = rows_of
    alive, late = (np.ascontiguousarray(half) for half in np.split(counted, 2, axis=2))
    stage_of, duration, before, needs, links = np.array(rows, np.int64).T.copy()
    listed_once = tuple(map(tuple, listed))
    return Graph(stages, chunks, listed_once, stage_of, duration, before, needs, links, alive, late, position)


def _source(stage: int, task: Task, stages: int, chunks: int) -> tuple[tuple[int, Task] | None, int]:
    """(stage, task) that this one takes its data from, and the stage whose link they cross; -1: none."""
    group = task.chunk * stages + stage
    if task.direction == WEIGHT:
        return None, -1  # its B is ahead of it on the stage
    if task.direction == FORWARD:
        if group == 0:
            return None, -1
        at, chunk = (group - 1) % stages, (group - 1) // stages
        return (at, Task(FORWARD, chunk, task.micro_batch)), at if at != stage else -1
    if group == stages * chunks - 1:
        return (stage, Task(FORWARD, task.chunk, task.micro_batch)), -1
    at, chunk = (group + 1) % stages, (group + 1) // stages
    return (at, Task(BACKWARD, chunk, task.micro_batch)), stage if at != stage else -1
