"""The layer description: what placement adds to SAPP-PPB's document, and what is refused by field."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from hyperopt import layers
from hyperopt.documents import DocumentError
from hyperopt.layers import Run

HEAD = {"name": "h", "type": "HEAD", "time": 1, "nb_layer": 1, "memory_parameter": 2}
DENSE = {"name": "dense", "type": "BODY", "time": 3, "nb_layer": 2, "memory_parameter": 2, "memory_activation": 9}
MOE = DENSE | {"name": "moe", "nb_layer": 4}


def document(**more: Any) -> bytes:
    return json.dumps({"layers_description": [HEAD, DENSE, MOE]} | more).encode()


def test_layers_stand_as_described_or_as_listed() -> None:
    plain, warnings = layers.load(document())
    assert warnings == []
    assert plain.runs() == (Run(name="dense", count=2), Run(name="moe", count=4))
    mixed, _ = layers.load(document(layer_types=["dense", "moe", "moe", {"name": "dense", "count": 3}, "dense"]))
    assert [(run.name, run.count) for run in mixed.runs()] == [("dense", 1), ("moe", 2), ("dense", 4)]
    placed, warnings = layers.load(document(auto_partition_layer={"moe": 59}))
    assert placed.runs()[1].count == 59 and "59" in warnings[0]


def test_compressed_is_as_good_and_unknown_keys_are_told() -> None:
    said, warnings = layers.load(gzip.compress(document(memory_limit=5)))
    assert said.memory_limits is None and warnings == ["unknown key 'memory_limit' left out"]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"device_groups": [{"devices": 1, "sped": 0.1}, {}]}, "$.device_groups[]"),
        ({"pool": [{"sped": 2}]}, "$.pool[]"),
        ({"sub_models": [{"name": "a", "layers": ["dense", "moe"], "sped": 1}]}, "$.sub_models[]"),
        ({"offload_link": {"out_mb_per_time": 1, "in_mb_per_time": 1, "sped": 1}}, "$.offload_link"),
        ({"layer_types": ["dense", {"name": "dense", "count": 2, "sped": 1}]}, "$.layer_types[]"),
        ({"layers_description": [DENSE | {"sped": 1}]}, "$.layers_description[]"),
        (
            {"layers_description": [DENSE | {"recompute_levels": [{"name": "a", "memory": 1, "coef": 0, "sped": 1}]}]},
            "$.layers_description[].recompute_levels[]",
        ),
        (
            {
                "layers_description": [DENSE | {"offload_levels": [{"name": "a", "memory": 0, "moved": 1, "sped": 1}]}],
                "offload_link": {"out_mb_per_time": 1, "in_mb_per_time": 1},
            },
            "$.layers_description[].offload_levels[]",
        ),
    ],
)
def test_unknown_keys_are_told_at_any_depth(changes: dict[str, Any], where: str) -> None:
    assert f"unknown key 'sped' of {where} left out" in layers.load(document(**changes))[1]


def test_the_least_that_is_needed() -> None:
    said, warnings = layers.load(b'{"layers_description": [{"name": "b", "type": "BODY", "forward_time": 2}]}')
    assert warnings == [] and said.runs() == (Run(name="b", count=1),)
    one = layers.typed(said.bodies[0])
    assert (one.forward, one.backward, one.parameter_mb, one.levels) == (2, 4, 0, ())


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"layers_description": [DENSE, DENSE]}, "$.layers_description[1]", "a second time"),
        ({"layers_description": [{"name": "b", "type": "BODY"}]}, "$.layers_description[0]", "neither time"),
        ({"layer_types": ["h"]}, "$.layer_types[0]", "no BODY"),
        ({"layer_types": ["moe"], "auto_partition_layer": {"moe": 4}}, "$.layer_types", "lists 1 moe"),
        ({"memory_limits": [-1]}, "$.memory_limits[0]", ">= 0"),
        ({"memory_limits": []}, "$.memory_limits", ">= 1"),
        ({"device_groups": [{"speed": 0}]}, "$.device_groups[0].speed", "> 0"),
        ({"device_groups": [{}], "pool": [{}]}, "$.pool", "beside device_groups"),
        ({"sub_models": [{"name": "a", "layers": ["moe", "dense"]}]}, "$.sub_models", "moe, dense"),
        (
            {"layers_description": [DENSE | {"offload_levels": [{"name": "all", "memory": 0}]}]},
            "$.layers_description[0].offload_levels",
            "how fast",
        ),
        (
            {
                "layers_description": [DENSE | {"offload_levels": [{"name": "full", "memory": 0}]}],
                "offload_link": {"out_mb_per_time": 1, "in_mb_per_time": 1},
            },
            "$.layers_description[0].offload_levels[0].name",
            "a level already",
        ),
        ({"offload_link": {"out_mb_per_time": 0, "in_mb_per_time": 1}}, "$.offload_link.out_mb_per_time", "> 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_remedy(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(DocumentError) as refused:
        layers.load(document(**changes))
    assert refused.value.field == field and words in refused.value.problem and refused.value.remedy
