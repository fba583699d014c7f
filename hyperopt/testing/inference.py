"""Inference steps on one rank: all weights read only, layer after layer, beside the KV cache.

Weights are clean, so a plan may stream them layer by layer: release without a copy, copy in ahead of the next use.

::

    prefill   a request's chunks, one after the other; each layer writes a KV block per chunk, sends it on (to the
              instance that decodes) and attends to it and all before it; after the last chunk they are gone
    decode    tokens, one after the other, for a batch of requests in groups; each layer appends to its page; of a
              layer's experts some are read for a token, the popular ones more often
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hyperopt.testing.accelerator import Accelerator
from hyperopt.testing.blocks import STEPS_OBSERVED, ZIPF
from hyperopt.testing.shapes import ModelShape
from hyperopt.testing.tape import Tape, Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Prefill:
    """`tokens` per chunk, `chunks` per request; micro-batches are chunks."""

    shape: ModelShape
    layers: int
    tokens: int = 2048
    chunks: int = 8
    micro_batches: int = 2

    def dense(self, layers: int) -> int:
        return layers

    def build(self, accelerator: Accelerator, layers: int, micro_batches: int, seed: str) -> Tape:
        return _Inference(self, accelerator, layers, seed).prefill(self, micro_batches)


@dataclass(frozen=True, slots=True)
class Decode:
    """`groups` of `batch` requests each, with `context` tokens in the cache; micro-batches are new tokens.

    Of a mixture of experts the rank holds `experts` in each layer, as separate weights, of which `active` are read
    for a token.
    """

    shape: ModelShape
    layers: int
    batch: int = 64
    context: int = 2048
    groups: int = 1
    micro_batches: int = 2
    experts: int = 0
    active: int = 0

    def dense(self, layers: int) -> int:
        return layers

    def build(self, accelerator: Accelerator, layers: int, micro_batches: int, seed: str) -> Tape:
        return _Inference(self, accelerator, layers, seed).decode(self, micro_batches)


class _Inference:
    def __init__(self, recipe: Prefill | Decode, accelerator: Accelerator, layers: int, seed: str) -> None:
        self.shape = shape = recipe.shape
        self.tape = tape = Tape(accelerator, seed)
        tape.phase = "forward"
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        sizes = {
            "norm1": (shape.hidden,),
            "qkv": (shape.hidden, q + 2 * kv),
            "out": (q, shape.hidden),
            "norm2": (shape.hidden,),
        }
        if shape.experts is None:
            sizes |= {"gate_up": (shape.hidden, 2 * shape.ffn), "down": (shape.ffn, shape.hidden)}
        else:
            sizes["router"] = (shape.hidden, shape.experts.count)
        self.table = self._weight("embedding", "table", (shape.vocab, shape.hidden))
        self.layers: list[Weights] = [
            {name: self._weight(f"layer{i}", name, size) for name, size in sizes.items()} for i in range(layers)
        ]
        self.experts = [self._experts(f"layer{i}", recipe) for i in range(layers)]
        self.norm = self._weight("head", "final_norm", (shape.hidden,))
        self.head = self.table if shape.tied else self._weight("head", "head", (shape.vocab, shape.hidden))
        tape.layer = ""
        self.angles = tape.tensor("rotary", (4096, shape.head_dim), kind="input", resident=True)

    def _weight(self, layer: str, name: str, size: tuple[int, ...], accessed: int | None = None) -> Tensor:
        self.tape.layer = layer
        observed = 0 if accessed is None else STEPS_OBSERVED
        return self.tape.tensor(
            name, size, kind="parameter", resident=True, stays=True, observed=observed, accessed=accessed or 0
        )

    def _experts(self, layer: str, recipe: Prefill | Decode) -> list[tuple[float, Tensor, Tensor]]:
        """(popularity, weights up, weights down) of each expert of a layer."""
        experts = recipe.shape.experts
        if experts is None or not isinstance(recipe, Decode):
            return []
        popular = [(rank + 1) ** -ZIPF for rank in range(recipe.experts)]
        self.tape.random.shuffle(popular)
        found = []
        for e, weight in enumerate(popular):
            share = min(1.0, weight / sum(popular) * recipe.active)
            accessed = max(1, round(STEPS_OBSERVED * share))
            up = self._weight(layer, f"expert{e}.gate_up", (recipe.shape.hidden, 2 * experts.ffn), accessed)
            down = self._weight(layer, f"expert{e}.down", (experts.ffn, recipe.shape.hidden), accessed)
            found.append((weight, up, down))
        return found

    def prefill(self, recipe: Prefill, count: int) -> Tape:
        tape, rows = self.tape, recipe.tokens
        blocks: dict[int, list[Tensor]] = defaultdict(list)
        for chunk in range(count):
            tape.micro_batch, tape.layer = chunk, ""
            ids = tape.tensor(f"tokens{chunk}", (rows,), "int32", "input", resident=True)
            x = self._embed(ids)
            ends = chunk % recipe.chunks == recipe.chunks - 1 or chunk == count - 1
            for i, w in enumerate(self.layers):
                tape.layer = f"layer{i}"
                q, block = self._queries(x, w, cached=True)
                blocks[i].append(block)
                before = len(blocks[i]) - 1
                mixed = self._attend(q, blocks[i], rows * (before + 0.5) * rows)
                x = self._feed_forward(self._attended(x, mixed, w), w)
                tape.collect("SendKv", blocks[i][-1:], [])
                if ends:
                    blocks[i].clear()
            self._sample(self._last_rows(x))
        return tape

    def decode(self, recipe: Decode, count: int) -> Tape:
        tape, shape = self.tape, self.shape
        cached = recipe.batch * recipe.context
        size = (cached, 2 * shape.kv_heads * shape.head_dim)
        page = (recipe.batch * -(-count // 16) * 16, size[1])
        caches: list[list[Tensor]] = []
        pages: list[list[Tensor]] = []
        for i in range(len(self.layers)):
            tape.layer = f"layer{i}"
            caches.append([self._kv(f"kv{g}", size, resident=True) for g in range(recipe.groups)])
            pages.append([self._kv(f"kv{g}.page", page, resident=False) for g in range(recipe.groups)])
        tape.layer = ""
        ids = [
            tape.tensor(f"tokens{g}", (recipe.batch,), "int32", "input", resident=True) for g in range(recipe.groups)
        ]
        for token in range(count):
            tape.micro_batch = token
            for g in range(recipe.groups):
                x = self._embed(ids[g])
                for i, w in enumerate(self.layers):
                    tape.layer = f"layer{i}"
                    q, new = self._queries(x, w, cached=False)
                    grown = pages[i][g]
                    old = [grown] if token else []
                    tape.run("KvAppend", [new, *old], [grown], traffic=2 * new.bytes, recomputable=False)
                    x = self._attended(x, self._attend(q, [caches[i][g], grown], float(cached)), w)
                    x = self._mixture(x, w, self.experts[i], recipe) if self.experts[i] else self._feed_forward(x, w)
                ids[g] = self._sample(x)
        return tape

    def _kv(self, name: str, size: tuple[int, ...], *, resident: bool) -> Tensor:
        return self.tape.tensor(name, size, kind="kv_cache", resident=resident, stays=True)

    # -- parts ---------------------------------------------------------------------------------------------

    def _embed(self, ids: Tensor) -> Tensor:
        tape = self.tape
        tape.layer = "embedding"
        x = tape.tensor("embedded", (ids.shape[0], self.shape.hidden))
        tape.run("Gather", [ids, self.table], [x], traffic=2 * x.bytes, shown=[self.table, ids])
        return x

    def _queries(self, x: Tensor, w: Weights, *, cached: bool) -> tuple[Tensor, Tensor]:
        """Queries, and the new keys and values; `cached`: their storage itself belongs to the cache."""
        tape, shape, rows = self.tape, self.shape, x.shape[0]
        h = self._norm(x, w["norm1"], "norm1")
        qkv = self._product(h, w["qkv"], "qkv")
        q = tape.tensor("q", (rows, shape.heads * shape.head_dim))
        new = tape.tensor(
            "kv", (rows, 2 * shape.kv_heads * shape.head_dim), kind="kv_cache" if cached else "activation"
        )
        tape.run("RotarySplit", [qkv, self.angles], [q, new])
        return q, new

    def _attend(self, q: Tensor, cache: list[Tensor], pairs: float) -> Tensor:
        """`pairs`: of a query with a key, summed over the rows."""
        mixed = self.tape.tensor("attn", q.shape)
        flops = 4.0 * pairs * q.shape[1]
        self.tape.run("FlashAttention", [q, *cache], [mixed], flops=flops, workspace=4 * q.bytes, attention=True)
        return mixed

    def _attended(self, x: Tensor, mixed: Tensor, w: Weights) -> Tensor:
        return self._add(x, self._product(mixed, w["out"], "attn_out"), "attn_residual")

    def _feed_forward(self, x: Tensor, w: Weights) -> Tensor:
        both = self._product(self._norm(x, w["norm2"], "norm2"), w["gate_up"], "gate_up")
        h = self.tape.tensor("gated", (both.shape[0], both.shape[1] // 2))
        self.tape.run("SwiGlu", [both], [h])
        return self._add(x, self._product(h, w["down"], "down"), "residual")

    def _mixture(self, x: Tensor, w: Weights, experts: list[tuple[float, Tensor, Tensor]], recipe: Decode) -> Tensor:
        """The experts that this token asks for, drawn by popularity, each one kernel; then their weighted sum."""
        tape = self.tape
        h = self._norm(x, w["norm2"], "norm2")
        scores = self._product(h, w["router"], "router")
        gates = tape.tensor("gates", scores.shape, "float32")
        tape.run("TopKGating", [scores], [gates])
        # Weighted, without repetition: the largest of random numbers raised to 1 / weight.
        order = sorted(experts, key=lambda expert: tape.random.random() ** (1 / expert[0]), reverse=True)
        done = []
        for _, up, down in order[: recipe.active]:
            done.append(tape.tensor("expert_out", x.shape))
            flops = 2.0 * x.shape[0] * (up.shape[0] * up.shape[1] + down.shape[0] * down.shape[1])
            tape.run("ExpertMlp", [h, up, down], [done[-1]], flops=flops, workspace=2 * x.shape[0] * up.shape[1])
        y = tape.tensor("moe", x.shape)
        tape.run("WeightedSum", [gates, *done], [y])
        return self._add(x, y, "residual")

    def _last_rows(self, x: Tensor) -> Tensor:
        self.tape.layer = "head"
        last = self.tape.tensor("last", (1, x.shape[1]))
        self.tape.run("Slice", [x], [last], traffic=2 * last.bytes)
        return last

    def _sample(self, x: Tensor) -> Tensor:
        tape = self.tape
        tape.layer = "head"
        logits = self._product(self._norm(x, self.norm, "final_norm"), self.head, "logits", transposed=True)
        wide = tape.tensor("logits.fp32", logits.shape, "float32")
        ids = tape.tensor("sampled", (x.shape[0],), "int32")
        tape.run("Cast", [logits], [wide])
        tape.run("Sample", [wide], [ids], recomputable=False)
        return ids

    def _norm(self, x: Tensor, weight: Tensor, name: str) -> Tensor:
        y = self.tape.tensor(name, x.shape)
        self.tape.run("RmsNorm", [x, weight], [y])
        return y

    def _add(self, a: Tensor, b: Tensor, name: str) -> Tensor:
        y = self.tape.tensor(name, a.shape)
        self.tape.run("Add", [a, b], [y])
        return y

    def _product(self, x: Tensor, weight: Tensor, name: str, *, transposed: bool = False) -> Tensor:
        inner, outer = weight.shape[::-1] if transposed else weight.shape
        y = self.tape.tensor(name, (x.shape[0], outer))
        flops = 2.0 * x.shape[0] * inner * outer
        self.tape.run("MatMul", [x, weight], [y], flops=flops, workspace=min(2**24, 4 * x.shape[0] * outer))
        return y
