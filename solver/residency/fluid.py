"""The fluid bound: a linear program that every plan satisfies, solved by column generation, checked by duality.

Each storage picks a journey (`journeys`): at which rows of the axis it is off HBM, in which slots it is copied.
Let x be the share of each journey (one storage's shares sum to at most 1), len_j the length of slot j:

    minimise  sum_j len_j
    Y_r = bytes off HBM at row r, from the journeys;  Y_r >= load_r - budget     (held_r)
    copy time of each link queue in slot j <= len_j                              (link_qj)
    compute operators of slot j + recompute in it <= len_j                       (work_j)
    slots of a stretch together >= its longest chain of operators                (chain)
    bytes in a tier at row r <= its budget                                       (room_tr)

*Why it is a bound.* Take any plan that runs. Its own slots have the lengths len_j, which satisfy the third and
fourth line (see `axis`). What is off HBM at row r has been copied out whole by then, in slots up to r, and comes back
whole in slots from r on; links carry one copy at a time, so the time of all copies, counted in the slots where they
happen, fits. So each storage's behaviour is one journey, or a mixture of those that `journeys` may choose from, and
costs at least what is charged for it. The program drops what it cannot say (whole copies, order, latencies of waiting,
memory between rows, the inputs of what is made again), which only makes it lower.

*Why the answer is safe.* For any prices >= 0 with link + work + chain <= 1 in each slot,

    sum work_j C_j + sum chain L + sum held_r (load_r - budget) - sum room x bytes - sum of the storages' best savings

is at most the program's optimum (weak duality). That is computed here from the prices directly: how well or badly
the linear solver did can make the bound lower, never wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from ortools.linear_solver import pywraplp

from solver.residency.axis import Axis, make_axis
from solver.residency.journeys import DROP, MOVE, WRAP_HEAD, Gaps, cheapest, decide, gaps_on
from solver.residency.problem import Problem

Floats = npt.NDArray[np.float64]

TIME = 1e-6
SMOOTHING = (1.0, 0.5, 0.2)

COARSE = 12
"""Rows of the axis on which first prices are found: they start the search for those on the finer one."""

SETTLED = 1e-3
"""A guide is good enough when a round shortens it by less than this part."""

SPEEDS = (0.8, 0.6)
"""Of links, in guides beside the true one."""

WARM = "use_preprocessing: false use_dual_simplex: false"
COLD = "use_preprocessing: true use_dual_simplex: true"
"""Of GLOP: to go on from the last basis after columns have been added, and to start anew."""

GUIDE_ROUNDS = 12
"""The linear program counts in milliseconds and in the budget's thousandths, to be well scaled."""


@dataclass(frozen=True)
class Prices:
    """Nanoseconds of step time: `held` per byte of HBM at each row; `out`, `back` per nanosecond of link and `work` per
    nanosecond of recompute in each slot, by tier; `chain` per stretch; `room` per byte of a tier at each row."""

    held: Floats
    out: Floats
    back: Floats
    work: Floats
    chain: Floats
    room: Floats


PARTS = ("held", "out", "back", "work", "chain", "room")


@dataclass
class Answer:
    """Per gap of `Gaps`: what it does at some prices."""

    choice: npt.NDArray[np.int64]
    tier: npt.NDArray[np.int64]
    row_from: npt.NDArray[np.int64]
    row_back: npt.NDArray[np.int64]
    pays_out: npt.NDArray[np.int64]
    saving: Floats


