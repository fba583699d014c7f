"""Stages put together from a sample."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperopt.plan import EMPTY
from hyperopt.profile import check
from hyperopt.replay import replay
from hyperopt.testing.blocks import Parallel
from hyperopt.validate import validate
from solver.joint.sample import cut
from solver.joint.stage import EXCHANGE, Exchange, stage_step
from solver.stages.schedule import orders
from tests.solver.joint.samples import mixed, sample

LINK = Exchange(50e9, 10.0)


@pytest.mark.parametrize("parallel", [Parallel(), Parallel(tensor=4, data=4)])
def test_the_sample_itself_comes_back(parallel: Parallel) -> None:
    """All its layers on one stage, one micro-batch: the same work, the same time, the same memory."""
    profile = sample(layers=3, parallel=parallel)
    made = cut(profile, [("layer0", 3)])
    step = stage_step(made, ["layer0"] * 3, orders("1f1b", 1, 1, 1)[0], LINK, first=True, last=True)
    ours, theirs = replay(step.profile), replay(profile)
    # The last layer is a copy of the others, with a sum of two gradients that it did not have.
    assert ours.step_ns == pytest.approx(theirs.step_ns, rel=0.02)
    assert ours.peak_bytes == pytest.approx(theirs.peak_bytes, rel=0.02)
    assert 0 <= len(step.profile.operators) - len(profile.operators) <= 1


@settings(max_examples=25, deadline=None)
@given(
    stages=st.integers(1, 4),
    micro_batches=st.integers(1, 6),
    layers=st.integers(1, 3),
    data=st.sampled_from([1, 4]),
    waits=st.booleans(),
)
def test_every_stage_is_a_profile_that_runs(
    stages: int, micro_batches: int, layers: int, data: int, waits: bool
) -> None:
    made = cut(sample(layers=2, parallel=Parallel(data=data)), [("layer0", 4)])
    for s, order in enumerate(orders("1f1b", stages, 1, micro_batches)):
        waited = dict.fromkeys(range(1, len(order), 2), 100.0) if waits else None
        step = stage_step(made, ["layer0"] * layers, order, LINK, first=s == 0, last=s == stages - 1, waits_us=waited)
        check(step.profile)
        assert not validate(step.profile, EMPTY)
        part = made.layers["layer0"]
        each = layers * (len(part.forward) + len([i for i in part.backward if i not in made.closing]))
        ran = [t for t, o in zip(step.task, step.profile.operators, strict=True) if o.layer == "layer0" and t >= 0]
        closing = layers * len([i for i in part.backward if i in made.closing])
        assert len(ran) == each * micro_batches + closing
        assert (EXCHANGE in {o.stream for o in step.profile.operators}) == (stages > 1)


def test_activations_in_flight_are_what_the_schedule_says() -> None:
    made = cut(mixed(Parallel(tensor=4, data=4, experts=16)), [("layer0", 3), ("layer2", 58)])
    peaks = []
    for order in orders("1f1b", 4, 1, 8):
        step = stage_step(made, ["layer2"] * 2, order, LINK, first=False, last=False)
        peaks.append(replay(step.profile).peak_bytes)
    each = [a - b for a, b in itertools.pairwise(peaks)]
    assert min(each) > 0 and max(each) <= 1.2 * min(each)


def test_gradients_are_added_up_in_place() -> None:
    made = cut(sample(layers=2), [("layer0", 2)])
    step = stage_step(made, ["layer0"], orders("1f1b", 1, 1, 3)[0], LINK, first=True, last=True)
    gradients = {s.id for s in step.profile.storages if s.kind == "gradient"}
    adds = [o for o in step.profile.operators if o.phase == "backward" and gradients & {*o.writes}]
    assert {o.micro_batch for o in adds if not gradients & {*o.reads}} <= {0}
    assert all(gradients & {*o.reads} for o in adds if o.micro_batch)
