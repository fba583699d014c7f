"""Capuchin: swap where the copies hide in measured free time, else swap or recompute, whichever costs less.

Source: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS 2020. Our own code of
the rule as the paper describes it:

* A candidate is a storage between two accesses, the evicted access and the back access. Its *free time* is from the
  end of its swap out to the latest start of its swap in (back access less the time of the copy), on the measured
  time line. Candidates over the memory peak are swapped in order of falling free time, as long as the link lanes,
  on which copies are exclusive, let the swap in start (its *in-trigger*) after the swap out has ended.
* What is then still over the budget goes to the cheaper of the two, per byte: a swap that is partly exposed, or a
  recompute in order of *memory saving per second* (MSPS), collectively, so that nothing is computed twice. The
  paper bounds the length of chains by the cost that each dropped source adds; here plans are made with what
  one layer hands to the next kept, not kept, and without recompute, and the best one by replay counts.
* *Passive mode*, where even that is not enough, or costs more: out when memory is short, back at the back access.
* Feedback: where a back access still waits for its swap in, the in-trigger moves ahead by the time waited.

Beyond the paper, all in its favour: what lies around the step's end (optimizer states, weights) counts as a candidate
whose back access is in the next step; several gaps of a storage count one by one; a swap in that would come before
the peak is over is put off; host memory is limited and further tiers follow when it is full; memory is known at
every operator, so that the saving needed is exact, where the paper has the sum that passive mode evicted.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np

from hyperopt.replay import Timeline
from solver.residency.candidates import Decisions, Move
from solver.residency.problem import Problem
from solver.residency.rivals.blocks import blocks_of, handed_on
from solver.residency.rivals.links import Lanes
from solver.residency.rivals.places import (
    Load,
    TierRoom,
    Verdict,
    judge,
    off,
    position,
    swaps,
    within_budget,
)
from solver.residency.rivals.remat import Drop, drops, recompute

FEEDBACK_ROUNDS = 10

LARGE = 30_000
"""From this many operators on, fewer variants and fewer rounds of feedback are tried."""


def capuchin(problem: Problem) -> Decisions:
    """The plan of Capuchin's rule (see the module)."""
    if problem.load.max(initial=0) <= problem.hbm_bytes:
        return Decisions()
    policy = _Policy(problem)
    variants = policy.variants()
    found = [within_budget(problem, variant.decide) for variant in variants[: 1 if problem.n >= LARGE else None]]
    if problem.n < LARGE or found[0].timeline is None:
        found.append(within_budget(problem, policy.passive))
    best = min(found, key=Verdict.rank)
    return _feedback(problem, best).decisions


@dataclass(slots=True)
class _Swap:
    """A swap as it could be made now: its move, what it leaves exposed (ns), and the slots it takes on the lanes."""

    move: Move
    exposed: int
    out: list[tuple[int, int]]
    back: list[tuple[int, int]]


class _Policy:
    """What the rule measures once: free times, costs of recompute."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.start, self.end = problem.unlimited.start, problem.unlimited.end
        self.step_ns = problem.unlimited.step_ns
        self.arrivals = np.asarray([self.start[k] for k in problem.arrivals], dtype=np.int64)
        self.lanes = Lanes(problem)
        self.moves = sorted(swaps(problem), key=lambda m: (-self._free_time(m), m.gap.storage, m.gap.after))
        by_operator = problem.profile.adapter.recompute == "operator"
        self.kept = frozenset(handed_on(problem, blocks_of(problem)) if by_operator else ())
        self.drops = _cheapest_first(drops(problem, self.kept))

    def variants(self) -> list[_Policy]:
        """With what layers hand on kept; with chains through it; without recompute. The better plan counts."""
        through, never = copy(self), copy(self)
        through.kept = never.kept = frozenset()
        through.drops, never.drops = _cheapest_first(drops(self.problem)), []
        return [self, *([through] if self.kept else []), *([never] if self.drops else [])]

    def passive(self, hbm_bytes: int) -> Decisions:
        """Passive mode, for what the plan cannot save: out when memory is short, back at the access."""
        load, room, settled = Load(self.problem), TierRoom(self.problem), set[tuple[int, int]]()
        chosen: list[Move] = []
        for move in self.moves:
            if load.peak <= hbm_bytes:
                break
            if settled.isdisjoint(_spans(move)) and load.over(off(move, self.problem.n), hbm_bytes):
                placed = room.place(move)
                if placed is not None:
                    load.add(placed)
                    chosen.append(placed)
                    settled.update(_spans(move))
        return Decisions(tuple(chosen))

    def decide(self, hbm_bytes: int) -> Decisions:
        """Swaps and recomputes that bring the load to `hbm_bytes`, as far as they can."""
        return _Round(self, hbm_bytes).decisions()

    def copies(self, move: Move) -> tuple[int, int]:
        """Nanoseconds out and back. A storage that nobody writes needs no copy out where copies can stay."""
        clean = move.tier in self.problem.roomy and not self.problem.program.writers[move.gap.storage]
        out = 0 if clean or move.out >= self.problem.n else self.lanes.copy_ns(move.tier, move.gap.bytes, out=True)
        back = self.lanes.copy_ns(move.tier, move.gap.bytes, out=False) if move.gap.back < self.problem.n else 0
        return out, back

    def needed(self, move: Move) -> int:
        """When the storage is accessed again; the step's end where it only has to be back by then."""
        return self.start[move.gap.before] if move.gap.before < self.problem.n else self.step_ns

    def _free_time(self, move: Move) -> int:
        out, back = self.copies(move)
        evicted = self.end[move.leave] if move.leave < self.problem.n else self.step_ns
        return self.needed(move) - evicted - out - back + (self.step_ns if move.gap.wraps else 0)


