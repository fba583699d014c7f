"""Orders, what is alive, the folded objective against its linear program, offload, transfers and groups of devices."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ortools.linear_solver import pywraplp

from hyperopt import layers
from hyperopt.documents import DocumentError
from solver.stages import NoPlanError, Problem, Request, place, problem, solve, value
from solver.stages.master import stage_reasons
from solver.stages.memory import memory
from solver.stages.picture import draw
from solver.stages.problem import fastest_split, uniform
from solver.stages.report import figures
from solver.stages.schedule import FORWARD, graph, most_alive, orders
from solver.stages.simulate import WRITTEN_BLOCKS, clock


def body(name: str = "b", time: float = 3, count: int = 8, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "BODY", "time": time, "nb_layer": count, "memory_activation": 10} | more


def described(*bodies: dict[str, Any], **more: Any) -> layers.Description:
    return layers.load(json.dumps({"layers_description": bodies, **more}).encode())[0]


def test_one_forward_one_backward_keeps_as_many_alive_as_stages_are_ahead() -> None:
    listed = orders("1f1b", 4, 1, 8)
    assert [most_alive(order, 1) for order in listed] == [[(4,)], [(3,)], [(2,)], [(1,)]]
    assert all(most_alive(order, 1) == [(8,)] for order in orders("gpipe", 4, 1, 8))


def test_the_interleaved_order_is_megatron_s() -> None:
    """Two stages, two chunks, four micro-batches: 2 (p - s - 1) + (v - 1) p forwards first."""
    first, last = orders("interleaved", 2, 2, 4)
    told = [" ".join(f"{'FB'[t.direction]}{t.chunk}{t.micro_batch}" for t in order) for order in (first, last)]
    assert told[0].startswith("F00 F01 F10 F11 F02 B10 F03 B11 F12 B00")
    assert told[1].startswith("F00 F01 F10 B10 F11 B11 F02 B00")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 8, 11])
def test_no_schedule_waits_for_ever(schedule: Any, micro_batches: int) -> None:
    for stages in (1, 2, 3, 5):
        for chunks in (1, 2, 3) if schedule == "interleaved" else (1,):
            made = graph(schedule, stages, chunks, micro_batches)
            assert len(made.duration) == 2 * stages * chunks * micro_batches
            assert (made.before < np.arange(len(made.before))).all() and (made.needs < np.arange(len(made.needs))).all()


def folded_by_program(p: Problem, durations: Any) -> float:
    """Fast-Tuner's model for given durations, as a linear program over all starts."""
    blocks = p.micro_batches // p.stages
    count = p.micro_batches - (blocks - WRITTEN_BLOCKS) * p.stages
    model = pywraplp.Solver.CreateSolver("GLOP")
    made = graph(p.schedule, p.stages, p.chunks, count)
    flat = durations.ravel()
    start = [model.NumVar(0, model.infinity(), "") for _ in made.duration]
    for i, x in enumerate(start):
        for j, lag in ((int(made.before[i]), 0.0), (int(made.needs[i]), float(p.transfer[made.link[i]]))):
            if j >= 0:
                crossed = lag if j == made.needs[i] and made.link[i] >= 0 else 0.0
                model.Add(x >= start[j] + float(flat[made.duration[j]]) + crossed)
    end, sigma = model.NumVar(0, model.infinity(), ""), model.NumVar(0, model.infinity(), "")
    for i, x in enumerate(start):
        model.Add(end >= x + float(flat[made.duration[i]]))
    for (s, task), i in made.position.items():
        if (task.direction, task.chunk, task.micro_batch) == (FORWARD, 0, count - p.stages):
            early = made.position[s, type(task)(FORWARD, 0, count - 2 * p.stages)]
            model.Add(sigma >= start[i] - start[early])
    model.Minimize(end + (blocks - WRITTEN_BLOCKS) * sigma)
    assert model.Solve() == pywraplp.Solver.OPTIMAL
    return float(model.Objective().Value())


