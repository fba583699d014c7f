"""The fluid bound: a linear program that every plan satisfies, and what prices prove of it (solved in `columns`).

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
memory between rows, the depth of recompute chains), which only makes it lower.

*Why the answer is safe.* For any prices >= 0 with link + work + chain <= 1 in each slot,

    sum work_j C_j + sum chain L + sum held_r (load_r - budget) - sum room x bytes - sum of the storages' best savings

is at most the program's optimum (weak duality). That is computed here from the prices directly: how well or badly
the linear solver did can make the bound lower, never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from solver.residency.axis import Axis, make_axis
from solver.residency.gaps import Gaps, gaps_on
from solver.residency.journeys import cheapest, decide
from solver.residency.problem import Int64s, Problem

Floats = npt.NDArray[np.float64]


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

    def __init__(self, problem: Problem, rows: int, clock: Int64s | None = None, within: Axis | None = None) -> None:
        self.problem = problem
        self.axis: Axis = make_axis(problem, rows, clock, within)
        self.slots = self.axis.rows + 1
        self.names = list(problem.places) or ["host"]
        self.over = np.maximum(problem.load[self.axis.ops] - problem.hbm_bytes, 0).astype(np.float64)
        self.tight = [t for t, name in enumerate(self.names) if problem.places and name not in problem.roomy]
        self.one_queue = [not problem.places[name].duplex if problem.places else False for name in self.names]

    @cached_property
    def gaps(self) -> Gaps:
        """Made when first asked for: a plan without the bound's help needs none."""
        return gaps_on(self.problem, self.axis)

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
        out, back, room = prices.out, prices.back, prices.room
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
            gaps.rerun_ns, gaps.out_ns, gaps.in_ns, held,
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