class _Round:
    """One pass of the rule for one budget."""

    def __init__(self, policy: _Policy, hbm_bytes: int) -> None:
        self.policy, self.problem, self.hbm_bytes = policy, policy.problem, hbm_bytes
        self.lanes, self.room, self.load = Lanes(policy.problem), TierRoom(policy.problem), Load(policy.problem)
        self.chosen: list[Move] = []
        self.dropped: list[Drop] = []
        self.moved: set[int] = set()  # storages that move
        self.made: set[int] = set()  # storages that a recompute writes
        self.passing: dict[int, int] = {}  # operator -> bytes that recomputes before it need on the way
        self.gaps: set[tuple[int, int]] = set()  # (storage, access before the gap) that are settled

    def decisions(self) -> Decisions:
        for move in self.policy.moves:
            if self.load.peak <= self.hbm_bytes:
                break
            if self.load.over(off(move, self.problem.n), self.hbm_bytes):
                swap = self._swap(move)
                if swap.exposed <= 0:
                    self._commit(swap)
        self._hybrid()
        self._put_off()
        made, chosen = recompute(self.problem, self.dropped, self.chosen, self.policy.kept)
        return Decisions(tuple(sorted(chosen, key=lambda m: (m.out, m.back, m.gap.storage))), tuple(made))

    def _swap(self, move: Move) -> _Swap:
        """The swap as the lanes are now: out as soon as it can, back as late as it can."""
        problem, policy = self.problem, self.policy
        problem.check()
        n, gap = problem.n, move.gap
        out_ns, back_ns = policy.copies(move)
        evicted = policy.end[move.leave] if move.leave < n else policy.step_ns
        ended, out = self.lanes.out[move.tier].earliest_end(evicted, out_ns)
        if gap.back >= n:
            return _Swap(move, max(0, ended - policy.step_ns), out, [])
        begin, back = self.lanes.back[move.tier].latest_start(policy.needed(move), back_ns)
        exposed = max(0, ended - policy.step_ns) + max(0, -begin) if gap.wraps else ended - begin
        trigger = begin
        if exposed > 0:  # the lanes leave no room for an early one: as if it were alone
            trigger = max(policy.needed(move) - back_ns, 0 if gap.wraps else ended)
        return _Swap(replace(move, back=position(problem, policy.arrivals, trigger, move)), exposed, out, back)

    def _commit(self, swap: _Swap) -> bool:
        move = swap.move
        settled = not self.gaps.isdisjoint(_spans(move))
        if settled or move.gap.storage in self.made or not self.load.over(off(move, self.problem.n), self.hbm_bytes):
            return False
        placed = self.room.place(move)
        if placed is None:
            return False
        if placed.tier == move.tier:
            self.lanes.out[move.tier].take(swap.out)
            self.lanes.back[move.tier].take(swap.back)
        self.load.add(placed)
        self.chosen.append(placed)
        self.moved.add(move.gap.storage)
        self.gaps.update(_spans(move))
        return True

    def _hybrid(self) -> None:
        """The cheaper of swap and recompute, per byte, until the load fits or nothing is left."""
        if self.load.peak <= self.hbm_bytes:
            return
        n = self.problem.n
        open_moves = [
            m
            for m in self.policy.moves
            if self.gaps.isdisjoint(_spans(m)) and self.load.over(off(m, n), self.hbm_bytes)
        ]
        open_drops = [d for d in self.policy.drops if self.load.over([d.span], self.hbm_bytes)]
        heap: list[tuple[float, int, int]] = [(d.per_byte(), 1, i) for i, d in enumerate(open_drops)]
        heap += [(max(0, self._swap(m).exposed) / m.gap.bytes, 0, i) for i, m in enumerate(open_moves)]
        heapify(heap)
        while heap and self.load.peak > self.hbm_bytes:
            cost, kind, i = heappop(heap)
            if kind:
                self._drop(open_drops[i])
                continue
            move = open_moves[i]
            if not self.gaps.isdisjoint(_spans(move)) or not self.load.over(off(move, n), self.hbm_bytes):
                continue
            swap = self._swap(move)
            now = max(0, swap.exposed) / move.gap.bytes
            if now > cost * 1.001 + 1e-9:
                heappush(heap, (now, 0, i))  # the lanes have filled since
            else:
                self._commit(swap)

    def _drop(self, drop: Drop) -> None:
        taken = any((s, drop.gap[0]) in self.gaps for s in drop.storages)
        if taken or not self.moved.isdisjoint(drop.made) or not self.load.over([drop.span], self.hbm_bytes):
            return
        back, known = drop.span[1], self.passing.get(drop.span[1], 0)
        if int(self.problem.working_set[back]) + drop.passing > self.hbm_bytes:
            return
        self.passing[back] = max(known, drop.passing)  # chains to one place share what passes through them
        self.load.bytes[back] += self.passing[back] - known
        self.dropped.append(drop)
        self.made |= drop.made
        self.gaps.update((s, drop.gap[0]) for s in drop.storages)
        self.load.bytes[drop.span[0] : drop.span[1]] -= drop.bytes

    def _put_off(self) -> None:
        """Swaps in that come while memory is still full wait until it is not, those that wait least first."""
        if self.load.peak <= self.hbm_bytes or not self.chosen:
            return
        problem, n = self.problem, self.problem.n
        late = np.array([m.gap.back for m in self.chosen])
        back = np.array([m.back for m in self.chosen])
        leave = np.array([-1 if m.gap.wraps else m.leave for m in self.chosen])
        need = np.array([self.policy.needed(m) - self.policy.copies(m)[1] for m in self.chosen])
        load = self.load.bytes
        for _ in range(4 * len(self.chosen)):
            worst = int(np.argmax(load))
            if load[worst] <= self.hbm_bytes:
                break
            able = np.flatnonzero((leave < worst) & (back <= worst) & (worst < late))
            if not able.size:
                break
            i = int(able[np.argmax(need[able])])
            fits = np.flatnonzero(load[worst:] <= self.hbm_bytes)
            until = problem.next_arrival(worst + int(fits[0])) if fits.size else n
            until = min(max(until, worst + 1), int(late[i]))
            load[back[i] : until] -= self.chosen[i].gap.bytes
            back[i] = until
        self.chosen = [replace(m, back=int(b)) for m, b in zip(self.chosen, back, strict=True)]