class Fluid:
    """The linear program of one problem on one axis."""

    def __init__(self, problem: Problem, rows: int) -> None:
        self.problem = problem
        self.axis: Axis = make_axis(problem, rows)
        self.gaps: Gaps = gaps_on(problem, self.axis)
        self.slots = self.axis.rows + 1
        self.names = list(problem.tiers) or ["host"]
        self.over = np.maximum(problem.load[self.axis.ops] - problem.hbm_bytes, 0).astype(np.float64)
        self.tight = [t for t, name in enumerate(self.names) if problem.tiers and name not in problem.roomy]
        self.one_queue = [not problem.tiers[name].duplex if problem.tiers else False for name in self.names]

    def no_prices(self) -> Prices:
        tiers, rows, slots = len(self.names), self.axis.rows, self.slots
        chain = np.zeros(len(self.axis.stretches))
        chain[:1] = 1.0  # the whole step: the bound without memory
        return Prices(
            np.zeros(rows),
            np.zeros((tiers, slots)),
            np.zeros((tiers, slots)),
            np.full(slots, 1.0 - chain.sum()),
            chain,
            np.zeros((tiers, rows)),
        )

    def answer(self, prices: Prices, *, proof: bool = True) -> tuple[float, Answer]:
        """The bound (ns) that these prices prove, and every storage's best journey at them.

        Without `proof` the value may be above the optimum: journeys are then only those that columns can say, each gap
        used once and in one tier.
        """
        gaps, slots = self.gaps, self.slots
        out, back, room, out_ns, in_ns = prices.out, prices.back, prices.room, gaps.out_ns, gaps.in_ns
        if proof and len(self.names) > 1:
            # A tier as good as the best of all in everything: no plan gains more by changing tiers within a gap.
            out, back, room = (np.vstack([of, of.min(axis=0)]) for of in (out, back, room))
            out_ns, in_ns = (np.column_stack([of, _least_able(of)]) for of in (out_ns, in_ns))
        tiers = len(out)
        held = np.zeros((tiers + 1, self.axis.rows + 1))
        held[tiers, 1:] = np.cumsum(prices.held)
        for t in range(tiers):
            held[t, 1:] = np.cumsum(prices.held - room[t])
        tables = np.zeros((tiers, slots.bit_length(), slots))
        for t in range(tiers):
            cheapest(out[t], tables[t])
        best = np.zeros((3, slots.bit_length(), slots))
        for table, of in zip(best, (prices.work, prices.out.min(axis=0), prices.back.min(axis=0)), strict=True):
            cheapest(of, table)
        inputs = gaps.inputs
        count = len(gaps.kind)
        found = Answer(
            choice=np.zeros(count, dtype=np.int64),
            tier=np.zeros(count, dtype=np.int64),
            row_from=np.zeros(count, dtype=np.int64),
            row_back=np.zeros(count, dtype=np.int64),
            pays_out=np.zeros(count, dtype=np.int64),
            saving=np.zeros(len(gaps.members)),
        )
        saved = decide(
            gaps.first_gap, gaps.kind, gaps.bytes, gaps.first, gaps.end, gaps.written, gaps.due, gaps.version,
            gaps.dirty, gaps.rerun_ns, np.ascontiguousarray(out_ns), np.ascontiguousarray(in_ns), held,
            out, back, prices.work, tables,
            inputs.at, inputs.row, inputs.slot, inputs.bytes, inputs.rerun_ns, inputs.out_ns, inputs.in_ns,
            inputs.share, best[0], best[1], best[2], proof,
            found.choice, found.tier, found.row_from, found.row_back, found.pays_out, found.saving,
        )  # fmt: skip
        value = float(prices.work @ self.axis.floor_ns) + float(prices.held @ self._excess()) - float(saved)
        value += sum(p * ns for p, (_, _, ns) in zip(prices.chain, self.axis.stretches, strict=True))
        for t in self.tight:
            value -= float(prices.room[t].sum()) * self.problem.tier_bytes[self.names[t]]
        return value, found

    def _excess(self) -> Floats:
        return (self.problem.load[self.axis.ops] - self.problem.hbm_bytes).astype(np.float64)

    def from_coarser(self, other: Fluid, prices: Prices) -> Prices:
        """Prices found on a coarser axis, on this one: the same at the same moments."""
        found = self.no_prices()
        here, there = self.axis.ops, other.axis.ops
        place = np.minimum(np.searchsorted(here, there), len(here) - 1)
        same = here[place] == there
        found.held[place[same]] = prices.held[same]
        slot = np.searchsorted(there, np.concatenate([[-1], here]), side="right")
        found.out[:], found.back[:], found.work[:] = prices.out[:, slot], prices.back[:, slot], prices.work[slot]
        for t in self.tight:
            found.room[t][place[same]] = prices.room[t][same]
        known = {(int(there[a - 1]) if a else -1, int(there[b - 1]) if b <= len(there) else -1): p
                 for (a, b, _), p in zip(other.axis.stretches, prices.chain.tolist(), strict=True)}  # fmt: skip
        found.chain[:] = [
            known.get((int(here[a - 1]) if a else -1, int(here[b - 1]) if b <= len(here) else -1), 0.0)
            for a, b, _ in self.axis.stretches
        ]
        return self.feasible(found)

    def feasible(self, prices: Prices) -> Prices:
        """Prices made admissible: none negative, link + work + chain exactly 1 in each slot, one price for both
        directions of one queue, none for tiers that hold everything."""
        out, back, room = np.maximum(prices.out, 0), np.maximum(prices.back, 0), np.maximum(prices.room, 0)
        for t in range(len(self.names)):
            if self.one_queue[t]:
                out[t] = back[t] = np.maximum(out[t], back[t])
            if t not in self.tight:
                room[t] = 0
        chain = np.maximum(prices.chain, 0)
        along = np.zeros(self.slots)
        for p, (first, end, _) in zip(chain, self.axis.stretches, strict=True):
            along[first:end] += p
        if along.max(initial=0.0) > 1:
            chain, along = chain / along.max(), along / along.max()
        links = sum(out[t] + (0 if self.one_queue[t] else back[t]) for t in range(len(self.names)))
        scale = np.minimum(1.0, (1 - along) / np.maximum(links, 1e-12))
        out, back, links = out * scale, back * scale, links * scale
        return Prices(np.maximum(prices.held, 0), out, back, np.maximum(1 - along - links, 0), chain, room)


