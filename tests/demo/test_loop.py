"""The loop end to end on a tiny model: real MindSpore, a real server, real HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyperopt import plan as plans
from hyperopt import profile as profiles
from hyperopt.demo.children import ChildFailed, run
from hyperopt.demo.loop import run_demo
from hyperopt.demo.outcome import Outcome
from hyperopt.store import Database
from hyperopt.store.measurements import of_plan
from hyperopt.validate import validate

TINY = {"layers": 2, "width": 32, "heads": 2, "sequence": 128, "batch": 12}
"""Large enough that the 90 KB which PyNative mode keeps from every step do not count (docs/why/pynative.md)."""


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, told: list[str]) -> Outcome:
    return run_demo(tmp_path_factory.mktemp("demo"), TINY, told.append)


def test_every_claim_holds(outcome: Outcome) -> None:
    assert outcome.broken == ()


def test_the_plans_were_legal_and_carried_out(outcome: Outcome) -> None:
    folder = Path(outcome.report).parent
    for name in ("pynative-53", "pynative-75", "graph-70"):
        profile, _ = profiles.load((folder / f"{name.partition('-')[0]}.profile.json.gz").read_bytes())
        plan, _ = plans.load((folder / f"{name}.plan.json").read_bytes())
        assert plan.profile_digest == profile.digest and validate(profile, plan) == []
        log = json.loads((folder / f"{name}.execution.json").read_text())
        assert log["summary"]["actions_done"] == log["summary"]["actions"] > 0
        assert log["plan_id"] == plan.plan_id


def test_losses_are_bit_identical_and_fall(outcome: Outcome) -> None:
    for case, steps in zip(outcome.cases, (5, 3, 5), strict=True):
        assert case.before is not None and case.after is not None
        assert len(case.before.losses) == 5 and len(case.after.losses) == steps
        assert case.before.losses[:steps] == case.after.losses
        assert case.before.losses[-1] < case.before.losses[0]


def test_the_table_says_what_is_measured_and_what_is_simulated(outcome: Outcome) -> None:
    table = outcome.told()
    assert "measured" in table and "simulated" in table and "NOT" not in table
    assert outcome.report in table and Path(outcome.report).stat().st_size > 10_000


def test_progress_is_told(outcome: Outcome, told: list[str]) -> None:
    assert outcome.cases and any(line.startswith("server at http://127.0.0.1:") for line in told)
    assert any("plan for 53% of the peak" in line for line in told)


def test_a_plan_for_another_model_is_refused_before_anything_runs(outcome: Outcome, tmp_path: Path) -> None:
    folder = Path(outcome.report).parent
    profile, plan = str(folder / "pynative.profile.json.gz"), str(folder / "pynative-53.plan.json")
    sizes = [part for name, size in (TINY | {"layers": 1}).items() for part in (f"--{name}", str(size))]
    with pytest.raises(ChildFailed, match="apply ended with 64"):
        run(["apply", profile, plan, *sizes], tmp_path / "log")


def test_a_plan_made_in_another_mode_is_refused(outcome: Outcome, tmp_path: Path) -> None:
    folder = Path(outcome.report).parent
    with pytest.raises(ChildFailed, match="apply ended with 64"):
        run(["apply", str(folder / "graph.profile.json.gz"), str(folder / "pynative-53.plan.json")], tmp_path / "log")


def test_what_was_measured_is_kept_beside_what_was_planned(outcome: Outcome) -> None:
    """For the next cost model: docs/reference/cost.md, "Models of a service"."""
    folder = Path(outcome.report).parent
    database = Database(f"sqlite:///{folder / 'server'}/hyperopt.sqlite")
    for name, case in zip(("pynative-53", "pynative-75", "graph-70"), outcome.cases, strict=True):
        plan, _ = plans.load((folder / f"{name}.plan.json").read_bytes())
        with database.read() as session:
            (found,) = of_plan(session, plan.plan_id)
        assert case.after is not None and found.peak_bytes == case.after.peak_bytes
        assert found.step_us == pytest.approx(case.after.step_us, abs=0.001)
        assert bool(found.copies) == name.startswith("pynative")
    database.close()
