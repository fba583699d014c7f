"""Checkmate: the least recompute with which a step fits, by integer programming.

Source: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020. Its
program has R[t, i], value i is computed in stage t, and S[t, i], value i is in memory from stage t - 1 to t; what R
computes needs its inputs from R or S, S needs R or S of the stage before, the step needs its values, memory holds at
every stage, and the time of all R is least. Our own code of that, made small enough to solve:

* A stage is a run of a block after the forward pass (see `blocks`) instead of one operator, and what a stage computes
  again is in memory for all of it.
* A value is a *group* of what a block keeps for the same stage, close in recompute time per byte, instead of one
  tensor. Below `GROUPED` of them every tensor is a value of its own.
* Forward runs as in the profile, and a value is computed again at most once, up to `LOOKAHEAD` stages before its use:
  so P[t, i] = S[t, i] + R[t, i] never falls once it has risen, and there is one R too many at most.

CP-SAT solves it, on one worker and within a deterministic limit, so that the same input gives the same plan. Groups
become operators by `remat`; what replay still finds too much is taken off the budget. The paper's rounding of the
linear relaxation is not needed at this size; where there is no solution in time, `DidNotSolve`. Where the program is
infeasible (recompute alone cannot reach the budget), the plan is the one that needs the least memory of those tried.

Covers: recompute of what is kept from forward for backward; nothing moves to the host.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from solver.residency.candidates import Decisions
from solver.residency.problem import Problem
from solver.residency.rivals.blocks import blocks_of, crossings, handed_on
from solver.residency.rivals.places import Verdict, judge
from solver.residency.rivals.remat import Drop, drops, recompute

TIME_LIMIT_S = 60.0
"""For all solves of a call together."""

SOLVES = 5

GROUPED, CLASSES, LOOKAHEAD = 400, 6, 6

MOST_VALUES = 6000
"""Programs with more values are not tried."""

UNITS = 1 << 16
"""Parts of the budget in which sizes are counted, rounded against us."""


class DidNotSolve(RuntimeError):
    """The rule has no plan for this step in time; the message says why."""


@dataclass(frozen=True)
class Value:
    """Drops that are decided together. `bytes` and `cost_ns` of all; `use`: the stage that needs them; `away`: bytes
    in HBM per row of memory for nothing; `needs`: values that its recompute reads."""

    drops: tuple[Drop, ...]
    bytes: int
    cost_ns: int
    use: int
    first: int
    away: dict[int, int]
    needs: tuple[int, ...]


def checkmate(problem: Problem) -> Decisions:
    """The plan of Checkmate's program (see the module). Raises `DidNotSolve`."""
    if problem.load.max(initial=0) <= problem.hbm_bytes:
        return Decisions()
    program = _Program(problem)
    best: Verdict | None = None
    budget, over, none = problem.hbm_bytes, problem.hbm_bytes, 0  # budgets known to be too much and too little
    for _ in range(SOLVES):
        chosen = program.solve(budget)
        if chosen is None:
            none = budget
        else:
            verdict = program.judge(chosen)
            if best is None or verdict.rank() < best.rank():
                best = verdict
            if verdict.timeline is not None:
                break
            over = budget
            budget -= verdict.excess_bytes
        if chosen is None or budget <= none:
            budget = (over + none) // 2
        if budget >= problem.hbm_bytes or over - none <= over // 500:
            break
    if best is None or best.timeline is None:
        inner = [d for d in program.candidates if d.storages[0] not in program.boundaries]
        least = judge(problem, Decisions(reruns=tuple(recompute(problem, inner, (), program.boundaries)[0])))
        best = least if best is None or least.rank() < best.rank() else best
    return best.decisions


