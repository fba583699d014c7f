"""Which gaps to use and what to recompute: an integer program whose rows are made as they are needed.

    minimise    sum of cost_i x_i
    subject to  load_k - sum of relief_ik x_i + sum of extra_ik x_i <= budget     at every operator k
                bytes in each tier at every operator <= its budget
                at most one x per span of a storage; no rerun without what it needs

An option's cost is the stall it must cause by itself (what its two copies need beyond its gap), plus `price` times
the time it keeps links busy, plus its recompute time. Links are shared, so the true cost depends on the other
choices: several prices give several selections, the timetable and replay say which is best.

There are as many rows as operators and nearly all are slack. So CP-SAT starts with none, and each answer is
checked: the worst violated rows are added, until none is violated.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

from solver.residency.candidates import Move, Rerun
from solver.residency.problem import Int64s, Problem

COST_UNIT_NS = 100
"""Costs are counted in this unit: fine enough to rank options, small enough for 64-bit sums."""

ROWS_A_ROUND = 16
ROUNDS = 100


@dataclass(frozen=True)
class Selection:
    moves: list[Move]
    reruns: list[Rerun]


@dataclass(frozen=True)
class Pieces:
    """Changes of a quantity along the operators: option i changes it by `delta` at operators [first, end)."""

    option: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    delta: npt.NDArray[np.int64]

    def at(self, op: int) -> list[tuple[int, int]]:
        """(option, change) at one operator."""
        here = np.flatnonzero((self.first <= op) & (op < self.end))
        return list(zip(self.option[here].tolist(), self.delta[here].tolist(), strict=True))

    def sum(self, taken: npt.NDArray[np.bool_], n: int) -> Int64s:
        """The change at every operator when the options marked in `taken` are chosen."""
        chosen = taken[self.option]
        steps = np.zeros(n + 2, dtype=np.int64)
        np.add.at(steps, np.minimum(self.first[chosen], n + 1), self.delta[chosen])
        np.subtract.at(steps, np.minimum(self.end[chosen], n + 1), self.delta[chosen])
        return np.asarray(np.cumsum(steps)[:n], dtype=np.int64)


def pieces(rows: Sequence[tuple[int, int, int, int]]) -> Pieces:
    table = np.asarray(rows, dtype=np.int64).reshape(-1, 4)
    return Pieces(*(np.ascontiguousarray(table[:, i]) for i in range(4)))


class Choice:
    """Moves and reruns of a problem as columns: their effect on HBM and tiers, costs, and conflicts."""

    def __init__(self, problem: Problem, moves: Sequence[Move], reruns: Sequence[Rerun]) -> None:
        self.problem, self.moves, self.reruns = problem, list(moves), list(reruns)
        self.count = len(self.moves) + len(self.reruns)
        self.hbm = pieces([*self._move_effects(), *self._rerun_effects()])
        self.tiers = {tier: pieces(list(self._tier_effects(tier))) for tier in problem.tier_bytes}
        self.conflicts = list(self._conflicts())

    def selection(self, taken: npt.NDArray[np.bool_]) -> Selection:
        split = len(self.moves)
        return Selection(
            [m for m, t in zip(self.moves, taken[:split], strict=True) if t],
            [r for r, t in zip(self.reruns, taken[split:], strict=True) if t],
        )

    def load(self, taken: npt.NDArray[np.bool_]) -> Int64s:
        return np.asarray(self.problem.load + self.hbm.sum(taken, self.problem.n), dtype=np.int64)

    def costs(self, price: float) -> npt.NDArray[np.int64]:
        """Nanoseconds an option, before any penalty."""
        own = [move_cost_ns(self.problem, move, price) for move in self.moves]
        return np.asarray([*own, *(rerun.duration_ns for rerun in self.reruns)], dtype=np.int64)

    def charge(self, costs: Int64s, chosen: Sequence[Move], waits: dict[int, int]) -> None:
        """Adds the nanoseconds waited for a storage (by position) to the costs of its chosen moves."""
        guilty = {(move.gap, move.tier) for move in chosen if move.gap.storage in waits}
        for i, move in enumerate(self.moves):
            if (move.gap, move.tier) in guilty:
                costs[i] += waits[move.gap.storage]

    def _move_effects(self) -> Iterator[tuple[int, int, int, int]]:
        for i, move in enumerate(self.moves):
            for first, end in move.off():
                yield i, first, min(end, self.problem.n), -move.gap.bytes

    def _rerun_effects(self) -> Iterator[tuple[int, int, int, int]]:
        problem, size = self.problem, self.problem.program.size
        for i, rerun in enumerate(self.reruns, start=len(self.moves)):
            for s, leave in rerun.drops:
                if problem.program.stays[s] or problem.program.last_access[s] >= rerun.before:
                    yield i, leave + 1, rerun.before, -size[s]
            for s in rerun.held:
                span = problem.alive[s]
                if span is not None and span[1] <= rerun.before:
                    yield i, span[1], rerun.before + 1, size[s]
            if rerun.extra_bytes:
                yield i, rerun.before, rerun.before + 1, rerun.extra_bytes

    def _tier_effects(self, tier: str) -> Iterator[tuple[int, int, int, int]]:
        """A copy takes its tier's memory from the copy out to the consumer."""
        n = self.problem.n
        for i, move in enumerate(self.moves):
            gap = move.gap
            if move.tier != tier:
                continue
            if gap.wraps and gap.back < n:
                yield i, 0, gap.before + 1, gap.bytes
                yield i, max(gap.leave, gap.before + 1), n, gap.bytes
            elif gap.wraps:
                yield i, 0, n, gap.bytes
            else:
                yield i, gap.leave, min(gap.before + 1, n), gap.bytes

    def _conflicts(self) -> Iterator[tuple[int, int]]:
        """Pairs of options that exclude each other."""
        n = self.problem.n
        spans: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        dropped: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for i, move in enumerate(self.moves):
            for first, end in move.off():
                spans[move.gap.storage].append((first, min(end, n + 1), i))
        for i, rerun in enumerate(self.reruns, start=len(self.moves)):
            for s, leave in rerun.drops:
                spans[s].append((leave + 1, rerun.before, i))
                dropped[s].append((leave, rerun.before, i))
        for own in spans.values():
            own.sort()
            for a, (first, end, i) in enumerate(own):
                for other_first, other_end, j in own[a + 1 :]:
                    if other_first >= end:
                        break
                    if i != j and first < other_end:
                        yield min(i, j), max(i, j)
        wraps: dict[int, list[int]] = defaultdict(list)
        for i, move in enumerate(self.moves):
            if move.gap.wraps:
                wraps[move.gap.storage].append(i)
        for i, rerun in enumerate(self.reruns, start=len(self.moves)):
            for s in (*rerun.held, *(d for d, _ in rerun.drops)):
                for leave, before, j in dropped.get(s, ()):
                    if i != j and leave < rerun.before < before:
                        yield min(i, j), max(i, j)
            for s in rerun.held:
                for j in wraps.get(s, ()):
                    if rerun.before > self.moves[j].leave:  # gone for the rest of the step
                        yield j, i
        yield from self._tier_changes()

    def _tier_changes(self) -> Iterator[tuple[int, int]]:
        """Moves around one read, to different tiers: the copy in the first serves the second gap as well."""
        ending: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, move in enumerate(self.moves):
            ending[move.gap.storage, move.gap.before].append(i)
        for j, move in enumerate(self.moves):
            s, access = move.gap.storage, move.gap.after
            if access in self.problem.program.writers[s]:
                continue
            for i in ending.get((s, access), ()):
                if i != j and self.moves[i].tier != move.tier:
                    yield min(i, j), max(i, j)


