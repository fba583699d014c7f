"""Training steps of transformers as graphs for placement: on one device, batch and sequence apart, backward included.

::

    x (b s h) ─ norm ─ q k v ─ rotary ─ attention ─ out ─ + ─ norm ─ gate, up ─ gated ─ down ─ +     dense
                                                             └ norm ─ router ─ dispatch (e b c h) ─ .. ─ combine ─ +

Backward operators stand in the graph as operators of their own; every parameter has a gradient, two moments and a
master copy that AdamW updates in place. Shapes are the caller's: nothing here is a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hyperopt.graph import Graph, Operator, Tensor
from hyperopt.profile import Kind, Phase


@dataclass(frozen=True, slots=True)
class Model:
    """Lengths of a decoder. `experts`: of every layer's feed-forward block (0: it is dense), `top_k` for each token,
    with room for `capacity` times the mean. `vocab` 0: no embedding and no loss, the gradient comes in."""

    batch: int
    sequence: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    layers: int = 1
    vocab: int = 0
    experts: int = 0
    top_k: int = 2
    capacity: float = 1.0
    micro_batches: int = 1
    dtype: str = "bfloat16"
    states: bool = True
    clip: bool = False
    dense_layers: int = 0

    @property
    def places(self) -> int:
        """Of one expert, for one sequence."""
        return max(1, round(self.sequence * self.top_k * self.capacity / self.experts))


@dataclass
class _Tape:
    """Operators as they come, and the rules that make the backward ones."""

    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    rules: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    gradients: dict[int, int] = field(default_factory=dict)
    parameters: dict[int, int] = field(default_factory=dict)
    layer: str = ""
    phase: Phase = "forward"
    micro_batch: int | None = None

    def tensor(
        self, name: str, shape: Sequence[int], dtype: str, kind: Kind = "activation", resident: bool = False
    ) -> int:
        label = f"{self.layer}.{name}" if self.layer else name
        if self.micro_batch is not None and not resident and kind != "gradient":
            label += f"@{self.micro_batch}"
        self.tensors.append(Tensor(len(self.tensors), label, tuple(shape), dtype, kind, resident))
        return len(self.tensors) - 1

    def like(self, t: int, name: str, kind: Kind = "activation") -> int:
        return self.tensor(name, self.tensors[t].shape, self.tensors[t].dtype, kind)

    def run(self, type: str, inputs: Sequence[int], outputs: Sequence[int], **attributes: Any) -> None:
        self.operators.append(
            Operator(
                type=type,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                name=f"{type}-op{len(self.operators)}",
                phase=self.phase,
                layer=self.layer,
                attributes=attributes,
                micro_batch=self.micro_batch,
            )
        )

    def rule(self, follow: Callable[[], None]) -> None:
        self.rules.append((self.layer, follow))

    def backward(self) -> None:
        while self.rules:
            self.layer, follow = self.rules.pop()
            follow()

    def take(self, t: int) -> int:
        return self.gradients.pop(t)

    def give(self, t: int, gradient: int) -> None:
        first = self.gradients.get(t)
        if first is not None:
            total = self.like(t, f"{self._short(t)}.grad_sum")
            self.run("Add", [first, gradient], [total])
            gradient = total
        self.gradients[t] = gradient

    def _short(self, t: int) -> str:
        return self.tensors[t].name.rpartition(".")[2].partition("@")[0]

    def grad_of(self, t: int) -> int:
        return self.like(t, f"{self._short(t)}.grad")

    def accumulate(self, weight: int, type: str, inputs: Sequence[int], **attributes: Any) -> None:
        """A kernel that writes a parameter's gradient, or adds to what earlier micro-batches have left there."""
        found = self.parameters.get(weight)
        if found is None:
            before, self.layer = self.layer, ""
            found = self.tensor(f"{self.tensors[weight].name}.grad", self.tensors[weight].shape,
                                self.tensors[weight].dtype, "gradient")  # fmt: skip
            self.layer = before
            self.parameters[weight] = found
            self.run(type, inputs, [found], **attributes)
        else:
            self.run(type, [*inputs, found], [found], **attributes)

    # -- kernels with their backward ones ------------------------------------------------------------------

    def product(self, x: int, weight: int, equation: str, shape: Sequence[int], name: str) -> int:
        y = self.tensor(name, shape, self.tensors[x].dtype)
        self.run("MatMul", [x, weight], [y], equation=equation)
        left, right, out = *equation.split("->")[0].split(","), equation.split("->")[1]

        def follow() -> None:
            dy, dx = self.take(y), self.grad_of(x)
            self.run("MatMul", [dy, weight], [dx], equation=f"{out},{right}->{left}")
            self.accumulate(weight, "MatMul", [x, dy], equation=f"{left},{out}->{right}")
            self.give(x, dx)

        self.rule(follow)
        return y

    def norm(self, x: int, weight: int, name: str) -> int:
        y = self.like(x, name)
        scale = self.tensor(f"{name}.rstd", self.tensors[x].shape[:-1], "float32")
        self.run("RmsNorm", [x, weight], [y, scale])

        def follow() -> None:
            dy, dx = self.take(y), self.grad_of(x)
            self.run("RmsNormGrad", [dy, x, scale, weight], [dx])
            self.accumulate(weight, "RmsNormGammaGrad", [dy, x, scale])
            self.give(x, dx)

        self.rule(follow)
        return y

    def add(self, a: int, b: int, name: str) -> int:
        y = self.like(a, name)
        self.run("Add", [a, b], [y])

        def follow() -> None:
            dy = self.take(y)
            self.give(b, dy)
            self.give(a, dy)

        self.rule(follow)
        return y

    def rotary(self, x: int, angles: int, name: str) -> int:
        y = self.like(x, name)
        self.run("Rotary", [x, angles], [y])

        def follow() -> None:
            dy, dx = self.take(y), self.grad_of(x)
            self.run("RotaryGrad", [dy, angles], [dx])
            self.give(x, dx)

        self.rule(follow)
        return y

    def attention(self, q: int, k: int, v: int) -> int:
        out = self.like(q, "attn")
        sums = self.tensor("attn.lse", self.tensors[q].shape[:-1], "float32")
        self.run("FlashAttention", [q, k, v], [out, sums], causal=True)

        def follow() -> None:
            dout, made = self.take(out), [self.grad_of(t) for t in (q, k, v)]
            self.run("FlashAttentionGrad", [dout, q, k, v, out, sums], made, causal=True)
            for t, gradient in zip((q, k, v), made, strict=True):
                self.give(t, gradient)

        self.rule(follow)
        return out

    def gate(self, gate: int, up: int, name: str) -> int:
        h = self.like(gate, name)
        self.run("SwiGlu", [gate, up], [h])

        def follow() -> None:
            dh, dg, du = self.take(h), self.grad_of(gate), self.grad_of(up)
            self.run("SwiGluGrad", [dh, gate, up], [dg, du])
            self.give(gate, dg)
            self.give(up, du)

        self.rule(follow)
        return h


