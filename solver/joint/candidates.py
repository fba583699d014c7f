"""Candidates from a mesh: for every number of stages the shardings of one stage's devices, by what memory they take.

::

    mesh of 128 ──▶ 8 stages of 16 = [4, 2, 2] ──▶ the fastest sharding, and ever thriftier ones
                    4 stages of 32 = [4, 4, 2] ──▶ ..

How much a stage may hold is not known before layers are placed: so the sharding solver is asked without a limit first,
then for ever less of what that took; which of them is best is for `solve.place` to find.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec

from hyperopt.documents import DocumentError
from hyperopt.graph import Graph
from hyperopt.mesh import Mesh
from hyperopt.profile import Device, Profile
from solver.joint.pipeline import Candidate
from solver.joint.sample import FORWARD, REMEDY, cut
from solver.joint.stage import Exchange
from solver.placement import DoesNotFit, Sharding, shard
from solver.sharding.warm import warm

SHARES = (0.9, 0.75, 0.6, 0.45)
"""Of the memory of the fastest sharding; the first that does not fit is the last that is asked for."""

LEAST_S = 0.1
"""Seconds for the shardings of one number of stages; each gets the fastest, whatever the limit."""

MOST_AXES = 3


def candidates(
    profile: Profile,
    graph: Graph,
    mesh: Mesh,
    counts: Sequence[tuple[str, int]],
    micro_batches: int,
    device: Device,
    stages: Sequence[int],
    time_limit_s: float,
    seed: int = 0,
) -> list[Candidate]:
    """For each of `stages` (divisors of the mesh's devices) its shardings, the fastest first.

    `profile`, `graph`: one micro-batch of a short model on one device (`solver.joint.sample`); `counts`: the model's
    layers; `device`: budgets and links of one device. `time_limit_s` is for all of them. Raises `ValueError` where the
    devices cannot be divided so.
    """
    if not any(o.phase == FORWARD for o in profile.operators):
        raise DocumentError("$.operators[*].phase", "no operator is of the forward pass", REMEDY)
    cut(profile, counts)  # labels that are not there are said at once, not after the shardings
    warm()  # compiled once on a machine: that is not the search's time
    deadline = time.monotonic() + time_limit_s
    made: list[Candidate] = []
    seen: list[Profile] = []
    for k, count in enumerate(stages):
        if count < 1 or mesh.devices % count:
            raise ValueError(f"{mesh.devices} devices cannot be divided into {count} stages")
        part = of_stage(mesh, mesh.devices // count)
        exchange = between(mesh, mesh.devices // count)
        share = max(LEAST_S, (deadline - time.monotonic()) / (len(stages) - k))
        for sharding in _shardings(graph, part, share, seed):
            sample = sharding.per_device_profile(device)
            if any(msgspec.structs.replace(one, run=sample.run) == sample for one in seen):
                continue
            seen.append(sample)
            made.append(
                Candidate(
                    name=f"{count} x {'x'.join(map(str, part.shape))}, {sharding.peak_bytes >> 20} MiB a sample",
                    sample=cut(sample, counts, profile),
                    stages=count,
                    devices=part.devices,
                    micro_batches=micro_batches,
                    exchange=exchange,
                    sharding=sharding,
                    ranks=tuple(int(rank) for rank in mesh.places.ravel()),
                )
            )
    return made


def of_stage(mesh: Mesh, devices: int) -> Mesh:
    """The mesh of the first stage's devices: up to three axes, so that tensors may be split over any of them."""
    shape = _factors(devices)
    ranks = tuple(int(r) for r in mesh.places.ravel()[:devices])
    return msgspec.structs.replace(mesh, shape=shape, axes=("x", "y", "z")[: len(shape)], ranks=ranks)


def between(mesh: Mesh, devices: int) -> Exchange:
    """The links between neighbouring devices of two stages: the slowest that any two of them have."""
    ranks = [int(r) for r in mesh.places.ravel()]
    worst = 0
    for rank, other in zip(ranks, ranks[devices:], strict=False):
        for i, level in enumerate(mesh.levels):
            if level.devices is None or rank // level.devices == other // level.devices:
                worst = max(worst, i)
                break
    return Exchange(mesh.levels[worst].bytes_per_s, mesh.levels[worst].latency_us)


def _factors(devices: int) -> tuple[int, ...]:
    """At most three factors of about the same size, the largest first."""
    axes = [1] * MOST_AXES
    left, prime = devices, 2
    primes = []
    while left > 1:
        while left % prime == 0:
            primes.append(prime)
            left //= prime
        prime = prime + 1 if prime * prime <= left else left
    for factor in sorted(primes, reverse=True):
        axes[axes.index(min(axes))] *= factor
    return tuple(sorted((a for a in axes if a > 1), reverse=True)) or (1,)


def _shardings(graph: Graph, mesh: Mesh, seconds: float, seed: int) -> list[Sharding]:
    """The fastest sharding and thriftier ones, as long as there are any."""
    share = seconds / (1 + len(SHARES))
    until = time.monotonic() + seconds
    fastest = shard(graph, mesh, time_limit_s=share, seed=seed)
    found = [fastest]
    for part in SHARES:
        if time.monotonic() >= until:
            break
        if found[-1].peak_bytes <= part * fastest.peak_bytes:
            continue
        try:
            found.append(
                shard(graph, mesh, memory_bytes=math.floor(part * fastest.peak_bytes), time_limit_s=share, seed=seed)
            )
        except DoesNotFit:
            break
    return found
