"""The best order of one way to place programs, by CP-SAT.

Starts are integers; a group's runs do not overlap, each with the copies in front of it; runs of a call stand in the
order of their micro-batches (`problem` says why that loses nothing); what runs hold is a cumulative resource from the
start of a run to the end of the one that frees it. Which swapped run follows which is a circuit, closed over the step's
end, so that copies are priced as `simulate` prices them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from solver.programs.problem import Placed, Run
from solver.programs.simulate import Line, Orders

WORKERS = 2


@dataclass(frozen=True)
class Answer:
    """`orders` that end below the cut-off, if any were found; ticks below which none ends (the cut-off where it is
    proven that none ends below that)."""

    orders: Orders | None
    bound: int


def best_order(p: Placed, line: Line | None, cutoff: int, seconds: float, seed: int) -> Answer:
    """`line`: a time line to begin from; `cutoff`: ticks that an order has to stay below to be of use."""
    if p.bound >= cutoff:
        return Answer(None, cutoff)
    made = _Program(p, cutoff)
    if line is not None:
        for run, start in made.start.items():
            made.model.add_hint(start, min(line.start[run], cutoff - 1))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.05, seconds)
    solver.parameters.num_workers = WORKERS
    solver.parameters.random_seed = seed
    status = solver.status_name(solver.solve(made.model))
    if status == "INFEASIBLE":
        return Answer(None, cutoff)
    known = solver.best_objective_bound
    bound = max(p.bound, math.ceil(known - 1e-6)) if math.isfinite(known) else p.bound
    if status not in ("OPTIMAL", "FEASIBLE"):
        return Answer(None, min(bound, cutoff))
    rank = {c: i for i, c in enumerate(p.order)}
    when = {run: (solver.value(start), solver.value(made.end[run]), rank[run[0]], run[1])
            for run, start in made.start.items()}  # fmt: skip
    orders = tuple(
        tuple(sorted((run for run in when if p.group[run[0]] == g), key=when.__getitem__)) for g in range(len(p.groups))
    )
    return Answer(orders, bound)


class _Program:
    """The constraint program of all orders that end below a number of ticks."""

    def __init__(self, p: Placed, cutoff: int) -> None:
        self.p, self.cutoff = p, cutoff
        self.model = m = cp_model.CpModel()
        self.last = m.new_int_var(p.bound, cutoff - 1, "last")
        runs = [(c, k) for c, count in enumerate(p.runs) for k in range(count)]
        self.start: dict[Run, Any] = {run: m.new_int_var(0, cutoff - 1, "") for run in runs}
        self.end = {run: start + p.duration[run[0]] for run, start in self.start.items()}
        self.copies: dict[Run, Any] = {}
        for run, start in self.start.items():
            m.add(self.end[run] <= self.last)
            for source, lag in p.sources(run):
                m.add(start >= self.end[source] + lag)
            if run[1]:
                m.add(start >= self.end[run[0], run[1] - 1])
        for g in range(len(p.groups)):
            mine = [run for run in runs if p.group[run[0]] == g]
            self._swaps([run for run in mine if p.program[run[0]] in p.groups[g].swapped])
            m.add_no_overlap([self._busy(run) for run in mine])
            self._memory(g, mine)
        m.minimize(self.last)

    def _busy(self, run: Run) -> Any:
        """A run and the copies in front of it."""
        takes = self.p.duration[run[0]]
        if run not in self.copies:
            return self.model.new_interval_var(self.start[run], takes, self.end[run], "")
        begin = self.model.new_int_var(0, self.cutoff, "")
        return self.model.new_interval_var(begin, self.copies[run] + takes, self.end[run], "")

    def _memory(self, group: int, mine: list[Run]) -> None:
        room, p, m = self.p.room[group], self.p, self.model
        if room is None or sum(p.holds[c] for c, _ in mine) <= room:
            return
        holding = [run for run in mine if p.holds[run[0]]]
        spans = [
            m.new_interval_var(self.start[c, k], m.new_int_var(0, self.cutoff, ""), self.end[p.until[c], k], "")
            for c, k in holding
        ]
        m.add_cumulative(spans, [p.holds[c] for c, _ in holding], room)

    def _swaps(self, swapped: list[Run]) -> None:
        """Copies in front of each run of a swapped program, by which of them runs before it."""
        p, m = self.p, self.model
        program = {run: p.program[run[0]] for run in swapped}
        names = sorted(set(program.values()))
        if len(names) < 2:
            return
        most = max(p.switch(a, b) for a in names for b in names)
        self.copies |= {run: m.new_int_var(0, most, "") for run in swapped}
        opens, closes = ({run: m.new_bool_var("") for run in swapped} for _ in range(2))
        arcs = [(0, i + 1, opens[run]) for i, run in enumerate(swapped)]
        arcs += [(i + 1, 0, closes[run]) for i, run in enumerate(swapped)]
        for i, run in enumerate(swapped):
            for j, other in enumerate(swapped):
                if i == j or (run[0] == other[0] and other[1] != run[1] + 1):
                    continue
                follows = m.new_bool_var("")
                arcs.append((i + 1, j + 1, follows))
                takes = p.switch(program[run], program[other])
                m.add(self.start[other] >= self.end[run] + self.copies[other]).only_enforce_if(follows)
                m.add(self.copies[other] >= takes).only_enforce_if(follows)
        m.add_circuit(arcs)
        for name in names:
            ended = m.new_bool_var("")
            m.add(sum(closes[run] for run in swapped if program[run] == name) == ended)
            for run in swapped:
                m.add(self.copies[run] >= p.switch(name, program[run])).only_enforce_if(opens[run], ended)
