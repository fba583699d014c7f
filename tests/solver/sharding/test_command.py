"""`hyperopt shard`: what it writes, says and returns, and that bad input leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from hyperopt.cli import main
from tests.solver.sharding.cases import document, optimum


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["hyperopt", "shard", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    assert isinstance(left.value.code, int)
    return left.value.code


def test_a_solution_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = tmp_path / "given.json.gz", tmp_path / "out.json"
    given.write_bytes(gzip.compress(json.dumps(document()).encode()))
    assert run(monkeypatch, given, "--time-limit", 20, "--seed", 1, "-o", out) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cost"] == told["bound"] == optimum(document())
    assert (told["feasible"], told["gap"], told["moment"], told["shortfall"]) == (True, 0.0, None, 0)
    solution = json.loads(out.read_text())
    assert len(solution) == 3 and all(isinstance(s, int) for s in solution)


def test_what_does_not_fit_is_said_with_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = tmp_path / "given.json", tmp_path / "out.json"
    given.write_text(json.dumps(document(usage_limit=3)))
    assert run(monkeypatch, given, "-o", out) == 3
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["feasible"], told["moment"], told["shortfall"]) == (False, 1, 1)
    assert "short of 1 bytes at moment 1: no choice fits (proven)" in said.err
    assert not out.exists()


def test_bad_input_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = tmp_path / "given.json", tmp_path / "out.json"
    given.write_text(json.dumps(document(edges_nodes=[[0, 1], [1, 7]])))
    assert run(monkeypatch, given, "-o", out) == 64
    said = capsys.readouterr().err
    assert "$.problem.edges.nodes[1]: there is no node 7 (nodes are numbered 0 to 2)" in said
    assert said.count("\n") == 1
    assert not out.exists()
