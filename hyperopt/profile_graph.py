"""A profile of an unsharded step as a graph for placement: what operators do is inferred from shapes and names.

A profile says which storages an operator reads and writes, and the shapes of what it writes; captures of MindSpore and
made-up traces do so, readers of other profilers where their files do. What is missing is worked out:

::

    shape of a storage     its writer's; an optimizer state's: its parameter's; a weight's: the product that reads it
    product's dimensions   those that fit the three shapes; in backward, a weight's other way round
    heads, experts         row sums of attention, stacked weights

Everything inferred is a warning, and what stays unknown is a shapeless block that nobody can cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from hyperopt.documents import DocumentError
from hyperopt.graph import ITEM_BYTES, Graph, Operator, Tensor, check
from hyperopt.profile import IDLE, Profile
from hyperopt.profile import Operator as Kernel

ALIGNMENT = 1024
"""Bytes by which an allocation may exceed its tensor."""

PRODUCTS = ("MatMul", "BatchMatMul", "Dense", "MatMulExt", "Mm", "aten::mm", "MatMulV2", "MatMulV3")
UPDATES = ("AdamW", "Adam", "AdamWeightDecay", "ApplyMomentum", "FusedAdamWeightDecay")

COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "AlltoAll", "Broadcast", "Send", "Receive")

Shape = tuple[int, ...]


def graph_of(profile: Profile, sequences: int = 1) -> Graph:
    """The graph of one step. `sequences`: how many the rows of a micro-batch are.

    Raises `DocumentError` where the profile has no storages, or is of a program that is sharded already.
    """
    if profile.timing_only:
        raise DocumentError("$.storages", "there are none", "profile with memory, or give a MindIR export")
    for i, kernel in enumerate(profile.operators):
        if kernel.type in COLLECTIVES:
            problem = f"{kernel.type} on stream {kernel.stream!r}: the program is sharded already"
            raise DocumentError(
                f"$.operators[{i}]", problem, "profile the model on one device, or give a MindIR export"
            )
    return _Builder(profile, sequences).build()


@dataclass
class _Builder:
    profile: Profile
    sequences: int
    shapes: dict[int, tuple[Shape, str]] = field(default_factory=dict)
    turned: dict[int, bool] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)

    def build(self) -> Graph:
        kernels = [k for k in self.profile.operators if k.type != IDLE]
        self._written(kernels)
        for _ in range(3):  # one storage's shape may give another's
            before = len(self.shapes)
            for kernel in kernels:
                self._inferred(kernel)
            if len(self.shapes) == before:
                break
        tensors: list[Tensor] = []
        place: dict[int, int] = {}
        for storage in self.profile.storages:
            shape, dtype = self.shapes.get(storage.id, ((max(storage.bytes, 1),), "uint8"))
            if storage.id not in self.shapes and storage.bytes:
                self._tell("storages have no shape that could be inferred: they stay whole")
            place[storage.id] = len(tensors)
            tensors.append(Tensor(len(tensors), storage.name, shape, dtype, storage.kind, storage.resident_at_start))
        operators = []
        for kernel in kernels:
            attributes = self._attributes(kernel)
            operators.append(
                Operator(
                    type=kernel.type,
                    inputs=tuple(place[s] for s in kernel.reads),
                    outputs=tuple(place[s] for s in kernel.writes),
                    name=kernel.name,
                    phase="forward" if kernel.phase == "other" else kernel.phase,
                    layer=kernel.layer,
                    attributes=attributes,
                    duration_us=kernel.duration_us,
                    workspace_bytes=kernel.workspace_bytes,
                    micro_batch=kernel.micro_batch,
                )
            )
        warnings = tuple(f"{count} {what}" for what, count in self.told.items())
        run = self.profile.run
        base = self.profile.device.base_bytes
        graph = Graph(tuple(tensors), tuple(operators), run.model or run.name, "profile", warnings, base_bytes=base)
        check(graph)
        return graph

    def _tell(self, what: str) -> None:
        self.told[what] = self.told.get(what, 0) + 1

    # -- shapes --------------------------------------------------------------------------------------------

    def _fits(self, storage: int, shape: Shape, dtype: str) -> bool:
        if dtype not in ITEM_BYTES or any(n < 1 for n in shape):
            return False
        rest = self.profile.by_id[storage].bytes - prod(shape) * ITEM_BYTES[dtype]
        return 0 <= rest < ALIGNMENT

    def _learn(self, storage: int, shape: Shape, dtype: str) -> bool:
        if storage in self.shapes or not self._fits(storage, shape, dtype):
            return False
        self.shapes[storage] = (shape, dtype)
        return True

    def _written(self, kernels: Sequence[Kernel]) -> None:
        """What operators say of what they write and read. Where they do not say which is which, what they write."""
        for kernel in kernels:
            said = list(zip(kernel.shapes, kernel.dtypes, strict=False))
            if kernel.inputs is None:
                candidates = [(kernel.writes, said), (kernel.reads, said)]
            else:
                candidates = [(kernel.writes, said[kernel.inputs :]), (kernel.reads, said[: kernel.inputs])]
            for ids, shapes in candidates:
                # A storage that is read twice stands there once, and scalars may be missing: all or nothing.
                if len(shapes) >= len(ids) and all(self._fits(s, *shapes[j]) for j, s in enumerate(ids)):
                    for j, s in enumerate(ids):
                        self._learn(s, *shapes[j])
                    if kernel.inputs is None:
                        break

    def _inferred(self, kernel: Kernel) -> None:
        by_id, shapes = self.profile.by_id, self.shapes
        if kernel.type in UPDATES:
            weight = next((s for s in kernel.writes if by_id[s].kind == "parameter" and s in shapes), None)
            if weight is None:
                return
            for s in (*kernel.reads, *kernel.writes):
                if by_id[s].kind in ("optimizer_state", "gradient"):
                    shape = shapes[weight][0]
                    for dtype in ("float32", shapes[weight][1]):
                        if s in shapes and shapes[s][0] != shape and self._fits(s, shape, shapes[s][1]):
                            shapes[s] = (shape, shapes[s][1])
                            self._tell("optimizer states are taken to have their parameter's shape")
                        elif self._learn(s, shape, dtype):
                            self._tell("optimizer states are taken to have their parameter's shape")
            return
        if not kernel.writes or kernel.writes[0] not in shapes:
            return
        made, dtype = shapes[kernel.writes[0]]
        if kernel.type in PRODUCTS and len(kernel.reads) == 2 and len(made) == 2:
            self._weight(kernel, made)
        elif kernel.type in ("Gather", "Embedding", "EmbeddingLookup"):
            for s in kernel.reads:
                if self._learn(s, made[:-1], "int32"):
                    self._tell("index inputs are taken to have a number a row")
        elif kernel.type == "CrossEntropy":
            for s in kernel.reads[1:]:
                if s not in shapes and by_id[s].bytes % 4 == 0 and self._learn(s, (by_id[s].bytes // 4,), "int32"):
                    self._tell("index inputs are taken to have a number a row")
        elif kernel.type.startswith("Rotary") and len(kernel.reads) >= 2:
            s, item = kernel.reads[-1], ITEM_BYTES[dtype]
            rows = made[0]
            if s not in shapes and by_id[s].bytes % (rows * item) == 0:
                self._learn(s, (rows, by_id[s].bytes // (rows * item)), dtype)
        elif kernel.type in ("RmsNorm", "LayerNorm"):
            for s in kernel.reads[1:]:
                self._learn(s, made[-1:], dtype)

    def _weight(self, kernel: Kernel, made: Shape) -> None:
        """A weight that nothing writes, from x (m, k) and y (m, n)."""
        x, w = kernel.reads
        if x in self.shapes and w not in self.shapes and self.profile.by_id[w].kind == "parameter":
            (rows, inner), dtype = self.shapes[x][0][-2:], self.shapes[x][1]
            if rows == made[0] and self._learn(w, (inner, made[1]), dtype):
                self._tell("weights are taken to be stored as (in, out)")

    # -- attributes ----------------------------------------------------------------------------------------

    def _attributes(self, kernel: Kernel) -> dict[str, Any]:
        shapes = self.shapes
        known = [shapes[s][0] for s in (*kernel.reads, *kernel.writes) if s in shapes]
        found: dict[str, Any] = {}
        if kernel.type in PRODUCTS:
            equation = self._equation(kernel)
            if equation:
                found["equation"] = equation
                self._tell("products have their dimensions from shapes")
            elif all(s in shapes for s in (*kernel.reads[:2], *kernel.writes)):
                found |= {"transpose_a": None, "transpose_b": None}  # a profile does not say
        if "Attention" in kernel.type or kernel.type.startswith("Rotary"):
            found["sequences"] = self.sequences
        if "Attention" in kernel.type:
            found["causal"] = True
            self._tell("attention kernels are taken to be causal")
        if kernel.type.startswith(("MoePermute", "MoeUnpermute")):
            found["experts"] = self._experts(kernel)
        if kernel.type in ("Split", "SplitGrad", "Concat") and len({s[0] for s in known if s}) > 1:
            found["grouped"] = True
            self._tell("splits along rows are taken to cut every device's own rows")
        return found

    def _experts(self, kernel: Kernel) -> int:
        """Stacked in the nearest weight of the layer."""
        for other in self.profile.operators:
            if other.layer == kernel.layer and other.type == "GroupedMatMul":
                for s in (*other.reads, *other.writes):
                    if s in self.shapes and len(self.shapes[s][0]) == 3:
                        return self.shapes[s][0][0]
        return 1

    def _equation(self, kernel: Kernel) -> str | None:
        """Of x (m, k) times w, or of x and dy to w's gradient: the dimensions that fit."""
        if len(kernel.reads) not in (2, 3) or any(s not in self.shapes for s in (*kernel.reads[:2], *kernel.writes)):
            return None
        x, w = kernel.reads[:2]
        a, b, y = (self.shapes[s][0] for s in (x, w, kernel.writes[0]))
        if len(a) != 2 or len(b) != 2 or len(y) != 2:
            return None
        plain = (a[0], b[0], b[1]) == (y[0], a[1], y[1])
        turned = (a[0], b[1], b[0]) == (y[0], a[1], y[1])
        if self.profile.by_id[w].kind == "parameter":
            if kernel.phase == "backward":
                forward = self.turned.get(w)
                use = plain if forward and plain else not turned
            else:
                use = plain
                self.turned[w] = not plain and turned
                if plain and turned:
                    self._tell("square weights are taken to be stored as (in, out)")
            if plain or turned:
                return "mk,kn->mn" if (use and plain) or not turned else "mk,nk->mn"
            return None
        if a[0] == b[0]:
            if (a[1], b[1]) == y:
                return "km,kn->mn"
            if (b[1], a[1]) == y:
                return "kn,km->mn"
        return "mk,kn->mn" if plain else "mk,nk->mn" if turned else None
