"""The demo repository, and the shell in the templates, run as a pipeline would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from hyperopt.documents import write
from tests.gate.test_throughput import noisy, samples

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> list[str]:
    spec = spec_from_file_location("demo", ROOT / "examples" / "ci" / "build.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    commits: list[str] = module.build(folder)
    return commits


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With this checkout's `hyperopt` and this `python` first."""
    (tmp_path / "bin").mkdir()
    for name, call in (("hyperopt", f'"{sys.executable}" -m hyperopt "$@"'), ("python", f'"{sys.executable}" "$@"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nexec {call}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    python_path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PATH": path, "PYTHONPATH": python_path}


def test_the_second_commit_fails_and_the_third_passes(tmp_path: Path, environment: dict[str, str]) -> None:
    demo = tmp_path / "demo"
    first, second, third = build(demo)

    def judged(commit: str) -> tuple[int, dict[str, object]]:
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=demo, check=True)
        ran = subprocess.run(["./check.sh", first], cwd=demo, env=environment, capture_output=True, text=True)
        assert ran.returncode in (0, 1, 2), ran.stderr
        answer: dict[str, object] = json.loads((demo / ".hyperopt" / "check.json").read_text())
        return ran.returncode, answer

    code, answer = judged(second)
    memory = answer["memory"]
    assert code == 1 and answer["verdict"] == "regression" and isinstance(memory, dict)
    assert 100 * memory["difference_bytes"] / memory["baseline_peak_bytes"] == pytest.approx(12, abs=0.5)
    assert {(group["layer"], group["kind"]) for group in memory["groups"]} == {
        (f"layer{i}", "activation") for i in range(8)
    }
    comment = (demo / ".hyperopt" / "comment.md").read_text()
    assert "activation of layer" in comment and ElementTree.parse(demo / ".hyperopt" / "junit.xml")
    code, answer = judged(third)
    assert code == 0 and answer["verdict"] == "pass", answer["reasons"]
    assert subprocess.run(["git", "worktree", "list"], cwd=demo, capture_output=True).stdout.count(b"\n") == 1


@pytest.fixture
def series(tmp_path: Path) -> dict[float, Path]:
    found = {}
    for slower in (1.0, 1.05, 1.3):
        found[slower] = tmp_path / f"samples {slower}.json"
        write(samples(noisy(0, 10, slower)), found[slower])
    return found


def action_step(id: str) -> dict[str, Any]:
    """The step of the Action with that id or name."""
    action = yaml.safe_load((ROOT / "ci" / "action.yml").read_text())
    found: dict[str, Any] = next(one for one in action["runs"]["steps"] if id in (one.get("id"), one["name"]))
    return found


def run_action(folder: Path, environment: dict[str, str], **given: str) -> subprocess.CompletedProcess[str]:
    """The check of the Action with those inputs, as GitHub runs `shell: bash`."""
    action = yaml.safe_load((ROOT / "ci" / "action.yml").read_text())
    step = action_step("check")
    told = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
    told |= {name.replace("_", "-"): value for name, value in given.items()}
    asked = {}
    for variable, expression in step["env"].items():
        name = expression.removeprefix("${{ inputs.").removesuffix(" }}")
        asked[variable] = told.get(name, told.get(variable, "https://ci.example/1"))
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(shell, cwd=folder, env=environment | asked | files, capture_output=True, text=True)


def obeyed(printed: str) -> list[str]:
    """Lines that the runner takes for commands: none between ::stop-commands::WORD and ::WORD::."""
    found, word = [], None
    for line in printed.splitlines():
        if word is not None:
            word = None if line == f"::{word}::" else word
        elif line.startswith("::stop-commands::"):
            word = line.removeprefix("::stop-commands::")
        elif line.startswith("::"):
            found.append(line)
    assert word is None, "commands were stopped for good"
    return found


@pytest.mark.parametrize(
    ("slower", "inconclusive", "code", "verdict"),
    [
        (1.0, "warn", 0, "pass"),
        (1.3, "warn", 1, "regression"),
        (1.05, "warn", 0, "inconclusive"),
        (1.05, "fail", 2, "inconclusive"),
        (1.05, "Fail", 2, "inconclusive"),
        (None, "warn", 64, ""),
    ],
)
def test_the_action_checks_and_tells(
    tmp_path: Path,
    environment: dict[str, str],
    series: dict[float, Path],
    slower: float | None,
    inconclusive: str,
    code: int,
    verdict: str,
) -> None:
    given = {"samples": str(series[slower]) if slower else "nowhere.json", "inconclusive": inconclusive}
    ran = run_action(tmp_path, environment, **given, output=str(tmp_path / "out put"), bencher="bencher.json")
    assert ran.returncode == code, ran.stderr
    if verdict:
        assert (tmp_path / "GITHUB_OUTPUT").read_text() == f"verdict={verdict}\n"
        assert "hyperopt check" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
        assert (tmp_path / "out put" / "junit.xml").exists() and (tmp_path / "bencher.json").exists()
    warned = [line.split()[0] for line in obeyed(ran.stdout)]
    loud = "::warning" if verdict == "inconclusive" and inconclusive == "warn" else None if verdict else "::error"
    assert warned == ([loud] if loud else [])


def test_the_action_proves_that_it_would_see_one(
    tmp_path: Path, environment: dict[str, str], series: dict[float, Path]
) -> None:
    ran = run_action(tmp_path, environment, samples=str(series[1.0]), self_test="true")
    assert ran.returncode == 0 and "put in, and found" in ran.stderr
    few = tmp_path / "few.json"
    write(samples(noisy(0, 3, 1.0)), few)
    ran = run_action(tmp_path, environment, samples=str(few), self_test="true")
    assert ran.returncode == 65 and "not found" in obeyed(ran.stdout)[0]


@pytest.mark.parametrize(
    ("does", "code"), [("exit 1", 70), ("exit 2", 70), ("exit 0", 70), ("exit 137", 137), ("exit 69", 69)]
)
def test_a_crash_is_no_verdict(tmp_path: Path, environment: dict[str, str], does: str, code: int) -> None:
    """And what it prints is no command."""
    fake = tmp_path / "bin" / "hyperopt"
    fake.write_text(f"#!/bin/sh\necho '::error file=a::b'\necho '::add-mask::c' >&2\n{does}\n")
    ran = run_action(tmp_path, environment, samples="s.json")
    assert ran.returncode == code and len(obeyed(ran.stdout)) == 1
    assert obeyed(ran.stdout)[0].startswith("::error title=hyperopt check::nothing was judged")
    assert not (tmp_path / "GITHUB_OUTPUT").exists()
    ran = run_gitlab(tmp_path, environment, "script", SAMPLES="s.json")
    assert ran.returncode == code and "nothing was judged" in ran.stdout


def test_what_cannot_be_is_refused_and_is_no_regression(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "file").write_text("")
    below = str(tmp_path / "file" / "out")  # a folder that cannot be made
    ran = run_action(tmp_path, environment, samples="s.json", output=below)
    assert ran.returncode == 74 and "output folder" in obeyed(ran.stdout)[0]
    assert run_gitlab(tmp_path, environment, "script", SAMPLES="s.json", OUTPUT=below).returncode == 74
    ran = run_action(tmp_path, environment, samples="s.json", inconclusive="ignore")
    assert ran.returncode == 64 and "neither warn nor fail" in obeyed(ran.stdout)[0]
    ran = run_action(tmp_path, environment, candidate="c.json", branch="main", self_test="True")
    assert ran.returncode == 64 and "no branch" in obeyed(ran.stdout)[0]
    ran = run_gitlab(tmp_path, environment, "script", CANDIDATE="c.json", BRANCH="main", SELF_TEST="True")
    assert ran.returncode == 64 and "no BRANCH" in ran.stdout


@pytest.mark.parametrize("code", [1, 2])
def test_an_upload_that_fails_is_no_verdict(tmp_path: Path, environment: dict[str, str], code: int) -> None:
    (tmp_path / "bin" / "hyperopt").write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / "c.json").write_text("{}")
    assert run_action(tmp_path, environment, candidate="c.json", branch="main").returncode == 70
    assert run_gitlab(tmp_path, environment, "script", CANDIDATE="c.json", BRANCH="main").returncode == 70


