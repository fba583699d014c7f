"""The linear program over the journeys found so far, for column generation, solved by OR-Tools' HiGHS.

A column is one unit's journey: what leaves and comes back at rows (`balance`: bytes off at a row are those at the row
before, and what has changed), link time, recompute time, and room in tight tiers; four to eight entries each.

Prices come from the interior point method without crossover: they lie in the midst of the best ones, so that fewer
rounds are needed than with those of a corner, and the time of a round does not grow with the pivots that many alike
storages take. Shares, which are to be rounded, come from a corner.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from threading import Thread

import numpy as np
import numpy.typing as npt
from ortools.math_opt.python import mathopt
from ortools.math_opt.solvers import highs_pb2

from solver.residency.fluid import Answer, Fluid, Prices
from solver.residency.gaps import DROP, MOVE, WRAP_HEAD

Floats = npt.NDArray[np.float64]

TIME = 1e-6
"""The linear program counts in milliseconds and in the budget's thousandths, to be well scaled."""

PRECISE = 1e-5
"""Relative gap at which the interior point method ends. What prices prove is computed from them (`fluid`), not taken
from the program, so that it need not be precise."""

ASK_EVERY_S = 0.1
"""How often, while a program is solved, those who asked for it are asked whether they still want it."""

Option = tuple[int, int, int, int, int, int]
"""(gap, choice, tier, row from, row back, whether the copy out is paid)"""


