"""A solution in the description's units: what the command prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hyperopt.layers import Description
from hyperopt.plan import Stage, check_stages
from solver.stages.describe import Request
from solver.stages.groups import Grouped, place
from solver.stages.memory import fits, memory
from solver.stages.problem import NoPlanError, Problem, fastest_split, uniform
from solver.stages.solve import Solution, value

I64 = NDArray[np.int64]

EQUAL_S = 10.0
"""Seconds for the best plan on equal groups, beside the one that was asked for."""


def answer(solution: Solution) -> dict[str, Any]:
    """The document of `hyperopt stages --json` (docs/reference/stages.md): times in the description's unit, MB."""
    p, split = solution.problem, solution.split
    made = {
        "objective": solution.objective,
        "status": solution.status,
        "stop_reason": solution.stop_reason,
        "value": _time(p, solution.value),
        "bound": _time(p, solution.bound),
        "gap": solution.gap,
        "seconds": round(solution.seconds, 3),
        "stages": p.stages,
        "chunks": p.chunks,
        "micro_batches": p.micro_batches,
        "schedule": p.schedule,
        **({} if p.parts == 2 else {"zero_bubble": {"ahead": p.ahead, "lag": p.lag}}),
        "layers": by_stage(p, split.sum(1)),
        "layers_per_stage": p.counts(split).sum(0).tolist(),
    }
    stages = msgspec.to_builtins(plan_stages(p, split))
    return made | levels(p, split) | figures(p, split) | {"uniform": even(p), "plan": {"stages": stages}}


def grouped_answer(grouped: Grouped, description: Description, asked: Request) -> dict[str, Any]:
    """As `answer`, with the groups of devices, and the best plan on as many equal groups; None if there is none."""
    told = answer(grouped.solution)
    problem = grouped.solution.problem
    told["bound"] = _time(problem, grouped.bound / problem.tick)
    told["gap"] = (grouped.value - grouped.bound) / grouped.bound if grouped.bound else None
    told["status"] = "optimal" if grouped.value <= grouped.bound else "feasible"
    if grouped.ways < grouped.ways_in_all:
        told["stop_reason"] = f"{grouped.ways} of {grouped.ways_in_all} ways to divide the pool were tried"
    elif told["status"] == "feasible" and grouped.solution.status == "optimal":
        told["stop_reason"] = "time limit"
    told["groups"] = [{"name": g.name, "devices": g.devices, "speed": g.speed} for g in grouped.groups]
    devices = [g.devices for g in grouped.groups]
    split = grouped.solution.split
    told["plan"] = {"stages": msgspec.to_builtins(plan_stages(problem, split, devices))}
    told["ways"], told["ways_in_all"] = grouped.ways, grouped.ways_in_all
    try:
        equal = place(description, asked, grouped.solution.objective, EQUAL_S, equal=True)
    except NoPlanError:
        told["spmd"] = None
    else:
        p = equal.solution.problem
        told["spmd"] = {
            "value": _time(p, equal.solution.value),
            "bound": _time(p, equal.solution.bound),
            "devices": [g.devices for g in equal.groups],
            "layers": by_stage(p, equal.solution.split.sum(1)),
        }
    return told


