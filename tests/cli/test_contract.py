"""The forms that outside checks call: exit codes and the shapes of JSON answers (issue 2)."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hyperopt.__main__ import main as console
from hyperopt.cli import files, front
from hyperopt.documents import write
from hyperopt.plan import Action, Budget, Plan, Residency
from hyperopt.profile import Profile
from solver.residency.incumbent import Incumbent
from tests.cli.command import Cli
from tests.samples import MIB, worked_example


@pytest.fixture
def terminal() -> Iterator[None]:
    """Ctrl-C as at a terminal, also where these tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def profile(tmp_path: Path) -> str:
    write(worked_example(), tmp_path / "profile.json.gz")
    return str(tmp_path / "profile.json.gz")


def test_plan_replay_and_validate_agree(cli: Cli, profile: str, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    assert cli("plan", profile, "--hbm-bytes", str(640 * MIB), "--time-limit", "20", "-o", plan, "--json") == 0
    assert cli.answer["predicted"]["step_us"] == 100_000.0 and cli.answer["bound"]["status"] == "optimal"
    assert cli("replay", profile, plan, "--json") == 0
    assert cli.answer == {
        "step_us": 100_000.0,
        "peak_bytes": 640 * MIB,
        "stall_us": 0.0,
        "tier_peak_bytes": {"host": 128 * MIB},
        "feasible": True,
    }
    assert cli("validate", profile, plan, "--json") == 0
    assert cli.answer == []


def test_without_output_the_plan_itself_is_the_answer(cli: Cli, profile: str) -> None:
    assert cli("plan", profile, "--hbm-bytes", str(640 * MIB), "--time-limit", "20") == 0
    assert cli.answer["format"] == "hyperopt.plan/1"


def test_standard_output_by_its_name_holds_the_plan_alone(profile: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hyperopt", "plan", profile, "--hbm-bytes", str(640 * MIB), "--time-limit", "20"]
    with (tmp_path / "out.json").open("wb") as out:
        subprocess.run([*command, "-o", "/dev/stdout"], stdout=out, check=True)
    assert json.loads((tmp_path / "out.json").read_bytes())["format"] == "hyperopt.plan/1"


def test_replay_without_a_plan_has_no_limit_unless_one_is_given(cli: Cli, profile: str) -> None:
    assert cli("replay", profile, "--json") == 0
    assert cli.answer["peak_bytes"] == 768 * MIB and cli.answer["feasible"] is True
    assert cli("replay", profile, "--hbm-bytes", str(700 * MIB), "--json") == 3
    assert cli.answer["feasible"] is False
    assert_no_figures(cli)
    assert cli.answer["oom"]["op"] == 4 and cli.answer["oom"]["short_bytes"] == 68 * MIB


@pytest.mark.parametrize("budget", [0, 1, 100 * MIB])
def test_what_cannot_fit_is_infeasible_and_says_what_would(cli: Cli, profile: str, budget: int) -> None:
    assert cli("plan", profile, "--hbm-bytes", str(budget), "--time-limit", "5") == 3
    assert cli.answer["lower_bound_bytes"] > budget
    assert {"lower_bound_bytes", "reachable_bytes", "operator"} <= cli.answer.keys()


def test_validate_names_violations(cli: Cli, profile: str, tmp_path: Path) -> None:
    release = Action(op=2, when="after", kind="release", storage=1)
    write(Plan(residency=Residency(actions=(release,))), tmp_path / "bad.json")
    assert cli("validate", profile, str(tmp_path / "bad.json"), "--json") == 1
    assert [violation["code"] for violation in cli.answer] == ["read-of-dropped"]
    assert cli("replay", profile, str(tmp_path / "bad.json"), "--json") == 64
    assert cli.answer["violations"][0]["code"] == "read-of-dropped"
    assert_no_figures(cli)


def assert_no_figures(cli: Cli) -> None:
    """What replay answers where nothing ran: all keys, no figures, and one line for people."""
    keys = ("step_us", "peak_bytes", "stall_us", "tier_peak_bytes")
    assert [cli.answer[key] for key in keys] == [None] * 4 and cli.answer["feasible"] is False
    assert cli.err.startswith("hyperopt: ") and len(cli.err.splitlines()) == 1


def test_replay_lists_every_violation(cli: Cli, profile: str, tmp_path: Path) -> None:
    releases = tuple(Action(op=op, when="after", kind="release", storage=id) for op, id in ((2, 1), (3, 0)))
    write(Plan(residency=Residency(actions=releases)), tmp_path / "bad.json")
    assert cli("replay", profile, str(tmp_path / "bad.json"), "--json") == 64
    assert [violation["storage"] for violation in cli.answer["violations"]] == [1, 0]
    assert_no_figures(cli)
    assert cli("replay", profile, str(tmp_path / "bad.json")) == 64
    assert cli.out == "" and "1 more" in cli.err


@pytest.mark.parametrize("name", ["longest-gap", "offload-all", "recompute-all"])
def test_baselines_are_legal_plans(cli: Cli, profile: str, tmp_path: Path, name: str) -> None:
    plan = str(tmp_path / "plan.json")
    code = cli("baseline", name, profile, "--hbm-bytes", str(700 * MIB), "-o", plan, "--json")
    if code == 0:
        assert cli("validate", profile, plan) == 0
    else:
        assert code == 3 and cli.answer["oom"]["short_bytes"] > 0


def test_pareto_answers_with_plans_that_replay(cli: Cli, profile: str, tmp_path: Path) -> None:
    front, plan = str(tmp_path / "front.json"), str(tmp_path / "plan.json")
    assert cli("pareto", profile, "--points", "5", "--time-limit", "20", "-o", front, "--json") == 0
    assert cli.answer == json.loads(Path(front).read_bytes())
    points = cli.answer["points"]
    assert len(points) == 5 and points[-1]["hbm_bytes"] == 768 * MIB
    assert cli.answer["lower_bound_bytes"] == cli.answer["least_hbm_bytes"] == points[0]["hbm_bytes"] == 512 * MIB
    assert {"step_us", "peak_bytes", "bound_step_us", "status", "moved_bytes", "actions"} <= points[0].keys()
    for point in points:
        Path(plan).write_text(json.dumps(point["plan"]))
        assert cli("replay", profile, plan, "--hbm-bytes", str(point["hbm_bytes"]), "--json") == 0
        assert cli.answer["step_us"] == point["step_us"] and cli.answer["peak_bytes"] == point["peak_bytes"]
    assert [point["step_us"] for point in points] == sorted((point["step_us"] for point in points), reverse=True)
    assert cli("pareto", profile, "--points", "3", "--time-limit", "20") == 0
    assert len(cli.out.splitlines()) == 5 and "512.0" in cli.out


def test_the_least_peak_within_a_slowdown(cli: Cli, profile: str) -> None:
    """At the unlimited step's own speed 640 MiB are needed, at 10 % more 512 MiB are enough."""
    common = ("plan", profile, "--objective", "min_peak", "--time-limit", "20", "--hbm-bytes")
    assert cli(*common, str(768 * MIB), "--max-slowdown", "0") == 0
    assert cli.answer["explain"][0]["least_hbm_bytes"] == cli.answer["budget"]["hbm_bytes"] == 640 * MIB
    assert cli(*common, str(768 * MIB), "--max-slowdown", "0.1") == 0
    assert cli.answer["explain"][0]["least_hbm_bytes"] == cli.answer["explain"][0]["lower_bound_bytes"] == 512 * MIB
    output = ("-o", Path(profile).with_name("least.json"))
    assert cli(*common, str(768 * MIB), "--max-slowdown", "0.1", *output) == 0
    assert "no plan so fast needs less HBM (proven)" in cli.out
    assert cli(*common, str(768 * MIB), "--max-slowdown", "0", "--time-limit", "0", *output) == 0
    assert "feasible; no plan so fast needs less than 512.00 MiB of HBM (proven), 768.00 MiB is in hand" in cli.out
    assert cli(*common, str(600 * MIB), "--max-slowdown", "0") == 3
    assert cli.answer["reachable_bytes"] == 640 * MIB and "slowdown" in cli.answer["reliefs"][0]["relief"]


def test_a_node_cuts_the_host_budget_and_refuses_more(cli: Cli, profile: str, tmp_path: Path) -> None:
    node, plan = str(tmp_path / "node.json"), str(tmp_path / "plan.json")
    told = {"format": "hyperopt.node/1", "memory_bytes": 2048 * MIB, "pinned_overhead": 1.6, "ranks": 10}
    told |= {"d2h_bytes_per_s": 16 << 30, "h2d_bytes_per_s": 16 << 30}
    Path(node).write_text(json.dumps(told))
    common = ("plan", profile, "--hbm-bytes", str(640 * MIB), "--time-limit", "20", "--node", node)
    assert cli(*common, "-o", plan, "--json") == 0
    assert "cut" in cli.err and str(128 * MIB) in cli.err
    predicted = cli.answer["predicted"]
    assert cli("replay", profile, plan, "--node", node, "--json") == 0
    assert cli.answer["step_us"] == predicted["step_us"]
    assert cli("replay", profile, plan, "--json") == 0
    assert cli.answer["step_us"] <= predicted["step_us"] and cli.answer["peak_bytes"] <= 640 * MIB
    assert cli("validate", profile, plan) == 0
    assert cli("pareto", profile, "--points", "2", "--time-limit", "20", "--node", node, "--json") == 0
    assert cli.answer["points"][0]["plan"]["provenance"]["node"]["ranks"] == 10
    assert cli(*common, "--tier-bytes", f"host={128 * MIB + 1}") == 64
    assert "--tier-bytes host" in cli.err and f"at most {128 * MIB} bytes" in cli.err


def test_keep_all_runs_out_of_memory(cli: Cli, profile: str) -> None:
    assert cli("baseline", "keep-all", profile, "--hbm-bytes", str(700 * MIB)) == 3
    assert cli("baseline", "keep-all", profile, "--hbm-bytes", str(768 * MIB)) == 0


def test_check_has_an_exit_code_for_each_verdict(cli: Cli, profile: str, tmp_path: Path) -> None:
    def other(name: str, changed: Profile) -> str:
        write(changed, tmp_path / name)
        return str(tmp_path / name)

    example = worked_example()
    larger = msgspec.structs.replace(example.storages[0], bytes=600 * MIB)
    costly = other("costly.json", msgspec.structs.replace(example, storages=(larger, *example.storages[1:])))
    apart = other("apart.json", msgspec.structs.replace(example, run=msgspec.structs.replace(example.run, model="b")))
    assert cli("check", "--baseline", profile, "--candidate", profile, "--json") == 0
    assert cli.answer["verdict"] == "pass"
    assert cli("check", "--baseline", profile, "--candidate", costly, "--json") == 1
    assert cli.answer["memory"]["difference_bytes"] == 88 * MIB and cli.answer["reasons"]
    assert cli("check", "--baseline", profile, "--candidate", costly, "--memory-threshold", "88M") == 0
    assert cli("check", "--baseline", profile, "--candidate", costly, "--memory-threshold", "11%") == 1
    assert cli("check", "--baseline", profile, "--candidate", apart) == 2
    assert cli.out.startswith("inconclusive: different model")


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--baseline", "nowhere", "--candidate", "nowhere"),
        ("check", "--baseline", "PROFILE"),
        ("check", "--baseline", "PROFILE", "--candidate", "PROFILE", "--memory-threshold", "much"),
        ("check", "--baseline", "PROFILE", "--candidate", "PROFILE", "--tolerance-percent", "-1"),
        ("plan", "PROFILE"),
        ("plan", "PROFILE", "--hbm-bytes", "-1"),
        ("plan", "PROFILE", "--hbm-bytes", "9", "--tier-bytes", "moon=3"),
        ("plan", "PROFILE", "--hbm-bytes", "9", "--tier-bytes", "host=1", "--tier-bytes", "host=2"),
        ("plan", "PROFILE", "--hbm-bytes", "9", "--objective", "beauty"),
        ("plan", "PROFILE", "--hbm-bytes", "9007199254740993"),
        ("plan", "PROFILE", "--hbm-bytes", "9", "--tier-bytes", "host=9007199254740993"),
        ("plan", "PROFILE", "--hbm-bytes", "900000000", "-o", "nowhere/plan.json"),
        ("plan", "PROFILE", "--hbm-bytes", "9", "--seed", "-1"),
        ("plan", "PROFILE", "--hbm-bytes", "9", "--seed", "2147483648"),
        ("baseline", "keep-all", "PROFILE", "--hbm-bytes", "9007199254740993"),
        ("baseline", "keep-all", "PROFILE", "--hbm-bytes", "900000000", "-o", "/tmp"),
        ("replay", "nowhere.json"),
        ("replay", "PROFILE", "PROFILE"),
        ("validate", "PROFILE", "PROFILE"),
        ("baseline", "unheard-of", "PROFILE", "--hbm-bytes", "9"),
        ("capture", "-o", "nowhere/profile.json"),
        ("capture", "-o", "p.json", "--model", "no-colon"),
        ("apply", "PROFILE", "PROFILE"),
        ("apply", "PROFILE"),
        ("unheard-of",),
        (),
    ],
)
def test_usage_errors_and_bad_input_end_in_64_with_one_line(cli: Cli, profile: str, arguments: tuple[str, ...]) -> None:
    assert cli(*(profile if argument == "PROFILE" else argument for argument in arguments)) == 64
    told = cli.err.strip().splitlines()
    assert told and told[-1].startswith("hyperopt: ") and "Traceback" not in cli.err
    assert cli.out == "" or not arguments  # without a command: the help, and the same code


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--baseline", "PROFILE", "--candidate", "profile-1"),
        ("show", "plan-1"),
        ("upload", "PROFILE", "--wait", "0"),
    ],
)
def test_a_server_that_is_away_is_69(cli: Cli, profile: str, arguments: tuple[str, ...]) -> None:
    given = (profile if argument == "PROFILE" else argument for argument in arguments)
    assert cli(*given, "--server", "http://127.0.0.1:9") == 69
    assert cli.err.startswith("hyperopt: no answer from http://127.0.0.1:9") and len(cli.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda text: text[: len(text) // 2], "$"),
        (lambda text: text.replace("hyperopt.profile/1", "hyperopt.profile/2"), "$.format"),
        (lambda text: text.replace('"duration_us":10000.0', '"duration_us":-1', 1), "$.operators[0].duration_us"),
        (lambda text: text.replace('"id":2', '"id":1', 1), "$.storages[2].id"),
    ],
)
def test_a_bad_profile_is_named_by_field(cli: Cli, tmp_path: Path, spoil: Any, field: str) -> None:
    text = msgspec.json.encode(worked_example()).decode()
    assert spoil(text) != text
    (tmp_path / "bad.json").write_text(spoil(text))
    assert cli("replay", str(tmp_path / "bad.json"), "--json") == 64
    assert cli.err.startswith(f"hyperopt: {field}")


