"""What may be cut in an operator: a label for every dimension of every operand, and what follows from cutting one.

::

    MatMul      m k, k n -> m n         cut m: x and y are cut           cut k: y is a partial sum
    RmsNorm     r h, h -> r h, r        h has no units: it stays whole
    attention   b s h d, b t h d, ..    h is counted in key/value heads

A dimension is cut in blocks of whole *units*: of its 4,096 columns, 8 heads. A label that an output lacks is summed
over, so that the output is partial where it is cut; an input that lacks it is replicated. That is all there is to know
about most operators; the exceptions are fields of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from hyperopt.mesh import Mesh
from solver.placement.layout import PARTIAL, REPLICATED, Layout

Labels = tuple[str, ...]
"""One a dimension; ``""`` for a dimension that is never cut."""

LINEAR = "+"
"""In a strategy: along this axis the operator works on summands and its outputs are summands."""


@dataclass(frozen=True)
class Signature:
    """`units`: into how many equal blocks at most each label can be cut; a label without units is whole.

    `accumulators`: inputs that are added to an output and so partial where that one is (input, output).
    `linear`: sets of inputs in which the operator is linear: if they are partial, so are the outputs.
    `closed`: labels that are reduced inside, by so many all-reduces of an output's size (label -> ((output, bytes of an
    element), ..)): what lacks them is complete all the same.
    `flops`: of the whole operator; `gathers`: inputs of which only as much is read as is written (tables).
    """

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]
    units: Mapping[str, int]
    flops: int = 0
    accumulators: tuple[tuple[int, int], ...] = ()
    linear: tuple[tuple[int, ...], ...] = ()
    closed: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    gathers: tuple[int, ...] = ()
    grouped: tuple[int, ...] = ()
    understood: bool = True


@dataclass(frozen=True, slots=True)
class Strategy:
    """For each mesh axis the label that it cuts, LINEAR with the number of the set (``+0``), or "" for nothing; and the
    layouts that follow. `share`: of the operator's arithmetic that one device does is 1 / `share`."""

    cuts: tuple[str, ...]
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    share: int


def strategies(signature: Signature, mesh: Mesh) -> list[Strategy]:
    """All strategies of an operator on a mesh, the one that cuts nothing first."""
    labels = [label for label, units in signature.units.items() if units > 1]
    free = [f"{LINEAR}{i}" for i in range(len(signature.linear))]
    options = [[""] if n == 1 else ["", *labels, *free] for n in mesh.shape]
    found = []
    for cuts in product(*options):
        parts: dict[str, int] = {}
        for axis, cut in enumerate(cuts):
            if cut and cut[0] != LINEAR:
                parts[cut] = parts.get(cut, 1) * mesh.shape[axis]
        if any(signature.units[label] % n for label, n in parts.items()):
            continue
        share = 1
        for n in parts.values():
            share *= n
        outputs = tuple(_output(signature, labels_, cuts) for labels_ in signature.outputs)
        inputs = tuple(_input(signature, i, cuts, outputs) for i in range(len(signature.inputs)))
        found.append(Strategy(cuts, inputs, outputs, share))
    return found


def _output(signature: Signature, labels: Labels, cuts: tuple[str, ...]) -> Layout:
    entries = []
    for cut in cuts:
        if not cut:
            entries.append(REPLICATED)
        elif cut[0] == LINEAR:
            entries.append(PARTIAL)
        elif cut in labels:
            entries.append(labels.index(cut))
        else:
            entries.append(REPLICATED if cut in signature.closed else PARTIAL)
    return tuple(entries)


def _input(signature: Signature, i: int, cuts: tuple[str, ...], outputs: tuple[Layout, ...]) -> Layout:
    added = dict(signature.accumulators).get(i)
    if added is not None:
        return outputs[added]
    labels = signature.inputs[i]
    entries = []
    for cut in cuts:
        if cut and cut[0] == LINEAR:
            entries.append(PARTIAL if i in signature.linear[int(cut[1:])] else REPLICATED)
        else:
            entries.append(labels.index(cut) if cut and cut in labels else REPLICATED)
    return tuple(entries)
