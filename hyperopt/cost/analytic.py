"""What physics says an operator, a copy or a collective takes; a few constants, fitted to what was measured.

An operator: a roofline with a floor, for each family of operators of a device (Williams, Waterman and Patterson,
"Roofline: an insightful visual performance model", 2009)::

    us = latency + max(flops / peak, bytes / bandwidth)

A copy: the link's bandwidth for who copies alone, and a capacity that all who copy at the same time share; both by
class of size, since what fits a cache, or memory that is used again and not asked for anew, does not meet the rest of
the link at all::

    us = latency + bytes / min(alone, capacity / copiers)

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

HEADROOM = 1.5
"""Times the best rate seen that a fitted one may be."""

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
        families, of = signatures.coded_families
        for name, roofline in self.families.items():
            if name not in families:
                continue
            own = of == families.index(name)
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
class Near:
    """Copies of up to `most_bytes`: bandwidths as of `Link`."""

    most_bytes: float
    alone: float
    capacity: float


@dataclass(frozen=True)
class Link:
    """One direction between two tiers. Bandwidths in bytes per microsecond: of who copies alone, and of all together.
    `nearer`: classes of smaller copies, the smallest first, each with its own."""

    latency_us: float
    alone: float
    capacity: float
    nearer: tuple[Near, ...] = ()

    def us(self, size: F64, copiers: F64) -> F64:
        """`size` in bytes; `copiers`: how many copy at the same time, this one counted."""
        classes: tuple[Near | Link, ...] = (*self.nearer, self)
        of = np.searchsorted([near.most_bytes for near in self.nearer], size)
        alone, capacity = np.array([(each.alone, each.capacity) for each in classes]).T
        return np.asarray(self.latency_us + size / np.minimum(alone[of], capacity[of] / np.maximum(copiers, 1.0)))


def fit_link(size: F64, copiers: F64, us: F64) -> Link:
    """From copies, of which some alone; without any that share the link the capacity is that of one.

    Classes of size are cut where that pays for their constants (Schwarz's criterion, errors of the logarithm after
    Laplace), of at least two sizes each; a cut is the geometric mean of the sizes on both sides, since nothing says
    more about where it is. A class may not be faster than a smaller one. Raises ValueError for fewer than 3 copies.
    """
    if len(us) < 3:
        raise ValueError(f"{len(us)} copies are too few to fit a link to: measure at least 3 sizes")
    size, copiers, us = _typical(size, copiers, np.maximum(us, TINY))
    sizes = np.unique(size)
    found = []
    for latency in (float(us.min()) * np.linspace(0, 1.1, 23)).tolist():
        classes = _classes(size, copiers, us, sizes, latency)
        for count, (error, parts) in enumerate(classes, 1):
            # Each class has two rates and, but for the last, a cut; and there is the latency.
            found.append(
                (2 * len(us) * np.log(max(error / len(us), 1e-3)) + 3 * count * np.log(len(us)), latency, parts)
            )
    _, latency, parts = min(found, key=lambda one: one[0])
    rates = [(alone, capacity) for _, _, alone, capacity in parts]
    cuts = [float(np.sqrt(sizes[last] * sizes[last + 1])) for _, last, *_ in parts[:-1]]
    nearer = tuple(Near(cut, *pair) for cut, pair in zip(cuts, rates, strict=False))
    return Link(latency, *rates[-1], nearer)


def _typical(size: F64, copiers: F64, us: F64) -> tuple[F64, F64, F64]:
    """One row for each size and number of copiers: the median of those that copied at the same time."""
    pairs, of = np.unique(np.column_stack([size, np.round(copiers)]), axis=0, return_inverse=True)
    return pairs[:, 0], pairs[:, 1], np.array([np.median(us[of.reshape(-1) == i]) for i in range(len(pairs))])


MOST_CLASSES = 4

UNSHARED = 1e6
"""Capacity over rate alone of what nobody shares: the cache of a core."""

NOTICED = 0.1
"""Logarithm that others must slow a copy by, for a class to be said to be shared: less is noise, and a capacity just
below what two copies got would halve the rate of four."""

Parts = tuple[tuple[int, int, float, float], ...]
"""First and last size of a class, its rate alone and its capacity."""


def _classes(size: F64, copiers: F64, us: F64, sizes: F64, latency: float) -> list[tuple[float, Parts]]:
    """For 1, 2, ... classes the least sum of errors, and the classes: what ends before a class is best by itself."""
    last = len(sizes) - 1
    one = {
        (a, b): _rates(size, copiers, us, sizes[a], sizes[b], latency)
        for a in range(last + 1)
        for b in range(a, last + 1)
        if b > a or last == 0
    }
    best: dict[int, tuple[float, Parts]] = {
        b: (error, ((0, b, alone, capacity),)) for (a, b), (error, alone, capacity) in one.items() if a == 0
    }
    found = [best[last]] if last in best else []
    for _ in range(MOST_CLASSES - 1):
        longer: dict[int, tuple[float, Parts]] = {}
        for (a, b), (error, alone, capacity) in one.items():
            before = best.get(a - 1)
            if before is None or before[1][-1][2] < alone or before[1][-1][3] < capacity:
                continue
            if b not in longer or before[0] + error < longer[b][0]:
                longer[b] = (before[0] + error, (*before[1], (a, b, alone, capacity)))
        best = longer
        if last in best:
            found.append(best[last])
    return found


def _rates(size: F64, copiers: F64, us: F64, least: float, most: float, latency: float) -> tuple[float, float, float]:
    """Sum of the errors of the logarithm of one class of sizes, its rate alone and its capacity: of the rates that were
    measured the ones that err least."""
    mine = (size >= least) & (size <= most)
    size, copiers, us = size[mine], copiers[mine], us[mine]
    rate = size / np.maximum(us - latency, TINY)
    single = copiers <= max(1.5, float(copiers.min()))
    alone = rate[single]
    errors = _errors(latency + size[single] / alone[:, None], us[single])
    error, alone_best = float(errors.min()), float(alone[errors.argmin()])
    crowd = float(copiers.max())
    if crowd < 1.5:
        return error, alone_best, alone_best
    own = np.clip((rate * copiers)[~single], alone_best, alone_best * crowd)
    capacity = np.append(own, alone_best * UNSHARED)
    errors = _errors(latency + size / np.minimum(alone_best, capacity[:, None] / copiers), us)
    best = int(errors.argmin())
    if errors[-1] - errors[best] < NOTICED * len(own):
        best = -1
    return float(errors[best]), alone_best, float(capacity[best])


def _errors(ahead: F64, us: F64) -> F64:
    """Sums of the errors of the logarithm of times `ahead` (values, copies)."""
    return np.asarray(np.abs(np.log(np.maximum(ahead, TINY) / us)).sum(axis=1))


def fit_messages(steps: F64, each: F64, us: F64) -> tuple[float, float]:
    """(latency in us, bandwidth in bytes/s) of messages: a collective of `steps` steps of `each` bytes takes
    steps x (latency + each / bandwidth). As with rooflines no bandwidth is found that is more than `HEADROOM` times the
    best one seen: where latency is all there is, messages do not show it. Raises ValueError for fewer than 3
    collectives."""
    if len(us) < 3:
        raise ValueError(f"{len(us)} collectives are too few to fit latency and bandwidth to: measure at least 3 sizes")
    rates = steps * each / np.maximum(us, TINY)
    rate, best = float(np.quantile(rates, 0.9)), float(rates.max())
    start = [float(np.min(us / np.maximum(steps, 1.0))), max(rate, 1e-3)]
    most = np.array([1e30, max(best, 1e-3) * HEADROOM])
    _, (latency, bandwidth) = _fit(lambda p: steps * (p[0] + each / p[1]), us, start, most)
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
