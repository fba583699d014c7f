"""The plan's sharding: typed, validated, the same after a round trip."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from hyperopt.documents import DocumentError, canonical
from hyperopt.plan import Plan, load


def sharding(**layout: Any) -> dict[str, Any]:
    return {
        "mesh": {
            "format": "hyperopt.mesh/1",
            "shape": [2, 4],
            "axes": ["dp", "tp"],
            "levels": [{"bytes_per_s": 1e9}],
        },
        "layouts": {"w": {"shape": [16, 8], "dims": [["dp", "tp"], []], "kind": "parameter", **layout}},
        "operators": {"MatMul-op0": [[2, 1], [1, 4]]},
    }


def read(given: dict[str, Any]) -> Plan:
    return load(json.dumps({"format": "hyperopt.plan/1", "sharding": given}).encode())[0]


def test_it_survives_a_round_trip() -> None:
    plan = read(sharding(copies={"forward": [[], []]}, grouped=True))
    again, warnings = load(canonical(plan))
    assert again == plan
    assert not warnings
    assert plan.sharding is not None
    assert plan.sharding.layouts["w"].dims == (("dp", "tp"), ())


def test_another_layout_is_another_plan() -> None:
    assert read(sharding()).content_id != read(sharding(dims=[[], ["tp"]])).content_id


def test_unknown_fields_are_told() -> None:
    given = sharding()
    given["colour"] = "red"
    _, warnings = load(json.dumps({"format": "hyperopt.plan/1", "sharding": given}).encode())
    assert warnings == ["unknown field $.sharding.colour left out"]


@pytest.mark.parametrize(
    ("layout", "field", "problem"),
    [
        ({"dims": [["dp"]]}, "$.sharding.layouts['w'].dims", "1 dimensions"),
        ({"dims": [["dp"], ["pp"]]}, "$.sharding.layouts['w'].dims", "no axis 'pp'"),
        ({"dims": [["dp"], ["dp"]]}, "$.sharding.layouts['w'].dims", "twice"),
        ({"dims": [["dp"], []], "partial": ["dp"]}, "$.sharding.layouts['w'].dims", "twice"),
        ({"dims": [["tp", "dp"], []]}, "$.sharding.layouts['w'].dims", "tp x dp against the order of the mesh"),
        ({"shape": [6, 8]}, "$.sharding.layouts['w'].dims", "6 cannot be cut into 8"),
        ({"copies": {"backward": [["tp"], ["tp"]]}}, "$.sharding.layouts['w'].copies.backward", "twice"),
        ({"copies": {"sideways": [[], []]}}, "$.sharding.layouts[...].copies[...]", "sideways"),
    ],
)
def test_what_contradicts_itself_is_refused(layout: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(DocumentError) as refusal:
        read(sharding(**layout))
    if "..." not in field:
        assert refusal.value.field == field
    assert problem in str(refusal.value)


def test_a_bad_mesh_is_refused_where_it_stands() -> None:
    given = sharding()
    given["mesh"]["axes"] = ["dp", "dp"]
    with pytest.raises(DocumentError) as refusal:
        read(given)
    assert refusal.value.field == "$.sharding.mesh.axes[1]"


def test_an_absent_sharding_stays_null() -> None:
    assert msgspec.json.decode(canonical(Plan()))["sharding"] is None


RANKS = [15, 14, 13, 12, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("devices", "field", "problem"),
    [
        ([[15, 14, 13, 12], [3, 2, 1, 4]], "$.stages[1].devices", "no rank 4"),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], "$.stages[1].devices", "no rank 4"),
        ([[*RANKS[:-1], 9], list(range(20, 28))], "$.stages[0].devices", "no rank 9"),
        ([RANKS, [20, 21]], "$.stages[1].devices", "2 devices where the mesh of the first stage has 8"),
    ],
)
def test_stages_stand_on_the_meshs_ranks(devices: list[list[int]], field: str, problem: str) -> None:
    given = sharding()
    given["mesh"]["ranks"] = RANKS
    plan = {"format": "hyperopt.plan/1", "sharding": given}
    for good in ([RANKS], [RANKS[:4], RANKS[4:]], [RANKS, list(range(20, 28))]):
        load(json.dumps(plan | {"stages": [{"devices": ranks} for ranks in good]}).encode())
    with pytest.raises(DocumentError) as refused:
        load(json.dumps(plan | {"stages": [{"devices": ranks} for ranks in devices]}).encode())
    assert refused.value.field == field and problem in str(refused.value)
