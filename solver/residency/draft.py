"""A plan while it is worked on: for each gap whether its storage leaves, and where; for each rerun whether it is made.

Flat arrays, so that compiled code can time a draft, write it as the engine's orders and replay it some thousand times
a second::

    Draft (tier, out, back per gap; chosen per rerun) ── clockwork ──▶ positions ── orders ──▶ engine.run ──▶ Outcome

`assemble` writes the same plan from `Decisions`, one object an action; tests hold the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperopt.engine import Orders, arrays_of
from hyperopt.plan import HOST, Action, ActionKind, Recompute, Residency
from solver.residency.candidates import Decisions, Move, Rerun
from solver.residency.clashes import clashes
from solver.residency.layout import Layout
from solver.residency.problem import Gap, Int64s, Problem
from solver.residency.rehearsal import Stage, World, stage_for, trimmed, write

Bools = npt.NDArray[np.bool_]

STAYS = -1

DROPPED, HELD = range(2)
"""In `Table.parts`: what a rerun is for, and what it reads. It may drop, besides, what is dead by then."""

AFTER: tuple[ActionKind, ...] = ("copy_out", "release", "release_host")
"""What the engine's kinds of orders after an operator are called in a plan."""


@dataclass
class Draft:
    """`tier[g]`: where the storage of gap g goes (index into the device's tiers; STAYS: nowhere), `out[g]` and
    `back[g]`: the operators after and before which it is copied; `chosen[r]`: whether rerun r is made."""

    tier: Int64s
    out: Int64s
    back: Int64s
    chosen: Bools

    def copy(self) -> Draft:
        return Draft(self.tier.copy(), self.out.copy(), self.back.copy(), self.chosen.copy())


