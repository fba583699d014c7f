"""The mesh document: which links an axis has, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hyperopt.documents import DocumentError
from hyperopt.mesh import Level, Mesh, check, load

SUPERNODE = (
    Level(devices=16, bytes_per_s=200e9, latency_us=2),
    Level(devices=384, bytes_per_s=25e9, latency_us=8),
    Level(bytes_per_s=10e9, latency_us=20),
)


def document(**changes: Any) -> dict[str, Any]:
    return {
        "format": "hyperopt.mesh/1",
        "shape": [2, 4],
        "axes": ["dp", "tp"],
        "levels": [{"devices": 4, "bytes_per_s": 2e11}, {"bytes_per_s": 1e10}],
        **changes,
    }


def read(**changes: Any) -> Mesh:
    return load(json.dumps(document(**changes)).encode())[0]


@pytest.mark.parametrize(
    ("shape", "spans"),
    [
        ((16,), (0,)),
        ((4, 16), (1, 0)),
        ((16, 4), (1, 0)),
        ((48, 16), (2, 0)),
        ((2, 24, 16), (2, 1, 0)),
        ((2, 24, 4, 4), (2, 1, 0, 0)),
        ((32,), (1,)),
    ],
)
def test_an_axis_talks_at_the_level_that_holds_its_devices(shape: tuple[int, ...], spans: tuple[int, ...]) -> None:
    mesh = Mesh(shape=shape, axes=tuple("abcd"[: len(shape)]), levels=SUPERNODE)
    check(mesh)
    assert mesh.spans == spans
    assert mesh.level(0) is SUPERNODE[spans[0]]


def test_ranks_decide_which_devices_are_neighbours() -> None:
    plain, turned = read(), read(ranks=[0, 2, 4, 6, 1, 3, 5, 7])
    assert plain.spans == (1, 0)
    assert turned.spans == (0, 1)
    assert turned.groups(0).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_what_is_written_is_read_again() -> None:
    import msgspec

    mesh = read(ranks=[3, 2, 1, 0, 7, 6, 5, 4])
    assert load(msgspec.json.encode(mesh))[0] == mesh


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"axes": ["dp"]}, "$.axes"),
        ({"axes": ["dp", "dp"]}, "$.axes[1]"),
        ({"axes": ["dp", "t p"]}, "$.axes[1]"),
        ({"ranks": [0, 1]}, "$.ranks"),
        ({"ranks": [0, 1, 2, 3, 4, 5, 6, 6]}, "$.ranks[7]"),
        ({"levels": []}, "$.levels"),
        ({"levels": [{"bytes_per_s": 1e9}, {"bytes_per_s": 1e9}]}, "$.levels[0].devices"),
        ({"levels": [{"devices": 4, "bytes_per_s": 1e9}, {"devices": 6, "bytes_per_s": 1e9}]}, "$.levels[1].devices"),
        ({"levels": [{"devices": 4, "bytes_per_s": 1e9}]}, "$.levels[0].devices"),
        ({"levels": [{"bytes_per_s": 0}]}, "$.levels[0].bytes_per_s"),
        ({"shape": [0, 4]}, "$.shape[0]"),
        ({"shape": [2048, 1024]}, "$.shape"),
        ({"format": "hyperopt.mesh/2"}, "$.format"),
    ],
)
def test_what_contradicts_itself_is_refused_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(DocumentError) as refusal:
        read(**changes)
    assert refusal.value.field == field
    assert refusal.value.remedy


def test_an_axis_is_found_by_name() -> None:
    assert read().axis("tp") == 1
    with pytest.raises(DocumentError, match="dp, tp"):
        read().axis("pp")
