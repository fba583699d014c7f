"""Samples for tests: short models of the trace generator, one micro-batch."""

from __future__ import annotations

from dataclasses import replace

from hyperopt.profile import Device, Links, Profile
from hyperopt.testing.accelerator import ASCEND_910C_DIE, GIB
from hyperopt.testing.blocks import Parallel
from hyperopt.testing.shapes import DEEPSEEK_V3, LLAMA3_8B, ModelShape
from hyperopt.testing.training import Training

SMALL_LLAMA = replace(LLAMA3_8B, hidden=1024, heads=8, kv_heads=2, ffn=3584, vocab=16_000)


def sample(
    shape: ModelShape = SMALL_LLAMA, layers: int = 3, parallel: Parallel | None = None, hbm: int = GIB
) -> Profile:
    """One micro-batch of a model with so few layers, forward, backward and optimizer."""
    recipe = Training(shape, layers, micro_batches=1, tokens=2048, parallel=parallel or Parallel(), loss_chunks=2)
    operators, storages = recipe.build(ASCEND_910C_DIE, layers, 1, "joint").finish()
    links = Links(d2h_bytes_per_s=20 * 10**9, h2d_bytes_per_s=55 * 10**9, latency_us=10.0)
    device = Device(name="made up", hbm_bytes=hbm, base_bytes=2**20, host_bytes=64 * GIB, links=links)
    return Profile(operators=operators, storages=storages, device=device)


def mixed(parallel: Parallel | None = None) -> Profile:
    """Two dense layers and two with experts."""
    return sample(DEEPSEEK_V3, 4, parallel, 64 * GIB)
