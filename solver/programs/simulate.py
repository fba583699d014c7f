"""Times of an order, what it holds, and orders by rule.

A run starts when its group has ended the run before it, its program is there and what it waits for has arrived; copies
of swapped programs are made in front of a run as soon as the group is free. The step ends with its last run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from solver.programs.problem import Placed, Run

Orders = tuple[tuple[Run, ...], ...]
"""By group."""


@dataclass(frozen=True, eq=False)
class Line:
    """Ticks: when each run starts (behind the copies in front of it), how long those take, and when the step ends."""

    start: dict[Run, int]
    copies: dict[Run, int]
    end: int


def simulate(p: Placed, orders: Orders) -> Line | None:
    """The time line of an order; None where runs wait for each other for ever."""
    copies = {run: ticks for g, order in enumerate(orders) for run, ticks in _copies(p, g, order)}
    start: dict[Run, int] = {}
    free = [0] * len(orders)
    at = [0] * len(orders)
    moved = True
    while moved:
        moved = False
        for g, order in enumerate(orders):
            while at[g] < len(order):
                run = order[at[g]]
                sources = list(p.sources(run))
                if any(source not in start for source, _ in sources):
                    break
                ready = max((start[source] + p.duration[source[0]] + lag for source, lag in sources), default=0)
                start[run] = max(ready, free[g] + copies[run])
                free[g] = start[run] + p.duration[run[0]]
                at[g] += 1
                moved = True
    if len(start) < sum(map(len, orders)):
        return None
    return Line(start, copies, max(free))


def _copies(p: Placed, group: int, order: Sequence[Run]) -> list[tuple[Run, int]]:
    """Ticks of copies in front of each run."""
    swapped = p.groups[group].swapped
    there = next((p.program[call] for call, _ in reversed(order) if p.program[call] in swapped), None)
    made = []
    for run in order:
        program, ticks = p.program[run[0]], 0
        if program in swapped:
            ticks, there = p.switch(there, program), program
        made.append((run, ticks))
    return made


def held(p: Placed, order: Sequence[Run]) -> int:
    """Grains that runs hold on a group at the most, at any prefix of its order."""
    now = most = 0
    for call, _ in order:
        now += p.holds[call]
        most = max(most, now)
        now -= sum(p.holds[c] for c, until in enumerate(p.until) if until == call)
    return most


Rule = Callable[[Placed, Run, int], tuple[int, ...]]
"""What the next run is chosen by, the least first: of a run that could start at this tick."""

RULES: tuple[Rule, ...] = (
    lambda p, run, start: (start, -p.tails[run[0]], run[1]),  # what most waits for
    lambda p, run, start: (start, p.tails[run[0]], run[1]),  # what is nearest to the end
    lambda p, run, start: (p.order.index(run[0]), run[1]),  # call by call
    lambda p, run, start: (run[1], p.order.index(run[0])),  # micro-batch by micro-batch
)


def by_rule(p: Placed, rule: Rule) -> Orders | None:
    """An order made run by run, within the memory of each group; None where no run fits any more."""
    done = [0] * len(p.runs)
    end: dict[Run, int] = {}
    free = [0] * len(p.groups)
    now = [0] * len(p.groups)
    there: list[int | None] = [None] * len(p.groups)
    made: list[list[Run]] = [[] for _ in p.groups]
    for _ in range(sum(p.runs)):
        best: tuple[tuple[int, ...], Run, int] | None = None
        for c, count in enumerate(done):
            g, room, run = p.group[c], p.room[p.group[c]], (c, count)
            if count == p.runs[c] or (room is not None and now[g] + p.holds[c] > room):
                continue
            sources = list(p.sources(run))
            if any(source not in end for source, _ in sources):
                continue
            swap = p.switch(there[g], p.program[c]) if p.program[c] in p.groups[g].swapped else 0
            start = max(free[g] + swap, *(end[source] + lag for source, lag in sources), 0)
            key = rule(p, run, start)
            if best is None or key < best[0]:
                best = key, run, start
        if best is None:
            return None
        _, run, start = best
        c, g = run[0], p.group[run[0]]
        done[c] += 1
        end[run] = free[g] = start + p.duration[c]
        now[g] += p.holds[c] - sum(p.holds[other] for other, until in enumerate(p.until) if until == c)
        if p.program[c] in p.groups[g].swapped:
            there[g] = p.program[c]
        made[g].append(run)
    return tuple(map(tuple, made))
