"""The integer program of all splits, with the makespan known only through paths: a bound, and a proof.

Variables: layers per [group, column]; forward and backward of each group, at least its layers' work and at least their
copies; the value, and sigma when folded. Every `Reason` is a true inequality for every split, since a path of the
graph is a path whatever the durations; so the program with any of them relaxes the problem and its optimum is a bound.
A split that it returns is timed: if the clock agrees, it is optimal; if not, its path is new and cuts it off. There
are finitely many paths. Far fewer are needed than a monolithic program has rows (a start for each task).

Layers keep their order: a type's run may begin in a group only if the run before it has ended there.

Solvers work to a tolerance: bounds are lowered by `TOLERANCE` of their value, and "better" means by more than that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from solver.stages.problem import NO_LIMIT, Objective, Problem
from solver.stages.schedule import BACKWARD, graph_of
from solver.stages.simulate import Reason, clock

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

TOLERANCE = 1e-6
UNIT = 1000.0
"""The incumbent's value in the program: numbers of one size, whatever the ticks."""


@dataclass(frozen=True, eq=False)
class Answer:
    """`bound` in ticks, true for every split; `split` the program's own, as real numbers where it was relaxed, None
    where none was found. `infeasible`: there is none."""

    bound: float
    split: F64 | None
    infeasible: bool = False