def training(model: Model) -> Graph:
    """One training step of `model`."""
    tape = _Tape()
    m, hidden = model, model.hidden
    weights: list[dict[str, int]] = []

    def parameter(name: str, *shape: int) -> int:
        return tape.tensor(name, shape, m.dtype, "parameter", resident=True)

    table = head = last = -1
    if m.vocab:
        tape.layer = "embedding"
        table = parameter("table", m.vocab, hidden)
    for i in range(m.layers):
        tape.layer = f"layer{i}"
        w = {
            "norm1": parameter("norm1", hidden),
            "q": parameter("q", hidden, m.heads, m.head_dim),
            "k": parameter("k", hidden, m.kv_heads, m.head_dim),
            "v": parameter("v", hidden, m.kv_heads, m.head_dim),
            "out": parameter("out", m.heads, m.head_dim, hidden),
            "norm2": parameter("norm2", hidden),
        }
        stack = (m.experts,) if m.experts and i >= m.dense_layers else ()
        if stack:
            w["router"] = parameter("router", hidden, m.experts)
        w["gate"] = parameter("gate", *stack, hidden, m.ffn)
        w["up"] = parameter("up", *stack, hidden, m.ffn)
        w["down"] = parameter("down", *stack, m.ffn, hidden)
        weights.append(w)
    tape.layer = "head"
    if m.vocab:
        last, head = parameter("final_norm", hidden), parameter("head", hidden, m.vocab)
    tape.layer = ""
    angles = tape.tensor("rotary", (m.sequence, m.head_dim), "float32", "input", resident=True)
    for n in range(m.micro_batches):
        tape.micro_batch = n if m.micro_batches > 1 else None
        _pass(tape, m, weights, table, last, head, angles)
    tape.micro_batch = None
    _optimizer(tape, m)
    return Graph(tuple(tape.tensors), tuple(tape.operators), name="transformer", source="generator")


