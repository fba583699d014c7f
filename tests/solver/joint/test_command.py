"""`hyperopt place`: the plan it writes, the stages' steps beside it, and one line that says what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hyperopt import plan as plans
from hyperopt import profile as profiles
from hyperopt.documents import write
from hyperopt.replay import replay
from hyperopt.validate import validate
from tests.solver.joint.samples import sample

MESH: dict[str, Any] = {
    "format": "hyperopt.mesh/1",
    "shape": [2, 4],
    "axes": ["node", "die"],
    "levels": [{"devices": 4, "bytes_per_s": 1.5e11, "latency_us": 5}, {"bytes_per_s": 5e10, "latency_us": 10}],
}
HBM = 520_000_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    made = sample(layers=3)
    write(made, folder / "sample.json")
    unphased = tuple(msgspec.structs.replace(o, phase="other") for o in made.operators)
    write(msgspec.structs.replace(made, operators=unphased), folder / "unphased.json")
    (folder / "mesh.json").write_text(json.dumps(MESH))
    return folder


def run(
    folder: Path, *options: str, layers: str = "layer0=8", hbm: int = HBM, sample: str = "sample.json"
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "hyperopt", "place", str(folder / sample), "--mesh", str(folder / "mesh.json"),
        "--layers", layers, "--micro-batches", "8", "--hbm-bytes", str(hbm), "--time-limit", "20", *options,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_plan_holds_for_every_stage(files: Path, tmp_path: Path) -> None:
    out, steps = tmp_path / "plan.json", tmp_path / "steps"
    done = run(files, "--stages", "2,4", "-o", str(out), "--steps", str(steps))
    assert done.returncode == 0, done.stderr
    plan, warnings = plans.load(out.read_bytes())
    assert not warnings
    assert plan.stages is not None and plan.sharding is not None and plan.predicted is not None
    assert sorted(rank for stage in plan.stages for rank in stage.devices) == list(range(8))
    assert [layer for stage in plan.stages for layer in stage.layers] == list(range(8))
    assert plan.sharding.mesh.devices == len(plan.stages[0].devices)
    peaks = []
    for s, stage in enumerate(plan.stages):
        step, _ = profiles.load((steps / f"stage{s}.profile.json.gz").read_bytes())
        alone, _ = plans.load((steps / f"stage{s}.plan.json.gz").read_bytes())
        assert alone.residency == stage.residency
        assert step.digest == plan.provenance["stage_steps"][s]
        assert not validate(step, alone, HBM)
        peaks.append(replay(step, alone, HBM).peak_bytes)
    assert max(peaks) == plan.predicted.peak_bytes <= HBM
    assert plan.bound is not None and plan.bound.step_us <= plan.predicted.step_us


@pytest.mark.parametrize(
    ("options", "changes", "code", "words"),
    [
        ((), {"layers": "layer9=8"}, 64, "no forward operator has the layer 'layer9'"),
        ((), {"layers": "layer0"}, 64, "--layers: 'layer0' is not LABEL=COUNT"),
        (("--stages", "3"), {}, 64, "--stages: '3': 8 devices and 8 layers"),
        (("--stages", "8"), {"hbm": 2_000_000}, 3, "--hbm-bytes"),
        ((), {"sample": "unphased.json"}, 64, "$.operators[*].phase: no operator is of the forward pass"),
    ],
)
def test_one_line_says_what_is_wrong(
    files: Path, tmp_path: Path, options: tuple[str, ...], changes: dict[str, Any], code: int, words: str
) -> None:
    out = tmp_path / "plan.json"
    done = run(files, *options, "-o", str(out), **changes)
    assert done.returncode == code, done.stderr
    assert words in done.stderr.splitlines()[-1]
    assert not out.exists()


def test_what_is_short_is_said_in_bytes(files: Path) -> None:
    done = run(files, "--stages", "2", "--json", hbm=20_000_000)
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert told["status"] == "none found"
    found = re.search(r"2 x .* needs at least (\d+) bytes a device, (\d+) more than given", told["why"])
    assert found is not None and int(found[1]) - int(found[2]) == 20_000_000


def test_labels_that_cannot_follow_each_other_are_one_clear_error(files: Path) -> None:
    done = run(files, layers="head=6")
    assert done.returncode == 64 and "'head'" in done.stderr and "layer0, layer1" in done.stderr
    assert "Traceback" not in done.stderr
