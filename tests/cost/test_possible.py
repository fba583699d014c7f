"""Stored models that say what cannot be are refused, by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from hyperopt.cost import model as models
from hyperopt.cost.features import NUMBERS, rows_of
from hyperopt.cost.predicted import predicted
from hyperopt.cost.work import Table
from hyperopt.documents import DocumentError
from tests.cost.synthetic import device, operator

Tree = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> bytes:
    return msgspec.json.encode(models.fit(rows_of(device(1, 150), Table.load())))


def set_at(*path: str | int, value: object) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        place: Any = tree
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


LINK = {"latency_us": 1.0, "alone": 1.0, "capacity": 0.0}
MESSAGES = {"latency_us": 1.0, "bytes_per_s": -1.0, "sizes": 3, "error": 0.0}


PROCESS = {
    "sizes": [1.0] * 6, "lengths": [1.0] * 3, "reach": [1.0] * 4, "types": ["Add"], "families": ["elementwise"],
    "type_of": [0], "family_of": [0], "work": [1.0, 1.0], "shapes": [], "middle": [0.0] * len(NUMBERS),
    "width": [1.0] * len(NUMBERS), "weights": [1.0], "ranges": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (set_at("families", "matmul", "latency_us", value=-1.0), "$.families.matmul.latency_us"),
        (set_at("shared", "bytes_per_us", value=0.0), "$.shared.bytes_per_us"),
        (set_at("shared", "flops_per_us", value=-5.0), "$.shared.flops_per_us"),
        (set_at("links", value={"CopyIn": LINK}), "$.links.CopyIn.capacity"),
        (set_at("messages", value={"HCCS": MESSAGES}), "$.messages.HCCS.bytes_per_s"),
        (set_at("errors", "by_class", "matmul", value=[1.0, 0.0]), "$.errors.by_class.matmul"),
        (set_at("seen", value={"a": [-1.0, 1, 0.0]}), "$.seen.a[0]"),
        (set_at("seen", value={"a": [1.0, 0, 0.0]}), "$.seen.a[1]"),
        (set_at("seen_in", value={"a": [1.0]}), "$.seen_in.a"),
        (set_at("seen_in", value={"a": [1.0, -1.0]}), "$.seen_in.a[1]"),
        (set_at("ranges", "matmul", value=[9.0, 1.0, 1.0, 9.0]), "$.ranges.matmul"),
        (
            set_at("learned", "memory", "ranges", "elementwise", value=[1, 9, 9, 1]),
            "$.learned.memory.ranges.elementwise",
        ),
        (set_at("scores", "matmul", "used", value="magic"), "$.scores.matmul.used"),
        (set_at("learned", value={}), "$.scores.elementwise.used"),
        (set_at("learned", "memory", "order", value={}), "$.learned.memory.trees.features"),
        (set_at("counts", "matmul", value=-3), "$.counts.matmul"),
        (set_at("errors", "counts", "riddle", value=3), "$.errors.by_class.riddle"),
        (set_at("data_digest", value="sha256:00"), "$.data_digest"),
        (set_at("signatures", value=-1), "$.signatures"),
        (set_at("process", value=PROCESS), "$.process.shapes"),
    ],
)
def test_what_cannot_be_is_refused_by_field(document: bytes, change: Callable[[Tree], None], field: str) -> None:
    tree = msgspec.json.decode(document)
    change(tree)
    with pytest.raises(DocumentError, match="fit the model again") as refused:
        models.load(msgspec.json.encode(tree))
    assert refused.value.field == field


def test_trees_that_are_none_are_refused_where_they_are_read(document: bytes) -> None:
    tree = msgspec.json.decode(document)
    group, learned = next(iter(tree["learned"].items()))
    learned["trees"]["left"] = [10**6] * len(learned["trees"]["left"])
    with pytest.raises(DocumentError) as refused:
        models.load(msgspec.json.encode(tree))
    assert refused.value.field == f"$.learned.{group}.trees"


def test_a_place_outside_of_a_process_is_refused(document: bytes) -> None:
    tree = msgspec.json.decode(document)
    whole = PROCESS | {"shapes": [1.0] * len(NUMBERS)}
    models.load(msgspec.json.encode(tree | {"process": whole}))
    with pytest.raises(DocumentError, match="outside the 1 that there are") as refused:
        models.load(msgspec.json.encode(tree | {"process": whole | {"type_of": [3]}}))
    assert refused.value.field == "$.process.type_of"


def test_unknown_fields_and_a_model_of_no_device_are_warned_of(document: bytes) -> None:
    tree = msgspec.json.decode(document)
    assert models.read(document)[1] == []
    tree["surprise"], tree["device"] = 1, ""
    tree["learned"]["memory"]["trees"]["more"] = tree["shared"]["more"] = 2
    _, warnings = models.read(msgspec.json.encode(tree))
    assert warnings[:3] == [
        f"unknown field {name} left out" for name in ("$.learned{}.trees.more", "$.shared.more", "$.surprise")
    ]
    assert warnings[3].startswith("$.device is empty")


def test_times_that_no_profile_may_say_are_refused_by_operator(document: bytes) -> None:
    huge = operator("Add", [(1 << 31, 1 << 40)] * 2, [(1 << 31, 1 << 40)], 1.0)
    few = structs.replace(device(1, 3), operators=(*device(1, 3).operators, huge))
    with pytest.raises(DocumentError, match=r"Add on .* is predicted to take up to") as refused:
        predicted(few, models.load(document), Table.load())
    assert refused.value.field == "$.operators[3]" and refused.value.remedy


@pytest.mark.parametrize("text", [b"1e999", b"NaN", b"-Infinity"])
def test_numbers_that_are_not_finite_are_refused(document: bytes, text: bytes) -> None:
    latency = msgspec.json.encode(msgspec.json.decode(document)["shared"]["latency_us"])
    with pytest.raises(DocumentError):
        models.load(document.replace(b'"latency_us":' + latency, b'"latency_us":' + text))
