"""What trees and neighbours see of a signature's shapes: one row of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from hyperopt.cost.formulas import Tensor, Work

NUMBERS = (
    "flops", "read", "written", "intensity", "elements_out", "elements_in", "inputs", "rank", "first", "last_in",
    "last_out", "rows", "columns", "inner", "matrices", "left_turned", "right_turned", "spread_last", "spread_first",
    "spread_one", "kept_last", "item", "blocked", "aligned", "kept_end", "kept_start", "smallest", "repeat", "rank_out",
)  # fmt: skip
"""Columns of `Signatures.numbers`; sizes as natural logarithms of 1 + size. `blocked`: Ascend's layouts of 16 x 16
blocks, which shapes show; `spread_*`: an input is repeated along the last or the first axes, or is a single number;
`kept_last`: the last axis stays last (a transpose that moves it costs more); `aligned`: the last axis by 16 and 8;
`kept_end`, `kept_start`: product of the last and of the first axes that come out as they went in (what is copied,
reduced or transposed in one piece); `smallest`: of the inputs that are no single number; `repeat`: how often the
smallest input's numbers are used one after the other."""

NONE = Tensor((), "float32")


def numbers_of(work: Work, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[float]:
    """One row of `NUMBERS`. Logarithms are NumPy's, as in `columns`: those of `math` differ in the last bit, trees are
    cut between such, and a prediction would depend on how many others are asked for with it."""
    large = max((*inputs, *outputs), key=lambda t: t.elements, default=NONE)
    out = max(outputs, key=lambda t: t.elements, default=large)
    first = max(inputs, key=lambda t: t.elements, default=large)
    rows, columns, inner, matrices, left, right = _matrices(inputs, out)
    last = large.shape[-1] if large.shape else 1
    sizes = (
        work.flops, work.read, work.written, work.bytes, out.elements, first.elements,
        large.shape[0] if large.shape else 1, first.shape[-1] if first.shape else 1,
        out.shape[-1] if out.shape else 1, rows, columns, inner, matrices,
        _kept(first.shape[::-1], out.shape[::-1]), _kept(first.shape, out.shape), *_repeated(inputs, large),
    )  # fmt: skip
    flops, read, written, moved, *ends = np.log1p(np.array([float(size) for size in sizes])).tolist()
    return [
        flops, read, written, flops - moved, *ends[:2], float(len(inputs)), float(len(large.shape)), *ends[2:9], left,
        right, *_spread(inputs, large),
        float(bool(first.shape and out.shape) and first.shape[-1] == out.shape[-1]),
        float(large.bytes // max(large.elements, 1)),
        float(len(first.shape) >= 4 and first.shape[-2:] == (16, 16)),
        float((last % 16 == 0) + (last % 8 == 0)),
        *ends[9:], float(len(out.shape)),
    ]  # fmt: skip


def _kept(went_in: tuple[int, ...], came_out: tuple[int, ...]) -> int:
    """Product of the first axes that are the same."""
    size = 1
    for a, b in zip(went_in, came_out, strict=False):
        if a != b:
            break
        size *= a
    return size


def _repeated(inputs: Sequence[Tensor], large: Tensor) -> tuple[int, int]:
    """The smallest input's elements, and the product of the last axes that it is repeated along."""
    small = min((t for t in inputs if t.elements > 1), key=lambda t: t.elements, default=large)
    padded = (1,) * (len(large.shape) - len(small.shape)) + small.shape
    repeat = 1
    for a, b in zip(padded[::-1], large.shape[::-1], strict=False):
        if a != 1:
            break
        repeat *= b
    return small.elements, repeat


def _matrices(inputs: Sequence[Tensor], out: Tensor) -> tuple[float, float, float, float, float, float]:
    """Rows, columns, inner length and number of a product's matrices, and whether they are turned. For other operators
    the last two axes of what comes out, and the number of such."""
    if len(out.shape) < 2:
        return 1, out.elements, 0, 1, 0.0, 0.0
    rows, columns = out.shape[-2:]
    number = prod(out.shape[:-2])
    if len(inputs) < 2 or min(len(t.shape) for t in inputs[:2]) < 2:
        return rows, columns, 0, number, 0.0, 0.0
    a, b = inputs[0].shape[-2:], inputs[1].shape[-2:]
    inner = prod(a) / max(rows, 1)
    turned = float(a[0] != rows and a[1] == rows), float(b[1] != columns and b[0] == columns)
    return rows, columns, inner, number, *turned


def _spread(inputs: Sequence[Tensor], large: Tensor) -> tuple[float, float, float]:
    """Whether an input is repeated along the last axis, along the first ones, or is a single number."""
    last = first = one = 0.0
    for tensor in inputs:
        if tensor.elements == 1:
            one = 1.0
        elif tensor.elements < large.elements and large.shape:
            padded = (1,) * (len(large.shape) - len(tensor.shape)) + tensor.shape
            last = max(last, float(padded[-1] == 1 < large.shape[-1]))
            first = max(first, float(padded[0] == 1 < large.shape[0]))
    return last, first, one
