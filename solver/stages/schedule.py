"""In which order each stage runs the forwards and backwards of its chunks, and what is alive meanwhile.

::

    gpipe         F0 F1 F2 F3 | B0 B1 B2 B3
    1f1b          F0 .. F(w-1) | Fw B0 F(w+1) B1 .. | B ..             w = stages - stage - 1
    interleaved   the same over chunks: micro-batches in groups of `stages`, all chunks of a group in turn, backward
                  the other way round; w = 2 (stages - stage - 1) + (chunks - 1) x the first group

1F1B is PipeDream-Flush (Narayanan et al. 2021), interleaved that of Megatron-LM. Where the micro-batches are no
multiple of the stages the first group takes the rest, as Fast-Tuner has it; Megatron-LM refuses that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solver.stages.problem import NoPlanError, Schedule

I64 = NDArray[np.int64]
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True)
class Task:
    """One forward or backward of a chunk for one micro-batch."""

    direction: int
    chunk: int
    micro_batch: int


def orders(schedule: Schedule, stages: int, chunks: int, micro_batches: int) -> list[list[Task]]:
    """[stage]: its tasks in order. Raises `NoPlanError` where the schedule has no such order."""
    if schedule != "interleaved" and chunks > 1:
        raise NoPlanError(f"{schedule} has one chunk a stage, not {chunks}: use the interleaved schedule")
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


def _blocks(stages: int, micro_batches: int) -> list[range]:
    count, rest = divmod(micro_batches, stages)
    if not count:
        return [range(micro_batches)]
    starts = [0, *range(stages + rest, micro_batches + 1, stages)]
    return [range(a, b) for a, b in pairwise(starts)]


def most_alive(order: Sequence[Task], chunks: int) -> list[tuple[int, ...]]:
    """Micro-batches alive per chunk, at every prefix of the order; those that others exceed throughout are left out."""
    alive = [0] * chunks
    seen = set()
    for task in order:
        alive[task.chunk] += 1 if task.direction == FORWARD else -1
        seen.add(tuple(alive))
    kept: list[tuple[int, ...]] = []
    for one in sorted(seen, reverse=True):
        if not any(all(a >= b for a, b in zip(other, one, strict=True)) for other in kept):
            kept.append(one)
    return kept


@dataclass(frozen=True, eq=False)
class Graph:
    """All tasks so that each stands after what it waits for: one pass over them tells the times of any durations.

    `duration[i]`: index into durations [group, direction], flattened; `before[i]`: the task ahead of it on its stage,
    `needs[i]`: the one whose data it takes (-1: none), which come over the link of stage `link[i]` (-1: none).
    `alive[stage, j, chunk]`: `most_alive`, padded with zeros.
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
    position: dict[tuple[int, Task], int]


@lru_cache(maxsize=16)
def graph(schedule: Schedule, stages: int, chunks: int, micro_batches: int) -> Graph:
    """The graph of a schedule. Raises `NoPlanError` where tasks wait for each other for ever."""
    listed = orders(schedule, stages, chunks, micro_batches)
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
                index = 2 * (task.chunk * stages + stage) + task.direction
                rows.append((stage, index, ahead, -1 if source is None else position[source], link))
                reached[stage] += 1
                moved = True
        if not moved:
            raise NoPlanError(f"{schedule} over {stages} stages waits for ever with {micro_batches} micro-batches")
    live = [most_alive(order, chunks) for order in listed]
    alive = np.zeros((stages, max(map(len, live)), chunks), np.int64)
    for stage, rows_of in enumerate(live):
        alive[stage, : len(rows_of)] = rows_of
    stage_of, duration, before, needs, links = np.array(rows, np.int64).T.copy()
    listed_once = tuple(map(tuple, listed))
    return Graph(stages, chunks, listed_once, stage_of, duration, before, needs, links, alive, position)


def _source(stage: int, task: Task, stages: int, chunks: int) -> tuple[tuple[int, Task] | None, int]:
    """(stage, task) that this one takes its data from, and the stage whose link they cross; -1: none."""
    group = task.chunk * stages + stage
    if task.direction == FORWARD:
        if group == 0:
            return None, -1
        at, chunk = (group - 1) % stages, (group - 1) // stages
        return (at, Task(FORWARD, chunk, task.micro_batch)), at if at != stage else -1
    if group == stages * chunks - 1:
        return (stage, Task(FORWARD, task.chunk, task.micro_batch)), -1
    at, chunk = (group + 1) % stages, (group + 1) // stages
    return (at, Task(BACKWARD, chunk, task.micro_batch)), stage if at != stage else -1
