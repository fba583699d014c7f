"""The ladder of reliefs: what would bring the least HBM down, and how far, where no plan fits the budget.

Each rung is one change alone. Its `lower_bound_bytes` is what no plan could go below then: *proven* where the change is
exact (a larger tier, storages that may be offloaded, operators that may run again), *estimated* where it changes the
program itself (half the micro-batch, twice as many shards). `reaches_budget` says that the budget is no longer ruled
out, not that a plan is in hand.

The argument is that of `bound.memory_bound`, over all idle spans at once, so that a dozen changes cost little more than
one: a span of a storage that is idle counts in HBM unless the storage may be in a tier just then, or be made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from hyperopt.profile import Kind
from solver.residency.problem import Int64s, Problem

Bools = npt.NDArray[np.bool_]

NAMED = 5
"""Storages that a rung names, the largest first."""

KINDS: tuple[str, ...] = get_args(Kind)
PER_BATCH = ("activation", "input")
"""Kinds whose sizes follow the micro-batch."""
PER_SHARD = ("parameter", "gradient", "optimizer_state", "kv_cache")
"""Kinds that tensor parallelism divides; activations are divided in part, and not counted."""


@dataclass(frozen=True)
class _Spans:
    """Idle spans, one an element: `storage` (position), operators [first, end) of it, and `now`, `free`: the ranges
    [from, to) of it that can be spent in a tier as the adapter is, and if it could move everything anywhere.

    `made`: the content was made by an operator that may run again. `room`: bytes of the largest tier that could hold it
    just then; -1: none could.
    """

    storage: Int64s
    size: Int64s
    first: Int64s
    end: Int64s
    now: tuple[Int64s, Int64s]
    free: tuple[Int64s, Int64s]
    made: Bools
    room: Int64s


@dataclass(frozen=True)
class _Rules:
    """Per span: whether it may be in a tier, anywhere (else as the adapter is), or be made again; `room`: bytes of all
    tiers together."""

    movable: Bools
    anywhere: Bools
    again: Bools
    room: int


def ladder(problem: Problem) -> list[dict[str, Any]]:
    """Rungs that lower the bound: those that reach the budget first, then the lowest bounds first.

    Each has `relief` (a sentence), `kind` (tiers, offload, recompute, micro_batch, sharding), `basis` (proven,
    estimated), `lower_bound_bytes`, `saves_bytes`, `reaches_budget`; `tier_bytes`, what the tiers together need for
    it; `storages`, the largest that it is about, at the operator that sets the bound.
    """
    return [] if not problem.n else _Ladder(problem).rungs()


class _Ladder:
    def __init__(self, problem: Problem) -> None:
        self.problem, self.n = problem, problem.n
        self.spans = _spans(problem)
        self.kinds = np.array([KINDS.index(s.kind) for s in problem.profile.storages], dtype=np.int64)
        self.kind = self.kinds[self.spans.storage]
        adapter, storages = problem.profile.adapter, problem.profile.storages
        movable = [
            s.offloadable and adapter.moves != "none" and (adapter.moves == "any" or s.window is not None)
            for s in storages
        ]
        self.may_leave: Bools = np.array(movable, dtype=np.bool_)[self.spans.storage]
        self.rules = self._as_is()
        self.stuck, _ = self._held(self.rules)
        self.needed = np.asarray(problem.working_set + self.stuck, dtype=np.int64)
        self.operator = int(np.argmax(self.needed))
        self.now = int(self.needed[self.operator])

    def rungs(self) -> list[dict[str, Any]]:
        tiers = self._tiers()
        reached = min((rung["lower_bound_bytes"] for rung in tiers), default=self.now)
        found = [*tiers, *self._offloads(reached), *self._recompute(), *self._estimates()]
        return sorted(found, key=lambda rung: (not rung["reaches_budget"], rung["lower_bound_bytes"], rung["relief"]))

    def _as_is(self) -> _Rules:
        problem, spans = self.problem, self.spans
        return _Rules(
            movable=self.may_leave & (spans.size <= spans.room),
            anywhere=np.zeros(len(spans.size), dtype=np.bool_),
            again=spans.made & (problem.profile.adapter.recompute != "none"),
            room=sum(problem.tier_bytes.values()),
        )

    def _held(self, rules: _Rules) -> tuple[Int64s, int]:
        """Per operator, bytes that no plan can have elsewhere; and the most that tiers could be asked to hold."""
        spans = self.spans
        low = np.where(rules.anywhere, spans.free[0], spans.now[0])
        high = np.where(rules.anywhere, spans.free[1], spans.now[1])
        low, high = np.clip(low, spans.first, spans.end), np.clip(high, spans.first, spans.end)
        away = rules.movable & (low < high)
        low, high = np.where(away, low, spans.end), np.where(away, high, spans.end)
        held = np.zeros(self.n + 1, dtype=np.int64)  # differences, summed at the end
        tier = np.zeros(self.n + 1, dtype=np.int64)
        bound = ~rules.again
        size = spans.size[bound]
        np.add.at(held, spans.first[bound], size)
        np.subtract.at(held, low[bound], size)
        np.add.at(held, high[bound], size)
        np.subtract.at(held, spans.end[bound], size)
        np.add.at(tier, low[bound], size)
        np.subtract.at(tier, high[bound], size)
        in_tiers = np.cumsum(tier)[: self.n]
        overflow = np.maximum(in_tiers - rules.room, 0)
        return np.asarray(np.cumsum(held)[: self.n] + overflow, dtype=np.int64), int(in_tiers.max())

    def _proven(self, relief: str, kind: str, rules: _Rules, about: Bools | None = None) -> list[dict[str, Any]]:
        held, in_tiers = self._held(rules)
        lower = int((self.problem.working_set + held).max())
        more: dict[str, Any] = {"tier_bytes": in_tiers} if kind in ("tiers", "offload") else {}
        if about is not None:
            more["storages"] = self._names(about)
        return self._rung(relief, kind, "proven", lower, **more)

    def _rung(self, relief: str, kind: str, basis: str, lower: int, **more: Any) -> list[dict[str, Any]]:
        if lower >= self.now:
            return []
        rung = {
            "relief": relief,
            "kind": kind,
            "basis": basis,
            "lower_bound_bytes": lower,
            "saves_bytes": self.now - lower,
            "reaches_budget": lower <= self.problem.hbm_bytes,
        }
        return [{**rung, **more}]

    def _names(self, about: Bools) -> list[dict[str, Any]]:
        """The largest storages of these spans that are idle at the operator that sets the bound."""
        spans, storages = self.spans, self.problem.profile.storages
        here = np.flatnonzero(about & (spans.first <= self.operator) & (self.operator < spans.end))
        largest = here[np.argsort(-spans.size[here], kind="stable")][:NAMED]
        found = [storages[int(s)] for s in spans.storage[largest]]
        return [{"id": s.id, "name": s.name, "bytes": s.bytes} for s in found]

    # -- the changes -----------------------------------------------------------------------------------------------

    def _tiers(self) -> list[dict[str, Any]]:
        if not self.problem.places:
            return []
        roomy = _Rules(self.may_leave, self.rules.anywhere, self.rules.again, 2**62)
        return self._proven("larger tiers", "tiers", roomy, self.may_leave & ~self.rules.again)

    def _offloads(self, than: int) -> list[dict[str, Any]]:
        """All storages, and those of each kind alone, wherever they are idle, with tiers as large as that takes.

        Only where it brings the bound below `than`: what larger tiers alone bring.
        """
        rules, needs = self.rules, self._obstacles()
        everything = np.ones(len(self.spans.size), dtype=np.bool_)
        found = self._offload(f"offload everything{needs}", everything)
        for i, kind in enumerate(KINDS):
            of_kind = np.asarray(self.kind == i, dtype=np.bool_)
            if of_kind.any() and not of_kind.all():
                found += self._offload(f"offload every {kind.replace('_', ' ')}{needs}", of_kind & ~rules.again, kind)
        return [rung for rung in found if rung["lower_bound_bytes"] < than]

    def _offload(self, relief: str, what: Bools, of: str = "everything") -> list[dict[str, Any]]:
        rules = self.rules
        movable = self.may_leave if self.problem.places else rules.movable
        changed = _Rules(movable | what, rules.anywhere | what, rules.again, 2**62)
        return [{**rung, "of": of} for rung in self._proven(relief, "offload", changed, what & ~rules.again)]

    def _obstacles(self) -> str:
        """What stands in the way of moving storages at all."""
        missing = []
        if not any(t.d2h_bytes_per_s and t.h2d_bytes_per_s for t in self.problem.profile.device.tiers.values()):
            missing.append("a link to a tier and back, which the profile does not have")
        elif not self.problem.tiers:
            missing.append("a budget for a tier")
        if self.problem.profile.adapter.moves == "none":
            missing.append("an adapter that moves storages")
        return f" (takes {' and '.join(missing)})" if missing else ""

    def _recompute(self) -> list[dict[str, Any]]:
        rules = self.rules
        if not (self.spans.made & ~rules.again).any():
            return []
        changed = _Rules(rules.movable, rules.anywhere, self.spans.made, rules.room)
        relief = "recompute single operators (takes an adapter that can)"
        return self._proven(relief, "recompute", changed, self.spans.made & ~rules.again)

    def _estimates(self) -> list[dict[str, Any]]:
        """Changes of the program: what of the need is of kinds that they halve, halved."""
        problem = self.problem
        accessed = [{*r, *w} for r, w in zip(problem.program.reads, problem.program.writes, strict=True)]
        counts = np.fromiter((len(a) for a in accessed), dtype=np.int64, count=self.n)
        operators = np.repeat(np.arange(self.n), counts)
        storages = np.fromiter((s for a in accessed for s in a), dtype=np.int64, count=int(counts.sum()))
        sizes = np.asarray(problem.program.size, dtype=np.int64)
        found: list[dict[str, Any]] = []
        for relief, kind, halved in (
            ("half the micro-batch (activations and inputs halve)", "micro_batch", PER_BATCH),
            ("twice the tensor parallelism (parameters, their gradients and states halve)", "sharding", PER_SHARD),
        ):
            of_kind = np.isin(self.kinds, [KINDS.index(name) for name in halved])
            part = np.zeros(self.n, dtype=np.int64)
            chosen = of_kind[storages]
            np.add.at(part, operators[chosen], sizes[storages[chosen]])
            held, _ = self._held(self._only(of_kind))
            lower = int((self.needed - (part + np.minimum(held, self.stuck)) // 2).max())
            found += self._rung(relief, kind, "estimated", max(0, lower))
        return found

    def _only(self, storages: Bools) -> _Rules:
        """The rules as they are, with all other storages out of the way."""
        rules = self.rules
        return _Rules(rules.movable, rules.anywhere, rules.again | ~storages[self.spans.storage], 2**62)


def _spans(problem: Problem) -> _Spans:
    n, program, profile = problem.n, problem.program, problem.profile
    rows: list[tuple[int, ...]] = []
    both_ways = max((problem.tier_bytes[name] for name in problem.tiers), default=-1)
    one_way = len(problem.tiers) < len(problem.places)

    def room(s: int, after: int, before: int) -> int:
        if not one_way:
            return both_ways
        return max((problem.tier_bytes[name] for name in problem.elsewhere(s, after, before)), default=-1)

    for s, size in enumerate(program.size):
        if size:
            rows += [
                (s, after, before, program.version_before(s, min(before, n)), room(s, after, before))
                for after, before in problem.idle(s)
                if after + 1 < min(before, n)
            ]
    s, after, before, writer, largest = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    compute = np.array(problem.compute, dtype=np.int64)
    ids = np.arange(n)
    following = np.append(compute, n)[np.searchsorted(compute, ids)]  # first compute operator at or after
    preceding = np.append(-1, compute)[np.searchsorted(compute, ids, side="right")]  # last at or before
    low, high = np.full(len(s), -1), np.full(len(s), n)
    if profile.adapter.moves == "window":
        windows = np.array([st.window or (0, 0) for st in profile.storages], dtype=np.int64).reshape(-1, 2)[s]
        low, high = windows.T
    resident = np.array(program.resident, dtype=np.bool_)[s]
    head, tail = resident & (after < 0), resident & (before == n)
    free = (
        np.where(head, 0, following[np.maximum(after, 0)] + 1),
        np.where(tail, n, preceding[np.minimum(before, n - 1)]),
    )
    if profile.adapter.moves == "window":  # and never around the step's end
        leave = np.minimum(np.maximum(np.maximum(after, low), 0), n - 1)
        now = (following[leave] + 1, preceding[np.minimum(np.minimum(before, high), n - 1)])
    else:
        now = free
    again = np.array([o.recomputable for o in profile.operators], dtype=np.bool_)
    return _Spans(
        storage=s,
        size=np.asarray(program.size, dtype=np.int64)[s],
        first=after + 1,
        end=np.minimum(before, n),
        now=now,
        free=free,
        made=np.asarray((writer >= 0) & again[np.maximum(writer, 0)], dtype=np.bool_),
        room=largest,
    )
