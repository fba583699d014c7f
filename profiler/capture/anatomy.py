"""Which layer and which phase of the training step a kernel belongs to.

MindSpore's scope names (``Gradients/Default/net-Net/blocks-CellList/0-Block/.../Mul-op3``) answer
both for operators that are primitives of a cell. They do not for operators that Python expressions
make (``x + y``, ``ops.matmul``): the compiler keeps one graph a signature, and every use carries the
scope of the first one, or none (``Expand/_MatMulExt/MatMul-op7``). So the scope is believed only
where the flow of data agrees:

* a forward kernel that reads a layer's parameter belongs to that layer; every other one lies between
  the latest such layer above it and the earliest below it::

      parameter of 1 -> ... -> [x] -> ... -> parameter of 2       x is in 1 or 2

* a backward kernel belongs to the layer whose forward values it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from profiler.read.mindspore.actors import Kernel, Source

Phase = Literal["forward", "backward", "optimizer", "other"]
OP_NUMBER = re.compile(r"-op(\d+)$")


@dataclass(frozen=True)
class Anatomy:
    """A network's cells: all names of ``cells_and_names()``, which of them only hold a list of
    others, and the cell that owns each parameter (by the parameter's name)."""

    cells: frozenset[str]
    containers: frozenset[str]
    owners: Mapping[str, str]

    def layer(self, cell: str) -> str:
        """The layer of a cell: the outermost list element it is in, else its topmost cell.

        ``blocks.0.attention.query`` -> ``blocks.0``; ``head`` -> ``head``; the network itself -> "".
        """
        parts = cell.split(".") if cell else []
        prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
        for parent, child in pairwise(prefixes):
            if parent in self.containers:
                return child
        return prefixes[0] if prefixes else ""

    def layer_of_scope(self, kernel: str) -> str | None:
        """The layer that a kernel's scope names; None where the scope names no cell of the network."""
        names = [part.rsplit("-", 1)[0] for part in kernel.split("/")[:-1] if "-" in part]
        if not names:
            return None
        for start in range(len(names)):
            for end in range(len(names), start, -1):
                if (path := ".".join(names[start:end])) in self.cells:
                    return self.layer(path)
        return ""


def operator_type(kernel: str) -> str:
    """``Default/net-Net/MatMul-op3`` -> ``MatMul``."""
    return OP_NUMBER.sub("", kernel.rsplit("/", 1)[-1])


def stable_names(kernels: Sequence[str]) -> dict[str, str]:
    """Kernel name -> the same with its number counted from 0 within its scope and type.

    MindSpore counts through the whole process, so compiling a program twice gives other numbers.
    """
    numbers: dict[str, list[tuple[int, str]]] = {}
    for name in kernels:
        match = OP_NUMBER.search(name)
        numbers.setdefault(OP_NUMBER.sub("", name), []).append((int(match[1]) if match else 0, name))
    return {name: f"{stem}-op{i}" for stem, group in numbers.items() for i, (_, name) in enumerate(sorted(group))}


@dataclass(frozen=True)
class Flow:
    """Kernels in launch order with producers and consumers by kernel name (views already joined)."""

    order: tuple[Kernel, ...]
    producers: Mapping[str, frozenset[str]]
    consumers: Mapping[str, frozenset[str]]


def flow(order: Iterable[Kernel], base: Mapping[Source, Source]) -> Flow:
    """``base`` maps a kernel output that shares another's memory to that output."""
    kernels = tuple(order)
    producers: dict[str, frozenset[str]] = {}
    consumers: dict[str, set[str]] = {kernel.name: set() for kernel in kernels}
    for kernel in kernels:
        roots = {base.get(source, source) for source in kernel.inputs.values()}
        producers[kernel.name] = frozenset(r.name for r in roots if r.kind == "kernel" and r.name in consumers)
        for name in producers[kernel.name]:
            consumers[name].add(kernel.name)
    return Flow(kernels, producers, {name: frozenset(users) for name, users in consumers.items()})


def phases(graph: Flow) -> dict[str, Phase]:
    """Kernel name -> phase.

    Backward is what is scoped ``Gradients``, computed from that, or made to wait for it: the second run of
    a recomputed layer (its first run carries the scope ``recompute_`` as well). Some kernels of that scope
    need no gradient and so run with the forward and keep memory from there on: derivatives by saved values
    count to the forward; what is made of parameters and constants alone (transposed weights) is other, for
    recomputing a layer does not touch it. Optimizer is what updates parameters, and what only such kernels
    use.
    """
    found: dict[str, Phase] = {}
    for kernel in graph.order:
        if kernel.updates:
            found[kernel.name] = "optimizer"
        elif kernel.name.startswith("Gradients/") or any(
            found.get(p) == "backward" for p in graph.producers[kernel.name] | kernel.after
        ):
            found[kernel.name] = "backward"
        else:
            found[kernel.name] = "forward"
    for kernel in reversed(graph.order):
        users = graph.consumers[kernel.name]
        if users and found[kernel.name] == "forward" and all(found[u] == "optimizer" for u in users):
            found[kernel.name] = "optimizer"
    turn = _turn([kernel.name for kernel in graph.order], found)
    for kernel in graph.order[:turn]:
        if found[kernel.name] == "backward":
            found[kernel.name] = "forward" if graph.producers[kernel.name] else "other"
    return found


def _turn(order: list[str], found: Mapping[str, Phase]) -> int:
    """Where the step turns from forward to backward: the cut that puts fewest kernels on the wrong side."""
    wrong = sum(found[name] == "forward" for name in order)  # cut before the first: all forward are late
    best, cut = wrong, 0
    for i, name in enumerate(order, 1):
        wrong += {"forward": -1, "backward": 1}.get(found[name], 0)
        if wrong < best:
            best, cut = wrong, i
    return cut


def layers(graph: Flow, phase: Mapping[str, Phase], anatomy: Anatomy) -> tuple[dict[str, str], list[str]]:
    """Kernel name -> layer, and the kernels whose layer the data decided against (or without) the scope."""
    owned = {kernel.name: _owned_layer(kernel, anatomy) for kernel in graph.order}
    forward = [k.name for k in graph.order if phase[k.name] == "forward" and not k.name.startswith("Gradients/")]
    ranks: dict[str, int] = {"": 0}
    for name in forward:
        layer = owned[name]
        if layer is not None:
            ranks.setdefault(layer, len(ranks))
    by_rank = list(ranks)
    above, below = _bounds(graph, forward, owned, ranks)
    rank: dict[str, int] = {}
    scopes = {kernel.name: anatomy.layer_of_scope(kernel.name) for kernel in graph.order}
    for name in forward:
        scope = scopes[name]
        rank[name] = _choose(
            name, graph.producers[name], rank, above, below, None if scope is None else ranks.get(scope)
        )
    # What a layer hands to the next one is read, in the backward, by the next one.
    evidence = {
        name: max([rank[name]] + [rank[user] for user in graph.consumers[name] if user in rank]) for name in forward
    }
    found = {name: by_rank[rank[name]] for name in forward}
    for kernel in graph.order:
        if kernel.name not in found:
            found[kernel.name] = _later_layer(
                kernel.name, owned[kernel.name], phase, graph, evidence, found, by_rank, scopes[kernel.name]
            )
            if phase[kernel.name] in ("forward", "other"):
                evidence[kernel.name] = ranks.get(found[kernel.name], 0)
    return found, [name for name, layer in found.items() if layer != scopes[name]]


def _owned_layer(kernel: Kernel, anatomy: Anatomy) -> str | None:
    """The layer whose parameters the kernel reads; None without, or with several layers'."""
    names = {s.name for s in kernel.inputs.values() if s.kind == "stored" and s.name in anatomy.owners}
    found = {anatomy.layer(anatomy.owners[name]) for name in names}
    return found.pop() if len(found) == 1 else None


def _bounds(
    graph: Flow, forward: list[str], owned: Mapping[str, str | None], ranks: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int | None]]:
    """Rank of the latest owned layer at or above each forward kernel, of the earliest at or below."""
    above: dict[str, int] = {}
    below: dict[str, int | None] = {}
    for name in forward:
        layer = owned[name]
        own = [ranks[layer]] if layer is not None else []
        above[name] = max([above[p] for p in graph.producers[name] if p in above] + own, default=0)
    for name in reversed(forward):
        layer = owned[name]
        own = [ranks[layer]] if layer is not None else []
        users = [below.get(u) for u in graph.consumers[name]]
        below[name] = min([rank for rank in users if rank is not None] + own, default=None)
    return above, below


