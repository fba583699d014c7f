"""Run by `.ci/run` in an environment with MindSpore and without anything of the service: captures and applies.

The plans are made by hand, because the solver is on the other side: all moved that may in PyNative, one layer
recomputed in graph mode. `validate` checks that they are legal.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hyperopt
from hyperopt import profile as profiles
from hyperopt.documents import write
from hyperopt.plan import Action, Plan, Recompute, Residency
from hyperopt.profile import Profile
from hyperopt.validate import validate

SIZES = ["--layers", "2", "--width", "32", "--heads", "2", "--sequence", "64", "--batch", "8"]
ABSENT = ("ortools", "numba", "sklearn", "fastapi", "sqlalchemy", "dbos", "alembic", "uvicorn")


def main() -> None:
    found = [name for name in ABSENT if importlib.util.find_spec(name) is not None]
    assert not found, f"the client's environment has {found}"
    assert "site-packages" in hyperopt.__file__, hyperopt.__file__
    with tempfile.TemporaryDirectory() as folder:
        for mode, plan in (("pynative", moved), ("graph", recomputed)):
            prove(mode, plan, Path(folder))


def prove(mode: str, make_plan: Any, folder: Path) -> None:
    file, order = folder / f"{mode}.json.gz", folder / f"{mode}.plan.json"
    before = told("capture", "-o", str(file), "--mode", mode, "--trial-steps", "3", *SIZES)["trial"]
    profile, _ = profiles.load(file.read_bytes())
    plan = make_plan(profile)
    violations = validate(profile, plan)
    assert not violations, violations
    write(plan, order)
    after = told("apply", str(file), str(order), "--steps", "3", *SIZES)
    done = after["execution"]
    assert after["losses"] == before["losses"], (before, after)
    assert done["actions"] and done["actions_done"] == done["actions"], done
    assert after["peak_bytes"] < before["peak_bytes"], (before, after)
    print(
        f"client proof, mindspore {version('mindspore')}, {mode}: {done['actions_done']} of {done['actions']} actions, "
        f"peak {before['peak_bytes']} -> {after['peak_bytes']} bytes, losses equal"
    )


def told(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "hyperopt", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"hyperopt {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def moved(profile: Profile) -> Plan:
    """Every storage that may move leaves at the start of its window and is called back at its end."""
    actions: list[Action] = []
    for storage in profile.storages:
        if storage.window is not None:
            start, end = storage.window
            actions += [
                Action(op=start, when="after", kind="copy_out", storage=storage.id),
                Action(op=start, when="after", kind="release", storage=storage.id),
                Action(op=end, when="before", kind="copy_in", storage=storage.id),
            ]
    return Plan(
        profile_digest=profile.digest,
        program_digest=profile.program_digest,
        residency=Residency(actions=tuple(actions)),
    )


def recomputed(profile: Profile) -> Plan:
    """The first layer runs again before its backward: what only its backward still needs is dropped meanwhile."""
    operators = profile.operators
    layer = next(o.layer for o in operators if o.layer and o.phase == "forward")
    again = [k for k, o in enumerate(operators) if o.layer == layer and o.phase == "forward"]
    before = next(k for k, o in enumerate(operators) if o.layer == layer and o.phase == "backward")
    releases: dict[int, int] = {}
    for id in {id for k in again for id in operators[k].writes}:
        accesses = [k for k, o in enumerate(operators) if id in o.accesses]
        inside = max(k for k in accesses if k in again)
        later = [k for k in accesses if k not in again]
        if later and min(later) >= before:
            releases[id] = inside
    largest = max(releases, key=lambda id: profile.by_id[id].bytes)
    return Plan(
        profile_digest=profile.digest,
        program_digest=profile.program_digest,
        residency=Residency(
            actions=tuple(
                Action(op=op, when="after", kind="release", storage=id) for id, op in sorted(releases.items())
            ),
            recompute=(Recompute(storage=largest, before_op=before, ops=tuple(again)),),
        ),
    )


if __name__ == "__main__":
    main()
