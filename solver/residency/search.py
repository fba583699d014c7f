"""The search: drafts from the bound's solution, which contest, then ruin and refill around where the plan loses time.

    fluid shares ──▶ draft ──fill──▶ fits in listed order ──plan_times──▶ replay ──times──▶ plan_times ...
                       ▲                                                     │
                       └── take out some gaps near lost time, other costs ◀──┘

Every step is judged by replay. A refill costs about a millisecond a thousand operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hyperopt.engine import Outcome, run
from hyperopt.engine.kernel import FOR_COPY_IN
from solver.residency.candidates import Decisions
from solver.residency.clockwork import plan_times
from solver.residency.columns import Solution
from solver.residency.draft import STAYS, Draft, Table
from solver.residency.filling import BATCH as FILL_BATCH
from solver.residency.filling import Costs, Spans, fill, in_time, listed
from solver.residency.fluid import Fluid
from solver.residency.incumbent import Incumbent
from solver.residency.prices import costs_at
from solver.residency.problem import Problem
from solver.residency.refill import NOISE, RETREATS, WAYS, Course, Prices, Setting, course_from, play
from solver.residency.rounding import rounded
from solver.residency.ruin import BACK, END, OUT, START, STEP_NS, TIER

Floats = npt.NDArray[np.float64]

TOLLS = (0.03, 0.1, 0.3, 0.6, 1.2)
"""Nanoseconds that a nanosecond of link time is taken to cost beyond the bound's prices: whole copies that queue one
after another need more room on the links than the fluid. Which toll serves best is learned in the search."""

SPARES = (0.0, 0.04)
"""Parts of the budget that a first draft leaves free."""

BISECTIONS = 16
"""Of the budget, for the least that can be filled."""

FIRST_CALL, CALL_S = 8, 0.05
"""Plans that compiled rounds judge before anybody is asked whether to stop: at first, and by their time."""

NOISES = 1 << 16
"""Random factors of costs, drawn once, a power of two of them: a refill reads some in a row from anywhere."""

OWN_LINE = 2.0
"""Share of fillings in time that go by the best plan's own time line, in parts of its delay in its step time: what
waits moves everything after it, and by the unlimited step's line a gap then looks shorter than it is."""

CONTESTANTS, CONTEST_SHARE, CONTEST_ROUNDS, LEAST_ROUNDS = 8, 0.2, 1_000, 30
"""Drafts that are searched from, half of them given up at a time, at most; the part of the time left, or else the
rounds, that this takes; and rounds, fewer of which say nothing about a draft."""

BLAMES = 6
"""Times that a draft is made again without what its plan waited for."""


@dataclass
class Found:
    draft: Draft
    outcome: Outcome
    score: tuple[int, float]


