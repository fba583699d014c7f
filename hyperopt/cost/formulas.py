"""FLOPs and bytes by formula: a multiply-add counts 2, any function of one number what the table says (mostly 1).

Bytes are the least that must cross between processor and memory: each input once, each output once; less where only a
part is touched (lookups, slices). Caches, padding that shapes do not show, and what a kernel reads twice are the
model's business (`hyperopt.cost.analytic`), not the count's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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


SAME_TYPE = {
    "float": "float32", "half": "float16", "bf16": "bfloat16", "double": "float64", "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2", "int": "int32", "long": "int64", "long int": "int64", "short": "int16",
    "unsigned char": "uint8", "signed char": "int8", "char": "int8",
}  # fmt: skip
"""Two names of one element type."""


def element_type(dtype: str) -> str:
    """One name of each element type, however a profile spells it."""
    name = dtype.lower().removeprefix("c10::").removeprefix("dt_")
    return SAME_TYPE.get(name, name)


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
        return "float" in self.dtype.lower() or self.dtype.lower() in ("bf16", "double", "half", "hf32")


class Work(NamedTuple):
    """FLOPs, and bytes read and written."""

    flops: int
    read: int
    written: int

    @property
    def bytes(self) -> int:
        return self.read + self.written


Tensors = Sequence[Tensor]
Shape = tuple[int, ...]
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


def each_of_two(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """`flops` for each element of queries and of keys; tables (cosines, sines) are read. Without outputs both are
    changed in place."""
    two = outputs or _first(inputs, 4, "inputs")[:2]
    return _moved(inputs, two, kind.flops * sum(t.elements for t in two))


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


def copy(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Everything read and written once; but of what is copied into the first input (an assignment), that is not
    read."""
    if not _is_overwritten(inputs, outputs):
        return _moved(inputs, outputs, 0)
    return _moved(inputs[1:], inputs[:1], 0)


def _is_overwritten(inputs: Tensors, outputs: Tensors) -> bool:
    """Whether the first input keeps its shape, and another lies along it: a shape or an axis does not."""
    if len(inputs) < 2 or any(t.shape != inputs[0].shape for t in outputs):
        return False
    into = inputs[0].shape
    return any(_stacked(t.shape, into) == into for t in inputs[1:])


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


