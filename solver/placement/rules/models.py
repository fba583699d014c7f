"""The blocks of models: norms, softmax, attention, embedding and loss."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hyperopt.graph import Operator, Tensor
from solver.placement.rules.registry import blank, letters, rule
from solver.placement.signature import Labels, Signature

NORMS = {
    "RmsNorm": ("xg", "xr"),
    "RmsNormGrad": ("xxrg", "xg"),
    "RmsNormGammaGrad": ("xxrg", "g"),
    "LayerNorm": ("xgg", "xrr"),
    "LayerNormV3": ("xgg", "xrr"),
    "LayerNormGrad": ("xxrrg", "xgg"),
    "LayerNormGradV3": ("xxrrg", "xgg"),
    "LayerNormExt": ("xgg", "xrr"),
    "LayerNormGradExt": ("xxrrgg", "xgg"),
    "aten::native_layer_norm": ("xgg", "xrr"),
    "aten::native_layer_norm_backward": ("xxrrgg", "xgg"),
}
"""Type -> what its operands are by position, inputs and outputs: x or of its shape, rows' statistics (r), scale, shift
and their gradients (g). Indices, sizes and single numbers among them are not counted. Sources: the definitions of
MindSpore's primitives and of its accelerator kernels, and ATen's native_functions.yaml."""


@rule(*NORMS)
def _norm(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Rows may be cut, what is normalised may not; gradients of scale and shift are partial sums over rows.

    Where there are as many rows as columns, only an operand's position tells a statistic from a scale.
    """
    shape = max((t.shape for t in inputs), key=lambda s: (prod(s), len(s)))
    if len(shape) < 2 or int(operator.attributes.get("begin_norm_axis", -1)) % len(shape) != len(shape) - 1:
        return None
    names = tuple(f"d{i}" if i < len(shape) - 1 else "" for i in range(len(shape)))
    found: list[Labels] = []
    for tensors, roles in zip((inputs, outputs), NORMS[operator.type], strict=True):
        labels = _by_position(tensors, roles, shape, names)
        if labels is None and shape[:-1] != shape[-1:]:
            labels = _by_length(tensors, shape, names)  # some are missing, or stand in another order
        if labels is None:
            return None
        found.extend(labels)
    units = {n: shape[i] for i, n in enumerate(names) if n}
    added: tuple[tuple[int, int], ...] = ()
    if operator.type == "RmsNormGammaGrad" and len(inputs) > 3 and inputs[-1].shape == outputs[0].shape:
        added = ((len(inputs) - 1, 0),)
    return Signature(tuple(found[: len(inputs)]), tuple(found[len(inputs) :]), units, accumulators=added)


def _normed(own: tuple[int, ...], role: str, shape: tuple[int, ...], names: Labels) -> Labels | None:
    """Labels of an operand of a norm in a role; None where it has not the shape for it."""
    rows = shape[:-1]
    if role == "x":
        return names if own == shape else None
    if role == "g":
        return ("",) if own == shape[-1:] else None
    return names[:-1] if own == rows else names if own == (*rows, 1) else None


def _by_position(tensors: Sequence[Tensor], roles: str, shape: tuple[int, ...], names: Labels) -> list[Labels] | None:
    found: list[Labels] = []
    at = 0
    for tensor in tensors:
        labels = _normed(tensor.shape, roles[at], shape, names) if at < len(roles) else None
        if labels is not None:
            at += 1
        elif prod(tensor.shape) == 1 or "int" in tensor.dtype:
            labels = tuple("" for _ in tensor.shape)
        else:
            return None
        found.append(labels)
    return found


def _by_length(tensors: Sequence[Tensor], shape: tuple[int, ...], names: Labels) -> list[Labels] | None:
    found: list[Labels] = []
    for tensor in tensors:
        fits = (_normed(tensor.shape, role, shape, names) for role in "xrg")
        labels = next((one for one in fits if one is not None), None)
        if labels is None and prod(tensor.shape) == 1:
            labels = tuple("" for _ in tensor.shape)
        if labels is None:
            return None
        found.append(labels)
    return found