def _pass(tape: _Tape, m: Model, weights: list[dict[str, int]], table: int, last: int, head: int, angles: int) -> None:
    """Forward and backward of one micro-batch."""
    tape.phase, tape.layer, rows = "forward", "", (m.batch, m.sequence)
    if m.vocab:
        ids = tape.tensor("tokens", rows, "int32", "input", resident=True)
        targets = tape.tensor("targets", rows, "int32", "input", resident=True)
        tape.layer = "embedding"
        x = tape.tensor("embedded", (*rows, m.hidden), m.dtype)
        tape.run("Gather", [table, ids], [x], axis=0)
        entered = x
        tape.rule(lambda: tape.accumulate(table, "EmbeddingGrad", [ids, tape.take(entered)]))
    else:
        x = tape.tensor("x", (*rows, m.hidden), m.dtype, "input", resident=True)
    for i, w in enumerate(weights):
        tape.layer = f"layer{i}"
        x = _layer(tape, m, w, x, angles)
    if m.vocab:
        tape.layer = "head"
        h = tape.norm(x, last, "final")
        logits = tape.product(h, head, "bsh,hv->bsv", (*rows, m.vocab), "logits")
        loss = tape.tensor("loss", rows, "float32")
        sums = tape.tensor("loss.lse", rows, "float32")
        tape.run("CrossEntropy", [logits, targets], [loss, sums])
        mean = tape.tensor("mean_loss", (1,), "float32")
        tape.run("ReduceMean", [loss], [mean], axis=(0, 1))
        tape.phase = "backward"
        dloss, dlogits = tape.like(loss, "loss.grad"), tape.grad_of(logits)
        tape.run("OnesLike", [loss], [dloss])
        tape.run("CrossEntropyGrad", [dloss, targets, logits, sums], [dlogits])
        tape.give(logits, dlogits)
    else:
        tape.phase = "backward"
        tape.layer = ""
        tape.give(x, tape.tensor("dy", tape.tensors[x].shape, m.dtype, "input", resident=True))
    tape.backward()