Option = tuple[int, int, int, int, int, int]
"""(gap, choice, tier, row from, row back, whether the copy out is paid)"""


@dataclass(frozen=True)
class Guide:
    """What the program would do with links of `speed` times their bandwidth: prices, and (share, journey) pairs.

    Whole copies that queue do not use a link as fully as a fluid does; slower links make a guide that leaves room.
    """

    speed: float
    prices: Prices
    shares: list[tuple[float, list[Option]]]


@dataclass
class Solution:
    """The proven bound (ns), the prices that prove it, and guides to plans."""

    bound_ns: float
    prices: Prices
    guides: list[Guide] = field(default_factory=list)
    rounds: int = 0
    short_bytes: float = 0.0

    @classmethod
    def blank(cls, fluid: Fluid) -> Solution:
        """What is known before anything is solved."""
        prices = fluid.no_prices()
        return cls(0.0, prices, [Guide(1.0, prices, [])])


class _Master:
    """The linear program over the journeys found so far."""

    def __init__(self, fluid: Fluid) -> None:
        self.fluid = fluid
        self.lp = lp = pywraplp.Solver.CreateSolver("GLOP")
        self.unit = max(fluid.problem.hbm_bytes, 1) / 1000
        rows, inf = fluid.axis.rows, lp.infinity()
        self.length = [lp.NumVar(0, inf, "") for _ in range(fluid.slots)]
        self.off = [lp.NumVar(0, inf, "") for r in range(rows)]
        penalty = fluid.problem.unlimited.step_ns * TIME / 10
        objective = lp.Objective()
        for v in self.length:
            objective.SetCoefficient(v, 1.0)
        self.balance, self.need, self.short = [], [], []
        for r in range(rows):
            row = lp.Constraint(0, 0)
            row.SetCoefficient(self.off[r], -1.0)
            if r:
                row.SetCoefficient(self.off[r - 1], 1.0)
            self.balance.append(row)
            need = lp.Constraint(float(fluid.over[r]) / self.unit, inf)
            need.SetCoefficient(self.off[r], 1.0)
            if fluid.over[r] > 0:
                short = lp.NumVar(0, inf, "")
                objective.SetCoefficient(short, penalty)
                need.SetCoefficient(short, 1.0)
                self.short.append(short)
            self.need.append(need)
        self.queue: dict[tuple[int, bool], list[pywraplp.Constraint]] = {}
        for t, single in enumerate(fluid.one_queue):
            self.queue[t, True] = self._per_slot(0)
            self.queue[t, False] = self.queue[t, True] if single else self._per_slot(0)
        self.work = self._per_slot(fluid.axis.floor_ns * TIME)
        self.chain = []
        for first, end, ns in fluid.axis.stretches:
            row = lp.Constraint(ns * TIME, inf)
            for j in range(first, end):
                row.SetCoefficient(self.length[j], 1.0)
            self.chain.append(row)
        self.total = lp.Constraint(-inf, inf)
        for v in self.length:
            self.total.SetCoefficient(v, 1.0)
        self.one: dict[int, pywraplp.Constraint] = {}
        self.room: dict[int, list[pywraplp.Constraint]] = {}
        self.balance_in: dict[int, list[pywraplp.Constraint]] = {}
        for t in fluid.tight:
            self._tier_rows(t)
        self.columns: list[tuple[pywraplp.Variable, list[tuple[int, int, int, int, int, int]]]] = []
        self.known: set[tuple[int, ...]] = set()
        lp.Objective().SetMinimization()

    def _per_slot(self, least: float | Floats) -> list[pywraplp.Constraint]:
        rows = []
        for v, low in zip(self.length, np.broadcast_to(least, len(self.length)).tolist(), strict=True):
            row = self.lp.Constraint(low, self.lp.infinity())
            row.SetCoefficient(v, 1.0)
            rows.append(row)
        return rows

    def _tier_rows(self, t: int) -> None:
        cap = self.fluid.problem.tier_bytes[self.fluid.names[t]] / self.unit
        inside = [self.lp.NumVar(0, self.lp.infinity(), "") for _ in range(self.fluid.axis.rows)]
        self.balance_in[t], self.room[t] = [], []
        for r, v in enumerate(inside):
            row = self.lp.Constraint(0, 0)
            row.SetCoefficient(v, -1.0)
            if r:
                row.SetCoefficient(inside[r - 1], 1.0)
            self.balance_in[t].append(row)
            most = self.lp.Constraint(-self.lp.infinity(), cap)
            most.SetCoefficient(v, 1.0)
            self.room[t].append(most)

    def add(self, found: Answer, prices: Prices) -> int:
        """The journeys of an answer as columns; returns how many were new."""
        gaps, added = self.fluid.gaps, 0
        live = np.flatnonzero(found.saving > 0)
        for u in live.tolist():
            options = []
            key = [u]
            for g in range(int(gaps.first_gap[u]), int(gaps.first_gap[u + 1])):
                if found.choice[g]:
                    option = (
                        g, int(found.choice[g]), int(found.tier[g]), int(found.row_from[g]), int(found.row_back[g]),
                        int(found.pays_out[g]),
                    )  # fmt: skip
                    options.append(option)
            entries = self._entries(options, prices)
            key.extend(hash(e) for e in entries)
            signature = tuple(key)
            if signature in self.known:
                continue
            self.known.add(signature)
            if u not in self.one:
                self.one[u] = self.lp.Constraint(-self.lp.infinity(), 1.0)
            x = self.lp.NumVar(0, self.lp.infinity(), "")
            self.one[u].SetCoefficient(x, 1.0)
            merged: dict[int, float] = {}  # one queue for both directions, and HBM for all tiers, are one row
            rows_of: dict[int, pywraplp.Constraint] = {}
            for name, t, index, amount in entries:
                row = self._row(name, t)[index]
                merged[row.index()] = merged.get(row.index(), 0.0) + amount
                rows_of[row.index()] = row
            for number, amount in merged.items():
                rows_of[number].SetCoefficient(x, amount)
            self.columns.append((x, options))
            added += 1
        return added

    def _row(self, name: str, t: int) -> list[pywraplp.Constraint]:
        if name == "off":
            return self.balance
        if name == "in":
            return self.balance_in[t]
        if name == "work":
            return self.work
        return self.queue[t, name == "out"]

    def _entries(
        self, options: list[tuple[int, int, int, int, int, int]], prices: Prices
    ) -> list[tuple[str, int, int, float]]:
        gaps, rows = self.fluid.gaps, self.fluid.axis.rows
        entries: list[tuple[str, int, int, float]] = []
        for g, choice, t, i, k, pays in options:
            size = float(gaps.bytes[g]) / self.unit
            if i < k:
                for name in ("off", "in") if choice == MOVE and t in self.room else ("off",):
                    entries.append((name, t, i, size))
                    if k < rows:
                        entries.append((name, t, k, -size))
            if choice == DROP:
                j = k + int(np.argmin(prices.work[k : int(gaps.due[g]) + 1]))
                entries.append(("work", t, j, -float(gaps.rerun_ns[g]) * TIME))
                entries.extend(self._input_entries(g, k, prices))
                continue
            if pays:
                w = int(gaps.written[g])
                j = w + int(np.argmin(prices.out[t, w : i + 1]))
                entries.append(("out", t, j, -float(gaps.out_ns[g, t]) * TIME))
            due = int(gaps.due[g])
            comes_back = due <= rows and (gaps.kind[g] <= WRAP_HEAD)
            if comes_back:
                j = k + int(np.argmin(prices.back[t, k : due + 1]))
                entries.append(("back", t, j, -float(gaps.in_ns[g, t]) * TIME))
        return entries

    def _input_entries(self, g: int, k: int, prices: Prices) -> list[tuple[str, int, int, float]]:
        """What the inputs that a drop needs take: the cheapest at these prices, as `journeys.other_way` has it."""
        gaps, inputs, rows = self.fluid.gaps, self.fluid.gaps.inputs, self.fluid.axis.rows
        due = int(gaps.due[g])
        entries: list[tuple[str, int, int, float]] = []
        for i in range(int(inputs.at[g]), int(inputs.at[g + 1])):
            row, slot, share = int(inputs.row[i]), int(inputs.slot[i]), float(inputs.share[i])
            held = float(inputs.bytes[i]) * float(prices.held[row:k].sum()) if row < k else 0.0
            if row >= k:
                continue
            j = slot + int(np.argmin(prices.work[slot : due + 1]))
            again = inputs.rerun_ns[i] * prices.work[j] if inputs.rerun_ns[i] >= 0 else np.inf
            moved = np.inf
            if inputs.out_ns[i] >= 0:
                out, back = prices.out.min(axis=0), prices.back.min(axis=0)
                a = slot + int(np.argmin(out[slot : due + 1]))
                b = slot + int(np.argmin(back[slot : due + 1]))
                moved = inputs.out_ns[i] * out[a] + inputs.in_ns[i] * back[b]
            if held <= min(again, moved):
                entries.append(("off", 0, row, -share * float(inputs.bytes[i]) / self.unit))
                if k < rows:
                    entries.append(("off", 0, k, share * float(inputs.bytes[i]) / self.unit))
            elif again <= moved:
                entries.append(("work", 0, j, -share * float(inputs.rerun_ns[i]) * TIME))
            else:
                t, u = int(prices.out[:, a].argmin()), int(prices.back[:, b].argmin())
                entries.append(("out", t, a, -share * float(inputs.out_ns[i]) * TIME))
                entries.append(("back", u, b, -share * float(inputs.in_ns[i]) * TIME))
        return entries

    def solve(self, seconds: float | None) -> Prices | None:
        if not self._solved(seconds):
            return None
        dual = np.vectorize(lambda row: row.dual_value(), otypes=[float])
        per_byte = 1 / (TIME * self.unit)
        fluid, tiers = self.fluid, len(self.fluid.names)
        out = np.zeros((tiers, fluid.slots))
        back = np.zeros((tiers, fluid.slots))
        room = np.zeros((tiers, fluid.axis.rows))
        for t in range(tiers):
            out[t], back[t] = dual(self.queue[t, True]), dual(self.queue[t, False])
            if t in self.room:
                room[t] = -dual(self.room[t]) * per_byte
        chain = dual(self.chain) if self.chain else np.zeros(0)
        return Prices(dual(self.need) * per_byte, out, back, dual(self.work), chain, room)

    def set_speed(self, speed: float) -> None:
        for rows in self.queue.values():
            for row, v in zip(rows, self.length, strict=True):
                row.SetCoefficient(v, speed)

    def shortest(self) -> None:
        """Back to the program's own objective."""
        self.total.SetUb(self.lp.infinity())
        objective = self.lp.Objective()
        for v in self.length:
            objective.SetCoefficient(v, 1.0)
        for x, _ in self.columns:
            objective.SetCoefficient(x, 0.0)

    def lightest(self, within: float, seconds: float | None) -> bool:
        """Of the mixtures whose length is at most `within`, the one with the least link and recompute time."""
        self.total.SetUb(within)
        objective = self.lp.Objective()
        for v in self.length:
            objective.SetCoefficient(v, 0.0)
        for x, options in self.columns:
            objective.SetCoefficient(x, self._effort(options) * TIME)
        return self._solved(seconds)

    def _solved(self, seconds: float | None) -> bool:
        """Solves from the last basis; where that ends in numerical trouble, once more from scratch."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for parameters in (WARM, COLD):
            self.lp.SetSolverSpecificParametersAsString(parameters)
            if deadline is not None:
                self.lp.SetTimeLimit(max(1, int((deadline - time.monotonic()) * 1000)))
            if self.lp.Solve() == pywraplp.Solver.OPTIMAL:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return False

    def _effort(self, options: list[tuple[int, int, int, int, int, int]]) -> float:
        gaps, total = self.fluid.gaps, 0
        for g, choice, t, _, _, pays in options:
            if choice == DROP:
                total += 2 * int(gaps.rerun_ns[g])
            else:
                total += int(gaps.out_ns[g, t]) * pays + int(gaps.in_ns[g, t]) * int(gaps.kind[g] <= WRAP_HEAD)
        return float(total)

    def shares(self) -> list[tuple[float, list[tuple[int, int, int, int, int, int]]]]:
        return [(v, options) for x, options in self.columns if (v := x.solution_value()) > 1e-6]


def solve_fluid(
    fluid: Fluid,
    seconds: float | None,
    stopped: Callable[[], bool] = lambda: False,
    tolerance: float = 5e-4,
    rounds: int = 200,
    guided: bool = True,
) -> Solution:
    """Column generation until the bound is within `tolerance` (relative) of the program's optimum, or time is up.

    Prices are smoothed: those asked at lie between the best known and the linear program's, which converges in
    fewer rounds.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    best_prices = fluid.no_prices()
    best, found = fluid.answer(best_prices)
    solution = Solution(best, best_prices)
    master = _Master(fluid)
    if fluid.axis.rows > 2 * COARSE:
        coarser = Fluid(fluid.problem, COARSE)
        known = solve_fluid(coarser, None if seconds is None else seconds / 4, stopped, guided=False)
        prices = fluid.from_coarser(coarser, known.prices)
        bound, _ = fluid.answer(prices)
        _, found = fluid.answer(prices, proof=False)
        master.add(found, prices)
        solution.bound_ns = known.bound_ns
        if bound > solution.bound_ns:
            solution.bound_ns, solution.prices = bound, prices
        else:
            solution.prices = prices
    shares: list[tuple[float, list[Option]]] = []
    for number in range(rounds):
        left = None if deadline is None else deadline - time.monotonic()
        if (left is not None and left <= 0) or stopped():
            break
        raw = master.solve(left)
        if raw is None:
            break
        value = master.lp.Objective().Value() / TIME
        solution.rounds = number + 1
        shares = master.shares()
        solution.short_bytes = sum(v.solution_value() for v in master.short) * master.unit
        prices = fluid.feasible(raw)
        added = 0
        for weight in SMOOTHING:  # of the linear program's own prices
            mixed = prices if weight == 1.0 else fluid.feasible(_mix(solution.prices, prices, weight))
            bound, _ = fluid.answer(mixed)
            _, found = fluid.answer(mixed, proof=False)
            added += master.add(found, mixed)
            if bound > solution.bound_ns:
                solution.bound_ns, solution.prices = bound, mixed
        if not added or value - solution.bound_ns <= tolerance * value:
            break
    if guided:
        solution.guides.append(Guide(1.0, solution.prices, shares))
    if shares and guided:
        for speed in SPEEDS:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            guide = _guide(fluid, master, speed, left)
            if guide is not None:
                solution.guides.append(guide)
    return solution


def _guide(fluid: Fluid, master: _Master, speed: float, seconds: float | None) -> Guide | None:
    deadline = None if seconds is None else time.monotonic() + seconds / 2
    master.set_speed(speed)
    prices: Prices | None = None
    value = np.inf
    for _ in range(GUIDE_ROUNDS):
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        raw = master.solve(left)
        if raw is None:
            break
        prices = Prices(*(np.maximum(getattr(raw, name), 0) for name in PARTS))
        before, value = value, master.lp.Objective().Value()
        _, found = fluid.answer(prices, proof=False)
        if value > before * (1 - SETTLED) or not master.add(found, prices):
            break
    if prices is None or not master.lightest(value * 1.002, None if seconds is None else seconds / 2):
        return None
    shares = master.shares()
    master.shortest()
    return Guide(speed, prices, shares)


def _least_able(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Per gap the least copy time of the tiers that can take it; -1: none can."""
    able = np.where(times < 0, np.iinfo(np.int64).max, times).min(axis=1)
    return np.where(able == np.iinfo(np.int64).max, -1, able)


def _mix(a: Prices, b: Prices, weight: float) -> Prices:
    return Prices(*((1 - weight) * getattr(a, name) + weight * getattr(b, name) for name in PARTS))