def move_cost_ns(problem: Problem, move: Move, price: float) -> int:
    """Nanoseconds: stall that cannot be hidden in the gap, and the priced time on the links."""
    tier, gap, times = problem.tiers[move.tier], move.gap, problem.unlimited
    clean = gap.wraps and not problem.program.writers[gap.storage]
    out = 0 if clean or gap.leave >= problem.n else tier.copy_ns(gap.bytes, out=True)
    back = tier.copy_ns(gap.bytes, out=False) if gap.back < problem.n else 0
    if gap.wraps:
        head = times.start[gap.back] if gap.back < problem.n else 0
        tail = times.step_ns - times.end[gap.leave] if gap.leave < problem.n else 0
        stall = max(0, back - head) + max(0, out - tail)
    else:
        stall = max(0, out + back - (times.start[gap.back] - times.end[gap.leave]))
    return stall + int(price * (out + back))


def select(
    choice: Choice,
    costs: npt.NDArray[np.int64],
    *,
    hbm_bytes: int,
    seconds: float | None,
    work: float,
    seed: int,
) -> Selection | None:
    """The cheapest options that bring the load within `hbm_bytes`; None where none are found in time.

    `work` limits each solve in CP-SAT's deterministic unit, about a second.
    """
    program = _Program(choice, seconds, work, seed)
    units = 1 + costs // COST_UNIT_NS
    program.model.minimize(sum(c * v for c, v in zip(units.tolist(), program.x, strict=True)))
    return program.solve(hbm_bytes)


