"""Graph mode on a real MindSpore: capture, apply, measure again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import mindspore as ms
import pytest
from msgspec import structs

import profiler
from hyperopt.mesh import Level, Mesh
from hyperopt.plan import Action, Budget, Plan, Residency, Sharding, Stage
from hyperopt.profile import IDLE, Profile
from hyperopt.replay import replay
from profiler.apply import graph
from profiler.apply.capability import PlanIgnored, PlanRefused
from profiler.apply.structure import structure_of_profile
from profiler.capture.graph import capture_graph
from profiler.capture.recording import CaptureError
from profiler.peaks import excluded_bytes
from tests.profiler.graph_mode import SMALL, graph_mode, losses, model, recompute_plan

HALVES = Sharding(mesh=Mesh(shape=(2,), axes=("x",), levels=(Level(bytes_per_s=1e9),)))
"""A sharding that says nothing but that there are two devices."""

CAPTURE_RUNS = 1 + 2 + 2 * 3
"""Calls of the step in a capture of 3 steps."""


@pytest.fixture(autouse=True)
def in_graph_mode() -> Iterator[None]:
    with graph_mode():
        yield


def captured() -> Profile:
    net, step, args = model()
    return profiler.capture(step, *args, net=net, mode="graph", steps=3)


@pytest.fixture(scope="module")
def profile() -> Profile:
    with graph_mode():
        return captured()


def measured_peak(profile: Profile) -> int:
    """The measured peak with all that the record leaves out."""
    assert profile.measured is not None
    return profile.measured.peak_bytes + excluded_bytes(profile)


def test_replay_meets_the_measured_peak_and_step(profile: Profile) -> None:
    assert profile.measured is not None
    timeline = replay(profile)
    assert timeline.peak_bytes == pytest.approx(measured_peak(profile), rel=0.01)
    assert timeline.step_us == pytest.approx(profile.measured.step_us, rel=0.01)


def test_every_operator_is_joined_and_has_its_layer(profile: Profile) -> None:
    assert not [note for note in profile.run.notes if note.startswith("not joined")]
    forward = [sum(o.layer == f"blocks.{i}" and o.phase == "forward" for o in profile.operators) for i in (0, 1)]
    backward = [sum(o.layer == f"blocks.{i}" and o.phase == "backward" for o in profile.operators) for i in (0, 1)]
    assert forward[0] == forward[1] > 0
    assert backward[0] == backward[1] > 0
    assert all(o.shapes and len(o.shapes) == len(o.dtypes) for o in profile.operators if o.type == "MatMul")


def test_storages_have_their_kinds(profile: Profile) -> None:
    net, _, _ = model()
    sizes = {s.name: s.bytes for s in profile.storages if s.kind == "parameter"}
    assert sizes == {p.name: p.nbytes for p in net.get_parameters()}
    states = {s.name for s in profile.storages if s.kind == "optimizer_state"}
    assert "adam_mean.embedding" in states
    update = next(o for o in profile.operators if o.type == "AdamWeightDecay")
    assert {profile.by_id[id].kind for id in update.writes} == {"parameter", "optimizer_state"}
    assert not update.recomputable
    assert not any(s.offloadable for s in profile.storages)


def test_two_captures_describe_one_program(profile: Profile) -> None:
    assert structure_of_profile(captured()) == structure_of_profile(profile)


def test_idle_time_stands_at_fixed_places(profile: Profile) -> None:
    places = [i for i, o in enumerate(profile.operators) if o.type == IDLE]
    if any("no idle time inserted" in note for note in profile.run.notes):  # a busy machine: kernels took the step
        assert not places
        return
    assert places[-1] == len(profile.operators) - 1
    assert places[:-1] == [32 + 33 * i for i in range(len(places) - 1)]


def test_capture_says_what_it_needs() -> None:
    net, step, args = model()
    with pytest.raises(ValueError, match="at least 3"):
        capture_graph(step, *args, net=net, steps=2)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with pytest.raises(CaptureError, match="graph mode"):
        capture_graph(step, *args, net=net)


def test_recompute_lowers_the_peak_as_predicted_and_changes_no_loss(profile: Profile) -> None:
    _, step, _ = model()
    expected = losses(step)
    plan = recompute_plan(profile, "blocks.0", "blocks.1")
    net, step, args = model()
    with profiler.apply(net, profile, plan, step, args) as log:
        assert losses(step) == expected
        after = profiler.capture(step, *args, net=net, mode="graph", steps=3)
    assert measured_peak(after) < 0.8 * measured_peak(profile)
    assert replay(profile, plan).peak_bytes == pytest.approx(measured_peak(after), rel=0.1)
    assert replay(after).peak_bytes == pytest.approx(measured_peak(after), rel=0.01)
    assert sorted(log.recomputed) == ["blocks.0", "blocks.1"]
    each = len(plan.residency.actions) + len(plan.residency.recompute)
    assert log.steps == 5 + CAPTURE_RUNS and len(log.actions) == log.steps * each
    assert not log.not_carried_out
    assert all("54 run again, 12 run once" in note and "all it drops is dropped" in note for note in log.notes[:2])


def test_nothing_is_said_to_be_done_before_a_step_has_run(profile: Profile) -> None:
    net, step, args = model()
    with profiler.apply(net, profile, recompute_plan(profile, "blocks.1"), step, args) as log:
        assert (log.steps, log.actions) == (0, [])
        step(*args)
        assert log.steps == 1 and log.actions and not log.not_carried_out
    step(*args)
    assert log.steps == 1


def test_what_the_compiler_keeps_is_not_said_to_be_dropped(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that runs only a part of the layer again."""
    net, step, args = model()
    whole = graph._recomputed
    monkeypatch.setattr(graph, "_recomputed", lambda cell: whole(cell.feed))
    plan = recompute_plan(profile, "blocks.0")
    with profiler.apply(net, profile, plan, step, args) as log:
        step(*args)
    missed = {action.kind for action in log.not_carried_out}
    assert missed == {"release", "recompute"} and log.recomputed == []
    assert 0 < len(log.not_carried_out) < len(log.actions)
    assert "NOT dropped" in log.notes[0]


