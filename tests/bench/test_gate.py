"""The benchmark's rule for all trials at once is the gate's own."""

from __future__ import annotations

import numpy as np
import pytest

from bench.gate import NOISES, in_turns, ours, simulated
from hyperopt.gate import Metric, Samples, check_samples


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("n", [10, 20])
def test_the_vectorised_rule_says_what_the_gate_says(name: str, n: int) -> None:
    for slower in (1.05, 1.07, 1.1):
        draw = simulated(NOISES[name], np.random.default_rng(n), 25, n, slower)
        for before, after, alarm in zip(draw.before, draw.after, ours(draw), strict=True):
            baseline, candidate = (tuple((float(value),) for value in side) for side in (before, after))
            metric = Metric(name="step", baseline=baseline, candidate=candidate)
            found = check_samples(Samples(design="interleaved", warmup_steps=0, metrics=(metric,)))
            assert (found.verdict == "regression") == alarm


def test_the_order_is_a_b_b_a_and_its_mirror_image() -> None:
    before, after = in_turns(np.arange(8.0)[None, :])
    assert before.tolist() == [[0, 3, 5, 6]] and after.tolist() == [[1, 2, 4, 7]]
    before, after = in_turns(np.arange(8.0)[None, :], mirrored=False)
    assert before.tolist() == [[0, 3, 4, 7]] and after.tolist() == [[1, 2, 5, 6]]
