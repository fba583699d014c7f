"""Levels of a layer, as the residency solver prices them."""

from __future__ import annotations

from hyperopt.plan import Plan
from hyperopt.replay import replay
from hyperopt.testing.blocks import Parallel
from hyperopt.validate import validate
from solver.joint.draft import drafted
from solver.joint.levels import layer_cost
from solver.joint.sample import cut
from solver.joint.stage import Exchange, stage_step
from solver.stages.schedule import orders
from tests.solver.joint.samples import mixed, sample


def test_less_is_kept_for_more_time_and_never_more_than_the_whole_forward_pass() -> None:
    made = cut(sample(layers=2), [("layer0", 4)])
    cost = layer_cost(made, made.layers["layer0"], 5.0, 0)
    steps = [level for level in cost.levels if not level.moved]
    kept, extra = [level.kept for level in steps], [level.extra_ns for level in steps]
    assert len(steps) > 2
    assert kept == sorted(kept, reverse=True) and extra == sorted(extra)
    assert extra[0] == 0 and extra[-1] <= cost.forward_ns
    by_id = made.profile.by_id
    assert kept[-1] >= sum(by_id[s].bytes for s in made.layers["layer0"].enters)  # it is made elsewhere
    assert all(0 < level.moved <= level.kept for level in cost.levels if level.moved)


def test_what_is_kept_is_what_backward_reads_of_forward() -> None:
    profile = mixed(Parallel(tensor=4, data=4, experts=16))
    made = cut(profile, [("layer0", 3), ("layer2", 58)])
    for part in made.layers.values():
        read = {s for i in part.backward for s in profile.operators[i].reads}
        forward = {s for i in part.forward for s in profile.operators[i].writes} | {*part.enters}
        kept = sum(profile.by_id[s].bytes for s in read & forward)
        assert layer_cost(made, part, None, 0).levels[0].kept == kept


def test_times_are_those_of_the_sample() -> None:
    profile = sample(layers=2)
    made = cut(profile, [("layer0", 4)])
    part = made.layers["layer0"]
    cost = layer_cost(made, part, None, 0)
    forward = sum(round(made.profile.operators[i].duration_us * 1000) for i in part.forward)
    assert cost.forward_ns == cost.compute_ns[0] == forward  # one stream: nothing overlaps
    assert cost.states == 6 * sum(  # master copy and two moments in fp32, of bfloat16 weights
        s.bytes for s in profile.storages if s.kind == "parameter" and made.owner.get(s.id) == part.name
    )


def test_a_stage_with_every_layer_at_one_level_holds_what_the_level_says() -> None:
    """The level's plan, drafted for all layers and micro-batches, is legal and saves what it is said to save."""
    made = cut(sample(layers=2, parallel=Parallel(data=8)), [("layer0", 4)])
    part = made.layers["layer0"]
    order = orders("1f1b", 4, 1, 6)[0]  # four micro-batches in flight
    step = stage_step(made, ["layer0"] * 2, order, Exchange(50e9, 10.0), first=True, last=False)
    unplanned = replay(step.profile)
    for level in layer_cost(made, part, 5.0, 0).levels[1:]:
        plan = Plan(residency=drafted(step, [made.head, part, part], [None, level, level], states_out=False))
        assert not validate(step.profile, plan)
        timeline = replay(step.profile, plan)
        if not level.moved:  # how soon a copy has left depends on the link
            whole = layer_cost(made, part, None, 0).levels[0].kept
            assert unplanned.peak_bytes - timeline.peak_bytes >= 0.5 * 4 * 2 * (whole - level.kept)
            assert timeline.recompute_ns <= 6 * 2 * level.extra_ns * 1.01 + 1000
