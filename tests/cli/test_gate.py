"""`hyperopt check` and `hyperopt interleave` as a pipeline calls them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hyperopt.documents import write
from tests.cli.command import Cli
from tests.gate.test_pytest_benchmark import file
from tests.gate.test_throughput import noisy, samples
from tests.samples import worked_example


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.2, 1), (1.05, 2)])
def test_samples_have_an_exit_code_for_each_verdict(cli: Cli, tmp_path: Path, slower: float, code: int) -> None:
    at = tmp_path / "samples.json.gz"
    write(samples(noisy(0, 10, slower)), at)
    assert cli("check", "--samples", at) == code
    assert cli.out.startswith(("pass", "regression", "inconclusive")[code])
    assert cli("check", "--samples", at, "--json") == code
    assert cli.answer["metrics"][0]["n"] == 10 and cli.answer["memory"]["status"] == "not judged"
    assert cli("check", "--samples", at, "--tolerance-percent", "40") == 0


def test_every_format_is_written_whatever_the_verdict(cli: Cli, tmp_path: Path) -> None:
    write(samples(noisy(0, 10, 1.2)), tmp_path / "samples.json")
    write(worked_example(), tmp_path / "profile.json")
    names = ("answer.json", "junit.xml", "comment.md", "bencher.json", "action.json")
    where = [str(tmp_path / name) for name in names]
    flags = ("-o", "--junit", "--markdown", "--bencher", "--action-benchmark")
    options = [part for pair in zip(flags, where, strict=True) for part in pair]
    both = ("--baseline", tmp_path / "profile.json", "--candidate", tmp_path / "profile.json")
    assert cli("check", *both, "--samples", tmp_path / "samples.json", *options, "--link", "https://x.example") == 1
    assert json.loads(Path(where[0]).read_text())["verdict"] == "regression"
    assert ElementTree.parse(where[1]).getroot()[0].get("failures") == "1"
    assert "(https://x.example)" in Path(where[2]).read_text()
    assert json.loads(Path(where[3]).read_text())["example"]["peak-memory"]["value"] > 0
    assert [entry["name"] for entry in json.loads(Path(where[4]).read_text())] == ["replayed peak", "step 0"]


def test_the_self_test_fails_where_the_gate_works_and_says_where_it_is_blind(cli: Cli, tmp_path: Path) -> None:
    assert cli("check", "--self-test") == 1 and "and found" in cli.err
    write(samples(noisy(0, 10, 1.0)), tmp_path / "good.json")
    write(samples(noisy(0, 10, 1.0, 0.5)), tmp_path / "noisy.json")
    write(worked_example(), tmp_path / "profile.json")
    both = ("--baseline", tmp_path / "profile.json", "--candidate", tmp_path / "profile.json")
    assert cli("check", "--samples", tmp_path / "good.json", "--self-test") == 1
    assert cli("check", *both, "--self-test") == 1
    assert cli("check", *both, "--samples", tmp_path / "noisy.json", "--self-test") == 2
    assert "not found" in cli.err and cli.out.startswith("inconclusive")


def test_benchmark_files_of_both_sides(cli: Cli, tmp_path: Path) -> None:
    options: list[object] = []
    for i in range(8):
        for side, seconds in (("baseline", 1.0), ("candidate", 1.3)):
            at = tmp_path / f"{side}{i}.json"
            at.write_bytes(file(seconds + i / 1000)[1])
            options += [f"--{side}-benchmark", at]
    assert cli("check", *options, "--interleaved") == 1
    assert cli("check", *options) == 1 and "weaker" in cli.out
    assert cli("check", *options[:4]) == 2
    assert cli("check", *options[:2]) == 64


def test_interleaved_commands_become_samples(cli: Cli, tmp_path: Path) -> None:
    at, script = tmp_path / "samples.json", tmp_path / "step.py"
    script.write_text("import sys; print('{\"step_us\": ' + sys.argv[1] + '}')")
    command = f"{sys.executable} {script}"
    both = ("--baseline", f"{command} 100", "--candidate", f"{command} 120")
    assert cli("interleave", *both, "--pairs", "7", "-o", at) == 0
    assert "pair 7 of 7" in cli.err
    assert cli("check", "--samples", at) == 1
    assert cli("interleave", "--baseline", "false", "--candidate", "true", "--pairs", "7", "-o", at) == 64
    assert cli("interleave", "--baseline", "true", "--candidate", "true", "--noise-percent", "90", "-o", at) == 64


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--samples", "nowhere.json"),
        ("--candidate", "nowhere.json"),
        ("--self-test", "--samples", "nowhere.json"),
        ("--self-test", "-o", "nowhere/answer.json"),
        ("--self-test", "--level", "0"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, options: tuple[str, ...]) -> None:
    assert cli("check", *options) == 64
    assert len(cli.err.splitlines()) == 1


def test_the_history_of_a_branch_names_the_commits_around_a_change(cli: Cli, tmp_path: Path) -> None:
    answers = []
    for i in range(16):
        write(samples(noisy(0, 10, 1.0 if i < 9 else 1.3, 0.001)), tmp_path / "samples.json")
        answers.append(tmp_path / f"commit{i:02d}.json")
        assert cli("check", "--samples", tmp_path / "samples.json", "-o", answers[-1]) in (0, 1)
    assert cli("history", *answers, "--json") == 0
    (found,) = cli.answer
    assert (found["series"], found["before"], found["after"]) == ("step 0", "commit08", "commit09")
    assert cli("history", *answers) == 0 and "between commit08 and commit09" in cli.out
    assert cli("history", *answers[:5]) == 0 and cli.out.startswith("no change")
    renamed = tmp_path / "named.json"
    assert cli("check", "--samples", tmp_path / "samples.json", "--commit", "1f3c", "-o", renamed) == 1
    assert json.loads(renamed.read_text())["commit"] == "1f3c" and "at" in json.loads(renamed.read_text())
    assert cli("history", *answers[:9], *[renamed] * 7) == 0 and "between commit08 and 1f3c" in cli.out
    assert cli("history", tmp_path / "samples.json") == 64 and cli.err.startswith("hyperopt: samples.json")
