"""HBM in listed order under a plan, by the rule that says in how much a replay runs at all; and what it would be if a
storage stayed.

::

    allocations   0     1     2     3     4     5           operators, again or not, and copies in
    A                      released ░░░░░░░ back            away at 2, 3: kept, their levels are higher by its bytes
    recompute                       [ run ]                 kept what it makes, what it takes itself is not taken
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from hyperopt.plan import Residency
from hyperopt.script import COPY_IN, EXEC, RELEASE, RERUN, Script
from solver.residency.absence import Absence
from solver.residency.problem import Int64s, Problem


@dataclass
class _Run:
    """A recompute among the allocations: its own, [first, end); as (first, end, bytes), those at which an input is in
    HBM for nothing but this; and the storages that it makes for itself alone."""

    first: int = 0
    end: int = 0
    inputs: list[tuple[int, int, int]] = field(default_factory=list)
    own: set[int] = field(default_factory=set)


class Levels:
    """The most HBM over any range of a plan's allocations, base included."""

    def __init__(self, problem: Problem, residency: Residency, script: Script) -> None:
        self.size = problem.program.size
        self.spans: dict[tuple[int, int], tuple[int, int]] = {}
        """By storage position and operator after which it is freed (-1: away at the start), the allocations between."""
        self.runs = [_Run() for _ in residency.recompute]
        levels = self._walk(problem, residency, script)
        self.count = len(levels)
        self.rows: list[Int64s] = [np.asarray(levels, dtype=np.int64)]
        width = 1
        while 2 * width <= self.count:  # rows[j][i]: the most at allocations [i, i + 2^j)
            row = self.rows[-1]
            self.rows.append(np.maximum(row[:-width], row[width:]))
            width *= 2

    def _walk(self, problem: Problem, residency: Residency, script: Script) -> list[int]:
        program, recompute, levels = problem.program, residency.recompute, list[int]()
        order = sorted(range(len(recompute)), key=lambda i: recompute[i].before_op)
        turns = iter([(i, j == 0) for i in order for j in range(len(recompute[i].ops))])
        there = list(program.resident)
        freed: dict[int, tuple[int, int]] = dict.fromkeys(script.starts_out, (-1, 0))
        for s in script.starts_out:
            there[s] = False
        used = problem.profile.device.base_bytes
        used += sum(size for size, in_hbm in zip(program.size, there, strict=True) if in_hbm)
        run = _Run()
        touched: dict[int, int] = {}  # by storage, the allocation after its last access; -1 after a copy in
        before: dict[int, int] = {}  # the same as it was before `run`, of what that has touched; 0: not there
        for code, arg, op in zip(script.codes, script.args, script.at, strict=True):
            at = len(levels)
            if code in (EXEC, RERUN):
                if code == RERUN:
                    i, begins = next(turns)
                    if begins:
                        run, before = self.runs[i], {}
                        run.first = at
                    run.end = at + 1
                for s in program.writes[arg]:
                    if not there[s]:
                        there[s] = True
                        used += program.size[s]
                        if s in freed:
                            left, first = freed.pop(s)
                            self.spans[s, left] = (first, at)
                        if code == RERUN:
                            before.setdefault(s, 0)
                levels.append(used + program.workspace[arg])
                for s in (*program.reads[arg], *program.writes[arg]):
                    if code == RERUN:
                        before.setdefault(s, touched.get(s, -1))
                    touched[s] = at + 1
            elif code == COPY_IN:
                there[arg] = True
                used += program.size[arg]
                left, first = freed.pop(arg)
                self.spans[arg, left] = (first, at)
                levels.append(used)
                touched[arg] = -1
            elif code == RELEASE:
                there[arg] = False
                used -= program.size[arg]
                freed[arg] = (op, at)
                # Before the operator that a run is for, only what dies in the run is freed.
                if run.end == at and arg in before:
                    if not before[arg]:
                        run.own.add(arg)
                    elif before[arg] > 0:
                        run.inputs.append((before[arg], run.first, program.size[arg]))
        for s, (left, first) in freed.items():
            self.spans[s, left] = (first, len(levels))
        return levels

    def most(self, first: int, end: int) -> int:
        """The most at allocations [first, end); 0 where there are none."""
        if first >= end:
            return 0
        j = (end - first).bit_length() - 1
        return int(max(self.rows[j][first], self.rows[j][end - (1 << j)]))

    def kept(self, absences: Sequence[Absence], recompute: int | None = None) -> int:
        """The least HBM in which the plan runs without these absences and, if they are over by one, without that
        `recompute` (its place in the plan), everything else as it is."""
        steps: dict[int, int] = defaultdict(int)
        run = _Run() if recompute is None else self.runs[recompute]
        for absence in absences:
            if absence.storage in run.own:
                continue
            first, end = self.spans[absence.storage, absence.left]
            steps[first] += self.size[absence.storage]
            steps[end] -= self.size[absence.storage]
        for first, end, size in run.inputs:
            steps[first] -= size
            steps[end] += size
        most = more = 0
        edges = sorted({0, self.count, run.first, run.end, *steps})
        for first, end in pairwise(edges):
            more += steps.get(first, 0)
            if not run.first <= first < run.end:
                most = max(most, self.most(first, end) + more)
        return most
