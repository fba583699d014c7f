"""Recompute of many dropped storages together: what runs again, where, and from what.

`candidates.reruns` makes each storage again from what an unplanned step has in HBM. Rules that drop most of a layer
need more: a chain runs back *through* what is dropped too, and all that it makes again stays for its own use, so
that nothing is computed twice (Capuchin calls it collective recomputation; the partitioner of functorch does the
same)::

    forward    x ──f──▶ y ──g──▶ z          y and z are dropped, x is kept
    backward   before the first use of z: f, g run again; z is used, y stays until its own use
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from solver.residency.candidates import MAX_CHAIN, Move, Rerun, reruns
from solver.residency.problem import Problem

Span = tuple[int, int]


@dataclass(frozen=True)
class Drop:
    """A choice to recompute: HBM saved at operators [first, end) of `spans`, for `cost_ns` of compute.

    `storages`: what is dropped. `bytes`: what that saves, less the inputs that have to live longer for it. `gap`:
    accesses around it. `ops`: what runs again if all that is alive is in HBM. `made`: all that these write.
    `passing`: bytes of it that are needed only on the way.
    """

    storages: tuple[int, ...]
    bytes: int
    cost_ns: int
    span: Span
    gap: Span
    ops: tuple[int, ...]
    made: frozenset[int]
    passing: int
    rerun: Rerun | None = None
    """In an adapter that works in layers: the whole of it."""

    def per_byte(self) -> float:
        return self.cost_ns / max(1, self.bytes)


def drops(problem: Problem, kept: Collection[int] = ()) -> list[Drop]:
    """Every recompute that the profile's marks and its adapter allow, one by one, where `kept` stays in HBM."""
    if problem.profile.adapter.recompute == "operator":
        stays = frozenset(kept)
        found = (
            _drop(problem, s, gap, stays)
            for s in range(len(problem.program.size))
            if s not in stays
            for gap in problem.idle(s)
        )
        return [drop for drop in found if drop is not None]
    return [_whole(problem, rerun) for rerun in reruns(problem)]


def _whole(problem: Problem, rerun: Rerun) -> Drop:
    program = problem.program
    alive = [problem.alive[s] for s, _ in rerun.drops]
    lasting = [s for (s, _), span in zip(rerun.drops, alive, strict=True) if span and span[1] > rerun.before]
    leave = max(leave for s, leave in rerun.drops if s in lasting) if lasting else rerun.before
    return Drop(
        storages=tuple(s for s, _ in rerun.drops),
        bytes=sum(program.size[s] for s in lasting),
        cost_ns=rerun.duration_ns,
        span=(leave + 1, rerun.before),
        gap=(leave, rerun.before),
        ops=rerun.ops,
        made=frozenset(s for k in rerun.ops for s in program.writes[k]),
        passing=rerun.extra_bytes,
        rerun=rerun,
    )


def _drop(problem: Problem, s: int, gap: Span, kept: frozenset[int]) -> Drop | None:
    (after, before), program = gap, problem.program
    if after < 0 or before >= problem.n or not program.size[s] or not program.writers[s]:
        return None
    leave, back = problem.next_compute(after), problem.last_compute(before)
    if leave + 1 >= back:
        return None
    chain = _remake(problem, s, back, kept)
    if chain is None:
        return None
    made = frozenset(o for k in chain for o in program.writes[k])
    read = {o for k in chain for o in program.reads[k]} - made
    saved = program.size[s] - sum(program.size[o] for o in read if not _alive(problem, o, back))
    if saved <= 0:
        return None
    return Drop(
        storages=(s,),
        bytes=saved,
        cost_ns=sum(program.duration[k] for k in chain),
        span=(leave + 1, back),
        gap=gap,
        ops=tuple(chain),
        made=made,
        passing=sum(program.size[o] for o in made if not _alive(problem, o, back))
        + max(program.workspace[k] for k in chain),
    )


