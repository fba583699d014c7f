"""What physics says an operator, a copy or a collective takes; a few constants, fitted to what was measured.

An operator: a roofline with a floor, for each family of operators of a device (Williams, Waterman and Patterson,
"Roofline: an insightful visual performance model", 2009)::

    us = latency + max(flops / peak, bytes / bandwidth)

A copy: the link's bandwidth for who copies alone, and a capacity that all who copy at the same time share::

    us = latency + (bytes that a cache holds) / near + (the others) / min(alone, capacity / copiers)

A collective: messages of latency alpha and bandwidth beta (`collectives` has the numbers of steps and bytes).

Constants minimise the mean absolute error of the logarithm: a kernel of 2 us counts as much as one of 2 s, and one
that was disturbed does not pull the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hyperopt.cost.features import F64, Signatures

FEWEST = 8
"""Signatures of a family below which its roofline is not fitted but taken from all families of the device."""

CACHED = 6

HEADROOM = 1.5

TINY = 1e-3
"""Microseconds: the least that is told apart from nothing, one nanosecond."""


@dataclass(frozen=True)
class Roofline:
    """Microseconds, FLOPs per microsecond, bytes per microsecond."""

    latency_us: float
    flops_per_us: float
    bytes_per_us: float

    def us(self, flops: F64, traffic: F64) -> F64:
        return np.asarray(self.latency_us + np.maximum(flops / self.flops_per_us, traffic / self.bytes_per_us))


@dataclass(frozen=True)
class Rooflines:
    """By family; `shared` is of all families together, and for those that are in too few measurements. `counts`: how
    many signatures each was fitted to."""

    families: Mapping[str, Roofline]
    shared: Roofline
    counts: Mapping[str, int]

    def us(self, signatures: Signatures) -> F64:
        """Of every signature."""
        found = self.shared.us(signatures.flops, signatures.bytes)
        for name, roofline in self.families.items():
            own = signatures.families == name
            found[own] = roofline.us(signatures.flops[own], signatures.bytes[own])
        return found


def fit_rooflines(signatures: Signatures, us: F64) -> Rooflines:
    """From the duration of every signature (us). Raises ValueError without any."""
    if not len(us):
        raise ValueError("no durations to fit a roofline to")
    names, counts = np.unique(signatures.families, return_counts=True)
    families = {}
    for name, count in zip(names, counts, strict=True):
        if count >= FEWEST:
            own = signatures.families == name
            families[str(name)] = fit_roofline(signatures.flops[own], signatures.bytes[own], us[own])
    return Rooflines(
        families=families,
        shared=fit_roofline(signatures.flops, signatures.bytes, us),
        counts={str(name): int(count) for name, count in zip(names, counts, strict=True)},
    )


def fit_roofline(flops: F64, traffic: F64, us: F64) -> Roofline:
    """Starts from the fastest rates and the shortest time that were seen, with either of the two rates alone binding
    and with both; no rate is found that is more than `HEADROOM` times the best one seen, for beyond it nothing was."""
    us = np.maximum(us, TINY)
    best = [max(float(np.max(work / us)), 1.0) for work in (flops, traffic)]
    usual = [max(float(np.quantile(work / us, 0.8)), 1e-3) for work in (flops, traffic)]
    floor = max(float(np.quantile(us, 0.1)), TINY)
    starts = [(floor, *usual), (floor, usual[0], best[1]), (floor, best[0], usual[1])]
    most = np.array([floor * 10, best[0] * HEADROOM, best[1] * HEADROOM])
    found = [_fit(lambda p: Roofline(*p).us(flops, traffic), us, start, most) for start in starts]
    return Roofline(*min(found)[1])


@dataclass(frozen=True)
class Link:
    """One direction between two tiers. Bandwidths in bytes per microsecond; the first `near_bytes` of a copy move at
    `near`, whoever else copies (0: no such)."""

    latency_us: float
    alone: float
    capacity: float
    near_bytes: float = 0.0
    near: float = 1.0

    def us(self, size: F64, copiers: F64) -> F64:
        """`size` in bytes; `copiers`: how many copy at the same time, this one counted."""
        shared = np.minimum(self.alone, self.capacity / np.maximum(copiers, 1.0))
        inside = np.minimum(size, self.near_bytes)
        return np.asarray(self.latency_us + inside / self.near + (size - inside) / shared)


def fit_link(size: F64, copiers: F64, us: F64) -> Link:
    """From copies, of which some alone. Without any that share the link the capacity is that of one; with fewer than
    `CACHED` sizes a cache is not told from the link. Raises ValueError for fewer than 3."""
    if len(us) < 3:
        raise ValueError(f"{len(us)} copies are too few to fit a link to: measure at least 3 sizes")
    us = np.maximum(us, TINY)
    large = size >= np.quantile(size, 0.7)
    rate = float(np.median(size[large] / us[large]))
    start = [float(np.quantile(us, 0.1)), rate, rate * float(copiers.max())]
    shares = copiers.max() >= 1.5

    def link(p: Sequence[float]) -> Link:
        return Link(p[0], p[1], p[2] if shares else p[1], *p[3:])

    found = [_fit(lambda p: link(p).us(size, copiers), us, start)]
    if len(np.unique(size)) >= CACHED:
        fastest = float(np.max(size / us))
        for edge in np.quantile(size, (0.3, 0.6)):
            nearer = [*start, float(edge), fastest]
            found.append(_fit(lambda p: link(p).us(size, copiers), us, nearer))
    return link(min(found)[1])


def fit_messages(steps: F64, each: F64, us: F64) -> tuple[float, float]:
    """(latency in us, bandwidth in bytes/s) of messages: a collective of `steps` steps of `each` bytes takes
    steps x (latency + each / bandwidth). Raises ValueError for fewer than 3 collectives."""
    if len(us) < 3:
        raise ValueError(f"{len(us)} collectives are too few to fit latency and bandwidth to: measure at least 3 sizes")
    rate = float(np.quantile(steps * each / np.maximum(us, TINY), 0.9))
    start = [float(np.min(us / np.maximum(steps, 1.0))), max(rate, 1e-3)]
    _, (latency, bandwidth) = _fit(lambda p: steps * (p[0] + each / p[1]), us, start)
    return latency, bandwidth * 1e6


def _fit(
    model: Callable[[Sequence[float]], F64], us: F64, start: Sequence[float], most: F64 | float = 1e30
) -> tuple[float, tuple[float, ...]]:
    """Positive constants, at most `most`, that bring the model's times nearest to the measured ones as logarithms go,
    behind the error that is left. Twice, the second time from what the first has found: a simplex that has shrunk does
    not look around any more."""
    from scipy.optimize import minimize  # predicting goes without it

    target = np.log(np.maximum(us, TINY))

    def constants(logs: F64) -> list[float]:
        return [float(v) for v in np.minimum(np.exp(np.clip(logs, -60.0, 60.0)), most)]

    def error(logs: F64) -> float:
        return float(np.mean(np.abs(np.log(np.maximum(model(constants(logs)), TINY)) - target)))

    best = np.log(np.maximum(np.array(start, np.float64), 1e-12))
    for _ in range(2):
        best = minimize(error, best, method="Nelder-Mead", options={"maxiter": 600, "xatol": 1e-3, "fatol": 1e-6}).x
    return error(best), tuple(constants(best))
