"""Sharding, stages and residency over the same memory, in one call.

::

    candidates ──▶ bound and promise ──▶ levels of the promising ──▶ proposals, best first
    (sharding)                                                        │  ▲
                                          each stage planned and replayed│  prices of the stages
                                                                      ▼  │
                                                                    the best step

*Bound*: the candidate's stages with all memory in the world. *Promise*: with the memory that is there, if giving up
activations cost nothing; it only says where to look first. Placement proposes layers and levels for each stage;
residency says what each stage then really takes within its budget; that becomes the stage's price, and placement
proposes again. The answer is the best of all that were replayed, placement and residency one after the other among
them, and the reported bound is the least of all candidates': no placement of any of them, under 1F1B, ends sooner.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hyperopt.plan import HOST, Budget
from solver.joint.levels import LayerCost, Level, layer_cost
from solver.joint.pipeline import Candidate, Kind, Refused, Run, Terms, run, stage_problem
from solver.joint.sample import HEAD, TAIL
from solver.residency.warm import warm
from solver.stages.master import least_raise, relaxed, stage_reasons
from solver.stages.problem import NoPlanError, Problem, fastest_split, uniform
from solver.stages.solve import solve_order
from solver.stages.warm import warm as warm_stages

I64 = NDArray[np.int64]
Costs = dict[str, LayerCost]

KINDS: tuple[Kind, ...] = ("kept", "apart", "moved", "states")

RELAX_S, SPLIT_S, LEVEL_S = 0.2, 2.0, 0.3
"""Seconds, at most, for a candidate's bound or promise, for a proposal of stages, and for each question about a
layer."""

LOOK_SHARE, RUN_SHARE = 0.3, 0.15
"""Of the time limit: for levels and first proposals at most, and for one proposal's residency."""

LEAST_SPLIT_S, SPLIT_SHARE = 0.2, 0.02
LEAST_LEVEL_S, LEVEL_SHARE = 0.03, 0.01
"""Of short limits, what a proposal of stages and a question about a layer get."""

ROUNDS = 3
"""Proposals of one kind for one candidate, at most."""


@dataclass(frozen=True)
class Tried:
    """A proposal: what placement thought the step takes, and what it does, in nanoseconds; or why it does not run."""

    candidate: str
    terms: Terms
    estimate_ns: int
    step_ns: int | None
    why: str


@dataclass(frozen=True)
class Placement:
    """The best step found, and the proposals on the way. `bound_ns`: over all candidates; `without`: the best step
    with nothing moved, None where none was found that fits so. `bounds`: of each candidate; those that were never
    priced are in none of `tried`. `stop_reason`: why no more was tried, where the bound was not reached."""

    candidate: Candidate
    problem: Problem
    split: I64
    run: Run
    bound_ns: int
    without: int | None
    stop_reason: str
    tried: tuple[Tried, ...]
    bounds: dict[str, int]

    @property
    def gap(self) -> float:
        """(step - bound) / bound."""
        return (self.run.step_ns - self.bound_ns) / self.bound_ns if self.bound_ns else 0.0


def place(
    candidates: Sequence[Candidate],
    budget: Budget,
    time_limit_s: float = 120.0,
    seed: int = 0,
    cancelled: Callable[[], bool] = lambda: False,
) -> Placement:
    """The candidate, stages, levels and residency with the shortest step found within the limit.

    `budget` is that of every device. Raises `NoPlanError` where nothing was found that fits, saying what is short.
    """
    warm()  # compiled once on a machine: that is not the search's time
    warm_stages()
    return _Place(candidates, budget, time_limit_s, seed, cancelled).run()


@dataclass(frozen=True, eq=False)
class _Proposal:
    candidate: Candidate
    costs: Costs
    terms: Terms
    problem: Problem
    split: I64
    estimate_ns: int
    round: int


