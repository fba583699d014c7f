"""Stages against what is had otherwise: the even split, the slowest-stage optimum, a monolithic program with HiGHS.

    python -m bench.stages [-o RESULTS.json] [--seconds S] [--rival-seconds S] [CASE ...]

All on one machine in one run, one after another; values are simulated (or folded) in the case's own unit, by the same
clock, for splits within the memory limits. The even split has every layer at the first level and may not fit: then it
is searched for levels that do. The monolithic program is Fast-Tuner's formulation (a start for each task) by HiGHS in
OR-Tools; it is asked where it has at most MOST_TASKS tasks. Compiled code is warmed up first. `programs`: sub-models
that are no chain, against all of them on all devices in turn and the best equal groups.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hyperopt import layers, programs
from solver.programs import answer
from solver.programs import solve as solve_programs
from solver.programs.picture import draw as draw_programs
from solver.stages import NoPlanError, Objective, Problem, Request, place, problem, solve, value
from solver.stages.master import Master, whole
from solver.stages.memory import fits
from solver.stages.picture import draw
from solver.stages.problem import fastest_split, uniform
from solver.stages.search import NO_VALUE, Search
from solver.stages.simulate import clock
from tests.cases.test_stages import C4, C5, FIRST, INTERLEAVED, LLAMA, SECOND, deepseek
from tests.solver.programs.examples import LARGE, PPO, VISION
from tests.solver.stages.test_schedule import MIXED

RESULTS = Path("build/bench/stages.json")
MOST_TASKS = 6_000


def read(document: dict[str, Any]) -> layers.Description:
    return layers.load(json.dumps(document).encode())[0]


def cases() -> dict[str, tuple[Problem, Objective, str]]:
    """Name -> problem, objective, and what is wanted of it."""

    def of(
        document: dict[str, Any], stages: int, micro_batches: int, chunks: int = 1, least: int = 1, halves: bool = False
    ) -> Problem:
        order: Any = "interleaved" if chunks > 1 else "zero-bubble" if halves else "1f1b"
        asked = Request(
            stages=stages, micro_batches=micro_batches, schedule=order, chunks=chunks, min_layers=least
        )
        return problem(read(document), asked)

    return {
        "C4, 8 micro-batches": (of(C4, 2, 8), "makespan", "1339.5"),
        "C4, 2 micro-batches": (of(C4, 2, 2), "makespan", "415.0"),
        "C4, 8, zero-bubble": (of(C4, 2, 8, halves=True), "makespan", "<= 1339.5 (1F1B)"),
        "C5, any": (of(C5, 8, 8, least=0), "slowest", "60 (20 forward)"),
        "C5, each one": (of(C5, 8, 8), "slowest", "69 (23 forward)"),
        "C20, 64": (of(deepseek(16, *FIRST), 16, 64), "folded", "1132.66"),
        "C20, 64, zero-bubble": (of(deepseek(16, *FIRST), 16, 64, halves=True), "makespan", "<= 1132.66 (1F1B)"),
        "C20, 960, as upstream": (of(deepseek(16, *SECOND, 1.0), 16, 960), "folded", "10943.91"),
        "C20, 960, no slip": (of(deepseek(16, *SECOND), 16, 960), "folded", ""),
        "C20, interleaved": (of(deepseek(8, *INTERLEAVED), 8, 240, 4), "folded", "< 5600, bound > 5450"),
        "llama2_70b, 56000 MB": (of(LLAMA, 16, 32, 2), "makespan", "<= 82568 (published split)"),
    }


def even(p: Problem, objective: Objective) -> float | None:
    """The even split, with levels searched where it does not fit."""
    split = fastest_split(p, uniform(p))
    if fits(p, split):
        return value(p, objective, split) * p.tick
    fixed = replace(p, min_layers=int(split.sum(1).min()))
    best, found = Search(fixed, objective).walk(split, 20_000, 0)
    same = best < NO_VALUE and np.array_equal(found.sum(1), split.sum(1))
    return best * p.tick if same else None


def slowest(p: Problem, objective: Objective, seconds: float) -> float | None:
    """The optimum for the slowest stage, valued by the case's objective."""
    try:
        return value(p, objective, solve(p, "slowest", seconds).split) * p.tick
    except NoPlanError:
        return None


def monolithic(p: Problem, objective: Objective, seconds: float) -> tuple[float | None, float] | None:
    """(value of its split by our clock, its bound) of one program with a start for each task; None: not asked."""
    if objective == "slowest":
        return None
    told = clock(p, objective)
    g = told.graph
    if len(g.duration) > MOST_TASKS:
        return None
    scale = int(value(p, objective, fastest_split(p, uniform(p))))
    program = Master(p, objective, scale, "HIGHS")
    m = program.model
    start = [m.NumVar(0, m.infinity(), "") for _ in g.duration]
    for i, x in enumerate(start):
        if g.before[i] >= 0:
            m.Add(x >= start[g.before[i]] + program.durations[g.duration[g.before[i]]])
        if g.needs[i] >= 0:
            lag = float(told.lag[i]) * program.per_tick
            m.Add(x >= start[g.needs[i]] + program.durations[g.duration[g.needs[i]]] + lag)
    ends = [x + program.durations[g.duration[i]] for i, x in enumerate(start)]
    last = [order[-1] for order in g.orders]
    more = 0 if program.sigma is None else program.folded * program.sigma
    for s, task in enumerate(last):
        m.Add(program.value >= ends[g.position[s, task]] + more)
    for late, early in told.anchors:
        m.Add(program.sigma >= start[late] - start[early])
    answer = program.solve(seconds)
    if answer.split is None:
        return None, answer.bound * p.tick
    return value(p, objective, whole(answer.split)) * p.tick, answer.bound * p.tick


