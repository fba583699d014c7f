"""Layers that look the same are one decision; what differs is not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from hyperopt.graph import Graph
from hyperopt.mesh import Level, Mesh
from hyperopt.testing.graphs import Model, training
from solver.placement import Frame, shard
from solver.placement.alike import classes

MESH = Mesh(shape=(2, 2), axes=("a", "b"), levels=(Level(bytes_per_s=1e10, latency_us=1),))


def model(layers: int, micro_batches: int = 1, dense: int = 0) -> Graph:
    return training(
        Model(
            batch=4, sequence=16, hidden=32, heads=4, kv_heads=4, head_dim=8, ffn=64, layers=layers, vocab=64,
            micro_batches=micro_batches, experts=8 if dense else 0, dense_layers=dense,
        )
    )  # fmt: skip


@pytest.mark.parametrize("labelled", [True, False])
def test_more_layers_are_not_more_decisions(labelled: bool) -> None:
    counts = []
    for layers in (8, 16):
        graph = replace(model(layers), labelled=labelled)
        operators, tensors = classes(Frame(graph, MESH))
        counts.append((len(set(operators)), len(set(tensors))))
        assert len(set(operators)) < len(graph.operators)
    assert counts[0] == counts[1]


def test_micro_batches_are_alike_but_for_what_they_add_to() -> None:
    graph = model(2, micro_batches=4)
    operators, _ = classes(Frame(graph, MESH))
    norms = Counter(c for c, o in zip(operators, graph.operators, strict=True) if o.type == "RmsNorm")
    assert all(count % 4 == 0 for count in norms.values())


def test_dense_layers_and_experts_are_decided_apart() -> None:
    graph = model(6, dense=3)
    operators, _ = classes(Frame(graph, MESH))
    layer = {c: set() for c in operators}  # type: ignore[var-annotated]
    for c, operator in zip(operators, graph.operators, strict=True):
        if operator.layer.startswith("layer") and operator.phase == "forward":
            layer[c].add(int(operator.layer[5:]) < 3)
    assert all(len(kinds) <= 1 for kinds in layer.values())


def test_labels_and_surroundings_lead_to_the_same_cost() -> None:
    graph = model(4)
    by_label = shard(graph, MESH, time_limit_s=20)
    around = shard(replace(graph, labelled=False), MESH, time_limit_s=20)
    assert around.step.us <= by_label.step.us * (1 + 1e-9)
