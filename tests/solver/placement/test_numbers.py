"""The sharded program gives what one device gives, and sends what the cost model says: random shapes and choices."""

from __future__ import annotations

import numpy as np
import pytest

from hyperopt.graph import Graph
from hyperopt.mesh import Level, Mesh
from hyperopt.testing.graphs import Model, training
from solver.placement import Choice, Frame
from solver.placement.program import write
from tests.solver.placement.simulated_mesh import SimulatedMesh

MESHES = [
    Mesh(shape=(2,), axes=("x",), levels=(Level(bytes_per_s=1e9, latency_us=1),)),
    Mesh(shape=(4,), axes=("x",), levels=(Level(bytes_per_s=1e9, latency_us=1),)),
    Mesh(
        shape=(2, 2),
        axes=("x", "y"),
        levels=(Level(devices=2, bytes_per_s=1e10, latency_us=1), Level(bytes_per_s=1e9, latency_us=5)),
    ),
    Mesh(shape=(2, 3), axes=("x", "y"), levels=(Level(bytes_per_s=1e9, latency_us=1),)),
]


def random_choice(frame: Frame, seed: int) -> Choice:
    """Any strategy for each operator, any way to keep each tensor; rather not the first, which cuts nothing."""
    random = np.random.default_rng(seed)

    def one(options: list) -> object:  # type: ignore[type-arg]
        return options[random.integers(len(options) > 1, len(options))]

    operators = tuple(one(frame.strategies(i)) for i in range(len(frame.graph.operators)))
    tensors = tuple(one(frame.keeps(t)) for t in range(len(frame.graph.tensors)))
    return Choice(operators, tensors)  # type: ignore[arg-type]


def check(graph: Graph, mesh: Mesh, seed: int) -> None:
    frame = Frame(graph, mesh)
    program = write(frame, mesh.device, random_choice(frame, seed))
    SimulatedMesh(program).check(seed)


DENSE = Model(
    batch=4, sequence=12, hidden=12, heads=12, kv_heads=6, head_dim=2, ffn=12, vocab=12, clip=True, micro_batches=2
)
EXPERTS = Model(
    batch=4, sequence=6, hidden=6, heads=6, kv_heads=6, head_dim=2, ffn=12, experts=12, top_k=2, capacity=1.5, vocab=6
)


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m.shape)))
@pytest.mark.parametrize("seed", range(4))
def test_a_dense_step_in_random_layouts(mesh: Mesh, seed: int) -> None:
    check(training(DENSE), mesh, seed)


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m.shape)))
@pytest.mark.parametrize("seed", range(4))
def test_a_step_with_experts_in_random_layouts(mesh: Mesh, seed: int) -> None:
    check(training(EXPERTS), mesh, seed)