def _answer(pipe: Connection, name: str, seconds: float) -> None:
    p, objective, _ = cases()[name]
    pipe.send(monolithic(p, objective, seconds))


def killable(name: str, seconds: float) -> tuple[float | None, float] | str | None:
    """`monolithic` in a process of its own, ended at twice its time limit, which HiGHS overran."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, name, seconds), daemon=True)
    child.start()
    try:
        return ours.recv() if ours.poll(2 * seconds + 10) else "ended"  # type: ignore[no-any-return]
    finally:
        child.kill()
        child.join()


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return run(), time.perf_counter() - began


def measure(name: str, seconds: float, rival_seconds: float) -> dict[str, Any]:
    p, objective, wanted = cases()[name]
    found, took = timed(lambda: solve(p, objective, seconds))
    row: dict[str, Any] = {"case": name, "objective": objective, "wanted": wanted, "value": found.value * p.tick}
    row |= {"bound": found.bound * p.tick, "status": found.status, "seconds": took}
    row["layers"] = p.counts(found.split).tolist()
    row["even"] = even(p, objective)
    row["slowest_stage_optimum"] = slowest(p, objective, rival_seconds)
    rival, took = timed(lambda: killable(name, rival_seconds))
    known = rival if isinstance(rival, tuple) else (None, 0.0)
    row["monolithic"] = None if rival is None else {"value": known[0], "bound": known[1], "seconds": took}
    return row


def mixed(seconds: float) -> dict[str, Any]:
    """Encoder and decoder on 4 old and 12 new devices: best of all numbers of stages, apart and on equal groups."""
    description = read(MIXED)
    told: dict[str, Any] = {}
    for kind, equal in (("mpmd", False), ("spmd", True)):
        best = None
        for stages in (2, 3, 4, 5, 6, 8, 16):
            try:
                one = place(description, Request(stages=stages, micro_batches=8), "makespan", seconds, equal=equal)
            except NoPlanError:
                continue
            if best is None or one.value < best.value:
                best = one
        assert best is not None
        solution = best.solution
        told[kind] = {
            "value": best.value,
            "devices": [g.devices for g in best.groups],
            "layers": solution.problem.counts(solution.split).tolist(),
            "timeline": draw(solution.problem, solution.split),
            "svg": draw(solution.problem, solution.split, svg=True),
        }
    return told


def apart(seconds: float) -> dict[str, Any]:
    """Programs that are no chain, by name."""
    told: dict[str, Any] = {}
    for document in (PPO, VISION, LARGE):
        said, _ = programs.load(json.dumps(document).encode())
        found = solve_programs(said, seconds)
        pictures = {"timeline": draw_programs(said, found.best), "svg": draw_programs(said, found.best, svg=True)}
        told[document["name"]] = answer(said, found) | pictures
    return told


def _cell(x: float | None) -> str:
    return "none" if x is None else f"{x:.2f}"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("cases", nargs="*", metavar="CASE", help="part of a name, mixed, or programs; all unless given")
    asked.add_argument("-o", "--output", type=Path, default=RESULTS)
    asked.add_argument("--seconds", type=float, default=60.0, help="of ours")
    asked.add_argument("--rival-seconds", type=float, default=60.0, help="of each program of a rival")
    given = asked.parse_args()
    p, objective, _ = cases()["C4, 2 micro-batches"]
    solve(p, objective, 5.0)
    rows = []
    print(f"load {os.getloadavg()[0]:.1f}")
    heads = "| case | wanted | ours | bound | status | s | even split | slowest-stage optimum "
    print(heads + "| monolithic HiGHS, bound, s |")
    print("|---|---|---:|---:|---|---:|---:|---:|---|")
    for name in cases():
        if given.cases and not any(part in name for part in given.cases):
            continue
        row = measure(name, given.seconds, given.rival_seconds)
        rows.append(row)
        rival = row["monolithic"]
        told = "" if rival is None else f"{_cell(rival['value'])}, {rival['bound']:.2f}, {rival['seconds']:.0f}"
        cells = [name, row["wanted"], _cell(row["value"]), _cell(row["bound"]), row["status"], f"{row['seconds']:.1f}"]
        cells += [_cell(row["even"]), _cell(row["slowest_stage_optimum"]), told]
        print("| " + " | ".join(cells) + " |", flush=True)
    document: dict[str, Any] = {"load": os.getloadavg(), "cases": rows}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    if not given.cases or "mixed" in given.cases:
        document["mixed"] = mixed_told = mixed(5.0)
        for kind, one in mixed_told.items():
            print(f"\nmixed, {kind}: {one['value']:.2f} on {one['devices']}, layers {one['layers']}\n{one['timeline']}")
            given.output.with_name(f"stages-{kind}.svg").write_text(one["svg"])
    if not given.cases or "programs" in given.cases:
        document["programs"] = steps = apart(given.seconds)
        print("\n| programs | ways | ours | bound | s | all on all devices | best equal groups | groups |")
        print("|---|---:|---:|---:|---:|---:|---:|---|")
        for name, one in steps.items():
            rivals = [None if one[key] is None else one[key]["makespan"] for key in ("together", "equal")]
            groups = " / ".join(f"{g['devices']}: {', '.join(g['programs'])}" for g in one["groups"])
            cells = [_cell(one["makespan"]), _cell(one["bound"]), f"{one['seconds']:.1f}", *map(_cell, rivals), groups]
            print("| " + " | ".join([name, str(one["ways"]), *cells]) + " |", flush=True)
            slug = name.replace(", ", "-").replace(" ", "-")
            given.output.with_name(f"programs-{slug}.svg").write_text(one["svg"])
    given.output.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    print(f"load {os.getloadavg()[0]:.1f}; written to {given.output}")


if __name__ == "__main__":
    main()