def test_times_without_storages_are_not_planned(cli: Cli, tmp_path: Path) -> None:
    bare = tuple(msgspec.structs.replace(o, reads=(), writes=()) for o in worked_example().operators)
    write(Profile(operators=bare, storages=()), tmp_path / "timing.json")
    assert cli("replay", str(tmp_path / "timing.json"), "--json") == 0
    assert cli("plan", str(tmp_path / "timing.json"), "--hbm-bytes", "9") == 64
    assert cli("baseline", "keep-all", str(tmp_path / "timing.json"), "--hbm-bytes", "9") == 64
    assert cli.err.startswith("hyperopt: $.storages")


@pytest.mark.parametrize("package", ["ortools", "mindspore", "sqlalchemy", "fastapi"])
def test_a_missing_extra_is_one_line_with_the_remedy(profile: str, package: str) -> None:
    arguments = {
        "ortools": ["plan", profile, "--hbm-bytes", "700000000"],
        "mindspore": ["capture", "-o", "/dev/null"],
        "sqlalchemy": ["db", "current", "--data-dir", "/tmp"],
        "fastapi": ["serve", "--data-dir", "/tmp"],
    }[package]
    code = (
        "import sys; sys.modules.update({sys.argv[1]: None}); del sys.argv[1]; "
        "from hyperopt.cli import main; main()"
    )
    told = subprocess.run([sys.executable, "-c", code, package, *arguments], capture_output=True, text=True)
    assert told.returncode == 64, told.stderr
    (line,) = told.stderr.splitlines()
    extra = "mindspore" if package == "mindspore" else "server"
    assert line.startswith("hyperopt: ") and "pip install" in line and f"[{extra}]'" in line


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version") == 0
    assert cli.out.startswith("hyperopt-supernode 0.")


