"""`hyperopt cost`: fit, predict, and what is said where it cannot be done."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hyperopt import profile as profiles
from hyperopt.documents import write
from hyperopt.profile import Profile
from tests.cli.command import Cli
from tests.cost.synthetic import device, operator


@pytest.fixture
def model(cli: Cli, tmp_path: Path) -> Path:
    write(device(1, 150), tmp_path / "measured.json.gz")
    assert cli("cost", "fit", tmp_path / "measured.json.gz", "-o", tmp_path / "model.json", "--json") == 0
    assert cli.answer["device"] == "toy made up 1" and set(cli.answer["scores"]) == {"matmul", "elementwise"}
    return tmp_path / "model.json"


def test_predicted_durations_are_marked_and_the_others_kept(cli: Cli, model: Path, tmp_path: Path) -> None:
    known = operator("Add", [(333, 77), (333, 77)], [(333, 77)], 999.0)
    unknown = operator("Riddle", [(3,)], [(3,)], 7.0)
    write(Profile(operators=(known, unknown), storages=()), tmp_path / "step.json")
    assert cli("cost", "predict", model, tmp_path / "step.json", "-o", tmp_path / "out.json", "--json") == 0
    assert sum(cli.answer["sources"].values()) == 1 and sum(cli.answer["kept"].values()) == 1
    out = profiles.load((tmp_path / "out.json").read_bytes())[0]
    assert [o.predicted for o in out.operators][1] == "" and out.operators[1].duration_us == 7.0
    assert out.operators[0].predicted and out.operators[0].duration_us < 100 and not out.run.measured


def test_a_quantile_is_never_shorter(cli: Cli, model: Path, tmp_path: Path) -> None:
    write(device(2, 60), tmp_path / "step.json")
    assert cli("cost", "predict", model, tmp_path / "step.json", "--json") == 0
    likely = cli.answer["after_us"]
    assert cli("cost", "predict", model, tmp_path / "step.json", "--quantile", "0.95", "--json") == 0
    assert cli.answer["after_us"] > likely
    assert cli("cost", "predict", model, tmp_path / "step.json", "--quantile", "0.2") == 64
    assert "not between 0.5 and 1" in cli.err


def test_two_devices_are_not_fitted_as_one(cli: Cli, tmp_path: Path) -> None:
    write(device(1, 20), tmp_path / "a.json")
    write(Profile(operators=device(1, 20).operators, storages=()), tmp_path / "b.json")
    assert cli("cost", "fit", tmp_path / "a.json", tmp_path / "b.json", "-o", tmp_path / "m.json") == 64
    assert "several devices" in cli.err


def test_nothing_to_learn_from_and_a_bad_table_are_one_line(cli: Cli, tmp_path: Path) -> None:
    write(Profile(operators=(), storages=()), tmp_path / "none.json")
    assert cli("cost", "fit", tmp_path / "none.json", "-o", tmp_path / "m.json") == 64
    assert "no operator with a duration" in cli.err
    (tmp_path / "own.toml").write_text("[A]\nformula = 'none such'\n")
    arguments = [tmp_path / "none.json", "-o", tmp_path / "m.json", "--operators", tmp_path / "own.toml"]
    assert cli("cost", "fit", *arguments) == 64
    assert "[A] A has family" in cli.err


def test_a_model_is_only_replaced_by_a_better_one(cli: Cli, model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    assert cli("cost", "fit", tmp_path / "measured.json.gz", "-o", model, "--current", model) == 1
    assert "nothing was measured since" in cli.out and model.read_bytes() == before


def test_drift_is_an_exit_code(cli: Cli, model: Path, tmp_path: Path) -> None:
    same, other = device(2, 90), device(2, 90)
    slow = tuple(structs.replace(o, duration_us=3 * o.duration_us) for o in other.operators)
    write(same, tmp_path / "same.json")
    write(structs.replace(other, operators=slow), tmp_path / "slow.json")
    assert cli("cost", "drift", model, tmp_path / "same.json") == 0
    assert cli("cost", "drift", model, tmp_path / "slow.json", "--json") == 1
    assert cli.answer["drifted"] and cli.answer["outside"] > 0.5
    write(Profile(operators=same.operators, storages=()), tmp_path / "elsewhere.json")
    assert cli("cost", "drift", model, tmp_path / "elsewhere.json") == 64
