"""`hyperopt shard-model`: from files to a plan, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from hyperopt.cost.features import rows_of
from hyperopt.cost.messages import Messages
from hyperopt.cost.model import fit
from hyperopt.cost.work import Table
from hyperopt.documents import write
from hyperopt.plan import load
from hyperopt.profile import load as load_profile
from hyperopt.replay import replay
from hyperopt.testing import generate
from tests.cli.command import Cli
from tests.cost.synthetic import device

MESH = {
    "format": "hyperopt.mesh/1",
    "shape": [2, 4],
    "axes": ["dp", "tp"],
    "levels": [{"devices": 8, "bytes_per_s": 2e11, "latency_us": 2}],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shard")
    write(generate("llama3-8b-optimizer-states", 300), folder / "step.json.gz")
    (folder / "mesh.json").write_text(json.dumps(MESH))
    return folder


def test_a_profile_becomes_a_plan_with_everything_beside(cli: Cli, files: Path) -> None:
    code = cli("shard-model", files / "step.json.gz", "--mesh", files / "mesh.json", "-o", files / "plan.json",
               "--strategy", files / "strategy.json", "--layouts", files / "layouts.json",
               "--device-profile", files / "device.json.gz", "--rivals", "--time-limit", "20", "--json")  # fmt: skip
    assert code == 0, cli.err
    said = cli.answer
    plan, warnings = load((files / "plan.json").read_bytes())
    assert not warnings
    assert plan.sharding is not None
    assert plan.sharding.mesh.axes == ("dp", "tp")
    assert plan.predicted is not None
    assert plan.predicted.step_us == pytest.approx(said["step_us"])
    assert plan.bound is not None
    assert plan.bound.step_us <= plan.predicted.step_us
    assert said["compute_us"] + said["communication_us"] == pytest.approx(said["step_us"])
    assert all(rival["step_us"] >= said["step_us"] for rival in said["rivals"].values() if rival)
    profile, _ = load_profile((files / "device.json.gz").read_bytes())
    assert replay(profile).step_us <= said["step_us"]
    assert json.loads((files / "strategy.json").read_text())["parallel_strategy_item"]
    assert set(json.loads((files / "layouts.json").read_text())) == {"layouts", "hyperparallel"}
    assert "taken to" in cli.err


def test_in_words_it_names_layouts_and_communication(cli: Cli, files: Path) -> None:
    code = cli("shard-model", files / "step.json.gz", "--mesh", files / "mesh.json", "--time-limit", "20")
    assert code == 0
    assert "layer*.down" in cli.out
    assert "/tp" in cli.out
    assert "sends" in cli.out
    assert "bound" in cli.out


def test_links_that_a_cost_model_has_measured_are_priced_by_it(cli: Cli, files: Path, tmp_path: Path) -> None:
    known = Messages(latency_us=3.5, bytes_per_s=1e11, sizes=9, error=0.02)
    fitted = fit(rows_of(device(1, 30), Table.load()))
    write(structs.replace(fitted, messages={"HCCS": known}), tmp_path / "model.json")
    named = {**MESH, "levels": [{**MESH["levels"][0], "name": "HCCS"}]}  # type: ignore[dict-item]
    (tmp_path / "mesh.json").write_text(json.dumps(named))
    arguments = ["shard-model", files / "step.json.gz", "--model", tmp_path / "model.json", "--time-limit", "5"]
    assert cli(*arguments, "--mesh", tmp_path / "mesh.json", "-o", tmp_path / "plan.json") == 0
    plan, _ = load((tmp_path / "plan.json").read_bytes())
    assert plan.sharding is not None
    assert (plan.sharding.mesh.levels[0].latency_us, plan.sharding.mesh.levels[0].bytes_per_s) == (3.5, 1e11)
    assert "fitted to 9 measured sizes" in cli.err
    assert cli(*arguments, "--mesh", files / "mesh.json") == 0
    assert "no level has the name of a link" in cli.err


def test_what_cannot_fit_ends_with_three_and_bytes(cli: Cli, files: Path) -> None:
    code = cli("shard-model", files / "step.json.gz", "--mesh", files / "mesh.json", "--memory", "1000000",
               "--time-limit", "5", "--json")  # fmt: skip
    assert code == 3
    said = cli.answer
    assert said["status"] == "infeasible"
    assert said["shortfall"] > 0


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("mesh.json", b'{"format": "hyperopt.mesh/1", "shape": [2], "axes": ["a", "b"], "levels": []}', "levels"),
        ("step.mindir", b"nothing", "mindspore.export"),
    ],
)
def test_bad_files_are_one_clear_error(
    cli: Cli, files: Path, tmp_path: Path, name: str, content: bytes, named: str
) -> None:
    bad = tmp_path / name
    bad.write_bytes(content)
    model, mesh = (files / "step.json.gz", bad) if name == "mesh.json" else (bad, files / "mesh.json")
    code = cli("shard-model", model, "--mesh", mesh)
    assert code == 64
    assert named in cli.err
    assert len(cli.err.strip().splitlines()) == 1
