"""Forward and backward passes of micro-batches, found in the kernels by repetition.

Attention is launched once a layer and pass, and its backward kernel is another one; a pipeline sends between passes::

    F F F F | send | F F F F | recv | B B B B | send | B B B B | reduce-scatter, norms, optimizer
    forward 0        forward 1        backward 0       backward 1

Runs of attention kernels, cut where the rank sends or receives, have a greatest common length: the layers of the
stage. Micro-batches come back in the order in which they went (1F1B). Without attention kernels, or where they do not
repeat (the shortest run is not all of a pass, or fewer come back than went), the first kernel of a gradient begins the
backward pass, and micro-batches are not known.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

import polars as pl

from hyperopt.profile import Phase
from profiler.read.timeline.scopes import scope_of

ATTENTION = re.compile(r"flash_?attention|fusion_?attention|fusedinferattention|attentionscore|scaleddotproduct", re.I)
GRADIENT = re.compile(r"grad|backward|backprop", re.I)
PEER = re.compile(r"send|recv|receive", re.I)
OPTIMIZER = re.compile(r"adam|foreach|momentum|lpnorm|applysgd|lamb|adagrad|rmsprop", re.I)
REDUCTION = re.compile(r"allreduce|reducescatter|all_reduce|reduce_scatter", re.I)


@dataclass(frozen=True)
class Passes:
    """By kernel: its phase, and its micro-batch (None: of no pass). `layers`, `micro_batches`: of this rank and step;
    0 where nothing repeats."""

    phase: list[Phase]
    micro_batch: list[int | None]
    layers: int
    micro_batches: int


@dataclass(frozen=True)
class _Run:
    """Attention kernels `first` to `last` of one pass."""

    backward: bool
    micro_batch: int
    first: int
    last: int


def passes(kernels: pl.DataFrame) -> Passes:
    """Passes of one step's kernels (columns of `profiler.read.timeline.events`, in order of start)."""
    names = [kind or name or "" for kind, name in kernels.select("type", "name").iter_rows()]
    told = [scope_of(name or "")[1] for name in kernels["name"]]
    gradients = {name for name in set(names) if GRADIENT.search(name)}
    is_gradient = [t == "backward" if t else n in gradients for t, n in zip(told, names, strict=True)]
    attention = {name for name in set(names) if ATTENTION.search(name)}
    at = [i for i, name in enumerate(names) if name in attention]
    runs, layers = _runs(at, [is_gradient[i] for i in at], names)
    if not runs:
        return _named(_by_gradients(names, is_gradient), told)
    starts, owners = [0], [runs[0]]
    for run, following in pairwise(runs):
        starts.append(_cut(run, following, names, is_gradient))
        owners.append(following)
    end = _end(runs[-1].last, names, is_gradient)
    phase: list[Phase] = []
    micro_batch: list[int | None] = []
    for i in range(len(names)):
        run = owners[bisect_right(starts, i) - 1]
        phase.append("optimizer" if i >= end else "backward" if run.backward else "forward")
        micro_batch.append(None if i >= end else run.micro_batch)
    return _named(Passes(phase, micro_batch, layers, 1 + max(run.micro_batch for run in runs)), told)


def _named(found: Passes, told: Sequence[Phase | None]) -> Passes:
    """A kernel whose name says its phase is in that one."""
    return replace(found, phase=[said or guess for said, guess in zip(told, found.phase, strict=True)])


def unknown(kernels: pl.DataFrame) -> Passes:
    """Of operators that say nothing of passes."""
    return Passes(["other"] * kernels.height, [None] * kernels.height, 0, 0)


def _runs(at: list[int], backward: list[bool], names: list[str]) -> tuple[list[_Run], int]:
    """The passes, by their attention kernels, and how many layers each has."""
    pieces: list[list[int]] = []
    for j, place in enumerate(at):
        apart = not j or backward[j] != backward[j - 1]
        if apart or any(PEER.search(name) for name in names[at[j - 1] + 1 : place]):
            pieces.append([])
        pieces[-1].append(j)
    lengths = [len(piece) for piece in pieces]
    layers = gcd(*lengths) if pieces else 0
    back = sum(backward)
    if layers != min(lengths, default=0) or back not in (0, len(backward) - back):
        return [], 0  # kernels are missing, or the layers are not alike: how many there are is not known
    runs: list[_Run] = []
    seen = {False: 0, True: 0}
    for piece in pieces:
        for first in range(0, len(piece), layers):
            group = piece[first : first + layers]
            way = backward[group[0]]
            runs.append(_Run(way, seen[way], at[group[0]], at[group[-1]]))
            seen[way] += 1
    return runs, layers


def _cut(run: _Run, following: _Run, names: list[str], is_gradient: list[bool]) -> int:
    """Where the following pass begins: at what the rank receives for it, at the first gradient, or half way."""
    between = range(run.last + 1, following.first)
    if peers := [i for i in between if PEER.search(names[i])]:
        return peers[0]
    if following.backward and not run.backward:
        return next((i for i in between if is_gradient[i]), following.first)
    if run.backward and not following.backward:
        return 1 + max((i for i in between if is_gradient[i]), default=run.last)
    return (run.last + following.first + 1) // 2


def _end(last: int, names: list[str], is_gradient: list[bool]) -> int:
    """Where the last pass is over: the first kernel of the optimizer, or of the reduction of gradients, after the
    last gradient."""
    rest = range(1 + max((i for i in range(last, len(names)) if is_gradient[i]), default=last), len(names))
    return next((i for i in rest if OPTIMIZER.search(names[i]) or REDUCTION.search(names[i])), len(names))


def _by_gradients(names: list[str], is_gradient: list[bool]) -> Passes:
    if not any(is_gradient):
        return Passes(["other"] * len(names), [None] * len(names), 0, 0)
    first, last = is_gradient.index(True), len(names) - 1 - is_gradient[::-1].index(True)
    end = _end(last, names, is_gradient)
    phase: list[Phase] = ["forward"] * first
    phase += ["backward"] * (end - first)
    phase += ["optimizer"] * (len(names) - end)
    return Passes(phase, [None] * len(names), 0, 0)
