"""FLOPs and bytes by formula: a multiply-add counts 2, any function of one number what the table says (mostly 1).

Bytes are the least that must cross between processor and memory: each input once, each output once; less where only a
part is touched (lookups, slices). Caches, padding that shapes do not show, and what a kernel reads twice are the
model's business (`hyperopt.cost.analytic`), not the count's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isqrt, log2, prod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hyperopt.cost.work import Kind


class Uncounted(ValueError):
    """The work of an operator is not known; the message says why."""


ITEM_BYTES = {
    "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "bf16": 2, "float64": 8, "double": 8, "hf32": 4,
    "hifloat8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8e4m3fn": 1, "float8e5m2": 1, "complex64": 8,
    "complex128": 16, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int": 4, "int64": 8,
    "uint64": 8, "long": 8, "long int": 8, "short": 2, "bool": 1, "unsigned char": 1, "signed char": 1, "char": 1,
}  # fmt: skip


class Tensor(NamedTuple):
    """Shape (() is a scalar) and element type as the profile names it."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Raises `Uncounted` for an unknown element type."""
        name = self.dtype.lower().removeprefix("c10::").removeprefix("dt_")
        if (item := ITEM_BYTES.get(name)) is None:
            raise Uncounted(f"element type {self.dtype!r} is unknown")
        return prod(self.shape) * item

    @property
    def whole(self) -> bool:
        """Whether its elements are numbers to reckon with: indices, masks and shapes are not."""
        return "float" in self.dtype.lower() or self.dtype.lower() in ("bf16", "double", "half")


class Work(NamedTuple):
    """FLOPs, and bytes read and written."""

    flops: int
    read: int
    written: int

    @property
    def bytes(self) -> int:
        return self.read + self.written


Tensors = Sequence[Tensor]
Attributes = Mapping[str, Any]


def _moved(inputs: Tensors, outputs: Tensors, flops: int) -> Work:
    return Work(flops, sum(t.bytes for t in inputs), sum(t.bytes for t in outputs))


def _first(tensors: Tensors, count: int, what: str) -> Tensors:
    if len(tensors) < count:
        raise Uncounted(f"{len(tensors)} {what} where {count} are needed")
    return tensors[:count]


