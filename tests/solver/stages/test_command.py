"""`hyperopt stages`: its keys, its exit codes, and one line that says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperopt import plan as plans

DOCUMENT: dict[str, Any] = {
    "layers_description": [
        {"name": "first", "type": "HEAD", "time": 10, "nb_layer": 1, "memory_parameter": 5},
        {"name": "layer", "type": "BODY", "time": 3, "nb_layer": 12, "memory_parameter": 1, "memory_activation": 4,
         "memory_recompute": 1},
        {"name": "last", "type": "TAIL", "time": 20, "nb_layer": 1, "memory_parameter": 5},
    ],
    "memory_limits": [40, 40, 40, 40],
}  # fmt: skip


def run(folder: Path, document: Any, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "model.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    command = [sys.executable, "-m", "hyperopt", "stages", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_answer_in_json(tmp_path: Path) -> None:
    done = run(tmp_path, DOCUMENT, "--stages", "4", "--micro-batches", "8", "--json", "--time-limit", "20")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["status"] == "optimal" and told["gap"] == 0 and told["makespan"] == told["bound"] == told["value"]
    assert sum(n for stage in told["layers"] for n in stage) == 12 and min(map(min, told["layers"])) >= 1
    counts = [sum(level[s][0] for level in told["recompute"].values()) for s in range(4)]
    assert counts == told["layers_per_stage"] and told["offload"] == {}
    assert all(peak <= 40 for peak in told["peak"]) and told["limits"] == [40.0] * 4
    plan = {"format": "hyperopt.plan/1"} | told["plan"]
    assert len(plans.load(json.dumps(plan).encode())[0].stages or ()) == 4


def test_the_answer_in_lines_with_a_time_line_and_virtual_stages(tmp_path: Path) -> None:
    drawn = tmp_path / "line.svg"
    options = ("--stages", "2", "--micro-batches", "4", "--virtual", "2", "--timeline", str(drawn))
    document = DOCUMENT | {"memory_limits": 100}
    done = run(tmp_path, document, *options, "-o", str(tmp_path / "out.json"), "--time-limit", "20")
    assert done.returncode == 0, done.stderr
    assert "makespan" in done.stdout and done.stdout.count("stage ") == 2
    assert drawn.read_text().startswith("<svg") and json.loads((tmp_path / "out.json").read_text())["chunks"] == 2


@pytest.mark.parametrize(
    ("changes", "options", "code", "words"),
    [
        ({"memory_limits": [5, 5, 5, 5]}, (), 3, "no split fits the memory limits: raise these by"),
        ({"memory_limits": [40, 40]}, (), 64, "$.memory_limits: 2 entries for 4 stages"),
        ({}, ("--min-layers", "4"), 3, "12 layers are fewer than 4"),
        ({}, ("--schedule", "zigzag"), 64, "not one of gpipe, 1f1b, interleaved, zero-bubble"),
        ({}, ("--objective", "best"), 64, "not one of makespan, slowest, folded"),
        ({}, ("--virtual", "2", "--schedule", "1f1b"), 64, "interleaved"),
        ({"layers_description": []}, (), 64, "$.layers_description"),
        ({}, ("--timeline", "/nowhere/line.svg"), 64, "--timeline: there is no folder /nowhere"),
        ({}, ("-o", "/nowhere/out.json"), 64, "-o: there is no folder /nowhere"),
        ({"layer_types": ["layer", "other"]}, (), 64, "$.layer_types[1]"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    tmp_path: Path, changes: dict[str, Any], options: tuple[str, ...], code: int, words: str
) -> None:
    done = run(tmp_path, DOCUMENT | changes, "--stages", "4", "--micro-batches", "8", *options)
    assert done.returncode == code and words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_broken_file(tmp_path: Path) -> None:
    done = run(tmp_path, "{", "--stages", "4", "--micro-batches", "8")
    assert done.returncode == 64 and "no json" in done.stderr
