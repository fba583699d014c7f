"""Times of a schedule: the makespan, Fast-Tuner's folded objective, and the path that sets them.

The makespan is a longest path, hence the largest of linear functions of the groups' durations, one for each path.
`Reason` is such a function: how often the path runs each group's forward and backward, and its ticks on links. It
bounds every other split from below as well (`master`), which is what makes a proof possible.

*Folded* (Fast-Tuner): of many micro-batches only five blocks of `stages` are written out, and the blocks left
out are added as count x the steady distance between the last two blocks' first forwards, sigma, on the stage where it
is largest; starts may be put off to make it smaller. For given durations that is a longest path with arcs *back* from
the last block to the one before it, of length -sigma: sigma must at least make no cycle positive (each cycle again is
linear), and no smaller makespan pays for a larger sigma while a path uses fewer arcs back than blocks are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperopt.engine.compiled import compiled
from solver.stages.problem import Objective, Problem
from solver.stages.schedule import FORWARD, Graph, Task, graph_of

I64 = NDArray[np.int64]

WRITTEN_BLOCKS = 5
"""Blocks of micro-batches that the folded objective writes out, where there are more."""


@dataclass(frozen=True, eq=False)
class Reason:
    """``value >= counts . durations + lag - back * sigma``; for a cycle ``back * sigma >= counts . durations + lag``.

    `counts`: [group * parts + part]; `lag`: ticks on links.
    """

    counts: I64
    lag: int
    back: int = 0
    cycle: bool = False


@dataclass(frozen=True, eq=False)
class Clock:
    """What tells the value of durations [group, part] under one objective. `folded_blocks`: left out; `anchors`:
    [stage, (last, before)] tasks whose distance is sigma. Empty anchors: nothing is folded."""

    graph: Graph
    parts: int
    lag: I64
    anchors: I64
    folded_blocks: int

    def value(self, durations: I64) -> int:
        """Ticks of the makespan, or of the folded objective."""
        return self._tell(durations, self.folded_blocks)

    def sigma(self, durations: I64) -> int:
        """Ticks between the last two blocks; 0 where nothing is folded."""
        if not self.folded_blocks:
            return 0
        return self._tell(durations, self.folded_blocks + 1) - self._tell(durations, self.folded_blocks)

    def _tell(self, durations: I64, folded: int) -> int:
        g = self.graph
        flat = durations.ravel()
        return int(tell(flat, self.parts, g.duration, g.before, g.needs, self.lag, self.anchors, folded))

    def times(self, durations: I64, sigma: int = 0) -> tuple[I64, I64, int]:
        """Ends and parents of all tasks, and what never settles (`settle`)."""
        g = self.graph
        ends, parent = np.empty((2, len(g.duration)), np.int64)
        flat = np.ascontiguousarray(durations.ravel())
        stuck = settle(flat, g.duration, g.before, g.needs, self.lag, self.anchors, sigma, ends, parent)
        return ends, parent, int(stuck)

    def reasons(self, durations: I64) -> tuple[int, list[Reason]]:
        """The value, and the path (and the last cycle) that set it."""
        flat = durations.ravel()
        sigma, found = least_sigma(flat, self.parts, self.anchors), []
        while True:
            ends, parent, stuck = self.times(durations, sigma)
            if stuck < 0:
                break
            cycle = self._walk(parent, stuck, whole=False)
            sigma = -(-(int(cycle.counts @ flat) + cycle.lag) // cycle.back)
            found = [cycle]
        path = self._walk(parent, int(np.argmax(ends)), whole=True)
        return int(ends.max()) + self.folded_blocks * sigma, [path, *found]

    def _walk(self, parent: I64, task: int, whole: bool) -> Reason:
        """From a task's end back along its parents to the start, or once around the cycle that its parents lead to.

        In terms of starts, an arc from `by` takes by's duration and the link, or gives sigma back.
        """
        g = self.graph
        counts = np.zeros(self.parts * g.stages * g.chunks, np.int64)
        lag = backs = 0
        if whole:
            counts[g.duration[task]] += 1
        else:
            for _ in range(len(parent)):
                task = _by(parent[task])
        at = task
        while parent[at] != -1:
            by = _by(parent[at])
            if parent[at] <= -2:
                backs += 1
            else:
                counts[g.duration[by]] += 1
                lag += int(self.lag[at]) if by == g.needs[at] else 0
            at = by
            if at == task:
                break
        return Reason(counts, lag, backs, not whole)


def _by(parent: int) -> int:
    return int(-2 - parent if parent <= -2 else parent)


def clock(problem: Problem, objective: Objective) -> Clock:
    """For `makespan` and `folded`. (`slowest` needs no clock.)"""
    count, stages = problem.micro_batches, problem.stages
    left_out = 0
    if objective == "folded" and count // stages > WRITTEN_BLOCKS:
        left_out = count // stages - WRITTEN_BLOCKS
        count -= left_out * stages
    made = graph_of(problem, count)
    lag = np.where(made.link >= 0, problem.transfer[made.link], 0)
    anchors = np.zeros((0, 2), np.int64)
    if left_out:
        pairs = [[made.position[s, Task(FORWARD, 0, count - back * stages)] for back in (1, 2)] for s in range(stages)]
        anchors = np.array(pairs, np.int64)
    return Clock(made, problem.parts, lag, anchors, left_out)


@compiled()
def settle(
    durations: I64, index: I64, before: I64, needs: I64, lag: I64, anchors: I64, sigma: int, ends: I64, parent: I64
) -> int:
    """Fills in ends and parents of all tasks (-1: none; -2 - a: put off behind the start of a, by sigma); a task on
    a cycle that never settles, -1 if there is none. A path uses each arc back once: more rounds than arcs are a cycle.

    (Compiled functions hand back no arrays here: numba 0.68, loading from its cache one that another calls too, failed
    to box them now and then: "NRT_adapt_ndarray_to_python, descr is NULL".)
    """
    count, arcs = len(index), len(anchors)
    earliest = np.zeros(count, np.int64)
    ends[:] = -1
    parent[:] = -1
    stuck = -1
    for _ in range(arcs + 2):
        for i in range(count):
            start, by = earliest[i], -1
            if before[i] >= 0 and ends[before[i]] > start:
                start, by = ends[before[i]], before[i]
            if needs[i] >= 0 and ends[needs[i]] + lag[i] > start:
                start, by = ends[needs[i]] + lag[i], needs[i]
            if start + durations[index[i]] > ends[i]:
                ends[i] = start + durations[index[i]]
                parent[i] = by
        stuck = -1
        for k in range(arcs):
            late, early = anchors[k, 0], anchors[k, 1]
            start = ends[late] - durations[index[late]] - sigma
            if start > ends[early] - durations[index[early]]:
                earliest[early] = start
                ends[early] = start + durations[index[early]]
                parent[early] = -2 - late
                stuck = early
        if stuck < 0:
            break
    return stuck


@compiled()
def least_sigma(durations: I64, parts: int, anchors: I64) -> int:
    """What each stage works between its two anchors, at least: the tasks of one block. The largest over stages."""
    stages = len(anchors)
    most = 0
    for s in range(stages):
        work = 0
        for first in range(s * parts, len(durations), stages * parts):
            for part in range(parts):
                work += durations[first + part]
        most = max(most, stages * work)
    return most


@compiled()
def tell(
    durations: I64, parts: int, index: I64, before: I64, needs: I64, lag: I64, anchors: I64, folded_blocks: int
) -> int:
    """As `Clock.reasons`, the value alone, compiled throughout."""
    sigma: int = least_sigma(durations, parts, anchors)
    ends = np.empty(len(index), np.int64)
    parent = np.empty(len(index), np.int64)
    while True:
        task = settle(durations, index, before, needs, lag, anchors, sigma, ends, parent)
        if task < 0:
            return int(ends.max()) + folded_blocks * sigma
        for _ in range(len(index)):  # onto the cycle: no path without one is longer
            task = -2 - parent[task] if parent[task] <= -2 else parent[task]
        at, backs, length = task, 0, 0
        for _ in range(len(index)):  # once around it
            by = -2 - parent[at] if parent[at] <= -2 else parent[at]
            if parent[at] <= -2:
                backs += 1
            else:
                length += durations[index[by]]
                if by == needs[at]:
                    length += lag[at]
            at = by
            if at == task:
                break
        sigma = -(-length // backs)