def test_the_budget_of_the_plan_holds_unless_another_is_given(cli: Cli, profile: str, tmp_path: Path) -> None:
    write(Plan(budget=Budget(hbm_bytes=700 * MIB)), tmp_path / "plan.json")
    assert cli("replay", profile, str(tmp_path / "plan.json"), "--json") == 3
    assert cli("replay", profile, str(tmp_path / "plan.json"), "--hbm-bytes", str(768 * MIB), "--json") == 0


def test_the_command_line_starts_without_the_heavy_packages() -> None:
    code = (
        "import sys, hyperopt.cli; heavy = {'fastapi', 'sqlalchemy', 'dbos', 'ortools', 'sklearn', 'mindspore'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_after_the_solver_mindspore_still_loads_in_this_process() -> None:
    """Tests of both share a process: tests/conftest.py sees to it."""
    import mindspore
    import ortools.sat.python.cp_model

    assert mindspore.__version__ and ortools.sat.python.cp_model


def test_a_report_is_one_file(cli: Cli, profile: str, tmp_path: Path) -> None:
    write(Plan(budget=Budget(hbm_bytes=768 * MIB)), tmp_path / "plan.json")
    figures = {"peak_bytes": 5, "excluded_bytes": 1, "resident_peak_bytes": 9, "step_us": 1.0, "step_us_spread": 0.0}
    (tmp_path / "run.json").write_text(json.dumps(figures | {"losses": [1.0], "log": None}))
    at = (profile, str(tmp_path / "plan.json"), "-o", str(tmp_path / "report.html"))
    assert cli("report", *at, "--before", str(tmp_path / "run.json")) == 0
    assert "768.00 MiB" in (tmp_path / "report.html").read_text()
    assert cli("report", *at, "--after", profile) == 64
    write(Plan(budget=Budget(hbm_bytes=1)), tmp_path / "plan.json")
    assert cli("report", *at) == 64 and "out of memory" in cli.err


@pytest.mark.parametrize("command", ["plan", "min_peak", "pareto"])
def test_interrupted_it_ends_with_what_it_has(
    cli: Cli, profile: str, monkeypatch: pytest.MonkeyPatch, command: str, terminal: None
) -> None:
    """Ctrl-C in the midst of a search: the best plan so far, and the code of an interrupted command."""
    asked = False

    def interrupted(self: Incumbent) -> bool:
        nonlocal asked
        if not asked:
            asked = True
            signal.raise_signal(signal.SIGINT)
        return stopped(self)

    stopped = Incumbent.stopped
    monkeypatch.setattr(Incumbent, "stopped", interrupted)
    before = signal.getsignal(signal.SIGINT)
    if command == "pareto":
        assert cli("pareto", profile, "--points", "3", "--json") == 130
        assert len(cli.answer["points"]) + len(cli.answer["infeasible"]) == 3
    else:
        objective = () if command == "plan" else ("--objective", "min_peak", "--max-slowdown", "0.05")
        budget = (640 if command == "plan" else 768) * MIB
        assert cli("plan", profile, "--hbm-bytes", str(budget), *objective, "--json") == 130
        assert cli.answer["format"] == "hyperopt.plan/1"
    assert "interrupted: ending with the best plan so far" in cli.err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("command", ["plan", "pareto"])
def test_interrupted_before_the_search_it_answers_too(
    cli: Cli, profile: str, monkeypatch: pytest.MonkeyPatch, command: str, terminal: None
) -> None:
    """While the profile is read, say: the answer is what there is, or that of exit 3."""

    def interrupted(path: Path) -> Profile:
        signal.raise_signal(signal.SIGINT)
        return read(path)

    module = files if command == "plan" else front
    read = files.read_profile
    monkeypatch.setattr(module, "read_profile", interrupted)
    asked = ("--hbm-bytes", str(640 * MIB)) if command == "plan" else ("--points", "2")
    assert cli(command, profile, *asked, "--json") == 130
    assert cli.answer and "interrupted: ending with the best plan so far" in cli.err


def test_interrupted_elsewhere_it_says_so(
    cli: Cli, profile: str, monkeypatch: pytest.MonkeyPatch, terminal: None
) -> None:
    def interrupted(path: Path) -> Profile:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "read_profile", interrupted)
    assert cli("replay", profile) == 130
    assert (cli.out, cli.err) == ("", "hyperopt: interrupted\n")


