"""The signature of every operator type that is known: names and attributes as MindSpore's primitives have them, and the
fused kernels of `hyperopt.testing`.

Some types have forms that their operands tell apart; what a form does not explain is `None`, and the operator is then
replicated, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod

from hyperopt.graph import Graph, Operator, Tensor
from solver.placement.signature import Labels, Signature

Shape = tuple[int, ...]
Rule = Callable[[Operator, Sequence[Tensor], Sequence[Tensor]], Signature | None]

RULES: dict[str, Rule] = {}
"""Type -> what its operands' dimensions are."""


def signature(graph: Graph, operator: Operator) -> Signature:
    """Of an operator of the graph; `understood` is False where its type or form is not known: nothing can be cut."""
    inputs = [graph.tensors[t] for t in operator.inputs]
    outputs = [graph.tensors[t] for t in operator.outputs]
    rule = RULES.get(operator.type)
    found = rule(operator, inputs, outputs) if rule else None
    if found is None:
        return _whole(inputs, outputs)
    assert len(found.inputs) == len(inputs) and len(found.outputs) == len(outputs), operator
    return found


def _whole(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature:
    blank = [tuple("" for _ in t.shape) for t in (*inputs, *outputs)]
    return Signature(tuple(blank[: len(inputs)]), tuple(blank[len(inputs) :]), {}, understood=False)


def rule(*types: str) -> Callable[[Rule], Rule]:
    def put(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return put


# -- products ------------------------------------------------------------------------------------------------


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


# -- elementwise ---------------------------------------------------------------------------------------------

ADDING = ("Add", "AddN", "Sub", "AddExt", "SubExt", "AccumulateNV2")
SCALING = ("Mul", "RealDiv", "Div", "Muls")
COPYING = ("Cast", "Neg", "Identity", "Depend", "Load", "TensorMove", "Contiguous")
MAPPING = (
    *("Abs", "Assign", "BiasAdd", "Cos", "Equal", "Erf", "Exp", "FloorDiv", "FloorMod", "GeLU", "GeLUGrad", "GeluExt"),
    *("GeluGradExt", "Greater", "GreaterEqual", "Less", "LessEqual", "Log", "LogicalAnd", "LogicalNot", "LogicalOr"),
    *("Maximum", "Minimum", "MulSub", "NotEqual", "OnesLike", "Pow", "ReLU", "ReLUGrad", "Reciprocal", "ReluGrad"),
    *("Rsqrt", "RsqrtGrad", "Select", "SiLU", "SiLUGrad", "Sigmoid", "SigmoidGrad", "Sin", "Softplus", "Sqrt"),
    *("SqrtGrad", "Square", "SquaredDifference", "Tanh", "TanhGrad", "ZerosLike"),
)


@rule(*ADDING, *SCALING, *COPYING, *MAPPING)
def _elementwise(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """All outputs of one shape, inputs broadcast to it."""
    if not outputs or any(out.shape != outputs[0].shape for out in outputs):
        return None
    shape = outputs[0].shape
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


@rule(
    "AdamW", "Adam", "AdamWeightDecay", "ApplyMomentum", "SGD", "Lamb", "FusedAdamWeightDecay", "ApplyAdamWithAmsgrad"
)
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


# -- shapes --------------------------------------------------------------------------------------------------


@rule("Transpose", "TransposeView", "TransposeExtView")
def _transpose(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    order = operator.attributes.get("perm")
    shape = inputs[0].shape
    if order is None or sorted(order) != list(range(len(shape))):
        return None
    names = tuple(f"d{i}" for i in range(len(shape)))
    blanks = tuple(tuple("" for _ in t.shape) for t in inputs[1:])
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
    blanks = tuple(tuple("" for _ in t.shape) for t in inputs[1:])
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


@rule("Concat", "Split", "SplitD", "ConcatD")
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
    blanks = tuple(tuple("" for _ in t.shape) for t in inputs[1:])
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
    blanks = tuple(tuple("" for _ in t.shape) for t in inputs[1:])
    units = {n: shape[i] for i, n in enumerate(names) if n}
    linear = () if operator.type in ("SquareSum", "ReduceMax", "ReduceMin") else ((0,),)
    return Signature((tuple(names), *blanks), (out,), units, linear=linear)


def _reduced(operator: Operator, shape: Shape, after: Shape) -> set[int] | None:
    if operator.type == "BiasAddGrad":
        return set(range(len(shape) - 1))
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
    blank = [tuple("" for _ in t.shape) for t in (*inputs, *outputs)]
    return Signature(tuple(blank[: len(inputs)]), tuple(blank[len(inputs) :]), {})


# -- norms and softmax ---------------------------------------------------------------------------------------


@rule("RmsNorm", "LayerNorm", "RmsNormGrad", "LayerNormGrad", "RmsNormGammaGrad", "LayerNormExt", "LayerNormGradExt")
def _norm(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Rows may be cut, what is normalised may not; gradients of scale and shift are partial sums over rows.

    Operands have the shape of x, of its rows (statistics, perhaps with ones at the end) or of what is normalised.
    """
    shape = max((t.shape for t in inputs), key=lambda s: (prod(s), len(s)))
    if len(shape) < 2:
        return None
    names = tuple(f"d{i}" if i < len(shape) - 1 else "" for i in range(len(shape)))
    rows = shape[:-1]

    def of(tensor: Tensor) -> Labels | None:
        own = tensor.shape
        if own == shape:
            return names
        if own == rows or own == (*rows, 1):
            return names[: len(own)] if own == rows else (*names[:-1], "")
        if own == shape[-1:] or prod(own) == 1:
            return tuple("" for _ in own)
        return None

    labels = [of(t) for t in (*inputs, *outputs)]
    if any(one is None for one in labels):
        return None
    known = [one for one in labels if one is not None]
    units = {n: shape[i] for i, n in enumerate(names) if n}
    added: tuple[tuple[int, int], ...] = ()
    if operator.type == "RmsNormGammaGrad" and len(inputs) > 3 and inputs[-1].shape == outputs[0].shape:
        added = ((len(inputs) - 1, 0),)
    return Signature(tuple(known[: len(inputs)]), tuple(known[len(inputs) :]), units, accumulators=added)


@rule(
    "Softmax",
    "SoftmaxGrad",
    "LogSoftmax",
    "LogSoftmaxGrad",
    "SoftmaxBackward",
    "CumSum",
    "TopKGating",
    "TopKGatingGrad",
)
def _along(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Along one dimension (`axis`, the last one) that stays whole; lengths along it may differ."""
    axis = operator.attributes.get("axis", -1)
    axis = axis[0] if isinstance(axis, (tuple, list)) else axis
    shape = inputs[0].shape
    axis = int(axis) % len(shape)
    names = tuple("" if i == axis else f"d{i}" for i in range(len(shape)))
    rest = tuple(length for i, length in enumerate(shape) if i != axis)
    for tensor in (*inputs, *outputs):
        own = tensor.shape
        if len(own) != len(shape) or tuple(length for i, length in enumerate(own) if i != axis) != rest:
            return None
    units = {n: shape[i] for i, n in enumerate(names) if n}
    return Signature((names,) * len(inputs), (names,) * len(outputs), units)


# -- attention -----------------------------------------------------------------------------------------------


@rule("FlashAttention", "FlashAttentionScore", "FlashAttentionGrad", "FlashAttentionScoreGrad")
def _attention(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """q, k, v -> out, row sums; and backward: dout, q, k, v, out, row sums -> dq, dk, dv.

    Batch (b), heads (h, in units of key/value heads) and the queries' sequence (s) may be cut; then each device sees
    all keys, and dk and dv are partial. Layouts: (b, s, heads, d) with row sums (b, s, heads), or rows x columns
    (s, heads d) with (heads, s), and `heads`, `kv_heads` and `sequences` as attributes.
    """
    backward = "Grad" in operator.type
    if len(inputs) < (6 if backward else 3) or len(outputs) < (3 if backward else 2):
        return None
    q, k = (inputs[1], inputs[2]) if backward else (inputs[0], inputs[1])
    if len(q.shape) == 4 and len(k.shape) == 4:
        b, s, heads, d = q.shape
        groups = k.shape[2]
        length = k.shape[1]
        wide, narrow, sums = _labels("bsh."), _labels("b.h."), _labels("bsh")
        units = {"b": b, "h": groups, "s": s}
    elif len(q.shape) == 2 and len(k.shape) == 2:
        lse = inputs[5] if backward else outputs[1]
        heads = int(operator.attributes.get("heads", lse.shape[0]))
        d = q.shape[1] // heads
        groups = int(operator.attributes.get("kv_heads", max(1, k.shape[1] // d)))
        b = int(operator.attributes.get("sequences", 1))
        s = q.shape[0] // b
        length = s
        if b > 1:
            wide, narrow, sums = _labels("bh"), _labels("bh"), _labels("hb")
            units = {"b": b, "h": groups}
        else:
            wide, narrow, sums = _labels("sh"), _labels(".h"), _labels("hs")
            units = {"s": s, "h": groups}
    else:
        return None
    flops = 4 * b * s * length * heads * d
    if operator.attributes.get("causal"):
        flops //= 2
    if backward:
        extra = tuple(tuple("" for _ in t.shape) for t in inputs[6:])
        operands = (wide, wide, narrow, narrow, wide, sums, *extra)
        return Signature(operands, (wide, narrow, narrow), units, flops=5 * flops // 2)
    extra = tuple(tuple("" for _ in t.shape) for t in inputs[3:])
    return Signature((wide, narrow, narrow, *extra), (wide, sums), units, flops=flops)


def _labels(text: str) -> Labels:
    """A letter a dimension; a dot for what stays whole."""
    return tuple(letter.replace(".", "") for letter in text)


@rule("Rotary", "RotaryGrad", "RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad", "ApplyRotaryPosEmb")
def _rotary(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """x and the angles (sequence, d): pairs within a head turn, so d stays whole."""
    x, angles = inputs[0], inputs[1]
    if len(outputs) != 1 or outputs[0].shape != x.shape or len(inputs) != 2:
        return None
    if len(x.shape) == 4 and angles.shape == (x.shape[1], x.shape[3]):
        units = {"b": x.shape[0], "s": x.shape[1], "h": x.shape[2]}
        return Signature((("b", "s", "h", ""), ("s", "")), (("b", "s", "h", ""),), units, linear=((0,),))
    if len(x.shape) == 2 and len(angles.shape) == 2 and x.shape[1] % angles.shape[1] == 0:
        units = {"s": x.shape[0], "h": x.shape[1] // angles.shape[1]}
        turned = ("s", "") if angles.shape[0] == x.shape[0] else ("", "")
        if angles.shape[0] != x.shape[0]:
            units["s"] = int(operator.attributes.get("sequences", 1))
        return Signature((("s", "h"), turned), (("s", "h"),), units, linear=((0,),))
    return None


# -- embedding and loss --------------------------------------------------------------------------------------


@rule("Gather", "GatherD0", "Embedding", "EmbeddingLookup")
def _embedding(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Rows of a table: with the vocabulary cut each device looks up what it has, zeros else: a partial sum.

    Operands: table and ids, or ids and table.
    """
    if len(inputs) < 2:
        return None
    swap = "int" not in inputs[1].dtype and "int" in inputs[0].dtype
    table, ids = (inputs[1], inputs[0]) if swap else (inputs[0], inputs[1])
    if len(table.shape) != 2 or outputs[0].shape != (*ids.shape, table.shape[1]) or operator.attributes.get("axis", 0):
        return None
    rows = tuple(f"d{i}" for i in range(len(ids.shape)))
    units = {"v": table.shape[0], "h": table.shape[1], **dict(zip(rows, ids.shape, strict=True))}
    operands = (rows, ("v", "h")) if swap else (("v", "h"), rows)
    blanks = tuple(tuple("" for _ in t.shape) for t in inputs[2:])
    return Signature((*operands, *blanks), ((*rows, "h"),), units, gathers=(1 if swap else 0,))


@rule("EmbeddingGrad")
def _embedding_grad(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """ids, dy -> the table's gradient, (and what it is added to): a partial sum over tokens."""
    ids, dy, table = inputs[0], inputs[1], outputs[0]
    if len(table.shape) != 2 or dy.shape != (*ids.shape, table.shape[1]):
        return None
    rows = tuple(f"d{i}" for i in range(len(ids.shape)))
    units = {"v": table.shape[0], "h": table.shape[1], **dict(zip(rows, ids.shape, strict=True))}
    operands: tuple[Labels, ...] = (rows, (*rows, "h"))
    added: tuple[tuple[int, int], ...] = ()
    if len(inputs) == 3:
        operands, added = (*operands, ("v", "h")), ((2, 0),)
    return Signature(operands, (("v", "h"),), units, accumulators=added)


@rule("CrossEntropy")
def _loss(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """logits (.., v) and targets (..) -> loss, per row or their sum in one number, and row sums (..).

    With the vocabulary cut, largest logit, sum and the target's logit are each all-reduced, one number a row.
    """
    logits, targets = inputs[0], inputs[1]
    rows = logits.shape[:-1]
    if len(outputs) != 2 or targets.shape != rows or outputs[1].shape != rows:
        return None
    names = tuple(f"d{i}" for i in range(len(rows)))
    units = {**dict(zip(names, rows, strict=True)), "v": logits.shape[-1]}
    loss = names if outputs[0].shape == rows else tuple("" for _ in outputs[0].shape)
    if loss != names and prod(outputs[0].shape) != 1:
        return None
    closed = {"v": ((1, 4), (1, 4), (1, 4))}
    return Signature(((*names, "v"), names), (loss, names), units, closed=closed)


@rule("CrossEntropyGrad")
def _loss_grad(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """dloss, targets, logits, row sums -> dlogits: nothing is summed, the vocabulary too may be cut."""
    if len(inputs) != 4 or len(outputs) != 1:
        return None
    dloss, targets, logits, sums = inputs
    rows = logits.shape[:-1]
    if targets.shape != rows or sums.shape != rows or outputs[0].shape != logits.shape:
        return None
    names = tuple(f"d{i}" for i in range(len(rows)))
    first = names if dloss.shape == rows else tuple("" for _ in dloss.shape)
    if first != names and prod(dloss.shape) != 1:
        return None
    units = {**dict(zip(names, rows, strict=True)), "v": logits.shape[-1]}
    wide = (*names, "v")
    return Signature((first, names, wide, names), (wide,), units)


# -- mixture of experts --------------------------------------------------------------------------------------


@rule("MoeDispatch", "MoeCombine", "MoeDispatchGrad", "MoeCombineGrad")
def _experts(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Tokens (g, s, h) to places (e, g, c, h) of experts and back, group by group (as in GShard, arXiv 2006.16668).

    ::

        MoeDispatch       x, index -> places              MoeDispatchGrad   dplaces, index -> dx (partial over e)
        MoeCombine        places, gates, index -> y       MoeCombineGrad    dy, places, gates, index -> dplaces, dgates
                          (partial over e)                                  (dgates partial over e and h)

    Cutting e needs the tokens whole; cutting g leaves places cut along g: what turns the one into the other is an
    all-to-all.
    """
    tokens, places, chosen = _labels("gsh"), _labels("egch"), _labels("gsk")
    forms: dict[str, tuple[tuple[Labels, ...], tuple[Labels, ...]]] = {
        "MoeDispatch": ((tokens, chosen), (places,)),
        "MoeDispatchGrad": ((places, chosen), (tokens,)),
        "MoeCombine": ((places, chosen, chosen), (tokens,)),
        "MoeCombineGrad": ((tokens, places, chosen, chosen), (places, chosen)),
    }
    operands, results = forms[operator.type]
    sizes: dict[str, int] = {}
    if len(inputs) != len(operands) or len(outputs) != len(results):
        return None
    for labels, tensor in zip((*operands, *results), (*inputs, *outputs), strict=True):
        if len(labels) != len(tensor.shape):
            return None
        for label, length in zip(labels, tensor.shape, strict=True):
            if sizes.setdefault(label, length) != length:
                return None
    units: dict[str, int] = {label: sizes[label] for label in ("e", "g", "h") if label in sizes}
    whole = str.maketrans({"s": "", "c": "", "k": ""})

    def clean(labels: Labels) -> Labels:
        return tuple(label.translate(whole) for label in labels)

    linear = ((0,),) if operator.type != "MoeCombineGrad" else ()
    return Signature(tuple(map(clean, operands)), tuple(map(clean, results)), units, linear=linear)
