"""A program for placement: tensors with shapes, operators in order, on one device, before anything is sharded.

::

    profile ──▶ hyperopt.profile_graph ─┐
    MindIR  ──▶ profiler.read.mindspore ┴▶ Graph ──▶ solver.placement

A tensor is a storage: what an operator updates in place is the same tensor as input and output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from hyperopt.documents import DocumentError
from hyperopt.profile import Kind, Phase

ITEM_BYTES = {
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
    "float32": 4, "int32": 4, "uint32": 4,
    "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element by data type, as MindSpore and NumPy name them."""


VIEWS = ("Reshape", "ExpandDims", "Squeeze", "Flatten", "View")
"""Types that only say the shape anew: no time, and no memory of their own."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """`resident`: there all step (parameters, optimizer states, inputs), else from its first writer to its last use."""

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: Kind = "activation"
    resident: bool = False

    @property
    def item(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.item


@dataclass(frozen=True, slots=True)
class Operator:
    """One kernel. `inputs`, `outputs`: tensor ids, in the order of the type's definition; `duration_us` if measured.

    `attributes`: what the type needs beside shapes, such as ``transpose_b`` or ``axis``.
    """

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    name: str = ""
    phase: Phase = "forward"
    layer: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    duration_us: float | None = None
    workspace_bytes: int = 0
    micro_batch: int | None = None


@dataclass(frozen=True)
class Graph:
    """Operators in order of execution; `tensors[i].id == i`. `warnings`: what was inferred or not understood.
    `labelled`: whether `layer` tells for every operator which layer it is of. `base_bytes`: what a device holds before
    the model, such as a framework's own; it is there whatever the layouts."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    name: str = ""
    source: str = ""
    warnings: tuple[str, ...] = ()
    labelled: bool = True
    base_bytes: int = 0

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the operators that write it, in order."""
        return self._users("outputs")

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the operators that read it, in order."""
        return self._users("inputs")

    def _users(self, field: str) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.tensors]
        for i, operator in enumerate(self.operators):
            for tensor in dict.fromkeys(getattr(operator, field)):
                found[tensor].append(i)
        return tuple(map(tuple, found))

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """For each tensor the one whose memory it is: another where it is a view."""
        of = list(range(len(self.tensors)))
        for operator in self.operators:
            if operator.type in VIEWS and len(operator.outputs) == 1:
                view, base = self.tensors[operator.outputs[0]], self.tensors[operator.inputs[0]]
                if not view.resident and view.bytes == base.bytes:
                    of[view.id] = of[base.id]
        return tuple(of)

    @cached_property
    def lives(self) -> tuple[tuple[int, int], ...]:
        """For each tensor the half-open interval of operators at which it is alive, its views included; (0, 0): never,
        or it is a view."""
        users: list[list[int]] = [[] for _ in self.tensors]
        for t, base in enumerate(self.bases):
            users[base].extend((*self.writers[t], *self.readers[t]))
        lives = []
        for tensor, them in zip(self.tensors, users, strict=True):
            if tensor.resident:
                lives.append((0, len(self.operators)))
            else:
                lives.append((min(them), max(them) + 1) if them else (0, 0))
        return tuple(lives)


def check(graph: Graph) -> None:
    """Raises `DocumentError` where the graph contradicts itself: ids, and reads before anything is written."""
    written = {tensor.id for tensor in graph.tensors if tensor.resident}
    for i, tensor in enumerate(graph.tensors):
        if tensor.id != i:
            raise DocumentError(f"tensors[{i}].id", f"{tensor.id} stands at place {i}", "number tensors from 0")
        if tensor.dtype not in ITEM_BYTES:
            known = ", ".join(ITEM_BYTES)
            raise DocumentError(f"tensors[{i}].dtype", f"unknown type {tensor.dtype!r}", f"use one of {known}")
        if any(length < 1 for length in tensor.shape):
            problem = f"{list(tensor.shape)} of {tensor.name!r} is not known"
            raise DocumentError(f"tensors[{i}].shape", problem, "give static shapes")
    for i, operator in enumerate(graph.operators):
        for field_, ids in (("inputs", operator.inputs), ("outputs", operator.outputs)):
            for j, id_ in enumerate(ids):
                at = f"operators[{i}].{field_}[{j}]"
                if not 0 <= id_ < len(graph.tensors):
                    raise DocumentError(at, f"no tensor {id_}", "list it under tensors")
                if field_ == "inputs" and id_ not in written:
                    problem = f"reads {graph.tensors[id_].name!r}, which nothing has written before"
                    raise DocumentError(at, problem, "list its writer earlier, or make it resident")
        written.update(operator.outputs)
