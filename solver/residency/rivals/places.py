"""What every rule keeps to: room in the tiers, room in HBM in listed order, and the verdict of replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.plan import HOST, Budget, Plan
from hyperopt.replay import Timeline, replay
from hyperopt.script import write_script
from solver.residency.assemble import assemble
from solver.residency.candidates import Decisions, Move, Rerun, moves
from solver.residency.problem import Gap, Int64s, Problem

NO_LIMIT = 2**53

TIGHTENINGS = 6
"""How often a rule is asked again, with a smaller budget, when its own model of memory was too rosy."""


def tiers_in_order(problem: Problem) -> list[str]:
    """The tiers as a rule that knows one swap space fills them: `host`, then the others by speed of the way back."""
    others = sorted(
        (name for name in problem.tiers if name != HOST),
        key=lambda name: (-float(problem.tiers[name].h2d_bytes_per_s), name),
    )
    return [HOST, *others] if HOST in problem.tiers else others


def swaps(problem: Problem) -> list[Move]:
    """Every gap as a move to the first tier that is large enough for it."""
    order = {name: i for i, name in enumerate(tiers_in_order(problem))}
    first: dict[Gap, Move] = {}
    for move in moves(problem):
        found = first.get(move.gap)
        if found is None or order[move.tier] < order[found.tier]:
            first[move.gap] = move
    return list(first.values())


class TierRoom:
    """Bytes taken in each tier at each operator, in listed order; a move that does not fit is not made."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.order = tiers_in_order(problem)
        self.used: dict[str, Int64s] = {}
        self.home: dict[int, str] = {}  # storage -> the tier that its copies are in

    def place(self, move: Move) -> Move | None:
        """The move in the first tier that has room for it all the while, which is then taken; None: nowhere."""
        self.problem.check()
        home = self.home.get(move.gap.storage)
        for tier in self.order if home is None else [home]:
            if self._take(move, tier):
                self.home[move.gap.storage] = tier
                return replace(move, tier=tier)
        return None

    def _take(self, move: Move, tier: str) -> bool:
        problem, size = self.problem, move.gap.bytes
        if tier in problem.roomy:
            return True
        used = self.used.setdefault(tier, np.zeros(problem.n + 1, dtype=np.int64))
        spans = self._spans(move)
        if any(int(used[first:end].max(initial=0)) + size > problem.tier_bytes[tier] for first, end in spans):
            return False
        for first, end in spans:
            used[first:end] += size
        return True

    def _spans(self, move: Move) -> list[tuple[int, int]]:
        """Operators [first, end) at whose actions the copy counts: `assemble` gives it up at the consumer."""
        n, gap = self.problem.n, move.gap
        end = min(n, self.problem.next_compute(min(gap.before, n - 1)) + 1) if gap.before < n else n
        if not gap.wraps:
            return [(move.out, end)]
        first = (0, end) if gap.before < n else (0, n)
        return [first] if move.out >= n or first[1] >= n else [first, (max(move.out, end), n)]


def off(move: Move, n: int) -> list[tuple[int, int]]:
    """Operators [first, end) at whose start the storage is not in HBM."""
    if move.gap.wraps:
        return [(0, min(move.back, n)), (min(move.leave + 1, n), n)]
    return [(move.leave + 1, move.back)]


class Load:
    """Bytes of HBM at each operator in listed order, as decisions are added."""

    def __init__(self, problem: Problem, chosen: Iterable[Move] = (), reruns: Iterable[Rerun] = ()) -> None:
        self.problem = problem
        self.bytes: Int64s = problem.load.copy()
        for move in chosen:
            self.add(move)
        for rerun in reruns:
            self.add_rerun(rerun)

    @property
    def peak(self) -> int:
        return int(self.bytes.max(initial=0))

    def over(self, spans: Iterable[tuple[int, int]], hbm_bytes: int) -> bool:
        """Whether any operator in the spans needs more than `hbm_bytes`."""
        self.problem.check()
        return any(int(self.bytes[first:end].max(initial=0)) > hbm_bytes for first, end in spans if first < end)

    def add(self, move: Move, times: int = 1) -> None:
        """`times` -1 takes the move back."""
        for first, end in off(move, self.problem.n):
            if first < end:
                self.bytes[first:end] -= times * move.gap.bytes

    def add_rerun(self, rerun: Rerun) -> None:
        problem, size = self.problem, self.problem.program.size
        for s, leave in rerun.drops:
            span = problem.alive[s]
            if span is not None and span[1] > rerun.before:
                self.bytes[leave + 1 : rerun.before] -= size[s]
        for s in rerun.held:
            span = problem.alive[s]
            if span is not None and span[1] <= rerun.before:
                self.bytes[span[1] : rerun.before + 1] += size[s]
        self.bytes[rerun.before] += rerun.extra_bytes


