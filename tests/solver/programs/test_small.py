"""Small steps of programs: the same optimum as trying everything, proven, and the same times as another simulator's."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from hyperopt import programs
from solver.programs import solve
from solver.programs.simulate import held, simulate
from solver.stages import NoPlanError
from tests.solver.programs.brute_force import best, makespan

CASES = 120


def made(seed: int) -> dict[str, Any]:
    """Two or three programs with at most six runs, on one or two kinds of devices; limits that often bind."""
    dice = random.Random(seed)
    names = ["a", "b", "c"][: dice.choice([2, 2, 3])]
    count = dice.choice([1, 2, 2])
    calls: list[dict[str, Any]] = []
    runs = 0
    owners = [*names, *dice.choices(names, k=2)]
    for i, owner in enumerate(owners):
        call: dict[str, Any] = {"name": f"c{i}", "program": owner, "time": dice.randint(1, 12)}
        call["serial_fraction"] = dice.choice([0.0, 0.3, 1.0])
        if dice.random() < 0.3:
            call["per"] = "step"
        often = 1 if call.get("per") == "step" else count
        if runs + often > 6:
            continue
        runs += often
        before = [c["name"] for c in calls if dice.random() < 0.5]
        call["after"] = [{"call": name, "mb": dice.choice([0, 4, 10])} for name in before]
        if dice.random() < 0.5:
            call["activation"] = dice.randint(1, 12)
        earlier = [
            c for c in calls
            if c["program"] == owner and c["name"] in before and c.get("per") == call.get("per") and c.get("activation")
        ]  # fmt: skip
        if earlier and dice.random() < 0.8:
            earlier[0]["until"] = call["name"]
        calls.append(call)
    kinds = [{"name": "new", "devices": dice.choice([1, 2, 2, 3]), "speed": 1.0, "memory": dice.randint(16, 60)}]
    if dice.random() < 0.4:
        kinds.append({"name": "old", "devices": 1, "speed": 0.5, "memory": dice.randint(16, 50)})
    said: dict[str, Any] = {
        "programs": [
            {"name": name, "memory": dice.randint(4, 24), "read_only": dice.random() < 0.3}
            | ({"devices": [1]} if dice.random() < 0.3 else {})
            for name in names
        ],
        "calls": calls,
        "pool": kinds,
        "micro_batches": count,
    }
    if dice.random() < 0.6:
        said["link"] = {"mb_per_time": dice.choice([2, 8]), "latency": dice.choice([0, 0.5])}
    if dice.random() < 0.6:
        said["swap"] = {"out_mb_per_time": dice.choice([2, 10]), "in_mb_per_time": dice.choice([4, 10])}
        if dice.random() < 0.3:
            said["swap"]["host_memory"] = dice.randint(10, 40)
    return said


@pytest.mark.parametrize("tenth", range(10))
def test_small_steps_are_as_good_as_trying_everything(tenth: int) -> None:
    plans = 0
    for seed in range(tenth, CASES, 10):
        document = made(seed)
        wanted = best(document)
        said, warnings = programs.load(json.dumps(document).encode())
        assert warnings == []
        try:
            found = solve(said, time_limit_s=30)
        except NoPlanError as none:
            assert wanted is None, f"seed {seed}: {wanted} is possible: {none}"
            continue
        assert wanted is not None, f"seed {seed}: nothing fits"
        one = found.best
        p = one.placed
        assert found.status == "optimal", f"seed {seed}"
        assert one.value * p.tick == pytest.approx(wanted, rel=1e-6), f"seed {seed}"
        assert p.bound <= one.value
        line = simulate(p, one.orders)
        assert line is not None and line.end == one.value
        assert all(room is None or held(p, order) <= room for room, order in zip(p.room, one.orders, strict=True))
        for rival in (found.together, found.equal):
            assert rival is None or one.value <= rival.value
        again = as_the_tests_have_it(document, one)
        assert again == pytest.approx(wanted, rel=1e-6)
        plans += 1
    assert plans > 5


def as_the_tests_have_it(document: dict[str, Any], one: Any) -> float:
    """The solver's plan through the other simulator."""
    p = one.placed
    names = [program["name"] for program in document["programs"]]
    kinds = {kind["name"]: kind for kind in document["pool"]}
    blocks: list[Any] = [
        (
            kinds.get(g.on.name, {"name": "all", "speed": g.on.speed, "memory": g.on.memory}), g.on.devices,
            tuple(names[q] for q in g.programs), tuple(names[q] for q in g.swapped),
        )
        for g in p.groups
    ]  # fmt: skip
    calls = document["calls"]
    orders = tuple(tuple((calls[c]["name"], m) for c, m in order) for order in one.orders)
    takes = {call["name"]: p.duration[c] * p.tick for c, call in enumerate(calls)}
    runs = {call["name"]: p.runs[c] for c, call in enumerate(calls)}
    value = makespan(document, blocks, orders, takes, runs)
    assert value is not None
    return value
