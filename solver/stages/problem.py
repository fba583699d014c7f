"""A pipeline to cut into stages, in plain numbers that the solver works on.

Layers stand in one sequence and are cut into `groups` = stages x chunks segments; group ``chunk * stages + stage`` is
what a stage holds for that chunk, so that a micro-batch passes through the groups in order::

    layers   e e e e d d d d d d d d          stage 0: groups 0, 2      2 stages, 2 chunks
    groups   0 0 0 1 1 1 2 2 2 3 3 3          stage 1: groups 1, 3

A *column* is a type of layer at one level: how its activations are kept (recomputed or offloaded, how far). A *split*
says how many layers of each column each group has. Times are integer ticks and memory integer grains, so that sums
are exact; `tick` and `grain` give both in the units of the description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Objective = Literal["makespan", "slowest", "folded"]

NO_LIMIT = 2**60
"""Grains of a stage without a limit."""


class NoPlanError(ValueError):
    """There is no split at all; the message says why and what would help. `proven`: or none was found in time."""

    def __init__(self, message: str, proven: bool = True) -> None:
        self.proven = proven
        super().__init__(message)


@dataclass(frozen=True)
class Column:
    """A layer type at one level. `kind`: what becomes of its activations between forward and backward."""

    type: int
    level: str
    kind: Literal["recompute", "offload"]


@dataclass(frozen=True, eq=False)
class Problem:
    """`forward` to `copy_in`, [stage, column], are ticks; `device` and `host`, [stage, column], grains per micro-batch
    alive; `parameter` [stage, type], `static` and limits [stage] are grains.

    A group's forward takes the larger of its layers' `forward` and their `copy_out` (one link, in turn); backward
    likewise. `first` and `last` (each part of a micro-batch's work) are added to the first and last group, and
    `beside`, [group, (alive, late)], grains of head and tail for each micro-batch there.
    `transfer[s]`: ticks from stage s to the next one (the last's: back to the first, for the next chunk), in both
    directions.

    A zero-bubble schedule has three parts: `backward` is then that of the inputs alone, `weight` the weights'
    gradients, and `late` grains per micro-batch are held between the two; `ahead` and `lag` say how far it goes
    (`schedule`). All others have two, and neither field counts.
    """

    stages: int
    chunks: int
    micro_batches: int
    schedule: Schedule
    runs: tuple[tuple[int, int], ...]
    columns: tuple[Column, ...]
    types: tuple[str, ...]
    forward: I64
    backward: I64
    weight: I64
    copy_out: I64
    copy_in: I64
    device: I64
    late: I64
    host: I64
    parameter: I64
    first: tuple[I64, ...]
    last: tuple[I64, ...]
    beside: I64
    static: I64
    limit: I64
    host_limit: I64
    transfer: I64
    min_layers: int
    tick: float
    grain: float
    ahead: int = 1
    lag: int = 0

    @property
    def groups(self) -> int:
        return self.stages * self.chunks

    @property
    def parts(self) -> int:
        """Tasks of a micro-batch on a group."""
        return parts(self.schedule)

    @cached_property
    def layer_types(self) -> I64:
        """[layer]: its type."""
        return np.repeat([t for t, _ in self.runs], [count for _, count in self.runs]).astype(np.int64)

    @property
    def layers(self) -> int:
        return len(self.layer_types)

    @cached_property
    def type_of(self) -> I64:
        return np.array([c.type for c in self.columns], np.int64)

    @cached_property
    def extra(self) -> I64:
        """[group, part]: ticks besides the layers'."""
        extra = np.zeros((self.groups, self.parts), np.int64)
        for direction in range(self.parts):
            extra[0, direction] += self.first[direction][0]
            extra[-1, direction] += self.last[direction][self.stages - 1]
        return extra

    def durations(self, split: I64) -> I64:
        """[group, part] in ticks, for a split [group, column]."""
        at = np.arange(self.groups) % self.stages
        work = (self.forward, self.backward, self.weight)[: self.parts]
        made = np.stack([(split * each[at]).sum(1) for each in work], 1) + self.extra
        for part, copies in enumerate((self.copy_out, self.copy_in)):
            made[:, part] = np.maximum(made[:, part], (split * copies[at]).sum(1))
        return np.asarray(made, np.int64)

    def counts(self, split: I64) -> I64:
        """[chunk, stage]: layers."""
        return np.asarray(split.sum(1).reshape(self.chunks, self.stages), np.int64)

    def statics(self, split: I64) -> I64:
        """[stage]: grains that are there all the time."""
        at = np.arange(self.groups) % self.stages
        held = (split * self.parameter[:, self.type_of][at]).sum(1)
        return np.asarray(held.reshape(self.chunks, self.stages).sum(0) + self.static, np.int64)


def parts(schedule: Schedule) -> int:
    """Tasks of a micro-batch on a group: forward and backward, or forward and two halves of backward."""
    return 3 if schedule == "zero-bubble" else 2


def uniform(problem: Problem) -> list[int]:
    """Layers per group, as equal as can be, larger ones last (as frameworks cut when nothing is told)."""
    each, more = divmod(problem.layers, problem.groups)
    return [each + (g >= problem.groups - more) for g in range(problem.groups)]


def fastest_split(problem: Problem, sizes: Sequence[int]) -> I64:
    """Those sizes with every layer at the first (fastest) of its columns."""
    if sum(sizes) != problem.layers:
        raise ValueError(f"{sum(sizes)} layers for {problem.layers}")
    split = np.zeros((problem.groups, len(problem.columns)), np.int64)
    fastest = [int(np.flatnonzero(problem.type_of == t)[0]) for t in range(len(problem.types))]
    start = 0
    for g, size in enumerate(sizes):
        for t in problem.layer_types[start : start + size]:
            split[g, fastest[t]] += 1
        start += size
    return split
