"""The command `traces`: the forms that outside checks call."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hyperopt.cli import main
from hyperopt.profile import load
from hyperopt.testing import TRACES


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hyperopt", "traces", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert isinstance(left.value.code, int)
    return left.value.code


def test_it_writes_a_profile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "step.json.gz"
    assert run(monkeypatch, "llama3-8b", "--operators", "500", "--seed", "3", "-o", str(path), "--json") == 0
    profile, warnings = load(path.read_bytes())
    told = json.loads(capsys.readouterr().out)
    assert told["profile"] == str(path) and told["figures"]["operators"] == len(profile.operators) and not warnings


def test_without_output_the_profile_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "llama3-8b-decode", "--operators", "500") == 0
    assert load(capsys.readouterr().out.encode())[0].run.name == "llama3-8b-decode-500-0"


def test_the_list_names_every_trace_and_its_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--list", "--json") == 0
    assert json.loads(capsys.readouterr().out).keys() == TRACES.keys()
    assert run(monkeypatch, "--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(TRACES)
    assert run(monkeypatch, "--list", "--operators", "500") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(TRACES)
    assert run(monkeypatch, "--list", "--operators", "500", "--json") == 0
    assert json.loads(capsys.readouterr().out)["llama3-8b"]["peak_bytes"] > 2**30


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "llama3-8b-decode"),
        (["none", "--operators", "500"], "no trace 'none'"),
        (["llama3-8b"], "how many operators"),
        (["llama3-8b", "--operators", "9"], "300 to 300000"),
        (["--list", "--operators", "9"], "300 to 300000"),
        (["llama3-8b", "--operators", "500", "-o", "/no/such/folder/x"], "no folder"),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert run(monkeypatch, *arguments) == 64
    assert says in capsys.readouterr().err


def test_the_reference_has_every_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "traces.md").read_text()
    assert [name for name in TRACES if f"`{name}`" not in page] == []
