"""`hyperopt programs`: its keys, its exit codes, and one line that says what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hyperopt import plan as plans
from hyperopt import programs as descriptions
from tests.solver.programs.examples import VISION


def run(folder: Path, document: Any, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder / "step.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    command = [sys.executable, "-m", "hyperopt", "programs", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_answer_in_json_and_in_lines(tmp_path: Path) -> None:
    out, line = tmp_path / "out.json", tmp_path / "line.svg"
    options = ("--time-limit", "5", "-o", str(out), "--timeline", str(line))
    done = run(tmp_path, VISION, "--json", *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["makespan"] >= told["bound"] and json.loads(out.read_text()) == told
    assert line.read_text().startswith("<svg")
    plan = {"format": "hyperopt.plan/1"} | told["plan"]
    stages = plans.load(json.dumps(plan).encode())[0].stages or ()
    assert len(stages) == len(told["groups"])
    done = run(tmp_path, VISION | {"extra": 1}, "--time-limit", "2")
    assert done.returncode == 0 and "unknown key 'extra'" in done.stderr
    assert done.stdout.startswith("makespan") and "group 0:" in done.stdout


def test_what_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    tight = VISION | {"pool": [{"name": "die", "devices": 16, "memory": 20_000}]}
    for document, code, words in ((tight, 3, "lack"), ("{", 64, "no json"), ({"programs": []}, 64, "$.programs")):
        done = run(tmp_path, document)
        assert done.returncode == code and words in done.stderr
        assert done.stderr.count("\n") == 1
    done = run(tmp_path, VISION, "--timeline", "/nowhere/line.svg")
    assert done.returncode == 64 and "--timeline: there is no folder /nowhere" in done.stderr


def test_unknown_keys_are_told_at_any_depth() -> None:
    document = json.loads(json.dumps(VISION))
    document["link"] = {"mb_per_time": 1, "sped": 1}
    document["swap"] = {"out_mb_per_time": 1, "in_mb_per_time": 1, "sped": 1}
    document["pool"][0]["sped"] = document["programs"][0]["sped"] = 1
    document["programs"][0]["layers_description"] = [{"name": "b", "type": "BODY", "time": 1, "sped": 1}]
    call = next(c for c in document["calls"] if c.get("after"))
    call["sped"] = call["after"][0]["sped"] = 1
    places = ["link", "swap", "pool[]", "programs[]", "programs[].layers_description[]", "calls[]", "calls[].after[]"]
    _, warnings = descriptions.load(json.dumps(document).encode())
    assert sorted(warnings) == sorted(f"unknown key 'sped' of $.{place} left out" for place in places)
