"""How the dimensions of an operator's tensors go together, told from type and lengths.

A profile has no attributes: not which axes a transpose swaps, nor whether a product turns an operand. Lengths say it,
mostly: of [4096, 96] to [96, 4096] there is one reading. Where there are several, all of them are given, and whoever
follows a dimension through the step (`hyperopt.cost.followed`) sees which of them agree with the rest.

::

    MatMul      [m, k] [k, n] -> [m, n]        m = m, n = n, k = k
    Add         [b, s, h] [h] -> [b, s, h]     aligned at the last
    ReduceSum   [b, s] -> [b]                  what is left, in order
    Reshape     [b s, h d] -> [b, s, h, d]     sums of powers: of b s there is as much as of b and s together
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice, permutations, product
from math import prod

Shape = tuple[int, ...]
Pair = tuple[int, int]
Sum = tuple[tuple[int, ...], tuple[int, ...]]

MOST_READINGS = 24
"""Readings of one operator that are kept; with more, its shapes tell nothing."""


@dataclass(frozen=True)
class Reading:
    """Dimensions are numbered through all tensors of the operator. `same`: grow alike; `sums`: the powers of the one
    side add up to those of the other."""

    same: frozenset[Pair]
    sums: tuple[Sum, ...] = ()


@lru_cache(maxsize=1 << 14)
def readings(name: str, family: str, inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> tuple[Reading, ...]:
    """All readings of an operator of canonical `name` and `family` (of `hyperopt.cost.work.Table`; "" and "" where its
    type is unknown). Empty: its shapes do not fit what such an operator does, or fit it in too many ways."""
    shapes = (*inputs, *outputs)
    tensors: list[range] = []
    for shape in shapes:
        start = tensors[-1].stop if tensors else 0
        tensors.append(range(start, start + len(shape)))
    rule = _BY_NAME.get(name) or _BY_FAMILY.get(family, _aligned)
    if rule not in _ALIKE_IS_NOT_ENOUGH and len(set(shapes)) <= 1:
        return (Reading(_identity(tensors) if tensors else frozenset()),)
    found = rule(inputs, outputs, tensors[: len(inputs)], tensors[len(inputs) :])
    return () if len(found) > MOST_READINGS else tuple(dict.fromkeys(found))


def between(old: Shape, new: Shape) -> Reading | None:
    """Of one block of memory seen in two shapes: the first's dimensions are numbered before the second's. None: they
    have not as many elements."""
    if prod(old) != prod(new):
        return None
    first, second = range(len(old)), range(len(old), len(old) + len(new))
    return _grouped(old, new, first, second)


def _identity(tensors: Sequence[range]) -> frozenset[Pair]:
    first = tensors[0]
    return frozenset((a, b) for other in tensors[1:] for a, b in zip(first, other, strict=True))


def alignments(shape: Shape, own: range, whole: Shape, of: range) -> list[frozenset[Pair]]:
    """Ways in which a tensor lies along a larger one: at its end with ones repeated, or at its beginning (row sums)."""
    if len(shape) > len(whole):
        return []
    found = []
    for shift in dict.fromkeys((len(whole) - len(shape), 0)):
        beside = whole[shift : shift + len(shape)]
        if shift == 0 and len(shape) < len(whole) and shape != beside:
            continue
        if all(a in (1, b) for a, b in zip(shape, beside, strict=True)):
            pairs = zip(own, of[shift:], strict=False)
            found.append(frozenset(p for p, a, b in zip(pairs, shape, beside, strict=False) if a == b))
    return list(dict.fromkeys(found))


def _aligned(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """All along the largest: broadcasting, norms and their statistics, softmax, updates."""
    shapes, tensors = (*inputs, *outputs), (*ins, *outs)
    whole = max(range(len(shapes)), key=lambda i: (len(shapes[i]), prod(shapes[i]), i))
    ways: list[list[frozenset[Pair]]] = [
        alignments(shape, tensors[i], shapes[whole], tensors[whole]) if shape else [frozenset()]
        for i, shape in enumerate(shapes)
        if i != whole
    ]
    return _together(ways)


def _reduced(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """Some dimensions go, or become ones; the others stay in order."""
    if not inputs or not outputs:
        return _aligned(inputs, outputs, ins, outs)
    whole = max(range(len(inputs)), key=lambda i: prod(inputs[i]))
    ways: list[list[frozenset[Pair]]] = []
    for shape, own in zip((*inputs, *outputs), (*ins, *outs), strict=True):
        if own == ins[whole]:
            continue
        of = inputs[whole]
        found = alignments(shape, own, of, ins[whole]) if len(shape) == len(of) else []
        if not found:
            found = [
                frozenset(zip(own, (ins[whole][i] for i in kept), strict=True))
                for kept in combinations(range(len(of)), len(shape))
                if all(of[i] == n for i, n in zip(kept, shape, strict=True))
            ]
        ways.append(found or [frozenset[Pair]()] if len(shape) < 2 else found)  # axes, given as a tensor
    return _together(ways)


def _multiplied(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """(.., m, k) by (.., k, n), either turned; what else goes in is added."""
    if len(inputs) < 2 or len(outputs) != 1 or min(map(len, (*inputs[:2], *outputs))) < 2:
        return []
    a, b, y = inputs[0], inputs[1], outputs[0]
    at_a, at_b, at_y = ins[0], ins[1], outs[0]
    lead = set()
    for shape, own in ((a, at_a), (b, at_b)):
        front = len(y) - len(shape)
        if front < 0:
            return []
        for i in range(len(shape) - 2):
            if shape[i] == y[front + i]:
                lead.add((own[i], at_y[front + i]))
            elif shape[i] != 1:
                return []
    ways = []
    for (m, k), (k2, n) in product(((-2, -1), (-1, -2)), ((-2, -1), (-1, -2))):
        if (a[m], a[k], b[n]) == (y[-2], b[k2], y[-1]):
            ways.append(frozenset({*lead, (at_a[m], at_y[-2]), (at_b[n], at_y[-1]), (at_a[k], at_b[k2])}))
    added = [alignments(shape, own, y, at_y) for shape, own in zip(inputs[2:], ins[2:], strict=True)]
    return _together([ways, *added])


def _added_product(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """What is added goes in first, then both factors."""
    return _multiplied([*inputs[1:], *inputs[:1]], outputs, [*ins[1:], *ins[:1]], outs)


def _permuted(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    if len(outputs) != 1 or not inputs or sorted(inputs[0]) != sorted(outputs[0]):
        return []
    before, after = inputs[0], outputs[0]
    return [
        Reading(frozenset((ins[0][i], outs[0][j]) for j, i in enumerate(order)))
        for order in permutations(range(len(before)))
        if all(before[i] == after[j] for j, i in enumerate(order))
    ]


def _reshaped(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    if not inputs or prod(inputs[0]) != prod(outputs[0]):
        return []
    return [_grouped(inputs[0], outputs[0], ins[0], outs[0])]


def _grouped(before: Shape, after: Shape, first: range, second: range) -> Reading:
    """Runs of dimensions on both sides with the same number of elements, as short as they come."""
    if before == after:
        return Reading(frozenset(zip(first, second, strict=True)))
    same, sums = set(), []
    i = j = 0
    while i < len(before) or j < len(after):
        left: list[int] = []
        right: list[int] = []
        a = b = 1
        while True:
            if i < len(before) and (a <= b or j == len(after)):
                a, left, i = a * before[i], [*left, first[i]], i + 1
            elif j < len(after):
                b, right, j = b * after[j], [*right, second[j]], j + 1
            rest = (*before[i:], *after[j:])
            if (a == b and left and right) or not rest:
                break
        # Ones at the end belong to what stands before them.
        while i < len(before) and before[i] == 1 and all(n == 1 for n in before[i:]):
            left, i = [*left, first[i]], i + 1
        while j < len(after) and after[j] == 1 and all(n == 1 for n in after[j:]):
            right, j = [*right, second[j]], j + 1
        if len(left) == len(right) == 1:
            same.add((left[0], right[0]))
        else:
            sums.append((tuple(left), tuple(right)))
    return Reading(frozenset(same), tuple(sums))


def _untold(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """Shapes do not say it: a view by strides may be any part in any order."""
    return []


def _pieces(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """Parts of a whole, along one dimension or more: all grow alike in every dimension, that one too."""
    whole = max((*inputs, *outputs), key=prod)
    tensors = [t for t, shape in zip((*ins, *outs), (*inputs, *outputs), strict=True) if len(shape) == len(whole)]
    stacked = [shape for shape in (*inputs, *outputs) if prod(shape) > 1 and len(shape) != len(whole)]
    return [] if stacked else [Reading(_identity(tensors))]


def _looked_up(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """table, places -> the table's dimensions with those of the places in one's stead."""
    if len(inputs) < 2 or len(outputs) != 1:
        return _aligned(inputs, outputs, ins, outs)
    table, places, out = inputs[0], inputs[1], outputs[0]
    found = []
    for axis in range(len(table)):
        if (*table[:axis], *places, *table[axis + 1 :]) == out:
            of = [*ins[0][:axis], *ins[1], *ins[0][axis + 1 :]]
            found.append(Reading(frozenset(zip(of, outs[0], strict=True))))
    return found or _aligned(inputs, outputs, ins, outs)


def _summed_rows(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """rows (r.., w..), places (r..) -> table (v, w..)."""
    if len(inputs) < 2 or len(outputs) != 1 or not outputs[0]:
        return _aligned(inputs, outputs, ins, outs)
    rows = max(range(2), key=lambda i: len(inputs[i]))
    places = 1 - rows
    depth, wide, out = len(inputs[places]), inputs[rows], outputs[0]
    if wide[:depth] != inputs[places] or out[1:] != wide[depth:]:
        return []
    return [
        Reading(
            frozenset({*zip(ins[places], ins[rows], strict=False), *zip(outs[0][1:], ins[rows][depth:], strict=True)})
        )
    ]


def _picked_gradients(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """x, (axis,) places, gradients -> x's shape; places and gradients lie along it but for one axis."""
    if len(inputs) < 3 or len(outputs) != 1 or inputs[0] != outputs[0] or inputs[-2] != inputs[-1]:
        return []
    x, places = inputs[0], inputs[-1]
    if len(places) != len(x):
        return []
    alike = {*zip(ins[0], outs[0], strict=True), *zip(ins[-1], ins[-2], strict=True)}
    return [
        Reading(frozenset({*alike, *((ins[0][i], ins[-1][i]) for i in range(len(x)) if i != axis)}))
        for axis in range(len(x))
        if all(x[i] == places[i] for i in range(len(x)) if i != axis)
    ]