def _layer(tape: _Tape, m: Model, w: dict[str, int], x: int, angles: int) -> int:
    rows = (m.batch, m.sequence)
    h = tape.norm(x, w["norm1"], "n1")
    q = tape.product(h, w["q"], "bsh,hnd->bsnd", (*rows, m.heads, m.head_dim), "q_")
    k = tape.product(h, w["k"], "bsh,hnd->bsnd", (*rows, m.kv_heads, m.head_dim), "k_")
    v = tape.product(h, w["v"], "bsh,hnd->bsnd", (*rows, m.kv_heads, m.head_dim), "v_")
    mixed = tape.attention(tape.rotary(q, angles, "q_rot"), tape.rotary(k, angles, "k_rot"), v)
    x = tape.add(x, tape.product(mixed, w["out"], "bsnd,ndh->bsh", (*rows, m.hidden), "attn_out"), "attn_residual")
    h = tape.norm(x, w["norm2"], "n2")
    if "router" in w:
        return tape.add(x, _experts(tape, m, w, h), "residual")
    gate = tape.product(h, w["gate"], "bsh,hf->bsf", (*rows, m.ffn), "gate_")
    up = tape.product(h, w["up"], "bsh,hf->bsf", (*rows, m.ffn), "up_")
    y = tape.product(tape.gate(gate, up, "gated"), w["down"], "bsf,fh->bsh", (*rows, m.hidden), "down_")
    return tape.add(x, y, "residual")


def _experts(tape: _Tape, m: Model, w: dict[str, int], h: int) -> int:
    """Router, tokens to their experts and back; groups are the sequences of the batch."""
    rows, room = (m.batch, m.sequence), (m.experts, m.batch, m.places)
    scores = tape.product(h, w["router"], "bsh,he->bse", (*rows, m.experts), "scores")
    gates = tape.tensor("gates", (*rows, m.top_k), "float32")
    index = tape.tensor("experts", (*rows, m.top_k), "int32")
    tape.run("TopKGating", [scores], [gates, index])

    def follow_gating() -> None:
        dscores = tape.grad_of(scores)
        tape.run("TopKGatingGrad", [tape.take(gates), scores, index], [dscores])
        tape.give(scores, dscores)

    tape.rule(follow_gating)
    places = tape.tensor("places", (*room, m.hidden), m.dtype)
    tape.run("MoeDispatch", [h, index], [places])

    def follow_dispatch() -> None:
        dh = tape.grad_of(h)
        tape.run("MoeDispatchGrad", [tape.take(places), index], [dh])
        tape.give(h, dh)

    tape.rule(follow_dispatch)
    gate = tape.product(places, w["gate"], "egch,ehf->egcf", (*room, m.ffn), "gate_")
    up = tape.product(places, w["up"], "egch,ehf->egcf", (*room, m.ffn), "up_")
    done = tape.product(tape.gate(gate, up, "gated"), w["down"], "egcf,efh->egch", (*room, m.hidden), "done")
    y = tape.tensor("moe", (*rows, m.hidden), m.dtype)
    tape.run("MoeCombine", [done, gates, index], [y])

    def follow_combine() -> None:
        ddone, dgates = tape.grad_of(done), tape.grad_of(gates)
        tape.run("MoeCombineGrad", [tape.take(y), done, gates, index], [ddone, dgates])
        tape.give(done, ddone)
        tape.give(gates, dgates)

    tape.rule(follow_combine)
    return y


def _optimizer(tape: _Tape, m: Model) -> None:
    """AdamW in place, after clipping by the global norm if asked for."""
    tape.phase = "optimizer"
    clip: list[int] = []
    if m.clip:
        norms = []
        for weight, gradient in tape.parameters.items():
            tape.layer = tape.tensors[weight].name.partition(".")[0]
            norms.append(tape.tensor(f"{tape._short(weight)}.norm", (1,), "float32"))
            tape.run("SquareSum", [gradient], [norms[-1]])
        tape.layer = ""
        clip = [tape.tensor("clip", (1,), "float32")]
        tape.run("ClipByGlobalNorm", norms, clip)
    for weight, gradient in tape.parameters.items():
        name, _, short = tape.tensors[weight].name.partition(".")
        tape.layer = name
        states = []
        if m.states:
            states = [
                tape.tensor(f"{short}.{s}", tape.tensors[weight].shape, "float32", "optimizer_state", resident=True)
                for s in ("master", "exp_avg", "exp_avg_sq")
            ]
        tape.run("AdamW", [gradient, *states, weight, *clip], [*states, weight])
