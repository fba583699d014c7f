"""From a dump and its executions to operators and storages, by hand on a network of two layers."""

from __future__ import annotations

import pytest

from hyperopt.profile import IDLE, Profile, check
from hyperopt.replay import replay
from profiler.capture.anatomy import Anatomy, stable_names
from profiler.capture.assembly import Assembled, assemble, launches
from profiler.read.mindspore.actors import read_actor_set
from profiler.read.mindspore.cpu_profiler import Execution
from tests.profiler.actor_text import TWO_LAYERS, K, two_layers

ANATOMY = Anatomy(
    frozenset({"", "layers", "layers.0", "layers.1"}),
    frozenset({"layers"}),
    {"layers.0.weight": "layers.0", "layers.1.weight": "layers.1"},
)
GRAPH = read_actor_set(two_layers())
LAUNCHED = [kernel.name for kernel in TWO_LAYERS if kernel.launched]


def runs(orders: list[list[str]]) -> dict[str, list[Execution]]:
    """Executions of 10 us each, 1 us apart, a step a millisecond."""
    found: dict[str, list[Execution]] = {}
    for step, order in enumerate(orders):
        for place, name in enumerate(order):
            start = step * 1_000_000 + place * 11_000
            found.setdefault(name, []).append(Execution(start, start + 10_000))
    return found


def assembled(step_us: float = 200.0) -> Assembled:
    trainable = frozenset({"layers.0.weight", "layers.1.weight"})
    return assemble(GRAPH, launches(GRAPH, runs([LAUNCHED] * 3), 3), {}, ANATOMY, trainable, step_us, 3)


def by_name() -> dict[str, tuple[str, str]]:
    return {o.name: (o.layer, o.phase) for o in assembled().operators}


def test_the_flow_of_data_corrects_scopes_that_lie() -> None:
    places = by_name()
    scope = "Default/net-Net/layers-CellList/0-Layer"
    assert places[f"{scope}/Exp-op0"] == ("layers.0", "forward")
    assert places[f"{scope}/Exp-op1"] == ("layers.1", "forward")
    assert places[f"{scope}/Add-op0"] == ("layers.0", "forward")
    assert places["Expand/MatMul-op1"] == ("layers.1", "forward")


def test_backward_and_optimizer_are_told_apart() -> None:
    places = by_name()
    assert places["Expand/MatMul-op3"] == ("layers.0", "backward")
    assert places["Expand/MatMul-op2"] == ("layers.1", "backward")
    assert places["Default/optimizer-Adam/Adam-op1"] == ("layers.1", "optimizer")


def test_views_join_their_storage_and_unread_outputs_are_workspace() -> None:
    result = assembled()
    named = {o.name: o for o in result.operators}
    assert not any("Reshape" in name for name in named)
    matmul = named["Expand/MatMul-op0"]
    exp = named["Default/net-Net/layers-CellList/0-Layer/Exp-op0"]
    assert exp.reads == matmul.writes
    assert exp.workspace_bytes == 16
    adam = named["Default/optimizer-Adam/Adam-op0"]
    assert adam.workspace_bytes == 600
    assert {result.storages[id].name for id in adam.writes} == {"layers.0.weight", "mean.0"}
    assert set(adam.writes) < set(adam.reads)


def test_kinds() -> None:
    kinds = {s.name: s.kind for s in assembled().storages}
    assert kinds["layers.0.weight"] == "parameter"
    assert kinds["mean.1"] == "optimizer_state"
    assert kinds["x"] == "input"
    assert kinds["Expand/MatMul-op0:0"] == "activation"
    assert kinds["Expand/MatMul-op3:0"] == "gradient"
    assert not any(name.startswith("Default/data") for name in kinds)


def test_replay_gives_the_measured_step_and_the_peak_by_hand() -> None:
    result = assembled(step_us=200.0)
    profile = Profile(operators=result.operators, storages=result.storages)
    check(profile)
    timeline = replay(profile)
    assert timeline.step_us == pytest.approx(200.0, abs=0.01)
    # Resident: 4 x 300 of parameters and states, the input 64. At the first Adam: both gradients 2 x 300, the
    # loss 4, and its own outputs, which nobody reads, 2 x 300.
    assert timeline.peak_bytes == 1264 + 600 + 4 + 600


