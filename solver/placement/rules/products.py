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
        terms = _matmul(operator, inputs, outputs[0])
        if terms is None:
            return None
        a, b, y = terms
    else:
        left, _, right = equation.partition("->")
        a, b = (tuple(part) for part in left.split(","))
        y = tuple(right)
    sizes: dict[str, int] = {}
    for labels, tensor in ((a, inputs[0]), (b, inputs[1]), (y, outputs[0])):
        if len(labels) != len(tensor.shape):
            return None
        for label, length in zip(labels, tensor.shape, strict=True):
            if label and sizes.setdefault(label, length) != length:
                return None
    operands = [a, b]
    added: tuple[tuple[int, int], ...] = ()
    if len(inputs) == 3:
        if inputs[2].shape == outputs[0].shape:
            operands.append(y)
            added = ((2, 0),)
        else:
            return None
    return Signature(tuple(operands), (y,), sizes, flops=2 * prod(sizes.values()), accumulators=added)


def _matmul(operator: Operator, inputs: Sequence[Tensor], y: Tensor) -> tuple[Labels, Labels, Labels] | None:
    a, b = inputs[0].shape, inputs[1].shape
    if len(a) < 2 or len(b) < 2:
        return None
    turn_a = bool(operator.attributes.get("transpose_a"))
    turn_b = operator.type == "Dense" or bool(operator.attributes.get("transpose_b"))
    batch = len(y.shape) - 2
    names = tuple(f"b{i}" for i in range(batch))

    def lead(shape: Shape) -> Labels:
        own = names[batch - (len(shape) - 2) :] if len(shape) > 2 else ()
        return tuple(n if length > 1 or y.shape[int(n[1:])] == 1 else "" for n, length in zip(own, shape, strict=False))

    left = (*lead(a), *(("k", "m") if turn_a else ("m", "k")))
    right = (*lead(b), *(("n", "k") if turn_b else ("k", "n")))
    return left, right, (*names, "m", "n")