NO_DEFAULT = ("CumSum", "GatherD", "GatherDGradV2")
"""Types whose axis has no default."""


@rule(
    "Softmax",
    "SoftmaxGrad",
    "LogSoftmax",
    "LogSoftmaxGrad",
    "SoftmaxBackward",
    "CumSum",
    "TopKGating",
    "TopKGatingGrad",
    "GatherD",
    "GatherDGradV2",
)
def _along(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Along one dimension (`axis`, the last one where the type has a default) that stays whole; lengths along it may
    differ."""
    axis = operator.attributes.get("axis", -1 if operator.type not in NO_DEFAULT else None)
    shape = inputs[0].shape
    if axis is None:
        apart = {i for t in (*inputs, *outputs) for i, pair in enumerate(zip(shape, t.shape, strict=False))
                 if len(t.shape) == len(shape) and pair[0] != pair[1]}  # fmt: skip
        if len(apart) != 1:
            return None
        axis = apart.pop()
    axis = axis[0] if isinstance(axis, (tuple, list)) else axis
    axis = int(axis) % len(shape)
    names = tuple("" if i == axis else f"d{i}" for i in range(len(shape)))
    rest = tuple(length for i, length in enumerate(shape) if i != axis)
    for tensor in (*inputs, *outputs):
        own = tensor.shape
        if len(own) != len(shape) or tuple(length for i, length in enumerate(own) if i != axis) != rest:
            return None
    units = {n: shape[i] for i, n in enumerate(names) if n}
    return Signature((names,) * len(inputs), (names,) * len(outputs), units)


@rule("FlashAttentionScore", "FlashAttentionScoreGrad")
def _attention_score(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """MindSpore's primitive: batch and heads may be cut. `input_layout` (BSH, BNSD, BSND), `head_num`.

    Which operands lie like queries and keys is told by position: the first three inputs (and dy), the last output
    (the first three in backward), and in backward the forward's result, the last of queries' shape. The others are
    (batch, heads or 1, .., ..), masks and row statistics; masks of two dimensions and single numbers stay whole.
    """
    layout = str(operator.attributes.get("input_layout", "BSH"))
    q, k = inputs[0].shape, inputs[1].shape
    if layout not in ("BSH", "BNSD", "BSND") or len(q) != len(layout) or len(k) != len(layout):
        return None
    heads = int(operator.attributes.get("head_num", 0)) if layout == "BSH" else q[layout.index("N")]
    if not heads:
        return None
    groups = k[2] // (q[2] // heads) if layout == "BSH" else k[layout.index("N")]
    wide = tuple({"B": "b", "H": "h", "N": "h"}.get(letter, "") for letter in layout)
    backward = operator.type.endswith("Grad")
    like = {0, 1, 2}
    if backward:
        like |= {3, max((i for i, t in enumerate(inputs) if t.shape == q), default=3)}
        like |= {len(inputs) + i for i in range(3)}
    else:
        like.add(len(inputs) + len(outputs) - 1)
    labels: list[Labels] = []
    for i, tensor in enumerate((*inputs, *outputs)):
        own = tensor.shape
        if i in like:
            if len(own) != len(layout) or own[0] != q[0]:
                return None
            labels.append(wide)
        elif len(own) == 4 and own[0] == q[0] and own[1] in (1, heads):
            labels.append(("b", "h" if own[1] == heads and heads > 1 else "", "", ""))
        elif len(own) == 2 or prod(own) == 1:
            labels.append(tuple("" for _ in own))
        else:
            return None
    d = prod(q) // (q[0] * heads * q[layout.index("S")])
    flops = 4 * q[0] * heads * q[layout.index("S")] * k[layout.index("S")] * d
    found = tuple(labels)
    units = {"b": q[0], "h": groups}
    return Signature(found[: len(inputs)], found[len(inputs) :], units, flops=5 * flops // 2 if backward else flops)


@rule("FlashAttention", "FlashAttentionGrad")
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
        wide, narrow, sums = letters("bsh."), letters("b.h."), letters("bsh")
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
            wide, narrow, sums = letters("bh"), letters("bh"), letters("hb")
            units = {"b": b, "h": groups}
        else:
            wide, narrow, sums = letters("sh"), letters(".h"), letters("hs")
            units = {"s": s, "h": groups}
    else:
        return None
    masks = [t.shape for t in inputs[6 if backward else 3 :] if prod(t.shape) > 1]
    if masks:  # whole ones: for all heads, and all sequences, or nothing is cut
        shared = all(prod(mask[:-2]) == 1 and len(mask) > 1 for mask in masks)
        kept = ("b", "h") if len(q.shape) == 4 else ("h",)
        units = {label: n for label, n in units.items() if shared and label in kept}
    flops = 4 * b * s * length * heads * d
    if operator.attributes.get("causal"):
        flops //= 2
    if backward:
        extra = blank(inputs[6:])
        operands = (wide, wide, narrow, narrow, wide, sums, *extra)
        return Signature(operands, (wide, narrow, narrow), units, flops=5 * flops // 2)
    extra = blank(inputs[3:])
    return Signature((wide, narrow, narrow, *extra), (wide, sums), units, flops=flops)


@rule("RotarySplit", "RotarySplitGrad")
def _rotary_split(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """qkv (s, (q + 2 kv) d) and angles -> q, k, v, and back: heads may be cut where each key/value head's part of qkv
    stands together (`grouped`: the weight's columns must lie so)."""
    backward = operator.type.endswith("Grad")
    if len(inputs) != (4 if backward else 2) or len(outputs) != (1 if backward else 3):
        return None
    joint, angles = (outputs[0], inputs[3]) if backward else (inputs[0], inputs[1])
    parts = inputs[:3] if backward else outputs
    tensors = (joint, *parts)
    if any(len(t.shape) != 2 for t in tensors) or len({t.shape[0] for t in tensors}) != 1:
        return None
    if joint.shape[1] != sum(t.shape[1] for t in parts):
        return None
    heads = parts[1].shape[1] // angles.shape[1]
    rows = operator.attributes.get("sequences", 1) if angles.shape[0] != joint.shape[0] else joint.shape[0]
    turned = letters("s.") if angles.shape[0] == joint.shape[0] else letters("..")
    units = {"s": int(rows), "h": heads}
    wide = letters("sh")
    if backward:
        return Signature((wide, wide, wide, turned), (wide,), units, grouped=(4,), linear=((0, 1, 2),))
    return Signature((wide, turned), (wide,) * 3, units, grouped=(0,), linear=((0,),))


@rule("Rotary", "RotaryGrad", "RotaryPositionEmbedding", "RotaryPositionEmbeddingGrad", "ApplyRotaryPosEmb")
def _rotary(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """x and the angles (sequence, d): pairs within a head turn, so d stays whole."""
    x, angles = inputs[0], inputs[1]
    if len(outputs) != 1 or outputs[0].shape != x.shape or len(inputs) != 2:
        return None
    if len(x.shape) == 4 and angles.shape == (x.shape[1], x.shape[3]):
        units = {"b": x.shape[0], "s": x.shape[1], "h": x.shape[2]}
        if x.shape[1] == x.shape[2] and operator.type not in ("Rotary", "RotaryGrad"):
            units = {"b": x.shape[0]}  # others' layout may have heads before the sequence
        return Signature((("b", "s", "h", ""), ("s", "")), (("b", "s", "h", ""),), units, linear=((0,),))
    if len(x.shape) == 2 and len(angles.shape) == 2 and x.shape[1] % angles.shape[1] == 0:
        units = {"s": x.shape[0], "h": x.shape[1] // angles.shape[1]}
        turned = ("s", "") if angles.shape[0] == x.shape[0] else ("", "")
        if angles.shape[0] != x.shape[0]:
            units["s"] = int(operator.attributes.get("sequences", 1))
        return Signature((("s", "h"), turned), (("s", "h"),), units, linear=((0,),))
    return None


@rule("Gather", "GatherD0", "Embedding", "EmbeddingLookup")
def _embedding(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Rows of a table: with the vocabulary cut each device looks up what it has, zeros else: a partial sum.

    Operands: table and ids, or ids and table.
    """
    if len(inputs) < 2:
        return None
    whole = ["int" in t.dtype for t in inputs[:2]]
    swap = whole[0] if whole[0] != whole[1] else operator.type == "Embedding"
    table, ids = (inputs[1], inputs[0]) if swap else (inputs[0], inputs[1])
    if len(table.shape) != 2 or outputs[0].shape != (*ids.shape, table.shape[1]) or operator.attributes.get("axis", 0):
        return None
    known = operator.type != "Gather" or "axis" in operator.attributes
    if not known and outputs[0].shape == (table.shape[0], *ids.shape):
        return None  # columns may have been meant as well
    rows = tuple(f"d{i}" for i in range(len(ids.shape)))
    units = {"v": table.shape[0], "h": table.shape[1], **dict(zip(rows, ids.shape, strict=True))}
    operands = (rows, ("v", "h")) if swap else (("v", "h"), rows)
    blanks = blank(inputs[2:])
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


@rule("UnsortedSegmentSum")
def _segment_sum(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """x (rows.., rest..), segments (rows..) -> sums (segments, rest..): partial over rows; the segments may be cut."""
    x, ids, sums = inputs[0], inputs[1], outputs[0]
    depth = len(ids.shape)
    if x.shape[:depth] != ids.shape or sums.shape[1:] != x.shape[depth:]:
        return None
    wide = tuple(f"d{i}" for i in range(len(x.shape)))
    units = {**dict(zip(wide, x.shape, strict=True)), "v": sums.shape[0]}
    operands = (wide, wide[:depth], *blank(inputs[2:]))
    return Signature(operands, (("v", *wide[depth:]),), units, linear=((0,),))


@rule("CrossEntropy")
def _loss(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """logits (.., v) and targets (..) -> loss, per row or their sum in one number, and row sums (..).

    With the vocabulary cut, largest logit, sum and the target's logit are each all-reduced, one number a row.
    """
    logits, targets = inputs[0], inputs[1]
    rows = logits.shape[:-1]
    if len(outputs) != 2 or not _targets(targets, rows) or outputs[1].shape != rows:
        return None
    names = tuple(f"d{i}" for i in range(len(rows)))
    units = {**dict(zip(names, rows, strict=True)), "v": logits.shape[-1]}
    loss = names if outputs[0].shape == rows else tuple("" for _ in outputs[0].shape)
    if loss != names and prod(outputs[0].shape) != 1:
        return None
    closed = {"v": ((1, 4), (1, 4), (1, 4))}
    found = names if targets.shape == rows else ("",)
    return Signature(((*names, "v"), found), (loss, names), units, closed=closed)


def _targets(targets: Tensor, rows: tuple[int, ...]) -> bool:
    """Whether a tensor holds the targets of rows, or of all chunks of rows of which these are one."""
    return targets.shape == rows or (len(rows) == len(targets.shape) == 1 and targets.shape[0] % rows[0] == 0)


@rule("CrossEntropyGrad")
def _loss_grad(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """dloss, targets, logits, row sums -> dlogits: nothing is summed, the vocabulary too may be cut."""
    if len(inputs) != 4 or len(outputs) != 1:
        return None
    dloss, targets, logits, sums = inputs
    rows = logits.shape[:-1]
    if not _targets(targets, rows) or sums.shape != rows or outputs[0].shape != logits.shape:
        return None
    names = tuple(f"d{i}" for i in range(len(rows)))
    first = names if dloss.shape == rows else tuple("" for _ in dloss.shape)
    if first != names and prod(dloss.shape) != 1:
        return None
    units = {**dict(zip(names, rows, strict=True)), "v": logits.shape[-1]}
    wide = (*names, "v")
    found = names if targets.shape == rows else ("",)
    return Signature((first, found, wide, names), (wide,), units)