class Table:
    """All gaps (sorted by storage, then time, a wrap last) and reruns of a problem as arrays, and what may be where.

    `version[g]`: which content of the storage is away (-1: as at the step's start); `given_up[g]`: the operator after
    which its copy in a tier is, where no later gap needs it (n: not within the step).
    """

    def __init__(self, problem: Problem, reruns: list[Rerun]) -> None:
        self.problem, self.reruns = problem, reruns
        self.arrays = arrays_of(problem.profile)
        kept = self._kept_gaps()
        self.gaps: list[Gap] = sorted([*problem.gaps, *kept], key=lambda g: (g.storage, g.wraps, g.after))
        self.kept = np.asarray([gap in kept for gap in self.gaps], dtype=np.bool_)
        rows = np.asarray(
            [(g.storage, g.after, g.before, g.leave, g.back, g.written, g.wraps, g.bytes) for g in self.gaps],
            dtype=np.int64,
        ).reshape(-1, 8)
        columns = (np.ascontiguousarray(rows[:, i]) for i in range(8))
        self.storage, self.after, self.before, self.leave, self.latest, self.written, self.wraps, self.bytes = columns
        self.count = len(self.gaps)
        program, n = problem.program, problem.n
        self.version = np.asarray(
            [program.version_before(g.storage, n if g.wraps else g.before) for g in self.gaps], dtype=np.int64
        )
        bounds = np.searchsorted(self.storage, np.arange(len(program.size) + 1))
        self.first_gap = np.asarray(bounds, dtype=np.int64)
        self.writer_at = np.concatenate([[0], np.cumsum([len(w) for w in program.writers])]).astype(np.int64)
        self.writer = np.asarray([k for w in program.writers for k in w], dtype=np.int64)
        self.unpaid = (self.wraps > 0) & (self.version < 0)
        self.next_compute = _next(problem.compute, n)
        self.next_departure = _next(problem.departures, n)
        self.last_departure = _last(problem.departures, n)
        self.next_arrival = _next(problem.arrivals, n)
        self.last_arrival = _last(problem.arrivals, n)
        self.last_access = np.asarray(program.last_access, dtype=np.int64)
        self.stays = np.asarray(program.stays, dtype=np.bool_)
        names = list(self.arrays.tiers)
        self.tier_index = {name: t for t, name in enumerate(names)}
        self.usable = np.asarray([name in problem.tiers for name in names], dtype=np.bool_)
        self.roomy = np.asarray([name in problem.roomy for name in names], dtype=np.bool_)
        self.room = np.asarray([problem.tier_bytes.get(name, 0) for name in names], dtype=np.int64)
        self.takes = self._takes()
        self.given_up = np.where(self.before < n, self.next_compute[np.minimum(self.before, n - 1)], n)
        self.by_leave = np.lexsort((self.storage, self.before, self.leave))
        self.by_latest = np.lexsort((self.storage, -self.latest))
        self._lay_out_reruns()

    def _kept_gaps(self) -> set[Gap]:
        """Gaps of what reruns keep past its last access: to be used only beside such a rerun."""
        until: dict[int, int] = {}
        for rerun in self.reruns:
            for s in rerun.held:
                if not self.problem.program.stays[s] and self.problem.program.last_access[s] < rerun.before:
                    until[s] = max(until.get(s, 0), rerun.before)
        found = (self.problem.kept_gap(s, before) for s, before in until.items())
        return {gap for gap in found if gap is not None}

    def _takes(self) -> Bools:
        """(tier, gap): whether the gap's storage may go to the tier, whatever else it does.

        To one without links both ways only around the step's end, and if it ends there again only where it has no gap
        in between: that one would have to be spent in the same tier, or in HBM.
        """
        problem, names = self.problem, self.arrays.tiers
        found = np.zeros((len(names), self.count), dtype=np.bool_)
        found[self.usable] = True
        inner = {gap.storage for gap in problem.gaps if not gap.wraps and problem.tiers}
        for g, gap in enumerate(self.gaps):
            if gap.wraps and (gap.storage not in inner or not problem.program.stays[gap.storage]):
                for name in problem.takers(gap):
                    found[self.tier_index[name], g] = True
            elif not gap.wraps and not problem.tiers:
                found[:, g] = False
        return found

    def settle(self, draft: Draft) -> None:
        """Takes out of the draft moves of what no rerun keeps any more."""
        needless = self.kept & (draft.tier >= 0)
        if needless.any():
            held = np.zeros(len(self.size), dtype=np.bool_)
            of = (self.parts[:, 4] == 1) & (self.parts[:, 2] < self.parts[:, 3])
            held[self.parts[of & draft.chosen[self.parts[:, 0]], 1]] = True
            draft.tier[needless & ~held[self.storage]] = STAYS

    def _lay_out_reruns(self) -> None:
        program = self.problem.program
        rows, extra = [], []
        for r, rerun in enumerate(self.reruns):
            self.problem.check()
            for s, leave in rerun.drops:
                later = program.stays[s] or program.last_access[s] >= rerun.before
                rows.append((r, s, leave, rerun.before, 0 if later else 2))
            written = {s for k in rerun.ops for s in program.writes[k]} if rerun.held else set[int]()
            for s in rerun.held:
                span = self.problem.alive[s]
                ends = span[1] if span is not None else self.problem.n
                rows.append((r, s, min(ends, rerun.before), rerun.before, 3 if s in written else 1))
            extra.append(rerun.extra_bytes)
        table = np.asarray(rows, dtype=np.int64).reshape(-1, 5)
        # (rerun, storage, first operator, rerun position,
        # 0 dropped / 1 held / 2 dropped and dead anyway / 3 held and written again: its copy in a tier is lost)
        self.parts = table
        self.extra = np.asarray(extra, dtype=np.int64)
        self.rerun_before = np.asarray([r.before for r in self.reruns], dtype=np.int64)
        self.rerun_ns = np.asarray([r.duration_ns for r in self.reruns], dtype=np.int64)
        self.part_at = np.searchsorted(table[:, 0], np.arange(len(self.reruns) + 1)).astype(np.int64)

    def reruns_at(self, op: int) -> Bools:
        """The reruns that take room at an operator: they run before it, or keep something until later."""
        found = np.asarray(self.rerun_before == op, dtype=np.bool_)
        parts = self.parts[(self.parts[:, 4] & 1 == 1) & (self.parts[:, 2] <= op) & (op <= self.parts[:, 3])]
        found[parts[parts[:, 2] < parts[:, 3], 0]] = True
        return found

    @cached_property
    def kept_ns(self) -> Int64s:
        """Per rerun, the time to move what it keeps past its last access out and back."""
        program = self.problem.program
        both = self.arrays.tables.out_ns.max(axis=0) + self.arrays.tables.in_ns.max(axis=0)
        return np.asarray(
            [
                sum(int(both[s]) for s in r.held if program.last_access[s] < r.before and not program.stays[s])
                for r in self.reruns
            ],
            dtype=np.int64,
        )

    @cached_property
    def size(self) -> Int64s:
        return np.asarray(self.problem.program.size, dtype=np.int64)

    @cached_property
    def out_ns(self) -> Int64s:
        """(tier, gap)"""
        return np.ascontiguousarray(self.arrays.tables.out_ns[:, self.storage])

    @cached_property
    def in_ns(self) -> Int64s:
        return np.ascontiguousarray(self.arrays.tables.in_ns[:, self.storage])

    @cached_property
    def duplex(self) -> Bools:
        return np.asarray(self.arrays.tables.duplex, dtype=np.bool_)

    @cached_property
    def layout(self) -> Layout:
        problem, reruns = self.problem, self.reruns
        run_at = np.cumsum([0, *(len(r.ops) for r in reruns)])
        clash_at, clash = self.rerun_clashes
        turns = sorted(range(len(reruns)), key=lambda r: (reruns[r].before, reruns[r].ops))
        return Layout(
            n=problem.n,
            gaps=_rows(
                self.storage, self.bytes, self.after, self.before, self.leave, self.latest, self.written, self.wraps,
                self.version, self.kept, self.by_leave, self.by_latest, self.given_up,
            ),
            operators=_rows(
                np.append(problem.load, 0), self.next_compute, self.next_departure, self.last_departure,
                self.next_arrival, self.last_arrival,
            ),
            storages=_rows(
                self.first_gap, self.writer_at, np.append(self.last_access, 0), np.append(self.stays, 0),
                np.append(self.size, 0),
            ),
            reruns=_rows(
                self.part_at, np.append(self.extra, 0), np.append(self.rerun_before, 0), run_at,
                np.append([r.target for r in reruns], 0), clash_at, np.append(turns, 0),
                np.append(self.rerun_ns, 0), np.append(self._fullest(), 0),
            ),
            tiers=_rows(self.roomy, self.room, self.duplex),
            links=np.stack([self.out_ns, self.in_ns]),
            parts=self.parts,
            writer=self.writer,
            arrivals=np.asarray(problem.arrivals, dtype=np.int64),
            departures=np.asarray(problem.departures, dtype=np.int64),
            clash=clash,
            run=np.asarray([k for r in reruns for k in r.ops], dtype=np.int64),
        )  # fmt: skip

    def _fullest(self) -> Int64s:
        """Per rerun the operator with the highest load over which it has something off."""
        before = np.asarray(self.rerun_before, dtype=np.int64)
        first = before - 1
        dropped = self.parts[self.parts[:, 4] == DROPPED]
        np.minimum.at(first, dropped[:, 0], dropped[:, 2] + 1)
        return argmax_within(self.problem.load, np.clip(first, 0, None), np.maximum(before, first + 1))

    @cached_property
    def world(self) -> World:
        arrays, given = self.arrays, self.problem.budget.tiers
        own = self.problem.profile.device.tiers
        return World(
            tables=arrays.tables,
            resident=arrays.resident,
            returns=arrays.returns,
            final=arrays.final,
            base_bytes=arrays.base_bytes,
            limit=self.problem.hbm_bytes,
            budgets=np.asarray([given.get(name, own[name].bytes) for name in arrays.tiers], dtype=np.int64),
        )

    @cached_property
    def stage(self) -> Stage:
        return stage_for(self.layout, self.arrays)

    @cached_property
    def rerun_clashes(self) -> tuple[Int64s, Int64s]:
        return clashes(self.parts, len(self.reruns), len(self.size))

    def empty(self) -> Draft:
        return Draft(
            np.full(self.count, STAYS, dtype=np.int64),
            self.leave.copy(),
            self.latest.copy(),
            np.zeros(len(self.reruns), dtype=np.bool_),
        )

    def draft_of(self, decisions: Decisions) -> Draft | None:
        """The draft of decisions; None where a gap of theirs is not this table's."""
        draft = self.empty()
        place = {gap: i for i, gap in enumerate(self.gaps)}
        numbers = {rerun: i for i, rerun in enumerate(self.reruns)}
        for move in decisions.moves:
            g = place.get(move.gap, -1)
            if g < 0:
                return None
            draft.tier[g], draft.out[g], draft.back[g] = self.tier_index[move.tier], move.out, move.back
        for rerun in decisions.reruns:
            if rerun in numbers:
                draft.chosen[numbers[rerun]] = True
        return draft

    def decisions_of(self, draft: Draft) -> Decisions:
        names = self.arrays.tiers
        moves = tuple(
            replace(
                Move(self.gaps[g], names[int(draft.tier[g])], 0, 0, 0),
                out=int(draft.out[g]),
                leave=max(int(draft.out[g]), int(self.leave[g])),
                back=int(draft.back[g]),
            )
            for g in np.flatnonzero(draft.tier >= 0).tolist()
        )
        return Decisions(moves, tuple(r for r, yes in zip(self.reruns, draft.chosen.tolist(), strict=True) if yes))

    def orders(self, draft: Draft) -> Orders:
        """The draft as the engine's orders."""
        stage, tables = self.stage, self.arrays.tables
        counts = write(
            tables.read_at, tables.read, tables.write_at, tables.write, self.layout, stage.orders, stage.events,
            stage.places, stage.turn, draft.tier, draft.out, draft.back, draft.chosen,
        )  # fmt: skip
        return trimmed(stage.orders, counts)

    def residency(self, draft: Draft) -> Residency:
        return residency_of(self.problem, self.orders(draft))


