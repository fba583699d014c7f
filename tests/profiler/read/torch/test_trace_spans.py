"""Events sorted into columns: the short ways for ordinary events give what the long ones give."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.read.labels import label
from profiler.read.torch.trace_spans import Names, Trace, nanoseconds


@given(st.text(max_size=450))
def test_a_text_that_is_there_is_its_own_label(text: str) -> None:
    names = Names()
    first = names.label(text)
    assert names.texts == [label(text)] and label(label(text)) == label(text)
    assert names.label(text) == names.label(label(text)) == first


@pytest.mark.parametrize("order", list(permutations([1, "1", True])))
def test_lanes_are_told_apart_in_whatever_order_they_come(order: tuple[Any, ...]) -> None:
    trace = Trace()
    lanes = {(type(one), one): trace.lane({"pid": one, "tid": one}) for one in order}
    assert lanes[int, 1] == lanes[str, "1"] != lanes[bool, True]
    assert [trace.lane({"pid": one, "tid": one}) for one in order] == [lanes[type(one), one] for one in order]


@given(st.from_regex(r"[ +-]?[0-9\u0660-\u0663_]{0,19}\.?[0-9\u0660-\u0663_]{0,4} ?", fullmatch=True))
def test_times_are_the_same_in_short_and_in_long(text: str) -> None:
    """A blank before it goes the long way."""
    assert nanoseconds(text) == nanoseconds(" " + text)


def test_spans_come_back_in_order_of_start() -> None:
    trace = Trace()
    for start, name in ((5, "b"), (1, "a\nb"), (5, "c")):
        args = {"correlation": start, "External id": "7", "Input Dims": [[2, 3]], "Input type": ["float"]}
        trace.add({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 2, "ts": start, "dur": 1, "args": args})
    frame = trace.frame()
    assert frame["name"].to_list() == ["a b", "b", "c"] and frame["start"].to_list() == [1000, 5000, 5000]
    assert frame.select("link", "operator", "device").rows() == [(1, 7, -1), (5, 7, -1), (5, 7, -1)]
    assert frame["kind"].to_list() == ["kernel"] * 3 and frame["shapes"].null_count() == 0
    assert Trace().frame().height == 0
