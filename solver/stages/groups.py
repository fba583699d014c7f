"""Which devices form the stages: groups of unequal size and kind (MPMD) against equal ones (SPMD).

A *pool* has devices of one or several kinds, in the order of the pipeline::

    pool        4 old, 12 new
    SPMD        4 | 4 | 4 | 4           every stage as many devices, layers cut anywhere
    MPMD        4 | 6 | 6               every sub-model its own size of group, and groups of its own

A stage of a sub-model holds only its layers. Every way to divide the pool is a problem of its own (each sub-model, or
each kind where there are none, has groups of one size; no group mixes kinds; all devices are used), and `ways.decide`
picks one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hyperopt.documents import DocumentError
from hyperopt.layers import Description, DeviceGroup
from solver.stages.describe import Request, problem
from solver.stages.problem import NO_LIMIT, NoPlanError, Objective, Problem
from solver.stages.solve import Solution
from solver.stages.ways import decide, zero_bubble

MOST_WAYS = 20_000


@dataclass(frozen=True, eq=False)
class Grouped:
    """A solution and the groups of devices that it stands on, one a stage. `bound`, in the description's unit: below
    it there is nothing on any of the `ways` to divide the pool."""

    groups: tuple[DeviceGroup, ...]
    solution: Solution
    bound: float
    ways: int

    @property
    def value(self) -> float:
        """In the description's unit."""
        return self.solution.value * self.solution.problem.tick


def place(
    description: Description,
    asked: Request,
    objective: Objective = "makespan",
    time_limit_s: float = 60.0,
    seed: int = 0,
    equal: bool = False,
) -> Grouped:
    """The best division of the pool into `asked.stages` groups with the layers on them; `equal`: SPMD's only.

    Raises `NoPlanError` where none fits, and `DocumentError` where the pool has too many ways.
    """
    ways = list(_equal(description, asked) if equal else _unequal(description, asked))
    if not ways:
        raise NoPlanError(f"the pool cannot be divided into {asked.stages} stages: ask for another number of them")
    problems = [
        one
        for groups, parts in ways
        for one in zero_bubble(_apart(problem(description, asked, groups), description, parts))
    ]
    found = decide(problems, objective, time_limit_s, seed)
    groups, _ = ways[found.index * len(ways) // len(problems)]
    return Grouped(groups, found.solution, found.bound, len(ways))


Way = tuple[tuple[DeviceGroup, ...], tuple[int, ...]]
"""Groups, and the sub-model of each (empty: layers are cut anywhere)."""


def _kinds(description: Description) -> tuple[DeviceGroup, ...]:
    if not description.pool:
        raise DocumentError("$.pool", "there is none", "say which devices may be divided")
    return description.pool


def _equal(description: Description, asked: Request) -> Iterator[Way]:
    kinds = _kinds(description)
    total = sum(kind.devices for kind in kinds)
    size, rest = divmod(total, asked.stages)
    if rest or any(kind.devices % size for kind in kinds):
        return
    groups = [_of(kind, size) for kind in kinds for _ in range(kind.devices // size)]
    yield tuple(groups), ()


def _unequal(description: Description, asked: Request) -> Iterator[Way]:
    kinds, ways = _kinds(description), 0
    parts = len(description.sub_models) or len(kinds)
    for stages in _compositions(asked.stages, parts):  # stages of each sub-model
        sizes = product(range(1, max(kind.devices for kind in kinds) + 1), repeat=parts)
        for size in sizes:
            ways += 1
            if ways > MOST_WAYS:
                raise DocumentError("$.pool", f"more than {MOST_WAYS} ways to divide it", "give device_groups")
            groups = _fill(kinds, [s for s, n in zip(size, stages, strict=True) for _ in range(n)])
            if groups is not None:
                yield groups, tuple(part for part, n in enumerate(stages) for _ in range(n) if description.sub_models)


def _fill(kinds: Sequence[DeviceGroup], sizes: Sequence[int]) -> tuple[DeviceGroup, ...] | None:
    """Groups of these sizes out of the kinds in order; None unless they use up every kind exactly."""
    made, left = [], [kind.devices for kind in kinds]
    at = 0
    for size in sizes:
        while at < len(kinds) and not left[at]:
            at += 1
        if at == len(kinds) or left[at] < size:
            return None
        left[at] -= size
        made.append(_of(kinds[at], size))
    return tuple(made) if not any(left) else None


def _of(kind: DeviceGroup, size: int) -> DeviceGroup:
    return DeviceGroup(name=kind.name, devices=size, speed=kind.speed, memory=kind.memory)


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def _apart(p: Problem, description: Description, parts: Sequence[int]) -> Problem:
    """The problem in which the stages of one sub-model have no room for another's layers."""
    if not parts:
        return p
    owner = {name: j for j, part in enumerate(description.sub_models) for name in part.layers}
    limit, parameter = p.limit.copy(), p.parameter.copy()
    alive = p.micro_batches * p.chunks
    enough = int(p.static.max() + p.beside.sum() * alive) + 1
    enough += int(p.layers * (p.parameter.max() + (p.device.max() + p.late.max()) * alive))
    for s, part in enumerate(parts):
        limit[s] = min(limit[s], enough) if limit[s] >= NO_LIMIT else limit[s]
        for t, name in enumerate(p.types):
            if owner[name] != part:
                parameter[s, t] = limit[s] + 1
    return replace(p, limit=limit, parameter=parameter)
