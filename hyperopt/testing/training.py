"""One training step of a rank: micro-batches under a schedule, gradients to their shards, the optimizer.

::

    one stage     F0 B0 F1 B1 F2 B2 ...                                     then the optimizer
    1F1B          F0 .. Fw | F(w+1) B0 F(w+2) B1 ... | B(M-w) .. B(M-1)     w = stages - stage - 1
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from hyperopt.profile import Kind
from hyperopt.testing.accelerator import Accelerator
from hyperopt.testing.blocks import ZIPF, Blocks, Layer, Parallel
from hyperopt.testing.gradients import Parameter, Pass
from hyperopt.testing.shapes import ModelShape
from hyperopt.testing.tape import Tape, Tensor

STATES = ("master", "exp_avg", "exp_avg_sq")
"""What AdamW keeps per parameter, in fp32: a master copy and two moments."""


@dataclass(frozen=True, slots=True)
class Training:
    """A recipe for training steps, whatever their number of layers and micro-batches.

    `tokens`: per micro-batch, all in one sequence; `skewed_lengths`: a quarter to all of them, drawn from the seed.
    `layers`: the most that this rank holds; `micro_batches`: the number aimed at. `fused`: see `gradients.Pass`.
    `pieces`: into how many pieces the optimizer states of parameters with `pieces_from` elements or more are cut.
    `cold`: how many of the rank's experts, which then are separate weights, get no token in the step (None: experts
    are equally popular and lie in one weight).
    """

    shape: ModelShape
    layers: int
    tokens: int = 4096
    micro_batches: int = 4
    parallel: Parallel = field(default_factory=Parallel)
    fused: bool = True
    loss_chunks: int = 4
    skewed_lengths: bool = False
    pieces: int = 1
    pieces_from: int = 2**22
    cold: int | None = None

    def dense(self, layers: int) -> int:
        """How many of the first `layers` layers have an ordinary feed-forward block."""
        experts = self.shape.experts
        return layers if experts is None else min(experts.dense_layers, (layers + 1) // 2)

    def build(self, accelerator: Accelerator, layers: int, micro_batches: int, seed: str) -> Tape:
        """The step with so many layers and micro-batches."""
        return _Step(self, accelerator, layers, micro_batches, seed).tape


class _Step:
    """A training step while it is being put down."""

    def __init__(self, recipe: Training, accelerator: Accelerator, layers: int, micro_batches: int, seed: str) -> None:
        self.recipe, self.parallel, self.micro_batches = recipe, recipe.parallel, micro_batches
        self.tape = tape = Tape(accelerator, seed)
        self.blocks = Blocks(recipe.shape, recipe.parallel, recipe.fused, apart=recipe.cold is not None)
        self.parameters: list[Parameter] = []
        self.left: dict[int, int] = {}
        if self.parallel.stages > 1:
            tape.stage = self.parallel.stage
        self.first = self.parallel.stage == 0
        self.last = self.parallel.stage == self.parallel.stages - 1
        self._parameters(layers)
        self.angles = self._input("rotary", (recipe.tokens, recipe.shape.head_dim))
        self.passes: dict[int, tuple[Pass, Tensor, Tensor]] = {}
        for number, forward in self._schedule():
            tape.micro_batch = number
            if forward:
                self._forward(number)
            else:
                self._backward(number)
        tape.micro_batch = None
        self._optimizer()

    # -- parameters ----------------------------------------------------------------------------------------

    def _parameters(self, layers: int) -> None:
        recipe, shape = self.recipe, self.recipe.shape
        table = (shape.vocab // self.parallel.tensor, shape.hidden)
        self.tape.layer = "embedding"
        self.table = self._parameter("table", table) if self.first else None
        dense = recipe.dense(layers)
        self.layers: list[Layer] = [
            self.blocks.layer(self.tape, self._parameter, f"layer{i}", i < dense, () if i < dense else self._shares())
            for i in range(layers)
        ]
        self.tape.layer = "head"
        if self.last:
            self.norm = self._parameter("final_norm", (shape.hidden,))
            self.head = self.table if shape.tied and self.table else self._parameter("head", table)

    def _shares(self) -> tuple[float, ...]:
        """The share of tokens of each of the rank's experts, in one layer."""
        recipe, experts = self.recipe, self.recipe.shape.experts
        if recipe.cold is None or experts is None:
            return ()
        local = experts.count // self.parallel.experts
        weights = [(rank + 1) ** -ZIPF if rank < local - recipe.cold else 0.0 for rank in range(local)]
        self.tape.random.shuffle(weights)
        return tuple(weight / sum(weights) for weight in weights)

    def _parameter(self, name: str, size: tuple[int, ...], observed: int = 0, accessed: int = 0) -> Parameter:
        tape = self.tape

        def resident(what: str, size: tuple[int, ...], dtype: str, kind: Kind, part_of: int | None = None) -> Tensor:
            return tape.tensor(
                what,
                size,
                dtype,
                kind,
                resident=True,
                stays=True,
                part_of=part_of,
                observed=observed,
                accessed=accessed,
            )

        made = Parameter(resident(name, size, "bfloat16", "parameter"), tape.layer, name)
        share = -(-prod(size) // self.parallel.sharers(name))
        pieces = self.recipe.pieces if share >= self.recipe.pieces_from else 1
        for state in STATES:
            what = f"{name}.{state}"
            if pieces == 1:
                made.states.append([resident(what, (share,), "float32", "optimizer_state")])
                continue
            whole = resident(what, (0,), "float32", "optimizer_state").id
            made.states.append(
                [
                    resident(f"{what}.{i}", (-(-share // pieces),), "float32", "optimizer_state", whole)
                    for i in range(pieces)
                ]
            )
        self.parameters.append(made)
        return made

    def _input(self, name: str, size: tuple[int, ...], dtype: str = "bfloat16") -> Tensor:
        return self.tape.tensor(name, size, dtype, "input", resident=True)

    # -- micro-batches -------------------------------------------------------------------------------------

    def _schedule(self) -> Iterator[tuple[int, bool]]:
        """(micro-batch, whether forward), in order, with the time in which a stage waits for the others."""
        warm = min(self.parallel.stages - self.parallel.stage - 1, self.micro_batches)
        for number in range(warm):
            yield number, True
        forward_us = sum(o.duration_us for o in self.tape.operators) / max(warm, 1)
        for number in range(self.micro_batches):
            if number + warm < self.micro_batches:
                yield number + warm, True
                if warm and number == 0:
                    self.tape.idle(2 * forward_us * warm)  # until the first gradient is back
            elif warm:
                self.tape.idle(forward_us)  # where there are no more forward passes, the next stage has one
            yield number, False

    def _forward(self, number: int) -> None:
        tape, recipe, n = self.tape, self.recipe, self.parallel.tensor
        tape.phase = "forward"
        rows = recipe.tokens
        if recipe.skewed_lengths:
            rows = tape.random.randrange(recipe.tokens // 4, recipe.tokens + 1, 256)
        p = Pass(tape, fused=recipe.fused, accumulates=self.micro_batches > 1, on_gradient=self._added)
        tape.layer = ""
        if self.table is not None:
            ids = self._input(f"tokens{number}", (rows,), "int32")
            x = entered = self.blocks.embed(p, ids, self.table)
        else:
            x = entered = tape.tensor("received", (rows // n, recipe.shape.hidden))
            tape.collect("Receive", [], [x])
        for layer in self.layers:
            x = self.blocks.forward(p, layer, x, self.angles)
        tape.layer = "head" if self.last else ""
        if self.last:
            labels = self._input(f"labels{number}", (rows,), "int32")
            self.blocks.loss(p, x, self.norm, self.head, labels, recipe.loss_chunks)
        else:
            tape.collect("Send", [x], [])
        self.passes[number] = p, entered, x

    def _backward(self, number: int) -> None:
        tape = self.tape
        tape.phase = "backward"
        p, entered, x = self.passes.pop(number)
        if not self.last:
            tape.layer = ""
            gradient = p.like(x, "received.grad")
            tape.collect("Receive", [], [gradient])
            p.give(x, gradient)
        p.backward()
        if not self.first:
            tape.layer = ""
            tape.collect("Send", [p.take(entered)], [])

    # -- gradients and optimizer ---------------------------------------------------------------------------

    def _added(self, parameter: Parameter) -> None:
        """A micro-batch has added its share; after the last the gradient goes to the shards that ranks own."""
        done = self.left[parameter.weight.id] = self.left.get(parameter.weight.id, 0) + 1
        n = self.parallel.sharers(parameter.name)
        if done < self.micro_batches or n == 1:
            return
        assert parameter.gradient is not None
        share = -(-prod(parameter.weight.shape) // n)
        parameter.shard = self.tape.tensor(f"{parameter.name}.grad_shard", (share,), kind="gradient")
        self.tape.collect("ReduceScatter", [parameter.gradient], [parameter.shard], share=(n - 1) / n)

    def _optimizer(self) -> None:
        """Clipping by the global norm, then AdamW in place; parameters without a gradient are left alone."""
        tape = self.tape
        tape.phase = "optimizer"
        trained, norms = [p for p in self.parameters if p.gradient is not None], []
        for parameter in trained:
            tape.layer = parameter.layer
            norms.append(tape.tensor(f"{parameter.name}.norm", (1,), "float32"))
            tape.run("SquareSum", [_complete(parameter)], [norms[-1]])
        tape.layer = ""
        clip = tape.tensor("clip", (1,), "float32")
        tape.run("ClipByGlobalNorm", norms, [clip])
        for parameter in trained:
            tape.layer = parameter.layer
            gradient, weight = _complete(parameter), parameter.weight
            n = self.parallel.sharers(parameter.name)
            target = weight if n == 1 else tape.tensor(f"{parameter.name}.new", gradient.shape)
            pieces = len(parameter.states[0])
            for i in range(pieces):
                states = [state[i] for state in parameter.states]
                # Of a whole one piece is written, and what was there before stays.
                seen = [target] if i or (pieces > 1 and target is weight) else []
                moved = sum(2 * state.bytes for state in states) + (gradient.bytes + target.bytes) // pieces
                # Of a whole gradient shapes do not say that a piece is read.
                shown = [*states, gradient, clip] if pieces == 1 else []
                tape.run(
                    "AdamW", [gradient, clip, *states, *seen], [*states, target], traffic=moved, recomputable=False,
                    shown=shown,
                )  # fmt: skip
            if n > 1:
                tape.collect("AllGather", [target], [weight], share=(n - 1) / n)


def _complete(parameter: Parameter) -> Tensor:
    gradient = parameter.shard or parameter.gradient
    assert gradient is not None
    return gradient
