"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

from hyperopt.graph import Operator, Tensor
from solver.placement.rules.registry import letters, rule
from solver.placement.signature import Labels, Signature


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
    tokens, places, chosen = letters("gsh"), letters("egch"), letters("gsk")
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


@rule("GroupedMatMul")
def _grouped(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Rows in the order of their experts, as many for each: x (e.., k), w (e, k, n) -> (e.., n); the weights turned, in
    backward; or x (e.., k), dy (e.., n) -> (e, k, n), to which a third input is added."""
    a, b, y = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if len(inputs) == 2 and len(a) == len(y) == 2 and len(b) == 3 and a[0] == y[0] and a[0] % b[0] == 0:
        fits = [turned for turned in (False, True) if (a[1], y[1]) == ((b[2], b[1]) if turned else (b[1], b[2]))]
        if not fits:
            return None
        turned = operator.attributes.get("transpose_b", operator.phase == "backward") if len(fits) > 1 else fits[0]
        units = {"e": b[0], "k": a[1], "n": y[1]}
        weight = letters("enk") if turned else letters("ekn")
        return Signature((letters("ek"), weight), (letters("en"),), units, flops=2 * a[0] * a[1] * y[1])
    if len(a) == len(b) == 2 and len(y) == 3 and a[0] == b[0] and a[0] % y[0] == 0 and y[1:] == (a[1], b[1]):
        units = {"e": y[0], "k": a[1], "n": b[1]}
        operands = [letters("ek"), letters("en")]
        added: tuple[tuple[int, int], ...] = ()
        if len(inputs) == 3:
            operands.append(letters("ekn"))
            added = ((2, 0),)
        flops = 2 * a[0] * a[1] * b[1]
        return Signature(tuple(operands), (letters("ekn"),), units, flops=flops, accumulators=added)
    return None


@rule("MoePermute", "MoePermuteGrad", "MoeUnpermute", "MoeUnpermuteGrad")
def _permute(operator: Operator, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature | None:
    """Tokens (r, h) to rows (e.., h) in the order of their experts, and back.

    ::

        MoePermute     x, index -> rows                 MoePermuteGrad     drows, index -> dx
        MoeUnpermute   rows, gates, index -> y          MoeUnpermuteGrad   dy, index, rows, gates -> drows, dgates

    `experts` of the operator says how many there are; without it rows stay whole. Each device takes the rows of its own
    experts out of all tokens: sums over experts are partial.
    """
    forms = {
        "MoePermute": (".h ..", "eh"),
        "MoePermuteGrad": ("eh ..", ".h"),
        "MoeUnpermute": ("eh .. ..", ".h"),
        "MoeUnpermuteGrad": (".h .. eh ..", "eh .."),
    }
    left, right = forms[operator.type]
    operands, results = tuple(map(letters, left.split())), tuple(map(letters, right.split()))
    if [len(x) for x in (*operands, *results)] != [len(t.shape) for t in (*inputs, *outputs)]:
        return None
    widths = {t.shape[1] for ls, t in zip((*operands, *results), (*inputs, *outputs), strict=True) if ls[1] == "h"}
    if len(widths) != 1:
        return None
    units = {"h": widths.pop(), "e": int(operator.attributes.get("experts", 1))}
    return Signature(operands, results, units)
