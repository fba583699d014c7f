"""Layouts as people write them: data parallel, fully sharded (ZeRO-3), Megatron's tensor parallel with and without
sequence parallel. What ours is compared with, by the same judge.

A rule says how parameters, states and the residual stream are kept; the rest, and what is gathered when, is completed
by our own solver, so that a rival is at least as good as its hand-written form. Rules go by dimensions and by the names
of weights: `COLUMNS` and `ROWS` are those of Megatron-LM (arXiv 1909.08053), sequence parallel is arXiv 2205.05198,
ZeRO arXiv 1910.02054.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hyperopt.graph import Graph, Tensor
from hyperopt.mesh import Mesh
from solver.placement.choice import Keep
from solver.placement.layout import PARTIAL, REPLICATED

COLUMNS = {"q": 1, "k": 1, "v": 1, "qkv": 1, "gate": -1, "up": -1, "gate_up": -1, "head": -1}
ROWS = {"out": 0, "down": -2, "table": 0}
TRAINED = ("parameter", "gradient", "optimizer_state")


@dataclass(frozen=True)
class Rival:
    """`data`, `tensor`: mesh axes of each kind. `zero`: what is cut along the data axes: 0 nothing, 1 optimizer states,
    2 gradients too, 3 parameters too. `sequence`: the residual stream is cut along the tensor axes between products.
    `experts`: experts are cut along all axes instead."""

    name: str
    data: tuple[int, ...] = ()
    tensor: tuple[int, ...] = ()
    zero: int = 0
    sequence: bool = False
    experts: bool = False

    def allows(self, graph: Graph, mesh: Mesh) -> Callable[[Tensor, Keep], bool]:
        batch = _batch_dimensions(graph)

        def allowed(tensor: Tensor, keep: Keep) -> bool:
            if tensor.kind in TRAINED:
                return self._trained(tensor, keep, mesh)
            if tensor.id not in batch:
                return True
            return self._flows(tensor, keep, batch[tensor.id], mesh)

        return allowed

    def _trained(self, tensor: Tensor, keep: Keep, mesh: Mesh) -> bool:
        wanted = [REPLICATED] * len(mesh.shape)
        first = tensor.name.split(".")
        split = next(
            (d % len(tensor.shape) for n in first for d in [{**COLUMNS, **ROWS}.get(n)] if d is not None), None
        )
        expert = self.experts and len(tensor.shape) == 3 and bool({"gate", "up", "down"} & set(first))
        parts = 1
        if expert:
            wanted = [0] * len(mesh.shape)
        elif split is not None:
            for axis in self.tensor:
                parts *= mesh.shape[axis]
                if tensor.shape[split] % parts == 0:
                    wanted[axis] = split
        level = {"optimizer_state": 1, "gradient": 2, "parameter": 3}[tensor.kind]
        cut = not expert and self.zero >= level
        for axis in self.data:
            place = keep.stored[axis]
            if expert:
                continue
            if cut and place >= 0:
                wanted[axis] = place
            elif cut and any(length % mesh.shape[axis] == 0 for length in tensor.shape):
                return False
            elif tensor.kind == "gradient" and place == PARTIAL:
                wanted[axis] = PARTIAL
        for axis in self.tensor:
            # Gradients of what is whole may wait for their sum.
            if tensor.kind == "gradient" and wanted[axis] == REPLICATED and keep.stored[axis] == PARTIAL:
                wanted[axis] = PARTIAL
        return keep.stored == tuple(wanted)

    def _flows(self, tensor: Tensor, keep: Keep, batch: int, mesh: Mesh) -> bool:
        parts = 1
        for axis in self.data:
            parts *= mesh.shape[axis]
            free = self.experts and len(tensor.shape) != 3
            if not free and tensor.shape[batch] % parts == 0 and keep.stored[axis] != batch:
                return False
        if len(tensor.shape) != 3 or not self.tensor:
            return True
        name = tensor.name.rpartition(".")[2]
        if not name.startswith(("attn_residual", "residual", "embedded", "n1", "n2", "final")) or "rstd" in name:
            return True
        wanted = 1 if self.sequence else REPLICATED
        return all(keep.stored[axis] == wanted for axis in self.tensor)


def _batch_dimensions(graph: Graph) -> dict[int, int]:
    """Tensor -> dimension that counts sequences: the first of tokens, and what has it first after them (places of
    experts: the second)."""
    sizes = {
        t.shape[0] for t in graph.tensors if t.kind == "input" and len(t.shape) in (2, 3) and "rotary" not in t.name
    }
    batch = max(sizes, default=0)
    found = {}
    for tensor in graph.tensors:
        if tensor.kind in TRAINED or "rotary" in tensor.name or len(tensor.shape) < 2:
            continue
        if len(tensor.shape) == 4 and tensor.shape[0] != batch and tensor.shape[1] == batch:
            found[tensor.id] = 1
        elif tensor.shape[0] == batch:
            found[tensor.id] = 0
    return found


def rivals(mesh: Mesh) -> Iterator[Rival]:
    """Those that make sense on a mesh: every axis for data, and each split of the axes in data (first) and tensor."""
    axes = tuple(range(len(mesh.shape)))
    yield Rival("data parallel", data=axes)
    yield Rival("data parallel, ZeRO-1", data=axes, zero=1)
    yield Rival("ZeRO-3", data=axes, zero=3)
    for cut in range(len(axes)):
        data, tensor = axes[:cut], axes[cut:]
        said = "" if not data else " x data parallel"
        yield Rival(f"tensor parallel{said}", data, tensor, zero=1 if data else 0)
        yield Rival(f"tensor and sequence parallel{said}", data, tensor, zero=1 if data else 0, sequence=True)
    yield Rival("expert parallel, data parallel", data=axes, zero=1, experts=True)
