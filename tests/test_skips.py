"""The rule of tests/conftest.py: in CI a skipped test fails the run, unless the shared data folder is absent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")


@pytest.mark.parametrize(
    ("reason", "in_ci", "data", "code"),
    [
        ("no time", True, False, 1),
        ("no time", False, False, 0),
        ("shared data folder is absent", True, False, 0),
        ("shared data folder is absent", True, True, 1),
    ],
)
@pytest.mark.parametrize("whole_module", [False, True])
def test_a_skip_fails_the_run_in_ci(
    tmp_path: Path, reason: str, in_ci: bool, data: bool, code: int, whole_module: bool
) -> None:
    tests = tmp_path / "repository" / "tests"
    tests.mkdir(parents=True)
    shutil.copy(CONFTEST, tests)
    if data:
        (tmp_path / "shared" / "data").mkdir(parents=True)
    skip = f"pytest.skip({reason!r}, allow_module_level={whole_module})"
    body = skip if whole_module else f"def test_skipped():\n    {skip}"
    (tests / "test_one.py").write_text(f"import pytest\n\ndef test_other():\n    pass\n\n{body}\n")
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    # A test of its own in each run: no test at all would be another exit code.
    (tests / "test_two.py").write_text("def test_passes():\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=tmp_path,
        env=environment | ({"CI": "true"} if in_ci else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert ("skipped, which fails the run in CI" in done.stdout) == (code == 1)