class Master:
    """The program for one problem and objective. `scale`: ticks that make one UNIT, best the value of a good split.
    `raised`: instead, by which share all memory limits must be raised for any split to fit, whatever it takes."""

    def __init__(
        self,
        problem: Problem,
        objective: Objective,
        scale: int,
        engine: Literal["GLOP", "SCIP", "HIGHS"],
        raised: bool = False,
    ) -> None:
        self.problem, self.objective = problem, objective
        self.per_tick = UNIT / max(1, scale)
        self.integer = engine != "GLOP"
        self.folded = clock(problem, objective).folded_blocks if objective == "folded" else 0
        self.model: Any = pywraplp.Solver.CreateSolver(engine)
        self.precise = pywraplp.MPSolverParameters()
        self.precise.SetDoubleParam(self.precise.RELATIVE_MIP_GAP, TOLERANCE / 10)  # 10^-4 unless told
        infinity = self.model.infinity()
        self.over = self.model.NumVar(0, infinity, "over") if raised else None
        self.layers = [
            [self._count(problem.layers if fits or raised else 0) for fits in self._alone(g % problem.stages)]
            for g in range(problem.groups)
        ]
        self.durations = [self.model.NumVar(0, infinity, "") for _ in range(problem.parts * problem.groups)]
        self.value = self.model.NumVar(0, infinity, "value")
        self.sigma = self.model.NumVar(0, infinity, "sigma") if self.folded else None
        self.ended: list[list[Any]] = []
        self.by_run: list[list[Any]] = []
        self._order()
        self._memory()
        self._time()
        self.model.Minimize(self.value if self.over is None else self.over)

    # -- what a split is ---------------------------------------------------------------------------------------

    def _count(self, most: int) -> Any:
        return self.model.IntVar(0, most, "") if self.integer else self.model.NumVar(0, most, "")

    def _alone(self, stage: int) -> Any:
        """[column]: whether a stage has room for a layer of it alone."""
        p = self.problem
        room = p.limit[stage] - p.static[stage]
        return p.parameter[stage][p.type_of] + p.device[stage] <= room

    def _order(self) -> None:
        p, m = self.problem, self.model
        totals = np.bincount(p.layer_types, minlength=len(p.types))
        if len(p.runs) == len(p.types):
            of_run = [
                [[x for x, c in zip(row, p.columns, strict=True) if c.type == t] for t, _ in p.runs]
                for row in self.layers
            ]
            sums = [[sum(of) for of in row] for row in of_run]
        else:  # a type in several runs: count runs apart, and add up
            self.by_run = sums = [[self._count(count) for _, count in p.runs] for _ in range(p.groups)]
            for g in range(p.groups):
                for t in range(len(p.types)):
                    runs = [x for x, (u, _) in zip(sums[g], p.runs, strict=True) if u == t]
                    m.Add(sum(x for x, c in zip(self.layers[g], p.columns, strict=True) if c.type == t) == sum(runs))
            assert totals.sum() == p.layers
        for j, (_, count) in enumerate(p.runs):
            m.Add(sum(sums[g][j] for g in range(p.groups)) == count)
        for g in range(p.groups):
            m.Add(sum(self.layers[g]) >= p.min_layers)
        for j in range(len(p.runs) - 1):
            ended = [self._count(1) for _ in range(p.groups)]
            self.ended.append(ended)
            for g in range(p.groups):
                m.Add(sum(sums[h][j] for h in range(g + 1)) >= p.runs[j][1] * ended[g])
                m.Add(sums[g][j + 1] <= p.runs[j + 1][1] * ended[g])
                if g:
                    m.Add(ended[g] >= ended[g - 1])
                    m.Add(sums[g][j] <= p.runs[j][1] * (1 - ended[g - 1]))

    def _memory(self) -> None:
        p = self.problem
        made = graph_of(p)
        for s in range(p.stages):
            for kept, limit, static in ((p.device[s], p.limit, True), (p.host[s], p.host_limit, False)):
                if limit[s] >= NO_LIMIT or (not static and not kept.any()):
                    continue
                for row, late in zip(made.alive[s], made.late[s], strict=True):
                    if not (row.any() or late.any()):
                        continue
                    terms, ends = [], 0
                    for c in range(p.chunks):
                        g = c * p.stages + s
                        ends += int(row[c] * p.beside[g, 0] + late[c] * p.beside[g, 1]) if static else 0
                        each = row[c] * kept
                        if static:
                            each = each + late[c] * p.late[s] + p.parameter[s][p.type_of]
                        terms += [float(a) * x for a, x in zip(each, self.layers[g], strict=True) if a]
                    room = float(limit[s] - ends - (p.static[s] if static else 0))
                    share = 1 / max(1.0, float(limit[s]))
                    self.model.Add(sum(terms) * share <= room * share + (0 if self.over is None else self.over))

    def _time(self) -> None:
        p = self.problem
        for g in range(p.groups):
            s = g % p.stages
            parts = ((p.forward, p.copy_out), (p.backward, p.copy_in), (p.weight, np.zeros_like(p.weight)))
            for direction, (work, copies) in enumerate(parts[: p.parts]):
                at = self.durations[p.parts * g + direction]
                extra = float(p.extra[g, direction]) * self.per_tick
                done = sum(float(w) * self.per_tick * x for w, x in zip(work[s], self.layers[g], strict=True))
                self.model.Add(at >= done + extra)
                if copies.any():
                    moved = sum(float(w) * self.per_tick * x for w, x in zip(copies[s], self.layers[g], strict=True))
                    self.model.Add(at >= moved)
        for s in range(p.stages):
            groups = [c * p.stages + s for c in range(p.chunks)]
            work = sum(self.durations[p.parts * g + part] for g in groups for part in range(p.parts))
            if self.objective == "slowest":
                self.model.Add(self.value >= work)
            elif self.sigma is not None:
                self.model.Add(self.sigma >= p.stages * work)

    # -- what is learned ---------------------------------------------------------------------------------------

    def add(self, reason: Reason) -> None:
        """One path or cycle more."""
        terms = [float(n) * d for n, d in zip(reason.counts, self.durations, strict=True) if n]
        length = sum(terms) + float(reason.lag) * self.per_tick
        if self.sigma is None:
            self.model.Add(self.value >= length)
        elif reason.cycle:
            self.model.Add(float(reason.back) * self.sigma >= length)
        else:
            self.model.Add(self.value >= length + float(self.folded - reason.back) * self.sigma)

    def start(self, split: I64, ticks: int) -> None:
        """Begins from a known split, whose value is `ticks` (and sigma what remains of it): SCIP tells a bound only
        once it has a solution."""
        p = self.problem
        flat = p.durations(split).ravel()
        values = [(x, float(n)) for row, counts in zip(self.layers, split, strict=True)
                  for x, n in zip(row, counts, strict=True)]  # fmt: skip
        values += [(x, float(d) * self.per_tick) for x, d in zip(self.durations, flat, strict=True)]
        values.append((self.value, ticks * self.per_tick))
        if self.sigma is not None:
            told = clock(p, self.objective)
            values.append((self.sigma, float(told.sigma(p.durations(split))) * self.per_tick))
        values += self._order_of(split)
        self.model.SetHint([x for x, _ in values], [n for _, n in values])

    def _order_of(self, split: I64) -> list[tuple[Any, float]]:
        """What `_order`'s own variables are for a split."""
        p = self.problem
        bounds = np.concatenate([[0], np.cumsum(split.sum(1))])
        ends = np.cumsum([count for _, count in p.runs])
        found = []
        for j, row in enumerate(self.ended):
            found += [(x, float(bounds[g + 1] >= ends[j])) for g, x in enumerate(row)]
        for g, row in enumerate(self.by_run):
            for j, x in enumerate(row):
                low = max(int(bounds[g]), int(ends[j] - p.runs[j][1]))
                found.append((x, float(max(0, min(int(bounds[g + 1]), int(ends[j])) - low))))
        return found

    def solve(self, seconds: float | None = None) -> Answer:
        """The program's optimum, or what is known of it after so many seconds."""
        if seconds is not None:
            self.model.SetTimeLimit(max(1, int(seconds * 1000)))
        status = self.model.Solve(self.precise)
        if status == pywraplp.Solver.INFEASIBLE:
            return Answer(float("inf"), None, True)
        if status == pywraplp.Solver.NOT_SOLVED:
            bound = self.model.Objective().BestBound() if self.integer else 0.0
            return Answer(max(0.0, bound) / self.per_tick * (1 - TOLERANCE), None)
        if status not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
            return Answer(0.0, None)
        objective = self.model.Objective()
        bound = objective.BestBound() if self.integer else objective.Value()
        found = np.array([[x.solution_value() for x in row] for row in self.layers])
        return Answer(max(0.0, bound) / self.per_tick * (1 - TOLERANCE), found)


