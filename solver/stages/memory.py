"""Memory of a stage: what it holds all the time, and its activations at the worst prefix of its order.

A forward adds its group's activations when it starts and the backward of the same micro-batch takes them away when it
has ended, so memory depends on the order alone, not on times. `Graph.alive` has the prefixes that matter. Where
backward is in halves, the first leaves what the second needs (`Problem.late`), which the second takes away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.stages.problem import Problem
from solver.stages.schedule import graph_of

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Memory:
    """By [stage], grains: `peak` on the device, of which `static`; `host`: offloaded activations at their most.
    `alive`: micro-batches x layers whose activations (or what recomputation keeps, or W needs of them) are held at the
    most."""

    peak: I64
    static: I64
    host: I64
    alive: I64


def memory(problem: Problem, split: I64) -> Memory:
    """Of a split [group, column]."""
    made = graph_of(problem)
    static = problem.statics(split)

    def most(alive: I64, late: I64) -> I64:
        """Of amounts per group, one for each micro-batch alive and one for each between the halves of backward."""
        both = ((made.alive, alive), (made.late, late))
        rows = [(n * each.reshape(problem.chunks, problem.stages).T[:, None, :]).sum(2) for n, each in both]
        return np.asarray(sum(rows).max(1), np.int64)

    at = np.arange(problem.groups) % problem.stages
    device, late, host = ((split * kept[at]).sum(1) for kept in (problem.device, problem.late, problem.host))
    device, late = device + problem.beside[:, 0], late + problem.beside[:, 1]
    layers = split.sum(1)
    return Memory(static + most(device, late), static, most(host, 0 * host), most(layers, layers))


def fits(problem: Problem, split: I64) -> bool:
    found = memory(problem, split)
    return bool((found.peak <= problem.limit).all() and (found.host <= problem.host_limit).all())
