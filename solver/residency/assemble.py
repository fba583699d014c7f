"""From decisions to the plan document's residency part: which actions, where, in which order."""

from __future__ import annotations

from collections import defaultdict

from hyperopt.plan import Action, ActionKind, Recompute, Residency
from solver.residency.candidates import Decisions, Move
from solver.residency.problem import Problem

ORDER: dict[ActionKind, int] = {"copy_in": 0, "copy_out": 1, "release": 2, "release_host": 3}

FIRST = 0
"""Where a copy is given up for one in another tier at the same operator."""


def assemble(problem: Problem, decisions: Decisions, *, keep: bool = False) -> Residency:
    """The plan's residency for chosen moves and reruns.

    At one operator copies are queued in the order of `moves`. A copy in a roomy tier serves all gaps of a storage up
    to its next write, and is given up after the last of them; in a tight one too with `keep`, else after each.
    """
    moves, reruns = decisions.moves, decisions.reruns
    ids = [storage.id for storage in problem.profile.storages]
    actions: list[tuple[int, int, int, Action]] = []

    def add(op: int, kind: ActionKind, s: int, order: int, tier: str | None = None, *, first: bool = False) -> None:
        action = Action(op=op, when="before" if kind == "copy_in" else "after", kind=kind, storage=ids[s], tier=tier)
        actions.append((op, FIRST if first else ORDER[kind], order, action))

    initial = {ids[m.gap.storage]: m.tier for m in moves if m.gap.wraps}
    order = {id(move): i for i, move in enumerate(moves)}
    by_storage: dict[int, list[Move]] = defaultdict(list)
    for move in moves:
        by_storage[move.gap.storage].append(move)
    for s, own in by_storage.items():
        journey = _journey(problem, s, own, keep)
        for i, (kind, op, move) in enumerate(journey):
            moves_on = kind == "release_host" and journey[i + 1 : i + 2] and journey[i + 1][:2] == ("copy_out", op)
            add(op, kind, s, order[id(move)], move.tier if kind == "copy_out" else None, first=bool(moves_on))
    dropped = {(s, leave) for rerun in reruns for s, leave in rerun.drops}
    for s, leave in sorted(dropped):
        add(leave, "release", s, len(moves))
    recompute = tuple(
        Recompute(storage=ids[rerun.target], before_op=rerun.before, ops=rerun.ops)
        for rerun in sorted(reruns, key=lambda r: (r.before, r.ops))
    )
    actions.sort(key=lambda entry: entry[:3])
    return Residency(initial=initial, actions=tuple(action for *_, action in actions), recompute=recompute)


def _journey(problem: Problem, s: int, moves: list[Move], keep: bool) -> list[tuple[ActionKind, int, Move]]:
    """Actions of one storage's moves in a step, with copies out only where no valid copy exists."""
    writers, n = problem.program.writers[s], problem.n
    wrap = next((m for m in moves if m.gap.wraps), None)
    away = sorted((m for m in moves if not m.gap.wraps), key=lambda m: m.gap.after)
    if wrap is not None and wrap.leave < n:
        away.append(wrap)
    steps: list[tuple[ActionKind, int, Move]] = []
    copied_at: int | None = None  # the copy in a tier was made after this operator

    def come_back(move: Move, following: Move | None) -> None:
        """Copies in, and gives the copy outside up at the consumer unless the next move is to use it."""
        nonlocal copied_at
        steps.append(("copy_in", move.back, move))
        arrival = problem.next_compute(min(move.gap.before, n - 1))
        if following is not None and _kept(problem, move, following, writers, copied_at, keep):
            return
        written = _overwritten(writers, move.gap.before, arrival)
        moves_on = following is not None and following.tier != move.tier and arrival == following.out
        in_time = arrival < n and (following is None or arrival < following.out or moves_on)
        if not written and in_time and not _dies(problem, s, arrival):
            steps.append(("release_host", arrival, move))
            copied_at = None

    if wrap is not None:
        copied_at = -1
        if wrap.back < n:
            come_back(wrap, away[0] if away else None)
    for i, move in enumerate(away):
        if not _valid(writers, copied_at, move.leave):
            copied_at = move.out
            steps.append(("copy_out", move.out, move))
        steps.append(("release", move.leave, move))
        if move is not wrap:
            come_back(move, away[i + 1] if i + 1 < len(away) else None)
    return steps


def _kept(
    problem: Problem, move: Move, following: Move, writers: list[int], copied_at: int | None, keep: bool
) -> bool:
    """Whether the copy that a move leaves in its tier stays there for the following move."""
    roomy = (keep or move.tier in problem.roomy) and move.tier == following.tier
    return roomy and _valid(writers, copied_at, following.leave)


def _valid(writers: list[int], copied_at: int | None, until: int) -> bool:
    """Whether a copy made after operator `copied_at` is still good after operator `until`."""
    return copied_at is not None and not any(copied_at < w <= until for w in writers)


def _overwritten(writers: list[int], access: int, until: int) -> bool:
    """Whether the storage is written from its access on up to `until`, which drops the copy by itself."""
    return any(access <= w <= until for w in writers)


def _dies(problem: Problem, s: int, op: int) -> bool:
    """Whether the storage is freed at `op` or before, which gives its copy back by itself."""
    accesses = problem.accesses[s]
    return not problem.program.stays[s] and bool(accesses) and accesses[-1] <= op
