"""Inference steps: weights only read, a KV cache that grows, experts by popularity."""

from __future__ import annotations

from collections import defaultdict

from hyperopt.testing.accelerator import ASCEND_910C_DIE
from hyperopt.testing.inference import Decode, Prefill
from hyperopt.testing.shapes import LLAMA3_8B, QWEN3_30B_A3B


def test_each_chunk_attends_to_the_blocks_of_its_request() -> None:
    operators, storages = Prefill(LLAMA3_8B, layers=2, chunks=3).build(ASCEND_910C_DIE, 2, 5, "test").finish()
    blocks = {s.id for s in storages if s.kind == "kv_cache"}
    seen = defaultdict(list)
    for o in operators:
        if o.type == "FlashAttention":
            seen[o.layer].append(len(blocks & set(o.reads)))
    assert dict(seen) == {"layer0": [1, 2, 3, 1, 2], "layer1": [1, 2, 3, 1, 2]}
    assert len(blocks) == 2 * 5 and not any(s.resident_at_end for s in storages if s.id in blocks)


def test_weights_are_only_read() -> None:
    for recipe in (Prefill(LLAMA3_8B, layers=2), Decode(LLAMA3_8B, layers=2)):
        operators, storages = recipe.build(ASCEND_910C_DIE, 2, 3, "test").finish()
        weights = {s.id for s in storages if s.kind == "parameter"}
        assert not any(weights & set(o.writes) for o in operators)
        assert all(s.resident_at_start and s.resident_at_end for s in storages if s.id in weights)


def test_each_token_appends_to_every_layer_and_reads_the_whole_cache() -> None:
    recipe = Decode(LLAMA3_8B, layers=2, groups=2)
    operators, storages = recipe.build(ASCEND_910C_DIE, 2, 3, "test").finish()
    cache = {s.id: s for s in storages if s.kind == "kv_cache"}
    appends = [o for o in operators if o.type == "KvAppend"]
    assert len(appends) == 2 * 2 * 3 and not any(o.recomputable for o in appends)
    pages = {o.writes[0] for o in appends}
    assert not any(cache[s].resident_at_start for s in pages) and all(cache[s].resident_at_end for s in pages)
    for o in operators:
        if o.type == "FlashAttention":
            assert len(cache.keys() & set(o.reads)) == 2 and len(pages & set(o.reads)) == 1


def test_a_token_reads_some_experts_and_the_popular_ones_more_often() -> None:
    recipe = Decode(QWEN3_30B_A3B, layers=1, experts=16, active=6)
    operators, storages = recipe.build(ASCEND_910C_DIE, 1, 100, "test").finish()
    experts = {s.id: s for s in storages if s.name.endswith(".gate_up") and "expert" in s.name}
    read = dict.fromkeys(experts, 0)
    for o in operators:
        for s in experts.keys() & set(o.reads):
            read[s] += 1
    assert len(experts) == 16 and sum(read.values()) == 6 * 100
    by_share = sorted(experts.values(), key=lambda s: s.steps_accessed)
    assert sum(read[s.id] for s in by_share[:4]) < sum(read[s.id] for s in by_share[-4:])
    assert by_share[0].steps_accessed < by_share[-1].steps_accessed <= by_share[-1].steps_observed