def _spread(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """Repeated along some dimensions: those that keep their length stay what they are; what the others grow with, says
    who reads them."""
    if len(outputs) != 1 or not inputs or len(inputs[0]) > len(outputs[0]):
        return _aligned(inputs, outputs, ins, outs)
    shift = len(outputs[0]) - len(inputs[0])
    kept = [
        (ins[0][i], outs[0][shift + i]) for i, length in enumerate(inputs[0]) if length == outputs[0][shift + i] != 1
    ]
    return [Reading(frozenset(kept))]


def _convolved(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """Images alike in their first dimension; nothing is said of the others."""
    shapes, tensors = (*inputs, *outputs), (*ins, *outs)
    images = [t for shape, t in zip(shapes, tensors, strict=True) if len(shape) >= 4]
    firsts = {shapes[tensors.index(t)][0] for t in images}
    common = max(firsts, key=lambda n: sum(shapes[tensors.index(t)][0] == n for t in images), default=0)
    alike = [t for t in images if shapes[tensors.index(t)][0] == common]
    return [Reading(frozenset((alike[0][0], t[0]) for t in alike[1:]))] if alike else []


def _attended(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """What has the queries' shape grows as they do, and keys and values as each other; keys as queries where they are
    as long."""
    shapes, tensors = (*inputs, *outputs), (*ins, *outs)
    if len(inputs) < 2 or len(inputs[0]) != len(inputs[1]):
        return []
    same = set()
    for i, shape in enumerate(shapes):
        for like in (0, 1):
            if i != like and shape == shapes[like]:
                same |= set(zip(tensors[like], tensors[i], strict=True))
    same |= {(a, b) for a, b, n, m in zip(ins[0], ins[1], inputs[0], inputs[1], strict=True) if n == m}
    ways: list[list[frozenset[Pair]]] = [[frozenset(same)]]
    for i, shape in enumerate(shapes):  # row statistics: (batch, heads, rows, 8)
        if i > 1 and len(shape) == 4 and shape[-1] == 8 and shape not in shapes[:2] and len(inputs[0]) >= 3:
            own, of = tensors[i], tensors[0]
            fits = [
                frozenset({(own[0], of[b]), (own[2], of[s])})
                for b, s in permutations(range(len(inputs[0])), 2)
                if (inputs[0][b], inputs[0][s]) == (shape[0], shape[2])
            ]
            ways.append(fits or [frozenset()])
    return _together(ways)


def _attended_gradient_first(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """The gradient goes in before queries, keys and values."""
    return _attended([*inputs[1:4], *inputs[:1], *inputs[4:]], outputs, [*ins[1:4], *ins[:1], *ins[4:]], outs)


def _rotated(
    inputs: Sequence[Shape], outputs: Sequence[Shape], ins: Sequence[range], outs: Sequence[range]
) -> Sequence[Reading]:
    """Queries and keys come out as they went in, alike but for their heads; tables lie along the queries."""
    if len(inputs) < 4 or len(inputs[0]) != len(inputs[1]) or outputs not in ((), tuple(inputs[:2])):
        return []
    same = set(zip((*ins[0], *ins[1]), (d for out in outs for d in out), strict=False))
    same |= {(a, b) for a, b, n, m in zip(ins[0], ins[1], inputs[0], inputs[1], strict=True) if n == m}
    tables = zip(inputs[2:], ins[2:], strict=True)
    ways = [alignments(shape, own, inputs[0], ins[0]) or [frozenset[Pair]()] for shape, own in tables]
    return _together([[frozenset(same)], *ways])


def _together(ways: Sequence[Sequence[frozenset[Pair]]]) -> list[Reading]:
    """One way for each tensor, all combinations."""
    found = islice(product(*ways), MOST_READINGS + 1)
    return [Reading(frozenset().union(*chosen)) for chosen in found]


Rule = Callable[[Sequence[Shape], Sequence[Shape], Sequence[range], Sequence[range]], Sequence[Reading]]

_BY_NAME: Mapping[str, Rule] = {
    "Transpose": _permuted, "Copy": _reshaped, "Gather": _looked_up, "EmbeddingGrad": _summed_rows,
    "EmbeddingGradRows": _summed_rows, "Spread": _spread, "Concat": _pieces, "Split": _pieces, "Slice": _pieces,
    "SliceGrad": _pieces, "AddMatMul": _added_product, "AddBatchMatMul": _added_product,
    "GatherGrad": _picked_gradients, "DotProductAttentionGrad": _attended_gradient_first,
    "RotaryEmbeddingOfTwo": _rotated, "ReshapeView": _reshaped, "TransposeView": _permuted, "ExpandView": _spread,
    "SliceView": _pieces, "StridedView": _untold,
}  # fmt: skip
_BY_FAMILY: Mapping[str, Rule] = {
    "matmul": _multiplied, "batch_matmul": _multiplied, "reduction": _reduced, "attention": _attended,
    "convolution": _convolved, "pooling": _convolved, "collective": _pieces,
}  # fmt: skip
_ALIKE_IS_NOT_ENOUGH = (
    _permuted, _multiplied, _added_product, _attended, _attended_gradient_first, _looked_up, _picked_gradients,
    _untold,
)  # fmt: skip
"""Rules under which tensors of one shape need not lie along each other."""