def _choose(
    name: str,
    producers: frozenset[str],
    rank: Mapping[str, int],
    above: Mapping[str, int],
    below: Mapping[str, int | None],
    scope: int | None,
) -> int:
    """Rank of a forward kernel between its two bounds: the scope's where that is one of them.

    Otherwise a kernel that reads values which are surely of the lower layer closes that layer (the
    residual addition); one that reads nothing of the kind opens the upper one (the norm). Below the last
    parameter the last layer ends where the first kernel is of the network itself (rank 0: the loss).
    """
    low, high = max([above[name]] + [rank[p] for p in producers if p in rank]), below[name]
    if high is None:
        left = any(p in rank and rank[p] == 0 and below[p] is None for p in producers)
        return 0 if left or scope == 0 else low
    if low >= high or scope == high:
        return high
    closes = any(p in rank and rank[p] == above[p] == low == below[p] for p in producers)
    return low if closes or scope == low else high


def _later_layer(
    name: str,
    owned: str | None,
    phase: Mapping[str, Phase],
    graph: Flow,
    evidence: Mapping[str, int],
    found: Mapping[str, str],
    by_rank: Sequence[str],
    scope: str | None,
) -> str:
    """Layer of a kernel of the backward or the optimizer, or of one that was moved up."""
    if owned is not None:
        return owned
    if phase[name] == "optimizer":
        return ""
    read = [evidence[p] for p in graph.producers[name] if p in evidence]
    if read:
        return by_rank[max(read)]
    # The gradient flows from the last layer to the first, and starts at the loss (layer "").
    ranks = {layer: rank for rank, layer in enumerate(by_rank)}
    came = [ranks.get(found[p], 0) or len(ranks) for p in graph.producers[name] if p in found]
    if not came:  # made of constants, or of the step's inputs: then all derivatives carry one scope, whichever
        return "" if name.startswith("Gradients/") else scope or ""
    return by_rank[min(came)] if min(came) < len(ranks) else ""
