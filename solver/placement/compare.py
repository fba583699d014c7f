"""Rivals on a mesh, each by itself: what ours is shown beside."""

from __future__ import annotations

from collections.abc import Sequence

from hyperopt.graph import Graph
from hyperopt.mesh import Mesh
from solver.placement.price import Kernels
from solver.placement.rivals import Rival, rivals
from solver.placement.shard import DoesNotFit, Sharding, shard


def compare(
    graph: Graph,
    mesh: Mesh,
    kernels: Kernels | None = None,
    memory_bytes: int | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
    which: Sequence[Rival] | None = None,
) -> dict[str, Sharding | None]:
    """Each rival's program on the mesh; None: it does not fit."""
    found: dict[str, Sharding | None] = {}
    for rival in rivals(mesh) if which is None else which:
        try:
            found[rival.name] = shard(
                graph,
                mesh,
                kernels,
                memory_bytes,
                time_limit_s,
                seed,
                allowed=rival.allows(graph, mesh),
                baselines=False,
            )
        except DoesNotFit:
            found[rival.name] = None
    return found
