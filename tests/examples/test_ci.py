"""The demo repository, and the shell in the templates, run as a pipeline would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
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


@pytest.mark.parametrize(
    ("slower", "inconclusive", "code", "verdict"),
    [
        (1.0, "warn", 0, "pass"),
        (1.3, "warn", 1, "regression"),
        (1.05, "warn", 0, "inconclusive"),
        (1.05, "fail", 2, "inconclusive"),
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
    action = yaml.safe_load((ROOT / "ci" / "action.yml").read_text())
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "check")
    told = {name: str(given.get("default", "")) for name, given in action["inputs"].items()}
    told |= {"samples": str(series[slower]) if slower else "nowhere.json", "inconclusive": inconclusive}
    told |= {"output": str(tmp_path / "out put")}
    given = {}
    for variable, expression in step["env"].items():
        name = expression.removeprefix("${{ inputs.").removesuffix(" }}")
        given[variable] = told.get(name, "https://ci.example/1")
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    # As GitHub runs `shell: bash`.
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    ran = subprocess.run(shell, cwd=tmp_path, env=environment | given | files, capture_output=True, text=True)
    assert ran.returncode == code, ran.stderr
    if verdict:
        assert Path(files["GITHUB_OUTPUT"]).read_text() == f"verdict={verdict}\n"
        assert "hyperopt check" in Path(files["GITHUB_STEP_SUMMARY"]).read_text()
        assert (tmp_path / "out put" / "junit.xml").exists()
    assert ("::warning" in ran.stdout) == (verdict == "inconclusive" and inconclusive == "warn")


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.3, 1), (1.05, 2)])
def test_the_gitlab_job_exits_as_the_check_does(
    tmp_path: Path, environment: dict[str, str], series: dict[float, Path], slower: float, code: int
) -> None:
    job = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())[".hyperopt-check"]
    given = job["variables"] | {"SAMPLES": str(series[slower]), "OUTPUT": str(tmp_path / "out")}
    for line in job["script"]:
        ran = subprocess.run(["sh", "-ec", line], cwd=tmp_path, env=environment | given, capture_output=True, text=True)
    assert ran.returncode == code, ran.stderr
    assert job["allow_failure"] == {"exit_codes": [2]} and (tmp_path / "out" / "junit.xml").exists()