class _Program:
    """Stages, values and rows of memory of a step."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.blocks = blocks_of(problem)
        self.candidates = self._candidates()
        self.boundaries = frozenset(handed_on(problem, self.blocks))
        self.starts = [0, *[run.first for run in self.blocks.runs[1:]]]
        self.rows = self._rows()
        self.values = self._values()
        if len(self.values) > MOST_VALUES:
            raise DidNotSolve(f"did not try {len(self.values)} values: more than {MOST_VALUES} do not solve in time")

    def _candidates(self) -> list[Drop]:
        found = [d for d in drops(self.problem) if d.bytes > 0]
        if self.problem.profile.adapter.recompute != "operator":
            return found
        crossing = set(crossings(self.problem))
        return [d for d in found if (d.storages[0], *d.gap) in crossing]

    def _stage(self, op: int) -> int:
        return max(0, int(np.searchsorted(self.starts, op, side="right")) - 1)

    def _rows(self) -> list[int]:
        """Per stage, the operator at which most memory is needed."""
        ends = [*self.starts[1:], self.problem.n]
        load = self.problem.load
        return [
            first + int(np.argmax(load[first:end])) if first < end else first
            for first, end in zip(self.starts, ends, strict=True)
        ]

    def _values(self) -> list[Value]:
        grouped: dict[tuple[int, int, int], list[Drop]] = defaultdict(list)
        by_block: dict[tuple[int, int], list[Drop]] = defaultdict(list)
        for drop in self.candidates:
            by_block[self.blocks.of[drop.ops[-1]], self._stage(drop.span[1])].append(drop)
        for (block, use), own in by_block.items():
            own.sort(key=lambda d: (d.per_byte(), d.storages))
            each = 1 if len(self.candidates) <= GROUPED else -(-len(own) // CLASSES)
            for i, drop in enumerate(own):
                grouped[block, use, i // each].append(drop)
        number = {drop.storages: i for i, own in enumerate(grouped.values()) for drop in own}
        by_storage = {s: i for storages, i in number.items() for s in storages}
        return [self._value(i, own, use, by_storage) for i, ((_, use, _), own) in enumerate(grouped.items())]

    def _value(self, number: int, own: list[Drop], use: int, by_storage: dict[int, int]) -> Value:
        away: dict[int, int] = defaultdict(int)
        for drop in own:
            low, high = np.searchsorted(self.rows, drop.span)
            for row in range(int(low), int(high)):
                away[row] += drop.bytes
        reads = {s for drop in own for k in drop.ops for s in self.problem.program.reads[k]}
        needs = {by_storage[s] for s in reads if s in by_storage} - {number}
        first = self._stage(max(drop.span[0] for drop in own)) + 1
        return Value(
            drops=tuple(own),
            bytes=sum(drop.bytes for drop in own),
            cost_ns=sum(drop.cost_ns for drop in own),
            use=use,
            first=min(first, use),
            away=dict(away),
            needs=tuple(sorted(needs)),
        )

    def solve(self, hbm_bytes: int) -> list[Drop] | None:
        """The drops of least recompute time that fit; None: there are none. Raises `DidNotSolve`."""
        model = cp_model.CpModel()
        again: list[dict[int, cp_model.IntVar]] = []
        by_operator = self.problem.profile.adapter.recompute == "operator"
        for value in self.values:
            earliest = max(value.first, value.use - LOOKAHEAD) if by_operator else value.use
            stages = range(earliest, value.use + 1)
            again.append({t: model.new_bool_var("") for t in stages})
            model.add_at_most_one(again[-1].values())
        for i, value in enumerate(self.values):
            for j in value.needs:
                for t, computed in again[i].items():
                    # Present at t: kept from forward, or computed again at t or before.
                    later = [var for at, var in again[j].items() if at > t]
                    if later and t < self.values[j].use:
                        model.add(sum(later) == 0).only_enforce_if(computed)
        unit = max(1, hbm_bytes // UNITS)
        rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for i, value in enumerate(self.values):
            for row in value.away:
                rows[row].append((i, value.away[row] // unit))
        for row, op in enumerate(self.rows):
            excess = int(self.problem.load[op]) - hbm_bytes
            if excess <= 0:
                continue
            gone = [size * var for i, size in rows[row] for t, var in again[i].items() if t > row]
            if sum(size for _, size in rows[row]) * unit < excess:
                return None
            model.add(sum(gone) >= -(-excess // unit))
        model.minimize(
            sum(
                max(1, v.cost_ns // 1000) * var
                for v, own in zip(self.values, again, strict=True)
                for var in own.values()
            )
        )
        for value, own in zip(self.values, again, strict=True):  # to start from: all but what layers hand on
            inside = all(drop.storages[0] not in self.boundaries for drop in value.drops)
            for t, var in own.items():
                model.add_hint(var, inside and t == value.use)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = TIME_LIMIT_S / SOLVES / 2
        solver.parameters.max_time_in_seconds = TIME_LIMIT_S / SOLVES
        solver.parameters.relative_gap_limit = 0.001
        status = solver.solve(model)
        name = solver.status_name(status)
        if name == "INFEASIBLE":
            return None
        if name not in ("OPTIMAL", "FEASIBLE"):
            raise DidNotSolve(f"did not solve within {TIME_LIMIT_S / SOLVES:g} s, with {len(self.values)} values")
        return [
            drop
            for value, own in zip(self.values, again, strict=True)
            if any(solver.boolean_value(var) for var in own.values())
            for drop in value.drops
        ]

    def judge(self, chosen: list[Drop]) -> Verdict:
        return judge(self.problem, Decisions(reruns=tuple(recompute(self.problem, chosen, ())[0])))
