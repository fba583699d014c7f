"""What `explain` tells of a plan is what its replay shows, and every decision is told of."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from hyperopt.legality import OutOfMemory
from hyperopt.plan import Action, Budget, Plan, Recompute, Residency
from hyperopt.profile import Operator, Profile, Storage
from hyperopt.replay import Timeline, replay
from hyperopt.script import write_script
from solver import Request, solve
from solver.residency import explain as explaining
from solver.residency.absence import absences
from solver.residency.executions import Executions
from solver.residency.explain import explain
from solver.residency.levels import Levels
from solver.residency.problem import Problem
from tests.cases.test_planning import HOST, MIB, TRAP, back, out, step
from tests.solver.test_residency import asked


@dataclass(frozen=True)
class Ran:
    residency: Residency
    timeline: Timeline


def ran(profile: Profile, residency: Residency, hbm_bytes: int) -> tuple[Problem, Ran]:
    budget = Budget(hbm_bytes=hbm_bytes)
    return Problem(profile, budget), Ran(residency, replay(profile, Plan(budget=budget, residency=residency)))


def test_a_move_with_time_to_spare() -> None:
    """The worked example: B, 128 MiB, out after 2 and back before 6; its copies take 7.8125 ms each."""
    (entry,) = explain(*ran(TRAP, Residency(actions=(*out(2, 1), back(6, 1))), 640 * MIB))
    assert (entry["storage"], entry["decision"], entry["bytes"]) == (1, "move", 128 * MIB)
    assert entry["copies_out_us"] == entry["copies_in_us"] == [7812.5]
    assert entry["absent_us"] == 60_000 - 30_000 - 7812.5 and entry["absences"] == 1
    assert entry["gib_seconds"] == pytest.approx(entry["absent_us"] / 8 / 1e6)
    assert entry["slack_us"] == [70_000 - 60_000 - 7812.5]
    assert entry["link_share"] == {"host out": 0.078125, "host in": 0.078125}
    assert entry["alternatives"]["keep"] == {"hbm_bytes": 768 * MIB, "over_budget_bytes": 128 * MIB}
    assert "may not run again" in entry["alternatives"]["recompute"]["why_not"]
    for told in ("22.188 ms", "22% of the step", "2.188 ms to spare", f"{128 * MIB} bytes short", "no recompute"):
        assert told in entry["why"]


def test_a_copy_that_comes_too_late_says_by_how_much() -> None:
    """A back before its own consumer, which waits for all of the 31.25 ms."""
    (entry,) = explain(*ran(TRAP, Residency(actions=(*out(0, 0), back(9, 0))), 640 * MIB))
    assert entry["slack_us"] == [-31_250] and "late" in entry["why"]


def test_a_storage_that_starts_away_and_is_read_only_leaves_without_a_copy() -> None:
    operators = (
        Operator(duration_us=100, workspace_bytes=50, recomputable=False),
        Operator(reads=(0,), duration_us=100, recomputable=False),
        Operator(duration_us=100, workspace_bytes=50, recomputable=False),
    )
    cold = Storage(
        id=0, bytes=16 << 10, resident_at_start=True, resident_at_end=True, steps_observed=64, steps_accessed=3
    )
    profile = Profile(operators=operators, storages=(cold,), device=HOST)
    release = Action(op=1, when="after", kind="release", storage=0)
    (entry,) = explain(*ran(profile, Residency(initial={0: "host"}, actions=(back(1, 0), release)), 16 << 10))
    assert entry["access_probability"] == 3 / 64 and "probability 0.05" in entry["why"]
    assert entry["copies_out_us"] == [] and "without a copy" in entry["why"]
    assert entry["absences"] == 2 and entry["absent_us"] == pytest.approx(200, abs=2)
    assert entry["alternatives"]["recompute"]["why_not"] == "no operator of the step makes it"


def test_a_recompute_says_what_a_move_would_cost_and_the_other_way_round() -> None:
    profile = step(
        {0: ([], [0]), 1: ([0], [1]), 4: ([1], []), 5: ([0], [])}, [MIB, 16 * MIB], 6, us=1000, recomputable=True
    )
    release = Action(op=1, when="after", kind="release", storage=1)
    again = Residency(actions=(release,), recompute=(Recompute(storage=1, before_op=4, ops=(1,)),))
    (entry,) = explain(*ran(profile, again, 100 * MIB))
    assert (entry["decision"], entry["recompute_us"], entry["also"]) == ("recompute", 1000, [])
    copy_us = 16 * MIB / (16 << 30) * 1e6
    assert entry["alternatives"]["move"]["host"]["us"] == pytest.approx(2 * copy_us, abs=0.01)
    assert entry["alternatives"]["keep"]["over_budget_bytes"] == 0
    (moved,) = explain(*ran(profile, Residency(actions=(*out(1, 1), back(4, 1))), 100 * MIB))
    assert moved["alternatives"]["recompute"] == {"us": 1000, "operators": 1}


@pytest.mark.parametrize("seed", range(25))
def test_every_decision_is_told_of_and_adds_up(seed: int) -> None:
    profile, request = asked(seed)
    plan = solve(profile, request)
    if not isinstance(plan, Plan) or plan.residency.empty:
        return
    timeline = replay(profile, plan)
    problem = Problem(profile, plan.budget)
    entries = explain(problem, Ran(plan.residency, timeline))
    moved = {copy.storage for copy in timeline.copies} | plan.residency.initial.keys()
    assert {e["storage"] for e in entries if e["decision"] == "move"} == moved
    again = sorted((r.storage, r.before_op) for r in plan.residency.recompute)
    assert sorted((e["storage"], e["before_op"]) for e in entries if e["decision"] == "recompute") == again
    assert [e["gib_seconds"] for e in entries] == sorted((e["gib_seconds"] for e in entries), reverse=True)
    for entry in entries:
        assert entry["gib_seconds"] >= 0 and 0 <= entry["absent_us"] <= 2 * timeline.step_us and entry["why"]
    busy = sum(sum(e.get("copies_in_us", [])) + sum(e.get("copies_out_us", [])) for e in entries)
    assert busy == pytest.approx(sum(copy.end - copy.start for copy in timeline.copies) / 1000)
    assert all(e["alternatives"]["keep"]["hbm_bytes"] <= problem.unlimited.peak_bytes * 2 for e in entries)


@pytest.mark.parametrize("seed", range(15))
def test_levels_are_those_of_replay(seed: int) -> None:
    """The most HBM in listed order is the least budget with which the plan runs."""
    profile, request = asked(seed)
    plan = solve(profile, request)
    if isinstance(plan, Plan):
        problem = Problem(profile, plan.budget)
        levels = Levels(problem, plan.residency, write_script(profile, plan, None))
        most = levels.most(0, levels.count)
        assert most == replay(profile, plan).static_peak_bytes
        with pytest.raises(OutOfMemory):
            replay(profile, plan, most - 1)
        row = [levels.most(i, i + 1) for i in range(levels.count)]
        for first in range(len(row)):
            for end in range(first + 1, len(row) + 1):
                assert levels.most(first, end) == max(row[first:end])


@pytest.mark.parametrize("seed", range(15))
def test_absences_follow_one_another(seed: int) -> None:
    profile, request = asked(seed)
    plan = solve(profile, request)
    if isinstance(plan, Plan):
        timeline = replay(profile, plan)
        problem = Problem(profile, plan.budget)
        executions = Executions(problem, plan.residency, timeline, write_script(profile, plan, None))
        for own in absences(problem, Ran(plan.residency, timeline), executions).values():
            for one in own:
                assert 0 <= one.start <= one.end <= timeline.step_ns and one.left < one.back
            for one, other in pairwise(own):
                assert one.back <= other.left and one.end <= other.start


def test_small_savings_are_told_of_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "DETAILED", 1)
    profile = step(
        {0: ([], [0]), 1: ([], [1]), 2: ([], [2]), 7: ([0], []), 8: ([1], []), 9: ([2], [])},
        [MIB, 2 * MIB, 3 * MIB],
        10,
        us=1000,
    )
    actions = (*out(0, 0), *out(1, 1), *out(2, 2), back(6, 0), back(6, 1), back(6, 2))
    first, rest = explain(*ran(profile, Residency(actions=actions), 100 * MIB))
    assert first["storage"] == 2
    assert (rest["decision"], rest["storages"], rest["bytes"]) == ("move", 2, 3 * MIB) and rest["gib_seconds"] > 0


def test_nothing_to_explain_says_so() -> None:
    (entry,) = explain(*ran(TRAP, Residency(), 800 * MIB))
    assert "everything fits" in entry["note"]
    plan = solve(TRAP, Request(Budget(hbm_bytes=640 * MIB)))
    assert isinstance(plan, Plan) and all("why" in entry for entry in plan.explain)


# A, of 16 MiB, is made by 1 from X, which 0 made; X leaves after 1 and is back for the run of 1 before 6.
AGAIN = step(
    {0: ([], [0]), 1: ([0], [1]), 2: ([1], []), 6: ([1], []), 8: ([0], [])},
    [8 * MIB, 16 * MIB],
    9,
    us=1000,
    recomputable=True,
)
X_US = 8 * MIB / (16 << 30) * 1e6
DROP_A = Action(op=2, when="after", kind="release", storage=1)


@pytest.mark.parametrize(
    ("before", "slack_us"), [(5, 1000 - X_US), (6, -X_US)], ids=["an operator ahead", "just before it"]
)
def test_the_first_user_of_a_copy_back_may_be_one_that_runs_again(before: int, slack_us: float) -> None:
    """X comes back for the run again of 1 before 6; the next listed one that reads it is 8."""
    again = Recompute(storage=1, before_op=6, ops=(1,))
    moves = (*out(1, 0), back(before, 0), DROP_A)
    entries = explain(*ran(AGAIN, Residency(actions=moves, recompute=(again,)), 100 * MIB))
    moved = next(entry for entry in entries if entry["decision"] == "move")
    assert moved["slack_us"] == [pytest.approx(slack_us, abs=0.002)]
    told = f"{abs(moved['slack_us'][0]) / 1000:.3f} ms {'to spare' if slack_us > 0 else 'late'}"
    assert told in moved["why"]


def test_who_follows_a_run_again_has_waited_from_its_end_on() -> None:
    """X is back before 6, behind a run again that does not need it and before 6, which does: the run hides the copy."""
    profile = step(
        {0: ([], [0]), 1: ([], [1]), 2: ([1], []), 6: ([0, 1], [])}, [8 * MIB, MIB], 7, us=1000, recomputable=True
    )
    again = (Recompute(storage=1, before_op=6, ops=(1,)),)
    moves = (*out(0, 0), DROP_A, back(6, 0))
    entries = explain(*ran(profile, Residency(actions=moves, recompute=again), 100 * MIB))
    assert next(e for e in entries if e["storage"] == 0)["slack_us"] == [pytest.approx(1000 - X_US, abs=0.002)]
    assert next(e for e in entries if e["storage"] == 1)["absent_us"] == 6000 - 3000


def test_what_a_kept_storage_would_need_is_no_less_than_what_the_rest_does() -> None:
    """B away over a valley: kept it would fit there, but the plan's own peak is elsewhere, with A."""
    profile = step(
        {0: ([], [1]), 1: ([], [0]), 2: ([0], []), 4: ([], [2]), 5: ([2], []), 7: ([1], [])},
        [64 * MIB, 8 * MIB, MIB],
        8,
        us=1000,
    )
    (entry,) = explain(*ran(profile, Residency(actions=(*out(3, 1), back(7, 1))), 80 * MIB))
    assert entry["alternatives"]["keep"] == {"hbm_bytes": 72 * MIB, "over_budget_bytes": 0}