class _Place:
    """One call: what is known of each candidate, the proposals to be run, and the best so far."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        budget: Budget,
        seconds: float,
        seed: int,
        cancelled: Callable[[], bool],
    ) -> None:
        self.candidates, self.budget, self.seed, self.cancelled = candidates, budget, seed, cancelled
        self.seconds, self.began = seconds, time.monotonic()
        self.waiting: list[tuple[int, int, _Proposal]] = []
        self.tried: list[Tried] = []
        self.best: tuple[_Proposal, Run] | None = None
        self.without: int | None = None
        self.priced: dict[str, Costs] = {}
        self.hurried = False

    def run(self) -> Placement:
        plain = {c.name: _costs(c, None, self.seed) for c in self.candidates}
        bounds = {c.name: round(self._relaxed(c, plain[c.name], None)) for c in self.candidates}
        self._look(plain, bounds)
        self._run_all()
        if self.best is None:
            raise NoPlanError(self._why_none(), proven=False)
        proposal, found = self.best
        return Placement(
            candidate=proposal.candidate,
            problem=proposal.problem,
            split=proposal.split,
            run=found,
            bound_ns=min(*bounds.values(), found.step_ns),
            without=self.without,
            stop_reason=self._reason(),
            tried=tuple(self.tried),
            bounds=bounds,
        )

    def _spent(self) -> float:
        return 1.0 if self.cancelled() else (time.monotonic() - self.began) / self.seconds

    # -- where to look -------------------------------------------------------------------------------------

    def _relaxed(self, candidate: Candidate, costs: Costs, terms: Terms | None) -> float:
        """Nanoseconds below which no split is, by the linear relaxation; infinite where none fits."""
        problem = stage_problem(candidate, costs, self.budget, terms)
        scale = int(problem.durations(fastest_split(problem, uniform(problem))).sum()) * problem.micro_batches
        reasons = stage_reasons(problem, "makespan")
        until = time.monotonic() + RELAX_S * max(0.0, min(1.0, 2 * (LOOK_SHARE - self._spent()) / LOOK_SHARE))
        return relaxed(problem, "makespan", scale, reasons, until)[0]

    def _look(self, plain: dict[str, Costs], bounds: dict[str, int]) -> None:
        """First proposals: candidates by promise, once for what stays and once for what moves, in turn, as long as
        one promises more than the best estimate of its sort."""
        orders: dict[Kind, list[tuple[float, Candidate]]] = {}
        for kind in ("states", "kept"):
            promised = [(self._promise(c, plain[c.name], Terms(kind)), c) for c in self.candidates]
            orders[kind] = sorted(((p, c) for p, c in promised if np.isfinite(p)), key=lambda each: each[0])
        best: dict[Kind, float] = {"states": np.inf, "kept": np.inf}
        while any(orders.values()) and (self._spent() < LOOK_SHARE or not self.waiting) and self._spent() < 1:
            for kind, order in orders.items():
                if not order or order[0][0] >= best[kind]:
                    order.clear()
                    continue
                _, candidate = order.pop(0)
                if candidate.name in self.priced:
                    continue
                each = max(LEAST_LEVEL_S, min(LEVEL_S, LEVEL_SHARE * self.seconds))
                self.priced[candidate.name] = costs = _costs(candidate, each, self.seed)
                for one in self._kinds(candidate):
                    if self.waiting and self._spent() >= LOOK_SHARE:
                        break
                    found = self._propose(candidate, costs, Terms(one), 0)
                    sort: Kind = "kept" if one == "kept" else "states"
                    best[sort] = min(best[sort], np.inf if found is None else found)

        self.hurried = any(order and order[0][0] < best[kind] for kind, order in orders.items())

    def _kinds(self, candidate: Candidate) -> tuple[Kind, ...]:
        """All, or without room or links outside HBM the one that moves nothing."""
        profile = candidate.sample.profile
        tier, room = profile.device.tiers[HOST], self.budget.tier_bytes(profile)[HOST]
        return KINDS if room and tier.d2h_bytes_per_s and tier.h2d_bytes_per_s else ("kept",)

    def _promise(self, candidate: Candidate, costs: Costs, terms: Terms) -> float:
        """The relaxation if activations could be given up for nothing, but for what enters a layer if nothing moves."""
        return self._relaxed(candidate, self._given_up(candidate, costs, terms), terms)

    def _given_up(self, candidate: Candidate, costs: Costs, terms: Terms) -> Costs:
        by_id, sample = candidate.sample.profile.by_id, candidate.sample
        free: Costs = {}
        for name, cost in costs.items():
            part = sample.layers.get(name)
            stays = 0 if terms.moves or part is None else sum(by_id[s].bytes for s in part.enters)
            free[name] = replace(cost, levels=(Level("free", stays, 0, 0),))
        return free

    # -- proposals -----------------------------------------------------------------------------------------

    def _propose(self, candidate: Candidate, costs: Costs, terms: Terms, round_: int) -> int | None:
        """Puts the best split under these terms among the proposals; its estimate, None where none fits."""
        problem = stage_problem(candidate, costs, self.budget, terms)
        try:
            most = max(LEAST_SPLIT_S, min(SPLIT_S, SPLIT_SHARE * self.seconds))
            found = solve_order(problem, "makespan", most, self.seed, self.cancelled)
        except NoPlanError as none:
            self.tried.append(Tried(candidate.name, terms, 0, None, str(none)))
            return None
        proposal = _Proposal(candidate, costs, terms, problem, found.split, found.makespan, round_)
        heapq.heappush(self.waiting, (found.makespan, len(self.tried) + len(self.waiting), proposal))
        return found.makespan

    def _run_all(self) -> None:
        """Runs proposals, the best estimates first, and once, early, the best of those without moves and the same
        with moves after placement."""
        for kind in ("kept", "apart"):
            alike = [entry for entry in self.waiting if entry[2].terms.kind == kind]
            if alike and (self.best is None or self._spent() < 1):
                first = min(alike)
                self.waiting.remove(first)
                self._run(first[2])
        heapq.heapify(self.waiting)
        while self.waiting and (self._spent() < 1 or self.best is None) and not self.cancelled():
            estimate, _, proposal = heapq.heappop(self.waiting)
            if self.best is not None and estimate >= self.best[1].step_ns:
                self.tried.append(_told(proposal, None, "no better than what was found, by its estimate"))
                continue
            self._run(proposal)
        self.tried += [_told(proposal, None, "not run: the time was over") for _, _, proposal in self.waiting]

    def _run(self, proposal: _Proposal) -> None:
        """Plans and replays every stage of a proposal, and proposes again at the prices that this tells."""
        terms = proposal.terms
        allowed = terms.budget(self.budget, proposal.candidate.sample.profile.device.tiers)
        left = max(0.1, self.seconds - (time.monotonic() - self.began))
        until = time.monotonic() + min(left, RUN_SHARE * self.seconds)
        ran = run(
            proposal.candidate, proposal.costs, terms, proposal.problem, proposal.split, allowed, until, self.seed,
            self.cancelled,
        )  # fmt: skip
        if isinstance(ran, Refused):
            self.tried.append(_told(proposal, None, ran.why))
            terms = _shorter(proposal.problem, terms, ran)
        else:
            self.tried.append(_told(proposal, ran.step_ns, ""))
            if terms.kind == "kept":
                self.without = min(ran.step_ns, self.without or ran.step_ns)
            if self.best is None or ran.step_ns < self.best[1].step_ns:
                self.best = proposal, ran
            terms = _repriced(proposal, ran)
        if proposal.round + 1 < ROUNDS and terms.kind != "apart" and self._spent() < 1:
            self._propose(proposal.candidate, proposal.costs, terms, proposal.round + 1)

    def _reason(self) -> str:
        if self.cancelled():
            return "cancelled"
        return "time limit" if self._spent() >= 1 or self.hurried else "no proposal promised more"

    def _why_none(self) -> str:
        short = self._short()
        if not self.priced:
            return (
                f"no candidate's parameters and states fit --hbm-bytes{short}: more stages, more devices to a stage, "
                "or more HBM"
            )
        last = self.tried[-1]
        why = last.why.replace("the memory limits", "--hbm-bytes")
        return f"none of {len(self.priced)} candidates fits; {last.candidate}: {why}{short}"

    def _short(self) -> str:
        """The candidate that needs least, what a device of it needs at least (all activations and optimizer states
        given up that can be), and how much that is above the budget; nothing where it fits so."""
        needed: list[tuple[int, Candidate]] = []
        for candidate in self.candidates:
            costs = _costs(candidate, None, self.seed)
            terms = Terms(self._kinds(candidate)[-1])
            problem = stage_problem(candidate, self._given_up(candidate, costs, terms), self.budget, terms)
            needed.append((math.ceil(int(problem.limit.max()) * (1 + least_raise(problem))), candidate))
        least, candidate = min(needed, key=lambda each: each[0])
        hbm = self.budget.hbm_bytes
        if hbm is None or least <= hbm:
            return ""
        return f" (the least: {candidate.name} needs at least {least} bytes a device, {least - hbm} more than given)"


def _told(proposal: _Proposal, step_ns: int | None, why: str) -> Tried:
    return Tried(proposal.candidate.name, proposal.terms, proposal.estimate_ns, step_ns, why)


def _costs(candidate: Candidate, level_s: float | None, seed: int) -> Costs:
    sample = candidate.sample
    parts = {HEAD: sample.head, **sample.layers, TAIL: sample.tail}
    return {name: layer_cost(sample, part, level_s, seed) for name, part in parts.items()}


def _repriced(proposal: _Proposal, ran: Run) -> Terms:
    """Prices by what the stages took against what was thought: of their tasks, all in all."""
    problem = proposal.problem
    thought = problem.durations(proposal.split)
    price = list(proposal.terms.price or [1.0] * problem.stages)
    for s, one in enumerate(ran.stages):
        expected = sum(int(thought[s, task.direction]) for task in one.step.tasks)
        price[s] *= sum(one.took.tasks) / expected if expected else 1.0
    return replace(proposal.terms, price=tuple(price))


def _shorter(problem: Problem, terms: Terms, refused: Refused) -> Terms:
    """A stage that does not fit has to leave more of its budget: what it was short of, within a fiftieth and a
    twentieth of it (what is reachable may only be what was found in the time)."""
    short = list(terms.short or [0] * problem.stages)
    needed = refused.answer.reachable_bytes if refused.answer is not None else None
    limit = int(problem.limit[refused.stage]) + short[refused.stage]
    short[refused.stage] += min(max(limit // 50, (needed or 0) - limit), limit // 20)
    return replace(terms, short=tuple(short))
