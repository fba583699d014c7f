"""`hyperopt cost`: fit, predict, and what is said where it cannot be done."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hyperopt import profile as profiles
from hyperopt.documents import write
from hyperopt.profile import Profile
from tests.cli.command import Cli
from tests.cost.steps import step
from tests.cost.synthetic import device, operator
from tests.cost.test_messages import document


@pytest.fixture
def model(cli: Cli, tmp_path: Path) -> Path:
    write(device(1, 150), tmp_path / "measured.json.gz")
    assert cli("cost", "fit", tmp_path / "measured.json.gz", "-o", tmp_path / "model.json", "--json") == 0
    assert cli.answer["device"] == "toy made up 1" and set(cli.answer["scores"]) == {"matmul", "elementwise"}
    return tmp_path / "model.json"


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was fitted once, for the commands that use one."""
    from hyperopt.cost import residual
    from hyperopt.cost.features import rows_of
    from hyperopt.cost.model import fit
    from hyperopt.cost.work import Table

    path = tmp_path_factory.mktemp("cost") / "model.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residual, "OPTIONS", {**residual.OPTIONS, "max_iter": 40, "learning_rate": 0.2})
        write(fit(rows_of(device(1, 150), Table.load())), path)
    return path


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


def test_a_bad_model_is_not_blamed_on_the_quantile(cli: Cli, ready: Path, tmp_path: Path) -> None:
    write(device(2, 20), tmp_path / "step.json")
    (tmp_path / "junk.json").write_text("no model")
    assert cli("cost", "predict", tmp_path / "junk.json", tmp_path / "step.json") != 0
    assert "not JSON" in cli.err and "--quantile" not in cli.err
    (tmp_path / "zero.json").write_bytes(
        ready.read_bytes().replace(b'"shared":{"latency_us":', b'"shared":{"latency_us":-')
    )
    assert cli("cost", "predict", tmp_path / "zero.json", tmp_path / "step.json") != 0
    assert "$.shared.latency_us" in cli.err and "fit the model again" in cli.err


def test_unknown_fields_of_a_model_are_warned_of_and_strange_types_are_told(
    cli: Cli, ready: Path, tmp_path: Path
) -> None:
    write(device(2, 20), tmp_path / "step.json")
    (tmp_path / "more.json").write_bytes(b'{"surprise": 1, ' + ready.read_bytes().lstrip()[1:])
    assert cli("cost", "predict", tmp_path / "more.json", tmp_path / "step.json") == 0
    assert "more.json: unknown field $.surprise left out" in cli.err and "never measured" not in cli.out
    half = tuple(structs.replace(o, dtypes=("float16",) * len(o.dtypes)) for o in device(2, 20).operators)
    write(structs.replace(device(2, 20), operators=half), tmp_path / "step.json")
    assert cli("cost", "predict", ready, tmp_path / "step.json") == 0
    assert "20 operators are of element types never measured" in cli.out


def test_a_model_of_another_device_is_said(cli: Cli, ready: Path, tmp_path: Path) -> None:
    write(device(2, 20), tmp_path / "step.json")
    assert cli("cost", "predict", ready, tmp_path / "step.json", "--json") == 0
    assert not cli.answer["other_device"] and not cli.err
    write(structs.replace(device(2, 20), device=profiles.Device(name="other")), tmp_path / "step.json")
    assert cli("cost", "predict", ready, tmp_path / "step.json", "--json") == 0
    assert cli.answer["other_device"] and "is of toy made up 1, step.json of other made up 1" in cli.err


def test_too_few_to_fit_is_said_as_the_service_says_it(cli: Cli, tmp_path: Path) -> None:
    write(device(1, 3), tmp_path / "few.json")
    assert cli("cost", "fit", tmp_path / "few.json", "-o", tmp_path / "m.json") == 64
    assert "3 groups of shapes" in cli.err and "19 are needed" in cli.err and not (tmp_path / "m.json").exists()


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


def test_what_a_model_has_predicted_or_made_up_is_not_learned_from(cli: Cli, tmp_path: Path) -> None:
    profile, other = device(1, 60), device(2, 20)
    marked = tuple(structs.replace(o, predicted="learned", duration_us=7.0) for o in other.operators)
    write(profile, tmp_path / "measured.json")
    write(structs.replace(other, operators=marked), tmp_path / "predicted.json")
    write(structs.replace(other, run=structs.replace(other.run, measured=False)), tmp_path / "made-up.json")
    given = [tmp_path / name for name in ("measured.json", "predicted.json", "made-up.json")]
    assert cli("cost", "fit", *given, "-o", tmp_path / "m.json", "--json") == 0
    with_them = cli.answer["data_digest"]
    assert "predicted.json: 20 operators are left out: predicted by a model" in cli.err
    assert "made-up.json: 20 operators are left out: their run was not measured" in cli.err
    assert cli("cost", "fit", given[0], "-o", tmp_path / "m.json", "--json") == 0
    assert cli.answer["data_digest"] == with_them and "left out" not in cli.err
    for command in (["fit", *given[1:], "-o", tmp_path / "none.json"], ["drift", tmp_path / "m.json", *given[1:]]):
        assert cli("cost", *command) == 64
        assert "nothing that was measured is left of 40 operators (give profiles of" in cli.err
    assert not (tmp_path / "none.json").exists()