def kept(profile: Profile, plan: Plan, entry: dict[str, Any]) -> Plan:
    """The plan without what one entry is about, and without moves of what only its rerun wants."""
    id, residency = entry["storage"], plan.residency
    if entry["decision"] == "move":
        actions = tuple(a for a in residency.actions if a.storage != id)
        initial = {s: tier for s, tier in residency.initial.items() if s != id}
        residency = msgspec.structs.replace(residency, actions=actions, initial=initial)
    else:
        ids = {id, *entry["also"]}
        again = [r for r in residency.recompute if (r.storage, r.before_op) != (id, entry["before_op"])]
        wanted = {s.id: -1 for s in profile.storages}  # the operator before which it is wanted last
        for op, operator in enumerate(profile.operators):
            wanted |= dict.fromkeys(operator.accesses, op)
        for r in again:
            for id in {id for k in r.ops for id in profile.operators[k].accesses}:
                wanted[id] = max(wanted[id], r.before_op)
        wanted |= {s.id: len(profile.operators) for s in profile.storages if s.resident_at_end}
        ids |= {a.storage for a in residency.actions if a.kind == "copy_in" and a.op > wanted[a.storage]}
        actions = tuple(a for a in residency.actions if a.storage not in ids)
        residency = msgspec.structs.replace(residency, actions=actions, recompute=tuple(again))
    return msgspec.structs.replace(plan, residency=residency)


@pytest.mark.parametrize("seed", range(60))
def test_a_kept_storage_needs_what_its_replay_needs(seed: int) -> None:
    """Exactly: not below what is told, and in that it runs. Of storages that come back in one way only."""
    profile, request = asked(seed)
    plan = solve(profile, request)
    if not isinstance(plan, Plan) or plan.residency.empty:
        return
    entries = explain(Problem(profile, plan.budget), Ran(plan.residency, replay(profile, plan)))
    ids = [id for entry in entries for id in (entry["storage"], *entry.get("also", ()))]
    for entry in entries:
        if any(ids.count(id) > 1 for id in (entry["storage"], *entry.get("also", ()))):
            continue
        needed = entry["alternatives"]["keep"]["hbm_bytes"]
        stays = kept(profile, plan, entry)
        roomy = msgspec.structs.replace(stays.budget, tiers={"host": 2**40, "pool": 2**40}, hbm_bytes=None)
        assert replay(profile, msgspec.structs.replace(stays, budget=roomy)).static_peak_bytes == needed
        assert (needed > request.budget.hbm_bytes) == (entry["alternatives"]["keep"]["over_budget_bytes"] > 0)
