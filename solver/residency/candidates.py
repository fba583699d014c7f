"""The single decisions that a plan is made of: move one storage in one gap, or drop storages and recompute them.

A *rerun* is a recompute with all that it implies: which storages are released without a copy and where, which
operators run again before which, and which other storages must be held in HBM for that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hyperopt.profile import IDLE
from solver.residency.chains import chains
from solver.residency.problem import Gap, Problem

MAX_CHAIN = 64
"""Operators in one recompute chain. Longer ones save little: their inputs and time grow with them."""

MAX_TOGETHER = 512
"""Operators that one rerun of several storages may take: a layer's forward run."""

PARTS = 4

NEAR = 10
"""Of the step's time, the part by which a rerun may be early to use a wait."""


@dataclass(frozen=True, slots=True)
class Move:
    """A storage in `tier` during a gap: copied out after `out`, released after `leave`, copied in before `back`."""

    gap: Gap
    tier: str
    out: int
    leave: int
    back: int

    def off(self) -> list[tuple[int, int]]:
        if self.gap.wraps:
            return [(0, self.back), (self.leave + 1, 1 << 62)]
        return [(self.leave + 1, self.back)]


class Rerun(NamedTuple):
    """Storages `drops` = ((storage, released after), ...) come back by running `ops` before `before`.

    `target`: the storage that the plan names. `held`: what the operators read and must find in HBM there.
    `extra_bytes`: more HBM than the dropped storages while the operators run. `duration_ns`: of all of them.
    """

    target: int
    drops: tuple[tuple[int, int], ...]
    ops: tuple[int, ...]
    before: int
    held: tuple[int, ...]
    extra_bytes: int
    duration_ns: int


@dataclass(frozen=True)
class Decisions:
    """Chosen moves, in order of issue, and reruns."""

    moves: tuple[Move, ...] = ()
    reruns: tuple[Rerun, ...] = ()


def moves(problem: Problem) -> list[Move]:
    """Every gap with every tier that could take it, copied back at the last moment."""
    return [
        Move(gap, tier, gap.leave, gap.leave, gap.back)
        for gap in problem.gaps
        for tier in problem.tiers
        if gap.bytes <= problem.tier_bytes[tier]
    ]


def reruns(problem: Problem) -> list[Rerun]:
    """Every recompute that the profile's marks and its adapter allow."""
    how = problem.profile.adapter.recompute
    if how == "none":
        return []
    if how != "operator":
        return _layer_reruns(problem, whole=how == "cell")
    alone = _operator_reruns(problem)
    return list(dict.fromkeys([*alone, *_together(problem, alone)]))


def _operator_reruns(problem: Problem) -> list[Rerun]:
    """Of each storage in each span in which it is idle; where freed inputs can be held, also with those held."""
    wanted = []
    for s, size in enumerate(problem.program.size):
        problem.check()
        if not size or not problem.program.writers[s]:
            continue
        for after, before in problem.idle(s):
            position = problem.last_compute(min(before, problem.n - 1))
            leave = problem.next_compute(max(after, 0))
            if after >= 0 and before < problem.n and leave + 1 < position:
                wanted.append((s, leave, position))
    table = np.asarray(wanted, dtype=np.int64).reshape(-1, 3)
    storage, before_ops = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 2])
    both = [chains(problem, storage, before_ops, shallow=shallow, longest=MAX_CHAIN) for shallow in (False, True)]
    found: list[Rerun] = []
    for i, (s, leave, position) in enumerate(wanted):
        problem.check()
        for ops, held in dict.fromkeys(of.of(i) for of in both):
            rerun = _rerun(problem, s, {s: leave}, ops, position, set(held)) if ops else None
            if rerun is not None:
                found.append(rerun)
    return found


