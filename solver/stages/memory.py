"""Memory of a stage: what it holds all the time, and its activations at the worst prefix of its order.

A forward adds its group's activations when it starts and the backward of the same micro-batch takes them away when it
has ended, so memory depends on the order alone, not on times. `Graph.alive` has the prefixes that matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.stages.problem import Problem
from solver.stages.schedule import graph

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Memory:
    """By [stage], grains: `peak` on the device, of which `static`; `host`: offloaded activations at their most.
    `alive`: micro-batches x layers whose activations (or what recomputation keeps of them) are held at the most."""

    peak: I64
    static: I64
    host: I64
    alive: I64


def memory(problem: Problem, split: I64) -> Memory:
    """Of a split [group, column]."""
    alive = graph(problem.schedule, problem.stages, problem.chunks, problem.micro_batches).alive
    static = problem.statics(split)

    def most(per_group: I64) -> I64:
        by_chunk = per_group.reshape(problem.chunks, problem.stages).T
        return np.asarray((alive * by_chunk[:, None, :]).sum(2).max(1), np.int64)

    at = np.arange(problem.groups) % problem.stages
    device, host = ((split * kept[at]).sum(1) for kept in (problem.device, problem.host))
    return Memory(static + most(device), static, most(host), most(split.sum(1)))


def fits(problem: Problem, split: I64) -> bool:
    found = memory(problem, split)
    return bool((found.peak <= problem.limit).all() and (found.host <= problem.host_limit).all())
