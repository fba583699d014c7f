"""The blocks of a transformer, on one rank: attention, feed-forward, experts, the loss.

The residual stream has tokens / tensor-parallel rows (sequence parallel); `gather` makes all rows of it before the
products that are split by columns, and `scatter` sums up and splits again after those that are split by rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hyperopt.testing.gradients import Parameter, Pass
from hyperopt.testing.shapes import Experts, LatentAttention, ModelShape
from hyperopt.testing.tape import Tape, Tensor

Make = Callable[..., Parameter]
"""(name, shape, observed=, accessed=) -> a parameter of the current layer."""

STEPS_OBSERVED = 200
"""Steps over which the accesses of experts are counted where experts are unequally popular."""

ZIPF = 0.9
"""There, expert number r in order of popularity gets tokens in proportion to r ** -ZIPF."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """How the model is split over ranks.

    `tensor`: ranks that share each layer's products, and the tokens between them; `stage` of `stages`: this rank's
    place in the pipeline; `experts`: ranks that share a layer's experts; `data`: those that share optimizer states,
    those of experts `expert_data` (None: as many).
    """

    tensor: int = 1
    stages: int = 1
    stage: int = 0
    experts: int = 1
    data: int = 1
    expert_data: int | None = None

    def sharers(self, parameter: str) -> int:
        """Ranks that share the optimizer states of a parameter."""
        of_expert = parameter.startswith("expert")
        return self.data if self.expert_data is None or not of_expert else self.expert_data


@dataclass(frozen=True, slots=True)
class Layer:
    """The parameters of one layer, by name, and the shares of tokens that its experts take (empty: one group)."""

    label: str
    weights: dict[str, Parameter]
    dense: bool
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocks:
    """A model's layers as kernels. `apart`: experts are separate weights, with a share of the tokens each."""

    shape: ModelShape
    parallel: Parallel
    fused: bool
    apart: bool = False

    def layer(self, tape: Tape, make: Make, label: str, dense: bool, shares: tuple[float, ...]) -> Layer:
        """A layer's parameters."""
        shape, tensor = self.shape, self.parallel.tensor
        hidden = shape.hidden
        tape.layer = label
        weights: dict[str, Parameter] = {}

        def add(name: str, *size: int, observed: int = 0, accessed: int = 0) -> None:
            weights[name] = make(name, size, observed=observed, accessed=accessed)

        add("norm1", hidden)
        if shape.latent is not None:
            latent, heads = shape.latent, shape.heads // tensor
            add("q_down", hidden, latent.query_rank)
            add("q_norm", latent.query_rank)
            add("q_up", latent.query_rank, heads * (latent.nope_dim + latent.rope_dim))
            add("kv_down", hidden, latent.key_value_rank + latent.rope_dim)
            add("kv_up", latent.key_value_rank, heads * (latent.nope_dim + latent.value_dim))
            add("out", heads * latent.value_dim, hidden)
        else:
            q, kv = shape.heads * shape.head_dim // tensor, shape.kv_heads * shape.head_dim // tensor
            if self.fused:
                add("qkv", hidden, q + 2 * kv)
            else:
                for name, width in (("q", q), ("k", kv), ("v", kv)):
                    add(name, hidden, width)
            add("out", q, hidden)
        add("norm2", hidden)
        if dense:
            self._feed_forward(add, "", hidden, shape.ffn // tensor)
        else:
            assert shape.experts is not None
            self._experts(add, shape.experts, shares)
        return Layer(label, weights, dense, shares)

    def _feed_forward(self, add: Callable[..., None], prefix: str, hidden: int, ffn: int) -> None:
        if self.fused:
            add(f"{prefix}gate_up", hidden, 2 * ffn)
        else:
            add(f"{prefix}gate", hidden, ffn)
            add(f"{prefix}up", hidden, ffn)
        add(f"{prefix}down", ffn, hidden)

    def _experts(self, add: Callable[..., None], experts: Experts, shares: tuple[float, ...]) -> None:
        hidden, local = self.shape.hidden, experts.count // self.parallel.experts
        add("router", hidden, experts.count)
        if experts.shared:
            self._feed_forward(add, "shared.", hidden, experts.shared * experts.ffn)
        if not self.apart:
            add("experts.gate_up", local, hidden, 2 * experts.ffn)
            add("experts.down", local, experts.ffn, hidden)
            return
        for e, share in enumerate(shares):
            accessed = round(STEPS_OBSERVED * min(1.0, share * local)) if share else 1
            seen = {"observed": STEPS_OBSERVED, "accessed": accessed}
            add(f"expert{e}.gate_up", hidden, 2 * experts.ffn, **seen)
            add(f"expert{e}.down", experts.ffn, hidden, **seen)

    # -- forward -------------------------------------------------------------------------------------------

    def forward(self, p: Pass, layer: Layer, x: Tensor, angles: Tensor) -> Tensor:
        """One layer: attention and feed-forward, each normalised before and added after."""
        p.tape.layer = layer.label
        w = layer.weights
        h = self._gather(p, p.norm(x, w["norm1"], "norm1"))
        mixed = self._latent(p, w, h, self.shape.latent) if self.shape.latent else self._attention(p, w, h, angles)
        x = p.add(x, self._scatter(p, p.linear(mixed, w["out"], "attn_out")), "attn_residual")
        h = self._gather(p, p.norm(x, w["norm2"], "norm2"))
        y = self._mlp(p, w, h, "") if layer.dense else self._mixture(p, layer, h)
        return p.add(x, self._scatter(p, y), "residual")

    def _gather(self, p: Pass, x: Tensor) -> Tensor:
        n = self.parallel.tensor
        if n == 1:
            return x
        return p.exchange("AllGather", "ReduceScatter", x, x.shape[0] * n, "gathered", (n - 1) / n, recomputable=True)

    def _scatter(self, p: Pass, x: Tensor) -> Tensor:
        n = self.parallel.tensor
        if n == 1:
            return x
        return p.exchange("ReduceScatter", "AllGather", x, x.shape[0] // n, "scattered", (n - 1) / n)

    def _attention(self, p: Pass, w: dict[str, Parameter], x: Tensor, angles: Tensor) -> Tensor:
        shape, tape, rows = self.shape, p.tape, x.shape[0]
        heads, kv_heads = shape.heads // self.parallel.tensor, shape.kv_heads // self.parallel.tensor
        wide, narrow = (rows, heads * shape.head_dim), (rows, kv_heads * shape.head_dim)
        q, k = tape.tensor("q_rot", wide), tape.tensor("k_rot", narrow)
        if self.fused:
            qkv, v = p.linear(x, w["qkv"], "qkv"), tape.tensor("v", narrow)
            p.map("RotarySplit", [qkv], [q, k, v], constants=[angles])
        else:
            q_in, k_in, v = (p.linear(x, w[name], name) for name in ("q", "k", "v"))
            p.map("Rotary", [q_in], [q], constants=[angles])
            p.map("Rotary", [k_in], [k], constants=[angles])
        return self._flash(p, q, k, v, heads, 2 * shape.head_dim, wide)

    def _flash(self, p: Pass, q: Tensor, k: Tensor, v: Tensor, heads: int, dims: int, out: tuple[int, ...]) -> Tensor:
        """Causal attention without the score matrix; keeps the row sums for backward."""
        rows = q.shape[0]
        mixed, sums = p.tape.tensor("attn", out), p.tape.tensor("attn.lse", (heads, rows), "float32")
        flops = float(rows) * rows * heads * dims
        p.map(
            "FlashAttention",
            [q, k, v],
            [mixed, sums],
            keeps=[q, k, v, mixed, sums],
            flops=flops,
            backward_flops=2.5 * flops,
            workspace=heads * 128 * dims * 4,
            backward_workspace=2 * q.bytes,
            attention=True,
        )
        return mixed

    def _latent(self, p: Pass, w: dict[str, Parameter], x: Tensor, latent: LatentAttention) -> Tensor:
        tape, rows, heads = p.tape, x.shape[0], self.shape.heads // self.parallel.tensor
        qk = latent.nope_dim + latent.rope_dim
        q = p.linear(p.norm(p.linear(x, w["q_down"], "q_latent"), w["q_norm"], "q_norm"), w["q_up"], "q")
        both = p.linear(x, w["kv_down"], "kv_latent")
        narrow = tape.tensor("kv_narrow", (rows, latent.key_value_rank))
        turned = tape.tensor("k_rot", (rows, latent.rope_dim))
        p.map("Split", [both], [narrow, turned])
        kv = p.linear(narrow, w["kv_up"], "kv")
        k, v = tape.tensor("k", (rows, heads * qk)), tape.tensor("v", (rows, heads * latent.value_dim))
        p.map("ConcatKeys", [kv, turned], [k, v])
        return self._flash(p, q, k, v, heads, qk + latent.value_dim, (rows, heads * latent.value_dim))

    def _mlp(self, p: Pass, w: dict[str, Parameter], x: Tensor, prefix: str) -> Tensor:
        names = (f"{prefix}gate_up",) if self.fused else (f"{prefix}gate", f"{prefix}up")
        h = p.gate([p.linear(x, w[name], name) for name in names], f"{prefix}gated")
        return p.linear(h, w[f"{prefix}down"], f"{prefix}down")

    def _mixture(self, p: Pass, layer: Layer, x: Tensor) -> Tensor:
        """Router, tokens to their experts and back, and the experts that serve every token."""
        experts, tape, w, rows = self.shape.experts, p.tape, layer.weights, x.shape[0]
        assert experts is not None
        scores = p.linear(x, w["router"], "router")
        chosen = (rows, experts.top_k)
        gates, index = tape.tensor("gates", chosen, "float32"), tape.tensor("experts", chosen, "int32")
        p.map("TopKGating", [scores], [gates, index], keeps=[scores, index], workspace=8 * rows * experts.count)
        sent = tape.tensor("permuted", (rows * experts.top_k, x.shape[1]))
        p.map("MoePermute", [x], [sent], constants=[index], workspace=8 * rows * experts.top_k)
        here = self._all_to_all(p, sent, "dispatched")
        done = self._apart(p, layer, here) if self.apart else self._grouped(p, w, here)
        back = self._all_to_all(p, done, "combined")
        y = tape.tensor("moe", x.shape)
        p.map("MoeUnpermute", [back, gates], [y], constants=[index], keeps=[back, gates])
        return p.add(y, self._mlp(p, w, x, "shared."), "moe_shared") if experts.shared else y

    def _all_to_all(self, p: Pass, x: Tensor, name: str) -> Tensor:
        n = self.parallel.experts
        return x if n == 1 else p.exchange("AllToAll", "AllToAll", x, x.shape[0], name, (n - 1) / n)

    def _grouped(self, p: Pass, w: dict[str, Parameter], x: Tensor) -> Tensor:
        h = p.gate([p.linear(x, w["experts.gate_up"], "expert_gate_up")], "expert_gated")
        return p.linear(h, w["experts.down"], "expert_down")

    def _apart(self, p: Pass, layer: Layer, x: Tensor) -> Tensor:
        """Each expert by itself, on its share of the tokens; those without a share do nothing in this step."""
        tape, w = p.tape, layer.weights
        taking = [e for e, share in enumerate(layer.shares) if share]
        rows = [max(1, int(x.shape[0] * layer.shares[e])) for e in taking]
        parts = [tape.tensor(f"tokens{e}", (n, x.shape[1])) for e, n in zip(taking, rows, strict=True)]
        p.map("Split", [x], parts)
        done = []
        for e, part in zip(taking, parts, strict=True):
            h = p.gate([p.linear(part, w[f"expert{e}.gate_up"], f"expert{e}.gate_up")], f"expert{e}.gated")
            done.append(p.linear(h, w[f"expert{e}.down"], f"expert{e}.down"))
        y = tape.tensor("experts_out", x.shape)
        p.map("Concat", done, [y])
        return y

    # -- the ends ------------------------------------------------------------------------------------------

    def embed(self, p: Pass, ids: Tensor, table: Parameter) -> Tensor:
        p.tape.layer = "embedding"
        return self._scatter(p, p.embedding(ids, table))

    def loss(self, p: Pass, x: Tensor, norm: Parameter, head: Parameter, labels: Tensor, chunks: int) -> None:
        """Logits in fp32 and cross entropy, in `chunks` of tokens; starts the backward pass at the losses."""
        tape = p.tape
        tape.layer = "head"
        x = self._gather(p, p.norm(x, norm, "final_norm"))
        rows, losses = x.shape[0] // chunks, []
        pieces = [x]
        if chunks > 1:
            pieces = [tape.tensor(f"hidden{c}", (rows, x.shape[1])) for c in range(chunks)]
            p.map("Split", [x], pieces)
        for c, piece in enumerate(pieces):
            logits = p.linear(piece, head, f"logits{c}", transposed=True)
            wide = tape.tensor(f"logits{c}.fp32", logits.shape, "float32")
            p.map("Cast", [logits], [wide])
            loss, sums = tape.tensor(f"loss{c}", (1,), "float32"), tape.tensor(f"lse{c}", (rows,), "float32")
            p.map("CrossEntropy", [wide], [loss, sums], constants=[labels], keeps=[wide, sums])
            losses.append(loss)
        total = tape.tensor("loss", (1,), "float32")
        tape.run("AddN", losses, [total])
        one = tape.tensor("loss.grad", (1,), "float32")

        def start() -> None:
            tape.run("Fill", [total], [one])
            for loss in losses:
                p.give(loss, one)

        p.rule(start)
