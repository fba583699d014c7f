"""The way back: the plan document, MindSpore's strategies and Layouts, HyperParallel's plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from hyperopt import plan as plans
from hyperopt.documents import DocumentError, canonical
from hyperopt.mesh import Level, Mesh
from hyperopt.profile import Operator, Profile, Storage
from hyperopt.testing.graphs import Model, training
from solver.placement import Sharding, shard
from solver.placement.export import (
    hyperparallel_plan,
    layout_arguments,
    mindspore_layouts,
    mindspore_strategy,
    names,
    placements,
    plan_sharding,
)

LEVELS = (Level(devices=4, bytes_per_s=2e11, latency_us=2), Level(bytes_per_s=2.5e10, latency_us=8))
MESH = Mesh(shape=(2, 4), axes=("dp", "tp"), levels=LEVELS, ranks=(0, 1, 2, 3, 4, 5, 6, 7))


@pytest.fixture(scope="module")
def found() -> Sharding:
    model = Model(batch=2, sequence=2048, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000)
    return shard(training(model), MESH, time_limit_s=20)


def test_the_plan_document_holds_it_and_survives(found: Sharding) -> None:
    part = plan_sharding(found)
    plans.check_sharding(part)
    again, warnings = plans.load(canonical(plans.Plan(sharding=part)))
    assert again.sharding == part
    assert not warnings
    labels = names(found.graph)
    assert len(set(labels)) == len(labels)
    for tensor in found.graph.tensors:
        layout = part.layouts[labels[tensor.id]]
        assert layout.shape == tensor.shape
        held = tensor.bytes
        for axes in layout.dims:
            for axis in axes:
                held //= MESH.shape[MESH.axis(axis)]
        assert held == found.bytes_per_device[tensor.id]


def test_strategies_are_what_mindspore_reads(found: Sharding) -> None:
    """Keys and nesting as `StrategyJsonInfo` of MindSpore's sources reads them."""
    document = json.loads(json.dumps(mindspore_strategy(found)))
    assert document["current_stage"] == 0
    forward = {o.name: o for o in found.graph.operators if o.phase == "forward"}
    assert document["parallel_strategy_item"].keys() == forward.keys()
    for name, item in document["parallel_strategy_item"].items():
        assert item["stage"] == 0
        shapes = [found.graph.tensors[t].shape for t in forward[name].inputs]
        assert [len(parts) for parts in item["parallel_strategy"]] == [len(shape) for shape in shapes]
        for parts, shape in zip(item["parallel_strategy"], shapes, strict=True):
            assert all(length % n == 0 for n, length in zip(parts, shape, strict=True))
        layouts = document["parallel_layout_value_item"][name]
        for slot, parts in enumerate(item["parallel_strategy"]):
            layout = layouts[str(slot)]
            assert layout["dev_matrix"] == [2, 4]
            assert layout["alias_name"] == ["dp", "tp"]
            assert layout["interleaved_parallel"] is False
            sizes = list(reversed(layout["dev_matrix"]))
            for n, axes in zip(parts, layout["tensor_map"], strict=True):
                product = 1
                for axis in axes:
                    product *= 1 if axis == -1 else sizes[axis]
                assert product == n


def test_layouts_can_be_built(found: Sharding) -> None:
    from mindspore import parallel

    for name, arguments in mindspore_layouts(found).items():
        made = parallel.Layout(arguments["device_matrix"], arguments["alias_name"], arguments["rank_list"])
        told = made(*arguments["tensor_map"]).to_dict()
        assert told["device_matrix"] == (2, 4), name
        assert told["rank_list"] == list(range(8))


@pytest.mark.parametrize(
    ("layout", "tensor_map", "said"),
    [
        ((0, 1), (1, 0), ["Shard(0)", "Shard(1)"]),
        ((-1, 0), (0, -1), ["Replicate()", "Shard(0)"]),
        ((1, 1), (-1, (1, 0)), ["Shard(1)", "Shard(1)"]),
        ((-1, -1), (-1, -1), ["Replicate()", "Replicate()"]),
    ],
)
def test_mindspore_and_we_mean_the_same(
    layout: tuple[int, ...], tensor_map: tuple[object, ...], said: list[str]
) -> None:
    from mindspore import parallel

    assert placements(layout) == said
    arguments = layout_arguments(layout, 2, MESH)
    made = parallel.Layout(arguments["device_matrix"], arguments["alias_name"])(*arguments["tensor_map"])
    assert made.to_dict()["tensor_map"] == tensor_map


def test_hyperparallel_gets_a_placement_an_axis(found: Sharding) -> None:
    document = hyperparallel_plan(found)
    assert document["mesh"] == {"mesh_shape": [2, 4], "mesh_dim_names": ["dp", "tp"], "rank_list": list(range(8))}
    parameters = [t for t in found.graph.tensors if t.kind == "parameter"]
    assert document["plan"].keys() == {t.name for t in parameters}
    for tensor in parameters:
        assert document["plan"][tensor.name] == placements(found.layouts[tensor.id])
    assert "Partial()" not in str(document["plan"])


def test_operators_of_one_name_have_an_entry_each() -> None:
    graph = training(Model(batch=2, sequence=16, hidden=8, heads=2, kv_heads=2, head_dim=4, ffn=16))
    same = replace(graph, operators=tuple(replace(o, name=("same", "")[i % 2]) for i, o in enumerate(graph.operators)))
    part = plan_sharding(shard(same, MESH, time_limit_s=5))
    assert len(part.operators) == len(graph.operators)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layouts": {"strange": plans.TensorLayout(shape=(4,), dims=((),))}}, "layouts['strange']"),
        ({"layouts": {"a": plans.TensorLayout(shape=(4096, 4096), dims=((), ()))}}, "layouts['a'].shape"),
        ({"operators": {"strange": ((2,),)}}, "operators['strange']"),
    ],
)
def test_a_sharding_of_another_step_is_refused(changes: dict[str, Any], field: str) -> None:
    profile = Profile(
        storages=(Storage(id=0, name="a", bytes=4096, kind="input", resident_at_start=True),),
        operators=(Operator(name="op", type="Relu", duration_us=1.0, reads=(0,)),),
    )
    fits = plans.Sharding(
        mesh=MESH,
        layouts={"a": plans.TensorLayout(shape=(1024,), dims=((),))},
        operators={"op": ((2,),)},
    )
    plans.check_against(fits, profile)
    with pytest.raises(DocumentError) as refusal:
        plans.check_against(msgspec.structs.replace(fits, **changes), profile)
    assert field in refusal.value.field


def test_cuts_that_the_mesh_does_not_have_are_refused() -> None:
    with pytest.raises(DocumentError, match="parts on 8 devices"):
        plans.check_sharding(plans.Sharding(mesh=MESH, operators={"op": ((7,),)}))
