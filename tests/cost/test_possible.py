"""Stored models that say what cannot be are refused, by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hyperopt.cost import model as models
from hyperopt.cost.features import rows_of
from hyperopt.cost.work import Table
from hyperopt.documents import DocumentError
from tests.cost.synthetic import device

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


@pytest.mark.parametrize("text", [b"1e999", b"NaN", b"-Infinity"])
def test_numbers_that_are_not_finite_are_refused(document: bytes, text: bytes) -> None:
    latency = msgspec.json.encode(msgspec.json.decode(document)["shared"]["latency_us"])
    with pytest.raises(DocumentError):
        models.load(document.replace(b'"latency_us":' + latency, b'"latency_us":' + text))
