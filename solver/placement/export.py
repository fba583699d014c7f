"""A sharding for others: the plan document, MindSpore's operator strategies and `Layout`s, HyperParallel's plan.

What is written for MindSpore and HyperParallel follows their sources and was not run on accelerators.
"""

from __future__ import annotations

from typing import Any

from hyperopt import plan
from hyperopt.graph import Graph
from hyperopt.mesh import Mesh
from hyperopt.plan import distinct
from solver.placement.layout import PARTIAL, REPLICATED, Layout
from solver.placement.shard import Sharding

FORWARD = ("forward",)


def names(graph: Graph) -> list[str]:
    """Of tensors: their own, made different where several have one or none."""
    return distinct(t.name or f"tensor{t.id}" for t in graph.tensors)


def operator_names(graph: Graph) -> list[str]:
    """Of operators, likewise: each has an entry of its own in what is written."""
    return distinct(o.name or f"{o.type}{i}" for i, o in enumerate(graph.operators))


def axes_of(layout: Layout, dimensions: int, mesh: Mesh) -> tuple[tuple[str, ...], ...]:
    """For each dimension the names of the axes that cut it, the outermost first."""
    return tuple(
        tuple(mesh.axes[axis] for axis, place in enumerate(layout) if place == dimension)
        for dimension in range(dimensions)
    )


def plan_sharding(sharding: Sharding) -> plan.Sharding:
    """The part of the plan document."""
    graph, mesh, frame_names = sharding.graph, sharding.mesh, names(sharding.graph)
    grouped = sharding.grouped
    layouts = {}
    for tensor, keep in zip(graph.tensors, sharding.keeps, strict=True):
        rank = len(tensor.shape)
        copies = {
            phase: axes_of(copy, rank, mesh)
            for phase, copy in zip(sharding.shared(tensor.id), keep.copies, strict=True)
            if copy is not None
        }
        layouts[frame_names[tensor.id]] = plan.TensorLayout(
            shape=tensor.shape,
            dims=axes_of(keep.stored, rank, mesh),
            partial=tuple(mesh.axes[axis] for axis, place in enumerate(keep.stored) if place == PARTIAL),
            kind=tensor.kind,
            copies=copies,
            grouped=tensor.id in grouped and any(place >= 0 for place in keep.stored),
        )
    operators = {name: _cuts(sharding, i) for i, name in enumerate(operator_names(graph))}
    return plan.Sharding(mesh=mesh, layouts=layouts, operators=operators)


def _cuts(sharding: Sharding, i: int) -> tuple[tuple[int, ...], ...]:
    """For each input of an operator into how many parts its dimensions are cut."""
    graph, mesh, found = sharding.graph, sharding.mesh, []
    for t, layout in zip(graph.operators[i].inputs, sharding.operator_strategies[i].inputs, strict=True):
        parts = [1] * len(graph.tensors[t].shape)
        for axis, place in enumerate(layout):
            if place >= 0:
                parts[place] *= mesh.shape[axis]
        found.append(tuple(parts))
    return tuple(found)


def layout_arguments(layout: Layout, dimensions: int, mesh: Mesh) -> dict[str, Any]:
    """What `mindspore.parallel.Layout` takes: its arguments, and `tensor_map` for the call that follows::

        Layout(device_matrix, alias_name, rank_list)(*tensor_map)

    Axes of a dimension are one name, a tuple of names, or "None". A partial sum has no place there: it is complete by
    the time a layout is asked for.
    """
    entries = tuple(
        "None" if not cut else cut[0] if len(cut) == 1 else cut for cut in axes_of(layout, dimensions, mesh)
    )
    return {
        "device_matrix": mesh.shape,
        "alias_name": mesh.axes,
        "rank_list": [int(rank) for rank in mesh.places.ravel()],
        "tensor_map": entries,
    }


def mindspore_layouts(sharding: Sharding) -> dict[str, dict[str, Any]]:
    """Parameter -> arguments of its `Layout`."""
    frame_names = names(sharding.graph)
    return {
        frame_names[t.id]: layout_arguments(sharding.layouts[t.id], len(t.shape), sharding.mesh)
        for t in sharding.graph.tensors
        if t.kind == "parameter"
    }


def mindspore_strategy(sharding: Sharding) -> dict[str, Any]:
    """MindSpore's strategy file (`strategy_checkpoint_config`, `load_operator_strategy_file`), for forward operators:
    the backward ones follow from them there.

    An operator whose inputs are each cut along whole axes in the mesh's order has both entries, the parts and the
    layout (`parallel_layout_value_item`, which the device order of the mesh follows).
    """
    mesh = sharding.mesh
    strategies: dict[str, Any] = {}
    layouts: dict[str, Any] = {}
    own_names = operator_names(sharding.graph)
    for i, (name, operator) in enumerate(zip(own_names, sharding.graph.operators, strict=True)):
        if operator.phase not in FORWARD or not operator.inputs:
            continue
        strategy = sharding.operator_strategies[i]
        strategies[name] = {"parallel_strategy": [list(c) for c in _cuts(sharding, i)], "stage": 0}
        layouts[name] = {
            str(slot): {
                "alias_name": list(mesh.axes),
                "dev_matrix": list(mesh.shape),
                "interleaved_parallel": False,
                "tensor_map": _tensor_map(layout, len(sharding.graph.tensors[t].shape), mesh),
            }
            for slot, (t, layout) in enumerate(zip(operator.inputs, strategy.inputs, strict=True))
        }
    return {"current_stage": 0, "parallel_strategy_item": strategies, "parallel_layout_value_item": layouts}


def _tensor_map(layout: Layout, dimensions: int, mesh: Mesh) -> list[list[int]]:
    """Axes by dimension, counted from the last (0); -1: not cut."""
    last = len(mesh.shape) - 1
    found = []
    for dimension in range(dimensions):
        cut = [last - axis for axis, place in enumerate(layout) if place == dimension]
        found.append(cut or [-1])
    return found


def placements(layout: Layout) -> list[str]:
    """One a mesh axis, as HyperParallel writes them."""
    said = {REPLICATED: "Replicate()", PARTIAL: "Partial()"}
    return [said.get(place, f"Shard({place})") for place in layout]


def hyperparallel_plan(sharding: Sharding) -> dict[str, Any]:
    """HyperParallel's `init_device_mesh` and `ShardingPlan` as data: parameters, and the step's inputs and outputs."""
    graph, mesh, frame_names = sharding.graph, sharding.mesh, names(sharding.graph)

    def of(kind: str) -> dict[str, list[str]]:
        return {frame_names[t.id]: placements(sharding.layouts[t.id]) for t in graph.tensors if t.kind == kind}

    return {
        "mesh": {
            "mesh_shape": list(mesh.shape),
            "mesh_dim_names": list(mesh.axes),
            "rank_list": [int(rank) for rank in mesh.places.ravel()],
        },
        "plan": of("parameter"),
        "input_plan": of("input"),
        "optimizer_states": of("optimizer_state"),
        "gradients": of("gradient"),
    }
