"""A network of many single operators side by side, to be captured like any training step.

Every item has inputs of its own, so nothing waits for anything and nothing is shared; the step computes all of them,
and their gradients for given gradients of their outputs::

    step(inputs, gradients)  =  item 0: MatMul(a0, b0)      and its gradient kernels
                                item 1: Softmax(x1)         and its gradient kernels   ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import auto_generate

from profiler.calibrate.sweep import Item


class One(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """One primitive on its inputs, with constants behind them."""

    def __init__(self, primitive: Any, *constants: Any, kept: int | None = None) -> None:
        super().__init__()
        self.primitive = primitive
        self.constants = constants
        self.kept = kept

    def construct(self, *inputs: Tensor) -> Tensor:
        result = self.primitive(*inputs, *self.constants)
        return result if self.kept is None else result[self.kept]


class Attention(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """softmax(q k^T) v for (batch, heads, length, size)."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.softmax = ops.Softmax(-1)
        self.mix = ops.BatchMatMul()

    def construct(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.mix(self.softmax(self.scores(q, k) * 0.125), v)


class RootMeanSquare(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """x / sqrt(mean(x^2)) * weight, of single operators: the CPU has no fused one."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = ops.ReduceMean(keep_dims=True)

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / ops.sqrt(self.mean(x * x, -1) + 1e-6) * weight


class Adam(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """One update in place; the gradient goes in, a number comes out."""

    def __init__(self, shape: tuple[int, ...], name: str) -> None:
        super().__init__()
        self.weight, self.mean, self.square = (
            ms.Parameter(Tensor(np.zeros(shape, np.float32)), name=f"{name}.{part}") for part in ("w", "m", "v")
        )
        self.update = ops.AdamWeightDecay()

    def construct(self, gradient: Tensor) -> Tensor:
        return self.update(self.weight, self.mean, self.square, 1e-3, 0.9, 0.95, 1e-8, 0.01, gradient)


ELEMENTWISE: dict[str, Callable[[], Any]] = {
    "add": ops.Add, "sub": ops.Sub, "mul": ops.Mul, "div": ops.Div, "exp": ops.Exp, "log": ops.Log, "sqrt": ops.Sqrt,
    "neg": ops.Neg, "tanh": ops.Tanh, "sigmoid": ops.Sigmoid, "gelu": ops.GeLU, "relu": ops.ReLU, "abs": ops.Abs,
    "silu": auto_generate.SiLU, "square": ops.Square, "maximum": ops.Maximum, "pow": ops.Pow, "less": ops.Less,
    "equal": ops.Equal, "rsqrt": ops.Rsqrt, "reciprocal": ops.Reciprocal, "addn": lambda: AddN(),
}  # fmt: skip

REDUCTIONS = {"sum": ops.ReduceSum, "mean": ops.ReduceMean, "max": ops.ReduceMax}


class AddN(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    def __init__(self) -> None:
        super().__init__()
        self.add = ops.AddN()

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self.add((x, y))


def cell_of(item: Item, name: str) -> Any:
    """The network of one item. Raises KeyError for a kind that the sweep does not know."""
    kind, extra = item.kind, item.constants
    if kind in ELEMENTWISE:
        return One(ELEMENTWISE[kind]())
    if kind in REDUCTIONS:
        return One(REDUCTIONS[kind](keep_dims=bool(extra[1])), extra[0])
    makers: dict[str, Callable[[], Any]] = {
        "matmul": lambda: One(ops.MatMul(transpose_b=bool(extra and extra[0]))),
        "batch_matmul": lambda: One(ops.BatchMatMul(transpose_b=bool(extra and extra[0]))),
        "attention": lambda: Attention(),
        "rms_norm": lambda: RootMeanSquare(),
        "layer_norm": lambda: One(ops.LayerNorm(-1, -1), kept=0),
        "softmax": lambda: One(ops.Softmax(-1)),
        "log_softmax": lambda: One(ops.LogSoftmax(-1)),
        "embedding": lambda: One(ops.Gather(), 0),
        "transpose": lambda: One(ops.Transpose(), tuple(extra)),
        "concat": lambda: Joined(extra[0]),
        "split": lambda: One(ops.Split(extra[0], 2), kept=0),
        "slice": lambda: One(ops.Slice(), (0,) * len(item.shapes[0]), tuple(extra)),
        "tile": lambda: One(ops.Tile(), tuple(extra)),
        "cast": lambda: One(ops.Cast(), ms.float16),
        "adam": lambda: Adam(item.shapes[0], name),
    }
    return makers[kind]()


class Joined(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """Two tensors one after the other along an axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.concat = ops.Concat(axis)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self.concat((x, y))


class SideBySide(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """All items; inputs one after the other, as many each as it needs."""

    def __init__(self, cells: Sequence[Any], counts: Sequence[int]) -> None:
        super().__init__()
        self.parts = nn.CellList(list(cells))
        self.places = tuple((sum(counts[:i]), sum(counts[: i + 1])) for i in range(len(counts)))

    def construct(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = ()
        for i in range(len(self.places)):
            start, end = self.places[i]
            results = (*results, self.parts[i](*inputs[start:end]))
        return results


class Step(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """Outputs of the items of `forward`, and outputs and gradients of those of `both`; returns a number."""

    def __init__(self, both: SideBySide | None, forward: SideBySide | None, split: int) -> None:
        super().__init__(auto_prefix=False)
        self.both, self.forward, self.split = both, forward, split
        self.gradient = ops.GradOperation(get_all=True, sens_param=True)

    def construct(self, start: Tensor, sens: tuple[Tensor, ...], *inputs: Tensor) -> Tensor:
        result = start
        if self.both is not None:
            result = ops.depend(result, self.both(*inputs[: self.split]))
            result = ops.depend(result, self.gradient(self.both)(*inputs[: self.split], sens))
        if self.forward is not None:
            result = ops.depend(result, self.forward(*inputs[self.split :]))
        return result + 1.0


def training(items: Sequence[Item], seed: int) -> tuple[Any, tuple[Any, ...]]:
    """The step of a chunk of the sweep, and its arguments."""
    random = np.random.default_rng(seed)
    ordered = [i for i in items if i.differentiable] + [i for i in items if not i.differentiable]
    tensors = [[_tensor(shape, place, item, random) for place, shape in enumerate(item.shapes)] for item in ordered]
    cells = [cell_of(item, f"item{i}") for i, item in enumerate(ordered)]
    cut = sum(item.differentiable for item in items)
    groups = [
        SideBySide(cells[a:b], [len(t) for t in tensors[a:b]]) if a < b else None
        for a, b in ((0, cut), (cut, len(ordered)))
    ]
    inputs = [tensor for group in tensors for tensor in group]
    sens = ()
    if groups[0] is not None:
        sens = tuple(Tensor(random.standard_normal(item.output).astype(np.float32)) for item in ordered[:cut])
    split = sum(len(t) for t in tensors[:cut])
    step = Step(groups[0], groups[1], split)
    return step, (Tensor(0.0, ms.float32), sens, *inputs)


def _tensor(shape: tuple[int, ...], place: int, item: Item, random: np.random.Generator) -> Tensor:
    if item.kind == "embedding" and place == 1:
        return Tensor(random.integers(0, item.shapes[0][0], shape).astype(np.int32))
    return Tensor((0.5 + random.random(shape)).astype(np.float32))
