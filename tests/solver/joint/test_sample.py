"""A sample cut into layers: what belongs to which, and what passes between them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from hyperopt.documents import DocumentError
from hyperopt.replay import replay
from hyperopt.testing.blocks import Parallel
from solver.joint.levels import layer_cost
from solver.joint.sample import HEAD, TAIL, cut
from solver.joint.stage import Exchange, stage_step
from solver.stages.schedule import orders
from tests.solver.joint.samples import SMALL_LLAMA, mixed, sample

TIED = replace(SMALL_LLAMA, tied=True)


def test_every_operator_of_the_passes_is_in_a_part_or_a_copy() -> None:
    profile = sample(layers=2)
    made = cut(profile, [("layer0", 8)])
    layer = made.layers["layer0"]
    held = [*made.head.forward, *made.head.backward, *made.tail.forward, *made.tail.backward]
    copy = len(layer.forward) + len(layer.backward)  # of the second layer, which is left out
    # The second layer's backward pass has no sum of two gradients: only one comes from the tail.
    passes = sum(o.phase in ("forward", "backward") for o in profile.operators)
    assert passes - len(held) - copy in (copy, copy - 1)
    assert made.types == ("layer0",) * 8


def test_a_hidden_state_passes_forward_and_its_gradient_back() -> None:
    profile = mixed(Parallel(tensor=4, data=4, experts=16))
    made = cut(profile, [("layer0", 3), ("layer2", 58)])
    names = {s.id: s.name for s in profile.storages}
    dense, moe = made.layers["layer0"], made.layers["layer2"]
    assert [names[s] for s in made.head.leaves] == ["embedding.scattered@0"]
    assert [names[s] for s in dense.enters] == ["layer0.residual@0"]  # layer 1 stands for it: layers on both sides
    assert [names[s] for s in moe.enters] == ["layer1.residual@0"]
    assert [names[s] for s in moe.leaves] == ["layer2.residual@0"]
    assert len(moe.back_enters) == len(moe.back_leaves) == 1
    assert not made.tail.leaves and not made.head.enters


def test_gradients_are_what_the_optimizer_gets_and_reductions_close_the_step() -> None:
    profile = sample(layers=2, parallel=Parallel(data=4))
    made = cut(profile, [("layer0", 2)])
    kinds = {s.id: s.kind for s in profile.storages}
    assert {kinds[s] for s in made.gradients} == {"gradient"}
    assert {profile.operators[i].type for i in made.closing} == {"ReduceScatter"}
    assert [profile.operators[i].type for i in made.common] == ["ClipByGlobalNorm"]


def test_a_layer_with_layers_behind_it_stands_for_its_type() -> None:
    made = cut(sample(layers=3), [("layer2", 5)])  # the last one gets its gradient from the tail
    assert made.layers["layer2"].name != "layer2"
    assert {made.head.name, made.tail.name} == {HEAD, TAIL}


def test_operators_without_a_label_go_with_those_before_them() -> None:
    profile = sample(layers=2)
    bare = [msgspec.structs.replace(o, layer="") if o.type == "SwiGlu" else o for o in profile.operators]
    cut_whole = cut(profile, [("layer0", 2)])
    cut_bare = cut(msgspec.structs.replace(profile, operators=tuple(bare)), [("layer0", 2)])
    assert cut_bare.layers["layer0"].forward == cut_whole.layers["layer0"].forward


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([("layer9", 2)], "layer9"),
        ([("layer2", 1), ("layer0", 1)], "another order"),
        ([("layer0", 2), ("layer3", 2)], ""),
    ],
)
def test_names_that_do_not_fit_are_refused(counts: list[tuple[str, int]], told: str) -> None:
    profile = mixed()
    if not told:  # the two types follow each other: nothing is between them
        assert cut(profile, counts).stack == tuple(counts)
        return
    with pytest.raises(DocumentError, match=told):
        cut(profile, counts)


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ([("head", 6)], "'head'"),
        ([("embedding", 6)], "'embedding'"),
        ([("embedding", 6), ("layer1", 6)], "'embedding'"),
        ([("layer0", 2), ("head", 2)], "'head'"),
    ],
)
def test_a_layer_that_cannot_follow_itself_is_refused_by_name(counts: list[tuple[str, int]], named: str) -> None:
    with pytest.raises(DocumentError) as refused:
        cut(sample(layers=3), counts)
    assert named in refused.value.problem
    assert "embedding, layer0, layer1, layer2, head" in refused.value.remedy


def test_a_layer_stands_for_the_mean_of_its_copies() -> None:
    profile = sample(layers=4)
    slow = tuple(
        msgspec.structs.replace(o, duration_us=3 * o.duration_us) if o.layer == "layer1" else o
        for o in profile.operators
    )
    whole = msgspec.structs.replace(profile, operators=slow)
    made = cut(whole, [("layer0", 4)])
    assert made.copies == {"layer0": ("layer0", "layer1", "layer2", "layer3")}
    for phase in ("forward", "backward", "optimizer"):
        parts = [(made.head, 1), (made.layers["layer0"], 4), (made.tail, 1)]
        told = sum(
            n * made.profile.operators[i].duration_us
            for part, n in parts
            for i in {"forward": part.forward, "backward": part.backward, "optimizer": part.optimizer}[phase]
        )
        common = sum(slow[i].duration_us for i in made.common if slow[i].phase == phase)
        assert told + common == pytest.approx(sum(o.duration_us for o in slow if o.phase == phase))


@pytest.mark.parametrize("parallel", [Parallel(), Parallel(data=4)])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_tied_embedding_stands_on_the_first_and_the_last_stage(parallel: Parallel, stages: int) -> None:
    """Every stage has what it reads, both ends sum the table's gradient and update it, and one stage does so once."""
    profile = sample(TIED, layers=3, parallel=parallel)
    made = cut(profile, [("layer0", stages)])
    table = next(s.id for s in profile.storages if s.name == "embedding.table")
    assert table in made.ends and made.tied_gradients
    order = orders("1f1b", stages, 1, 4)
    for s in range(stages):
        first, last = s == 0, s == stages - 1
        step = stage_step(made, ["layer0"], order[s], Exchange(1e9, 1.0), first=first, last=last)
        assert replay(step.profile).step_ns > 0  # nothing is read that is not there
        ops = step.profile.operators
        copies = {id for (one, _, _), id in step.storages.items() if one == table}
        updates = [o for o in ops if o.phase == "optimizer" and copies & {*o.writes}]
        assert len(updates) == (first or last)
        assert sum(o.name.startswith("Tied") for o in ops) == (stages > 1 and (first or last))
    head, tail = (layer_cost(made, part, None, 0) for part in (made.head, made.tail))
    assert head.tied == tail.tied and head.tied[0] > profile.by_id[table].bytes


def test_without_a_backward_pass_there_is_no_sample() -> None:
    profile = sample(layers=2)
    forward = tuple(o for o in profile.operators if o.phase == "forward")
    with pytest.raises(DocumentError, match="backward"):
        cut(msgspec.structs.replace(profile, operators=forward), [("layer0", 2)])
