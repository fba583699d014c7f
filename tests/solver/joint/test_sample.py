"""A sample cut into layers: what belongs to which, and what passes between them."""

from __future__ import annotations

import msgspec
import pytest

from hyperopt.documents import DocumentError
from hyperopt.testing.blocks import Parallel
from solver.joint.sample import HEAD, TAIL, cut
from tests.solver.joint.samples import mixed, sample


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


def test_without_a_backward_pass_there_is_no_sample() -> None:
    profile = sample(layers=2)
    forward = tuple(o for o in profile.operators if o.phase == "forward")
    with pytest.raises(DocumentError, match="backward"):
        cut(msgspec.structs.replace(profile, operators=forward), [("layer0", 2)])
