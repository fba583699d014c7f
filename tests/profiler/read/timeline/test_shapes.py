"""Shapes and types of both sides of a kernel, as an operator lists them."""

from __future__ import annotations

import pytest

from profiler.read.timeline.shapes import signature


@pytest.mark.parametrize(
    ("given", "shapes", "dtypes", "inputs"),
    [
        (("4,5;5,6", "DT_BF16;FLOAT", "4,6", "DT_BF16"), ((4, 5), (5, 6), (4, 6)), ("bf16", "float", "bf16"), 2),
        (("8;;", "FLOAT;FLOAT;INT64", "8", "FLOAT"), ((8,), (8,)), ("float", "float"), 1),  # scalars have no shape
        ((";", "FLOAT;FLOAT", "", "FLOAT"), (), (), 0),  # all scalars: known, and none has a shape
        (("8;8", "FLOAT;FLOAT", "N/A", "N/A"), ((8,), (8,)), ("float", "float"), 2),  # in place
        (("N/A", "N/A", "36864", "UINT8"), ((36864,),), ("uint8",), None),  # what goes in is not said
        (("N/A", "N/A", "N/A", "N/A"), (), (), None),
        ((None, None, None, None), (), (), None),
    ],
)
def test_what_goes_in_is_counted(
    given: tuple[str | None, str | None, str | None, str | None],
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[str, ...],
    inputs: int | None,
) -> None:
    assert signature(*given) == (shapes, dtypes, inputs)
