"""A two-level policy: fractions per layer by a linear program, storages within a layer by time per byte.

Source: torchtitan's memory policy `auto_perf_maxing` (graph_trainer, pull request 3943, 2026), which extends the
decomposition of PyTorch's `sac_milp` by offload. Our own code of the rule:

* Outer: per layer the fractions k, r, o of its activations to keep, recompute and offload, k + r + o = 1, so that
  memory fits at every layer's forward and backward (a layer's own activations are all there in its backward, those
  offloaded by the next layer in backward order are on their way back, those offloaded by the one before are still
  leaving in forward), the copies of a layer fit into the time of an *average* block on each link direction, and the
  host has room; the last layer offloads nothing. Least recompute time, a layer at an average block's forward.
* Inner: in each block the activations that cost most to recompute per byte are offloaded up to o, those that cost
  least are recomputed, what is left is kept; where that keeps too much, one more is recomputed.
* Copies back are issued one block ahead of their own.

Beyond the source, all in its favour: real memory at every operator instead of sums of layers; what the source pins
(layers' outputs, what cannot be recomputed) may be offloaded; a second class of storages, those that live longer than
the step (parameters, optimizer states) or belong to a cache, which may be offloaded between their uses by the same
windows; where no split keeps the windows, they may be exceeded at the price of the time that lacks, and where none
fits the memory the least excess is taken; what the linear program did not see of memory is taken off the budget and
the whole solved again. Micro-batches of a layer share its fractions, as the source's equal layers share a solution.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from ortools.linear_solver import pywraplp

from solver.residency.candidates import Decisions, Move
from solver.residency.problem import Problem
from solver.residency.rivals.blocks import Blocks, blocks_of, crossings, handed_on, one_run_earlier
from solver.residency.rivals.places import TierRoom, off, swaps, within_budget
from solver.residency.rivals.remat import Drop, drops, recompute

SMALLEST_BYTES = 1 << 20
"""Smaller activations are not offloaded (a 1/1000 of the layer where that is less)."""

EXCESS_PRICE = 1e3
"""Of a budget's worth of bytes too many, in steps: memory comes first."""

NOTHING = 1e-3
"""A part of a block's bytes that is not worth a decision."""

ROWS_AT_ONCE = 64
"""Memory rows added to the program a time: those that the solution so far exceeds most."""


@dataclass
class Item:
    """Something that may leave HBM: by `move`, by `drop`, or not at all (both None)."""

    storage: int
    bytes: int
    block: int
    state: bool
    gap: tuple[int, int]
    move: Move | None = None
    drop: Drop | None = None

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [self.drop.span] if self.move is None and self.drop is not None else []


@dataclass
class Layer:
    """What all blocks of a label have in common: bytes of a block's activations and of its states.

    `saved`: the part of recomputed bytes that is saved, as inputs have to live longer.
    """

    bytes: float = 0.0
    recomputable: float = 0.0
    offloadable: float = 0.0
    saved: float = 0.0
    states: float = 0.0
    blocks: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Fractions:
    keep: float
    recompute: float
    offload: float
    states: float


def two_level(problem: Problem) -> Decisions:
    """The plan of the two-level rule (see the module)."""
    if problem.load.max(initial=0) <= problem.hbm_bytes:
        return Decisions()
    return within_budget(problem, _Model(problem).decide).decisions


