"""The demonstration's model and data."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest

from profiler.demo.model import Config
from profiler.demo.text import batches, corpus
from tests.profiler.graph_mode import SMALL, graph_mode, losses, model


def test_batches_repeat_with_their_seed_and_targets_are_the_next_bytes() -> None:
    first, second = batches(3, 16, seed=5), batches(3, 16, seed=5)
    ids, targets = next(first)
    again, _ = next(second)
    assert np.array_equal(ids, again)
    assert ids.shape == targets.shape == (3, 16)
    assert np.array_equal(ids[:, 1:], targets[:, :-1])
    assert corpus().max() < 256


def test_a_sequence_longer_than_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        next(batches(1, 1_000_000))


def test_heads_must_divide_the_width_into_even_sizes() -> None:
    with pytest.raises(ValueError, match="heads"):
        Config(width=30, heads=2)


def test_both_modes_give_the_same_losses_and_learn() -> None:
    with graph_mode():
        net, step, _ = model()
        graph = losses(step)
        assert {"blocks.0", "blocks.1"} <= {name for name, _ in net.cells_and_names()}
        ms.set_context(mode=ms.PYNATIVE_MODE)
        _, step, _ = model()
        eager = losses(step)
    assert graph == pytest.approx(eager, rel=1e-6)
    assert graph[-1] < graph[0]
    assert SMALL.layers == 2