def stage_reasons(problem: Problem, objective: Objective) -> list[Reason]:
    """For each stage: the first micro-batch's way to its first chunk, the stage's work until the last backward of that
    chunk, that one's way back, and what the first stage has to do then; or all the stage's work where that is longer.

    Every schedule here begins a stage with the first forward of chunk 0, so that these are paths."""
    if objective == "slowest":
        return []
    listed = clock(problem, objective).graph.orders
    made = []
    last = [max(i for i, t in enumerate(order) if (t.direction, t.chunk) == (BACKWARD, 0)) for order in listed]
    for s, order in enumerate(listed):
        there = np.zeros((problem.groups, problem.parts), np.int64)
        there[:s, 0] = 1
        back = there.copy()
        back[:s, BACKWARD] = 1
        for tasks, stage, counts in (
            (order, s, there), (order[: last[s] + 1], s, back), (listed[0][last[0] + 1 :], 0, back),
        ):  # fmt: skip
            for task in tasks:
                counts[task.chunk * problem.stages + stage, task.direction] += 1
        way = int(problem.transfer[:s].sum())
        made.append(Reason(back.ravel(), 2 * way))
        if last[s] + 1 < len(order):
            made.append(Reason(there.ravel(), way))
    return made


def least_raise(problem: Problem) -> float:
    """The share by which all memory limits must be raised at least for a split to fit: by the linear relaxation, so
    that no split fits below it. 0: even that finds none missing, or nothing that was raised would help."""
    program = Master(problem, "slowest", 1, "GLOP", raised=True)
    if program.model.Solve(program.precise) != pywraplp.Solver.OPTIMAL or program.over is None:
        return 0.0
    return max(0.0, float(program.over.solution_value()) * (1 - TOLERANCE))


def relaxed(
    problem: Problem, objective: Objective, scale: int, known: Iterable[Reason], deadline: float, rounds: int = 400
) -> tuple[float, list[Reason]]:
    """The bound of the linear relaxation (ticks), and the reasons that it took, the known ones among them."""
    program = Master(problem, objective, scale, "GLOP")
    reasons = list(known)
    for reason in reasons:
        program.add(reason)
    bound = 0.0
    told = None if objective == "slowest" else clock(problem, objective)
    for _ in range(rounds):
        answer = program.solve()
        if answer.infeasible:
            return float("inf"), reasons
        if answer.split is None:
            break
        bound = max(bound, answer.bound)
        if told is None or time.monotonic() > deadline:
            break
        durations = np.array([d.solution_value() for d in program.durations]) / program.per_tick
        value, new = told.reasons(np.rint(durations).astype(np.int64))
        if value <= answer.bound * (1 + 4 * TOLERANCE):
            break
        for reason in new:
            program.add(reason)
            reasons.append(reason)
    return bound, reasons


def whole(split: F64) -> I64:
    """The split of an integer program, rounded off its tolerance."""
    return np.asarray(np.rint(split), np.int64)
