"""What fits by itself, what only thanks to a plan, and what does not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from hyperopt.documents import write
from hyperopt.gate import check, with_fit
from hyperopt.gate.fit import Fit, Requirement, with_plan, without_plan
from hyperopt.gate.formats import junit, markdown
from hyperopt.plan import Bound, Plan, Predicted
from solver.fit import fit
from tests.cli.command import Cli
from tests.gate.test_check import grown
from tests.samples import MIB, worked_example

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def answer(mib: int, slowdown: float = 3.0) -> Fit:
    """The worked example: 768 MiB by itself, 640 at no cost, 512 for 10 %, nothing below."""
    return fit(worked_example(), Requirement(mib * MIB, slowdown), 20.0)


def test_the_three_answers_of_the_worked_example() -> None:
    itself, planned = answer(768), answer(767)
    assert (itself.how, itself.status, itself.plan_id) == ("by itself", "pass", "")
    assert (planned.how, planned.status) == ("with a plan", "pass") and "only thanks to a plan" in planned.reason
    assert planned.plan_peak_bytes == 640 * MIB and planned.host_peak_bytes == 128 * MIB and planned.plan_id
    assert answer(640, 0.0).how == "with a plan"
    assert answer(512, 10.0).how == "with a plan"
    tight = answer(512)
    assert (tight.how, tight.status) == ("not", "regression") and "+10.00 % (proven)" in tight.reason
    gone = answer(511)
    assert (gone.how, gone.status) == ("not", "regression") and gone.least_bytes == 512 * MIB


def test_too_slow_is_no_fit_and_what_is_not_ruled_out_is_unknown() -> None:
    def planned(step: float, bound: float) -> Fit:
        seen = Predicted(step_us=step, peak_bytes=5, baseline_step_us=100.0, baseline_peak_bytes=9)
        return with_plan(Requirement(6, 3.0), 9, Plan(predicted=seen, bound=Bound(step_us=bound)))

    assert planned(103.0, 100.0).how == "with a plan"
    assert planned(110.0, 104.0).status == "regression"
    assert planned(110.0, 102.0).status == "inconclusive"
    assert without_plan(Requirement(6, 3.0), 9, 5, False).status == "inconclusive"


def test_a_limit_is_judged_beside_the_others_and_the_change_is_told() -> None:
    before, after = worked_example(), grown(worked_example(), 2, MIB)
    required = Requirement(768 * MIB, 3.0)
    both = fit(after, required, 20.0), fit(before, required, 20.0)
    found = with_fit(check(before, after), *both)
    assert found.verdict == "regression"  # of the peak
    assert "the baseline fits by itself, the candidate with a plan" in found.notes
    assert with_fit(check(before, before), both[1], both[1]).verdict == "pass"
    none = fit(before, Requirement(100 * MIB, 3.0), 20.0)
    failed = with_fit(check(before, before), none)
    assert failed.verdict == "regression" and failed.reasons == (none.reason,)
    assert failed.document()["fit"]["status"] == "regression"
    assert ElementTree.fromstring(junit(failed, NOON, ""))[0][1].get("name") == "must fit"
    told = "with a plan: 641.00 MiB, step +0.00 %, 128.00 MiB at most in other tiers"
    assert f"| must fit |  | 769.00 MiB | {told} |" in markdown(found)
    hosts = [found.shown[side]["host_peak_bytes"] for side in ("baseline", "candidate")]
    assert hosts == [0, 128 * MIB] and failed.shown["candidate"].get("host_peak_bytes") is None
    alone = with_fit(None, none)
    assert alone.verdict == "regression" and ElementTree.fromstring(junit(alone, NOON, ""))


@pytest.mark.parametrize(("limit", "code"), [("768M", 0), ("700M", 0), ("100M", 1)])
def test_the_command_judges_a_candidate_alone(cli: Cli, tmp_path: Path, limit: str, code: int) -> None:
    write(worked_example(), tmp_path / "profile.json")
    asked = ("check", "--candidate", tmp_path / "profile.json", "--must-fit", limit, "--time-limit", "20")
    assert cli(*asked, "--max-slowdown-percent", "3", "--json") == code
    assert cli.answer["fit"]["how"] == {"768M": "by itself", "700M": "with a plan", "100M": "not"}[limit]
    assert json.loads(cli.out)["memory"]["status"] == "not judged"
    assert cli("check", "--must-fit", "nothing", "--candidate", tmp_path / "profile.json") == 64
    assert cli("check", "--must-fit", limit, "--baseline", tmp_path / "profile.json") == 64


def test_a_profile_that_says_nothing_of_memory_fits_nowhere_for_sure() -> None:
    bare = tuple(msgspec.structs.replace(o, reads=(), writes=()) for o in worked_example().operators)
    silent = msgspec.structs.replace(worked_example(), operators=bare, storages=())
    for profile in (silent, msgspec.structs.replace(worked_example(), operators=())):
        found = with_fit(None, fit(profile, Requirement(1 << 40, 3.0), 1.0))
        assert found.verdict == "inconclusive" and "is not known" in found.reasons[0]
