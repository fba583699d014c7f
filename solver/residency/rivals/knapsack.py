"""The activation-memory knapsack: what to save for backward, so that the least has to be recomputed.

Source: PyTorch's functorch partitioner with an activation memory budget (`torch._functorch`, modules `partitioners`
and `_activation_checkpointing`). Our own code of the rule:

* The items are what the step keeps from forward for backward: size, and the time to compute it again.
* For an activation budget M, a 0/1 knapsack saves the items of the greatest total time that fit into M. It is solved
  by dynamic programming on sizes rounded up to a ten-thousandth of M while there are few items, and else greedily by
  time per byte, as the source offers both.
* All other items are recomputed in backward, each once, just before its first use there, from what is saved.

The source's budget is a fraction that its user sweeps. Here the largest M is found, by bisection, with which the
plan fits the HBM budget at replay.

Covers: activations only, no offload (the source knows none); parameters, gradients and optimizer states stay. Once
what one layer hands to the next is always saved, as with one compiled graph per layer (else a small M recomputes much
of forward at once), and once it is an item like others; the better plan counts. An adapter that recomputes whole
layers makes one item of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.residency.candidates import Decisions
from solver.residency.problem import Problem
from solver.residency.rivals.blocks import blocks_of, crossings, handed_on
from solver.residency.rivals.places import Verdict, judge
from solver.residency.rivals.remat import Drop, drops, recompute

DYNAMIC_ITEMS, DYNAMIC_SLOTS = 3000, 10_000
"""Up to so many items the knapsack is solved by dynamic programming, on so many slots of size."""

BISECTIONS = 12

LARGE = 30_000
"""From this many operators on, half the bisections, and the second form only where the first does not fit."""


@dataclass(frozen=True)
class Saved:
    """What may be recomputed in a step: `items`, and `kept`, at which recomputes end."""

    items: list[Drop]
    kept: frozenset[int]


def saved_for_backward(problem: Problem, *, layers: bool) -> Saved:
    """What is kept from forward for backward and can be made again; with `layers` without what these hand on."""
    if problem.profile.adapter.recompute != "operator":
        return Saved([d for d in drops(problem) if d.bytes > 0], frozenset())
    crossing = set(crossings(problem))
    kept = frozenset(handed_on(problem, blocks_of(problem))) if layers else frozenset[int]()
    return Saved([d for d in drops(problem, kept) if (d.storages[0], *d.gap) in crossing], kept)


def knapsack(problem: Problem) -> Decisions:
    """The plan of the activation-memory knapsack (see the module)."""
    if problem.load.max(initial=0) <= problem.hbm_bytes:
        return Decisions()
    best = _largest(problem, saved_for_backward(problem, layers=True))
    if best.timeline is None or problem.n < LARGE:
        best = min(best, _largest(problem, saved_for_backward(problem, layers=False)), key=Verdict.rank)
    return best.decisions


def _largest(problem: Problem, saved: Saved) -> Verdict:
    """The plan for the largest activation budget that fits; where none does, the one that is least over."""
    total = sum(item.bytes for item in saved.items)
    best = _tried(problem, saved, 0)
    low, high = 0, total
    rounds = BISECTIONS
    if problem.n >= LARGE:
        rounds = BISECTIONS // 2 if best.timeline is not None else 2
    for _ in range(rounds):
        if high - low <= total // 1000:
            break
        middle = (low + high) // 2
        verdict = _tried(problem, saved, middle)
        # Recompute itself needs room: where nothing fits, less of it may be better than most.
        if verdict.timeline is not None or verdict.excess_bytes < best.excess_bytes:
            low = middle
        else:
            high = middle
        if verdict.rank() < best.rank():
            best = verdict
    return best


def _tried(problem: Problem, saved: Saved, memory: int) -> Verdict:
    times = [item.cost_ns for item in saved.items]
    keep = solve_knapsack([item.bytes for item in saved.items], times, memory)
    chosen = [item for i, item in enumerate(saved.items) if i not in keep]
    return judge(problem, Decisions(reruns=tuple(recompute(problem, chosen, (), saved.kept)[0])))


def solve_knapsack(sizes: Sequence[int], values: Sequence[int], limit: int) -> set[int]:
    """Indices of items of the greatest total value whose sizes are within `limit`."""
    if sum(sizes) <= limit:
        return set(range(len(sizes)))
    if len(sizes) > DYNAMIC_ITEMS or limit < 1:
        return _greedy(sizes, values, limit)
    return _dynamic(sizes, values, limit)


def _greedy(sizes: Sequence[int], values: Sequence[int], limit: int) -> set[int]:
    chosen, left = set(), limit
    for i in sorted(range(len(sizes)), key=lambda i: (-values[i] / max(1, sizes[i]), i)):
        if sizes[i] <= left:
            chosen.add(i)
            left -= sizes[i]
    return chosen


def _dynamic(sizes: Sequence[int], values: Sequence[int], limit: int) -> set[int]:
    slot = -(-limit // DYNAMIC_SLOTS)
    slots = limit // slot
    units = [-(-size // slot) for size in sizes]
    best = np.zeros(slots + 1, dtype=np.int64)
    taken = np.zeros((len(sizes), slots + 1), dtype=np.bool_)
    for i, unit in enumerate(units):
        if unit > slots:
            continue
        with_it = best[: slots + 1 - unit] + values[i]
        better = with_it > best[unit:]
        taken[i, unit:] = better
        best[unit:] = np.where(better, with_it, best[unit:])
    chosen, room = set(), slots
    for i in range(len(sizes) - 1, -1, -1):
        if taken[i, room]:
            chosen.add(i)
            room -= units[i]
    return chosen
