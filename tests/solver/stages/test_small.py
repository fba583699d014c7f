"""Small cases: the same optimum as trying everything, proven, with the simulator of the tests."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from hyperopt import layers
from hyperopt.documents import DocumentError
from solver.stages import NoPlanError, Request, problem, solve
from solver.stages.master import least_raise
from tests.solver.stages.enumeration import Case, best, makespan

CASES = 300


def made(seed: int) -> Case:
    """A case of 2 to 7 layers on 2 to 6 groups, with two or three levels and limits that often bind."""
    dice = random.Random(seed)
    chunks = dice.choice([1, 1, 1, 2])
    stages = dice.choice([2, 3, 4] if chunks == 1 else [2, 2, 3])
    types = dice.choice([1, 1, 2])
    body: list[dict[str, Any]] = []
    left = dice.randint(stages * chunks - 1, stages * chunks + (4 if chunks == 1 else 1))
    for t in range(types):
        count = left if t == types - 1 else max(1, left // 2)
        left -= count
        kept = dice.randint(4, 20)
        layer: dict[str, Any] = {"name": f"b{t}", "type": "BODY", "time": dice.randint(1, 12), "nb_layer": count}
        layer |= {"memory_parameter": dice.randint(0, 10), "memory_activation": kept}
        if dice.random() < 0.7:
            layer["memory_recompute"] = dice.randint(0, kept // 3)
        if dice.random() < 0.3 and stages * chunks < 5:
            layer["memory_select_rec"] = dice.randint(kept // 3, kept)
        body.append(layer)
    body = [layer for layer in body if layer["nb_layer"]]
    ends = [
        {"name": name, "type": name, "time": dice.choice([0, 1, 5, 20]), "nb_layer": 1, "memory_parameter": 3}
        for name in ("HEAD", "TAIL")
    ]
    total = sum(layer["nb_layer"] * layer["memory_activation"] for layer in body)
    document = {
        "layers_description": [ends[0], *body, ends[1]],
        "memory_limits": [dice.randint(20, 30 + 3 * total) for _ in range(stages)],
        "transfer_times": dice.choice([0, 0, 0.5, 3]),
    }
    schedule = "interleaved" if chunks > 1 else dice.choice(["1f1b", "1f1b", "gpipe"])
    objective = dice.choice(["makespan", "makespan", "makespan", "slowest"])
    return Case(document, stages, chunks, dice.randint(1, 7), schedule, objective, dice.choice([0, 1]))


def asked(case: Case) -> Request:
    return Request(
        stages=case.stages,
        micro_batches=case.micro_batches,
        schedule=case.schedule,  # type: ignore[arg-type]
        chunks=case.chunks,
        min_layers=case.min_layers,
    )


@pytest.mark.parametrize("tenth", range(10))
def test_small_cases_are_as_good_as_trying_everything(tenth: int) -> None:
    plans = 0
    for seed in range(tenth, CASES, 10):
        case = made(seed)
        wanted = best(case)
        description, _ = layers.load(json.dumps(case.document).encode())
        plain = problem(description, asked(case))
        try:
            found = solve(plain, case.objective, time_limit_s=60)  # type: ignore[arg-type]
        except NoPlanError:
            assert wanted is None, f"seed {seed}: there is a split of {wanted}"
            continue
        assert wanted is not None, f"seed {seed}: no split fits"
        assert found.status == "optimal", f"seed {seed}"
        assert found.value * plain.tick == pytest.approx(wanted, rel=1e-9), f"seed {seed}"
        durations = plain.durations(found.split) * plain.tick
        assert found.makespan * plain.tick == pytest.approx(makespan(case, *durations.T.tolist()), rel=1e-9)
        plans += 1
    assert plans > 5


def test_no_split_fits_while_limits_are_raised_by_less_than_is_said() -> None:
    """By trying everything: just below the share that all limits lack at least there is no split."""
    lacking = 0
    for seed in range(40):
        case = made(seed)
        case.document["memory_limits"] = [limit // 3 for limit in case.document["memory_limits"]]
        description, _ = layers.load(json.dumps(case.document).encode())
        share = least_raise(problem(description, asked(case)))
        if share > 0:
            lacking += 1
            case.document["memory_limits"] = [n * (1 + 0.999 * share) for n in case.document["memory_limits"]]
            assert best(case) is None, f"seed {seed}: there is a split with {share} less"
    assert lacking > 10


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [("memory_limits", [1e14, 13], None), ("transfer_times", [0, 1e13], None), ("recompute_coef", 1e15, "times are")],
)
def test_one_huge_number_does_not_blur_the_others(field: str, value: Any, told: str | None) -> None:
    body = {"name": "b", "type": "BODY", "time": 2, "nb_layer": 6, "memory_parameter": 3, "memory_activation": 4}
    body |= {"memory_recompute": 1, "recompute_coef": 0.5}
    ends = [{"name": "h", "type": "HEAD", "time": 1}, {"name": "t", "type": "TAIL", "time": 3}]
    document: dict[str, Any] = {"layers_description": [ends[0], body, ends[1]]}
    case = Case(document, 2, 1, 4, "1f1b", "makespan", 1)
    document.update({field: [1e6, 13] if field == "memory_limits" else [0, 0]} if told is None else {})
    plain = problem(layers.load(json.dumps(document).encode())[0], asked(case))
    if told is None:
        document[field] = value
        huge = problem(layers.load(json.dumps(document).encode())[0], asked(case))
        assert solve(huge).value * huge.tick == solve(plain).value * plain.tick
        return
    body[field] = value
    with pytest.raises(DocumentError, match=told):
        problem(layers.load(json.dumps(document).encode())[0], asked(case))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"memory_limits": 1e-300}, "$.memory_limits"),
        ({"memory_limits": [40, 1e-300]}, "$.memory_limits[1]"),
        ({"memory_limits": 40, "host_limits": 1e-300}, "$.host_limits"),
        ({"memory_limits": 40, "device_groups": [{}, {"memory": 1e-300}]}, "$.device_groups[1].memory"),
        ({"memory_limits": 40, "layers_description": 1e15}, "$.layers_description"),
    ],
)
def test_the_amount_that_is_far_from_the_others_is_named_where_it_stands(changes: dict[str, Any], field: str) -> None:
    body = {"name": "b", "type": "BODY", "time": 2, "nb_layer": 6, "memory_parameter": 3, "memory_activation": 4}
    body |= {"memory_recompute": 1}
    if "layers_description" in changes:
        changes = changes | {"layers_description": [body, {"name": "t", "type": "TAIL", "time": 1} | {
            "memory_parameter": changes["layers_description"]}]}  # fmt: skip
    document = {"layers_description": [body]} | changes
    case = Case(document, 2, 1, 4, "1f1b", "makespan", 1)
    with pytest.raises(DocumentError, match="too far apart") as refused:
        problem(layers.load(json.dumps(document).encode())[0], asked(case))
    assert refused.value.field == field
