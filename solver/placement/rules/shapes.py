"""Operators that move elements or add them up: transposes, reshapes, pieces, reductions."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from hyperopt.graph import Operator, Tensor
from solver.placement.rules.registry import Shape, blank, rule
from solver.placement.signature import Signature


@rule("Transpose", "TransposeView", "TransposeExtView")
def _transpose(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    order = operator.attributes.get("perm")
    shape = inputs[0].shape
    if order is None or sorted(order) != list(range(len(shape))):
        return None
    names = tuple(f"d{i}" for i in range(len(shape)))
    blanks = blank(inputs[1:])
    units = dict(zip(names, shape, strict=True))
    return Signature((names, *blanks), (tuple(names[i] for i in order),), units, linear=((0,),))


@rule("Reshape", "ExpandDims", "Squeeze", "Flatten", "View")
def _reshape(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Dimensions fall into groups of equal products; a group is cut along the first of its dimensions."""
    before, after = inputs[0].shape, outputs[0].shape
    if prod(before) != prod(after):
        return None
    labels: list[list[str]] = [[""] * len(before), [""] * len(after)]
    units: dict[str, int] = {}
    for number, (left, right) in enumerate(_groups(before, after)):
        i = next((i for i in left if before[i] > 1), None)
        j = next((j for j in right if after[j] > 1), None)
        if i is None or j is None:
            continue
        labels[0][i] = labels[1][j] = f"g{number}"
        units[f"g{number}"] = gcd(before[i], after[j])
    blanks = blank(inputs[1:])
    return Signature((tuple(labels[0]), *blanks), (tuple(labels[1]),), units, linear=((0,),))


def _groups(before: Shape, after: Shape) -> list[tuple[range, range]]:
    """Runs of dimensions on both sides with the same number of elements, as short as they come."""
    found, i, j = [], 0, 0
    while i < len(before) and j < len(after):
        first_i, first_j, a, b = i, j, before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * before[i], i + 1
            else:
                b, j = b * after[j], j + 1
        found.append((range(first_i, i), range(first_j, j)))
    return found


@rule("Concat", "Split", "SplitD", "ConcatD", "SplitGrad", "ConcatGrad")
def _pieces(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Pieces along one dimension, which stays whole; the others may be cut."""
    tensors = (*inputs, *outputs)
    ranks = {len(t.shape) for t in tensors}
    if len(ranks) != 1:
        return None
    shapes = [t.shape for t in tensors]
    equal = [len({shape[d] for shape in shapes}) == 1 for d in range(ranks.pop())]
    axis = operator.attributes.get("axis")
    if axis is not None:
        equal[int(axis) % len(equal)] = False
    elif all(equal):
        return None
    names = tuple(f"d{i}" if same else "" for i, same in enumerate(equal))
    units = {n: shapes[0][i] for i, n in enumerate(names) if n}
    linear = (tuple(range(len(inputs))),)
    pieces = outputs if len(outputs) > 1 else inputs
    if operator.attributes.get("grouped") and len({t.shape for t in pieces}) == 1 and not equal[0]:
        # Every device takes chunks of its own rows: another order of rows, told by `grouped`.
        names = ("rows", *names[1:])
        units["rows"] = pieces[0].shape[0]
        whole = len(inputs) if len(outputs) == 1 else 0
        return Signature((names,) * len(inputs), (names,) * len(outputs), units, linear=linear, grouped=(whole,))
    return Signature((names,) * len(inputs), (names,) * len(outputs), units, linear=linear)


@rule("StridedSlice", "Slice", "SliceExt", "BroadcastTo", "Tile", "StridedSliceGrad", "PadV3", "Pad")
def _window(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Dimensions that keep their length may be cut, the others stay whole."""
    before, after = inputs[0].shape, outputs[0].shape
    if len(outputs) != 1 or (len(before) != len(after) and operator.type not in ("BroadcastTo", "Tile")):
        return None
    shift = len(after) - len(before)
    if shift < 0:
        return None
    names = tuple(f"d{i}" for i in range(len(after)))
    kept = {i for i in range(shift, len(after)) if before[i - shift] == after[i]}
    fresh = operator.type in ("BroadcastTo",)
    out = tuple(n if i in kept or fresh else "" for i, n in enumerate(names))
    source = tuple(names[i + shift] if i + shift in kept else "" for i in range(len(before)))
    blanks = blank(inputs[1:])
    units = {n: after[i] for i, n in enumerate(names) if out[i]}
    return Signature((source, *blanks), (out,), units, linear=((0,),))


# -- reductions ----------------------------------------------------------------------------------------------


@rule("ReduceSum", "ReduceMean", "SumExt", "MeanExt", "BiasAddGrad", "SquareSum", "ReduceMax", "ReduceMin")
def _reduction(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Over the dimensions that `axis` names or the output lacks; a cut one leaves a partial sum."""
    shape, after = inputs[0].shape, outputs[0].shape
    gone = _reduced(operator, shape, after)
    if gone is None:
        return None
    names = [f"d{i}" for i in range(len(shape))]
    if operator.type in ("ReduceMax", "ReduceMin"):
        for i in gone:
            names[i] = ""
    kept = [n for i, n in enumerate(names) if i not in gone]
    if len(after) == len(shape) and shape:
        out = tuple("" if i in gone else n for i, n in enumerate(names))
    elif len(after) == len(kept):
        out = tuple(kept)
    else:
        out = tuple("" for _ in after)
    blanks = blank(inputs[1:])
    units = {n: shape[i] for i, n in enumerate(names) if n}
    linear = () if operator.type in ("SquareSum", "ReduceMax", "ReduceMin") else ((0,),)
    return Signature((tuple(names), *blanks), (out,), units, linear=linear)


def _reduced(operator: Operator, shape: Shape, after: Shape) -> set[int] | None:
    if operator.type == "BiasAddGrad":
        return {0} if len(shape) == 2 else None  # of more dimensions the format decides
    axis = operator.attributes.get("axis")
    if axis is not None:
        given = [axis] if isinstance(axis, int) else list(axis)
        return {int(a) % len(shape) for a in given} if given else set(range(len(shape)))
    if prod(after) == 1:
        return set(range(len(shape)))
    if len(after) == len(shape):
        return {i for i in range(len(shape)) if shape[i] != after[i]}
    if shape[: len(after)] == after and shape[len(shape) - len(after) :] != after:
        return set(range(len(after), len(shape)))
    return None


@rule("MulReduceSum")
def _scaled_sum(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """sum of a x b over all but the last dimensions, those of the output."""
    shape, after = inputs[0].shape, outputs[0].shape
    names = tuple(f"d{i}" for i in range(len(shape)))
    if shape[len(shape) - len(after) :] != after or any(t.shape not in (shape, after) for t in inputs):
        return None
    tail = names[len(shape) - len(after) :]
    operands = tuple(names if t.shape == shape else tail for t in inputs)
    added = tuple((i, 0) for i, t in enumerate(inputs) if t.shape == after)
    return Signature(operands, (tail,), dict(zip(names, shape, strict=True)), accumulators=added)


@rule("ClipByGlobalNorm", "Fill", "Idle")
def _scalars(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Of single numbers: nothing to cut."""
    if any(prod(t.shape) > 1 for t in (*inputs, *outputs)):
        return None
    return Signature(blank(inputs), blank(outputs), {})