def _together(problem: Problem, alone: list[Rerun]) -> list[Rerun]:
    """Reruns that bring several storages back at once: all outputs of an operator, and of a layer's forward run the
    cheapest by time a byte up to a quarter, a half, three quarters and all of its bytes."""
    operators, program = problem.profile.operators, problem.program
    by_writer: dict[int, list[Rerun]] = defaultdict(list)
    by_layer: dict[tuple[str, int | None], list[Rerun]] = defaultdict(list)
    for rerun in {(r.target, r.before): r for r in reversed(alone)}.values():
        writer = program.version_before(rerun.target, rerun.before)
        by_writer[writer].append(rerun)
        made, used = operators[writer], operators[rerun.before]
        if made.phase == "forward" and used.phase != "forward" and made.layer:
            by_layer[made.layer, made.micro_batch].append(rerun)
    found: list[Rerun | None] = []
    for own in by_writer.values():
        problem.check()
        found += [_joined(problem, own)] if len(own) > 1 else []
    for own in by_layer.values():
        problem.check()
        own.sort(key=lambda r: (r.duration_ns / program.size[r.target], r.before))
        total, sum_of = sum(program.size[r.target] for r in own), 0
        marks = [total * part // PARTS for part in range(1, PARTS + 1)]
        for i, rerun in enumerate(own):
            sum_of += program.size[rerun.target]
            if i and sum_of >= marks[0]:
                found.append(_joined(problem, own[: i + 1]))
                while marks and sum_of >= marks[0]:
                    marks.pop(0)
            if not marks:
                break
    return [rerun for rerun in found if rerun is not None]


def reruns_for(problem: Problem, wanted: set[tuple[int, int]], known: list[Rerun]) -> list[Rerun]:
    """Reruns that bring back just the wanted (storage, gone since the access at this operator).

    What is made from each other in one layer comes back together; what one rerun needs of another's stays.
    """
    if problem.profile.adapter.recompute != "operator":
        return []
    own: dict[int, Rerun] = {}
    for rerun in reversed(known):
        touched = problem.accesses[rerun.target]
        after = touched[bisect_right(touched, dict(rerun.drops)[rerun.target]) - 1]
        if len(rerun.ops) <= MAX_CHAIN and (rerun.target, after) in wanted:
            own[rerun.target] = rerun
    found = [_joined(problem, group) if len(group) > 1 else group[0] for group in _connected(problem, own)]
    for s in {s for rerun in found if rerun is not None for s in rerun.held}:
        own.pop(s, None)
    again = [_joined(problem, group) if len(group) > 1 else group[0] for group in _connected(problem, own)]
    return [rerun for rerun in again if rerun is not None]


def _connected(problem: Problem, own: dict[int, Rerun]) -> list[list[Rerun]]:
    """The reruns (by target) in groups of one layer and micro-batch in which one is made from, or with, another."""
    operators, program = problem.profile.operators, problem.program
    group = {s: s for s in own}

    def root(s: int) -> int:
        while group[s] != s:
            s = group[s]
        return s

    def place(s: int) -> tuple[str, int | None]:
        made = operators[program.version_before(s, own[s].before)]
        return made.layer, made.micro_batch

    for s, rerun in own.items():
        writer = program.version_before(s, rerun.before)
        for other in (*program.reads[writer], *program.writes[writer]):
            if other != s and other in own and place(other) == place(s):
                group[root(other)] = root(s)
    members: dict[int, list[Rerun]] = defaultdict(list)
    for s, rerun in own.items():
        members[root(s)].append(rerun)
    return list(members.values())


def in_waits(problem: Problem, found: list[Rerun]) -> list[Rerun]:
    """The reruns again, each before the last operator ahead of its own for which the compute stream waits long enough.

    Time in which the stream waits for another one costs nothing; the content then lies ready until it is used.
    """
    idle = problem.idle_ns
    places = np.flatnonzero(idle > 0)
    start = np.asarray(problem.unlimited.start)
    earlier = []
    for rerun in found:
        problem.check()
        last = max(leave for _, leave in rerun.drops)
        near = places[np.searchsorted(places, last + 2) : np.searchsorted(places, rerun.before)]
        near = near[idle[near] >= rerun.duration_ns / 2]
        if len(near) and start[rerun.before] - start[near[-1]] < problem.unlimited.step_ns // NEAR:
            moved = _moved(problem, rerun, int(near[-1]))
            if moved is not None:
                earlier.append(moved)
    return earlier


def _moved(problem: Problem, rerun: Rerun, before: int) -> Rerun | None:
    program = problem.program
    made = {s for k in rerun.ops for s in program.writes[k]}
    for k in rerun.ops:
        for s in program.reads[k]:
            if s not in made and program.version_before(s, k) != program.version_before(s, before):
                return None
    if rerun.ops[-1] >= before:
        return None
    drops = {s: leave for s, leave in rerun.drops if problem.accesses[s][-1] >= rerun.before or program.stays[s]}
    held = {s for k in rerun.ops for s in program.reads[k] if s not in made}
    return _rerun(problem, rerun.target, drops, rerun.ops, before, held) if rerun.target in drops else None


def _joined(problem: Problem, own: list[Rerun]) -> Rerun | None:
    """The rerun that brings back what several would, where the first of them is needed."""
    before = min(r.before for r in own)
    drops: dict[int, int] = {}
    for rerun in own:
        leave = dict(rerun.drops)[rerun.target]
        if leave < before and drops.get(rerun.target, leave) <= leave:
            drops[rerun.target] = leave
    if len(drops) < 2:
        return None
    needed: set[int] = set()
    held: set[int] = set()
    frontier = [(s, problem.program.version_before(s, before)) for s in drops]
    while frontier:
        made, writer = frontier.pop()
        if writer < 0 or not problem.profile.operators[writer].recomputable or len(needed) >= MAX_TOGETHER:
            return None
        if writer in needed:
            continue
        needed.add(writer)
        for read in problem.program.reads[writer]:
            version = problem.program.version_before(read, writer)
            if read == made or version != problem.program.version_before(read, before):
                return None
            if read in drops:
                frontier.append((read, version))
            elif _alive(problem, read, before):
                held.add(read)
            elif version >= 0 and problem.profile.operators[version].recomputable:
                frontier.append((read, version))
            else:
                held.add(read)
    target = max(drops, key=lambda s: (problem.program.size[s], -s))
    return _rerun(problem, target, drops, tuple(sorted(needed)), before, held)


def _alive(problem: Problem, s: int, at: int) -> bool:
    span = problem.alive[s]
    return span is not None and span[0] <= at < span[1]


def _layer_reruns(problem: Problem, *, whole: bool) -> list[Rerun]:
    """One rerun a layer: all that its forward operators leave behind for backward, and nobody else forward."""
    operators = problem.profile.operators
    forward: dict[str, list[int]] = defaultdict(list)
    users: dict[int, set[str]] = defaultdict(set)  # storage -> layers that touch it forward
    for k, operator in enumerate(operators):
        if operator.phase == "forward" and operator.type != IDLE:
            if operator.layer:
                forward[operator.layer].append(k)
            for id in {*operator.accesses, *operator.saves}:
                users[problem.program.position[id]].add(operator.layer)
    found = []
    for ops in forward.values():
        if all(operators[k].recomputable for k in ops):
            inside = {s for k in ops for s in problem.program.writes[k] if len(users[s]) == 1}
            rerun = _layer_rerun(problem, ops, inside, whole)
            if rerun is not None:
                found.append(rerun)
    return found


def _layer_rerun(problem: Problem, ops: list[int], inside: set[int], whole: bool) -> Rerun | None:
    program, last = problem.program, ops[-1]
    later = {s: [k for k in problem.accesses[s] if k > last] for s in inside if program.size[s]}
    later = {s: accesses for s, accesses in later.items() if accesses and not program.stays[s]}
    if not later:
        return None
    before = problem.last_compute(min(accesses[0] for accesses in later.values()))
    drops = {s: problem.next_departure(_last_touch(problem, s, ops)) for s in later}
    needed = ops if whole else _made_from(problem, set(drops), ops)
    made = {s for k in needed for s in program.writes[k]}
    held = set[int]()
    for k in needed:
        for s in program.reads[k]:
            version = program.version_before(s, k)
            if version < ops[0] or s not in made:
                if version != program.version_before(s, before):
                    return None
                held.add(s)
    target = max(drops, key=lambda s: (program.size[s], -s))
    return _rerun(problem, target, drops, tuple(needed), before, held)


def _last_touch(problem: Problem, s: int, ops: list[int]) -> int:
    id = problem.profile.storages[s].id
    operators = problem.profile.operators
    return max(k for k in ops if id in operators[k].accesses or id in operators[k].saves)


def _made_from(problem: Problem, wanted: set[int], ops: list[int]) -> list[int]:
    """Those of `ops` that the wanted storages are made from."""
    wanted, needed = set(wanted), []
    for k in reversed(ops):
        if wanted & set(problem.program.writes[k]):
            needed.append(k)
            wanted |= set(problem.program.reads[k])
    return needed[::-1]


def _rerun(
    problem: Problem, target: int, drops: dict[int, int], ops: tuple[int, ...], before: int, held: set[int]
) -> Rerun | None:
    """Completes a rerun with the side effects of its operators; None where they would do harm."""
    program = problem.program
    written = {s for k in ops for s in program.writes[k]}
    all_drops = dict(drops)
    side_bytes = 0
    for s in written - drops.keys():
        accesses = problem.accesses[s]
        used_later = program.stays[s] or accesses[-1] >= before
        if used_later and not _same_version(problem, s, ops, before):
            return None  # running again would overwrite newer content
        if used_later or _handed_on(problem, s, ops):
            held.add(s)  # overwritten with the same content: it must not be away just then
        else:
            all_drops[s] = problem.next_departure(accesses[-1])
            side_bytes += program.size[s]
    for s in drops:
        if not _same_version(problem, s, ops, before):
            return None
    if any(leave >= before for leave in all_drops.values()):
        return None
    workspace = max(program.workspace[k] for k in ops)
    return Rerun(
        target=target,
        drops=tuple(sorted(all_drops.items())),
        ops=ops,
        before=before,
        held=tuple(sorted(held)),
        extra_bytes=side_bytes + workspace,
        duration_ns=sum(program.duration[k] for k in ops),
    )


def _handed_on(problem: Problem, s: int, ops: tuple[int, ...]) -> bool:
    """Whether an adapter that works in layers cannot release `s` early: others use what this layer made."""
    return problem.profile.adapter.recompute != "operator" and problem.accesses[s][-1] > ops[-1]


def _same_version(problem: Problem, s: int, ops: tuple[int, ...], before: int) -> bool:
    """Whether running `ops` again leaves storage `s` as it is before `before` in the profile."""
    last_writer = max(k for k in ops if s in problem.program.writes[k])
    return problem.program.version_before(s, before) == last_writer
