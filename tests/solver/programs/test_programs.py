"""Programs that are no chain: against all on all devices and equal groups, streaming, swaps, weights, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hyperopt import plan as plans
from hyperopt import programs
from hyperopt.documents import DocumentError, canonical
from hyperopt.plan import Plan
from solver.programs import Solution, answer, solve
from solver.programs.picture import draw
from solver.stages import NoPlanError
from tests.solver.programs.examples import PPO, VISION, call


def read(document: dict[str, Any]) -> programs.Programs:
    said, warnings = programs.load(json.dumps(document).encode())
    assert warnings == []
    return said


def solved(document: dict[str, Any], seconds: float = 20.0) -> tuple[dict[str, Any], Solution]:
    said = read(document)
    found = solve(said, seconds)
    return answer(said, found), found


@pytest.mark.parametrize("document", [PPO, VISION], ids=["ppo", "vision"])
def test_groups_of_their_own_beat_all_on_all_devices_and_equal_groups(document: dict[str, Any]) -> None:
    told, found = solved(document)
    assert told["makespan"] <= min(one["makespan"] for one in (told["together"], told["equal"]) if one is not None)
    assert told["bound"] <= told["makespan"] and len(told["groups"]) > 1
    assert found.together is None or told["makespan"] < 0.95 * found.together.value * found.best.placed.tick
    for group in told["groups"]:
        assert group["peak"] <= group["limit"]
    placed = {name for group in told["groups"] for name in group["programs"]}
    assert placed == {program["name"] for program in document["programs"]}
    assert sum(group["devices"] for group in told["groups"]) <= 16


def one(name: str, program: str, time: float, *before: str, **more: Any) -> dict[str, Any]:
    return call(name, program, time, *before, serial_fraction=1.0, **more)


def small(**more: Any) -> dict[str, Any]:
    """Two programs in a row, two micro-batches, two devices."""
    return {
        "programs": [{"name": "a", "memory": 10}, {"name": "b", "memory": 20}],
        "calls": [one("first", "a", 4), one("second", "b", 6, "first", mb=8)],
        "pool": [{"name": "x", "devices": 2, "memory": 40}],
        "micro_batches": 2,
    } | more


def test_micro_batches_stream_from_one_group_to_the_next() -> None:
    told, _ = solved(small(link={"mb_per_time": 8, "latency": 0.5}))
    assert told["makespan"] == 4 + 1.5 + 2 * 6 and told["status"] == "optimal"
    assert told["calls"][1]["starts"] == [5.5, 11.5]
    assert told["together"]["makespan"] == 20  # one group of two devices: nothing is sent, nothing overlaps


def test_programs_share_devices_where_both_fit_and_are_swapped_where_they_do_not() -> None:
    pool = [{"name": "x", "devices": 1, "memory": 30}]
    assert solved(small(pool=pool))[0]["makespan"] == 20
    tight, swap = [{"name": "x", "devices": 1, "memory": 25}], {"out_mb_per_time": 10, "in_mb_per_time": 5}
    with pytest.raises(NoPlanError, match=r"a, b on 1 x lack 5 MB of 25 a device.*swap link"):
        solved(small(pool=tight))
    told, _ = solved(small(pool=tight, swap=swap))
    # Both firsts, then both seconds; a comes in while b goes out (b -> a over the step's end), and the other way.
    assert told["makespan"] == 20 + (10 / 5 + 20 / 10) + (20 / 5 + 10 / 10)
    assert told["groups"][0]["swapped"] == ["a", "b"] and told["groups"][0]["peak"] == 20
    kept = small(pool=tight, swap=swap)
    kept["programs"] = [program | {"read_only": True} for program in kept["programs"]]
    assert solved(kept)[0]["makespan"] == 20 + 10 / 5 + 20 / 5
    with pytest.raises(NoPlanError, match="host_memory"):
        solved(small(pool=tight, swap=swap | {"host_memory": 25}))


def test_activations_are_held_until_the_call_that_frees_them() -> None:
    """Room for one micro-batch in flight: forward and backward in turn; with room for both they overlap."""
    document = small(
        programs=[{"name": "a", "memory": 10, "devices": [1]}, {"name": "b", "memory": 20, "devices": [1]}],
        calls=[
            one("forth", "a", 4, activation=10, until="back"),
            one("there", "b", 6, "forth"),
            one("back", "a", 4, "there", "forth"),
        ],
    )
    pool = [{"name": "x", "devices": 2, "memory": 30}]
    assert solved(document | {"pool": pool})[0]["makespan"] == 4 + 6 + 6 + 4
    calls = [dict(c) for c in document["calls"]]
    calls[0]["activation"] = 15
    told, found = solved(document | {"pool": pool, "calls": calls})
    assert told["makespan"] == 2 * 14
    assert max(group["peak"] for group in told["groups"]) <= 30 and found.status == "optimal"


def test_new_weights_are_a_call_that_waits_for_much() -> None:
    document = small(link={"mb_per_time": 10})
    document["calls"] = [*document["calls"], one("sync", "a", 0, "second", mb=70, per="step")]
    apart = solved(document | {"programs": [p | {"devices": [1]} for p in document["programs"]]})[0]
    # Apart 4 + 0.8 + 12, then 7 for the weights; on one device both take 20 and nothing is sent.
    assert apart["makespan"] == 20 and len(apart["groups"]) == 1
    document["calls"][2]["after"][0]["mb"] = 10
    apart = solved(document | {"programs": [p | {"devices": [1]} for p in document["programs"]]})[0]
    assert apart["makespan"] == pytest.approx(4 + 0.8 + 12 + 1) and len(apart["groups"]) == 2


def test_layers_give_a_program_its_times_and_memory() -> None:
    layers = [{"name": "l", "type": "BODY", "time": 3, "nb_layer": 4, "memory_parameter": 5, "serial_fraction": 0}]
    document = small()
    document["programs"][1] = {"name": "b", "layers_description": layers, "devices": [1]}
    document["calls"][1] = {"name": "second", "program": "b", "layers": "backward", "after": []}
    told, _ = solved(document)
    assert told["calls"][1]["time"] == 24 and told["groups"][told["calls"][1]["group"]]["peak"] >= 20


def test_the_plan_has_programs_and_turns_and_comes_back() -> None:
    told, _ = solved(small())
    document = {"format": "hyperopt.plan/1"} | told["plan"]
    plan, warnings = plans.load(json.dumps(document).encode())
    assert warnings == [] and plan.stages is not None
    assert sorted(name for stage in plan.stages for name in stage.programs) == ["a", "b"]
    turns = [(turn.call, turn.micro_batch) for stage in plan.stages for turn in stage.turns]
    assert sorted(turns) == [("first", 0), ("first", 1), ("second", 0), ("second", 1)]
    assert plans.load(canonical(plan))[0].stages == plan.stages
    assert Plan(stages=plan.stages).content_id != Plan().content_id


@pytest.mark.parametrize(
    ("stages", "field", "words"),
    [
        ([{"programs": ["a"]}, {"programs": ["a"]}], "$.stages[1].programs[0]", "a is on stage 0 already"),
        ([{"programs": ["a", "a"]}], "$.stages[0].programs[1]", "a is on stage 0 already"),
        ([{"programs": ["a"], "layers": [0]}], "$.stages[0].programs", "beside layers"),
        ([{"programs": ["a"], "swapped": ["b"]}], "$.stages[0].swapped[0]", "b is not on this stage"),
        ([{"turns": [{"call": "f"}, {"call": "f"}]}], "$.stages[0].turns[1]", "f has had this turn"),
        ([{"turns": [{"call": "f", "micro_batch": 1}]}], "$.stages[0].turns[0].micro_batch", "micro-batch 1 of 1"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(stages: list[Any], field: str, words: str) -> None:
    with pytest.raises(DocumentError) as refused:
        plans.load(json.dumps({"format": "hyperopt.plan/1", "stages": stages}).encode())
    assert refused.value.field == field and words in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"calls": [one("first", "c", 4)]}, "$.programs[0]", "a has no call"),
        ({"calls": [one("first", "a", 4), one("x", "b", 1), one("y", "c", 4)]}, "$.calls[2].program", "no program 'c'"),
        ({"calls": [one("first", "a", 4, "x"), one("x", "b", 1)]}, "", ""),
        ({"calls": [one("first", "a", 4, "x"), one("x", "b", 1, "first")]}, "$.calls[0].after", "waits for itself"),
        ({"calls": [one("first", "a", 4, "z"), one("x", "b", 1)]}, "$.calls[0].after[0].call", "no call 'z'"),
        ({"calls": [one("first", "a", 4, until="x"), one("x", "b", 1)]}, "$.calls[0].until", "no call of a"),
        ({"calls": [one("f", "a", 4, until="g"), one("g", "a", 4), one("x", "b", 1)]}, "$.calls[0].until", "after f"),
        ({"calls": [{"name": "f", "program": "a"}, one("x", "b", 1)]}, "$.calls[0]", "neither time nor layers"),
        ({"pool": [{"name": "x"}, {"name": "x"}]}, "$.pool[1].name", "second one"),
        ({"programs": [{"name": "a", "kinds": ["y"]}, {"name": "b"}]}, "$.programs[0].kinds[0]", "no 'y' in the pool"),
        ({"micro_batches": 0}, "$.micro_batches", ">= 1"),
    ],
)
def test_what_cannot_be_is_refused_by_field(changes: dict[str, Any], field: str, words: str) -> None:
    document = json.dumps(small(**changes)).encode()
    if not field:
        programs.load(document)
        return
    with pytest.raises(DocumentError) as refused:
        programs.load(document)
    assert refused.value.field == field and words in str(refused.value)


def test_why_nothing_fits() -> None:
    few = small(programs=[{"name": "a", "memory": 10, "devices": [1]}, {"name": "b", "memory": 20, "devices": [2]}])
    with pytest.raises(NoPlanError, match="2 x are too few for groups of the sizes"):
        solved(few)
    with pytest.raises(NoPlanError, match=r"b on 1 x lack 60 MB of 40"):
        solved(
            small(programs=[{"name": "a", "memory": 1, "devices": [1]}, {"name": "b", "memory": 100, "devices": [1]}])
        )


def test_the_time_line_shows_every_run() -> None:
    said = read(small())
    found = solve(said, 10)
    text = draw(said, found.best)
    assert "A first, B second" in text and text.count("group") == len(found.best.orders)
    assert draw(said, found.best, svg=True).count("<title>") == 4