def test_a_compiler_that_recomputes_nothing_is_found_out(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    net, step, args = model()
    monkeypatch.setattr(graph, "_recomputed", lambda _: contextlib.nullcontext())
    with (
        pytest.raises(PlanIgnored, match="recomputes nothing"),
        profiler.apply(net, profile, recompute_plan(profile, "blocks.0"), step, args),
    ):
        pass


@pytest.mark.parametrize("code", ["wrong-side", "copy-in-without-copy", "out-of-memory"])
def test_a_plan_that_breaks_a_rule_is_refused_with_its_code(profile: Profile, code: str) -> None:
    net, step, args = model()
    plan = recompute_plan(profile, "blocks.0")
    kept = plan.residency
    extra = {
        "wrong-side": [Action(op=3, when="after", kind="copy_in", storage=0)],
        "copy-in-without-copy": [Action(op=3, when="before", kind="copy_in", storage=0)],
        "out-of-memory": [],
    }[code]
    residency = structs.replace(kept, actions=(*kept.actions, *extra))
    budget = Budget(hbm_bytes=1000 if code == "out-of-memory" else None)
    plan = structs.replace(plan, residency=residency, budget=budget)
    with pytest.raises(PlanRefused, match=code), profiler.apply(net, profile, plan, step, args):
        pass


def test_leaving_the_context_gives_the_network_back(profile: Profile) -> None:
    net, step, args = model()
    with profiler.apply(net, profile, recompute_plan(profile, "blocks.1"), step, args):
        pass
    after = profiler.capture(step, *args, net=net, mode="graph", steps=3)
    assert structure_of_profile(after) == structure_of_profile(profile)


def test_everything_that_graph_mode_cannot_do_is_refused_at_once(profile: Profile) -> None:
    net, step, args = model()
    part = recompute_plan(profile, "blocks.0").residency
    activation = next(s for s in profile.storages if s.kind == "activation")
    residency = Residency(
        initial={0: "host"},
        actions=(
            *part.actions[:-1],
            Action(op=1, when="after", kind="copy_out", storage=activation.id, tier="host"),
            Action(op=2, when="before", kind="copy_in", storage=activation.id),
            Action(op=3, when="after", kind="release", storage=1),
        ),
        recompute=part.recompute,
    )
    plan = Plan(profile_digest=profile.digest, residency=residency, sharding=HALVES, stages=(Stage(),))
    with pytest.raises(PlanRefused) as refusal, profiler.apply(net, profile, plan, step, args):
        pass
    said = "\n".join(refusal.value.reasons)
    name = profile.by_id[0].name
    for part_of_it in ("sharding", "stages", f"({name}) starts in", "copy_out of", "copy_in of", "no recompute"):
        assert part_of_it in said
    assert "'blocks.0' in parts" in said or len(part.actions) == 1
    assert not any(cell._has_config_recompute for _, cell in net.cells_and_names())


def test_a_plan_for_another_profile_is_refused(profile: Profile) -> None:
    net, step, args = model()
    plan = structs.replace(recompute_plan(profile, "blocks.0"), program_digest="sha256:other")
    with pytest.raises(PlanRefused, match="sha256:other"), profiler.apply(net, profile, plan, step, args):
        pass


def test_a_changed_model_is_refused_with_the_differences(profile: Profile) -> None:
    net, step, args = model(replace(SMALL, layers=3))
    plan = recompute_plan(profile, "blocks.0")
    with (
        pytest.raises(PlanRefused, match=r"blocks.2.feed.up.weight is new"),
        profiler.apply(net, profile, plan, step, args),
    ):
        pass
    net, step, args = model(replace(SMALL, batch=2))
    with (
        pytest.raises(PlanRefused, match=r"input ids: was 512 bytes; is 256 bytes"),
        profiler.apply(net, profile, plan, step, args),
    ):
        pass


def test_the_modes_are_told_apart() -> None:
    net, step, args = model()
    with pytest.raises(ValueError, match="neither"):
        profiler.capture(step, *args, net=net, mode="eager")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be applied"):
        profiler.apply(net, Profile(operators=(), storages=()), Plan())


class Layer(ms.nn.Cell):  # type: ignore[misc]
    """A layer of MindSpore's own parts, whose backward is fused."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = ms.nn.LayerNorm((16,))
        self.up = ms.nn.Dense(16, 64)
        self.down = ms.nn.Dense(64, 16)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return x + self.down(ms.ops.gelu(self.up(self.norm(x))))


class Network(ms.nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embedding = ms.nn.Embedding(64, 16)
        self.layers = ms.nn.CellList([Layer() for _ in range(2)])
        self.out = ms.nn.Dense(16, 64)

    def construct(self, ids: ms.Tensor, targets: ms.Tensor) -> ms.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return ms.ops.cross_entropy(self.out(x).reshape(-1, 64), targets.reshape(-1))


class Training(ms.nn.Cell):  # type: ignore[misc]
    def __init__(self, network: Network) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = ms.nn.Adam(network.trainable_params(), 1e-3)
        self.gradient = ms.value_and_grad(network, None, self.optimizer.parameters)

    def construct(self, ids: ms.Tensor, targets: ms.Tensor) -> ms.Tensor:
        loss, gradients = self.gradient(ids, targets)
        return ms.ops.depend(loss, self.optimizer(gradients))


def test_a_model_of_mindspores_own_layers_is_captured_as_exactly() -> None:
    network = Network()
    ids = ms.Tensor([[1, 2, 3, 4] * 16] * 8, ms.int32)
    found = capture_graph(Training(network), ids, ids, net=network, steps=3)
    assert replay(found).peak_bytes == pytest.approx(measured_peak(found), rel=0.01)
    assert not [note for note in found.run.notes if note.startswith("not joined")]
    forward = [sum(o.layer == f"layers.{i}" and o.phase == "forward" for o in found.operators) for i in (0, 1)]
    assert forward[0] == forward[1] > 0
