"""One way to place programs, in plain numbers: which group runs each call, how long, what it waits for and holds.

A *run* is a call for one micro-batch, or for the step. A group does one run at a time, in an order that has to be
found. Runs of a call are alike, so they stand in the order of their micro-batches: in any schedule, sorting each call's
starts keeps every dependency (the k-th start of what follows is behind the k-th end of what is waited for) and the
number of activations alive.

*Swapped* programs of a group leave it while another one of them runs: before a run whose program is not there, the one
that is there is copied out and its own copied in, on the group's time. The step repeats: it begins with the program
there that ended it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from hyperopt.layers import DeviceGroup, typed
from hyperopt.programs import Call, Program, Programs, Sized
from solver.stages.describe import memory_share, time_share

GRAINS = 10**6
"""Of a MB: bytes. Memory is counted on all devices of a group together: shares of it need no rounding."""

TICKS = 10**9
"""Ticks of the longest step: every run and every transfer, one after another."""

Run = tuple[int, int]
"""(call, micro-batch): indices."""


@dataclass(frozen=True)
class Group:
    """Devices (of one kind, or of all) and the programs on them, of which `swapped` are there in turn. Indices."""

    on: DeviceGroup
    programs: tuple[int, ...]
    swapped: tuple[int, ...] = ()


@dataclass(frozen=True)
class Wait:
    """A call has to wait for this one, and then so many ticks for what it sends."""

    call: int
    lag: int


@dataclass(frozen=True, eq=False)
class Placed:
    """By call: its group and program, how often it runs, ticks of a run, what it waits for, grains that a run holds
    and the call whose end frees them. By group: grains that are there for what runs hold (None: no limit). By
    swapped program: ticks in and out. `tick`: in the description's unit of time."""

    groups: tuple[Group, ...]
    group: tuple[int, ...]
    program: tuple[int, ...]
    runs: tuple[int, ...]
    duration: tuple[int, ...]
    waits: tuple[tuple[Wait, ...], ...]
    holds: tuple[int, ...]
    until: tuple[int, ...]
    room: tuple[int | None, ...]
    into: dict[int, int]
    out: dict[int, int]
    tick: float

    def sources(self, run: Run) -> Iterable[tuple[Run, int]]:
        """The runs that one waits for, and ticks between."""
        call, m = run
        for wait in self.waits[call]:
            if self.runs[wait.call] == self.runs[call]:
                yield (wait.call, m), wait.lag
            else:
                yield from (((wait.call, k), wait.lag) for k in range(self.runs[wait.call]))

    def switch(self, there: int | None, program: int) -> int:
        """Ticks before a run of a swapped program where another (or none) is there."""
        return 0 if there == program else self.into[program] + (0 if there is None else self.out[there])

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Calls so that each stands behind what it waits for."""
        found: list[int] = []
        while len(found) < len(self.runs):
            found += [
                c for c in range(len(self.runs)) if c not in found and all(w.call in found for w in self.waits[c])
            ]
        return tuple(found)

    @cached_property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """By call: ticks before its first run can start, and before its last one has ended."""
        heads: dict[int, tuple[int, int]] = {}
        for c in self.order:
            first = last = 0
            for wait in self.waits[c]:
                alike = self.runs[c] == self.runs[wait.call]
                start, end = heads[wait.call]
                first = max(first, (start + self.duration[wait.call] if alike else end) + wait.lag)
                last = max(last, end + wait.lag)
            heads[c] = first, max(first + self.runs[c] * self.duration[c], last + self.duration[c])
        return tuple(heads[c] for c in range(len(self.runs)))

    @cached_property
    def tails(self) -> tuple[int, ...]:
        """Ticks that remain when a call's last run has ended."""
        tails = [0] * len(self.runs)
        for c in reversed(self.order):
            for wait in self.waits[c]:
                often = 1 if self.runs[c] == self.runs[wait.call] else self.runs[c]
                behind = wait.lag + often * self.duration[c] + tails[c]
                tails[wait.call] = max(tails[wait.call], behind)
        return tuple(tails)

    @cached_property
    def bound(self) -> int:
        """Ticks below which no order ends: of every group's calls those that cannot start before some head and leave at
        least some tail, one after another; and with all of them the copies of programs that are swapped."""
        best = 0
        for g, group in enumerate(self.groups):
            mine = [c for c in range(len(self.runs)) if self.group[c] == g]
            for head in {self.heads[c][0] for c in mine}:
                for tail in {self.tails[c] for c in mine}:
                    work = sum(
                        self.runs[c] * self.duration[c]
                        for c in mine if self.heads[c][0] >= head and self.tails[c] >= tail
                    )  # fmt: skip
                    best = max(best, head + work + tail if work else 0)
            copies = sum(self.into[p] + self.out[p] for p in group.swapped)
            work = sum(self.runs[c] * self.duration[c] for c in mine)
            best = max(best, work + copies + min(self.tails[c] for c in mine))
        return max(best, *(end + tail for (_, end), tail in zip(self.heads, self.tails, strict=True)))


