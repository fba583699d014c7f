"""Forward kernels that know their backward ones, for one micro-batch, and the parameters they share.

Every forward method launches its kernels and leaves a rule; `Pass.backward` follows the rules in reverse. So what
forward must keep is exactly what some backward kernel reads::

    forward    x ──▶ linear ──▶ y      keeps x
    backward   dx ◀─ MatMul ◀── dy     and  dW += x' dy
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from hyperopt.testing.tape import Tape, Tensor

MATMUL_WORKSPACE = 32 * 2**20
"""The most that a matrix product takes for partial sums, in bytes."""


@dataclass(slots=True)
class Parameter:
    """A weight with what trains it. `waiting`: uses in micro-batches whose backward pass is still to come."""

    weight: Tensor
    layer: str
    name: str
    states: list[list[Tensor]] = field(default_factory=list)
    observed: int = 0
    accessed: int = 0
    gradient: Tensor | None = None
    shard: Tensor | None = None
    waiting: int = 0


class Pass:
    """Forward and backward of one micro-batch. `accumulates`: gradients of several micro-batches are added up.

    `fused`: normalisation and gating are one kernel each way, else one for every elementwise step.
    `on_gradient` is called when this pass has added the last of its share to a parameter's gradient.
    """

    def __init__(
        self,
        tape: Tape,
        *,
        fused: bool,
        accumulates: bool,
        on_gradient: Callable[[Parameter], None],
    ) -> None:
        self.tape, self.fused, self.accumulates = tape, fused, accumulates
        self.on_gradient = on_gradient
        self.rules: list[tuple[str, Callable[[], None]]] = []
        self.gradients: dict[int, Tensor] = {}

    def backward(self) -> None:
        """Follows all rules, in reverse."""
        before = self.tape.layer
        while self.rules:
            self.tape.layer, rule = self.rules.pop()
            rule()
        self.tape.layer = before

    def rule(self, follow: Callable[[], None]) -> None:
        self.rules.append((self.tape.layer, follow))

    # -- gradients -----------------------------------------------------------------------------------------

    def take(self, tensor: Tensor) -> Tensor:
        """The gradient of a tensor, complete by now."""
        return self.gradients.pop(tensor.id)

    def give(self, tensor: Tensor, gradient: Tensor) -> None:
        """Adds to the gradient of a tensor."""
        first = self.gradients.get(tensor.id)
        if first is not None:
            total = self.like(tensor, "grad_sum")
            self.tape.run("Add", [first, gradient], [total])
            gradient = total
        self.gradients[tensor.id] = gradient

    def like(self, tensor: Tensor, name: str) -> Tensor:
        return self.tape.tensor(name, tensor.shape, tensor.dtype)

    def use(self, parameter: Parameter) -> None:
        parameter.waiting += 1

    def accumulate(
        self,
        parameter: Parameter,
        type: str,
        reads: Sequence[Tensor],
        *,
        flops: float = 0,
        workspace: int = 0,
        shown: Sequence[Tensor] | None = None,
    ) -> None:
        """One kernel that writes the gradient of a parameter, or adds to it in place. `shown`: as of `Tape.run`, but
        for what it is added to."""
        weight, found = parameter.weight, parameter.gradient
        if found is None:
            found = parameter.gradient = self.tape.tensor(f"{parameter.name}.grad", weight.shape, kind="gradient")
            again = not self.accumulates
            self.tape.run(type, reads, [found], flops=flops, workspace=workspace, recomputable=again, shown=shown)
        else:
            shown = [*shown, found] if shown else shown
            self.tape.run(
                type, [*reads, found], [found], flops=flops, workspace=workspace, recomputable=False, shown=shown
            )
        parameter.waiting -= 1
        if not parameter.waiting:
            self.on_gradient(parameter)

    # -- kernels -------------------------------------------------------------------------------------------

    def linear(self, x: Tensor, parameter: Parameter, name: str, *, transposed: bool = False) -> Tensor:
        """x W: (rows, in) by (in, out), or by the transposed (out, in); for stacked experts, their grouped product."""
        weight = parameter.weight
        rows, inner, outer = x.shape[0], weight.shape[-2], weight.shape[-1]
        if transposed:
            inner, outer = outer, inner
        kind = "GroupedMatMul" if len(weight.shape) == 3 else "MatMul"
        flops = 2.0 * rows * inner * outer
        y = self.tape.tensor(name, (rows, outer))
        self.tape.run(kind, [x, weight], [y], flops=flops, workspace=_partial_sums(y))
        self.use(parameter)

        def follow() -> None:
            dy = self.take(y)
            dx = self.like(x, f"{name}.grad_in")
            self.tape.run(kind, [dy, weight], [dx], flops=flops, workspace=_partial_sums(dx))
            factors = [dy, x] if transposed else [x, dy]
            self.accumulate(parameter, kind, [x, dy], flops=flops, workspace=_partial_sums(weight), shown=factors)
            self.give(x, dx)

        self.rule(follow)
        return y

    def embedding(self, ids: Tensor, parameter: Parameter) -> Tensor:
        table = parameter.weight
        y = self.tape.tensor("embedded", (ids.shape[0], table.shape[-1]))
        self.tape.run("Gather", [ids, table], [y], traffic=2 * y.bytes, shown=[table, ids])
        self.use(parameter)

        def follow() -> None:
            # Rows added to a table that is there are no formula's first gradient.
            shown = () if parameter.gradient else None
            rows = [ids, self.take(y)]
            self.accumulate(parameter, "EmbeddingGrad", rows, workspace=16 * ids.shape[0], shown=shown)

        self.rule(follow)
        return y

    def norm(self, x: Tensor, parameter: Parameter, name: str) -> Tensor:
        """RMS normalisation over rows."""
        self.use(parameter)
        return self._norm_fused(x, parameter, name) if self.fused else self._norm_steps(x, parameter, name)

    def _norm_fused(self, x: Tensor, parameter: Parameter, name: str) -> Tensor:
        y = self.like(x, name)
        scale = self.tape.tensor(f"{name}.rstd", (x.shape[0],), "float32")
        self.tape.run("RmsNorm", [x, parameter.weight], [y, scale])

        def follow() -> None:
            dy = self.take(y)
            dx = self.like(x, f"{name}.grad_in")
            self.tape.run("RmsNormGrad", [dy, x, scale, parameter.weight], [dx], workspace=4 * x.shape[-1] * 64)
            self.accumulate(parameter, "RmsNormGammaGrad", [dy, x, scale])
            self.give(x, dx)

        self.rule(follow)
        return y

    def _norm_steps(self, x: Tensor, parameter: Parameter, name: str) -> Tensor:
        tape, weight, row = self.tape, parameter.weight, (x.shape[0], 1)
        wide = tape.tensor(f"{name}.fp32", x.shape, "float32")
        square = tape.tensor(f"{name}.square", x.shape, "float32")
        mean, scale = (tape.tensor(f"{name}.{what}", row, "float32") for what in ("mean", "rstd"))
        normal = tape.tensor(f"{name}.normal", x.shape, "float32")
        y = self.like(x, name)
        tape.run("Cast", [x], [wide])
        tape.run("Square", [wide], [square])
        tape.run("ReduceMean", [square], [mean])
        tape.run("Rsqrt", [mean], [scale])
        tape.run("Mul", [wide, scale], [normal])
        tape.run("Mul", [normal, weight], [y])

        def follow() -> None:
            dy = self.take(y)
            dn, product, inner = (tape.tensor(f"{name}.{what}", x.shape, "float32") for what in ("dn", "dn_n", "back"))
            mean_back = tape.tensor(f"{name}.mean_back", row, "float32")
            dx = self.like(x, f"{name}.grad_in")
            self.accumulate(parameter, "MulReduceSum", [dy, normal])
            tape.run("Mul", [dy, weight], [dn])
            tape.run("Mul", [dn, normal], [product])
            tape.run("ReduceMean", [product], [mean_back])
            tape.run("MulSub", [dn, normal, mean_back], [inner])
            tape.run("Mul", [inner, scale], [dx])
            self.give(x, dx)

        self.rule(follow)
        return y

    def gate(self, gate_up: Sequence[Tensor], name: str) -> Tensor:
        """silu(gate) times up; both in one tensor, or each in its own."""
        tape, first = self.tape, gate_up[0]
        h = tape.tensor(name, (first.shape[0], first.shape[1] * len(gate_up) // 2))
        if len(gate_up) == 1:
            tape.run("SwiGlu", [first], [h])

            def follow() -> None:
                both = self.like(first, f"{name}.grad_in")
                tape.run("SwiGluGrad", [self.take(h), first], [both])
                self.give(first, both)

            self.rule(follow)
            return h
        gate, up = gate_up
        silu = self.like(gate, f"{name}.silu")
        tape.run("SiLU", [gate], [silu])
        tape.run("Mul", [silu, up], [h])

        def follow_steps() -> None:
            dh = self.take(h)
            ds, du, dg = (self.like(gate, f"{name}.{what}") for what in ("silu_grad", "up_grad", "gate_grad"))
            tape.run("Mul", [dh, up], [ds])
            tape.run("Mul", [dh, silu], [du])
            tape.run("SiLUGrad", [ds, gate], [dg])
            self.give(up, du)
            self.give(gate, dg)

        self.rule(follow_steps)
        return h

    def add(self, a: Tensor, b: Tensor, name: str) -> Tensor:
        y = self.like(a, name)
        self.tape.run("Add", [a, b], [y])

        def follow() -> None:
            dy = self.take(y)
            self.give(b, dy)
            self.give(a, dy)

        self.rule(follow)
        return y

    def map(
        self,
        type: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        constants: Sequence[Tensor] = (),
        keeps: Sequence[Tensor] = (),
        flops: float = 0,
        backward_flops: float = 0,
        workspace: int = 0,
        backward_workspace: int = 0,
        attention: bool = False,
    ) -> None:
        """Any kernel whose backward kernel reads the gradients of `outputs`, the `constants` and what it `keeps`.

        Of outputs without a gradient (statistics, indices) none is read.
        """
        tape = self.tape
        tape.run(type, [*inputs, *constants], outputs, flops=flops, workspace=workspace, attention=attention)

        def follow() -> None:
            found = [self.take(t) for t in outputs if t.id in self.gradients]
            grads = [self.like(t, f"{type}.grad_in") for t in inputs]
            tape.run(
                f"{type}Grad",
                [*found, *constants, *keeps],
                grads,
                flops=backward_flops,
                workspace=backward_workspace,
                attention=attention,
            )
            for tensor, gradient in zip(inputs, grads, strict=True):
                self.give(tensor, gradient)

        self.rule(follow)

    def exchange(
        self, type: str, back: str, x: Tensor, rows: int, name: str, share: float, *, recomputable: bool = False
    ) -> Tensor:
        """A collective that makes `rows` rows of x's, and its counterpart in the backward pass.

        `recomputable`: it may be issued once more (all ranks follow the same plan).
        """
        y = self.tape.tensor(name, (rows, *x.shape[1:]))
        self.tape.collect(type, [x], [y], share=share, recomputable=recomputable)

        def follow() -> None:
            dx = self.like(x, f"{name}.grad_in")
            self.tape.collect(back, [self.take(y)], [dx], share=share)
            self.give(x, dx)

        self.rule(follow)
        return y


def _partial_sums(result: Tensor) -> int:
    """Workspace of a matrix product: fp32 partial sums of a part of the result."""
    return min(MATMUL_WORKSPACE, 4 * prod(result.shape))
