"""Which gaps to use and what to recompute: a small integer program, solved by CP-SAT.

    minimise    sum of cost_i x_i
    subject to  load_k - sum of relief_ik x_i + sum of extra_ik x_i <= budget     at every operator k that matters
                at most one x per idle span of a storage;  bytes in each tier at every operator <= its budget
                reruns that need what another one drops exclude each other

An option's cost is the stall it must cause by itself (what its two copies need beyond its gap), plus `price` times
the time it keeps links busy, plus its recompute time. Links are shared, so the true cost depends on the other
choices: several prices give several selections, the timetable and replay say which is best.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from solver.residency.candidates import Move, Rerun
from solver.residency.problem import Int64s, Problem
from solver.residency.timetable import add_rerun

COST_UNIT_NS = 100
"""Costs are counted in this unit: fine enough to rank options, small enough for 64-bit sums."""


@dataclass(frozen=True)
class Selection:
    moves: list[Move]
    reruns: list[Rerun]


def select(
    problem: Problem,
    moves: Sequence[Move],
    reruns: Sequence[Rerun],
    *,
    hbm_bytes: int,
    price: float,
    seconds: float | None,
    work: float,
    seed: int,
) -> Selection | None:
    """The cheapest options that bring the load within `hbm_bytes`; None where there are none in time.

    `work` limits CP-SAT in its deterministic unit, about a second each.
    """
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(len(moves) + len(reruns))]
    _exclusions(problem, model, moves, reruns, x)
    _memory(problem, model, moves, reruns, x, hbm_bytes)
    _tiers(problem, model, moves, x)
    cost = [_move_cost(problem, move, price) for move in moves] + [rerun.duration_ns for rerun in reruns]
    model.minimize(sum((1 + c // COST_UNIT_NS) * v for c, v in zip(cost, x, strict=True)))
    return _solved(model, moves, reruns, x, seconds, work, seed)


def smallest_load(
    problem: Problem,
    moves: Sequence[Move],
    reruns: Sequence[Rerun],
    *,
    seconds: float | None,
    work: float,
    seed: int,
) -> Selection | None:
    """The options with which the highest load of any operator is least."""
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(len(moves) + len(reruns))]
    _exclusions(problem, model, moves, reruns, x)
    highest = model.new_int_var(0, 2**53, "highest")
    _memory(problem, model, moves, reruns, x, highest)
    _tiers(problem, model, moves, x)
    model.minimize(highest)
    return _solved(model, moves, reruns, x, seconds, work, seed)


def _solved(
    model: cp_model.CpModel,
    moves: Sequence[Move],
    reruns: Sequence[Rerun],
    x: list[cp_model.IntVar],
    seconds: float | None,
    work: float,
    seed: int,
) -> Selection | None:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = work
    if seconds is not None:
        solver.parameters.max_time_in_seconds = seconds
    if solver.status_name(solver.solve(model)) not in ("OPTIMAL", "FEASIBLE"):
        return None
    taken = [bool(solver.value(v)) for v in x]
    return Selection(
        [m for m, t in zip(moves, taken[: len(moves)], strict=True) if t],
        [r for r, t in zip(reruns, taken[len(moves) :], strict=True) if t],
    )


def _move_cost(problem: Problem, move: Move, price: float) -> int:
    """Nanoseconds: stall that cannot be hidden in the gap, and the priced time on the links."""
    tier, gap, times = problem.tiers[move.tier], move.gap, problem.unlimited
    clean = not problem.program.writers[gap.storage]
    out = 0 if gap.wraps and clean else tier.copy_ns(gap.bytes, out=True)
    back = tier.copy_ns(gap.bytes, out=False) if gap.back < problem.n else 0
    if gap.wraps:
        head = times.start[gap.back] if gap.back < problem.n else 0
        tail = times.step_ns - times.end[gap.leave] if gap.leave < problem.n else 0
        stall = max(0, back - head) + max(0, out - tail)
    else:
        stall = max(0, out + back - (times.start[gap.back] - times.end[gap.leave]))
    return stall + int(price * (out + back))


def _exclusions(
    problem: Problem, model: cp_model.CpModel, moves: Sequence[Move], reruns: Sequence[Rerun], x: list[cp_model.IntVar]
) -> None:
    """At most one option per storage and span; a wrap excludes the head and tail it contains."""
    spans: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for i, move in enumerate(moves):
        for first, end in move.off():
            spans[move.gap.storage].append((first, min(end, problem.n + 1), i))
    for i, rerun in enumerate(reruns, start=len(moves)):
        for s, leave in rerun.drops:
            spans[s].append((leave + 1, rerun.before, i))
    for own in spans.values():
        for a, (first, end, i) in enumerate(own):
            for other_first, other_end, j in own[a + 1 :]:
                if i != j and first < other_end and other_first < end:
                    model.add_at_most_one([x[i], x[j]])
    dropped: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for i, rerun in enumerate(reruns, start=len(moves)):
        for s, leave in rerun.drops:
            dropped[s].append((leave, rerun.before, i))
    for i, rerun in enumerate(reruns, start=len(moves)):
        for s in (*rerun.held, *(d for d, _ in rerun.drops)):
            for leave, before, j in dropped.get(s, ()):
                if i != j and leave < rerun.before < before:
                    model.add_at_most_one([x[i], x[j]])


def _memory(
    problem: Problem,
    model: cp_model.CpModel,
    moves: Sequence[Move],
    reruns: Sequence[Rerun],
    x: list[cp_model.IntVar],
    hbm_bytes: int | cp_model.IntVar,
) -> None:
    """Load at most `hbm_bytes`, a number or a variable, at every operator where it can be exceeded."""
    n = problem.n
    effects: list[Int64s] = []
    for rerun in reruns:
        effect = np.zeros(n, dtype=np.int64)
        add_rerun(problem, rerun, effect)
        effects.append(effect)
    highest = problem.load + sum((np.maximum(e, 0) for e in effects), np.zeros(n, dtype=np.int64))
    seen: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
    starts: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[int]] = defaultdict(list)
    for i, move in enumerate(moves):
        for first, end in move.off():
            starts[first].append(i)
            ends[min(end, n)].append(i)
    off: set[int] = set()
    for k in range(n):
        off.difference_update(ends.get(k, ()))
        off.update(starts.get(k, ()))
        if isinstance(hbm_bytes, int) and highest[k] <= hbm_bytes:
            continue
        load = int(problem.load[k])
        terms = [(i, moves[i].gap.bytes) for i in sorted(off)]
        terms += [(len(moves) + r, -int(e[k])) for r, e in enumerate(effects) if e[k]]
        if (key := (load, tuple(terms))) not in seen:
            seen.add(key)
            model.add(load - sum(size * x[i] for i, size in terms) <= hbm_bytes)


def _tiers(problem: Problem, model: cp_model.CpModel, moves: Sequence[Move], x: list[cp_model.IntVar]) -> None:
    """Tier memory from the copy out to the consumer, at each point where something is added."""
    n = problem.n
    for tier, budget in problem.tier_bytes.items():
        own = [(i, m) for i, m in enumerate(moves) if m.tier == tier]
        if sum(m.gap.bytes for _, m in own) <= budget:
            continue
        held = [(i, m.gap.bytes, _held(m, n)) for i, m in own]
        for k in sorted({first for _, _, ranges in held for first, _ in ranges}):
            terms = [size * x[i] for i, size, ranges in held if any(a <= k < b for a, b in ranges)]
            model.add(sum(terms) <= budget)


def _held(move: Move, n: int) -> list[tuple[int, int]]:
    gap = move.gap
    return [(-1, gap.before + 1), (gap.leave, n + 1)] if gap.wraps else [(gap.leave, min(gap.before, n) + 1)]