class Search:
    """Drafts of one problem; each is replayed and offered to the incumbent."""

    def __init__(
        self, problem: Problem, incumbent: Incumbent, table: Table, fluid: Fluid, solution: Solution, seed: int
    ) -> None:
        self.problem, self.incumbent, self.table, self.fluid = problem, incumbent, table, fluid
        self.solution, self.stopped = solution, incumbent.stopped
        self.dice = np.random.default_rng(seed)
        self.usual = np.asarray(problem.unlimited.start), np.asarray(problem.unlimited.end)
        self.tolls = [
            (guide, costs_at(table, fluid, guide.prices, toll)) for guide in solution.guides for toll in TOLLS
        ]
        self.costs = self.tolls[0][1]
        self.arms = Prices(
            np.stack([costs.out for _, costs in self.tolls]),
            np.stack([costs.back for _, costs in self.tolls]),
            np.stack([costs.reruns for _, costs in self.tolls]),
            np.ones(len(self.tolls)),
        )
        self.listed, self.timed = listed(table), in_time(table, *self.usual)
        self.noise = np.exp(self.dice.normal(0.0, NOISE, NOISES))
        self.by_toll = sorted(range(len(self.tolls)), key=lambda place: place % len(TOLLS))  # each guide at each toll
        self.drafted: set[tuple[float, int]] = set()  # (part of the budget left free, place in `tolls`)
        self.best: Found | None = None
        self.guided: list[Found] = []  # what drafts by guides became, the best few
        self.unguided = False  # drafts without a guide have been tried
        self.last: Outcome | None = None
        self.stage = "search"

    def judged(self, draft: Draft, rounds: int = 4) -> Found | None:
        """The draft timed by the usual time line, then by its own, while that helps; None where it does not run."""
        start, end = self.usual
        best: Found | None = None
        for _ in range(rounds):
            plan_times(self.table, draft, start, end, 1.0)
            found = self.replayed(draft)
            if found is None:
                break
            if best is not None and found.score >= best.score:
                break
            best = found
            draft = draft.copy()
            start, end = found.outcome.start, found.outcome.end
        return best

    def replayed(self, draft: Draft) -> Found | None:
        self.problem.check()
        return self._offered(draft)

    def _offered(self, draft: Draft) -> Found | None:
        orders = self.table.orders(draft)
        outcome = run(self.table.arrays, orders, self.problem.hbm_bytes, self.problem.budget.tiers)
        self.incumbent.offer_outcome(orders, outcome, self.stage)
        if outcome.status != "fits":
            self.last = outcome
            return None
        on_links = float((outcome.copies[:, 6] - outcome.copies[:, 5]).sum())
        found = Found(draft.copy(), outcome, (outcome.step_ns, on_links))
        if self.best is None or found.score < self.best.score:
            self.best = found
        return found

    # -- search ---------------------------------------------------------------------------------------------

    def first(self) -> Found | None:
        """A plan without the bound's help, soon."""
        self.stage = "greedy"
        for _, costs in self.tolls[1::2]:
            found = self.completed(self.table.empty(), costs, rounds=2)
            if found is not None and self.stopped():
                break
        return self.best

    def least(self) -> Found | None:
        """The smallest budget that can be filled, by bisection, however slow the plan; stops at the problem's."""
        self.stage = "smallest"
        low, high = 0, int(self.problem.load.max(initial=0))
        for _ in range(BISECTIONS):
            if self.stopped() or (self.incumbent.stop.late() and self.incumbent.smallest is not None):
                break
            middle = (low + high) // 2
            draft = self.table.empty()
            if self._filled(draft, self.costs, middle, False) is None:
                low = middle
                continue
            high = middle
            if self.judged(draft, rounds=1) is not None:
                break
            draft.back[:] = self.table.latest
            if self.replayed(draft) is not None:
                break
        return self.best

    def start(
        self, spares: tuple[float, ...] = SPARES, share: float = 1.0, until: Callable[[], bool] = lambda: False
    ) -> Found | None:
        """The best of what the guides say, rounded, with some of the budget left for copies that queue; until `share`
        of the time limit has passed, or `until` says so. Called again, it goes on."""
        self.stage = "guided"
        kept: dict[int, Draft] = {}
        for spare in spares:
            for place in self.by_toll:
                if (spare, place) in self.drafted:
                    continue
                if until():
                    return self.best
                self.drafted.add((spare, place))
                guide, costs = self.tolls[place]
                if id(guide) not in kept:
                    kept[id(guide)] = rounded(self.table, self.fluid, guide, self.costs, 0.5)
                budget = int(self.problem.hbm_bytes * (1 - spare))
                found = self.completed(kept[id(guide)].copy(), costs, budget=budget)
                if found is not None:
                    self.guided = sorted([*self.guided, found], key=lambda f: f.score)[:CONTESTANTS]
                if self.stopped() or self.incumbent.stop.spent() >= share:
                    return self.best
        if self.best is None and not self.unguided:
            self.unguided = True
            for _, costs in self.tolls:
                if until() or self.stopped():
                    break
                self.completed(self.table.empty(), costs)
        return self.best

    def completed(self, draft: Draft, costs: Costs, *, budget: int | None = None, rounds: int = BLAMES) -> Found | None:
        """The draft filled and timed; then without the moves that its plan waits for, the waiting charged to them."""
        budget = budget or self.problem.hbm_bytes
        back = costs.back.copy()
        costs = Costs(costs.out, back, costs.reruns)
        best: Found | None = None
        for _ in range(rounds):
            if self._filled(draft, costs, budget, True) is None:
                break
            found = self.judged(draft)
            if found is None:
                if self.last is None or self.last.status == "illegal":
                    break
                budget -= max(self.last.short_bytes, 1)
                continue
            if best is not None and found.score >= best.score and self.dice.random() < 0.5:
                break
            if best is None or found.score < best.score:
                best = found
            draft = found.draft.copy()
            guilty, waited = self._guilty(found)
            if not len(guilty):
                break
            back[:, guilty] += waited
            draft.tier[guilty] = STAYS
            if self.stopped():
                break
        return best

    def _guilty(self, found: Found) -> tuple[npt.NDArray[np.int64], Floats]:
        """Moves whose copy back an operator waits for, most of all, and how long (ns)."""
        record, table = found.outcome.record, self.table
        waits = np.where(record.wait_kind == FOR_COPY_IN, record.wait_ns, 0)
        late = np.flatnonzero(waits > self.problem.unlimited.step_ns * 1e-5)
        gaps, times = [], []
        for op in late.tolist():
            s = int(record.wait_for[op])
            for g in range(int(table.first_gap[s]), int(table.first_gap[s + 1])):
                if found.draft.tier[g] >= 0 and found.draft.back[g] <= op <= table.before[g] + 1:
                    gaps.append(g)
                    times.append(float(waits[op]))
        for over, wrapped in (self._outlasting(found), self._in_the_way(found)):
            gaps += wrapped
            times += over
        return np.asarray(gaps, dtype=np.int64), np.asarray(times, dtype=np.float64)

    def _in_the_way(self, found: Found) -> tuple[list[float], list[int]]:
        """Moves on whose copies out an operator waits for room: nanoseconds, shared by those that end meanwhile."""
        outcome = found.outcome
        waits = outcome.record.memory_ns
        copies = outcome.copies[outcome.copies[:, 3] == 1]
        over: list[float] = []
        gaps: list[int] = []
        for op in np.flatnonzero(waits > self.problem.unlimited.step_ns * 1e-4).tolist():
            until = int(outcome.start[op])
            ended = copies[(copies[:, 6] <= until) & (copies[:, 6] > until - int(waits[op]))]
            for s, at in ended[:, :2].tolist():
                g = self._gap_of(found.draft, s, at)
                if g >= 0:
                    over.append(float(waits[op]) / len(ended))
                    gaps.append(g)
        return over, gaps

    def _gap_of(self, draft: Draft, s: int, op: int) -> int:
        """The used gap of a storage that is copied after, or before, an operator; -1: none."""
        for g in range(int(self.table.first_gap[s]), int(self.table.first_gap[s + 1])):
            if draft.tier[g] >= 0 and op in (draft.out[g], draft.back[g]):
                return g
        return -1

    def _outlasting(self, found: Found) -> tuple[list[float], list[int]]:
        """Moves whose copy out ends after the last operator: nanoseconds that each adds to the step, and their gaps."""
        last, table = int(found.outcome.end.max(initial=0)), self.table
        copies = found.outcome.copies
        late = copies[(copies[:, 6] > last) & (copies[:, 3] == 1)]
        over, gaps = [], []
        for s, begin, end in late[:, [0, 5, 6]].tolist():
            for g in range(int(table.first_gap[s + 1]) - 1, int(table.first_gap[s]) - 1, -1):
                if found.draft.tier[g] >= 0:
                    over.append(float(end - max(begin, last)))
                    gaps.append(g)
                    break
        return over, gaps

    def _filled(self, draft: Draft, costs: Costs, budget: int, timed: bool) -> Spans | None:
        """Fills the draft, in time if that goes, at least in listed order; returns by which."""
        table = self.table
        shut = np.zeros(len(table.reruns), dtype=np.bool_)
        for spans in (self.timed, *[self.listed] * RETREATS)[0 if timed else 1 :]:
            self.problem.check()
            trial = draft.copy()
            trial.chosen &= ~shut
            table.settle(trial)
            own = Costs(costs.out, costs.back, np.where(shut, np.inf, costs.reruns))
            stuck = fill(table, trial, own, budget, spans)
            if stuck < 0:
                draft.tier[:], draft.chosen[:] = trial.tier, trial.chosen
                return spans
            if spans is self.listed:
                blocking = trial.chosen & table.reruns_at(stuck)
                if shut.all():
                    break
                shut |= blocking if blocking.any() else True
        return None

    def go_on_from(self, other: Search) -> None:
        """Takes over the best drafts of a search with another table, whose gaps and reruns are in this one."""
        self.stage = other.stage
        if other.fluid is self.fluid:  # with some of the same guides
            self.drafted |= other.drafted
            again = [self._taken(other.table, found) for found in other.guided]
            self.guided = [found for found in again if found is not None]
        if other.best is not None:
            self._taken(other.table, other.best)

    def _taken(self, table: Table, found: Found) -> Found | None:
        """A draft of another table, replayed as one of this."""
        draft = self.table.draft_of(table.decisions_of(found.draft))
        return None if draft is None else self.replayed(draft)

    def take(self, decisions: Decisions, name: str) -> None:
        """Replays the plan of a rule, and what becomes of it when its copies are timed anew and it is refilled."""
        self.stage = name
        draft = self.table.draft_of(decisions)
        if draft is None:
            return
        self.replayed(draft)
        self.completed(draft, self.tolls[2][1], rounds=3)

    def contest(self) -> None:
        """Searches from several drafts for a while, half of them given up at a time: what rounds come to depends on the
        draft that they start from, and not only on how good it is."""
        self.stage, stop = "refill", self.incumbent.stop
        distinct = {found.score: found for found in (*self.guided, *([self.best] if self.best else ()))}
        self.guided = []
        courses = [self._course(distinct[score]) for score in sorted(distinct)[:CONTESTANTS]]
        if len(courses) < 2:
            return
        left, began = stop.seconds_left(), time.monotonic()
        lasts, rounds = CONTEST_SHARE * (left or 0.0), float(CONTEST_ROUNDS)
        if left is not None:  # as many rounds as the time is enough for, by how long some take
            judged = self._play(courses[0], FIRST_CALL, _after(began + CALL_S), CALL_S)
            rounds = lasts * judged / max(time.monotonic() - began, 1e-4)
        while (count := len(courses)) > 1:
            stages = count.bit_length() - 1
            if rounds >= LEAST_ROUNDS * count * stages and (left is None or lasts >= CALL_S * count * stages):
                break
            courses.pop()
        while len(courses) > 1:
            share = 1 / (stages * len(courses))
            for course in courses:
                until = _after(time.monotonic() + share * lasts)
                self._play(course, int(share * rounds), until, min(CALL_S, share * lasts / 4))
            courses.sort(key=lambda course: course.best.figures[:2].tolist())
            courses = courses[: len(courses) // 2]

    def improve(self, rounds: int, until: Callable[[], bool] = lambda: False) -> None:
        """Ruin and refill, from the best draft, until stopped or `until` says so; `rounds` where time has no limit."""
        self.stage = "refill"
        if self.best is not None:
            self._play(self._course(self.best), rounds, until, CALL_S)

    def _course(self, found: Found) -> Course:
        return course_from(found.draft, found.outcome, self.table.layout)

    def _play(self, course: Course, rounds: int, until: Callable[[], bool], call_s: float) -> int:
        """Rounds of a course, as in `improve`, so many seconds of them a call; offers plans that are better than all
        before, and returns how many rounds were judged."""
        table, stop, most, total = self.table, self.incumbent.stop, FIRST_CALL, 0
        setting = self.setting(course)
        timed = stop.seconds_left() is not None
        while (total < rounds or timed) and not self.stopped() and not (timed and until()):
            began, calls = time.monotonic(), stop.work_left(most if timed else min(most, rounds - total))
            judged = play(calls, self.dice, table.world, table.layout, table.stage, setting, self.arms, course)
            stop.work += judged
            if course.idle[0] == 0:
                best, setting = course.best, self.setting(course)
                if self.best is None or tuple(best.figures[:2].tolist()) < self.best.score:
                    self._offered(Draft(best.moves[TIER], best.moves[OUT], best.moves[BACK], best.chosen))
                course.idle[0] = 1  # offered once, even where the next call ends before a plan is judged
            total += judged
            most = max(1, int(judged * call_s / max(time.monotonic() - began, 1e-4)))
        return total

    def setting(self, course: Course) -> Setting:
        """What the rounds go by while the best plan is what it is in `course`."""
        own = in_time(self.table, course.best.times[START], course.best.times[END])
        step_ns, unlimited_ns = int(course.best.figures[STEP_NS]), self.problem.unlimited.step_ns
        return Setting(
            self.listed.first, self.listed.end, np.stack([self.timed.first, own.first]),
            np.stack([self.timed.end, own.end]), OWN_LINE * (1 - unlimited_ns / max(step_ns, unlimited_ns)),
            unlimited_ns, self.solution.bound_ns, 1 + self.problem.n // FILL_BATCH, WAYS, self.noise,
        )  # fmt: skip


def _after(moment: float) -> Callable[[], bool]:
    return lambda: time.monotonic() >= moment