def test_profiles_that_contradict_each_other_are_not_mixed_in_silence(cli: Cli, tmp_path: Path) -> None:
    before = device(1, 60)
    slow = tuple(structs.replace(o, duration_us=2 * o.duration_us) for o in before.operators)
    write(before, tmp_path / "before.json")
    write(structs.replace(before, operators=slow), tmp_path / "after.json")
    given = [tmp_path / "before.json", tmp_path / "after.json"]
    assert cli("cost", "fit", *given, "-o", tmp_path / "m.json") == 0
    said = "before.json contradicts after.json: 2.00 times as long later, on 60 shared signatures"
    assert said in cli.err and said in cli.out
    assert cli("cost", "fit", given[0], given[0], "-o", tmp_path / "m.json") == 0 and "contradicts" not in cli.err


def test_predictions_are_no_drift(cli: Cli, ready: Path, tmp_path: Path) -> None:
    same = device(2, 90)
    slow = tuple(structs.replace(o, duration_us=9 * o.duration_us, predicted="learned") for o in same.operators)
    write(structs.replace(same, operators=(*same.operators, *slow)), tmp_path / "half.json")
    assert cli("cost", "drift", ready, tmp_path / "half.json", "--json") == 0
    assert cli.answer["samples"] == 90 and "half.json: 90 operators are left out" in cli.err


def test_what_if_writes_a_profile_of_the_other_size_and_the_same_size_changes_nothing(
    cli: Cli, ready: Path, tmp_path: Path
) -> None:
    before, after = tmp_path / "step.json", tmp_path / "after.json"
    write(step(16, 70), before)
    assert cli("cost", "what-if", before, "--model", ready, "--batch", 32, "-o", after, "--json") == 0
    out = profiles.load(after.read_bytes())[0]
    assert [s.bytes for s in out.storages] == [s.bytes for s in step(32, 70).storages]
    assert cli.answer["peak_bytes"] > 0 and cli.answer["peak_factors"] is None and cli.answer["storages_changed"] > 5
    assert cli("cost", "what-if", before, "--model", ready, "--batch", "16=16", "-o", after) == 0
    assert profiles.load(after.read_bytes())[0] == step(16, 70)
    assert "no captures with a measured peak" in cli.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--batch", "many"), "is not NEW or OLD=NEW"),
        (("--batch", "11=22"), "no input has a batch of 11"),
        (("--dtype", "float32"), "is not OLD=NEW"),
        (("--shard", "heads=2"), "hyperopt shard-model cuts any axis"),
        (("--shard", "batch=2"), "no mesh is given"),
    ],
)
def test_what_if_refuses_in_one_line(
    cli: Cli, ready: Path, tmp_path: Path, options: tuple[str, str], said: str
) -> None:
    write(step(16, 70), tmp_path / "step.json")
    assert cli("cost", "what-if", tmp_path / "step.json", "--model", ready, "-o", tmp_path / "x.json", *options) == 64
    assert said in cli.err and not (tmp_path / "x.json").exists()


def test_messages_and_peaks_are_kept_in_the_model(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "communication.json").write_bytes(document(1.5, 2e10, (0.01, 0.1, 1.0, 8.0)))
    write(device(1, 60), tmp_path / "measured.json")
    arguments = [tmp_path / "measured.json", "-o", tmp_path / "m.json", "--messages", tmp_path / "communication.json"]
    assert cli("cost", "fit", *arguments, "--json") == 0
    assert cli.answer["messages"]["HCCS"]["sizes"] == 4 and cli.answer["peaks"] == {}


def test_a_robust_plan_tells_the_price_of_safety(cli: Cli, ready: Path, tmp_path: Path) -> None:
    from hyperopt.profile import Links
    from hyperopt.replay import replay

    links = Links(d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9, latency_us=5.0)
    small = step(16, 70)
    small = structs.replace(small, device=structs.replace(small.device, links=links, host_bytes=10**9))
    write(small, tmp_path / "step.json")
    budget = int(0.97 * replay(small).peak_bytes)
    arguments = [
        "plan",
        tmp_path / "step.json",
        "--hbm-bytes",
        budget,
        "--work-limit",
        200,
        "-o",
        tmp_path / "plan.json",
    ]
    assert cli(*arguments, "--model", ready, "--quantile", 0.95) == 0
    assert "safety:" in cli.err and "fits in 400 of 400" in cli.err
    assert "95% is between" in cli.err and "with probability 0.9" in cli.err
    assert cli(*arguments, "--model", ready) == 64 and "go together" in cli.err
    assert cli(*arguments, "--model", ready, "--quantile", 0.3) == 64 and "not between 0.5 and 1" in cli.err
    write(structs.replace(small, device=structs.replace(small.device, name="other")), tmp_path / "step.json")
    assert cli(*arguments, "--model", ready, "--quantile", 0.95) == 64 and "model of the profile's device" in cli.err
