"""Matrix products and what is like them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hyperopt.graph import Operator, Tensor
from solver.placement.rules.registry import Shape, rule
from solver.placement.signature import Labels, Signature


@rule("MatMul", "BatchMatMul", "Dense", "MatMulExt", "BatchMatMulExt", "Einsum")
def _product(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """By `equation` where it is given (``bsh,hn->bsn``), else by `transpose_a`, `transpose_b`; a third input of the
    output's shape is added to it."""
    equation = operator.attributes.get("equation")
    if len(inputs) not in (2, 3) or len(outputs) != 1:
        return None
    if equation is None:
        readings = [_matmul(inputs, outputs[0], *turns) for turns in _turns(operator)]
    else:
        left, _, right = equation.partition("->")
        readings = [tuple(tuple(part) for part in (*left.split(","), right))]
    fits = [(terms, sizes) for terms in readings if (sizes := _sizes(terms, (*inputs[:2], outputs[0]))) is not None]
    if not fits:
        return None
    (a, b, y), sizes = _agreed([terms for terms, _ in fits]), fits[0][1]
    flops = 2 * prod(sizes.values())
    sizes = {label: n for label, n in sizes.items() if label in (*a, *b, *y)}
    operands = [a, b]
    added: tuple[tuple[int, int], ...] = ()
    if len(inputs) == 3:
        if inputs[2].shape == outputs[0].shape:
            operands.append(y)
            added = ((2, 0),)
        else:
            return None
    return Signature(tuple(operands), (y,), sizes, flops=flops, accumulators=added)


def _turns(operator: Operator) -> list[tuple[bool, bool]]:
    """What `transpose_a` and `transpose_b` can be: both ways where an attribute is there and None."""
    told = [operator.attributes.get(name, False) for name in ("transpose_a", "transpose_b")]
    if operator.type == "Dense":
        told[1] = True
    first, second = ([False, True] if one is None else [bool(one)] for one in told)
    return [(a, b) for a in first for b in second]


def _sizes(terms: Sequence[Labels], tensors: Sequence[Tensor]) -> dict[str, int] | None:
    """Lengths of labels; None where operands contradict each other."""
    sizes: dict[str, int] = {}
    if len(terms) != len(tensors):
        return None
    for labels, tensor in zip(terms, tensors, strict=True):
        if len(labels) != len(tensor.shape):
            return None
        for label, length in zip(labels, tensor.shape, strict=True):
            if label and sizes.setdefault(label, length) != length:
                return None
    return sizes


def _agreed(readings: Sequence[Sequence[Labels]]) -> list[Labels]:
    """What all readings say: a label that stands elsewhere in another one is whole."""
    moved = {
        label
        for reading in readings
        for mine, first in zip(reading, readings[0], strict=True)
        for pair in zip(mine, first, strict=True)
        if pair[0] != pair[1]
        for label in pair
    }
    return [tuple("" if label in moved else label for label in labels) for labels in readings[0]]


def _matmul(inputs: Sequence[Tensor], y: Tensor, turn_a: bool, turn_b: bool) -> tuple[Labels, ...]:
    a, b = inputs[0].shape, inputs[1].shape
    if len(a) < 2 or len(b) < 2 or max(len(a), len(b)) > len(y.shape):
        return ()
    batch = len(y.shape) - 2
    names = tuple(f"b{i}" for i in range(batch))

    def lead(shape: Shape) -> Labels:
        own = names[batch - (len(shape) - 2) :] if len(shape) > 2 else ()
        return tuple(n if length > 1 or y.shape[int(n[1:])] == 1 else "" for n, length in zip(own, shape, strict=False))

    left = (*lead(a), *(("k", "m") if turn_a else ("m", "k")))
    right = (*lead(b), *(("n", "k") if turn_b else ("k", "n")))
    return left, right, (*names, "m", "n")
