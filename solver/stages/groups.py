"""Which devices form the stages: groups of unequal size and kind (MPMD) against equal ones (SPMD).

A *pool* has devices of one or several kinds, in the order of the pipeline::

    pool        4 old, 12 new
    SPMD        4 | 4 | 4 | 4           every stage as many devices, layers cut anywhere
    MPMD        4 | 6 | 6               every sub-model its own size of group, and groups of its own

A stage of a sub-model holds only its layers. Every way to divide the pool is a problem of its own (no group mixes
kinds, all devices are used, and each sub-model has groups of one size), and `ways.decide` picks one. Where there are
more than `MOST_TRIED`, only those with groups of one size for each kind are, and nothing is claimed of the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import comb

from hyperopt.documents import DocumentError
from hyperopt.layers import Description, DeviceGroup
from solver.stages.describe import Request, problem
from solver.stages.problem import NO_LIMIT, NoPlanError, Objective, Problem
from solver.stages.solve import Solution
from solver.stages.warm import warm
from solver.stages.ways import decide, zero_bubble

MOST_WAYS = 20_000
"""Sizes of sub-models' groups that are looked through."""

MOST_TRIED = 1_000
"""Ways without sub-models that are tried, each a problem of its own."""


@dataclass(frozen=True, eq=False)
class Grouped:
    """A solution and the groups of devices that it stands on, one a stage. `bound`, in the description's unit: below
    it there is nothing on any way to divide the pool, of which `ways` were tried out of `ways_in_all`; 0 where these
    were not all."""

    groups: tuple[DeviceGroup, ...]
    solution: Solution
    bound: float
    ways: int
    ways_in_all: int

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
    warm()
    began = time.monotonic()
    if equal:
        ways = list(_equal(description, asked))
        count = len(ways)
    elif description.sub_models:
        ways = list(_of_one_size(description, asked, len(description.sub_models)))
        count = len(ways)
    else:
        count = _count(description, asked)
        few = count <= MOST_TRIED
        ways = list(_all(description, asked) if few else _of_one_size(description, asked, len(_kinds(description))))
    if not ways:
        raise NoPlanError(
            f"the pool cannot be divided into {asked.stages} stages: ask for another number of them", count == 0
        )
    problems = [
        one
        for groups, parts in ways
        for one in zero_bubble(_apart(problem(description, asked, groups), description, parts))
    ]
    whole = count == len(ways)
    try:
        found = decide(problems, objective, max(0.0, time_limit_s - (time.monotonic() - began)), seed)
    except NoPlanError as none:
        if whole:
            raise
        told = f"{none}; {len(ways)} of {count} ways to divide the pool were tried: give device_groups for another"
        raise NoPlanError(told, proven=False) from none
    groups, _ = ways[found.index * len(ways) // len(problems)]
    return Grouped(groups, found.solution, found.bound if whole else 0.0, len(ways), count)


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


def _count(description: Description, asked: Request) -> int:
    """How many ways `_all` has: stages of each kind, then where its devices are cut."""
    kinds = _kinds(description)
    counts = [1] + [0] * asked.stages  # by stages that are there so far
    for kind in kinds:
        counts = [
            sum(counts[n - own] * comb(kind.devices - 1, own - 1) for own in range(1, n + 1))
            for n in range(asked.stages + 1)
        ]
    return counts[asked.stages]


def _all(description: Description, asked: Request) -> list[Way]:
    """Every way without sub-models, those of similar groups first."""
    kinds = _kinds(description)
    made: list[tuple[int, Way]] = []
    for stages in _compositions(asked.stages, len(kinds)):
        each = [_compositions(kind.devices, own) for kind, own in zip(kinds, stages, strict=True)]
        for sizes in product(*each):
            groups = tuple(_of(kind, n) for kind, own in zip(kinds, sizes, strict=True) for n in own)
            made.append((sum(group.devices**2 for group in groups), (groups, ())))
    made.sort(key=lambda each: each[0])
    return [way for _, way in made]


def _of_one_size(description: Description, asked: Request, parts: int) -> Iterator[Way]:
    """The ways in which each of so many parts of the pipeline, sub-models or kinds, has groups of one size."""
    kinds, ways = _kinds(description), 0
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
