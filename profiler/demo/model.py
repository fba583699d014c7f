"""A decoder-only transformer in MindSpore, and its training step.

Made of primitive operators on purpose: the eager capture sees operators through a
dispatch hook, and fused backward operators (LayerNormGrad and the like) pass below it.
The attention keeps its scores, so that there are many activations to plan for. No
dropout and no operator whose work depends on the data: two runs with one seed are
bit-identical, and graph and eager mode give the same losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

Step = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of its training.

    The default takes 230 MiB (eager) or 290 MiB (graph, without parameters) at its peak, of
    which parameters and optimizer states are 6 MiB: sequence x batch is large against the width.
    """

    layers: int = 4
    width: int = 96
    heads: int = 4
    sequence: int = 128
    batch: int = 32
    vocabulary: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    seed: int = 1

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"width {self.width} must be heads ({self.heads}) times an even number")

    @property
    def hidden(self) -> int:
        """Width of the SwiGLU's inner layer: 8/3 of the width, rounded up to 16."""
        return -(-self.width * 8 // 48) * 16


class RMSNorm(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")
        self.mean = ops.ReduceMean(keep_dims=True)

    def construct(self, x: Tensor) -> Tensor:
        scale = ops.sqrt(self.mean(x * x, -1) + 1e-6)
        return x / scale * self.weight


class Linear(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """x @ weight for x of shape (rows, inputs); no bias."""

    def __init__(self, inputs: int, outputs: int, random: np.random.Generator) -> None:
        super().__init__()
        start = random.normal(0.0, inputs**-0.5, (inputs, outputs)).astype(np.float32)
        self.weight = Parameter(Tensor(start), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight)


class Attention(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """Causal self-attention with rotary positions; x is (batch x sequence, width)."""

    def __init__(self, config: Config, random: np.random.Generator) -> None:
        super().__init__()
        width, heads, length = config.width, config.heads, config.sequence
        size = width // heads
        self.split_heads = (config.batch, length, heads, size)
        self.half = size // 2
        self.scale = size**-0.5
        self.query = Linear(width, width, random)
        self.key = Linear(width, width, random)
        self.value = Linear(width, width, random)
        self.output = Linear(width, width, random)
        angle = np.arange(length)[:, None] * (10000.0 ** (-np.arange(self.half) / self.half))[None, :]
        self.cosine = Tensor(np.cos(angle).astype(np.float32))
        self.sine = Tensor(np.sin(angle).astype(np.float32))
        self.mask = Tensor(np.triu(np.full((length, length), -1e9, np.float32), 1))
        self.maximum = ops.ReduceMax(keep_dims=True)
        self.total = ops.ReduceSum(keep_dims=True)

    def rotate(self, x: Tensor) -> Tensor:
        first, second = ops.split(x, self.half, -1)
        return ops.concat(
            (first * self.cosine - second * self.sine, second * self.cosine + first * self.sine), -1
        )

    def heads_of(self, x: Tensor) -> Tensor:
        """(batch x sequence, width) to (batch, heads, sequence, size)."""
        return ops.transpose(ops.reshape(x, self.split_heads), (0, 2, 1, 3))

    def construct(self, x: Tensor) -> Tensor:
        query = self.rotate(self.heads_of(self.query(x)))
        key = self.rotate(self.heads_of(self.key(x)))
        value = self.heads_of(self.value(x))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) * self.scale + self.mask
        weights = ops.exp(scores - ops.stop_gradient(self.maximum(scores, -1)))
        weights = weights / self.total(weights, -1)
        mixed = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        return self.output(ops.reshape(mixed, x.shape))


class SwiGLU(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """(silu(x @ gate) * (x @ up)) @ down."""

    def __init__(self, config: Config, random: np.random.Generator) -> None:
        super().__init__()
        self.gate = Linear(config.width, config.hidden, random)
        self.up = Linear(config.width, config.hidden, random)
        self.down = Linear(config.hidden, config.width, random)

    def construct(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        return self.down(gate / (1.0 + ops.exp(-gate)) * self.up(x))


class Block(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """One layer: attention and SwiGLU, each behind a norm and beside a residual."""

    def __init__(self, config: Config, random: np.random.Generator) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config, random)
        self.feed_norm = RMSNorm(config.width)
        self.feed = SwiGLU(config, random)

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class LanguageModel(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """Mean next-byte loss of a batch: ids and targets (batch, sequence) int32 -> float32 scalar.

    The layers are the cells ``blocks.0``, ``blocks.1``, ... of ``cells_and_names()``.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        random = np.random.default_rng(config.seed)
        self.width = config.width
        table = random.normal(0.0, 0.02, (config.vocabulary, config.width)).astype(np.float32)
        self.embedding = Parameter(Tensor(table), name="embedding")
        self.blocks = nn.CellList([Block(config, random) for _ in range(config.layers)])
        self.norm = RMSNorm(config.width)
        self.head = Linear(config.width, config.vocabulary, random)
        self.vocabulary = Tensor(np.arange(config.vocabulary, dtype=np.int32))
        self.maximum = ops.ReduceMax(keep_dims=True)
        self.total = ops.ReduceSum(keep_dims=True)

    def construct(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = ops.gather(self.embedding, ops.reshape(ids, (-1,)), 0)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).astype(ms.float32)
        chosen = ops.equal(ops.reshape(targets, (-1, 1)), self.vocabulary).astype(ms.float32)
        shifted = logits - ops.stop_gradient(self.maximum(logits, -1))
        normaliser = ops.log(self.total(ops.exp(shifted), -1))
        return ops.mean(normaliser - self.total(shifted * chosen, -1))


class AdamW(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """AdamW with bias correction (Loshchilov and Hutter 2019), one fused operator a parameter.

    The fused operator knows no bias correction, so it is folded into the rate; the decay is
    scaled the other way, so that the weights still shrink by rate x decay.
    """

    def __init__(self, weights: ParameterTuple, config: Config) -> None:
        super().__init__()
        self.weights = weights
        self.mean = weights.clone(prefix="adam_mean", init="zeros")
        self.square = weights.clone(prefix="adam_square", init="zeros")
        self.power1 = Parameter(Tensor(1.0, ms.float32), name="adam_power1", requires_grad=False)
        self.power2 = Parameter(Tensor(1.0, ms.float32), name="adam_power2", requires_grad=False)
        self.rate = config.learning_rate
        self.decay = config.weight_decay
        self.update = ops.AdamWeightDecay()

    def construct(self, gradients: tuple[Tensor, ...]) -> Tensor:
        power1 = self.power1 * 0.9
        power2 = self.power2 * 0.95
        correction = ops.sqrt(1.0 - power2) / (1.0 - power1)
        rate = self.rate * correction
        decay = self.decay / correction
        for i in range(len(self.weights)):
            self.update(
                self.weights[i], self.mean[i], self.square[i], rate, 0.9, 0.95, 1e-8, decay, gradients[i]
            )
        ops.assign(self.power1, power1)
        return ops.assign(self.power2, power2)


class TrainStep(nn.Cell):  # type: ignore[misc]  # MindSpore is untyped
    """Forward, backward and update in one call; returns the loss before the update."""

    def __init__(self, network: LanguageModel, config: Config) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        weights = ParameterTuple(network.trainable_params())
        self.optimizer = AdamW(weights, config)
        self.gradient = ms.value_and_grad(network, None, weights)

    def construct(self, ids: Tensor, targets: Tensor) -> Tensor:
        loss, gradients = self.gradient(ids, targets)
        return ops.depend(loss, self.optimizer(gradients))


def build(config: Config) -> tuple[LanguageModel, Step]:
    """The model and ``step(ids, targets) -> loss`` (a scalar Tensor) in the mode that is set.

    Graph or eager mode is MindSpore's context at the time of the first call; ``step`` is a
    Cell, so graph mode compiles forward, backward and update as one graph.
    """
    network = LanguageModel(config)
    return network, TrainStep(network, config)