FAKE_GH = """#!/bin/sh
echo "$@" >> calls
case "$*" in *--paginate*) cat ids ;; esac
"""


@pytest.mark.parametrize(
    ("ids", "method"), [("", "POST repos/o/r/issues/7/comments"), ("5\n6\n", "PATCH repos/o/r/issues/comments/6")]
)
def test_the_action_finds_its_own_comment(tmp_path: Path, environment: dict[str, str], ids: str, method: str) -> None:
    (tmp_path / "bin" / "gh").write_text(FAKE_GH)
    (tmp_path / "bin" / "gh").chmod(0o755)
    (tmp_path / "ids").write_text(ids)
    (tmp_path / "comment.md").write_text("### hyperopt check\n")
    given = {"GH_REPO": "o/r", "NUMBER": "7", "NAME": "night-->ly", "OUTPUT": "."}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", action_step("Comment")["run"]]
    subprocess.run(shell, cwd=tmp_path, env=environment | given, check=True)
    asked, wrote = (tmp_path / "calls").read_text().splitlines()
    assert "repos/o/r/issues/7/comments" in asked and "startswith(env.MARKER)" in asked and '"Bot"' in asked
    assert f"--method {method} -F body=@./marked.md" in wrote
    assert (tmp_path / "marked.md").read_text() == "<!-- hyperopt nightly -->\n### hyperopt check\n"