def test_interrupted_while_it_is_being_loaded_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Loading:
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "hyperopt.cli", Loading())
    with pytest.raises(SystemExit) as left:
        console()
    assert left.value.code == 130 and capsys.readouterr().err == "hyperopt: interrupted\n"


def test_a_background_job_hears_no_interrupt(
    cli: Cli, profile: str, monkeypatch: pytest.MonkeyPatch, terminal: None
) -> None:
    """A shell has what it starts in the background ignore Ctrl-C, which is meant for others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def interrupted(self: Incumbent) -> bool:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
        return stopped(self)

    stopped = Incumbent.stopped
    monkeypatch.setattr(Incumbent, "stopped", interrupted)
    assert cli("plan", profile, "--hbm-bytes", str(640 * MIB)) == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_interrupted_twice_it_ends_at_once(
    cli: Cli, profile: str, monkeypatch: pytest.MonkeyPatch, terminal: None
) -> None:
    def impatient(self: Incumbent) -> bool:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # at once: a search that has heard the first may be through by the next
        return False

    monkeypatch.setattr(Incumbent, "stopped", impatient)
    assert cli("plan", profile, "--hbm-bytes", str(640 * MIB)) == 130
    assert cli.out == "" and "Traceback" not in cli.err


def test_a_small_profile_has_figures_too(cli: Cli, tmp_path: Path) -> None:
    """Of some hundred bytes nothing is told as 0.0 MiB."""
    small = tuple(msgspec.structs.replace(s, bytes=s.bytes // MIB) for s in worked_example().storages)
    write(msgspec.structs.replace(worked_example(), storages=small), tmp_path / "small.json")
    assert cli("replay", str(tmp_path / "small.json")) == 0
    assert "peak 768 bytes at" in cli.out
    plan = str(tmp_path / "plan.json")
    assert cli("plan", str(tmp_path / "small.json"), "--hbm-bytes", "640", "-o", plan) == 0
    assert "peak 768 -> " in cli.out and " bytes, step" in cli.out
    assert cli("pareto", str(tmp_path / "small.json"), "--points", "2") == 0
    assert "HBM bytes" in cli.out and " 768 " in cli.out


@pytest.mark.parametrize(("number", "remedy"), [(errno.ENOENT, "path that exists"), (errno.ENOSPC, "make room")])
def test_what_the_system_says_of_a_file_names_it_and_the_remedy(
    cli: Cli, profile: str, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fails(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "read_bytes", fails)
    assert cli("replay", profile) == 64
    assert cli.err.startswith(f"hyperopt: {profile}: {os.strerror(number).lower()} (") and remedy in cli.err
