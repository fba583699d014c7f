"""What is decided: for each operator a strategy, for each tensor where it is kept.

::

    producer ──▶ stored layout ──▶ copy for the readers of a phase ──▶ what each reader needs

A tensor is kept in one layout for all its life. For the readers of one phase (and micro-batch) together it may be
brought into a second one, once, for as long as they need it: the input of three products that all want it whole is
gathered once and dropped, and gathered again in the backward pass. Each reader takes what is nearer.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from hyperopt.graph import Graph
from hyperopt.mesh import Mesh
from hyperopt.profile import Phase
from solver.placement.layout import PARTIAL, REPLICATED, Layout, layouts
from solver.placement.rules import signature
from solver.placement.signature import Signature, Strategy, strategies

MOST_KEEPS = 160
"""Ways to keep a tensor that are offered: beyond, copies are left out, the least useful first."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How a tensor is kept. `copies`: for each phase in which it has several readers, the layout of their copy or None;
    in the order of `Frame.shared`."""

    stored: Layout
    copies: tuple[Layout | None, ...] = ()


@dataclass(frozen=True)
class Group:
    """Readers of one tensor in one phase of one micro-batch: operators, in order."""

    phase: Phase
    readers: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """A complete decision. `operators[i]`, `tensors[t]`."""

    operators: tuple[Strategy, ...]
    tensors: tuple[Keep, ...]


class Frame:
    """A graph on a mesh: signatures, and what can be chosen."""

    def __init__(self, graph: Graph, mesh: Mesh) -> None:
        self.graph, self.mesh = graph, mesh
        self.signatures = tuple(signature(graph, operator) for operator in graph.operators)
        self._strategies: dict[object, list[Strategy]] = {}

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """One for each operator type that is not understood, and so replicated."""
        counts: dict[str, int] = {}
        for operator, known in zip(self.graph.operators, self.signatures, strict=True):
            if not known.understood:
                counts[operator.type] = counts.get(operator.type, 0) + 1
        return tuple(
            f"{count} operators of type {kind or '(none)'} are not understood: each is run whole on every device"
            for kind, count in counts.items()
        )

    def strategies(self, i: int) -> list[Strategy]:
        known = self.signatures[i]
        key = _key(known)
        if key not in self._strategies:
            self._strategies[key] = strategies(known, self.mesh)
        return self._strategies[key]

    @cached_property
    def groups(self) -> tuple[tuple[Group, ...], ...]:
        """Of each tensor. What is written in between, in place, parts its readers too."""
        found = []
        for readers, writers in zip(self.graph.readers, self.graph.writers, strict=True):
            parts: dict[tuple[Phase, int | None, int], list[int]] = {}
            for i in readers:
                operator = self.graph.operators[i]
                version = bisect_left(writers, i)
                parts.setdefault((operator.phase, operator.micro_batch, version), []).append(i)
            found.append(tuple(Group(key[0], tuple(them)) for key, them in parts.items()))
        return tuple(found)

    def shared(self, t: int) -> tuple[Phase, ...]:
        """Phases in which a copy of the tensor may serve several readers."""
        return tuple(dict.fromkeys(g.phase for g in self.groups[t] if len(g.readers) > 1))

    def partial(self, t: int) -> frozenset[int]:
        """Mesh axes along which a tensor may be kept as summands: a writer can leave it so, and it is a gradient or all
        its readers can take it so."""
        tensor = self.graph.tensors[t]
        if tensor.resident:
            return frozenset()
        axes = set()
        for i in self.graph.writers[t]:
            slots = [j for j, out in enumerate(self.graph.operators[i].outputs) if out == t]
            for strategy in self.strategies(i):
                axes |= {axis for j in slots for axis, place in enumerate(strategy.outputs[j]) if place == PARTIAL}
        if tensor.kind == "gradient":
            return frozenset(axes)
        for i in self.graph.readers[t]:
            known, inputs = self.signatures[i], self.graph.operators[i].inputs
            added = {slot for slot, _ in known.accumulators}
            for slot, read in enumerate(inputs):
                if read == t and slot not in added and not any(slot in several for several in known.linear):
                    return frozenset()
        return frozenset(axes) if self.graph.readers[t] else frozenset()

    def keeps(self, t: int) -> list[Keep]:
        """All ways to keep a tensor, replicated without copies first."""
        tensor, sums = self.graph.tensors[t], self.partial(t)
        stored = [
            layout
            for layout in layouts(tensor.shape, self.mesh, partial=bool(sums))
            if all(place != PARTIAL or axis in sums for axis, place in enumerate(layout))
        ]
        phases, allowed = self.shared(t), set(layouts(tensor.shape, self.mesh, partial=False))
        copies = {layout: [c for c in _gathered(layout, len(tensor.shape)) if c in allowed] for layout in stored}
        for effort in (3, 2, 1):
            found = [Keep(layout, chosen) for layout in stored for chosen in _copies(copies[layout], phases, effort)]
            if len(found) <= MOST_KEEPS:
                return found
        return [Keep(layout, (None,) * len(phases)) for layout in stored]


def _key(known: Signature) -> object:
    return (
        known.inputs,
        known.outputs,
        tuple(known.units.items()),
        known.accumulators,
        known.linear,
        tuple(known.closed),
    )


def _gathered(layout: Layout, dimensions: int) -> list[Layout]:
    """Layouts in which less is cut, and no sum is left; a sum may become a cut."""
    options = []
    for place in layout:
        changed = [] if place == REPLICATED else [*range(dimensions)] if place == PARTIAL else [place]
        options.append([REPLICATED, *changed])
    return [found for found in product(*options) if found != layout]


def _copies(options: list[Layout], phases: tuple[Phase, ...], effort: int) -> list[tuple[Layout | None, ...]]:
    """Copies by phase: any combination (3), the same in some phases (2), or the same in all or none (1)."""
    if not phases:
        return [()]
    if effort == 3:
        return list(product([None, *options], repeat=len(phases)))
    found: list[tuple[Layout | None, ...]] = [(None,) * len(phases)]
    for layout in options:
        if effort == 1:
            found.append((layout,) * len(phases))
            continue
        found.extend(tuple(c) for c in product([None, layout], repeat=len(phases)) if any(x is not None for x in c))
    return found