def _remake(problem: Problem, s: int, at: int, kept: frozenset[int]) -> list[int] | None:
    """The operators that make `s` again before operator `at`, if all that is alive there or kept is in HBM."""
    problem.check()
    found: set[int] = set()
    frontier = [s]
    while frontier:
        writer = _writer(problem, frontier.pop(), at)
        if writer is None or len(found) >= MAX_CHAIN:
            return None
        if writer not in found:
            found.add(writer)
            frontier += [
                read
                for read in problem.program.reads[writer]
                if read not in kept and not _alive(problem, read, at) and _writer(problem, read, at) is not None
            ]
    return sorted(found)


def _writer(problem: Problem, s: int, at: int) -> int | None:
    """The operator that, run again before `at`, gives `s` its content of then and changes nothing else."""
    writer = problem.program.version_before(s, at)
    return writer if writer >= 0 and _repeatable_until(problem)[writer] >= at else None


_REPEATABLE: WeakKeyDictionary[Problem, list[int]] = WeakKeyDictionary()


def _repeatable_until(problem: Problem) -> list[int]:
    """Per operator, the last place before which it may run again: what it reads and writes still has the content of
    then; -1 where it never may. An update in place never may: its old content is gone for good."""
    found = _REPEATABLE.get(problem)
    if found is None:
        program, operators = problem.program, problem.profile.operators
        written = [problem.n] * len(program.size)  # the next operator that writes it
        found = [-1] * problem.n
        for k in range(problem.n - 1, -1, -1):
            reads, writes = program.reads[k], program.writes[k]
            if operators[k].recomputable and not set(reads) & set(writes):
                found[k] = min((written[s] for s in (*reads, *writes)), default=problem.n)
            for s in writes:
                written[s] = k
        _REPEATABLE[problem] = found
    return found


def _alive(problem: Problem, s: int, at: int) -> bool:
    span = problem.alive[s]
    return span is not None and span[0] <= at < span[1]


def recompute(
    problem: Problem, chosen: Sequence[Drop], moves: Sequence[Move], kept: Collection[int] = ()
) -> tuple[list[Rerun], list[Move]]:
    """The reruns for chosen drops, and the moves that go with them.

    A storage that a rerun reads is copied back before it; one that a rerun writes does not move at all. What is in
    `kept` stays in HBM until the last rerun that reads it, even where it would die, and is not made again.
    """
    if not chosen:
        return [], list(moves)
    if problem.profile.adapter.recompute == "operator":
        return _Chains(problem, moves, kept).run(chosen)
    made = compatible([drop.rerun for drop in chosen if drop.rerun is not None])
    return made, _beside(problem, made, moves)


def _beside(problem: Problem, made: Sequence[Rerun], moves: Sequence[Move]) -> list[Move]:
    written = {s for rerun in made for k in rerun.ops for s in problem.program.writes[k]}
    kept = []
    for move in moves:
        if move.gap.storage in written:
            continue
        first: Move | None = move
        for rerun in made:
            if first is not None and move.gap.storage in rerun.held:
                first = _back_by(problem, first, rerun.before)
        if first is not None:
            kept.append(first)
    return kept


def _back_by(problem: Problem, move: Move, op: int) -> Move | None:
    """The move with its copy in placed so that operator `op` finds the storage; None: there is no such place."""
    if not any(first <= op < end for first, end in move.off()):
        return move
    if move.gap.wraps and op > move.leave:
        return None
    back = problem.last_arrival(op)
    if back < 0 or (not move.gap.wraps and back <= move.leave):
        return None
    return replace(move, back=min(back, move.back))


def _leave(move: Move) -> int:
    return -1 if move.gap.wraps else move.leave


