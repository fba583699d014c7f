"""Every way to place programs: which of them share devices, how many of which kind, and which are swapped there.

::

    apart      rollout 8 | actor 4 | critic 4
    shared     rollout, actor 8 | critic 8          both on the devices, if they fit, else swapped in and out
    all        rollout, actor, critic 16            in turn: what is had without a plan
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

from hyperopt.documents import DocumentError
from hyperopt.layers import DeviceGroup
from hyperopt.programs import Program, Programs
from solver.programs.problem import GRAINS, Group, activation_of, memory_of, room
from solver.stages.problem import NoPlanError

MOST_WAYS = 20_000


@dataclass(frozen=True)
class Short:
    """The least by which a way does not fit: MB of a device of a group with these programs."""

    mb: float
    group: Group


def ways(said: Programs) -> list[tuple[Group, ...]]:
    """All that fit. Raises `NoPlanError`, saying what is missing, where none does."""
    found: list[tuple[Group, ...]] = []
    nearest: Short | None = None
    for blocks in _blocks(said):
        each = [_shared(said, on, programs) for on, programs in blocks]
        short = [one for one in each if isinstance(one, Short)]
        if short:
            worst = max(short, key=lambda one: one.mb)
            nearest = worst if nearest is None or worst.mb < nearest.mb else nearest
            continue
        found += product(*(one for one in each if not isinstance(one, Short)))
        if len(found) > MOST_WAYS:
            raise DocumentError(
                "$.programs", f"more than {MOST_WAYS} ways to place them", "give fewer sizes in devices"
            )
    if found:
        return found
    if nearest is None:
        total = " and ".join(f"{kind.devices} {kind.name}" for kind in said.pool)
        raise NoPlanError(
            f"{total} are too few for groups of the sizes that the programs can have, apart or shared: give sizes that "
            "several have in common, or more devices"
        )
    names = ", ".join(said.programs[p].name for p in nearest.group.programs)
    raise NoPlanError(
        f"no way to place the programs fits: in the nearest {names} on {nearest.group.on.devices} "
        f"{nearest.group.on.name} lack {nearest.mb:g} MB of {nearest.group.on.memory:g} a device: give larger groups, "
        + ("raise swap.host_memory, " if said.swap else "a swap link, ")
        + "or smaller activations"
    )


def all_devices(said: Programs) -> DeviceGroup:
    """The pool as one group: as fast as its slowest devices, with the memory of its smallest."""
    known = [kind.memory for kind in said.pool if kind.memory is not None]
    return DeviceGroup(
        name="+".join(kind.name for kind in said.pool),
        devices=sum(kind.devices for kind in said.pool),
        speed=min(kind.speed for kind in said.pool),
        memory=min(known, default=None),
    )


def _blocks(said: Programs) -> Iterator[list[tuple[DeviceGroup, tuple[int, ...]]]]:
    """Every division of programs among groups of devices, fitting or not."""
    everything = all_devices(said)
    if len(said.pool) > 1 and all(_can(said, p, everything) for p in said.programs):
        yield [(everything, tuple(range(len(said.programs))))]

    def rest(
        p: int, made: list[tuple[DeviceGroup, tuple[int, ...]]]
    ) -> Iterator[list[tuple[DeviceGroup, tuple[int, ...]]]]:
        if p == len(said.programs):
            yield made
            return
        for i, (on, programs) in enumerate(made):
            if _can(said, said.programs[p], on):
                yield from rest(p + 1, [*made[:i], (on, (*programs, p)), *made[i + 1 :]])
        for kind in said.pool:
            left = kind.devices - sum(on.devices for on, _ in made if on.name == kind.name)
            for size in range(1, left + 1):
                on = DeviceGroup(name=kind.name, devices=size, speed=kind.speed, memory=kind.memory)
                if _can(said, said.programs[p], on):
                    yield from rest(p + 1, [*made, (on, (p,))])

    yield from rest(0, [])


def _can(said: Programs, program: Program, on: DeviceGroup) -> bool:
    """Whether a program can stand on such a group, by kind and size."""
    if program.kinds and on.name not in program.kinds:
        return False
    calls = [call for call in said.calls if call.program == program.name]
    tables = [program.memory, *(call.time for call in calls), *(call.activation for call in calls)]
    sizes = [set(table) for table in tables if isinstance(table, dict)]
    return all(on.devices in known for known in [*sizes, *([set(program.devices)] if program.devices else [])])


def _shared(said: Programs, on: DeviceGroup, programs: tuple[int, ...]) -> list[Group] | Short:
    """The programs on one group with every choice of those that are swapped, if any fits."""
    calls = [call for call in said.calls if any(call.program == said.programs[p].name for p in programs)]
    frees = {u.name: [c for c in calls if u.name in (c.name, c.until)] for u in calls}
    most = max(sum(activation_of(call, on) for call in held) for held in frees.values())  # all there while u runs
    whole = sum(activation_of(call, on) * (said.micro_batches if call.per == "micro_batch" else 1) for call in calls)
    found: list[Group] = []
    short = math.inf
    ample: list[set[int]] = []
    for count in (0, *range(2, len(programs) + 1 if said.swap else 0)):
        for swapped in combinations(programs, count):
            if any(fewer <= set(swapped) for fewer in ample):
                continue  # fewer swapped leave room for everything already
            group = Group(on, programs, swapped)
            free, lack = room(said, group), _host(said, group)
            if free is not None:
                lack = max(lack, most - free)
            if lack > 0:
                short = min(short, lack)
                continue
            found.append(group)
            if free is None or free >= whole:
                ample.append(set(swapped))
    return found or Short(short / GRAINS / on.devices, Group(on, programs))


def _host(said: Programs, group: Group) -> int:
    """Grains by which the host is too small for what is swapped."""
    if said.swap is None or said.swap.host_memory is None:
        return 0
    away = sum(memory_of(said.programs[p], group.on) for p in group.swapped)
    return away - math.floor(said.swap.host_memory * GRAINS) * group.on.devices
