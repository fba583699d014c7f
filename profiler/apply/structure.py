"""Is this the program that was profiled? Compared without regard to order, differences by name.

The order in which the runtime starts kernels varies from run to run, so the program digest of a profile is
no key to a compiled graph. What must agree are parameters and inputs with their sizes, and the kernels by
name, with the sizes of all that each reads and writes and its workspace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hyperopt.profile import IDLE, Operator, Profile, Storage
from profiler.capture.anatomy import Anatomy
from profiler.capture.assembly import assemble, launches
from profiler.read.mindspore.actors import ActorSet
from profiler.read.mindspore.cpu_profiler import Execution

MAX_NAMED = 8
"""Differences named one by one; the others are counted."""


@dataclass(frozen=True)
class Structure:
    """A program in words, by name: parameters and inputs (bytes), operators (bytes they touch)."""

    residents: Mapping[str, str]
    operators: Mapping[str, str]


def structure_of_profile(profile: Profile) -> Structure:
    return _structure(profile.operators, profile.storages)


def structure_of_graph(graph: ActorSet) -> Structure:
    """The same for a compiled graph that has not run: the compiler's order will do."""
    unrun = {kernel.name: [Execution(i, i)] for i, kernel in enumerate(graph.kernels) if kernel.launched}
    nobody = Anatomy(frozenset(), frozenset(), {})
    assembled = assemble(graph, launches(graph, unrun, 1), {}, nobody, frozenset(), 0.0, 1)
    return _structure(assembled.operators, assembled.storages)


def _structure(operators: Iterable[Operator], storages: Iterable[Storage]) -> Structure:
    storages = tuple(storages)
    size = {storage.id: storage.bytes for storage in storages}

    def words(operator: Operator) -> str:
        reads, writes = (sorted(size[id] for id in ids) for ids in (operator.reads, operator.writes))
        return f"reads {reads}, writes {writes}, workspace {operator.workspace_bytes} bytes"

    return Structure(
        {storage.name: f"{storage.bytes} bytes" for storage in storages if storage.resident_at_start},
        {operator.name: words(operator) for operator in operators if operator.type != IDLE},
    )


def differences(profiled: Structure, compiled: Structure) -> list[str]:
    """What is gone, new or changed, by name, parameters and inputs first; empty where the programs agree."""
    found = [f"parameter or input {line}" for line in _compared(profiled.residents, compiled.residents)]
    found += [f"operator {line}" for line in _compared(profiled.operators, compiled.operators)]
    if len(found) > MAX_NAMED:
        found = [*found[:MAX_NAMED], f"and {len(found) - MAX_NAMED} more differences"]
    return found


def _compared(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    found = [f"{name} is gone" for name in sorted(before.keys() - now.keys())]
    found += [f"{name} is new" for name in sorted(now.keys() - before.keys())]
    changed = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
    return found + [f"{name}: was {before[name]}; is {now[name]}" for name in changed]