def placed(said: Programs, groups: tuple[Group, ...]) -> Placed:
    """The programs on these groups. Every program must be on one, at a size that it can have."""
    where = {p: g for g, group in enumerate(groups) for p in group.programs}
    index = {call.name: c for c, call in enumerate(said.calls)}
    number = {program.name: p for p, program in enumerate(said.programs)}
    program = [number[call.program] for call in said.calls]
    at = [where[p] for p in program]
    tick = tick_of(said)

    def ticks(time: float) -> int:
        return round(time / tick)

    def lag(source: int, call: int, mb: float) -> int:
        if said.link is None or at[source] == at[call]:
            return 0
        pairs = min(groups[at[source]].on.devices, groups[at[call]].on.devices)
        return ticks(said.link.latency + mb / (said.link.mb_per_time * pairs))

    swaps = [(p, groups[where[p]].on) for group in groups for p in group.swapped]
    rates = (said.swap.in_mb_per_time, said.swap.out_mb_per_time) if said.swap else (1.0, 1.0)
    held = {p: memory_of(said.programs[p], on) / GRAINS / on.devices for p, on in swaps}
    return Placed(
        groups=groups,
        group=tuple(at),
        program=tuple(program),
        runs=tuple(said.micro_batches if call.per == "micro_batch" else 1 for call in said.calls),
        duration=tuple(
            ticks(time_of(call, said.programs[p], groups[g].on))
            for call, p, g in zip(said.calls, program, at, strict=True)
        ),
        waits=tuple(
            tuple(Wait(index[i.call], lag(index[i.call], c, i.mb)) for i in call.after)
            for c, call in enumerate(said.calls)
        ),
        holds=tuple(activation_of(call, groups[g].on) for call, g in zip(said.calls, at, strict=True)),
        until=tuple(index[call.until] if call.until else c for c, call in enumerate(said.calls)),
        room=tuple(room(said, group) for group in groups),
        into={p: ticks(mb / rates[0]) for p, mb in held.items()},
        out={p: 0 if said.programs[p].read_only else ticks(mb / rates[1]) for p, mb in held.items()},
        tick=tick,
    )


def tick_of(said: Programs) -> float:
    """The same for every way to place them, so that their steps compare: a power of ten."""
    longest = 0.0
    for call in said.calls:
        program = next(p for p in said.programs if p.name == call.program)
        slowest = min(kind.speed for kind in said.pool)
        sizes = call.time if isinstance(call.time, dict) else {1: 0.0}
        often = said.micro_batches if call.per == "micro_batch" else 1
        longest += often * max(time_of(call, program, DeviceGroup(devices=n, speed=slowest)) for n in sizes)
        if said.link:
            longest += sum(often * (said.link.latency + i.mb / said.link.mb_per_time) for i in call.after)
    return float(10.0 ** math.ceil(math.log10(longest / TICKS))) if longest else 1.0


def room(said: Programs, group: Group) -> int | None:
    """Grains for what runs hold, beside the programs; below 0 they do not fit themselves."""
    if group.on.memory is None:
        return None
    return math.floor(group.on.memory * GRAINS) * group.on.devices - static(said, group)


def static(said: Programs, group: Group) -> int:
    """Grains that programs take: those that stay, and the largest of those that are swapped."""
    needs = {p: memory_of(said.programs[p], group.on) for p in group.programs}
    kept = sum(need for p, need in needs.items() if p not in group.swapped)
    return kept + max((needs[p] for p in group.swapped), default=0)


def time_of(call: Call, program: Program, on: DeviceGroup) -> float:
    """Of one run on these devices."""
    if call.layers is not None:
        total = 0.0
        for layer in program.layers_description:
            each = typed(layer).forward if call.layers == "forward" else typed(layer).backward
            total += each * layer.nb_layer * time_share(layer.serial_fraction, on)
        return total
    assert call.time is not None
    if isinstance(call.time, dict):
        return call.time[on.devices] / on.speed
    return call.time * time_share(call.serial_fraction, on)


def memory_of(program: Program, on: DeviceGroup) -> int:
    """Grains of weights and what belongs to them."""
    if program.memory is None:
        shares = [(x, memory_share(x.serial_fraction, on) * on.devices) for x in program.layers_description]
        return round(GRAINS * sum(x.memory_parameter * x.nb_layer * share for x, share in shares))
    return _grains(program.memory, on)


def activation_of(call: Call, on: DeviceGroup) -> int:
    """Grains that a run holds."""
    return _grains(call.activation, on)


def _grains(amount: Sized, on: DeviceGroup) -> int:
    return round(GRAINS * amount[on.devices]) * on.devices if isinstance(amount, dict) else round(GRAINS * amount)
