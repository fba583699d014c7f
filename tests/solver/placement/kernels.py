"""NumPy kernels of operator types, for the whole and for any part: what an operator means, apart from any signature.

A kernel gets blocks (an array, where it starts in the whole tensor, and the whole tensor's shape) and the regions of
its outputs that it is to fill. It does what a device can do with its blocks alone, as real kernels do: look up the rows
of a table that it has, mask by absolute positions, divide by the whole number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hyperopt.graph import Operator

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Block:
    array: Array
    start: tuple[int, ...]
    whole: tuple[int, ...]


@dataclass(frozen=True)
class Region:
    start: tuple[int, ...]
    shape: tuple[int, ...]
    whole: tuple[int, ...]


Kernel = Callable[[Operator, Sequence[Block], Sequence[Region]], list[Array]]
KERNELS: dict[str, Kernel] = {}


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    def put(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(names, function))
        return function

    return put


def run(operator: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    made = KERNELS[operator.type](operator, blocks, regions)
    for array, region in zip(made, regions, strict=True):
        assert array.shape == region.shape, (operator.type, array.shape, region.shape)
    return made


@kernel("MatMul", "BatchMatMul", "Einsum", "Dense")
def product(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    a, b = blocks[0].array, blocks[1].array
    if equation := o.attributes.get("equation"):
        y = np.einsum(equation, a, b)
    else:
        a = np.swapaxes(a, -1, -2) if o.attributes.get("transpose_a") else a
        b = np.swapaxes(b, -1, -2) if o.attributes.get("transpose_b") or o.type == "Dense" else b
        y = a @ b
    return [y + blocks[2].array if len(blocks) > 2 else y]


def mapped(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An elementwise kernel from a function of arrays."""

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        def of(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
            made = function(*[block.array for block in blocks])
            return list(made) if isinstance(made, tuple) else [made]

        KERNELS.update(dict.fromkeys(names, of))
        return function

    return put


mapped("Add")(lambda a, b: a + b)
mapped("Sub")(lambda a, b: a - b)
mapped("AddN")(lambda *x: sum(x[1:], x[0]))
mapped("Mul")(lambda a, b: a * b)
mapped("RealDiv")(lambda a, b: a / b)
mapped("Cast", "Identity")(lambda a: a.copy())
mapped("Neg")(lambda a: -a)
mapped("Exp")(np.exp)
mapped("Square")(np.square)
mapped("Maximum")(np.maximum)
mapped("ReLU")(lambda a: np.maximum(a, 0))
mapped("OnesLike")(np.ones_like)
mapped("Select")(lambda c, a, b: np.where(c > 0, a, b))
mapped("MaskedFill")(lambda a, mask: np.where(mask > 0, -1.0, a))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


mapped("SiLU")(lambda x: x * _sigmoid(x))
mapped("SiLUGrad")(lambda dy, x: dy * _sigmoid(x) * (1 + x * (1 - _sigmoid(x))))
mapped("SwiGlu")(lambda g, u: g * _sigmoid(g) * u)
mapped("SwiGluGrad")(lambda dh, g, u: (dh * u * _sigmoid(g) * (1 + g * (1 - _sigmoid(g))), dh * g * _sigmoid(g)))


@kernel("AdamW")
def adamw(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    """gradient, (master, m, v), weight, (clip) -> (master, m, v), weight; one step, without bias correction."""
    g = blocks[0].array
    if len(regions) == 1:
        return [blocks[1].array - 0.1 * g]
    master, m, v = (block.array for block in blocks[1:4])
    if len(blocks) > 5:
        g = g * blocks[5].array
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    master = master - 0.01 * (m / (np.sqrt(np.abs(v)) + 1e-8) + 0.1 * master)
    return [master, m, v, master.copy()]


@kernel("Transpose")
def transpose(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    return [np.transpose(blocks[0].array, o.attributes["perm"])]


@kernel("Reshape", "ExpandDims", "Squeeze")
def reshape(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    return [blocks[0].array.reshape(regions[0].shape)]


@kernel("Concat")
def concat(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    return [np.concatenate([block.array for block in blocks], o.attributes["axis"])]


@kernel("Split")
def split(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    axis = o.attributes["axis"]
    ends = np.cumsum([region.shape[axis] for region in regions])[:-1]
    return list(np.split(blocks[0].array, ends, axis))


@kernel("StridedSlice")
def strided_slice(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    """The first elements along each dimension."""
    return [blocks[0].array[tuple(slice(0, n) for n in regions[0].shape)]]


@kernel("BroadcastTo", "Tile")
def broadcast(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    x, region = blocks[0].array, regions[0]
    if o.type == "BroadcastTo":
        return [np.broadcast_to(x, region.shape)]
    x = x.reshape((1,) * (len(region.shape) - x.ndim) + x.shape)
    return [np.tile(x, [n // m for n, m in zip(region.shape, x.shape, strict=True)])]


@kernel("ReduceSum", "ReduceMean", "ReduceMax", "BiasAddGrad")
def reduce(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    x, whole = blocks[0].array, blocks[0].whole
    axis = tuple(range(x.ndim - 1)) if o.type == "BiasAddGrad" else o.attributes["axis"]
    axis = (axis,) if isinstance(axis, int) else tuple(axis)
    if o.type == "ReduceMax":
        return [x.max(axis).reshape(regions[0].shape)]
    count = np.prod([whole[a] for a in axis]) if o.type == "ReduceMean" else 1
    return [(x.sum(axis) / count).reshape(regions[0].shape)]


@kernel("SquareSum")
def square_sum(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    return [np.square(blocks[0].array).sum().reshape(1)]


@kernel("ClipByGlobalNorm")
def clip(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    norm = np.sqrt(sum(float(block.array[0]) for block in blocks))
    return [np.array([min(1.0, 1.0 / norm)])]


@kernel("MulReduceSum")
def scaled_sum(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    x = blocks[0].array * blocks[1].array
    y = x.sum(tuple(range(x.ndim - len(regions[0].shape))))
    return [y + blocks[2].array if len(blocks) > 2 else y]


# -- norms and softmax ---------------------------------------------------------------------------------------

EPSILON = 1e-6


@kernel("RmsNorm")
def rms_norm(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    x, gamma = blocks[0].array, blocks[1].array
    scale = 1 / np.sqrt(np.mean(x * x, -1) + EPSILON)
    return [x * scale[..., None] * gamma, scale]


@kernel("RmsNormGrad")
def rms_norm_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    """dy, x, scale, gamma -> dx (, dgamma)."""
    dy, x, scale, gamma = (block.array for block in blocks)
    normal, dn = x * scale[..., None], dy * gamma
    dx = scale[..., None] * (dn - normal * np.mean(dn * normal, -1, keepdims=True))
    made = [dx]
    if len(regions) > 1:
        made.append((dy * normal).reshape(-1, x.shape[-1]).sum(0))
    return made


@kernel("RmsNormGammaGrad")
def rms_norm_gamma_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    dy, x, scale = (block.array for block in blocks[:3])
    made = (dy * x * scale[..., None]).reshape(-1, x.shape[-1]).sum(0)
    return [made + blocks[3].array if len(blocks) > 3 else made]


@kernel("LayerNorm")
def layer_norm(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    x, gamma, beta = (block.array for block in blocks)
    mean, var = x.mean(-1), x.var(-1)
    return [(x - mean[..., None]) / np.sqrt(var[..., None] + EPSILON) * gamma + beta, mean, var]


@kernel("LayerNormGrad")
def layer_norm_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    """x, dy, var, mean, gamma -> dx, dgamma, dbeta."""
    x, dy, var, mean, gamma = (block.array for block in blocks)
    scale = 1 / np.sqrt(np.abs(var[..., None]) + EPSILON)
    normal, dn = (x - mean[..., None]) * scale, dy * gamma
    dx = scale * (dn - dn.mean(-1, keepdims=True) - normal * (dn * normal).mean(-1, keepdims=True))
    width = x.shape[-1]
    return [dx, (dy * normal).reshape(-1, width).sum(0), dy.reshape(-1, width).sum(0)]


def _softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


@kernel("Softmax")
def softmax(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    return [_softmax(blocks[0].array, o.attributes.get("axis", -1))]


@kernel("SoftmaxGrad")
def softmax_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    y, dy = blocks[0].array, blocks[1].array
    axis = o.attributes.get("axis", -1)
    return [y * (dy - (y * dy).sum(axis, keepdims=True))]


# -- attention -----------------------------------------------------------------------------------------------


def _scores(q: Block, k: Block, causal: bool) -> Array:
    """Masked scores (b, h, s, t) of blocks (b, s, h, d), (b, t, k, d)."""
    repeat = q.array.shape[2] // k.array.shape[2]
    scores = np.einsum("bshd,bthd->bhst", q.array, np.repeat(k.array, repeat, 2)) / np.sqrt(q.array.shape[3])
    if causal:
        s = np.arange(q.array.shape[1]) + q.start[1]
        t = np.arange(k.array.shape[1]) + k.start[1]
        scores = np.where(t[None, :] <= s[:, None], scores, -np.inf)
    return np.asarray(scores)


@kernel("FlashAttention")
def attention(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    q, k, v = blocks
    scores = _scores(q, k, o.attributes.get("causal", False))
    high = scores.max(-1)
    sums = high + np.log(np.exp(scores - high[..., None]).sum(-1))
    repeat = q.array.shape[2] // k.array.shape[2]
    out = np.einsum("bhst,bthd->bshd", np.exp(scores - sums[..., None]), np.repeat(v.array, repeat, 2))
    return [out, np.moveaxis(sums, 1, 2)]


@kernel("FlashAttentionGrad")
def attention_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    dout, q, k, v, out, sums = blocks
    heads, groups, d = q.array.shape[2], k.array.shape[2], q.array.shape[3]
    repeat = heads // groups
    wide_k, wide_v = np.repeat(k.array, repeat, 2), np.repeat(v.array, repeat, 2)
    p = np.exp(_scores(q, k, o.attributes.get("causal", False)) - np.moveaxis(sums.array, 2, 1)[..., None])
    dp = np.einsum("bshd,bthd->bhst", dout.array, wide_v)
    row = np.moveaxis((dout.array * out.array).sum(-1), 2, 1)[..., None]
    ds = p * (dp - row) / np.sqrt(d)
    dq = np.einsum("bhst,bthd->bshd", ds, wide_k)
    dk = np.einsum("bhst,bshd->bthd", ds, q.array)
    dv = np.einsum("bhst,bshd->bthd", p, dout.array)
    shape = (*k.array.shape[:2], groups, repeat, d)
    return [dq, dk.reshape(shape).sum(3), dv.reshape(shape).sum(3)]


@kernel("Rotary", "RotaryGrad")
def rotary(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    """Pairs (i, i + d/2) of x (b, s, h, d) turn by the angles (s, d); backward turns back."""
    x, angles = blocks[0].array, blocks[1].array
    half = x.shape[-1] // 2
    a = angles[None, :, None, :half] * (-1 if o.type == "RotaryGrad" else 1)
    left, right = x[..., :half], x[..., half:]
    return [np.concatenate([left * np.cos(a) - right * np.sin(a), left * np.sin(a) + right * np.cos(a)], -1)]


# -- embedding and loss --------------------------------------------------------------------------------------


@kernel("Gather")
def embedding(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    table, ids = blocks
    rows = ids.array.astype(int) - table.start[0]
    mine = (rows >= 0) & (rows < table.array.shape[0])
    return [np.where(mine[..., None], table.array[np.where(mine, rows, 0)], 0.0)]


@kernel("EmbeddingGrad")
def embedding_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    ids, dy = blocks[0], blocks[1]
    made = np.zeros(regions[0].shape)
    rows = ids.array.astype(int).ravel() - regions[0].start[0]
    flat = dy.array.reshape(-1, dy.array.shape[-1])
    mine = (rows >= 0) & (rows < made.shape[0])
    np.add.at(made, rows[mine], flat[mine])
    return [made + blocks[2].array if len(blocks) > 2 else made]


@kernel("UnsortedSegmentSum")
def segment_sum(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    x, ids = blocks[0].array, blocks[1].array
    return embedding_grad(o, [Block(ids, blocks[1].start, blocks[1].whole), Block(x, (), ())], regions)


@kernel("GatherD")
def gather_d(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    return [np.take_along_axis(blocks[0].array, blocks[1].array.astype(int), o.attributes["axis"])]


Reduce = Callable[[list[Array], str], list[Array]]
"""(a block of each device, ``max`` or ``add``) -> what each has after an all-reduce of them."""


def cross_entropy(parts: Sequence[Sequence[Block]], reduce_all: Reduce) -> list[list[Array]]:
    """loss and row sums of logits (.., v) and targets (..), on all devices at once: what is normalised over may be cut,
    and is then reduced by `reduce_all`, a number a row each time."""
    high = reduce_all([logits.array.max(-1) for logits, _ in parts], "max")
    sums = [np.exp(logits.array - h[..., None]).sum(-1) for (logits, _), h in zip(parts, high, strict=True)]
    total = reduce_all(sums, "add")
    hits = []
    for logits, targets in parts:
        rows = targets.array.astype(int) - logits.start[-1]
        mine = (rows >= 0) & (rows < logits.array.shape[-1])
        found = np.take_along_axis(logits.array, np.where(mine, rows, 0)[..., None], -1)[..., 0]
        hits.append(np.where(mine, found, 0.0))
    hit = reduce_all(hits, "add")
    made = []
    for h, s, x in zip(high, total, hit, strict=True):
        lse = h + np.log(s)
        made.append([lse - x, lse])
    return made


@kernel("CrossEntropyGrad")
def cross_entropy_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    dloss, targets, logits, sums = blocks
    columns = np.arange(logits.array.shape[-1]) + logits.start[-1]
    hit = targets.array.astype(int)[..., None] == columns
    return [dloss.array[..., None] * (np.exp(logits.array - sums.array[..., None]) - hit)]


# -- mixture of experts --------------------------------------------------------------------------------------


@kernel("TopKGating")
def gating(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    scores, k = blocks[0].array, regions[0].shape[-1]
    index = np.argsort(-scores, -1, kind="stable")[..., :k]
    return [_softmax(np.take_along_axis(scores, index, -1)), index.astype(float)]


@kernel("TopKGatingGrad")
def gating_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    dgates, scores, index = (block.array for block in blocks)
    index = index.astype(int)
    gates = _softmax(np.take_along_axis(scores, index, -1))
    made = np.zeros_like(scores)
    inner = gates * (dgates - (gates * dgates).sum(-1, keepdims=True))
    np.put_along_axis(made, index, inner, -1)
    return [made]


def _slots(index: Array, room: int) -> list[tuple[int, int, int, int, int]]:
    """(group, token, choice, expert, place) of every token that finds room, in the order of tokens."""
    found = []
    for g in range(index.shape[0]):
        taken: dict[int, int] = {}
        for s in range(index.shape[1]):
            for k in range(index.shape[2]):
                e = int(index[g, s, k])
                place = taken.get(e, 0)
                taken[e] = place + 1
                if place < room:
                    found.append((g, s, k, e, place))
    return found


@kernel("MoeDispatch")
def dispatch(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    x, index, made = blocks[0].array, blocks[1].array, np.zeros(regions[0].shape)
    first = regions[0].start[0]
    for g, s, _, e, c in _slots(index, made.shape[2]):
        if first <= e < first + made.shape[0]:
            made[e - first, g, c] = x[g, s]
    return [made]


@kernel("MoeDispatchGrad")
def dispatch_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    dy, index, made = blocks[0], blocks[1].array, np.zeros(regions[0].shape)
    first = dy.start[0]
    for g, s, _, e, c in _slots(index, dy.array.shape[2]):
        if first <= e < first + dy.array.shape[0]:
            made[g, s] += dy.array[e - first, g, c]
    return [made]


@kernel("MoeCombine")
def combine(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    y, gates, index, made = blocks[0], blocks[1].array, blocks[2].array, np.zeros(regions[0].shape)
    first = y.start[0]
    for g, s, k, e, c in _slots(index, y.array.shape[2]):
        if first <= e < first + y.array.shape[0]:
            made[g, s] += gates[g, s, k] * y.array[e - first, g, c]
    return [made]


@kernel("MoeCombineGrad")
def combine_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    dout, y, gates, index = blocks[0].array, blocks[1], blocks[2].array, blocks[3].array
    dy, dgates = np.zeros(regions[0].shape), np.zeros(regions[1].shape)
    first = y.start[0]
    for g, s, k, e, c in _slots(index, y.array.shape[2]):
        if first <= e < first + y.array.shape[0]:
            dy[e - first, g, c] = gates[g, s, k] * dout[g, s]
            dgates[g, s, k] = dout[g, s] @ y.array[e - first, g, c]
    return [dy, dgates]


# Rows in the order of their experts, as many for each: every expert takes the next ones of all choices, in a fixed
# order, so that a device with some of the experts knows which rows are theirs.


def _order(index: Array, experts: int) -> Array:
    """Row -> choice (token x k). Which expert a choice is for does not matter here, only that each has as many."""
    return np.argsort(np.arange(index.size) % experts, kind="stable")


def _rows(block: Block | Region) -> slice:
    return slice(block.start[0], block.start[0] + (block.shape if isinstance(block, Region) else block.array.shape)[0])


@kernel("GroupedMatMul")
def grouped(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    a, b = blocks[0].array, blocks[1].array
    if b.ndim == 3:
        return [np.einsum("eck,ekn->ecn", a.reshape(b.shape[0], -1, a.shape[1]), b).reshape(regions[0].shape)]
    e = regions[0].shape[0]
    made = np.einsum("eck,ecn->ekn", a.reshape(e, -1, a.shape[1]), b.reshape(e, -1, b.shape[1]))
    return [made + blocks[2].array if len(blocks) > 2 else made]


@kernel("MoePermute")
def permute(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    x, index = blocks[0].array, blocks[1].array
    order = _order(index, o.attributes["experts"])[_rows(regions[0])]
    return [x[order // index.shape[1]]]


@kernel("MoePermuteGrad")
def permute_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    rows, index, made = blocks[0], blocks[1].array, np.zeros(regions[0].shape)
    order = _order(index, o.attributes["experts"])[_rows(rows)]
    np.add.at(made, order // index.shape[1], rows.array)
    return [made]


@kernel("MoeUnpermute")
def unpermute(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    rows, gates, index, made = blocks[0], blocks[1].array, blocks[2].array, np.zeros(regions[0].shape)
    order = _order(index, o.attributes["experts"])[_rows(rows)]
    np.add.at(made, order // index.shape[1], gates.ravel()[order][:, None] * rows.array)
    return [made]


@kernel("MoeUnpermuteGrad")
def unpermute_grad(o: Operator, blocks: Sequence[Block], regions: Sequence[Region]) -> list[Array]:
    dy, index, rows, gates = blocks[0].array, blocks[1].array, blocks[2], blocks[3].array
    order = _order(index, o.attributes["experts"])[_rows(rows)]
    dgates = np.zeros(gates.size)
    dgates[order] = (dy[order // index.shape[1]] * rows.array).sum(1)
    return [gates.ravel()[order][:, None] * dy[order // index.shape[1]], dgates.reshape(gates.shape)]
