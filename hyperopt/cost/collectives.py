"""What collectives cost on a mesh: messages of latency alpha and bandwidth beta, along one axis or over several.

Every device sends to its neighbour on a ring, all at once, so a step takes as long as its slowest link. Of n devices
and B bytes (of the whole tensor where it is gathered or reduced, of one device's part for all_to_all and permute):

    all_gather, reduce_scatter    n - 1 steps of B/n      (n - 1) (alpha + B / (n beta))
    all_reduce                    both of them            2 (n - 1) (alpha + B / (n beta))
    all_to_all                    n - 1 steps of B/n      the same, of what one device holds
    broadcast                     pipelined on the ring   (n - 1) alpha + B / beta
    permute                       one step                alpha + B / beta

Sources: alpha-beta after Hockney; rings, and their bytes, after Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH" (2005), and Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms
for clusters of workstations" (2009). Over several axes all_reduce is hierarchical: reduce-scatter along each axis in
turn, on less and less, and all-gather back, so that slow links see the smallest part (as in Horovod and NCCL).
Contention between groups is not modelled: `bytes_per_s` is what one device gets when all of them talk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from hyperopt.mesh import Level, Mesh

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "permute"]


@dataclass(frozen=True, slots=True)
class Cost:
    """`us` until all are done; `total_bytes` that all `devices` send together (whole bytes, however chunks fall)."""

    us: float
    total_bytes: int
    devices: int

    @property
    def sent_bytes(self) -> float:
        """By one device, on average."""
        return self.total_bytes / self.devices


def along(kind: Kind, n: int, size: int, level: Level) -> Cost:
    """One collective of `n` devices on the links of `level`; `size` in bytes as the module says for each kind."""
    if n == 1:
        return Cost(0.0, 0, 1)
    alpha, beta = level.latency_us, level.bytes_per_s / 1e6
    steps = n - 1
    if kind == "all_reduce":
        return Cost(2 * steps * (alpha + size / n / beta), 2 * steps * size, n)
    if kind == "broadcast":
        return Cost(steps * alpha + size / beta, steps * size, n)
    if kind == "permute":
        return Cost(alpha + size / beta, n * size, n)
    return Cost(steps * (alpha + size / n / beta), steps * size, n)


def over(mesh: Mesh, kind: Kind, axes: Sequence[int], size: int, item: int = 1) -> Cost:
    """A collective of all devices of the mesh, each with those along `axes`; `size` as for `along`.

    Over several axes: all_reduce is hierarchical where the tensor can be cut that far in pieces of `item` bytes, else
    one axis after the other; all_gather and reduce_scatter go in the order given, the one growing and the other
    shrinking; all_to_all, broadcast and permute likewise, with the same bytes each time.
    """
    axes = [axis for axis in axes if mesh.shape[axis] > 1]
    parts = prod(mesh.shape[axis] for axis in axes)
    if kind == "all_reduce" and len(axes) > 1 and size % (parts * item) == 0:
        # The fastest links first, while there is most to send.
        order = sorted(axes, key=lambda axis: (mesh.spans[axis], -axis))
        down, up = over(mesh, "reduce_scatter", order, size), over(mesh, "all_gather", order[::-1], size)
        return Cost(down.us + up.us, down.total_bytes + up.total_bytes, mesh.devices)
    us, total, left = 0.0, 0, size
    if kind == "all_gather":
        left = size // parts
    for axis in axes:
        n = mesh.shape[axis]
        if kind == "all_gather":
            left *= n
        one = along(kind, n, left, mesh.level(axis))
        us += one.us
        total += one.total_bytes * (mesh.devices // n)
        if kind == "reduce_scatter":
            left //= n
    return Cost(us, total, mesh.devices)