def plan_stages(problem: Problem, split: I64, devices: Sequence[int] | None = None) -> tuple[Stage, ...]:
    """A split as the `stages` of a plan. `devices`: ranks of each stage (one unless given), numbered along the
    pipeline. Within a group and type the first layers have the costliest levels: theirs is the longest wait."""
    devices = [1] * problem.stages if devices is None else devices
    first_rank = np.concatenate([[0], np.cumsum(devices)])
    of_group: list[tuple[int, ...]] = []
    named: list[dict[str, dict[str, list[int]]]] = [{"recompute": {}, "offload": {}} for _ in range(problem.stages)]
    start = 0
    for g in range(problem.groups):
        layers = range(start, start + int(split[g].sum()))
        start = layers.stop
        of_group.append(tuple(layers))
        for t in range(len(problem.types)):
            free = [layer for layer in layers if problem.layer_types[layer] == t]
            for k in reversed(np.flatnonzero(problem.type_of == t)):
                column, n = problem.columns[k], int(split[g, k])
                taken, free = free[:n], free[n:]
                if taken and column.level != "none":
                    named[g % problem.stages][column.kind].setdefault(column.level, []).extend(taken)
    made = []
    for s in range(problem.stages):
        chunks = tuple(of_group[c * problem.stages + s] for c in range(problem.chunks))
        made.append(
            Stage(
                devices=tuple(range(int(first_rank[s]), int(first_rank[s + 1]))),
                layers=chunks if problem.chunks > 1 else chunks[0],
                micro_batches=problem.micro_batches,
                recompute_levels={level: tuple(layers) for level, layers in named[s]["recompute"].items()},
                offload_levels={level: tuple(layers) for level, layers in named[s]["offload"].items()},
            )
        )
    check_stages(made)
    return tuple(made)


def levels(problem: Problem, split: I64) -> dict[str, Any]:
    """Layers at each level as [stage][chunk]: `recompute` and `offload` over all types, `types` for each."""
    told: dict[str, Any] = {"recompute": {}, "offload": {}, "types": {}}
    for k, column in enumerate(problem.columns):
        at = told[column.kind]
        at[column.level] = at.get(column.level, 0) + split[:, k]
        one = told["types"].setdefault(problem.types[column.type], {})
        one[column.level] = by_stage(problem, split[:, k])
    for kind in ("recompute", "offload"):
        told[kind] = {level: by_stage(problem, counts) for level, counts in told[kind].items()}
    return told


def figures(problem: Problem, split: I64) -> dict[str, Any]:
    """Simulated times and memory of any split."""
    durations = problem.durations(split)
    work = durations.reshape(problem.chunks, problem.stages, problem.parts)
    held = memory(problem, split)
    makespan = value(problem, "makespan", split)
    busy = work.sum((0, 2)) * problem.micro_batches
    weight = {"weight": [[_time(problem, x) for x in row] for row in work[:, :, 2].T]} if problem.parts == 3 else {}
    return weight | {
        "makespan": _time(problem, makespan),
        "folded": _time(problem, value(problem, "folded", split)),
        "slowest": _time(problem, work.sum((0, 2)).max()),
        "slowest_forward": _time(problem, work[:, :, 0].sum(0).max()),
        "forward": [[_time(problem, x) for x in row] for row in work[:, :, 0].T],
        "backward": [[_time(problem, x) for x in row] for row in work[:, :, 1].T],
        "bubble": round(1 - float(busy.sum()) / (makespan * problem.stages), 6) if makespan else 0.0,
        "peak": [_megabytes(problem, x) for x in held.peak],
        "peak_static": [_megabytes(problem, x) for x in held.static],
        "peak_host": [_megabytes(problem, x) for x in held.host],
        "alive_layers": held.alive.tolist(),
        "limits": [_megabytes(problem, x) if x < 2**59 else None for x in problem.limit],
    }


def even(problem: Problem) -> dict[str, Any]:
    """The uniform split at the fastest levels: what is had without a plan, and whether it fits."""
    split = fastest_split(problem, uniform(problem))
    told = figures(problem, split)
    kept = ("makespan", "slowest", "slowest_forward", "peak", "alive_layers")
    return {"layers": by_stage(problem, split.sum(1)), "fits": fits(problem, split)} | {key: told[key] for key in kept}


def by_stage(problem: Problem, per_group: I64) -> list[list[int]]:
    """[stage][chunk]."""
    return np.asarray(per_group).reshape(problem.chunks, problem.stages).T.tolist()  # type: ignore[no-any-return]


def _time(problem: Problem, ticks: float) -> float:
    return float(f"{float(ticks) * problem.tick:.12g}")


def _megabytes(problem: Problem, grains: float) -> float:
    return float(f"{float(grains) * problem.grain:.12g}")
