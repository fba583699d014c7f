"""Builds the demo repository: `python examples/ci/build.py FOLDER` makes a git repository with three commits.

    1  a training step
    2  logs how many units are alive, from masks kept until the end of the step: 12 % more memory, which the gate stops
    3  without the log, and with another comment: only noise, which passes
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent / "repository"
WHO = {"NAME": "Demo", "EMAIL": "demo@example.org", "DATE": "2026-11-30T00:00:00Z"}

KEPT = '''        kept.append((x, y))
'''
MASKED = '''        kept.append((x, y))
        masks.append(tape.run("mask", f"layer{i}", "forward", lambda h: h > 0, h))
'''
NONE, NO_MASK = "    kept = []\n", "    kept, masks = [], []\n"
END = "    return tape\n"
COUNTED = '''    tape.run("count", "log", "other", lambda *masks: np.array([mask.sum() for mask in masks]), *masks)
    return tape
'''
COMMENT = "# Kept alive here, so that no other array gets its id."


def build(folder: Path) -> list[str]:
    """The three commits, oldest first. `folder` must not be there yet."""
    shutil.copytree(SOURCE, folder)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    script = folder / "train.py"
    first = script.read_text()
    second = first
    for old, new in ((KEPT, MASKED), (NONE, NO_MASK), (END, COUNTED)):
        second = replaced(second, old, new)
    third = replaced(first, COMMENT, "# Kept, so that no other array gets this one's id.")
    commits = []
    for text, message in (
        (first, "A training step"),
        (second, "Log how many units are alive"),
        (third, "Do without the log, and say it better"),
    ):
        script.write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", message)
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def git(folder: Path, *command: str) -> str:
    identity = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in WHO.items()}
    environment = os.environ | identity
    ran = subprocess.run(["git", *command], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


if __name__ == "__main__":
    print("\n".join(build(Path(sys.argv[1]))))
