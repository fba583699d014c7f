"""`hyperopt check` and `hyperopt interleave` as a pipeline calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from hyperopt.documents import write
from hyperopt.profile import Measured, Profile
from tests.cli.command import Cli
from tests.gate.test_check import grown
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
    assert cli("check", "--self-test") == 64  # of nothing, nothing follows
    write(samples(noisy(0, 10, 1.0)), tmp_path / "good.json")
    write(samples(noisy(0, 10, 1.0, 0.5)), tmp_path / "noisy.json")
    write(worked_example(), tmp_path / "profile.json")
    both = ("--baseline", tmp_path / "profile.json", "--candidate", tmp_path / "profile.json")
    assert cli("check", "--samples", tmp_path / "good.json", "--self-test") == 1
    assert cli("check", *both, "--self-test") == 1 and "and found" in cli.err
    write(worked_example(model="another"), tmp_path / "other.json")
    other = ("--baseline", tmp_path / "profile.json", "--candidate", tmp_path / "other.json")
    assert cli("check", *other) == cli("check", *other, "--self-test") == 2 and "different model" in cli.out
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


def test_metrics_of_which_more_is_better_have_a_file_of_their_own(cli: Cli, tmp_path: Path) -> None:
    """github-action-benchmark takes one direction a file, and refuses an empty list."""
    rates = msgspec.structs.replace(noisy(0, 10, 1.0), name="tokens", better="higher")
    write(samples(rates), tmp_path / "rates.json")
    write(samples(rates, noisy(1, 10, 1.0)), tmp_path / "both.json")
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    options = ("--action-benchmark", small, "--action-benchmark-bigger", large)
    assert cli("check", "--samples", tmp_path / "both.json", *options) == 0
    for at, name in ((small, "step 1"), (large, "tokens")):
        assert [entry["name"] for entry in json.loads(at.read_text())] == [name]
        at.unlink()
    assert cli("check", "--samples", tmp_path / "rates.json", *options) == 0
    assert large.exists() and not small.exists() and f"{small}: not written" in cli.err
    assert cli("check", "--samples", tmp_path / "both.json", "--action-benchmark", small) == 0
    assert "tokens" in cli.err and "--action-benchmark-bigger" in cli.err


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
        ("--self-test",),
        ("--self-test", "-o", "nowhere/answer.json"),
        ("--self-test", "--level", "0"),
        ("--tolerance-percent", "inf"),
        ("--tolerance-percent", "nan"),
        ("--max-slowdown-percent", "inf"),
        ("--link", "javascript:alert(1)"),
        ("--link", "https://x.example/\n::error"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, options: tuple[str, ...]) -> None:
    assert cli("check", *options) == 64
    assert len(cli.err.splitlines()) == 1


def test_no_file_is_written_twice_or_over_what_is_read(cli: Cli, tmp_path: Path) -> None:
    at, out = tmp_path / "profile.json", tmp_path / "out.json"
    write(worked_example(), at)
    before = at.read_bytes()
    both = ("check", "--baseline", at, "--candidate", at)
    assert cli(*both, "-o", at) == cli(*both, "-o", out, "--junit", tmp_path / "." / "out.json") == 64
    assert at.read_bytes() == before and not out.exists()
    assert cli(*both, "-o", "/dev/null", "--junit", "/dev/null") == 0


def test_a_command_that_is_none_is_bad_input(cli: Cli, tmp_path: Path) -> None:
    for none in ("echo 'x", ""):
        at = ("--candidate", "true", "--pairs", "1", "-o", tmp_path / "samples.json")
        assert cli("interleave", "--baseline", none, *at) == 64
        assert len(cli.err.splitlines()) == 1


def test_memory_alone_is_judged_where_that_is_asked(cli: Cli, tmp_path: Path) -> None:
    """Two captures of the same code, which one run each cannot tell apart in time."""
    for name, step in (("before", 1000.0), ("after", 1900.0)):
        measured = msgspec.structs.replace(worked_example(), measured=Measured(step_us=step))
        write(measured, tmp_path / f"{name}.json")
    both = ("check", "--baseline", tmp_path / "before.json", "--candidate", tmp_path / "after.json")
    assert cli(*both) == 2
    assert cli(*both, "--memory-only") == 0 and "only memory was asked for" in cli.out
    write(samples(noisy(0, 10, 1.0)), tmp_path / "samples.json")
    assert cli("check", "--samples", tmp_path / "samples.json", "--memory-only") == 64


def test_a_folder_is_a_run_with_a_profile_a_rank(cli: Cli, tmp_path: Path) -> None:
    for side, more in (("before", 0), ("after", 7)):
        (tmp_path / side).mkdir()
        for rank in (0, 1):
            profile = grown(worked_example(rank=rank, world_size=2), 0, more * rank)
            write(profile, tmp_path / side / f"rank{rank}.json.gz")
    both = ("check", "--baseline", tmp_path / "before", "--candidate", tmp_path / "after")
    assert cli(*both) == 1 and "rank 1: replayed peak" in cli.out and "pass: rank 0" in cli.out
    (tmp_path / "after" / "again.json.gz").write_bytes((tmp_path / "after" / "rank1.json.gz").read_bytes())
    assert cli(*both) == 64 and "twice" in cli.err
    (tmp_path / "none").mkdir()
    assert cli("check", "--baseline", tmp_path / "none", "--candidate", tmp_path / "after") == 64


@pytest.mark.parametrize(
    "name", ["x\n::error file=a::b", "::add-mask::a", "##[error]x", "##vso[task.fail]", "x\r::stop"]
)
def test_names_give_no_orders_to_who_reads_the_output(cli: Cli, tmp_path: Path, name: str) -> None:
    """A runner obeys `::...` at the start of a line (spaces before it do not count), and `##[` anywhere."""

    def named(by: int) -> Profile:
        profile = grown(worked_example(), 0, by)
        storages = tuple(msgspec.structs.replace(s, name=name) for s in profile.storages)
        operators = tuple(msgspec.structs.replace(o, layer=name, name=name) for o in profile.operators)
        return msgspec.structs.replace(profile, storages=storages, operators=operators)

    write(named(0), tmp_path / "before.json")
    write(named(1), tmp_path / "after.json")
    metric = msgspec.structs.replace(noisy(0, 10, 1.3), name=name)
    write(samples(metric), tmp_path / "samples.json")
    both = ("--baseline", tmp_path / "before.json", "--candidate", tmp_path / "after.json")
    for more in ((), ("--json",)):
        assert cli("check", *both, "--samples", tmp_path / "samples.json", *more) == 1
        for line in (cli.out + cli.err).splitlines():
            assert not line.strip().startswith("::") and "##[" not in line and "##vso" not in line
    assert cli.answer["metrics"][0]["name"] == name


def test_neither_a_terminal_nor_a_closed_pipe_makes_a_verdict(tmp_path: Path) -> None:
    """Exit 1 is a regression, and nothing else is."""
    at = tmp_path / "samples.json"
    write(samples(msgspec.structs.replace(noisy(0, 10, 1.0), name="größe ✓")), at)
    command = [sys.executable, "-m", "hyperopt", "check", "--samples", str(at)]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(command, capture_output=True, env=ascii_only, check=False)
    assert ran.returncode == 0 and b"gr\\xf6" in ran.stdout
    read, write_end = os.pipe()
    os.close(read)
    ran = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert ran.returncode == 0 and b"Traceback" not in ran.stderr and b"Exception" not in ran.stderr


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    ("arguments", "streams", "codes"),
    [
        ("--samples good.json", ">/dev/full", {74}),
        ("--samples good.json --json", ">/dev/full", {74}),
        ("--samples good.json", ">/dev/full 2>&1", {74}),
        ("--samples good.json", "2>/dev/full", {0}),
        ("--samples bad.json", ">/dev/full", {74}),
        ("--samples bad.json", "2>/dev/full", {1}),  # a regression, and the answer says so
        ("--samples typo.json", "2>/dev/full", {0}),  # with a warning
        ("--samples nofile", "2>/dev/full", {64}),
        ("--nosuch", "2>/dev/full", {64}),
        ("--help", ">/dev/full", {74}),
        ("--samples good.json", ">&-", {74}),
        ("--samples good.json", "2>&-", {0}),
        ("--samples nofile", "2>&-", {64}),
        ("--samples nofile", ">&- 2>&-", {64}),
    ],
)
def test_what_cannot_be_written_is_no_regression(tmp_path: Path, arguments: str, streams: str, codes: set[int]) -> None:
    for name, slower in (("good", 1.0), ("bad", 1.3)):
        write(samples(noisy(0, 10, slower)), tmp_path / f"{name}.json")
    plain = json.loads((tmp_path / "good.json").read_text())
    (tmp_path / "typo.json").write_text(json.dumps(plain | {"beter": 1}))
    shell = f'"{sys.executable}" -m hyperopt check {arguments} {streams}'
    ran = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode in codes, ran.stderr
    assert "Traceback" not in ran.stderr + ran.stdout and "Exception" not in ran.stderr


def test_a_fault_of_ours_is_70(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("ours")

    write(samples(noisy(0, 10, 1.0)), tmp_path / "samples.json")
    monkeypatch.setattr("hyperopt.cli.gate.check_samples", fault)
    assert cli("check", "--samples", tmp_path / "samples.json") == 70
    assert "ZeroDivisionError" in cli.err and "please report" in cli.err


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