class Master:
    """The linear program over the journeys found so far; `stopped` is asked while it is solved, and ends that."""

    def __init__(self, fluid: Fluid, stopped: Callable[[], bool] = lambda: False) -> None:
        self.fluid, self.stopped = fluid, stopped
        self.lp = lp = mathopt.Model()
        self.unit = max(fluid.problem.hbm_bytes, 1) / 1000
        rows = fluid.axis.rows
        self.length = [lp.add_variable(lb=0.0) for _ in range(fluid.slots)]
        self.off = [lp.add_variable(lb=0.0) for r in range(rows)]
        penalty = fluid.problem.unlimited.step_ns * TIME / 10
        for v in self.length:
            lp.objective.set_linear_coefficient(v, 1.0)
        self.balance, self.need, self.short = [], [], []
        for r in range(rows):
            row = lp.add_linear_constraint(lb=0.0, ub=0.0)
            row.set_coefficient(self.off[r], -1.0)
            if r:
                row.set_coefficient(self.off[r - 1], 1.0)
            self.balance.append(row)
            need = lp.add_linear_constraint(lb=float(fluid.over[r]) / self.unit)
            need.set_coefficient(self.off[r], 1.0)
            if fluid.over[r] > 0:
                short = lp.add_variable(lb=0.0)
                lp.objective.set_linear_coefficient(short, penalty)
                need.set_coefficient(short, 1.0)
                self.short.append(short)
            self.need.append(need)
        self.queue: dict[tuple[int, bool], list[mathopt.LinearConstraint]] = {}
        for t, single in enumerate(fluid.one_queue):
            self.queue[t, True] = self._per_slot(0)
            self.queue[t, False] = self.queue[t, True] if single else self._per_slot(0)
        self.work = self._per_slot(fluid.axis.floor_ns * TIME)
        self.chain = []
        for first, end, ns in fluid.axis.stretches:
            row = lp.add_linear_constraint(lb=ns * TIME)
            for j in range(first, end):
                row.set_coefficient(self.length[j], 1.0)
            self.chain.append(row)
        self.total = lp.add_linear_constraint()
        for v in self.length:
            self.total.set_coefficient(v, 1.0)
        self.one: dict[int, mathopt.LinearConstraint] = {}
        self.room: dict[int, list[mathopt.LinearConstraint]] = {}
        self.balance_in: dict[int, list[mathopt.LinearConstraint]] = {}
        for t in fluid.tight:
            self._tier_rows(t)
        self.columns: list[tuple[mathopt.Variable, list[Option]]] = []
        self.known: set[tuple[int, ...]] = set()
        self.found: mathopt.SolveResult | None = None

    def _per_slot(self, least: float | Floats) -> list[mathopt.LinearConstraint]:
        rows = []
        for v, low in zip(self.length, np.broadcast_to(least, len(self.length)).tolist(), strict=True):
            row = self.lp.add_linear_constraint(lb=low)
            row.set_coefficient(v, 1.0)
            rows.append(row)
        return rows

    def _tier_rows(self, t: int) -> None:
        cap = self.fluid.problem.tier_bytes[self.fluid.names[t]] / self.unit
        inside = [self.lp.add_variable(lb=0.0) for _ in range(self.fluid.axis.rows)]
        self.balance_in[t], self.room[t] = [], []
        for r, v in enumerate(inside):
            row = self.lp.add_linear_constraint(lb=0.0, ub=0.0)
            row.set_coefficient(v, -1.0)
            if r:
                row.set_coefficient(inside[r - 1], 1.0)
            self.balance_in[t].append(row)
            most = self.lp.add_linear_constraint(ub=cap)
            most.set_coefficient(v, 1.0)
            self.room[t].append(most)

    def add(self, found: Answer, prices: Prices) -> int:
        """The journeys of an answer as columns; returns how many were new."""
        gaps, added = self.fluid.gaps, 0
        for u in np.flatnonzero(found.saving > 0).tolist():
            options = []
            for g in range(int(gaps.first_gap[u]), int(gaps.first_gap[u + 1])):
                if found.choice[g]:
                    option = (
                        g, int(found.choice[g]), int(found.tier[g]), int(found.row_from[g]), int(found.row_back[g]),
                        int(found.pays_out[g]),
                    )  # fmt: skip
                    options.append(option)
            added += self.add_journey(u, options, prices)
        return added

    def add_journey(self, u: int, options: list[Option], prices: Prices) -> bool:
        """A journey of unit u as a column, its copies in the slots that are cheapest at these prices; whether it is
        new."""
        entries = self._entries(options, prices)
        signature = (u, *(hash(e) for e in entries))
        if signature in self.known:
            return False
        self.known.add(signature)
        if u not in self.one:
            self.one[u] = self.lp.add_linear_constraint(ub=1.0)
        x = self.lp.add_variable(lb=0.0)
        self.one[u].set_coefficient(x, 1.0)
        merged: dict[int, float] = {}  # one queue for both directions, and HBM for all tiers, are one row
        rows_of: dict[int, mathopt.LinearConstraint] = {}
        for name, t, index, amount in entries:
            row = self._row(name, t)[index]
            merged[row.id] = merged.get(row.id, 0.0) + amount
            rows_of[row.id] = row
        for number, amount in merged.items():
            rows_of[number].set_coefficient(x, amount)
        self.columns.append((x, options))
        return True

    def _row(self, name: str, t: int) -> list[mathopt.LinearConstraint]:
        if name == "off":
            return self.balance
        if name == "in":
            return self.balance_in[t]
        if name == "work":
            return self.work
        return self.queue[t, name == "out"]

    def _entries(self, options: list[Option], prices: Prices) -> list[tuple[str, int, int, float]]:
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
        """What the inputs that a drop needs take: the cheapest at these prices, as `journeys._charge` has it, but for
        those made again and then moved."""
        gaps, inputs = self.fluid.gaps, self.fluid.gaps.inputs
        due, out, back = int(gaps.due[g]), prices.out.min(axis=0), prices.back.min(axis=0)
        before = np.concatenate([[0.0], np.cumsum(prices.held)])  # prices of the rows before each
        entries: list[tuple[str, int, int, float]] = []
        for i in range(int(inputs.at[g]), int(inputs.at[g + 1])):
            row, slot, share = int(inputs.row[i]), int(inputs.slot[i]), float(inputs.share[i])
            if row >= k:
                continue
            size = float(inputs.bytes[i])
            slots = np.arange(slot, due + 1)
            kept = size * (before[k] - before[np.minimum(slots, k)])  # from some slot on
            ways = [(size * (before[k] - before[row]), self._held(row, k, share * size))]
            if inputs.rerun_ns[i] >= 0:
                cost = inputs.rerun_ns[i] * prices.work[slots] + kept
                j = slot + int(cost.argmin())
                work = ("work", 0, j, -share * float(inputs.rerun_ns[i]) * TIME)
                ways.append((float(cost.min()), [work, *self._held(j, k, share * size)]))
            if inputs.out_ns[i] >= 0:
                until = size * np.maximum(before[np.minimum(slots, k)] - before[row], 0) if inputs.out_ns[i] else 0.0
                leaves, returns = inputs.out_ns[i] * out[slots] + until, inputs.in_ns[i] * back[slots] + kept
                a, b = slot + int(leaves.argmin()), slot + int(returns.argmin())
                moves = [
                    ("out", int(prices.out[:, a].argmin()), a, -share * float(inputs.out_ns[i]) * TIME),
                    ("back", int(prices.back[:, b].argmin()), b, -share * float(inputs.in_ns[i]) * TIME),
                    *self._held(b, k, share * size),
                    *(self._held(row, min(a, k), share * size) if inputs.out_ns[i] else ()),
                ]
                ways.append((float(leaves.min() + returns.min()), moves))
            entries.extend(min(ways, key=lambda way: way[0])[1])
        return entries

    def _held(self, row: int, end: int, size: float) -> list[tuple[str, int, int, float]]:
        """Bytes more in HBM at rows row .. end - 1."""
        if row >= end:
            return []
        back = [("off", 0, end, size / self.unit)] if end < self.fluid.axis.rows else []
        return [("off", 0, row, -size / self.unit), *back]

    def solve(self, seconds: float | None) -> Prices | None:
        """The prices at the optimum; None where there was no time for it, or none was found."""
        if not self._solved(seconds, corner=False):
            return None
        per_byte = 1 / (TIME * self.unit)
        fluid, tiers = self.fluid, len(self.fluid.names)
        out = np.zeros((tiers, fluid.slots))
        back = np.zeros((tiers, fluid.slots))
        room = np.zeros((tiers, fluid.axis.rows))
        for t in range(tiers):
            out[t], back[t] = self._duals(self.queue[t, True]), self._duals(self.queue[t, False])
            if t in self.room:
                room[t] = -self._duals(self.room[t]) * per_byte
        return Prices(
            self._duals(self.need) * per_byte, out, back, self._duals(self.work), self._duals(self.chain), room
        )

    def _duals(self, rows: list[mathopt.LinearConstraint]) -> Floats:
        assert self.found is not None
        return np.asarray(self.found.dual_values(rows), dtype=np.float64)

    @property
    def value(self) -> float:
        """Of the objective, when last solved."""
        assert self.found is not None
        return float(self.found.objective_value())

    def set_speed(self, speed: float) -> None:
        for rows in self.queue.values():
            for row, v in zip(rows, self.length, strict=True):
                row.set_coefficient(v, speed)

    def shortest(self) -> None:
        """Back to the program's own objective."""
        self.total.upper_bound = float("inf")
        for v in self.length:
            self.lp.objective.set_linear_coefficient(v, 1.0)
        for x, _ in self.columns:
            self.lp.objective.set_linear_coefficient(x, 0.0)

    def lightest(self, within: float, seconds: float | None) -> bool:
        """Of the mixtures whose length is at most `within`, the one with the least link and recompute time."""
        self.total.upper_bound = within
        for v in self.length:
            self.lp.objective.set_linear_coefficient(v, 0.0)
        for x, options in self.columns:
            self.lp.objective.set_linear_coefficient(x, self._effort(options) * TIME)
        return self._solved(seconds, corner=True)

    def corner(self, seconds: float | None) -> bool:
        """Solves again, for shares that are to be rounded; whether that went."""
        return self._solved(seconds, corner=True)

    def _solved(self, seconds: float | None, *, corner: bool) -> bool:
        """Solves by HiGHS; where that ends in numerical trouble, or is not at hand, by GLOP."""
        deadline = None if seconds is None else time.monotonic() + seconds
        method = {"solver": "ipm", "run_crossover": "on" if corner else "off", "parallel": "off"}
        options = highs_pb2.HighsOptionsProto(
            string_options=method, double_options={"ipm_optimality_tolerance": PRECISE}
        )
        for engine in (mathopt.SolverType.HIGHS, mathopt.SolverType.GLOP):
            own = mathopt.SolveParameters()
            if engine is mathopt.SolverType.HIGHS:
                own.highs = options
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                own.time_limit = timedelta(seconds=left)
            self.found = self._ended(engine, own)
            if self.found is not None:
                return True
            if self.stopped():
                return False
        return False

    def _ended(self, engine: mathopt.SolverType, own: mathopt.SolveParameters) -> mathopt.SolveResult | None:
        """Solves in a thread of its own, which is left to itself when this one is to stop; the result, if optimal.

        Not a daemon: a process that ends waits for it, for a thread that is torn out of C++ takes the process with it.
        """
        found: list[mathopt.SolveResult] = []

        def solve() -> None:
            try:
                found.append(mathopt.solve(self.lp, engine, params=own))
            except Exception:  # numerical trouble, in HiGHS' binding of some versions an AttributeError
                return

        solving = Thread(target=solve)
        solving.start()
        while solving.is_alive():
            solving.join(ASK_EVERY_S)
            if solving.is_alive() and self.stopped():
                return None
        if not found or found[0].termination.reason is not mathopt.TerminationReason.OPTIMAL:
            return None
        return found[0]

    def _effort(self, options: list[Option]) -> float:
        gaps, total = self.fluid.gaps, 0
        for g, choice, t, _, _, pays in options:
            if choice == DROP:
                total += 2 * int(gaps.rerun_ns[g])
            else:
                total += int(gaps.out_ns[g, t]) * pays + int(gaps.in_ns[g, t]) * int(gaps.kind[g] <= WRAP_HEAD)
        return float(total)

    def shares(self, least: float = 1e-6) -> list[tuple[float, list[Option]]]:
        """The journeys of which the last solution takes more than `least`, and how much."""
        assert self.found is not None
        values = self.found.variable_values([x for x, _ in self.columns])
        return [(v, options) for v, (_, options) in zip(values, self.columns, strict=True) if v > least]
