"""Pools of devices: all divisions are tried, against enumeration, or it is said that they were not."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from hyperopt import layers
from solver.stages import NoPlanError, Request, grouped_answer, groups, place
from tests.solver.stages.enumeration import Case, makespan


def pooled(document: dict[str, Any], stages: int, micro_batches: int, seconds: float = 60) -> dict[str, Any]:
    description, warnings = layers.load(json.dumps(document).encode())
    assert not warnings
    asked = Request(stages=stages, micro_batches=micro_batches)
    return grouped_answer(place(description, asked, time_limit_s=seconds), description, asked)


def tried(document: dict[str, Any], stages: int, micro_batches: int) -> tuple[float, int]:
    """The least makespan over every division and every cut, and how many divisions there are."""
    times = [(d["time"], d["serial_fraction"]) for d in document["layers_description"] for _ in range(d["nb_layer"])]
    best, ways = float("inf"), 0
    for sizes in _divisions(document["pool"], stages):
        ways += 1
        for cut in _compositions(len(times), stages):
            forward, at = [], 0
            for (devices, speed), count in zip(sizes, cut, strict=True):
                mine, at = times[at : at + count], at + count
                forward.append(sum(time * (q + (1 - q) / devices) / speed for time, q in mine))
            case = Case({}, stages, 1, micro_batches, "1f1b", "makespan", 1)
            best = min(best, makespan(case, forward, [2 * f for f in forward]))
    return best, ways


def _divisions(pool: list[dict[str, Any]], stages: int) -> list[list[tuple[int, float]]]:
    if not pool:
        return [[]] if stages == 0 else []
    kind, *rest = pool
    return [
        [(n, kind.get("speed", 1.0)) for n in sizes] + others
        for own in range(1, stages + 1)
        for sizes in _compositions(kind["devices"], own)
        for others in _divisions(rest, stages - own)
    ]


def _compositions(total: int, parts: int) -> list[list[int]]:
    if parts == 1:
        return [[total]] if total else []
    return [[first, *rest] for first in range(1, total) for rest in _compositions(total - first, parts - 1)]


def layer(name: str, time: int, count: int, serial: float = 0.0) -> dict[str, Any]:
    return {"name": name, "type": "BODY", "time": time, "nb_layer": count, "serial_fraction": serial}


def test_unequal_groups_of_one_kind() -> None:
    document = {"layers_description": [layer("a", 10, 1), layer("b", 30, 1)], "pool": [{"name": "k", "devices": 4}]}
    told = pooled(document, 2, 4)
    assert [g["devices"] for g in told["groups"]] == [1, 3]
    assert (told["value"], told["status"], told["ways"], told["ways_in_all"]) == (150, "optimal", 3, 3)
    assert told["spmd"]["value"] == 195


@pytest.mark.parametrize("seed", range(12))
def test_small_pools_are_as_good_as_trying_everything(seed: int) -> None:
    dice = random.Random(seed)
    stages = dice.choice([2, 3])
    pool = [
        {"name": f"k{i}", "devices": dice.randint(1, 4), "speed": dice.choice([1.0, 2.0])}
        for i in range(dice.choice([1, 2]))
    ]
    described = [
        layer(f"b{i}", dice.randint(1, 30), dice.randint(2, 3), dice.choice([0.0, 0.25, 1.0])) for i in range(2)
    ]
    document = {"layers_description": described, "pool": pool}
    micro_batches = dice.randint(1, 5)
    wanted, ways = tried(document, stages, micro_batches)
    if not ways:
        with pytest.raises(NoPlanError) as none:
            pooled(document, stages, micro_batches)
        assert none.value.proven
        return
    told = pooled(document, stages, micro_batches)
    assert told["status"] == "optimal" and told["ways"] == told["ways_in_all"] == ways
    assert told["value"] == pytest.approx(wanted, rel=1e-6)


def test_nothing_is_claimed_where_not_all_ways_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_TRIED", 2)
    document = {"layers_description": [layer("a", 10, 1), layer("b", 30, 1)], "pool": [{"name": "k", "devices": 4}]}
    told = pooled(document, 2, 4)
    assert (told["ways"], told["ways_in_all"]) == (1, 3)
    assert told["status"] == "feasible" and told["bound"] == 0 and told["gap"] is None
    assert told["stop_reason"] == "1 of 3 ways to divide the pool were tried"
    tight = document | {"memory_limits": 1}
    tight["layers_description"] = [one | {"memory_parameter": 3} for one in document["layers_description"]]
    with pytest.raises(NoPlanError) as none:
        pooled(tight, 2, 4)
    assert not none.value.proven
