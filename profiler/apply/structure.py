"""Is this the program that was profiled? Compared without regard to order, differences by name.

The order in which the runtime starts kernels varies from run to run, so the program digest of a profile is
no key to a compiled graph. What must agree are the kernels by name, and per kernel the sizes of all that it
reads and writes, its workspace and its shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hyperopt.profile import IDLE, Operator, Profile, Storage
from profiler.capture.anatomy import Anatomy
from profiler.capture.assembly import assemble, launches
from profiler.read.actors import ActorSet
from profiler.read.cpu_profiler import Execution

MAX_NAMED = 8
"""Differences named one by one; the others are counted."""


@dataclass(frozen=True)
class Shape:
    """What an operator is, apart from its name: bytes of each storage read and written, and workspace."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    workspace: int

    def __str__(self) -> str:
        return f"reads {list(self.reads)}, writes {list(self.writes)}, workspace {self.workspace} bytes"


def structure_of_profile(profile: Profile) -> dict[str, Shape]:
    """Operator name -> what it is."""
    return _structure(profile.operators, profile.storages)


def structure_of_graph(graph: ActorSet) -> dict[str, Shape]:
    """The same for a compiled graph that has not run: the compiler's order will do."""
    unrun = {kernel.name: [Execution(i, i)] for i, kernel in enumerate(graph.kernels) if kernel.launched}
    nobody = Anatomy(frozenset(), frozenset(), {})
    assembled = assemble(graph, launches(graph, unrun, 1), {}, nobody, frozenset(), 0.0, 1)
    return _structure(assembled.operators, assembled.storages)


def _structure(operators: tuple[Operator, ...], storages: tuple[Storage, ...]) -> dict[str, Shape]:
    size = {storage.id: storage.bytes for storage in storages}
    return {
        operator.name: Shape(
            tuple(sorted(size[id] for id in operator.reads)),
            tuple(sorted(size[id] for id in operator.writes)),
            operator.workspace_bytes,
        )
        for operator in operators
        if operator.type != IDLE
    }


def differences(profiled: Mapping[str, Shape], compiled: Mapping[str, Shape]) -> list[str]:
    """What is gone, new or changed, by name; empty where the programs agree."""
    found = [f"{name} is gone" for name in sorted(profiled.keys() - compiled.keys())]
    found += [f"{name} is new" for name in sorted(compiled.keys() - profiled.keys())]
    found += [
        f"{name} was {profiled[name]}, is {compiled[name]}"
        for name in sorted(profiled.keys() & compiled.keys())
        if profiled[name] != compiled[name]
    ]
    if len(found) > MAX_NAMED:
        found = [*found[:MAX_NAMED], f"and {len(found) - MAX_NAMED} more"]
    return found