class _Chains:
    """One walk over the places where something dropped is needed again, in listed order."""

    def __init__(self, problem: Problem, moves: Sequence[Move], kept: Collection[int]) -> None:
        self.problem, self.ends = problem, frozenset(kept)
        self.moves: dict[int, list[Move]] = {}
        for move in moves:
            self.moves.setdefault(move.gap.storage, []).append(move)
        for own in self.moves.values():
            own.sort(key=_leave)
        self.order = {id(move): i for i, move in enumerate(moves)}
        self.kept: dict[int, Move] = dict(enumerate(moves))
        self.absent: dict[int, int] = {}  # storage -> released after
        self.passed: dict[int, int] = {}  # made again on the way and not alive: released after

    def run(self, chosen: Sequence[Drop]) -> tuple[list[Rerun], list[Move]]:
        leaving = sorted(chosen, key=lambda d: (d.span[0], d.storages))
        needed: dict[int, list[Drop]] = {}
        for drop in chosen:
            needed.setdefault(drop.span[1], []).append(drop)
        made, i = [], 0
        for at in sorted(needed):
            self.problem.check()
            while i < len(leaving) and leaving[i].span[0] <= at:
                self.absent[leaving[i].storages[0]] = leaving[i].span[0] - 1
                i += 1
            wanted = [d.storages[0] for d in needed[at] if d.storages[0] in self.absent]
            if wanted:
                made.append(self._chain(at, wanted))
        return made, [self.kept[i] for i in sorted(self.kept)]

    def _chain(self, at: int, wanted: list[int]) -> Rerun:
        problem, program = self.problem, self.problem.program
        ops: set[int] = set()
        held: set[int] = set()
        frontier = list(wanted)
        while frontier:
            writer = program.version_before(frontier.pop(), at)
            if writer in ops:
                continue
            ops.add(writer)
            for read in program.reads[writer]:
                if read in self.absent or self._to_make(read, at):
                    frontier.append(read)
                else:
                    held.add(read)
        written = {s for k in ops for s in program.writes[k]}
        for s in held - written:
            self._bring_back(s, at)
        returned, passing = {}, 0
        for s in sorted(written):
            self._stay(s)
            if s in self.absent:
                returned[s] = self.absent.pop(s)
            elif _alive(problem, s, at):
                held.add(s)
            else:
                passing += program.size[s]
                leave = self.passed.get(s)
                if leave is None:
                    leave = problem.next_compute(problem.accesses[s][-1])
                if leave < at:
                    returned[s] = leave
                self.passed[s] = at
        chain = tuple(sorted(ops))
        return Rerun(
            target=max(wanted, key=lambda s: (program.size[s], -s)),
            drops=tuple(sorted(returned.items())),
            ops=chain,
            before=at,
            held=tuple(sorted(held)),
            extra_bytes=passing + max(program.workspace[k] for k in chain),
            duration_ns=sum(program.duration[k] for k in chain),
        )

    def _to_make(self, s: int, at: int) -> bool:
        if s in self.ends or _alive(self.problem, s, at):
            return False
        return _writer(self.problem, s, at) is not None

    def _bring_back(self, s: int, at: int) -> None:
        """Idle spans of a storage do not overlap: only the last that it left before, or one around the end, is it."""
        own = self.moves.get(s, [])
        last = bisect_left(own, at, key=_leave) - 1
        for i in {self.order[id(move)] for move in (*own[:1], *own[max(0, last) : last + 1])}:
            if i in self.kept:
                back = _back_by(self.problem, self.kept[i], at)
                if back is None:
                    del self.kept[i]
                else:
                    self.kept[i] = back

    def _stay(self, s: int) -> None:
        for move in self.moves.get(s, ()):
            self.kept.pop(self.order[id(move)], None)


def compatible(candidates: Iterable[Rerun]) -> list[Rerun]:
    """The candidates in order, without those that would read or write what an earlier one has dropped."""
    chosen: list[Rerun] = []
    absent: dict[int, list[Span]] = {}  # storage -> (released after, back before)
    needs: dict[int, list[int]] = {}  # storage -> operators before which it is needed
    for rerun in candidates:
        dropped = {s for s, _ in rerun.drops}
        clash = any(a < rerun.before < b for s in rerun.held for a, b in absent.get(s, ()))
        clash = clash or any(
            a < b2 and a2 < b for s, a in rerun.drops for b in [rerun.before] for a2, b2 in absent.get(s, ())
        )
        clash = clash or any(a < at < rerun.before for s, a in rerun.drops for at in needs.get(s, ()))
        if clash:
            continue
        chosen.append(rerun)
        for s, leave in rerun.drops:
            absent.setdefault(s, []).append((leave, rerun.before))
        for s in {*rerun.held, *dropped}:
            needs.setdefault(s, []).append(rerun.before)
    return chosen