@pytest.mark.parametrize("seed", range(12))
def test_the_folded_objective_is_its_linear_program(seed: int) -> None:
    dice = random.Random(seed)
    stages, chunks = dice.choice([(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (2, 3)])
    order: Any = "interleaved" if chunks > 1 else dice.choice(["1f1b", "zero-bubble"])
    count = stages * chunks * 2 + dice.randint(0, 5)
    description = described(body(count=count, time=dice.randint(1, 9)), transfer_times=dice.choice([0, 0.7]))
    blocks = dice.randint(WRITTEN_BLOCKS + 1, 30)
    asked = Request(
        stages=stages,
        micro_batches=blocks * stages + dice.randint(0, stages - 1),
        schedule=order,
        chunks=chunks,
        min_layers=0,
    )
    p = replace(problem(description, asked), ahead=dice.choice([1, 2]), lag=dice.randint(0, 2 * stages))
    cuts = sorted(dice.randint(0, count) for _ in range(p.groups - 1))
    split = fastest_split(p, np.diff([0, *cuts, count]).tolist())
    durations = p.durations(split)
    assert value(p, "folded", split) == pytest.approx(folded_by_program(p, durations), rel=1e-6, abs=stages * blocks)


def test_offload_frees_memory_and_waits_only_where_copies_outlast_the_work() -> None:
    moved = {"name": "all", "memory": 1}
    limits = {"memory_limits": [20, 200], "offload_link": {"out_mb_per_time": 9, "in_mb_per_time": 1}}
    description = described(body(count=4, offload_levels=[moved]), **limits)
    p = problem(description, Request(stages=2, micro_batches=4))
    split = fastest_split(p, [2, 2])
    assert (memory(p, split).peak * p.grain).tolist() == [40.0, 20.0]
    offloaded = next(k for k, c in enumerate(p.columns) if c.kind == "offload")
    split[0] = 0
    split[0, offloaded] = 2
    told = figures(p, split)
    assert told["peak"] == [4.0, 20.0] and told["peak_host"] == [36.0, 0.0]
    assert told["forward"] == [[6.0], [6.0]]  # 18 MB at 9 are 2, less than the work
    assert told["backward"] == [[18.0], [12.0]]  # 18 MB at 1 are 18
    found = solve(p)
    assert found.status == "optimal" and (found.memory.peak * p.grain <= [20, 200]).all()
    with pytest.raises(NoPlanError):
        solve(problem(described(body(count=4, offload_levels=[moved]), host_limits=8, **limits), Request(
            stages=2, micro_batches=4, min_layers=2)))  # fmt: skip


def test_speeds_and_links_of_the_stages_count() -> None:
    groups = [{"speed": 2}, {"speed": 1}]
    description = described(body(count=9), device_groups=groups, transfer_times=[1.5, 0])
    p = problem(description, Request(stages=2, micro_batches=1))
    assert value(p, "makespan", fastest_split(p, [6, 3])) * p.tick == pytest.approx(9 * 6 / 2 + 9 * 3 + 2 * 1.5)
    assert p.counts(solve(p, "slowest").split).tolist() == [[6, 3]]
    with pytest.raises(DocumentError, match=r"device_groups"):
        problem(description, Request(stages=3, micro_batches=1))


MIXED = {
    "layers_description": [
        body("vision", 8, 24, memory_parameter=1200, memory_activation=1000, memory_recompute=120,
             serial_fraction=0.25),
        body("language", 40, 32, memory_parameter=8000, memory_activation=2400, memory_recompute=300,
             serial_fraction=0.02),
    ],
    "sub_models": [{"name": "encoder", "layers": ["vision"]}, {"name": "decoder", "layers": ["language"]}],
    "pool": [
        {"name": "old", "devices": 4, "speed": 0.7, "memory": 30000},
        {"name": "new", "devices": 12, "speed": 1.0, "memory": 60000},
    ],
    "transfer_times": 0.5,
}  # fmt: skip


def test_an_encoder_and_a_decoder_on_groups_of_their_own_beat_equal_groups() -> None:
    description = layers.load(json.dumps(MIXED).encode())[0]
    apart = place(description, Request(stages=2, micro_batches=8), time_limit_s=10)
    assert [g.devices for g in apart.groups] == [4, 12]
    assert apart.solution.problem.counts(apart.solution.split).tolist() == [[24, 32]]
    equal = [place(description, Request(stages=n, micro_batches=8), time_limit_s=10, equal=True) for n in (4, 8)]
    assert apart.value < 0.95 * min(one.value for one in equal)
    assert apart.value < 0.95 * equal[0].bound and equal[0].solution.status == "optimal"
    for one in (apart, *equal):
        assert (one.solution.memory.peak <= one.solution.problem.limit).all()
    with pytest.raises(NoPlanError, match="3 stages"):
        place(description, Request(stages=3, micro_batches=8), equal=True)


def test_the_time_line_shows_every_task() -> None:
    p = problem(described(body()), Request(stages=2, micro_batches=3))
    split = fastest_split(p, uniform(p))
    assert draw(p, split, svg=True).count("<rect") == 2 * 2 * 3
    text = draw(p, split)
    assert text.count("stage") == 2 and all(digit in text for digit in "012")


def test_head_and_tail_count_as_often_as_they_say() -> None:
    ends = [body("h", 2, 3) | {"type": "HEAD", "memory_parameter": 7}, body(), body("t", 5, 2) | {"type": "TAIL"}]
    told = figures(p := problem(described(*ends), Request(stages=2, micro_batches=1)), fastest_split(p, [4, 4]))
    assert told["forward"] == [[12.0 + 6], [12.0 + 10]]
    assert told["peak_static"] == [21.0, 0.0]


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zero-bubble", 1)]
)
@pytest.mark.parametrize("objective", ["makespan", "folded"])
def test_every_reason_is_below_the_value_of_every_split(schedule: Any, chunks: int, objective: Any) -> None:
    dice = random.Random(chunks)
    description = described(body(count=14), body("c", 5, 7), transfer_times=0.5)
    asked = Request(stages=3, micro_batches=23, schedule=schedule, chunks=chunks, min_layers=0)
    p = replace(problem(description, asked), ahead=2, lag=3)
    told = clock(p, objective)
    splits = [
        fastest_split(p, np.diff([0, *sorted(dice.randint(0, 21) for _ in range(p.groups - 1)), 21]).tolist())
        for _ in range(12)
    ]
    reasons = stage_reasons(p, objective) + [r for split in splits for r in told.reasons(p.durations(split))[1]]
    for split in splits:
        durations = p.durations(split)
        found, sigma = told.value(durations), told.sigma(durations)
        for reason in reasons:
            length = int(reason.counts @ durations.ravel()) + reason.lag
            if reason.cycle:
                assert reason.back * sigma >= length
            else:
                assert length + (told.folded_blocks - reason.back) * sigma <= found
