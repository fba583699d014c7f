"""The sharding problem: one strategy a node, so that costs are least and memory suffices at every moment.

::

    node i          k_i strategies, each with a cost and a usage (bytes); alive in the half-open [lower_i, upper_i)
    edge (i, j)     a matrix k_i x k_j of costs: what resharding from one strategy to the other takes
    usage limit     at every moment the usages of the nodes alive then add up to no more

    cost(x) = sum_i cost_i[x_i] + sum_(i,j) cost_ij[x_i, x_j]

The problem of the ASPLOS 2025 / EuroSys 2025 contest on intra-operator parallelism, rules as published there: an
interval [0, 0] is never alive, several edges may join two nodes and all count, costs near 10^18 stand for what is
forbidden. Costs and usages are whole numbers from 0 to 2^63 - 1; sums may be larger and are Python integers here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

FORBIDDEN = 10**17
"""Costs from here on stand for a choice that must not be made."""

MOST = 2**63 - 1
MOST_USAGE = 2**62
"""What the largest usages of all nodes may add up to, in bytes, so that sums over time stay in 64 bits."""

MOST_LIMIT = 2**53
"""The largest limit that can bind: up to it floats hold every byte."""


class ShardingError(ValueError):
    """A problem or a solution that makes no sense; `field` is its JSON path, `remedy` what to do."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        self.field, self.problem, self.remedy = field, problem, remedy
        super().__init__(f"{field}: {problem} ({remedy})")


@dataclass(frozen=True)
class Problem:
    """The problem in flat arrays; strategy s of node i is entry `first[i] + s`.

    `edges`: pairs of nodes, shape (E, 2). The matrix of edge e is `edge_cost[edge_first[e] : edge_first[e + 1]]`, the
    first node's strategies along its rows. Nobody changes the arrays: they are read-only.
    """

    name: str
    first: Int64s
    cost: Int64s
    usage: Int64s
    lower: Int64s
    upper: Int64s
    edges: Int64s
    edge_first: Int64s
    edge_cost: Int64s
    usage_limit: int

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @property
    def nodes(self) -> int:
        return len(self.lower)

    @property
    def strategies(self) -> Int64s:
        """How many each node has."""
        return np.diff(self.first)


@dataclass(frozen=True)
class Evaluation:
    """What a solution costs and whether memory suffices.

    `usage[m]` bytes are in use from `times[m]` on, until the next one. `peak` is the most of them, at `moment`, the
    first such time (None: nothing is ever alive). `shortfall` is what the peak exceeds the limit by, 0 if it does not.
    """

    cost: int
    times: Int64s
    usage: Int64s
    peak: int
    moment: int | None
    shortfall: int

    @property
    def feasible(self) -> bool:
        return self.shortfall == 0


def exact_sum(values: NDArray[Any]) -> int:
    """The sum of 64-bit integers without overflow (halves apart)."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def evaluate(problem: Problem, solution: Sequence[int] | Int64s) -> Evaluation:
    """The judge: straight from the definition, apart from any solver.

    Raises `ShardingError` where the solution is not one strategy a node.
    """
    chosen = check_solution(problem, solution)
    at = problem.first[:-1] + chosen
    a, b = problem.edges[:, 0], problem.edges[:, 1]
    pairs = problem.edge_first[:-1] + chosen[a] * problem.strategies[b] + chosen[b]
    times, usage = usage_over_time(problem, problem.usage[at])
    peak = int(usage.max(initial=0))
    return Evaluation(
        cost=exact_sum(problem.cost[at]) + exact_sum(problem.edge_cost[pairs]),
        times=times,
        usage=usage,
        peak=peak,
        moment=int(times[np.argmax(usage)]) if len(times) else None,
        shortfall=max(0, peak - problem.usage_limit),
    )


def check_solution(problem: Problem, solution: Sequence[int] | Int64s) -> Int64s:
    """The solution as an array. Raises `ShardingError` where it is not one strategy a node."""
    try:
        chosen = np.asarray(solution, np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ShardingError("$", "not a list of whole numbers", "give one strategy index a node") from error
    if chosen.shape != (problem.nodes,):
        wanted = f"give one strategy for each of {problem.nodes} nodes"
        raise ShardingError("$", f"{chosen.size} entries for {problem.nodes} nodes", wanted)
    wrong = np.flatnonzero((chosen < 0) | (chosen >= problem.strategies))
    if len(wrong):
        i = int(wrong[0])
        most = int(problem.strategies[i]) - 1
        raise ShardingError(f"$[{i}]", f"{int(chosen[i])} is no strategy of node {i}", f"give 0 to {most}")
    return chosen


def usage_over_time(problem: Problem, node_usage: Int64s) -> tuple[Int64s, Int64s]:
    """(times, bytes in use from each until the next) when node i, while alive, takes `node_usage[i]` bytes."""
    alive = problem.lower < problem.upper
    lower, upper, bytes_ = problem.lower[alive], problem.upper[alive], node_usage[alive]
    times = np.unique(np.concatenate([lower, upper]))
    change = np.zeros(len(times), np.int64)
    np.add.at(change, np.searchsorted(times, lower), bytes_)
    np.add.at(change, np.searchsorted(times, upper), -bytes_)
    return times, np.cumsum(change)


def least_shortfall(problem: Problem) -> tuple[int | None, int]:
    """(moment, bytes): by how much memory is short at least, whatever is chosen, and when; (None, 0) if it is not.

    The smallest usage of every node at once: below it no solution goes, whether or not it is one.
    """
    smallest = np.minimum.reduceat(problem.usage, problem.first[:-1]) if problem.nodes else problem.usage
    times, usage = usage_over_time(problem, smallest)
    short = int(usage.max(initial=0)) - problem.usage_limit
    return (int(times[np.argmax(usage)]), short) if short > 0 else (None, 0)