def each(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """`flops` for each element of the largest tensor: the output of a broadcast, the input of a reduction. Without any
    shape all are scalars: one element."""
    most = max((t.elements for t in (*inputs, *outputs)), default=1)
    return _moved(inputs, outputs, kind.flops * most)


def each_of_all(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Lists of tensors in one launch: `flops` for each element of all outputs, or of all inputs if that is in place."""
    return _moved(inputs, outputs or inputs, kind.flops * sum(t.elements for t in outputs or inputs))


def add_all(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """The sum of n tensors of one shape: n - 1 additions an element."""
    _first(inputs, 1, "inputs")
    (out,) = _first(outputs, 1, "outputs")
    return _moved(inputs, outputs, (len(inputs) - 1) * out.elements)


def move(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Everything read and written once."""
    return _moved(inputs, outputs, 0)


def reduced(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """A collective that adds: one addition an element on this rank; what crosses links is `collectives`' business."""
    return _moved(inputs, outputs, sum(t.elements for t in inputs))


def nothing(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    return Work(0, 0, 0)


def pick(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Parts of the first input, at what the others say: of the first only as much is read as comes out."""
    table = _first(inputs, 1, "inputs")[0]
    out = sum(t.bytes for t in outputs)
    return Work(0, min(out, table.bytes) + sum(t.bytes for t in inputs[1:]), out)


def put(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Values put or added into the first input at indices: the rest of it stays as it is. The values are the largest of
    the other inputs with its element type."""
    _first(inputs, 2, "inputs")
    into, *others = inputs
    values = max((t for t in others if t.dtype == into.dtype), key=lambda t: t.bytes, default=None)
    if values is None:
        raise Uncounted(f"no values of {into.dtype} to put")
    return Work(values.elements, sum(t.bytes for t in others) + values.bytes, values.bytes)


def segment_sum(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Rows added up by index (the gradient of a lookup): the output is written whole, the rows once more where they
    land."""
    rows = max((t for t in inputs if t.whole), key=lambda t: t.elements, default=None)
    if rows is None:
        raise Uncounted("no rows to add up")
    work = _moved(inputs, outputs, rows.elements)
    return work._replace(read=work.read + rows.bytes, written=work.written + rows.bytes)


def add_rows(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """As `segment_sum` into a table that is there: only the rows are touched."""
    rows = max((t for t in inputs if t.whole), key=lambda t: t.elements, default=None)
    if rows is None:
        raise Uncounted("no rows to add up")
    return Work(rows.elements, sum(t.bytes for t in inputs) + rows.bytes, rows.bytes)


def fill(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Constants, ranges, random numbers: the output is written; what it is like is not read."""
    return Work(0, 0, sum(t.bytes for t in _first(outputs, 1, "outputs")) + sum(t.bytes for t in outputs[1:]))


def update(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """An optimizer's step in place: all is read, the first `updates` inputs are written."""
    states = _first(inputs, kind.updates + 1, "inputs")[: kind.updates]
    return Work(kind.flops * states[0].elements, sum(t.bytes for t in inputs), sum(t.bytes for t in states))


def sort(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """n log2 n comparisons a row."""
    keys = _first(inputs, 1, "inputs")[0]
    row = keys.shape[-1] if keys.shape else 1
    return _moved(inputs, outputs, round(keys.elements * log2(row)) if row > 1 else keys.elements)


def matmul(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """2 m n k for each matrix of the output; a third input is a bias (one addition an element).

    The inner length k is what both inputs agree on, transposed or not: a holds m k numbers a matrix, b k n. Where the
    last two axes are not the matrix (Ascend's FRACTAL_NZ, leading axes folded), (m k)(k n) / (m n) is a square.
    """
    a, b = _first(inputs, 2, "inputs")
    (out,) = _first(outputs, 1, "outputs")
    inner = _inner(a, b, out)
    biased = out.elements if len(inputs) > 2 and inputs[2].elements > 1 else 0
    return _moved(inputs, outputs, 2 * out.elements * inner + biased)


def _inner(a: Tensor, b: Tensor, out: Tensor) -> int:
    if min(len(a.shape), len(b.shape), len(out.shape)) >= 2 and out.elements:
        (m, n), left, right = out.shape[-2:], prod(a.shape[-2:]), prod(b.shape[-2:])
        stacked = _stacked(a.shape[:-2], b.shape[:-2]) == out.shape[:-2]
        if stacked and left % m == right % n == 0 and left // m == right // n:
            return left // m
    square, rest = divmod(a.elements * b.elements, max(out.elements, 1))
    if rest or isqrt(square) ** 2 != square or not out.elements:
        raise Uncounted(f"{a.shape} by {b.shape} is no matrix product of {out.shape}")
    return isqrt(square)


def _stacked(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The axes before the matrices of a product, as broadcasting makes them."""
    rank = max(len(a), len(b))
    return tuple(max(x, y) for x, y in zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))


def attention(kind: Kind, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> Work:
    """Two products of (queries x keys x head size) for each head: 4 B N Sq Sk D FLOPs, all scores counted; with
    ``causal`` half of them, which is what a kernel that skips them does. Softmax is counted at 5 a score."""
    scores, size = _scores(inputs, outputs, attributes)
    return _moved(inputs, outputs, scores * (4 * size + 5))


def attention_grad(kind: Kind, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> Work:
    """Five products where the forward has two: the scores once more, and the gradients of v, of the scores, q and k
    (FlashAttention-2, arXiv 2307.08691, section 4: 2.5 times the forward)."""
    scores, size = _scores(inputs, outputs, attributes)
    return _moved(inputs, outputs, scores * (10 * size + 8))


def _scores(inputs: Tensors, outputs: Tensors, attributes: Attributes) -> tuple[int, int]:
    """Scores (B N Sq Sk, halved if causal) and head size D.

    Ascend's kernels keep softmax statistics of shape (B, N, Sq, 8), which tell heads and length where queries are
    folded, (Sq, B, N D) or (B, Sq, N D). Without them: four axes are (B, N, S, D) unless ``layout`` says BSND; three
    need ``heads`` and ``layout``.
    """
    q, k = _first(inputs, 2, "inputs")
    statistics = next((t for t in (*outputs, *inputs[2:]) if len(t.shape) == 4 and t.shape[-1] == 8), None)
    if statistics is not None:
        batch, heads, queries = statistics.shape[:3]
        axis = next(
            (i for i, n in enumerate(q.shape) if n == queries and prod(q.shape) % (batch * heads * queries) == 0), -1
        )
        if axis < 0 or len(k.shape) != len(q.shape):
            raise Uncounted(f"queries {q.shape} have no axis of length {queries}")
        # (B, N, S, D) with N = S: the axis of S is the third.
        axis = 2 if len(q.shape) == 4 and q.shape[:3] == (batch, heads, queries) else axis
        keys = k.shape[axis]
    elif len(q.shape) == 4 and len(k.shape) == 4:
        axis = 1 if attributes.get("layout") == "BSND" else 2
        batch, heads, queries, keys = q.shape[0], q.shape[3 - axis], q.shape[axis], k.shape[axis]
    elif len(q.shape) == 3 and "heads" in attributes and attributes.get("layout") in ("BSH", "SBH"):
        axis = 1 if attributes["layout"] == "BSH" else 0
        batch, heads, queries, keys = q.shape[1 - axis], int(attributes["heads"]), q.shape[axis], k.shape[axis]
    else:
        raise Uncounted(f"heads and length of queries {q.shape} are not known")
    scores = batch * heads * queries * keys
    size = q.elements // max(batch * heads * queries, 1)
    return scores // 2 if attributes.get("causal") else scores, size


def convolution(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """2 FLOPs for each output element and weight of its channel. Weights are (Cout, Cin / groups, ...) or Ascend's
    FRACTAL_Z; images (N, C, ...) or NC1HWC0."""
    weight = _first(inputs, 2, "inputs")[1]
    (out,) = _first(outputs, 1, "outputs")
    return _moved(inputs, outputs, 2 * out.elements * _per_channel(weight, out))


def convolution_input_grad(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """As the forward. Weights and gradient come in either order (Ascend has the weights first, the CPU last)."""
    first, second = _first([t for t in inputs if t.whole], 2, "images and weights")
    weight, image = (second, first) if _channels(first) in (second.shape[0], _blocked(second)) else (first, second)
    return _moved(inputs, outputs, 2 * image.elements * _per_channel(weight, image))


def convolution_filter_grad(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """As the forward: each element of the gradient meets each weight of its channel. The gradient is the input that has
    as many channels as there are weights' outputs."""
    images = _first([t for t in inputs if t.whole], 2, "images")
    (weight,) = _first(outputs, 1, "outputs")
    fits = [t for t in images if _channels(t) in (weight.shape[0], _blocked(weight))]
    gradient = fits[0] if len(fits) == 1 else images[1]
    return _moved(inputs, outputs, 2 * gradient.elements * _per_channel(weight, gradient))


def _channels(image: Tensor) -> int:
    """Of (N, C, H, W), or of (N, C1, H, W, C0)."""
    if len(image.shape) < 3:
        raise Uncounted(f"{image.shape} is no image")
    return image.shape[1] * (image.shape[4] if len(image.shape) == 5 else 1)


def _blocked(weight: Tensor) -> int:
    """Output channels of weights in FRACTAL_Z (C1 H W, N1, N0, C0)."""
    return weight.shape[1] * weight.shape[2] if len(weight.shape) == 4 else 0


def _per_channel(weight: Tensor, image: Tensor) -> int:
    """Weights for each output channel; `image` has those channels."""
    channels = _channels(image)
    if not channels or weight.elements % channels:
        raise Uncounted(f"weights {weight.shape} do not go with {channels} channels of {image.shape}")
    return weight.elements // channels


Formula = Callable[["Kind", Tensors, Tensors, Attributes], Work]

FORMULAS: Mapping[str, Formula] = {
    formula.__name__: formula
    for formula in (
        each, each_of_all, add_all, move, reduced, nothing, pick, put, segment_sum, add_rows, fill, update, sort,
        matmul, attention, attention_grad, convolution, convolution_input_grad, convolution_filter_grad,
    )
}  # fmt: skip