@dataclass(frozen=True)
class Verdict:
    """What replay says of decisions: a time line, or by how many bytes of HBM they are over the budget."""

    decisions: Decisions
    timeline: Timeline | None
    excess_bytes: int = 0

    def rank(self) -> tuple[int, int]:
        return (self.excess_bytes, 0 if self.timeline is None else self.timeline.step_ns)


def judge(problem: Problem, decisions: Decisions) -> Verdict:
    """Replays decisions. Where a tier overflows after all (a recompute can keep a copy longer), moves are given up."""
    while True:
        problem.check()
        residency = assemble(problem, decisions)
        plan = Plan(budget=problem.budget, residency=residency)
        try:
            return Verdict(decisions, replay(problem.profile, plan))
        except OutOfMemory:
            pass
        roomy = Plan(budget=Budget(hbm_bytes=NO_LIMIT, tiers=problem.budget.tiers), residency=residency)
        try:
            peak = write_script(problem.profile, roomy, None).static_peak
            return Verdict(decisions, None, peak - problem.hbm_bytes)
        except OutOfMemory as short:
            decisions = _without_one(decisions, short)


def _without_one(decisions: Decisions, short: OutOfMemory) -> Decisions:
    """Without the moves into a tier that overflows, last issued first, until the shortage is made up for."""
    kept, missing = list(decisions.moves), short.short_bytes
    for move in sorted(decisions.moves, key=lambda m: (-m.out if not m.gap.wraps else 1, m.gap.storage)):
        if missing <= 0:
            break
        if move.tier == short.tier and (move.gap.wraps or move.out <= short.op):
            kept.remove(move)
            missing -= move.gap.bytes
    return Decisions(tuple(kept), decisions.reruns)


def within_budget(problem: Problem, rule: Callable[[int], Decisions], rounds: int = TIGHTENINGS) -> Verdict:
    """The rule's decisions for the largest budget, at most the real one, at which replay finds that they fit.

    Every rule has a model of memory of its own; what it did not see is taken off the budget and the rule asked
    again. Where nothing fits, the decisions that are least over.
    """
    budget, best = problem.hbm_bytes, None
    for i in range(rounds):
        verdict = judge(problem, rule(budget))
        if best is None or verdict.rank() < best.rank():
            best = verdict
        if verdict.timeline is not None:
            break
        # A rule that works in whole storages can answer the same again: ask for a little more each time.
        budget -= max(1, verdict.excess_bytes + i * problem.hbm_bytes // 1000)
        if budget <= 0:
            break
    assert best is not None
    return best


def position(problem: Problem, starts: Int64s, at: int, move: Move) -> int:
    """The last place for the copy in of `move` at or before time `at` (ns), within its gap.

    `starts`: when the operators start before which a copy in can stand.
    """
    first = 0 if move.gap.wraps else problem.next_arrival(move.leave + 1)
    k = int(np.searchsorted(starts, at, side="right")) - 1
    return min(max(problem.arrivals[max(0, k)], first), move.gap.back)


def illegal(problem: Problem, decisions: Decisions) -> IllegalPlan | None:
    """Why decisions are not a legal plan; None where they are. For tests: no rule makes such decisions."""
    plan = Plan(budget=Budget(hbm_bytes=NO_LIMIT, tiers=problem.budget.tiers), residency=assemble(problem, decisions))
    try:
        write_script(problem.profile, plan, None)
    except IllegalPlan as found:
        return found
    except OutOfMemory:
        return None
    return None