def test_idle_time_is_never_negative_and_its_lack_is_said() -> None:
    short = assembled(step_us=100.0)
    assert not any(o.type == IDLE for o in short.operators)
    assert sum(o.duration_us for o in short.operators) == pytest.approx(100.0)
    assert any("exceed the plain step: scaled" in note for note in short.notes)


def test_the_order_is_that_of_the_step_nearest_to_the_others() -> None:
    swapped = [LAUNCHED[1], LAUNCHED[0], *LAUNCHED[2:]]
    found = launches(GRAPH, runs([swapped, LAUNCHED, LAUNCHED]), 3)
    assert [kernel.name for kernel in found.order] == LAUNCHED
    assert found.other_orders == 1


def test_what_cannot_be_joined_is_named() -> None:
    executions = runs([LAUNCHED] * 3)
    executions["Default/Stranger-op0"] = executions.pop("Default/net-Net/ReduceMean-op0")
    found = launches(GRAPH, executions, 3)
    assert found.unjoined == ("Default/Stranger-op0", "Default/net-Net/ReduceMean-op0")


def test_second_runs_are_backward_although_they_carry_the_scope_of_the_first() -> None:
    layer = "recompute_Default/net-Net/layers-CellList/0-Layer"
    again = [
        K(f"{layer}/Mul-op9", ["@x"], [100], after=["Expand/MatMul-op2"]),
        K("Expand/MatMul-op9", [f"{layer}/Mul-op9:0", "layers.0.weight"], [200]),
        K("Gradients/Default/net-Net/Grad_Exp/Mul-op9", ["Expand/MatMul-op9:0"], [200]),
    ]
    kernels = [*TWO_LAYERS[:12], *again, *TWO_LAYERS[12:]]
    graph = read_actor_set(two_layers(kernels))
    order = [kernel.name for kernel in kernels if kernel.launched]
    result = assemble(graph, launches(graph, runs([order] * 3), 3), {}, ANATOMY, frozenset(), 0.0, 3)
    places = {o.name: (o.layer, o.phase) for o in result.operators}
    assert places[f"{layer}/Mul-op0"] == ("layers.0", "backward")
    assert places["Expand/MatMul-op4"] == ("layers.0", "backward")  # renumbered: the fifth of its scope


def test_a_layer_that_only_makes_what_it_hands_on_is_not_recomputable() -> None:
    operators = {o.name: o for o in assembled().operators}
    assert operators["Expand/MatMul-op0"].recomputable
    assert not operators["Expand/MatMul-op3"].recomputable
    kernels = [
        K("Default/net-Net/layers-CellList/0-Layer/MatMul-op0", ["@x", "layers.0.weight"], [8]),
        K("Default/net-Net/Exp-op0", ["Default/net-Net/layers-CellList/0-Layer/MatMul-op0:0"], [8]),
        K("Default/net-Net/ReduceMean-op0", ["Default/net-Net/Exp-op0:0"], [4]),
    ]
    graph = read_actor_set(two_layers(kernels))
    order = [kernel.name for kernel in kernels]
    result = assemble(graph, launches(graph, runs([order] * 3), 3), {}, ANATOMY, frozenset(), 0.0, 3)
    assert not result.operators[0].recomputable


def test_layers_are_outermost_list_elements() -> None:
    anatomy = Anatomy(frozenset({"model.blocks.0.mlp"}), frozenset({"model.blocks", "model.blocks.0.experts"}), {})
    assert anatomy.layer("model.blocks.0.experts.3.up") == "model.blocks.0"
    assert anatomy.layer("model.norm") == "model"
    assert anatomy.layer("") == ""


def test_names_do_not_depend_on_what_was_compiled_before() -> None:
    assert stable_names(["a/Mul-op12", "a/Mul-op7", "b/Mul-op40"]) == {
        "a/Mul-op7": "a/Mul-op0",
        "a/Mul-op12": "a/Mul-op1",
        "b/Mul-op40": "b/Mul-op0",
    }
