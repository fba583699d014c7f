"""Published model shapes: what decides the sizes in a trace. Lengths are in elements.

Norms of queries, keys and latents are left out, except that of DeepSeek's queries: they are some hundred weights.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: queries and keys/values pass through narrow latents."""

    query_rank: int
    key_value_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `count` routed experts of inner width `ffn`, of which `top_k` serve each token.

    `shared`: experts that serve every token; the first `dense_layers` layers have an ordinary feed-forward block.
    """

    count: int
    top_k: int
    ffn: int
    shared: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer. `ffn`: inner width of its dense feed-forward blocks (0: it has none)."""

    name: str
    source: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = False
    latent: LatentAttention | None = None
    experts: Experts | None = None


LLAMA3_8B = ModelShape(
    name="Llama-3-8B",
    source="The Llama 3 Herd of Models, arXiv 2407.21783, table 3",
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    vocab=128_256,
)
"""The Llama 3 Herd of Models, arXiv 2407.21783, table 3; vocabulary: its published config.json."""

QWEN3_0_6B = ModelShape(
    name="Qwen3-0.6B",
    source="Qwen3 Technical Report, arXiv 2505.09388, table 1; config.json",
    hidden=1024,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    ffn=3072,
    vocab=151_936,
    tied=True,
)
"""Qwen3 Technical Report, arXiv 2505.09388, table 1; widths and vocabulary: its published config.json."""

QWEN3_30B_A3B = ModelShape(
    name="Qwen3-30B-A3B",
    source="Qwen3 Technical Report, arXiv 2505.09388, table 2; config.json",
    hidden=2048,
    layers=48,
    heads=32,
    kv_heads=4,
    head_dim=128,
    ffn=0,
    vocab=151_936,
    experts=Experts(count=128, top_k=8, ffn=768),
)
"""Qwen3 Technical Report, arXiv 2505.09388, table 2; widths and vocabulary: its published config.json."""

DEEPSEEK_V3 = ModelShape(
    name="DeepSeek-V3",
    source="DeepSeek-V3 Technical Report, arXiv 2412.19437, section 4.2; config.json",
    hidden=7168,
    layers=61,
    heads=128,
    kv_heads=128,
    head_dim=128,
    ffn=18432,
    vocab=129_280,
    latent=LatentAttention(query_rank=1536, key_value_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    experts=Experts(count=256, top_k=8, ffn=2048, shared=1, dense_layers=3),
)
"""DeepSeek-V3 Technical Report, arXiv 2412.19437, section 4.2; vocabulary and dense width: its config.json."""