def smallest_load(choice: Choice, *, seconds: float | None, work: float, seed: int) -> Selection | None:
    """The options with which the highest load of any operator is least."""
    program = _Program(choice, seconds, work, seed)
    highest = program.model.new_int_var(0, 2**53, "highest")
    program.model.minimize(highest)
    return program.solve(highest)


class _Program:
    """The rows so far and the solves in between."""

    def __init__(self, choice: Choice, seconds: float | None, work: float, seed: int) -> None:
        self.choice, self.work, self.seed = choice, work, seed
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.model = cp_model.CpModel()
        self.x = [self.model.new_bool_var("") for _ in range(choice.count)]
        for i, j in choice.conflicts:
            self.model.add_at_most_one([self.x[i], self.x[j]])
        self.rows: set[tuple[str, int]] = set()

    def solve(self, limit: int | cp_model.IntVar) -> Selection | None:
        taken = np.zeros(self.choice.count, dtype=bool)
        for _ in range(ROUNDS):
            level = limit if isinstance(limit, int) else None
            if not self._add_violated(taken, limit, level):
                return self.choice.selection(taken)
            answer = self._answer(taken, limit)
            if answer is None:
                return None
            taken, level = answer
            if level is not None and not self._add_violated(taken, limit, level):
                return self.choice.selection(taken)
        return None

    def _add_violated(self, taken: npt.NDArray[np.bool_], limit: int | cp_model.IntVar, level: int | None) -> bool:
        """Adds the worst violated rows of HBM (against `level`; None: the highest) and tiers; whether any was."""
        load = self.choice.load(taken)
        over = load - level if level is not None else load - load.max(initial=0) + 1
        added = self._add("hbm", self.choice.hbm, over, self.choice.problem.load, limit)
        for tier, budget in self.choice.problem.tier_bytes.items():
            used = self.choice.tiers[tier].sum(taken, self.choice.problem.n)
            added |= self._add(tier, self.choice.tiers[tier], used - budget, np.zeros_like(used), budget)
        return added

    def _add(self, name: str, changes: Pieces, over: Int64s, fixed: Int64s, limit: int | cp_model.IntVar) -> bool:
        added = False
        for op in _worst(over):
            if (name, op) in self.rows:
                continue
            self.rows.add((name, op))
            terms = changes.at(op)
            self.model.add(int(fixed[op]) + sum(d * self.x[i] for i, d in terms) <= limit)
            added = True
        return added

    def _answer(
        self, hint: npt.NDArray[np.bool_], limit: int | cp_model.IntVar
    ) -> tuple[npt.NDArray[np.bool_], int | None] | None:
        left = None if self.deadline is None else self.deadline - time.monotonic()
        if left is not None and left <= 0:
            return None
        self.model.proto.solution_hint.Clear()
        for v, value in zip(self.x, hint.tolist(), strict=True):
            self.model.add_hint(v, value)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = self.seed
        solver.parameters.max_deterministic_time = self.work
        solver.parameters.relative_gap_limit = 0.005
        if left is not None:
            solver.parameters.max_time_in_seconds = left
        if solver.status_name(solver.solve(self.model)) not in ("OPTIMAL", "FEASIBLE"):
            return None
        taken = np.asarray([bool(solver.value(v)) for v in self.x], dtype=bool)
        return taken, limit if isinstance(limit, int) else int(solver.value(limit))


def _worst(over: Int64s) -> list[int]:
    """Operators of the worst violations, spread: the highest of each of up to ROWS_A_ROUND stretches."""
    violated = np.flatnonzero(over > 0)
    if not violated.size:
        return []
    stretches = np.array_split(violated, min(ROWS_A_ROUND, violated.size))
    return [int(part[np.argmax(over[part])]) for part in stretches]
