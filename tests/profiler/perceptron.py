"""A user's training for `hyperopt capture --model`: MindSpore's own layers, few large activations, each saved by two
operators. Besides the one that is captured, some that are not it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

Built = tuple[Any, Callable[..., Any], Iterator[tuple[Any, ...]]]


class Perceptron(nn.Cell):  # type: ignore[misc, unused-ignore]
    def __init__(this) -> None:
        super().__init__()
        this.layers = nn.CellList([nn.Dense(256, 256) for _ in range(8)])
        this.out = nn.Dense(256, 10)

    def construct(this, x: ms.Tensor, targets: ms.Tensor) -> ms.Tensor:
        for layer in this.layers:
            x = ops.relu(layer(x))
        return ops.cross_entropy(this.out(x), targets)


def build(optimizer: Any = nn.Adam) -> Built:
    ms.set_seed(5)
    net = Perceptron()
    update = optimizer(net.trainable_params(), 1e-3)
    gradient = ms.value_and_grad(net, None, update.parameters)

    def step(*batch: Any) -> Any:
        loss, slopes = gradient(*batch)
        update(slopes)
        return loss

    return net, step, _batches()


def plain_descent() -> Built:
    """Another optimizer, which keeps no moments."""
    return build(nn.SGD)


def short() -> Built:
    """Two batches only."""
    net, step, batches = build()
    return net, step, itertools.islice(batches, 2)


def idle() -> Built:
    """A step that does not run the network."""
    net, _, batches = build()
    return net, lambda *_: ms.Tensor(1.0), batches


def _batches() -> Iterator[tuple[Any, ...]]:
    random = np.random.default_rng(1)
    while True:
        yield random.standard_normal((2048, 256)).astype(np.float32), random.integers(0, 10, 2048).astype(np.int32)
