"""The linear program over the journeys found so far (OR-Tools' GLOP), for column generation.

A column is one unit's journey: what leaves and comes back at rows (`balance`: bytes off at a row are those at the row
before, and what has changed), link time, recompute time, and room in tight tiers; four to eight entries each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread

import numpy as np
import numpy.typing as npt
from ortools.linear_solver import pywraplp

from solver.residency.fluid import Answer, Fluid, Prices
from solver.residency.gaps import DROP, MOVE, WRAP_HEAD

Floats = npt.NDArray[np.float64]

TIME = 1e-6
"""The linear program counts in milliseconds and in the budget's thousandths, to be well scaled."""

WARM = "use_preprocessing: false use_dual_simplex: false change_status_to_imprecise: false"
COLD = "use_preprocessing: true use_dual_simplex: true change_status_to_imprecise: false"
"""Of GLOP: to go on from the last basis after columns have been added, and to start anew. A solution that it finds
imprecise is as good as any: what its prices prove is computed from them (`fluid`), not taken from it."""

ASK_EVERY_S = 0.1
"""How often, while a program is solved, those who asked for it are asked whether they still want it."""

Option = tuple[int, int, int, int, int, int]
"""(gap, choice, tier, row from, row back, whether the copy out is paid)"""


class Master:
    """The linear program over the journeys found so far; `stopped` is asked while it is solved, and ends that."""

    def __init__(self, fluid: Fluid, stopped: Callable[[], bool] = lambda: False) -> None:
        self.fluid, self.stopped = fluid, stopped
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
        self.columns: list[tuple[pywraplp.Variable, list[Option]]] = []
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
        self, options: list[Option], prices: Prices
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
            if self._ended() == pywraplp.Solver.OPTIMAL:
                return True
            if self.stopped() or (deadline is not None and time.monotonic() >= deadline):
                return False
        return False

    def _ended(self) -> int | None:
        """Solves in a thread of its own, which this one ends when it is to stop; the result status.

        A time limit in slices would do too, but each slice changes the way that is taken, and so the plan.
        """
        status: list[int] = []
        solving = Thread(target=lambda: status.append(self.lp.Solve()), daemon=True)
        solving.start()
        while solving.is_alive():
            solving.join(ASK_EVERY_S)
            if solving.is_alive() and self.stopped():
                self.lp.InterruptSolve()
        return status[0] if status else None

    def _effort(self, options: list[Option]) -> float:
        gaps, total = self.fluid.gaps, 0
        for g, choice, t, _, _, pays in options:
            if choice == DROP:
                total += 2 * int(gaps.rerun_ns[g])
            else:
                total += int(gaps.out_ns[g, t]) * pays + int(gaps.in_ns[g, t]) * int(gaps.kind[g] <= WRAP_HEAD)
        return float(total)

    def shares(self) -> list[tuple[float, list[Option]]]:
        return [(v, options) for x, options in self.columns if (v := x.solution_value()) > 1e-6]
