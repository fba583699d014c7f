"""Operators that move elements or add them up: transposes, reshapes, pieces, reductions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
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
    """Over the dimensions that `axis` names or the output lacks; a cut one leaves a partial sum.

    Where `axis` is not known and lengths allow several readings, what they do not agree on stays whole.
    """
    shape, after = inputs[0].shape, outputs[0].shape
    readings = _reduced(operator, shape, after)
    if not readings:
        return None
    names = [f"d{i}" for i in range(len(shape))]
    for i in range(len(shape)):
        if len({reading[i] for reading in readings}) > 1:
            names[i] = ""
    places = readings[0]
    if operator.type in ("ReduceMax", "ReduceMin"):
        names = ["" if places[i] is None else n for i, n in enumerate(names)]
    out = [""] * len(after)
    for i, place in enumerate(places):
        if place is not None:
            out[place] = names[i]
    blanks = blank(inputs[1:])
    units = {n: shape[i] for i, n in enumerate(names) if n}
    linear = () if operator.type in ("SquareSum", "ReduceMax", "ReduceMin") else ((0,),)
    return Signature((tuple(names), *blanks), (tuple(out),), units, linear=linear)


Places = tuple[int | None, ...]
"""For each dimension of the input where it stands in the output; None: it is reduced."""


def _reduced(operator: Operator, shape: Shape, after: Shape) -> list[Places]:
    """All that the operator can mean."""
    rank = len(shape)
    if operator.type == "BiasAddGrad":
        return [(None, 0)] if rank == 2 and after == shape[1:] else []  # of more dimensions the format decides
    axis = operator.attributes.get("axis")
    if axis is not None:
        given = [axis] if isinstance(axis, int) else list(axis)
        ways = [{int(a) % rank for a in given} if given else set(range(rank))]
    elif prod(after) == 1:
        ways = [set(range(rank))]
    elif len(after) == rank:
        ways = [{i for i in range(rank) if shape[i] != after[i]}]
    else:
        ways = [set(gone) for gone in combinations(range(rank), rank - len(after))]
    found = []
    for gone in ways:
        kept = [i for i in range(rank) if i not in gone]
        if after == tuple(shape[i] for i in kept):
            found.append(tuple(kept.index(i) if i in kept else None for i in range(rank)))
        elif after == tuple(1 if i in gone else n for i, n in enumerate(shape)):
            found.append(tuple(None if i in gone else i for i in range(rank)))
        elif not kept and prod(after) == 1:
            found.append((None,) * rank)
    return found


@rule("MulReduceSum")
def _scaled_sum(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """sum of a x b over all but the last dimensions, those of the output; a third input is added to it."""
    shape, after = inputs[0].shape, outputs[0].shape
    names = tuple(f"d{i}" for i in range(len(shape)))
    wide = [t.shape for t in inputs[:2]] == [shape, shape]
    if not wide or len(after) >= len(shape) or shape[len(shape) - len(after) :] != after:
        return None
    if len(inputs) > 3 or any(t.shape != after for t in inputs[2:]):
        return None
    tail = names[len(shape) - len(after) :]
    added = ((2, 0),) if len(inputs) == 3 else ()
    operands = (names, names, tail)[: len(inputs)]
    return Signature(operands, (tail,), dict(zip(names, shape, strict=True)), accumulators=added)


@rule("ClipByGlobalNorm", "Fill", "Idle")
def _scalars(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Of single numbers: nothing to cut."""
    if any(prod(t.shape) > 1 for t in (*inputs, *outputs)):
        return None
    return Signature(blank(inputs), blank(outputs), {})
