from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiler.read import layers
from profiler.read.findings import UnreadableError
from tests.conftest import ABSENT, SHARED_DATA

HEAD = {"name": "Embedding", "type": "HEAD", "time": 10, "nb_layer": 1, "memory_parameter": 900}
BODY = {
    "name": "Decoder",
    "type": "BODY",
    "time": 100.5,
    "nb_layer": 12,
    "memory_parameter": 17,
    "memory_activation": 99,
    "memory_recompute": 3,
    "recompute_coef": 0.25,
}
TAIL = {"name": "Norm", "type": "TAIL", "time": 20, "nb_layer": 1, "memory_parameter": 500}

DRY = """
pipeline_config: {pipeline_num: 4, num_layer: 8, offset: [1, 0, 0, -1]}
recompute_config: {recompute: false, select_recompute: [2, 2, 1, 0]}
memory_usage:
  head_memory: 100
  tail_memory: 50.5
  body_memories: {stage_id: [1, 2], memories: [70, 60]}
"""


def description(**changes: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "name": "made_up",
        "pre_defined_layer": {"Embedding": 0, "Norm": -1},
        "auto_partition_layer": {"Decoder": 12},
        "layers_description": [HEAD, BODY, TAIL],
    }
    return tree | changes


def load(folder: Path, content: str | dict[str, Any], name: str = "") -> layers.LayerModel:
    text = content if isinstance(content, str) else json.dumps(content)
    path = folder / (name or ("model.yaml" if isinstance(content, str) else "model.json"))
    path.write_text(text)
    assert layers.is_layers(path)
    return layers.load(path)


def test_layers_and_their_levels(tmp_path: Path) -> None:
    model = load(tmp_path, description())
    assert (model.name, model.fixed, model.counts) == ("made_up", {"Embedding": 0, "Norm": -1}, {"Decoder": 12})
    head, body, _ = model.layers
    assert head.levels == () and head.parameter_mb == 900.0
    assert (body.count, body.forward, body.backward) == (12, 100.5, 201.0)
    assert [(level.name, level.memory_mb, level.extra_backward) for level in body.levels] == [
        ("none", 99.0, 0.0),
        ("full", 3.0, 0.25),
    ]
    assert model.warnings == ()


def test_two_counts_for_one_layer_are_told_and_neither_is_corrected(tmp_path: Path) -> None:
    model = load(tmp_path, description(auto_partition_layer={"Decoder": 6}))
    assert model.warnings == ("model.json: auto_partition_layer says 6 Decoder, its description nb_layer 12",)
    assert model.counts["Decoder"] == 6 and model.layers[1].count == 12


def test_unknown_keys_are_left_out_and_told(tmp_path: Path) -> None:
    model = load(tmp_path, description(layers_description=[HEAD, BODY | {"swap": 1}, TAIL]))
    assert model.warnings == ("model.json: unknown key 'swap' of $.layers_description[] left out",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers_description": []}, "layers_description"),
        ({"layers_description": [HEAD, BODY | {"time": -1}, TAIL]}, r"layers_description\[1\].time"),
        ({"layers_description": [HEAD, BODY | {"nb_layer": 0}, TAIL]}, r"layers_description\[1\].nb_layer"),
        ({"layers_description": [HEAD, BODY | {"type": "LEG"}, TAIL]}, r"layers_description\[1\].type"),
        ({"layers_description": [HEAD, BODY, BODY, TAIL]}, "describes Decoder a second time"),
        ({"layers_description": [HEAD, BODY | {"time": None}, TAIL]}, "neither time nor forward_time"),
        ({"layers_description": [HEAD, BODY | {"time": float("nan")}, TAIL]}, "no json"),
        ({"auto_partition_layer": {"Encoder": 3}}, "names Encoder"),
        ({"pre_defined_layer": {"Embedding": 2}}, "pre_defined_layer"),
        ({"auto_partition_layer": {"Decoder": -3}}, "auto_partition_layer"),
    ],
)
def test_a_wrong_description_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnreadableError, match=f"^model.json.*{words}"):
        load(tmp_path, description(**changes))


def test_a_dry_run(tmp_path: Path) -> None:
    model = load(tmp_path, DRY)
    run = model.dry_run
    assert run is not None and model.warnings == ()
    assert (run.stages, run.layers, run.offset, run.times) == (4, 8, ((1, 0, 0, -1),), None)
    assert run.recomputed == {"select_recompute": ((2, 2, 1, 0),)}
    assert [(body.stage, body.memory_mb) for body in run.bodies] == [(1, 70.0), (2, 60.0)]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("offset: [1, 0, 0, -1]", "offset: [1, 0, 0]", "offset has 3 entries for pipeline_num 4"),
        ("stage_id: [1, 2]", "stage_id: [1]", "not as many memories as stage_id"),
        ("stage_id: [1, 2]", "stage_id: [1, 4]", "stage 4 of 4"),
        ("head_memory: 100", "head_memory: .nan", "head_memory"),
        ("head_memory: 100", "head_memory: .inf", "head_memory"),
        ("head_memory: 100", "head_memory: -1", "head_memory"),
        ("pipeline_num: 4", "pipeline_num: 0", "pipeline_num"),
        ("head_memory: 100", "head_memory: " + "9" * 5000, "model.yaml"),
        ("head_memory: 100", "head_memory: !!python/object/apply:os.system [id]", "no yaml"),
        ("head_memory: 100", "head_memory: 100\n  x: &a [1]\n  y: [*a, *a]", "aliases"),
        ("head_memory: 100", "head_memory: " + "[" * 5000, "no yaml"),
    ],
)
def test_a_wrong_dry_run_is_refused_by_name(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        load(tmp_path, DRY.replace(old, new))


def test_offsets_that_place_another_number_of_layers_are_told(tmp_path: Path) -> None:
    model = load(tmp_path, DRY.replace("num_layer: 8", "num_layer: 9"))
    assert model.warnings == ("model.yaml: offset places 8 of num_layer 9 (2 a stage and chunk, and the offsets)",)


def test_other_documents_are_no_layers(tmp_path: Path) -> None:
    for name, text in (("a.json", '{"layers": []}'), ("b.yaml", "memory_usage: 3"), ("c.txt", DRY)):
        (tmp_path / name).write_text(text)
        assert not layers.is_layers(tmp_path / name)
    (tmp_path / "long.json").write_text('{"layers_description": []}' + " " * layers.MAX_BYTES)
    assert not layers.is_layers(tmp_path / "long.json")


@pytest.mark.skipif(not SHARED_DATA.exists(), reason=ABSENT)
def test_upstreams_own_files() -> None:
    folder = SHARED_DATA / "pipeline_balance"
    models = {path.name: layers.load(path) for path in folder.iterdir() if layers.is_layers(path)}
    assert set(models) == {"sim.json", "test.json", "init_demo.yaml", "init_demopp4.yaml"}
    assert models["test.json"].warnings == () and models["test.json"].counts == {"LLamaDecodeLayer": 96}
    assert "says 96 LLamaDecodeLayer, its description nb_layer 192" in models["sim.json"].warnings[0]
    chunks = models["init_demopp4.yaml"].dry_run
    assert chunks is not None and len(chunks.offset) == 2 and chunks.times == (1.0, 1.0, 2.0)
