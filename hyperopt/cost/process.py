"""What the roofline misses, learned from few measurements: a Gaussian process with effects of family and type.

Trees need hundreds of samples to cut; a run of one model has a hundred. There, what is known beforehand has to do: that
kernels of one family err alike, of one type more so, and the more so the closer their FLOPs and bytes are. The
logarithm of measured over roofline is a sum of such effects, each with a size that the data choose::

    family  +  type  +  family at this work  +  type at this work  +  family at these shapes  +  noise

All of them but the noise by a factor that goes by traffic: what takes little but its launch, and what no cache can
hold, is near the roofline whatever its type; in between it depends on what was left in the cache (`REACH`)::

    factor      small    |    1    |    large
    bytes      -------  floor --- cache  -------

An effect of few measurements is drawn towards 0, that is towards its family and the roofline (partial pooling: Gelman
and Hill, "Data analysis using regression and multilevel/hierarchical models", 2006, chapter 12). Sizes and lengths are
the likeliest ones, with weak priors (empirical Bayes: Rasmussen and Williams, "Gaussian processes for machine
learning", 2006, chapter 5), the same for every device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from hyperopt.cost.ranges import Ranges, away, ranges_of, work_of
from hyperopt.cost.signatures import F64, I64, Signatures

MOST = 256
"""Samples above which trees are as good, and this is slow: its effort grows with their cube."""

EFFECTS = ("family", "type", "family_work", "type_work", "family_shapes", "noise")
LENGTHS = ("family_work", "type_work", "family_shapes")

PRIOR: Mapping[str, tuple[float, float]] = {
    "family": (0.2, 1.0), "type": (0.2, 1.0), "family_work": (0.2, 1.0), "type_work": (0.2, 1.0),
    "family_shapes": (0.2, 1.0), "noise": (0.1, 1.0), "length family_work": (2.0, 0.7), "length type_work": (2.0, 0.7),
    "length family_shapes": (4.0, 0.7),
}  # fmt: skip
"""Median and logarithmic width of what is expected of each size (in logarithms of time) and length (in logarithms of
work; in standard deviations of shapes' numbers)."""

FAR = 2.5
"""Widths of its prior that a size or length may be from its median: beyond, sums are no longer exact."""

REACH: Mapping[str, tuple[float, float]] = {
    "small": (0.5, 1.0), "large": (0.5, 1.0), "floor": (float(np.log(1 << 16)), 1.5),
    "cache": (float(np.log(1 << 26)), 1.0),
}  # fmt: skip
"""The same of the factors of the effects' sizes, and of the logarithms of bytes between which they are whole (64 KiB
and 64 MiB; there the widths are of the logarithms themselves)."""

SOFT = 0.5
"""Over how much of the logarithm of bytes one factor goes over into the next."""

BLOCK = 4096

JITTER = 1e-6
"""Added to the diagonal: samples that are alike in all would make it singular."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """`sizes`, `lengths`, `reach`: of `EFFECTS`, `LENGTHS` and
    `REACH`; `work` and `shapes`: what it has learned from, (samples, 2) and
    (samples, numbers) one row after the other; `type_of`, `family_of`: places in `types` and `families`; `weights`: of
    each sample in a prediction."""

    sizes: tuple[float, ...]
    lengths: tuple[float, ...]
    reach: tuple[float, ...]
    types: tuple[str, ...]
    families: tuple[str, ...]
    type_of: tuple[int, ...]
    family_of: tuple[int, ...]
    work: tuple[float, ...]
    shapes: tuple[float, ...]
    middle: tuple[float, ...]
    width: tuple[float, ...]
    weights: tuple[float, ...]
    ranges: Ranges

    def correction(self, signatures: Signatures) -> tuple[F64, F64]:
        """Logarithm of the factor on the roofline, faded; and how far outside the range (`ranges.away`)."""
        far = away(signatures, self.ranges)
        return self._shift(signatures) * np.clip(1.0 - far, 0.0, 1.0), far

    def _shift(self, signatures: Signatures) -> F64:
        count = len(self.weights)
        known = _Inputs(
            np.array(self.type_of, np.int64), np.array(self.family_of, np.int64),
            np.array(self.work).reshape(count, -1), np.array(self.shapes).reshape(count, -1),
        )  # fmt: skip
        asked = _Inputs(
            _places(signatures.coded_names, self.types), _places(signatures.coded_families, self.families),
            work_of(signatures), (signatures.numbers - np.array(self.middle)) / np.array(self.width),
        )  # fmt: skip
        weights = np.array(self.weights) * _factor(known.work, self.reach)[0]
        found = np.zeros(len(signatures.names))
        for begin in range(0, len(found), BLOCK):
            some = asked.only(slice(begin, begin + BLOCK))
            parts = _alike(some, known, self.lengths)
            found[begin : begin + BLOCK] = sum(
                (size**2 * (part @ weights) for size, part in zip(self.sizes, parts, strict=False)), np.zeros(1)
            )
        return found * _factor(asked.work, self.reach)[0]


class _Inputs(msgspec.Struct):
    """Type and family (-1: never met), work and standardised numbers of samples."""

    type_of: I64
    family_of: I64
    work: F64
    shapes: F64

    def only(self, chosen: slice) -> _Inputs:
        return _Inputs(self.type_of[chosen], self.family_of[chosen], self.work[chosen], self.shapes[chosen])


def _places(words: tuple[list[str], I64], known: Sequence[str]) -> I64:
    found, of = words
    places = {word: place for place, word in enumerate(known)}
    return np.array([places.get(word, -1) for word in found], np.int64)[of]


def _factor(work: F64, reach: Sequence[float]) -> tuple[F64, F64]:
    """Of each sample, by its bytes; and its slopes along the parameters as `learn` varies them, (4, samples)."""
    small, large, floor, cache = reach
    below = 1 / (1 + np.exp(np.clip((work[:, 1] - floor) / SOFT, -50, 50)))
    beyond = 1 / (1 + np.exp(np.clip((cache - work[:, 1]) / SOFT, -50, 50)))
    slopes = [
        small * below, large * beyond, (small - 1) * below * (1 - below) / SOFT,
        (1 - large) * beyond * (1 - beyond) / SOFT,
    ]  # fmt: skip
    return 1 + (small - 1) * below + (large - 1) * beyond, np.array(slopes)


def _apart(a: F64, b: F64) -> F64:
    """Squared distances of all rows of both."""
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
    return np.asarray(np.maximum(squared, 0.0))


def _alike(a: _Inputs, b: _Inputs, lengths: Sequence[float]) -> list[F64]:
    """How alike all of `a` and `b` are, 0 to 1, in each of `EFFECTS` but the noise."""
    family = (a.family_of[:, None] == b.family_of[None, :]).astype(np.float64)
    type = (a.type_of[:, None] == b.type_of[None, :]).astype(np.float64)
    work, shapes = _apart(a.work, b.work), _apart(a.shapes, b.shapes)
    return [
        family, type, family * np.exp(-work / (2 * lengths[0] ** 2)), type * np.exp(-work / (2 * lengths[1] ** 2)),
        family * np.exp(-shapes / (2 * lengths[2] ** 2)),
    ]  # fmt: skip


def learn(signatures: Signatures, base: F64, us: F64) -> Process:
    """From samples with their rooflines and durations."""
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    target = np.log(us / base)
    middle, width = signatures.numbers.mean(axis=0), signatures.numbers.std(axis=0)
    width = np.where(width > 1e-9, width, 1.0)
    types, type_of = signatures.coded_names
    families, family_of = signatures.coded_families
    own = _Inputs(type_of, family_of, work_of(signatures), (signatures.numbers - middle) / width)
    apart = [_apart(own.work, own.work), _apart(own.work, own.work), _apart(own.shapes, own.shapes)]
    same = [family_of[:, None] == family_of[None, :], type_of[:, None] == type_of[None, :]]
    cut, end = len(EFFECTS), len(PRIOR)
    prior = np.array([*PRIOR.values(), *REACH.values()])
    # All but the two logarithms of bytes are varied as logarithms.
    start = np.append(np.log(prior[:-2, 0]), prior[-2:, 0])

    def parameters(at: F64) -> tuple[F64, F64, list[float]]:
        return np.exp(at[:cut]), np.exp(at[cut:end]), [*np.exp(at[end:-2]).tolist(), *at[-2:].tolist()]

    def evidence(at: F64) -> tuple[float, F64]:
        """Negative logarithm of the posterior of the sizes, lengths and reach, and its slope."""
        sizes, lengths, reach = parameters(at)
        near = [np.exp(-a / (2 * length**2)) for a, length in zip(apart, lengths, strict=True)]
        effects = [
            same[0].astype(np.float64), same[1].astype(np.float64), same[0] * near[0], same[1] * near[1],
            same[0] * near[2],
        ]  # fmt: skip
        factor, slopes = _factor(own.work, reach)
        bare = sum((size**2 * effect for size, effect in zip(sizes, effects, strict=False)), np.zeros((1, 1)))
        whole = bare * np.outer(factor, factor)
        whole[np.diag_indices(len(target))] += sizes[-1] ** 2 + JITTER
        root = np.linalg.cholesky(whole)
        inverse = np.linalg.inv(whole)
        weights = inverse @ target
        off = (at - start) / prior[:, 1]
        value = 0.5 * target @ weights + np.log(np.diag(root)).sum() + 0.5 * (off**2).sum()
        pull = inverse - np.outer(weights, weights)
        pulled = pull * np.outer(factor, factor)
        slope = [size**2 * float((pulled * effect).sum()) for size, effect in zip(sizes, effects, strict=False)]
        slope.append(float(sizes[-1] ** 2 * np.trace(pull)))
        for place, (a, length) in enumerate(zip(apart, lengths, strict=True)):
            size, effect = sizes[2 + place], effects[2 + place]
            slope.append(0.5 * size**2 * float((pulled * effect * a).sum()) / length**2)
        slope += (slopes @ ((pull * bare) @ factor)).tolist()
        return float(value), np.array(slope) + off / prior[:, 1]

    bounds = np.column_stack([start - FAR * prior[:, 1], start + FAR * prior[:, 1]])
    with threadpool_limits(1):  # as in `trees.grow`: matrices are small, and threads wait for each other
        best = minimize(evidence, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 50}).x
    sizes, lengths, reach = parameters(best)
    factor = _factor(own.work, reach)[0]
    parts = _alike(own, own, lengths.tolist())
    whole = sum((size**2 * part for size, part in zip(sizes, parts, strict=False)), np.zeros((1, 1)))
    whole = whole * np.outer(factor, factor)
    weights = np.linalg.solve(whole + (sizes[-1] ** 2 + JITTER) * np.eye(len(target)), target)
    return Process(
        sizes=tuple(sizes.tolist()),
        lengths=tuple(lengths.tolist()),
        reach=tuple(reach),
        types=tuple(types),
        families=tuple(families),
        type_of=tuple(type_of.tolist()),
        family_of=tuple(family_of.tolist()),
        work=tuple(own.work.reshape(-1).tolist()),
        shapes=tuple(own.shapes.reshape(-1).tolist()),
        middle=tuple(middle.tolist()),
        width=tuple(width.tolist()),
        weights=tuple(weights.tolist()),
        ranges=ranges_of(signatures),
    )
