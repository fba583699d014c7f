"""Work and numbers of many signatures at once: of those that differ in sizes alone, a column for each tensor.

`formulas` and `shapes` say what is right, one signature at a time; here the same is reckoned with columns, some hundred
times as fast, and tests hold both against each other. What has no column form (attention, convolutions, lists of
tensors), or does not fit it row by row (products in Ascend's blocked layouts, axes of length 0, sizes beyond 2^53), is
left to those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hyperopt.cost.formulas import Tensor, Uncounted
from hyperopt.cost.shapes import NUMBERS

if TYPE_CHECKING:
    from hyperopt.cost.work import Kind

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

EXACT = 2.0**53


class Column(NamedTuple):
    """One tensor of every row: `sizes` (rows, axes), `elements` and `bytes` (rows)."""

    sizes: I64
    dtype: str
    elements: I64
    bytes: I64

    @classmethod
    def of(cls, sizes: I64, dtype: str) -> Column:
        """Raises `Uncounted` for an unknown element type."""
        elements = np.prod(sizes, axis=1, dtype=np.int64)
        return cls(sizes, dtype, elements, elements * Tensor((1,), dtype).bytes)

    @property
    def rank(self) -> int:
        return self.sizes.shape[1]

    def only(self, chosen: Mask) -> Column:
        return Column(self.sizes[chosen], self.dtype, self.elements[chosen], self.bytes[chosen])


Columns = Sequence[Column]


class Works(NamedTuple):
    """`formulas.Work` of every row. `fits`: rows that this is right for."""

    flops: F64
    read: F64
    written: F64
    fits: Mask


def fitting(sizes: I64) -> Mask:
    """Rows whose sizes can be reckoned with as columns: no empty axis, and nothing beyond 2^53."""
    return np.asarray((sizes > 0).all(axis=1) & (np.prod(sizes.astype(np.float64), axis=1) < EXACT))


def batched(inputs: Columns, outputs: Columns) -> Mask | bool:
    """`work.Table.of`: whether each matrix of the first input meets one of its own."""
    if len(inputs) < 2 or not outputs or inputs[1].rank != outputs[0].rank:
        return False
    matrices, out = inputs[1].sizes[:, :-2], outputs[0].sizes[:, :-2]
    return np.asarray((matrices > 1).any(axis=1) & (matrices == out).all(axis=1))


def works(kind: Kind, inputs: Columns, outputs: Columns) -> Works:
    """Raises `Uncounted` where the formula has no column form, or the tensors are not those that it needs."""
    formula = FORMULAS.get(kind.formula)
    if formula is None or not (inputs or outputs):
        raise Uncounted("no column form")
    flops, read, written = formula(kind, inputs, outputs)
    fits = flops >= 0
    return Works(np.where(fits, flops, 0).astype(np.float64), read.astype(np.float64), written.astype(np.float64), fits)


Three = tuple[I64 | F64, I64, I64]


def _total(columns: Columns, like: I64) -> I64:
    return np.asarray(sum((column.bytes for column in columns), np.zeros_like(like)))


def _moved(inputs: Columns, outputs: Columns, flops: I64 | F64) -> Three:
    like = (*inputs, *outputs)[0].bytes
    return flops, _total(inputs, like), _total(outputs, like)


def _first(columns: Columns, count: int) -> Columns:
    if len(columns) < count:
        raise Uncounted(f"{len(columns)} tensors where {count} are needed")
    return columns[:count]


def _none(inputs: Columns, outputs: Columns) -> I64:
    return np.zeros_like((*inputs, *outputs)[0].elements)


def _each(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    most = np.max([c.elements for c in (*inputs, *outputs)], axis=0)
    return _moved(inputs, outputs, kind.flops * most)


def _each_of_all(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    many = outputs or inputs
    return _moved(inputs, many, kind.flops * np.sum([c.elements for c in many], axis=0))


def _add_all(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    _first(inputs, 1)
    return _moved(inputs, outputs, (len(inputs) - 1) * _first(outputs, 1)[0].elements)


def _move(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    return _moved(inputs, outputs, _none(inputs, outputs))


def _copy(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    none = _none(inputs, outputs)
    over = _overwritten(inputs, outputs) if len(inputs) > 1 else np.zeros(len(none), bool)
    read = np.where(over, _total(inputs[1:], none), _total(inputs, none))
    return none, read, np.where(over, inputs[0].bytes, _total(outputs, none)) if inputs else _total(outputs, none)


def _overwritten(inputs: Columns, outputs: Columns) -> Mask:
    """Rows whose first input keeps its shape, and along which another lies."""
    into, *others = inputs
    alike = np.ones(len(into.elements), bool)
    for column in outputs:
        alike &= (column.sizes == into.sizes).all(axis=1) if column.rank == into.rank else False
    lies = np.zeros_like(alike)
    for column in others:
        if column.rank <= into.rank:
            sizes = _padded(column, into.rank)
            lies |= ((sizes == into.sizes) | (sizes == 1)).all(axis=1)
    return np.asarray(alike & lies)


def _reduced(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    return _moved(inputs, outputs, sum((c.elements for c in inputs), _none(inputs, outputs)))


def _nothing(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    none = _none(inputs, outputs)
    return none, none, none


def _pick(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    table, none = _first(inputs, 1)[0], _none(inputs, outputs)
    out = _total(outputs, none)
    return none, np.minimum(out, table.bytes) + _total(inputs[1:], none), out


def _pick_in_rows(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    table, none = _first(inputs, 1)[0], _none(inputs, outputs)
    classes = table.sizes[:, 1] if table.rank > 1 else table.elements
    return none, table.bytes // classes + _total(inputs[1:], none), _total(outputs, none)


def _put_in_zeros(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    (out,), none = _first(outputs, 1), _none(inputs, outputs)
    values = next((c for c in inputs if c.dtype == out.dtype), None)
    if values is None:
        raise Uncounted(f"no values of {out.dtype} to put")
    read = values.bytes + _total([c for c in inputs if c.dtype != out.dtype], none)
    return none, read, _total(outputs, none)


def _add_in_zeros(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    values = _first(inputs, 2)[1]
    _first(outputs, 1)
    return _moved(inputs, outputs, values.elements)


def _put(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    _first(inputs, 2)
    into, *others = inputs
    values = [c for c in others if c.dtype == into.dtype]
    if not values:
        raise Uncounted(f"no values of {into.dtype} to put")
    size = np.max([c.bytes for c in values], axis=0)
    return np.max([c.elements for c in values], axis=0), _total(others, size) + size, size


def _rows(inputs: Columns) -> tuple[I64, I64]:
    """Elements and bytes of what `formulas.segment_sum` adds up."""
    whole = [c for c in inputs if Tensor((), c.dtype).whole]
    if not whole:
        raise Uncounted("no rows to add up")
    elements = np.stack([c.elements for c in whole])
    which, every = elements.argmax(axis=0), np.arange(elements.shape[1])
    return elements[which, every], np.stack([c.bytes for c in whole])[which, every]


def _segment_sum(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    elements, size = _rows(inputs)
    flops, read, written = _moved(inputs, outputs, elements)
    return flops, read + size, written + size


def _add_rows(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    elements, size = _rows(inputs)
    return elements, _total(inputs, size) + size, size


def _fill(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    none = _none(inputs, _first(outputs, 1))
    return none, none, _total(outputs, none)


def _update(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    states = _first(inputs, kind.updates + 1)[: kind.updates]
    like = inputs[0].bytes
    return kind.flops * states[0].elements, _total(inputs, like), _total(states, like)


def _update_apart(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    flops, read, written = _update(kind, inputs, outputs)
    return flops, read, written + _first(outputs, 1)[0].bytes


def _sort(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    keys = _first(inputs, 1)[0]
    row = keys.sizes[:, -1] if keys.rank else np.ones_like(keys.elements)
    return _moved(inputs, outputs, np.where(row > 1, np.rint(keys.elements * np.log2(row)), keys.elements))


def _matmul(kind: Kind, inputs: Columns, outputs: Columns) -> Three:
    """Where the last two axes are the matrices; other rows do not fit."""
    a, b = _first(inputs, 2)
    (out,) = _first(outputs, 1)
    if min(a.rank, b.rank, out.rank) < 2 or max(a.rank, b.rank) != out.rank:
        raise Uncounted("matrices are not the last two axes")
    left, right, front = _padded(a, out.rank), _padded(b, out.rank), out.sizes[:, :-2]
    (m, n), (a0, a1), (b0, b1) = out.sizes[:, -2:].T, left[:, -2:].T, right[:, -2:].T
    left, right = left[:, :-2], right[:, :-2]
    fits = ((left == front) & (right == front) | (left == 1) & (right == front) | (right == 1) & (left == front)).all(
        axis=1
    )
    inner = np.where(a0 == m, a1, a0)
    fits &= ((a0 == m) | (a1 == m)) & ((b0 == n) | (b1 == n)) & (inner == np.where(b1 == n, b0, b1))
    fits &= 2.0 * out.elements * inner < EXACT
    flops = 2 * out.elements * np.where(fits, inner, 0)
    if len(inputs) > 2:
        flops = flops + np.where(inputs[2].elements > 1, out.elements, 0)
    return _moved(inputs, outputs, np.where(fits, flops, -1))


def _padded(column: Column, rank: int) -> I64:
    """Sizes with axes of length 1 in front."""
    if column.rank >= rank:
        return column.sizes
    return np.pad(column.sizes, ((0, 0), (rank - column.rank, 0)), constant_values=1)


FORMULAS: Mapping[str, Callable[[Kind, Columns, Columns], Three]] = {
    "each": _each, "each_of_all": _each_of_all, "add_all": _add_all, "move": _move, "copy": _copy, "reduced": _reduced,
    "nothing": _nothing, "pick": _pick, "pick_in_rows": _pick_in_rows, "put": _put, "put_in_zeros": _put_in_zeros,
    "add_in_zeros": _add_in_zeros, "segment_sum": _segment_sum, "add_rows": _add_rows, "fill": _fill,
    "update": _update, "update_apart": _update_apart, "sort": _sort, "matmul": _matmul,
}  # fmt: skip


def numbers_of(found: Works, inputs: Columns, outputs: Columns) -> F64:
    """`shapes.numbers_of` of every row: (rows, len(NUMBERS)). Rows whose largest tensors stand at the same places are
    reckoned together."""
    every = (*inputs, *outputs)
    elements = np.stack([c.elements for c in every])
    count = len(inputs)
    large = elements.argmax(axis=0)
    out = count + elements[count:].argmax(axis=0) if outputs else large
    first = elements[:count].argmax(axis=0) if inputs else large
    small = large
    if inputs:
        many = np.where(elements[:count] > 1, elements[:count], np.iinfo(np.int64).max)
        small = np.where((elements[:count] > 1).any(axis=0), many.argmin(axis=0), large)
    roles = np.stack([large, out, first, small])
    code = np.ravel_multi_index(tuple(roles), (len(every),) * 4)
    numbers = np.empty((len(code), len(NUMBERS)), order="F")
    for one in np.unique(code):
        mine = code == one
        places = roles[:, int(np.argmax(mine))].tolist()
        some = every if mine.all() else [c.only(mine) for c in every]
        columns = _of_one(some[:count], *(some[place] for place in places))
        work = (np.log1p(f[mine]) for f in (found.flops, found.read, found.written, found.read + found.written))
        flops, read, written, moved = work
        numbers[mine] = np.column_stack([flops, read, written, flops - moved, *columns])
    return numbers


def _of_one(inputs: Columns, large: Column, out: Column, first: Column, small: Column) -> list[F64]:
    """All numbers but those of the work."""
    one = np.ones(len(large.elements))
    none = np.zeros(len(large.elements))

    def axis(column: Column, place: int) -> F64:
        return column.sizes[:, place].astype(np.float64) if column.rank else one

    last = axis(large, -1)
    kept_last = (first.sizes[:, -1] == out.sizes[:, -1]).astype(np.float64) if first.rank and out.rank else none
    blocked = (first.sizes[:, -2:] == 16).all(axis=1).astype(np.float64) if first.rank >= 4 else none
    return [
        np.log1p(out.elements), np.log1p(first.elements), one * len(inputs), one * large.rank, np.log1p(axis(large, 0)),
        np.log1p(axis(first, -1)), np.log1p(axis(out, -1)), *_matrices(inputs, out, one), *_spread(inputs, large, none),
        kept_last, (large.bytes // large.elements).astype(np.float64), blocked,
        (last % 16 == 0).astype(np.float64) + (last % 8 == 0),
        np.log1p(_kept(first.sizes[:, ::-1], out.sizes[:, ::-1])), np.log1p(_kept(first.sizes, out.sizes)),
        *_repeated(small, large), one * out.rank,
    ]  # fmt: skip


def _kept(went_in: I64, came_out: I64) -> I64:
    size, going = np.ones(len(went_in), np.int64), np.ones(len(went_in), bool)
    for a, b in zip(went_in.T, came_out.T, strict=False):
        going &= a == b
        size = np.where(going, size * a, size)
    return size


def _repeated(small: Column, large: Column) -> tuple[F64, F64]:
    repeat, going = np.ones(len(large.elements), np.int64), np.ones(len(large.elements), bool)
    for a, b in zip(_padded(small, large.rank)[:, ::-1].T, large.sizes[:, ::-1].T, strict=False):
        going &= a == 1
        repeat = np.where(going, repeat * b, repeat)
    return np.log1p(small.elements), np.log1p(repeat)


def _matrices(inputs: Columns, out: Column, one: F64) -> tuple[F64, F64, F64, F64, F64, F64]:
    none = 0.0 * one
    if out.rank < 2:
        return np.log1p(one), np.log1p(out.elements), none, np.log1p(one), none, none
    rows, columns = out.sizes[:, -2], out.sizes[:, -1]
    sizes = np.log1p(rows), np.log1p(columns)
    number = np.log1p(np.prod(out.sizes[:, :-2], axis=1))
    if len(inputs) < 2 or min(c.rank for c in inputs[:2]) < 2:
        return *sizes, none, number, none, none
    a, b = inputs[0].sizes[:, -2:], inputs[1].sizes[:, -2:]
    left = (a[:, 0] != rows) & (a[:, 1] == rows)
    right = (b[:, 1] != columns) & (b[:, 0] == columns)
    return *sizes, np.log1p(a[:, 0] * a[:, 1] / rows), number, left.astype(np.float64), right.astype(np.float64)


def _spread(inputs: Columns, large: Column, none: F64) -> tuple[F64, F64, F64]:
    last, first, one = none.copy(), none.copy(), none.copy()
    for column in inputs:
        single = column.elements == 1
        one[single] = 1.0
        if not large.rank:
            continue
        padded = _padded(column, large.rank)
        less = ~single & (column.elements < large.elements)
        last[less & (padded[:, -1] == 1) & (large.sizes[:, -1] > 1)] = 1.0
        first[less & (padded[:, 0] == 1) & (large.sizes[:, 0] > 1)] = 1.0
    return last, first, one
