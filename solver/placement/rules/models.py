"""The blocks of models: norms, softmax, attention, embedding and loss."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hyperopt.graph import Operator, Tensor
from solver.placement.rules.registry import blank, letters, rule
from solver.placement.signature import Labels, Signature


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
    "GatherD",
    "GatherDGradV2",
)
def _along(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Along one dimension (`axis`, the last one) that stays whole; lengths along it may differ."""
    axis = operator.attributes.get("axis", None if operator.type == "CumSum" else -1)
    if axis is None:
        return None
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


@rule("FlashAttentionScore", "FlashAttentionScoreGrad")
def _attention_score(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """MindSpore's primitive: batch and heads may be cut. `input_layout` (BSH, BNSD, BSND), `head_num`.

    Operands are told by their shapes: like the queries, like the keys, or (batch, heads or 1, .., ..) for masks and row
    statistics; smaller ones stay whole.
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
    labels: list[Labels] = []
    for tensor in (*inputs, *outputs):
        own = tensor.shape
        if own in (q, k):
            labels.append(wide)
        elif len(own) == 4 and own[0] == q[0] and own[1] in (1, heads):
            labels.append(("b", "h" if own[1] == heads and heads > 1 else "", "", ""))
        elif len(own) <= 2:
            labels.append(tuple("" for _ in own))
        else:
            return None
    d = prod(q) // (q[0] * heads * q[layout.index("S")])
    flops = 4 * q[0] * heads * q[layout.index("S")] * k[layout.index("S")] * d
    backward = operator.type.endswith("Grad")
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
    swap = "int" not in inputs[1].dtype and "int" in inputs[0].dtype
    table, ids = (inputs[1], inputs[0]) if swap else (inputs[0], inputs[1])
    if len(table.shape) != 2 or outputs[0].shape != (*ids.shape, table.shape[1]) or operator.attributes.get("axis", 0):
        return None
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
