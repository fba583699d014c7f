"""A training step of one attention layer, written down at any size as a capture would: what a what-if must meet."""

from __future__ import annotations

from math import prod

from hyperopt.profile import Device, Kind, Operator, Profile, Run, Storage

Shape = tuple[int, ...]
ITEM = 4
PEAK, BANDWIDTH = 50_000.0, 20_000.0
"""FLOPs and bytes per us, as `tests.cost.synthetic` has them."""


class Writer:
    """Operators in order; a storage for each result, and reads sorted by id, as graph mode lists them."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.storages: list[Storage] = []
        self.dtype: dict[int, str] = {}

    def there(self, name: str, shape: Shape, kind: Kind, dtype: str = "float32") -> int:
        return self._storage(name, shape, kind, dtype, True)

    def _storage(self, name: str, shape: Shape, kind: Kind, dtype: str, resident: bool) -> int:
        id = len(self.storages)
        size = max(prod(shape), 1) * ITEM
        self.storages.append(
            Storage(id=id, name=name, bytes=size, kind=kind, resident_at_start=resident, resident_at_end=resident)
        )
        self.dtype[id] = dtype
        return id

    def run(self, type: str, inputs: list[tuple[int | None, Shape]], shape: Shape, phase: str = "forward",
            writes: tuple[int, ...] = (), workspace: int = 0) -> int:  # fmt: skip
        """`inputs`: storage (None: a constant of the program) and the shape in which it is read."""
        kind: Kind = "gradient" if phase == "backward" else "activation"
        dtypes = tuple("float32" if s is None else self.dtype[s] for s, _ in inputs)
        out = "float32" if type in ("Gather", "Cast") or not dtypes else dtypes[0]
        made = () if writes else (self._storage(f"{type}:{len(self.operators)}", shape, kind, out, False),)
        shapes = (*(s for _, s in inputs), *(() if writes else (shape,)))
        self.operators.append(
            Operator(
                name=f"{type}-{len(self.operators)}", type=type, phase=phase, workspace_bytes=workspace,  # type: ignore[arg-type]
                duration_us=5 + sum(prod(s) for s in shapes) * ITEM / BANDWIDTH,
                reads=tuple(sorted({s for s, _ in inputs if s is not None})), writes=writes or made,
                shapes=shapes, dtypes=(*dtypes, *(() if writes else (out,))), inputs=len(inputs),
            )
        )  # fmt: skip
        return made[0] if made else -1


def step(batch: int, length: int, width: int = 24, heads: int = 2, words: int = 50) -> Profile:
    rows, size = batch * length, width // heads
    w = Writer()
    ids = w.there("ids", (batch, length), "input", "int32")
    table = w.there("table", (words, width), "parameter")
    weights = {name: w.there(name, (width, width), "parameter") for name in ("query", "key", "output")}
    moments = [w.there(f"moment{i}", (width, width), "optimizer_state") for i in range(2)]

    flat = w.run("Reshape", [(ids, (batch, length))], (rows,))
    x = w.run("Gather", [(table, (words, width)), (flat, (rows,))], (rows, width))
    mean = w.run("ReduceMean", [(x, (rows, width))], (rows, 1))
    normed = w.run("Div", [(x, (rows, width)), (mean, (rows, 1))], (rows, width))
    query = w.run("MatMul", [(normed, (rows, width)), (weights["query"], (width, width))], (rows, width))
    key = w.run("MatMul", [(normed, (rows, width)), (weights["key"], (width, width))], (rows, width))
    apart, turned = (batch, length, heads, size), (batch, heads, length, size)
    query = w.run("Transpose", [(query, apart)], turned)
    key = w.run("Transpose", [(key, apart)], turned)
    query = w.run("Mul", [(query, turned), (None, (length, size))], turned)
    key = w.run("Transpose", [(key, turned)], (batch, heads, size, length))
    scores: Shape = (batch, heads, length, length)
    found = w.run("BatchMatMul", [(query, turned), (key, (batch, heads, size, length))], scores)
    found = w.run("Add", [(found, scores), (None, (length, length))], scores)
    most = w.run("ReduceMax", [(found, scores)], (*scores[:3], 1))
    found = w.run("Sub", [(found, scores), (most, (*scores[:3], 1))], scores)
    mixed = w.run("BatchMatMul", [(found, scores), (query, turned)], turned)
    mixed = w.run("Transpose", [(mixed, turned)], apart)
    out = w.run("MatMul", [(mixed, (rows, width)), (weights["output"], (width, width))], (rows, width), workspace=16)
    w.run("ReduceMean", [(out, (rows, width))], ())
    side = w.run("Transpose", [(mixed, (rows, width))], (width, rows), "backward")
    gradient = w.run("MatMul", [(side, (width, rows)), (out, (rows, width))], (width, width), "backward")
    updated = [weights["output"], *moments]
    shapes: list[tuple[int | None, Shape]] = [(s, (width, width)) for s in (*updated, gradient)]
    w.run("AdamWeightDecay", shapes, (), "optimizer", tuple(updated), workspace=3 * width * width * ITEM)
    return Profile(
        operators=tuple(w.operators), storages=tuple(w.storages), device=Device(name="toy", hbm_bytes=1 << 30),
        run=Run(framework="made up", framework_version="1", source="capture"),
    )  # fmt: skip
