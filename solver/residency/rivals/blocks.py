"""The layers of a step as rules see them that plan layer by layer: blocks, and what they hand to backward.

A *block* is what one layer does for one micro-batch; a *run* is a stretch of consecutive compute operators of a
block in one direction. Where operators carry no layer, the forward part is cut where its operator types repeat, or
else into the square root of its length (Chen et al., arXiv 1604.06174).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

import numpy as np
import numpy.typing as npt

from hyperopt.profile import COMPUTE
from solver.residency.problem import Problem

FORWARD = "forward"

REPEATS = 0.9
"""Share of operators that must have the type of the one a period earlier for the period to be a layer's."""

LONGEST_PERIOD = 2000


@dataclass(frozen=True)
class Run:
    """Operators `first` to `last` (compute ones; others may lie between) of block `block`."""

    block: int
    first: int
    last: int
    forward: bool


@dataclass(frozen=True)
class Blocks:
    """`of`: per operator its block, -1 where it has none; `label`: per block the layer; `runs` in listed order."""

    of: list[int]
    label: list[str]
    runs: list[Run]


def blocks_of(problem: Problem) -> Blocks:
    operators = problem.profile.operators
    named = any(o.layer for o in operators)
    keys = [(o.layer, o.micro_batch) for o in operators] if named else _cut(problem)
    number: dict[tuple[str, int | None], int] = {}
    of = [-1 if key is None else number.setdefault(key, len(number)) for key in keys]
    runs: list[Run] = []
    for k in problem.compute:
        forward = operators[k].phase == FORWARD
        if runs and runs[-1].block == of[k] and runs[-1].forward == forward:
            runs[-1] = Run(of[k], runs[-1].first, k, forward)
        else:
            runs.append(Run(of[k], k, k, forward))
    return Blocks(of, [label for label, _ in number], runs)


def _cut(problem: Problem) -> list[tuple[str, int | None] | None]:
    """Blocks where the profile names none: equal stretches of forward; an operator after it belongs to the block
    whose forward made the most of what it reads, else to that of the operator before."""
    operators = problem.profile.operators
    forward = [k for k in problem.compute if operators[k].phase == FORWARD]
    if not forward:
        forward = problem.compute
    if not forward:
        return [None] * problem.n
    length = _period([operators[k].type or operators[k].name for k in forward]) or max(1, isqrt(len(forward)))
    numbers = np.full(problem.n, -1, dtype=np.int64)
    numbers[forward] = (np.arange(len(forward)) + length - _offset(problem, forward, length)) // length
    inside = set(forward)
    size, writers = problem.program.size, problem.program.writers
    now = -1
    for k in range(problem.n):
        if k not in inside and operators[k].stream == COMPUTE:
            votes: dict[int, int] = {}
            for s in problem.program.reads[k]:
                made = writers[s][0] if writers[s] else -1
                if made in inside:
                    votes[int(numbers[made])] = votes.get(int(numbers[made]), 0) + size[s]
            numbers[k] = max(votes, key=lambda b: (votes[b], b)) if votes else now
        elif k not in inside:
            numbers[k] = now
        now = int(numbers[k])
    numbers = _smoothed(numbers)
    return [None if number < 0 else (f"block {number}", None) for number in numbers.tolist()]


def _period(types: list[str]) -> int | None:
    """The length after which operator types repeat; None where they do not."""
    codes = np.unique(np.asarray(types), return_inverse=True)[1]
    best: tuple[float, int] | None = None
    for period in range(8, min(len(types) // 3, LONGEST_PERIOD)):
        share = float(np.mean(codes[period:] == codes[:-period]))
        if share >= REPEATS and (best is None or share > best[0] + 0.02):
            best = (share, period)
    return None if best is None else best[1]


def _smoothed(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Short stretches of another block inside one block's belong to it: backward looks ahead at some operators."""
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    stretches = [(int(numbers[first]), first, end) for first, end in pairwise(bounds)]
    i = 1
    while i + 1 < len(stretches):
        (before, first, a), (_, _, b), (after, _, end) = stretches[i - 1 : i + 2]
        if before == after and b - a < min(a - first, end - b):
            stretches[i - 1 : i + 2] = [(before, first, end)]
            i = max(1, i - 1)
        else:
            i += 1
    smooth = numbers.copy()
    for block, first, end in stretches:
        smooth[first:end] = block
    return smooth


def _offset(problem: Problem, forward: list[int], length: int) -> int:
    """Where in a period least is handed on from one block to the next: the place to cut."""
    index = np.full(problem.n + 1, len(forward), dtype=np.int64)
    index[forward] = np.arange(len(forward))
    index = np.minimum.accumulate(index[::-1])[::-1]  # per operator, the next forward one
    across = np.zeros(len(forward) + 1, dtype=np.int64)
    last = forward[-1]
    for s, size in enumerate(problem.program.size):
        if problem.program.resident[s]:
            continue
        reads = [k for k in problem.accesses[s] if k <= last]
        if len(reads) > 1:
            across[index[reads[0]] + 1] += size
            across[min(int(index[reads[-1]]) + 1, len(forward))] -= size
    across = np.cumsum(across)[: len(forward)]
    totals = [int(across[first::length].sum()) - int(across[0]) * (first == 0) for first in range(length)]
    return min(range(length), key=lambda first: (totals[first], first)) or length


def crossings(problem: Problem) -> list[tuple[int, int, int]]:
    """(storage, after, before): what is kept for backward, from its last access forward to its next one.

    In a step without phases, the longest idle span in time of each storage that lives within the step.
    """
    phases = [o.phase for o in problem.profile.operators]
    start = problem.unlimited.start
    named = FORWARD in phases and any(phase != FORWARD for phase in phases)
    found = []
    for s in range(len(problem.program.size)):
        if problem.program.resident[s] and named:
            continue
        spans = [(a, b) for a, b in problem.idle(s) if a >= 0 and b < problem.n]
        if named:
            spans = [(a, b) for a, b in spans if phases[a] == FORWARD and phases[b] != FORWARD]
        elif spans:
            spans = [max(spans, key=lambda span: (start[span[1]] - start[span[0]], -span[0]))]
        found += [(s, a, b) for a, b in spans]
    return found


def handed_on(problem: Problem, blocks: Blocks) -> set[int]:
    """Storages that forward operators of another block than the one that made them read: the layers' boundaries."""
    operators, program = problem.profile.operators, problem.program
    named = any(o.phase == FORWARD for o in operators)
    maker: dict[int, int] = {}
    found = set()
    for k in range(problem.n):
        if named and operators[k].phase != FORWARD:
            continue
        for s in program.reads[k]:
            if s in maker and maker[s] != blocks.of[k]:
                found.add(s)
        for s in program.writes[k]:
            maker.setdefault(s, blocks.of[k])
    return found


def one_run_earlier(problem: Problem, blocks: Blocks) -> dict[int, int]:
    """Per compute operator, the first one of the run before the run that it is in: one block of lead."""
    found: dict[int, int] = {}
    runs, i = blocks.runs, 0
    for k in problem.compute:
        while k > runs[i].last:
            i += 1
        found[k] = runs[max(0, i - 1)].first
    return found
