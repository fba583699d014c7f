"""What `hyperopt calibrate` measures: operators over shapes, in chunks that one process each captures.

Shapes are drawn once with a fixed seed: sizes evenly over their logarithm, dimensions round and odd, as models have
them and as they do not. Kinds are dealt out to the chunks in turn, so that whatever part of the sweep was done when
time ran out covers all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import prod

CHUNK_ITEMS = 24

STEPS = 31
"""Executions of each kernel in a pass, one a step: all kernels of the chunk take turns."""

PASSES = 2
"""The whole sweep, and then once more: what else ran on the machine meanwhile did so at another time."""

LARGEST = 1 << 22
"""Elements of the largest tensor: 16 MiB of float32, beyond any second-level cache."""

FORWARD_ONLY = frozenset({"less", "equal", "adam", "cast"})


@dataclass(frozen=True)
class Item:
    """One operator: its kind, its inputs' shapes, and what else it is told (axes, repetitions)."""

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    constants: tuple[int, ...] = ()

    @property
    def differentiable(self) -> bool:
        return self.kind not in FORWARD_ONLY

    @property
    def output(self) -> tuple[int, ...]:
        """Shape of what comes out (of the first, where several do)."""
        first, last = self.shapes[0], self.shapes[-1]
        match self.kind:
            case "matmul" | "batch_matmul":
                return (*first[:-1], last[-2] if self.constants[0] else last[-1])
            case "embedding":
                return (*last, first[1])
            case "sum" | "mean" | "max":
                axis = self.constants[0] % len(first)
                return (*first[:axis], *((1,) * self.constants[1]), *first[axis + 1 :])
            case "transpose":
                return tuple(first[axis] for axis in self.constants)
            case "concat":
                axis = self.constants[0] % len(first)
                return (*first[:axis], 2 * first[axis], *first[axis + 1 :])
            case "split":
                return (*first[:-1], first[-1] // 2)
            case "slice":
                return self.constants
            case "tile":
                return tuple(n * times for n, times in zip(first, self.constants, strict=True))
            case "layer_norm" | "rms_norm":
                return first
        longest = max(len(shape) for shape in self.shapes)
        padded = [(1,) * (longest - len(shape)) + shape for shape in self.shapes]
        return tuple(max(axis) for axis in zip(*padded, strict=True))


def items(seed: int = 1) -> list[Item]:
    """The whole sweep in order of measurement: as many of each kind as `COUNTS` says, dealt out in turn."""
    chance = random.Random(seed)
    piles = [[make(chance, kind) for _ in range(count)] for kind, (count, make) in KINDS.items()]
    longest = max(map(len, piles))
    places = [
        ((i + 0.5) / len(pile) * longest, number, item)
        for number, pile in enumerate(piles)
        for i, item in enumerate(pile)
    ]
    return [item for _, _, item in sorted(places, key=lambda place: place[:2])]


def chunks(seed: int = 1) -> list[tuple[Item, ...]]:
    every = iter(items(seed))
    return list(iter(lambda: tuple(islice(every, CHUNK_ITEMS)), ()))


def _size(chance: random.Random, low: int, high: int) -> int:
    """Evenly over the logarithm; two of three are multiples of 8, as models' dimensions are."""
    size = round(low * float((high / low) ** chance.random()))
    return max(low, size // 8 * 8) if chance.random() < 0.67 and size >= 16 else size


def _shape(chance: random.Random, most: int = LARGEST, low: int = 1024) -> tuple[int, ...]:
    """2 to 4 axes, `low` to `most` elements."""
    left = _size(chance, low, most)
    axes = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        axes.append(_size(chance, 1, max(min(left, 2048), 1)))
        left = max(left // axes[-1], 1)
    return (max(left, 1), *axes)


def _matmul(chance: random.Random, kind: str) -> Item:
    m, k, n = (_size(chance, 8, most) for most in (8192, 1536, 1536))
    transposed = chance.random() < 0.3
    return Item(kind, ((m, k), (n, k) if transposed else (k, n)), (int(transposed),))


def _batch_matmul(chance: random.Random, kind: str) -> Item:
    batch = (_size(chance, 1, 32), _size(chance, 1, 16))
    m, k, n = (_size(chance, 8, 256) for _ in range(3))
    transposed = chance.random() < 0.3
    return Item(kind, ((*batch, m, k), (*batch, n, k) if transposed else (*batch, k, n)), (int(transposed),))


def _attention(chance: random.Random, kind: str) -> Item:
    shape = (_size(chance, 1, 16), _size(chance, 1, 8), _size(chance, 16, 256), _size(chance, 8, 96))
    return Item(kind, (shape,) * 3)


def _norm(chance: random.Random, kind: str) -> Item:
    rows, width = _size(chance, 8, 8192), _size(chance, 16, 1024)
    weights = ((width,),) * (2 if kind == "layer_norm" else 1)
    return Item(kind, ((min(rows, LARGEST // width), width), *weights))


def _rows(chance: random.Random, kind: str) -> Item:
    width = _size(chance, 8, 2048)
    return Item(kind, ((min(_size(chance, 8, 32768), LARGEST // width), width),))


def _embedding(chance: random.Random, kind: str) -> Item:
    return Item(kind, ((_size(chance, 32, 20000), _size(chance, 16, 512)), (_size(chance, 16, 8192),)))


def _unary(chance: random.Random, kind: str) -> Item:
    return Item(kind, (_shape(chance),))


def _binary(chance: random.Random, kind: str) -> Item:
    """Same shapes, or one that is spread: a column, a row, a single number, leading axes left away."""
    shape = _shape(chance)
    other = chance.choice(
        [shape, shape, shape, (*shape[:-1], 1), (*shape[:-1], 1), shape[-1:], (1,), shape[1:]]
    )  # a column costs the CPU most, and norms and softmax are made of it: twice
    return Item(kind, (shape, other) if kind in ("sub", "div", "pow") or chance.random() < 0.8 else (other, shape))


def _same(chance: random.Random, kind: str) -> Item:
    return Item(kind, (_shape(chance),) * 2)


def _reduction(chance: random.Random, kind: str) -> Item:
    shape = _shape(chance)
    axis = chance.choice([-1, -1, -1, 0, len(shape) // 2])
    return Item(kind, (shape,), (axis, int(chance.random() < 0.7)))


def _transpose(chance: random.Random, kind: str) -> Item:
    shape = _shape(chance)
    order = list(range(len(shape)))
    if len(shape) == 4 and chance.random() < 0.7:
        order = chance.choice([[0, 2, 1, 3], [0, 1, 3, 2], [0, 2, 3, 1]])
    else:
        order = [*order[:-2], order[-1], order[-2]]
    return Item(kind, (shape,), tuple(order))


def _concat(chance: random.Random, kind: str) -> Item:
    shape = _shape(chance, LARGEST // 2)
    return Item(kind, (shape, shape), (chance.choice([-1, -1, 0]),))


def _split(chance: random.Random, kind: str) -> Item:
    *rest, last = _shape(chance)
    return Item(kind, ((*rest, last * 2),), (-1,))


def _slice(chance: random.Random, kind: str) -> Item:
    shape = _shape(chance)
    return Item(kind, (shape,), (*shape[:-1], max(shape[-1] // 2, 1)))


def _tile(chance: random.Random, kind: str) -> Item:
    *rest, _ = _shape(chance, LARGEST // 2)
    times = min(_size(chance, 2, 256), max(LARGEST // prod(rest), 2))
    return Item(kind, ((*rest, 1),), (*(1 for _ in rest), times))


def _adam(chance: random.Random, kind: str) -> Item:
    return Item(kind, ((_size(chance, 8, 1024), _size(chance, 8, 1024)),))


KINDS: dict[str, tuple[int, Callable[[random.Random, str], Item]]] = {
    "matmul": (88, _matmul),
    "batch_matmul": (64, _batch_matmul),
    "attention": (24, _attention),
    "layer_norm": (24, _norm),
    "rms_norm": (36, _norm),
    "softmax": (32, _rows),
    "log_softmax": (20, _rows),
    "embedding": (36, _embedding),
    **dict.fromkeys(("add", "sub", "mul", "div"), (36, _binary)),
    **dict.fromkeys(("maximum", "pow", "less", "equal"), (12, _binary)),
    "addn": (24, _same),
    **dict.fromkeys(("exp", "neg", "sqrt", "log", "tanh", "sigmoid", "gelu", "relu", "silu"), (16, _unary)),
    **dict.fromkeys(("square", "abs", "rsqrt", "reciprocal", "cast"), (10, _unary)),
    **dict.fromkeys(("sum", "mean", "max"), (32, _reduction)),
    "transpose": (56, _transpose),
    "concat": (24, _concat),
    "split": (24, _split),
    "slice": (24, _slice),
    "tile": (24, _tile),
    "adam": (24, _adam),
}
"""How many of each kind, and what draws one."""
