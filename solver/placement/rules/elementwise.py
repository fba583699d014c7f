"""Elementwise operators, with broadcasting, and the optimizers' updates."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hyperopt.graph import Operator, Tensor
from solver.placement.rules.registry import Shape, rule
from solver.placement.signature import Labels, Signature

ADDING = ("Add", "AddN", "Sub", "AddExt", "SubExt", "AccumulateNV2")
SCALING = ("Mul", "RealDiv", "Div", "Muls")
COPYING = ("Cast", "CastGrad", "Neg", "Identity", "Depend", "Load", "TensorMove", "Contiguous")
MAPPING = (
    *(
        "Abs",
        "Assign",
        "AssignAdd",
        "AssignSub",
        "BiasAdd",
        "Cos",
        "Equal",
        "Erf",
        "Exp",
        "FloorDiv",
        "FloorMod",
        "GeLU",
        "GeLUGrad",
        "GeluExt",
    ),
    *("GeluGradExt", "Greater", "GreaterEqual", "Less", "LessEqual", "Log", "LogicalAnd", "LogicalNot", "LogicalOr"),
    *(
        "MaskedFill",
        "Maximum",
        "Minimum",
        "MulSub",
        "NotEqual",
        "OnesLike",
        "Pow",
        "PowTensorScalar",
        "ReLU",
        "ReLUGrad",
        "Reciprocal",
        "ReluGrad",
    ),
    *("Rsqrt", "RsqrtGrad", "Select", "SiLU", "SiLUGrad", "Sigmoid", "SigmoidGrad", "Sin", "Softplus", "Sqrt"),
    *("SqrtGrad", "Square", "SquaredDifference", "Tanh", "TanhGrad", "ZerosLike"),
)


@rule(*ADDING, *SCALING, *COPYING, *MAPPING)
def _elementwise(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """All outputs of one shape, inputs broadcast to it."""
    if not outputs or any(out.shape != outputs[0].shape for out in outputs):
        return None
    shape = outputs[0].shape
    if operator.type == "BiasAdd" and len(shape) > 2:
        return None  # which dimension the bias belongs to depends on the format
    names = tuple(f"d{i}" for i in range(len(shape)))
    operands = []
    for tensor in inputs:
        labels = _broadcast(tensor.shape, shape, names)
        if labels is None:
            return None
        operands.append(labels)
    everything = tuple(range(len(inputs)))
    linear: tuple[tuple[int, ...], ...] = ()
    if operator.type in ADDING or (operator.type in COPYING and len(inputs) == 1):
        linear = (everything,)
    elif operator.type in SCALING:
        linear = tuple((i,) for i in everything[: 2 if operator.type in ("Mul", "Muls") else 1])
    units = dict(zip(names, shape, strict=True))
    return Signature(tuple(operands), (names,) * len(outputs), units, linear=linear)


def _broadcast(shape: Shape, target: Shape, names: Labels) -> Labels | None:
    """Labels of an operand that is broadcast to `target`, aligned at the last dimension."""
    if len(shape) > len(target):
        return None
    own = names[len(names) - len(shape) :]
    wide = target[len(target) - len(shape) :]
    if any(length not in (1, whole) for length, whole in zip(shape, wide, strict=True)):
        return None
    return tuple(n if length == whole else "" for n, length, whole in zip(own, shape, wide, strict=True))


@rule("SwiGlu", "SwiGluGrad", "Swiglu", "SwigluGrad")
def _gated(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """silu(gate) x up: gate and up apart are elementwise; in one tensor, its last dimension is both, group by group."""
    shapes = {t.shape for t in (*inputs, *outputs)}
    if len(shapes) == 1:
        return _elementwise(operator, inputs, outputs)
    narrow = min(shapes, key=lambda s: s[-1])
    if shapes != {narrow, (*narrow[:-1], 2 * narrow[-1])}:
        return None
    names = tuple(f"d{i}" for i in range(len(narrow)))
    units = dict(zip(names, narrow, strict=True))
    joint = tuple(i for i, t in enumerate((*inputs, *outputs)) if t.shape != narrow)
    return Signature((names,) * len(inputs), (names,) * len(outputs), units, grouped=joint)


@rule("AdamW", "Adam", "AdamWeightDecay", "ApplyMomentum", "SGD", "FusedAdamWeightDecay", "ApplyAdamWithAmsgrad")
def _update(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Element by element over tensors of the parameter's shape; everything else is a scalar."""
    shape = max((t.shape for t in inputs), key=prod)
    names = tuple(f"d{i}" for i in range(len(shape)))

    def of(tensor: Tensor) -> Labels | None:
        if tensor.shape == shape:
            return names
        return tuple("" for _ in tensor.shape) if prod(tensor.shape) == 1 else None

    labels = [of(t) for t in (*inputs, *outputs)]
    if any(one is None for one in labels):
        return None
    known = [one for one in labels if one is not None]
    units = dict(zip(names, shape, strict=True))
    return Signature(tuple(known[: len(inputs)]), tuple(known[len(inputs) :]), units)