def run_gitlab(folder: Path, environment: dict[str, str], part: str, **given: str) -> subprocess.CompletedProcess[str]:
    job = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())[".hyperopt-check"]
    told = environment | job["variables"] | {"OUTPUT": str(folder / "out")} | given
    (script,) = job[part]
    return subprocess.run(["sh", "-ec", script], cwd=folder, env=told, capture_output=True, text=True)


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.3, 1), (1.05, 2)])
def test_the_gitlab_job_exits_as_the_check_does(
    tmp_path: Path, environment: dict[str, str], series: dict[float, Path], slower: float, code: int
) -> None:
    ran = run_gitlab(tmp_path, environment, "script", SAMPLES=str(series[slower]), SELF_TEST="true")
    assert ran.returncode == code, ran.stderr
    job = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())[".hyperopt-check"]
    assert job["allow_failure"] == {"exit_codes": [2]} and (tmp_path / "out" / "junit.xml").exists()


FAKE_CURL = """#!/bin/sh
echo "$@" >> calls
case "$*" in *per_page*) cat notes ;; *PUT*/9*) exit 22 ;; esac
"""


@pytest.mark.parametrize(
    ("note", "writes"),
    [
        (None, ["POST notes"]),
        ({"id": 4, "body": "something else"}, ["POST notes"]),
        ({"id": 5, "body": "<!-- hyperopt job-a -->\nold"}, ["PUT notes/5"]),
        ({"id": 9, "body": "<!-- hyperopt job-a -->\nof somebody else"}, ["PUT notes/9", "POST notes"]),
    ],
)
def test_the_gitlab_job_writes_one_note(
    tmp_path: Path, environment: dict[str, str], note: dict[str, object] | None, writes: list[str]
) -> None:
    (tmp_path / "bin" / "curl").write_text(FAKE_CURL)
    (tmp_path / "bin" / "curl").chmod(0o755)
    (tmp_path / "notes").write_text(json.dumps([note] if note else []))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "comment.md").write_text("### hyperopt check\n")
    given = {"COMMENT": "true", "CI_MERGE_REQUEST_IID": "3", "CI_PROJECT_ID": "1", "CI_JOB_NAME_SLUG": "job-a"}
    given |= {"CI_API_V4_URL": "https://lab.example/api/v4", "HYPEROPT_GITLAB_TOKEN": "secret"}
    assert run_gitlab(tmp_path, environment, "after_script", **given).returncode == 0
    at = "https://lab.example/api/v4/projects/1/merge_requests/3/"
    _, *calls = (tmp_path / "calls").read_text().splitlines()
    assert [f"{call.split('--request ')[1].split()[0]} {call.split()[-1].removeprefix(at)}" for call in calls] == writes
    assert (tmp_path / "out" / "note.md").read_text() == "<!-- hyperopt job-a -->\n### hyperopt check\n"
    assert run_gitlab(tmp_path, environment, "after_script", **given | {"COMMENT": "false"}).returncode == 0


TOLD = """#!/bin/sh
echo "$@" >> calls
"""


@pytest.mark.parametrize("head", ["pull/7", "main", ""])
def test_whose_commit_it_is_is_told(tmp_path: Path, environment: dict[str, str], head: str) -> None:
    """What a pull request checks against a branch is none of its history."""
    (tmp_path / "bin" / "hyperopt").write_text(TOLD)
    given = {"samples": "s.json", "candidate": "profile-1", "branch": "main", "server": "http://s"}
    run_action(tmp_path, environment | {"GITHUB_SHA": "1f"}, **given, HEAD=head)
    of = {"CI_MERGE_REQUEST_IID": head[5:]} if head.startswith("pull/") else {"CI_COMMIT_REF_NAME": head}
    given = {name.upper(): value for name, value in given.items()} | {"CI_COMMIT_SHA": "1f", **of}
    run_gitlab(tmp_path, environment, "script", **given)
    action, gitlab = (tmp_path / "calls").read_text().splitlines()
    told = f" --head {head}" if head else ""
    assert f"--branch main --commit 1f{told} --candidate" in action
    assert f"--branch main --commit 1f{told.replace('pull', 'merge-request')} --candidate" in gitlab
    assert "pull_request.number" in action_step("check")["env"]["HEAD"]
    assert "|| github.ref_name" in action_step("check")["env"]["HEAD"]