def pick_in_rows(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """One number of each row of the first input (the second axis: classes), where the others say."""
    table = _first(inputs, 1, "inputs")[0]
    classes = table.shape[1] if len(table.shape) > 1 else table.elements
    picked = table.bytes // max(classes, 1)
    return Work(0, picked + sum(t.bytes for t in inputs[1:]), sum(t.bytes for t in outputs))


def put(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Values put or added into the first input at indices: the rest of it stays as it is. The values are the largest of
    the other inputs with its element type."""
    _first(inputs, 2, "inputs")
    into, *others = inputs
    values = max((t for t in others if t.dtype == into.dtype), key=lambda t: t.bytes, default=None)
    if values is None:
        raise Uncounted(f"no values of {into.dtype} to put")
    return Work(values.elements, sum(t.bytes for t in others) + values.bytes, values.bytes)


def put_in_copy(kind: Kind, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> Work:
    """As `put`, but into a new tensor: all of the first input is copied there before."""
    work = put(kind, inputs, outputs, attributes)
    into = inputs[0]
    if all(t.shape != into.shape for t in outputs):
        raise Uncounted(f"no output of {into.shape}, the shape of what values are put into")
    return work._replace(read=work.read + into.bytes, written=work.written + into.bytes)


def put_in_caches(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """New keys and values to their slots in caches, which are touched nowhere else: keys, values and slots are read,
    keys and values written. In MindSpore's order (keys, values, their caches, slots) or in CANN's (keys, cache of keys,
    slots, values, cache of values); in both values and their cache may be missing. With more tensors (lengths) only
    parts of the keys are kept, which shapes do not tell."""
    places = [place for place, t in enumerate(inputs) if not t.whole]
    order = {
        (5, 4): (0, 1, 2, 3), (5, 2): (0, 3, 1, 4), (3, 2): (0, 1),
    }.get((len(inputs), places[0]) if len(places) == 1 else (0, 0))  # fmt: skip
    if order is None:
        raise Uncounted(f"{len(inputs)} inputs, {len(places)} of them integers, are not keys, values, caches and slots")
    half = len(order) // 2
    new, caches = [inputs[i] for i in order[:half]], [inputs[i] for i in order[half:]]
    slots = inputs[places[0]]
    for t, cache in zip(new, caches, strict=True):
        if t.elements > cache.elements or t.dtype != cache.dtype or not slots.elements or t.elements % slots.elements:
            raise Uncounted(f"{t.shape} are no keys or values for {slots.shape} slots of {cache.shape}")
    size = sum(t.bytes for t in new)
    return Work(0, size + slots.bytes, size)


def put_in_zeros(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Values in a new tensor of zeros (the gradient of a slice): what they are put into is written whole. The values
    are the first input of its element type; others of that type tell only its shape."""
    (out,) = _first(outputs, 1, "outputs")
    values = next((t for t in inputs if t.dtype == out.dtype), None)
    if values is None:
        raise Uncounted(f"no values of {out.dtype} to put")
    return Work(0, values.bytes + sum(t.bytes for t in inputs if t.dtype != out.dtype), sum(t.bytes for t in outputs))


def add_in_zeros(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Indices, and values that are added up in a new tensor of zeros, which is written whole."""
    values = _first(inputs, 2, "inputs")[1]
    _first(outputs, 1, "outputs")
    return _moved(inputs, outputs, values.elements)


def add_picked(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """The gradient of picking along an axis: x, (axis,) places and gradients of one shape -> zeros of x's shape, to
    which the gradients are added. Of x only the shape is looked at."""
    _first(inputs, 3, "inputs")
    x, *rest = inputs
    (out,) = _first(outputs, 1, "outputs")
    places, gradients = rest[-2:]
    if x.shape != out.shape or places.shape != gradients.shape or len(places.shape) != len(x.shape):
        raise Uncounted(f"{places.shape} and {gradients.shape} are no places and gradients of {x.shape}")
    read = sum(t.bytes for t in rest) + gradients.bytes
    return Work(gradients.elements, read, out.bytes + gradients.bytes)


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


def update_apart(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """An optimizer's states are updated in place, and what to add to the weight comes out."""
    states = _first(inputs, kind.updates + 1, "inputs")[: kind.updates]
    change = _first(outputs, 1, "outputs")[0]
    written = sum(t.bytes for t in states) + change.bytes
    return Work(kind.flops * states[0].elements, sum(t.bytes for t in inputs), written)


def update_all(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """As `update`, of lists in one launch: weights, gradients and the other states, n tensors each, in whatever order
    but weights first; one list more (the largest second moments, ``amsgrad``) is a state too. Steps and rates are
    single numbers. All lists but the gradients are written."""
    many = [t for t in inputs if t.elements > 1]
    single = len(inputs) - len(many)
    found = {}
    for lists in (kind.updates + 1, kind.updates + 2):
        count, rest = divmod(len(many), lists)
        shapes = [t.shape for t in many]
        if count and not rest and shapes == shapes[:count] * lists:
            found[lists] = count
    if len(found) > 1:  # as many steps as there are weights, or one number more
        found = {lists: count for lists, count in found.items() if single in (count, count + 1)}
    if len(found) != 1:
        raise Uncounted(f"{len(many)} tensors are not {kind.updates + 1} lists of the same shapes")
    ((lists, count),) = found.items()
    size, elements = sum(t.bytes for t in many[:count]), sum(t.elements for t in many[:count])
    return Work(kind.flops * elements, sum(t.bytes for t in inputs), (lists - 1) * size)


def sort(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """n log2 n comparisons a row."""
    keys = _first(inputs, 1, "inputs")[0]
    row = keys.shape[-1] if keys.shape else 1
    return _moved(inputs, outputs, round(keys.elements * float(np.log2(row))) if row > 1 else keys.elements)


def matmul(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """2 m n k for each matrix of the output; a third input is a bias (one addition an element)."""
    a, b = _first(inputs, 2, "inputs")
    (out,) = _first(outputs, 1, "outputs")
    biased = out.elements if len(inputs) > 2 and inputs[2].elements > 1 else 0
    return _moved(inputs, outputs, 2 * out.elements * _inner(a, b, out) + biased)


def matmul_added(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """A product that is added to the first input (``addmm``, ``baddbmm``): one addition an element."""
    a, b = _first(inputs, 3, "inputs")[1:]
    (out,) = _first(outputs, 1, "outputs")
    return _moved(inputs, outputs, out.elements * (2 * _inner(a, b, out) + 1))


def matmul_grouped(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """Rows (r, k) in groups, each group by a matrix of its own of (e, k, n), either turned: 2 r k n, however the rows
    are divided. Of weights' gradients: rows (r, k) and (r, n) -> (e, k, n)."""
    a, b = _first(inputs, 2, "inputs")
    (out,) = _first(outputs, 1, "outputs")
    ranks = len(a.shape), len(b.shape), len(out.shape)
    if ranks == (2, 3, 2) and a.shape[0] == out.shape[0]:
        inner, wide = a.shape[1], out.shape[1]
        if b.shape[1:] in ((inner, wide), (wide, inner)):
            return _moved(inputs, outputs, 2 * out.elements * inner)
    if ranks == (2, 2, 3) and a.shape[0] == b.shape[0] and out.shape[1:] == (a.shape[1], b.shape[1]):
        return _moved(inputs, outputs, 2 * a.elements * b.shape[1])
    raise Uncounted(f"{a.shape} by {b.shape} is no product in groups of {out.shape}")


def _inner(a: Tensor, b: Tensor, out: Tensor) -> int:
    """The inner length k, on which both inputs must agree: (m, k) by (k, n), either turned, is (m, n).

    Axes in front broadcast; they may also be folded into the rows, or be summed over, as in a weight's gradient. In
    Ascend's FRACTAL_NZ, (.., n1, m1, m0, n0), the blocks are put together first.
    """
    for x, y, z in ((a.shape, b.shape, out.shape), (_unblocked(a.shape), _unblocked(b.shape), _unblocked(out.shape))):
        for ways in (_plain, _vectors, _folded):
            if (inner := ways(x, y, z)) is not None:
                return inner
    raise Uncounted(f"{a.shape} by {b.shape} is no matrix product of {out.shape}")


def _plain(a: Shape, b: Shape, out: Shape) -> int | None:
    """Matrices in the last two axes; those in front broadcast."""
    if min(len(a), len(b), len(out)) < 2 or _stacked(a[:-2], b[:-2]) != out[:-2]:
        return None
    (m, n), left, right = out[-2:], a[-2:], b[-2:]
    if m not in left or n not in right:
        return None
    inner = left[1] if left[0] == m else left[0]
    return inner if inner == (right[0] if right[1] == n else right[1]) else None


def _vectors(a: Shape, b: Shape, out: Shape) -> int | None:
    """A vector on one side, or on both."""
    if len(b) == 1 and a and a[-1:] == b and a[:-1] == out:
        return b[0]
    if len(a) == 1 and len(b) >= 2 and b[-2:-1] == a and (*b[:-2], b[-1]) == out:
        return a[0]
    return None


def _folded(a: Shape, b: Shape, out: Shape) -> int | None:
    """Rows of several axes by one matrix, on either side in another shape; or summed over all axes but the last."""
    if min(len(a), len(b), len(out)) < 2:
        return None
    if len(b) == 2 and prod(a[:-1]) == prod(out[:-1]) and (a[-1], out[-1]) in (b, b[::-1]):
        return a[-1]
    if len(out) == 2 and (a[-1], b[-1]) == out and prod(a[:-1]) == prod(b[:-1]):
        return prod(a[:-1])
    return None


def _unblocked(shape: Shape) -> Shape:
    """Of (.., n1, m1, m0, n0) in blocks of 16 by 32 bytes (8 to 64 numbers): (.., m1 m0, n1 n0)."""
    if len(shape) < 4 or shape[-2] != 16 or shape[-1] not in (8, 16, 32, 64):
        return shape
    *front, n1, m1, m0, n0 = shape
    return (*front, m1 * m0, n1 * n0)


def _stacked(a: Shape, b: Shape) -> Shape | None:
    """The axes before the matrices of a product, as broadcasting makes them; None: they do not go together."""
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    return tuple(y if x == 1 else x for x, y in pairs) if all(x == y or 1 in (x, y) for x, y in pairs) else None


def attention(kind: Kind, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> Work:
    """Two products for each head: of queries and keys, of scores and values; 4 B N Sq Sk D FLOPs, all scores counted;
    with ``causal`` half of them, which is what a kernel that skips them does. Softmax is counted at 5 a score."""
    scores, keys, values = _scores(kind, inputs, outputs, attributes)
    return _moved(inputs, outputs, scores * (2 * keys + 2 * values + 5))


def attention_grad(kind: Kind, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> Work:
    """Five products where the forward has two: the scores once more, and the gradients of v, of the scores, q and k
    (FlashAttention-2, arXiv 2307.08691, section 4: 2.5 times the forward)."""
    scores, keys, values = _scores(kind, inputs, outputs, attributes)
    return _moved(inputs, outputs, scores * (6 * keys + 4 * values + 8))


def attention_grad_first(kind: Kind, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> Work:
    """As `attention_grad`, where the gradient goes in before q, k and v, not behind."""
    _first(inputs, 4, "inputs")
    gradient, *rest = inputs
    return attention_grad(kind, [*rest[:3], gradient, *rest[3:]], outputs, attributes)


def _scores(kind: Kind, inputs: Tensors, outputs: Tensors, attributes: Attributes) -> tuple[int, int, int]:
    """Scores (B N Sq Sk, halved if causal), and head size of queries and keys, and of values."""
    q, k = _first(inputs, 2, "inputs")
    layout = attributes.get("layout", kind.layout)
    beside = [t for t in (*outputs, *inputs[3:]) if t.whole and t.shape not in (q.shape, k.shape)]
    ways = _ways(q.shape, k.shape, layout, attributes.get("heads"))
    if len(ways) != 1:
        ways = _told(q.shape, k.shape, [t.shape for t in beside]) or ways
    ways = {way for way in ways if min(way) > 0 and q.elements % prod(way[:3]) == 0}
    found = {prod(way) for way in ways}
    if len(found) != 1:
        raise Uncounted(f"heads and length of queries {q.shape} are not known")
    batch, heads, queries, _ = ways.pop()
    scores, size = found.pop(), q.elements // (batch * heads * queries)
    values = size
    if len(inputs) > 2 and len(inputs[2].shape) == len(k.shape) and k.elements:
        values = size * inputs[2].elements // k.elements
    return scores // 2 if attributes.get("causal") else scores, size, values


Way = tuple[int, int, int, int]
"""B, N, Sq, Sk."""


def _ways(q: Shape, k: Shape, layout: object, heads: object) -> set[Way]:
    """How queries and keys can be read without statistics: of four axes, (B, N, S, D) or (B, S, N, D), both unless
    `layout` says, or key heads do not divide those of the queries; of three, as `heads` and `layout` say."""
    if len(q) == len(k) == 4:
        ways = set()
        for name, length in (("BNSD", 2), ("BSND", 1)):
            number, of_keys = q[3 - length], k[3 - length]
            if layout in ("", name) and of_keys and number % of_keys == 0 and (q[0], q[3]) == (k[0], k[3]):
                ways.add((q[0], number, q[length], k[length]))
        return ways
    if len(q) == len(k) == 3 and isinstance(heads, int) and layout in ("BSH", "SBH"):
        axis = 1 if layout == "BSH" else 0
        return {(q[1 - axis], heads, q[axis], k[axis])}
    return set()


def _told(q: Shape, k: Shape, beside: Sequence[Shape]) -> set[Way]:
    """As the statistics of the softmax say, (B, N, Sq) or, Ascend's, (B, N, Sq, 8): of four axes and of queries that
    are folded, (Sq, B, N D) or (B, Sq, N D)."""
    for shape in beside:
        if len(q) != len(k) or len(shape) not in (3, 4) or shape[3:] not in ((), (8,)):
            continue
        batch, heads, queries = shape[:3]
        if len(q) == 4:
            axes = [axis for axis in (2, 1) if (q[0], q[3 - axis], q[axis]) == shape[:3]]
        else:
            axes = [axis for axis in (0, 1) if len(q) == 3 and (q[axis], q[1 - axis]) == (queries, batch)]
        if axes and (len(q) == 4 or (q[2] % heads == 0 if heads else False)):
            return {(batch, heads, queries, k[axis]) for axis in axes}
    return set()


def convolution(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """2 FLOPs for each output element and weight of its channel."""
    image, weight = _first(inputs, 2, "inputs")
    (out,) = _first(outputs, 1, "outputs")
    return _moved(inputs, outputs, _convolved([(image, weight, out)]))


def convolution_input_grad(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """As the forward. Weights and gradient come in either order (Ascend has the weights first, MindSpore the
    gradient)."""
    first, second = _first([t for t in inputs if t.whole], 2, "images and weights")
    (image,) = _first(outputs, 1, "outputs")
    return _moved(inputs, outputs, _convolved([(image, first, second), (image, second, first)]))


def convolution_filter_grad(kind: Kind, inputs: Tensors, outputs: Tensors, _: Attributes) -> Work:
    """As the forward. Image and gradient come in either order (Ascend has the image first, MindSpore the gradient)."""
    first, second = _first([t for t in inputs if t.whole], 2, "images")
    (weight,) = _first(outputs, 1, "outputs")
    return _moved(inputs, outputs, _convolved([(first, weight, second), (second, weight, first)]))


Forward = tuple[Tensor, Tensor, Tensor]
"""Image, weights and what comes out of a convolution."""


def _convolved(ways: Sequence[Forward]) -> int:
    """FLOPs of a convolution that can be read in these ways; where several fit, in those in which nothing comes out
    larger than the whole overlap of image and weights."""
    found = {way: flops for way in ways if (flops := _flops(*(t.shape for t in way))) is not None}
    if len(set(found.values())) > 1:
        found = {way: flops for way, flops in found.items() if _overlaps(*(t.shape for t in way))}
    if len(set(found.values())) != 1:
        shapes = ", ".join(str(t.shape) for t in ways[0])
        raise Uncounted(f"{shapes} as image, weights and output do not tell one convolution")
    return next(iter(found.values()))


def _flops(image: Shape, weight: Shape, out: Shape) -> int | None:
    """Of (N, C, ..) by (Cout, C / groups, ..), with one to three axes of space; or of Ascend's (N, C1, H, W, C0) by
    FRACTAL_Z, (C1 H W, N1, N0, C0), and (N, D, C1, H, W, C0) by its sibling, as padded. None: they do not fit."""
    if not image or len(image) != len(out) or image[0] != out[0]:
        return None
    if len(weight) == len(image) and len(image) in (3, 4, 5):
        groups, rest = divmod(image[1], weight[1]) if weight[1] else (0, 1)
        fits = not rest and groups > 0 and out[1] == weight[0] and weight[0] % groups == 0
        return 2 * prod(out) * prod(weight[1:]) if fits else None
    if len(weight) == 4 and len(image) in (5, 6):
        place = len(image) - 4
        inner, blocks, block, item = weight
        if not (image[-1] == out[-1] == item and image[place] and inner % image[place] == 0 and block):
            return None
        return 2 * prod(out) * inner * item if -(-out[place] * item // block) == blocks else None
    return None


def _overlaps(image: Shape, weight: Shape, out: Shape) -> bool:
    """Whether nothing comes out larger than where weights and image touch at all."""
    if len(weight) != len(image):
        return True
    return all(o <= i + w - 1 for i, w, o in zip(image[2:], weight[2:], out[2:], strict=True))


Formula = Callable[["Kind", Tensors, Tensors, Attributes], Work]

FORMULAS: Mapping[str, Formula] = {
    formula.__name__: formula
    for formula in (
        each, each_of_all, each_of_two, add_all, move, copy, reduced, nothing, pick, pick_in_rows, put, put_in_copy,
        put_in_caches, put_in_zeros, add_in_zeros, add_picked, segment_sum, add_rows, fill, update, update_apart,
        update_all, sort, matmul, matmul_added, matmul_grouped, attention, attention_grad, attention_grad_first,
        convolution, convolution_input_grad, convolution_filter_grad,
    )
}  # fmt: skip