class _Model:
    """Items, layers and times of a step; `decide` solves both levels for one budget."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.blocks: Blocks = blocks_of(problem)
        self.kept = handed_on(problem, self.blocks)
        self.lead = one_run_earlier(problem, self.blocks)
        self.items = _items(problem, self.blocks, self.kept)
        self.labels = list(dict.fromkeys(self.blocks.label))
        self.number = [self.labels.index(label) for label in self.blocks.label]
        self.layers = self._layers()
        self.forward_ns, self.backward_ns = self._average_block()
        self.points, self.away, self.near = self._memory_rows()

    # -- what the outer program is made of -----------------------------------------------------------------

    def _layers(self) -> list[Layer]:
        layers = [Layer() for _ in self.labels]
        for item in self.items:
            layer = layers[self.number[item.block]]
            layer.blocks.add(item.block)
            if item.state:
                layer.states += item.bytes
            else:
                layer.bytes += item.bytes
                layer.recomputable += item.bytes if item.drop is not None else 0
                layer.saved += min(item.bytes, item.drop.bytes) if item.drop is not None else 0
                layer.offloadable += item.bytes if item.move is not None else 0
        for layer in layers:
            layer.saved /= max(1.0, layer.recomputable)
            count = max(1, len(layer.blocks))
            for name in ("bytes", "recomputable", "offloadable"):
                setattr(layer, name, getattr(layer, name) / count)
        return layers

    def _average_block(self) -> tuple[float, float]:
        """Nanoseconds of forward and of the rest, a block: the source's windows."""
        duration, runs = self.problem.program.duration, self.blocks.runs
        total = {True: 0, False: 0}
        for run in runs:
            total[run.forward] += sum(duration[run.first : run.last + 1])
        count = max(1, len({run.block for run in runs}))
        if not total[True] or not total[False]:
            total = dict.fromkeys((True, False), total[True] + total[False])
            count = max(1, len(runs))
        return total[True] / count, total[False] / count

    def _memory_rows(self) -> tuple[list[int], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Operators at which memory is looked at; bytes of each layer's activations and states away there if all
        left (`away[kind, layer, point]`, kinds: activations, states), and the part whose offloaded share is in HBM
        (`near`): leaving, or on its way back."""
        problem, runs, load = self.problem, self.blocks.runs, self.problem.load
        points: list[int] = []
        run_of: list[int] = []
        for i, run in enumerate(runs):
            end = runs[i + 1].first if i + 1 < len(runs) else problem.n
            first = 0 if i == 0 else run.first
            if first < end:
                points.append(first + int(np.argmax(load[first:end])))
                run_of.append(i)
        at = np.asarray(points)
        away = np.zeros((2, len(self.labels), len(points) + 1))
        near = np.zeros((len(self.labels), len(points)))
        row_of = {i: row for row, i in enumerate(run_of)}
        firsts = [run.first for run in runs]
        for item in self.items:
            label = self.number[item.block]
            used = bisect_right(firsts, item.gap[1]) - 1
            left = bisect_right(firsts, item.gap[0]) - 1
            leaving = left + 1 if left >= 0 and runs[left].forward else -1
            for first, end in self._spans(item):
                low, high = np.searchsorted(at, (first, end))
                away[int(item.state), label, low] += item.bytes
                away[int(item.state), label, high] -= item.bytes
                rows = {row_of.get(i, -1) for i in (used, used - 1, leaving)} if not item.state else set()
                for row in rows:
                    if low <= row < high and row == row_of.get(used):  # all of it is there where it is used
                        away[0, label, row] -= item.bytes
                        away[0, label, row + 1] += item.bytes
                    elif low <= row < high:
                        near[label, row] += item.bytes
        return points, np.cumsum(away, axis=2)[:, :, :-1], near

    def _spans(self, item: Item) -> list[tuple[int, int]]:
        return off(item.move, self.problem.n) if item.move is not None else item.spans

    # -- outer ---------------------------------------------------------------------------------------------

    def outer(self, hbm_bytes: int) -> list[Fractions]:
        """Fractions per layer: within the windows; if there are none, beyond them at the price of the time."""
        found = self._solve(hbm_bytes, soft=False)
        return found if found is not None else self._solve(hbm_bytes, soft=True) or []

    def _solve(self, hbm_bytes: int, *, soft: bool) -> list[Fractions] | None:
        solver = pywraplp.Solver.CreateSolver("GLOP")
        unit = max(1.0, float(hbm_bytes))
        count = len(self.layers)
        keep = [solver.NumVar(0, 1, f"k{i}") for i in range(count)]
        again = [solver.NumVar(0, 1, f"r{i}") for i in range(count)]
        out = [solver.NumVar(0, 1, f"o{i}") for i in range(count)]
        state = [solver.NumVar(0, 1 if layer.states else 0, f"s{i}") for i, layer in enumerate(self.layers)]
        excess = solver.NumVar(0, solver.infinity() if soft else 0, "excess")
        copy_ns = self._copy_ns_per_byte()
        step_ns = float(max(1, self.problem.unlimited.step_ns))
        cost = [excess * EXCESS_PRICE]
        for i, layer in enumerate(self.layers):
            solver.Add(keep[i] + again[i] + out[i] == 1)
            share = max(layer.bytes, 1.0)
            solver.Add(again[i] <= layer.recomputable / share)
            solver.Add(out[i] <= layer.offloadable / share)
            late = solver.NumVar(0, solver.infinity() if soft else 0, f"late{i}")  # of a block, in steps
            blocks = max(1, len(layer.blocks))
            for window, ns in zip((self.forward_ns, self.backward_ns), copy_ns, strict=True):
                part = ns / step_ns
                copied = out[i] * (layer.bytes * part) + state[i] * (layer.states / blocks * part)
                solver.Add(copied <= window / step_ns + late)
            cost += [again[i] * (self.forward_ns / step_ns * blocks), late * (2 * blocks)]
        if count > 1 and self.blocks.runs:
            forward = [run.block for run in self.blocks.runs if run.forward]
            if forward and len(set(self.number)) == len(self.number):
                solver.Add(out[self.number[forward[-1]]] == 0)
        solver.Minimize(solver.Sum(cost))
        self._host(solver, out, state)
        load = self.problem.load[self.points]
        saved = np.array([layer.saved for layer in self.layers])
        open_rows = set(np.flatnonzero(load > hbm_bytes).tolist())
        while True:
            self.problem.check()
            if solver.Solve() != pywraplp.Solver.OPTIMAL:
                return None
            values = np.array([[v.solution_value() for v in kind] for kind in (again, out, state)])
            gone = (values[0] * saved + values[1]) @ self.away[0] + values[2] @ self.away[1] - values[1] @ self.near
            over = load - gone - hbm_bytes - excess.solution_value() * unit
            worst = sorted((r for r in open_rows if over[r] > unit * 1e-6), key=lambda r: (-over[r], r))
            if not worst:
                break
            for row in worst[:ROWS_AT_ONCE]:
                open_rows.discard(row)
                terms = [excess]
                for i in range(count):
                    whole = self.away[0, i, row] / unit
                    terms += [again[i] * (whole * float(saved[i])) + out[i] * whole] if whole else []
                    terms += [out[i] * (-self.near[i, row] / unit)] if self.near[i, row] else []
                    terms += [state[i] * (self.away[1, i, row] / unit)] if self.away[1, i, row] else []
                solver.Add(solver.Sum(terms) >= float(load[row] - hbm_bytes) / unit)
        return [Fractions(keep[i].solution_value(), *values[:, i].tolist()) for i in range(count)]

    def _host(self, solver: pywraplp.Solver, out: list[pywraplp.Variable], state: list[pywraplp.Variable]) -> None:
        """What is offloaded at any of the looked-at operators fits the tiers together."""
        capacity = float(sum(self.problem.tier_bytes[tier] for tier in self.problem.tiers))
        total = self.away[0].sum(axis=0) + self.away[1].sum(axis=0)
        for row in {int(np.argmax(total))} if total.size and total.max() > capacity else ():
            terms = [v * (self.away[0, i, row] / capacity) for i, v in enumerate(out)] if capacity else []
            terms += [v * (self.away[1, i, row] / capacity) for i, v in enumerate(state)] if capacity else []
            if terms:
                solver.Add(solver.Sum(terms) <= 1)

    def _copy_ns_per_byte(self) -> tuple[float, float]:
        """Out and back, of the first tier."""
        tiers = self.problem.tiers
        if not tiers:
            return 0.0, 0.0
        tier = tiers["host"] if "host" in tiers else max(tiers.values(), key=lambda t: float(t.h2d_bytes_per_s))
        return 1e9 / float(tier.d2h_bytes_per_s), 1e9 / float(tier.h2d_bytes_per_s)

    # -- inner ---------------------------------------------------------------------------------------------

    def decide(self, hbm_bytes: int) -> Decisions:
        """Both levels for a budget."""
        fractions = self.outer(hbm_bytes)
        if not fractions:
            return Decisions()
        room = TierRoom(self.problem)
        by_block: dict[int, list[Item]] = defaultdict(list)
        for item in self.items:
            by_block[item.block].append(item)
        moves: list[Move] = []
        dropped: list[Drop] = []
        for block, items in by_block.items():
            split = fractions[self.number[block]]
            away, again = _inner([i for i in items if not i.state], split, room)
            moves += away
            dropped += again
            moves += _states([i for i in items if i.state], split.states, room)
        ahead = [self._ahead(move) for move in moves]
        made, chosen = recompute(self.problem, dropped, ahead, self.kept)
        return Decisions(tuple(sorted(chosen, key=lambda m: (m.out, m.back, m.gap.storage))), tuple(made))

    def _ahead(self, move: Move) -> Move:
        """Copied back one block ahead."""
        gap = move.gap
        if gap.back >= self.problem.n:
            return move
        first = 0 if gap.wraps else self.problem.next_arrival(gap.leave + 1)
        return replace(move, back=min(max(self.problem.last_arrival(self.lead[gap.back]), first), gap.back))


def _items(problem: Problem, blocks: Blocks, kept: set[int]) -> list[Item]:
    """Activations by their way from forward to backward, and idle spans of what outlives the step or is a cache."""
    found_drops = drops(problem, kept)
    by_gap = {(d.storages[0], *d.gap): d for d in found_drops if d.rerun is None}
    crossing = set(crossings(problem))
    whole = [d for d in found_drops if d.rerun is not None and d.bytes > 0]
    in_layers = {s for d in whole for s in d.storages}
    items: list[Item] = []
    moving: dict[tuple[int, int, int], Move] = {}
    for move in swaps(problem):
        gap = move.gap
        key = (gap.storage, gap.after, gap.before)
        if key in crossing and not gap.wraps:
            moving[key] = move
        elif problem.program.resident[gap.storage] or problem.profile.storages[gap.storage].kind == "kv_cache":
            user = gap.before if 0 <= gap.before < problem.n else max(gap.after, 0)
            at_ends = gap.after < 0 or gap.before >= problem.n
            if blocks.of[user] >= 0 and (gap.wraps or not at_ends):
                items.append(Item(gap.storage, gap.bytes, blocks.of[user], True, (gap.after, gap.before), move))
    largest: dict[int, int] = defaultdict(int)
    for s, after, _ in crossing:
        largest[blocks.of[_maker(problem, s, after)]] += problem.program.size[s]
    for s, after, before in sorted(crossing):
        key, block = (s, after, before), blocks.of[_maker(problem, s, after)]
        size = problem.program.size[s]
        found: Move | None = moving.get(key)
        if size < min(SMALLEST_BYTES, largest[block] // 1000):
            found = None
        if block >= 0 and size and (found or key in by_gap) and s not in in_layers:
            items.append(Item(s, size, block, False, (after, before), found, by_gap.get(key)))
    for drop in whole:
        block = blocks.of[min(drop.rerun.ops)] if drop.rerun else -1
        if block >= 0:
            items.append(Item(drop.storages[0], drop.bytes, block, False, drop.gap, None, drop))
    return items


def _maker(problem: Problem, s: int, after: int) -> int:
    writers = problem.program.writers[s]
    return writers[0] if writers and writers[0] <= after else after


def _inner(items: list[Item], split: Fractions, room: TierRoom) -> tuple[list[Move], list[Drop]]:
    """One block's storages by its layer's fractions."""
    total = sum(item.bytes for item in items)
    ranked = sorted(items, key=lambda i: (-_ns_per_byte(i), i.storage, i.gap))
    moves: list[Move] = []
    dropped: list[Drop] = []
    taken: set[int] = set()
    placed, target = 0, split.offload * total
    for item in ranked:
        if item.move is not None and item.bytes <= target - placed + 1e-6 * total:
            move = room.place(item.move)
            if move is not None:
                moves.append(move)
                taken.add(id(item))
                placed += item.bytes
    # What the tiers or the sizes left short is recomputed, as is what would be kept beyond its fraction.
    wanted = total - placed - split.keep * total
    again = 0
    for item in reversed(ranked) if wanted > NOTHING * total else ():
        if item.drop is not None and id(item) not in taken and item.bytes <= wanted - again + 1e-6 * total:
            dropped.append(item.drop)
            taken.add(id(item))
            again += item.bytes
    missing = wanted - again
    if missing > NOTHING * total:
        able = [i for i in ranked if i.drop is not None and id(i) not in taken and i.bytes >= 0.95 * missing]
        if able:
            best = min(able, key=lambda i: (i.bytes, i.storage))
            assert best.drop is not None
            dropped.append(best.drop)
            taken.add(id(best))
            missing -= best.bytes
    if missing > NOTHING * total:
        for item in sorted(ranked, key=lambda i: (i.bytes, i.storage)):
            if item.move is not None and id(item) not in taken and item.bytes >= 0.95 * missing:
                move = room.place(item.move)
                if move is not None:
                    moves.append(move)
                    break
    return moves, dropped


def _ns_per_byte(item: Item) -> float:
    """Recompute time per byte; what cannot be recomputed comes first."""
    return float("inf") if item.drop is None else item.drop.per_byte()


def _states(items: list[Item], fraction: float, room: TierRoom) -> list[Move]:
    """Storages beyond the step up to their fraction, largest first; all idle spans of a storage alike."""
    by_storage: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        by_storage[item.storage].append(item)
    total = sum(own[0].bytes for own in by_storage.values())
    left, moves = fraction * total, []
    for own in sorted(by_storage.values(), key=lambda own: (-own[0].bytes, own[0].storage)):
        if own[0].bytes <= left + 1e-6 * total:
            for item in own:
                move = room.place(item.move) if item.move is not None else None
                if move is not None:
                    moves.append(move)
            left -= own[0].bytes
    return moves
