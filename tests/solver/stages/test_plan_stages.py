"""The `stages` of a plan: round trip, and what contradicts itself is refused by field."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hyperopt import layers
from hyperopt import plan as plans
from hyperopt.documents import DocumentError, canonical
from hyperopt.plan import Plan, Stage
from solver.stages import Request, problem, solve
from solver.stages.report import plan_stages


def test_a_solution_becomes_stages_and_comes_back() -> None:
    body = {"name": "b", "type": "BODY", "time": 3, "nb_layer": 9, "memory_parameter": 1, "memory_activation": 5}
    document = {"layers_description": [body | {"memory_recompute": 1}], "memory_limits": [21, 60]}
    description, _ = layers.load(json.dumps(document).encode())
    asked = Request(stages=2, micro_batches=4, schedule="interleaved", chunks=2)
    p = problem(description, asked)
    found = solve(p, time_limit_s=20)
    stages = plan_stages(p, found.split, devices=[4, 12])
    plan, warnings = plans.load(canonical(Plan(stages=stages)))
    assert warnings == [] and plan.stages == stages
    assert [len(stage.devices) for stage in stages] == [4, 12] and stages[1].devices[0] == 4
    assert sorted(layer for stage in stages for chunk in stage.chunks for layer in chunk) == list(range(9))
    again = sum(len(rows) for stage in stages for rows in stage.recompute_levels.values())
    assert again == int(np.asarray(found.split)[:, 1].sum()) > 0
    assert Plan(stages=stages).content_id != Plan().content_id


@pytest.mark.parametrize(
    ("stages", "field", "words"),
    [
        ([{"layers": [0, 1]}, {"layers": [1]}], r"$.stages[1].layers", "layer 1 stands where 2"),
        ([{"layers": [0]}, {"layers": [2]}], "$.stages[1].layers", "layer 2 stands where 1"),
        ([{"devices": [3]}, {"devices": [3]}], "$.stages[1].devices", "rank 3 is on stage 0"),
        ([{"micro_batches": 2}, {"micro_batches": 3}], "$.stages[1].micro_batches", "3 where stage 0 has 2"),
        ([{"micro_batches": 0}], "$.stages[0].micro_batches", ">= 1"),
        ([{"layers": [0, [1]]}], "$.stages[0].layers", "mixes"),
        ([{"layers": [[0], [1]]}, {"layers": []}], "$.stages[1].layers", "1 chunks where stage 0 has 2"),
        ([{"layers": [0], "recompute_levels": {"full": [1]}}], "$.stages[0].recompute_levels.full", "not on this"),
        ([{"devices": [0]}, {}], "$.stages[1].devices", "none where other stages have some"),
        ([{"layers": [0], "recompute_levels": {"full": [0, 0]}}], "$.stages[0].recompute_levels.full", "at full alr"),
        (
            [{"layers": [0], "recompute_levels": {"full": [0], "select": [0]}}],
            "$.stages[0].recompute_levels.select",
            "layer 0 is at full already",
        ),
        (
            [{"residency": {"actions": [{"op": 1, "when": "before", "kind": "copy_out", "storage": 1}]}}],
            "$.stages[0].residency.actions[0].when",
            "copy_out cannot stand before",
        ),
        (
            [{"residency": {"actions": [{"op": 1, "when": "after", "kind": "copy_in", "storage": 1}]}}],
            "$.stages[0].residency.actions[0].when",
            "put it before",
        ),
        ([{"layers": [-1]}], "$.stages[0].layers[0]", ">= 0"),
        ([{"residency": {"actions": [{"op": 1}]}}], "$.stages[0].residency.actions[0]", "when"),
    ],
)
def test_stages_that_contradict_themselves_are_refused(stages: list[dict[str, Any]], field: str, words: str) -> None:
    document = {"format": "hyperopt.plan/1", "stages": stages}
    with pytest.raises(DocumentError) as refused:
        plans.load(json.dumps(document).encode())
    assert refused.value.field == field and words in str(refused.value)


def test_plans_without_stages_are_as_they_were() -> None:
    assert plans.load(b'{"format": "hyperopt.plan/1", "stages": null}')[0].stages is None
    assert plans.load(b'{"format": "hyperopt.plan/1", "stages": [{"layers": []}]}')[0].stages == (Stage(),)