def residency_of(problem: Problem, orders: Orders) -> Residency:
    """The plan document's residency part for the engine's orders."""
    ids = [storage.id for storage in problem.profile.storages]
    names = list(problem.profile.device.tiers)
    actions: list[Action] = []
    for op in np.flatnonzero(np.diff(orders.in_at) + np.diff(orders.after_at)).tolist():
        early = slice(orders.in_at[op], orders.in_at[op + 1])
        actions += [Action(op=op, when="before", kind="copy_in", storage=ids[s]) for s in orders.in_storage[early]]
        for i in range(orders.after_at[op], orders.after_at[op + 1]):
            kind = AFTER[orders.after_kind[i]]
            tier = names[orders.after_tier[i]] if kind == "copy_out" else None
            actions.append(Action(op=op, when="after", kind=kind, storage=ids[orders.after_storage[i]], tier=tier))
    recompute: list[Recompute] = []
    for op in np.flatnonzero(np.diff(orders.rerun_at)).tolist():
        ops: list[int] = []
        for i in range(orders.rerun_at[op], orders.rerun_at[op + 1]):
            ops.append(int(orders.rerun[i]))
            if orders.rerun_for[i] >= 0:
                recompute.append(Recompute(storage=ids[orders.rerun_for[i]], before_op=op, ops=tuple(ops)))
                ops = []
    initial = {
        ids[s]: names[t] if t >= 0 else HOST
        for s, t in zip(orders.initial.tolist(), orders.initial_tier.tolist(), strict=True)
    }
    return Residency(initial=initial, actions=tuple(actions), recompute=tuple(recompute))


