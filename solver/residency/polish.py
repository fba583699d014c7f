"""Local search on the decisions of a plan, every step judged by replay.

The neighbourhood: shift one copy back (by 1, 2, 4, ... compute operators), shift one copy out, drop a decision,
add one, or change one for another. The copies that somebody waits for come first.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from hyperopt.replay import Timeline
from solver.residency.assemble import assemble
from solver.residency.candidates import Decisions, Move, Rerun
from solver.residency.incumbent import Incumbent, Trial
from solver.residency.problem import Problem
from solver.residency.timetable import needed_by, schedule

SHIFTS = (1, 2, 4, 8, 16, 32, 64, 128)


def try_decisions(problem: Problem, incumbent: Incumbent, decisions: Decisions, stage: str) -> Trial | None:
    return incumbent.offer(assemble(problem, decisions), stage)


def polish(
    problem: Problem, incumbent: Incumbent, start: Decisions, options: Decisions, seed: int, rounds: int
) -> Decisions:
    """Climbs from `start` until no neighbour in a round is better, or the incumbent's search is stopped."""
    dice = random.Random(seed)
    current = start
    trial = try_decisions(problem, incumbent, current, "polish")
    for _ in range(rounds):
        if trial is None or incumbent.stopped():
            break
        better = _climb(problem, incumbent, current, trial, options, dice)
        if better is None:
            break
        current, trial = better
    return current


def _climb(
    problem: Problem,
    incumbent: Incumbent,
    current: Decisions,
    trial: Trial,
    options: Decisions,
    dice: random.Random,
) -> tuple[Decisions, Trial] | None:
    """The first better neighbour and what follows from it in one pass; None where there is none."""
    found: tuple[Decisions, Trial] | None = None
    for neighbour in _neighbours(problem, current, trial.timeline, options, dice):
        if incumbent.stopped():
            break
        other = try_decisions(problem, incumbent, neighbour, "polish")
        if other is not None and other.rank() < (found[1] if found else trial).rank():
            found = neighbour, other
            if other.timeline.step_ns < trial.timeline.step_ns:
                return found
    return found


def _neighbours(
    problem: Problem, current: Decisions, times: Timeline, options: Decisions, dice: random.Random
) -> Iterator[Decisions]:
    moves, reruns = current.moves, current.reruns
    order = sorted(range(len(moves)), key=lambda i: -_waited(problem, moves[i], times))
    for i in order:
        for shifted in _shifts(problem, moves[i], reruns):
            yield Decisions((*moves[:i], shifted, *moves[i + 1 :]), reruns)
    for i in order:
        yield _rescheduled(problem, [m for j, m in enumerate(moves) if j != i], list(reruns), times)
    for i in range(len(reruns)):
        yield _rescheduled(problem, list(moves), [r for j, r in enumerate(reruns) if j != i], times)
    for i in range(len(moves) - 1):
        yield Decisions((*moves[:i], moves[i + 1], moves[i], *moves[i + 2 :]), reruns)
    spare = [m for m in options.moves if not any(_overlap(m, own) for own in moves)]
    dice.shuffle(spare)
    for move in spare:
        yield _rescheduled(problem, [*moves, move], list(reruns), times)
    for i in order:
        rest = [m for j, m in enumerate(moves) if j != i]
        for move in spare + [m for m in options.moves if _overlap(m, moves[i]) and m.gap != moves[i].gap]:
            yield _rescheduled(problem, [*rest, move], list(reruns), times)
    for rerun in options.reruns:
        if rerun not in reruns:
            dropped = {s for s, _ in rerun.drops}
            rest = [m for m in moves if m.gap.storage not in dropped]
            yield _rescheduled(problem, rest, [*reruns, rerun], times)


def _rescheduled(problem: Problem, moves: list[Move], reruns: list[Rerun], times: Timeline) -> Decisions:
    return Decisions(tuple(schedule(problem, moves, reruns, times)), tuple(reruns))


def _overlap(a: Move, b: Move) -> bool:
    if a.gap.storage != b.gap.storage:
        return False
    return any(f < e2 and f2 < e for f, e in a.off() for f2, e2 in b.off())


def _waited(problem: Problem, move: Move, times: Timeline) -> int:
    """Nanoseconds that the consumer of a move started after it could have: a sign of a late copy."""
    if move.gap.back >= problem.n:
        return 0
    ready = max((times.end[k] for k in range(max(0, move.gap.back - 1), move.gap.back)), default=0)
    return times.start[move.gap.back] - ready


def _shifts(problem: Problem, move: Move, reruns: tuple[Rerun, ...]) -> Iterator[Move]:
    if move.gap.back < problem.n:
        latest = needed_by(problem, move, reruns)
        first = 0 if move.gap.wraps else move.leave + 1
        for back in _around(problem.arrivals, move.back):
            if first <= back <= latest:
                yield replace(move, back=back)
    if move.leave < problem.n:
        for out in _around(problem.departures, move.out):
            if move.gap.written <= out and (move.gap.wraps or out < move.back):
                yield replace(move, out=out, leave=max(out, move.gap.leave))


def _around(places: list[int], op: int) -> Iterator[int]:
    """The places 1, 2, 4, ... before and after `op`."""
    at = bisect_left(places, op)
    for shift in SHIFTS:
        for i in (at - shift, at + shift):
            if 0 <= i < len(places):
                yield places[i]
