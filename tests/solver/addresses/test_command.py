"""`hyperopt allocate`: what it writes, says and returns, and that bad input leaves nothing behind."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from hyperopt.cli import main

TWO = "id,lower,upper,size\na,0,2,8\nb,1,3,4\n"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["hyperopt", "allocate", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "buffers.csv"
    path.write_text(TWO)
    return path


def test_offsets_are_written(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    assert run(monkeypatch, given, "-o", out, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["peak_bytes"], told["lower_bound_bytes"], told["gap"], told["status"]) == (12, 12, 0.0, "proven")
    with out.open() as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["id", "lower", "upper", "size", "offset"]
    assert sorted(int(row["offset"]) for row in rows) in ([0, 4], [0, 8])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["buffers.csv", "out.csv"]


def test_a_capacity_below_the_bound_is_proven_impossible(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, given, "-o", tmp_path / "out.csv", "--capacity", 11) == 3
    assert "at least 12 are needed (proven)" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_a_capacity_that_was_not_reached_is_told_apart(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # With labels nothing is searched to the end: the load of 8 is below what pairwise labels force.
    pairs = "a,0,1,8,x;y\nb,1,2,8,x;z\nc,2,3,8,y;z\n"
    given.write_text("id,lower,upper,size,apart\n" + pairs)
    assert run(monkeypatch, given, "-o", tmp_path / "out.csv", "--capacity", 20, "--time-limit", 0.05) == 4
    assert "the best found" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_bad_input_is_one_line_and_nothing_written(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given.write_text(TWO + "c,1,1,4\n")
    assert run(monkeypatch, given, "-o", tmp_path / "out.csv") == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "column upper, line 4" in said.err
    assert not (tmp_path / "out.csv").exists()