def _cheapest_first(found: list[Drop]) -> list[Drop]:
    """By falling memory saving per second."""
    return sorted(found, key=lambda d: (d.per_byte(), d.span, d.storages))


def _spans(move: Move) -> list[tuple[int, int]]:
    """What a move settles: (storage, access before the idle span). One around the step's end settles both parts."""
    own = (move.gap.storage, move.gap.after)
    return [own, (move.gap.storage, -1)] if move.gap.wraps else [own]


def _feedback(problem: Problem, first: Verdict) -> Verdict:
    """In-triggers ahead by what their back accesses waited, as often as it helps."""
    best = verdict = first
    for _ in range(FEEDBACK_ROUNDS if problem.n < LARGE else FEEDBACK_ROUNDS // 3):
        if verdict.timeline is None:
            break
        earlier = _earlier(problem, verdict.decisions, verdict.timeline)
        if earlier is None:
            break
        verdict = judge(problem, earlier)
        if verdict.rank() < best.rank():
            best = verdict
    return best


def _earlier(problem: Problem, decisions: Decisions, timeline: Timeline) -> Decisions | None:
    """The decisions with every late copy in issued earlier, within memory; None where none was late."""
    copied = {(copy.storage, copy.op): copy for copy in timeline.copies if not copy.out}
    starts = np.asarray([timeline.start[k] for k in problem.arrivals], dtype=np.int64)
    load = Load(problem, decisions.moves, decisions.reruns)
    changed, moves = False, []
    for move in decisions.moves:
        copy = copied.get((problem.profile.storages[move.gap.storage].id, move.back))
        waited = 0
        if copy is not None and 0 < move.gap.before < problem.n:
            previous = problem.last_compute(move.gap.before - 1)
            ready = timeline.end[previous] if previous >= 0 else 0
            waited = min(copy.end, timeline.start[move.gap.before]) - max(ready, 0)
        if copy is not None and waited > 0:
            back = position(problem, starts, copy.issue - waited, move)
            if back < move.back:
                full = np.flatnonzero(load.bytes[back : move.back] + move.gap.bytes > problem.hbm_bytes)
                if full.size:
                    back = min(problem.next_arrival(back + int(full[-1]) + 1), move.back)
            if back < move.back:
                load.bytes[back : move.back] += move.gap.bytes
                move, changed = replace(move, back=back), True
        moves.append(move)
    if not changed:
        return None
    return Decisions(tuple(sorted(moves, key=lambda m: (m.out, m.back, m.gap.storage))), decisions.reruns)