def argmax_within(values: Int64s, first: Int64s, end: Int64s) -> Int64s:
    """The place of the highest value in each span first .. end - 1; none may be empty."""
    best = [np.arange(len(values))]  # of the 1, 2, 4, ... values from each place on
    while 2 << (len(best) - 1) <= len(values):
        half = 1 << (len(best) - 1)
        left, right = best[-1][: len(best[-1]) - half], best[-1][half:]
        best.append(np.where(values[right] > values[left], right, left))
    level = np.frexp(np.asarray(end - first, dtype=np.float64))[1] - 1
    found = np.zeros(len(first), dtype=np.int64)
    for k, places in enumerate(best):
        mine = level == k
        left, right = places[first[mine]], places[end[mine] - (1 << k)]
        found[mine] = np.where(values[right] > values[left], right, left)
    return found


def _rows(*rows: npt.NDArray[Any]) -> Int64s:
    return np.asarray(np.stack(rows), dtype=np.int64)


def _next(places: list[int], n: int) -> Int64s:
    """Per operator (and n) the first of `places` at or after it; n where there is none."""
    at = np.append(np.asarray(places, dtype=np.int64), n)
    return np.asarray(at[np.searchsorted(at[:-1], np.arange(n + 1), side="left")], dtype=np.int64)


def _last(places: list[int], n: int) -> Int64s:
    """Per operator the last of `places` at or before it; -1 where there is none."""
    at = np.concatenate([[-1], np.asarray(places, dtype=np.int64)])
    return np.asarray(at[np.searchsorted(at[1:], np.arange(n + 1), side="right")], dtype=np.int64)
