"""How far measurements of one signature are apart: what the interval of a remembered duration is made of.

Two questions, two populations. *A single execution* is compared with the median of its signature. *A median of m
executions*, of another run or rank, is compared with the median that is remembered: where several runs were measured,
each run with the others; where one was, the second half of its executions with the first, and what changes from run to
run is assumed (`RUN_TO_RUN`; `runs` tells which).

Both are normalised before they are ranked, or kernels of 1 us would make the intervals of kernels of 1 ms (locally
weighted conformal prediction: Lei et al., "Distribution-free predictive inference for regression", 2018, section 5.2).
The scale of a signature::

    spread^2        from its own executions, drawn towards what is usual for its length: relative^2 + (short_us / us)^2
    median of m     3.45 spread^2 (1 / n + 1 / m) + drift^2     n: executions that are remembered
    one execution   3.45 spread^2 (1 / n + 1) + drift^2

(3.45: variance of the median of normal numbers, from their median distance; what is not normal the ranks make good.)

A long kernel scatters by a share of its length, a short one by what the clock and the launch are off, which has no part
in its length. So the scale is of two parts, `relative` and `clock` (us), and an error of so many scales is added up
where the second is the larger one, and multiplied where the first is (`Scale`; Rocke and Durbin, "A model for
measurement error for gene expression arrays", 2001, and the logarithm that goes with it: Durbin et al., "A
variance-stabilizing transformation for gene-expression microarray data", 2002)::

    us of error z    clock / relative x sinh(asinh(relative x us / clock) + z x relative)

    long             us x exp(z x relative)
    short            us + z x clock
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from hyperopt.cost.features import F64, I64, Rows, Samples
from hyperopt.cost.intervals import POOL, Errors, collect

OFTEN = 4
"""Executions of a signature that its spread, and its halves, are told from."""

USUAL = 4.0
"""As many executions as what is usual for a kernel's length counts for."""

MEDIANS = 1.4826**2 * np.pi / 2
"""Variance of a median of n numbers by spread^2 / n, where they are normal: the spread is a median distance."""

HALF = 0.4549
"""Median of the square of a normal number of variance 1."""

RUN_TO_RUN = 0.01
"""Logarithm that a kernel differs by from one run to the next where only one was measured. Assumed: kernels of 50 us
and more differ by 0.5 to 0.9 % in the median between two ranks of a small convolutional net on Ascend, whose runs are
public (Ascend/msinsight, test/data/pytorch)."""

LEAST = 1e-4
"""Spread below which nothing is told apart: clocks count in steps."""

TICK_US = 1e-3
"""No duration is said to be less, but what is known to be: profiles count in nanoseconds."""


@dataclass(frozen=True)
class Scale:
    """How far durations scatter: a share of them (`relative`), and us whatever they are (`clock`)."""

    relative: F64
    clock: F64

    @classmethod
    def of(cls, us: F64, within: F64, apart: float, clock: F64) -> Scale:
        """`within`: variance of the logarithm within a run; `clock`: the share of it that is the clock's; `apart`: what
        runs differ by."""
        return cls(
            np.maximum(np.sqrt(within * (1 - clock) + apart**2), LEAST),
            us * np.maximum(np.sqrt(within * clock), LEAST * LEAST),
        )

    def errors(self, us: F64, measured: F64) -> F64:
        """Of how many scales `measured` is off from `us`."""
        at = self.relative / self.clock
        return np.asarray((np.arcsinh(at * measured) - np.arcsinh(at * us)) / self.relative)

    def factors(self, us: F64, error: F64 | float) -> F64:
        """Logarithm of the factor on `us` that is so many scales off."""
        at = self.relative / self.clock
        found = np.sinh(np.arcsinh(at * us) + error * self.relative) / at
        return np.asarray(np.log(np.maximum(found, np.minimum(TICK_US, us)) / us))


class Repeats(msgspec.Struct, frozen=True, kw_only=True):
    """`single`, `medians`: sorted normalised errors; `runs`: how many runs the medians are of (1: halves of one)."""

    relative: float
    short_us: float
    drift: float
    runs: int
    single: Errors
    medians: Errors

    @property
    def apart(self) -> float:
        """What another run differs by, whatever the spread within one."""
        return self.drift if self.runs > 1 else float(np.hypot(self.drift, RUN_TO_RUN))

    def spread(self, us: F64, times: F64, spread: F64) -> F64:
        """What is thought of each signature's spread, measured `times` times at `us` with `spread` (`Samples`)."""
        usual = self.relative**2 + (self.short_us / us) ** 2
        known = np.where(times >= OFTEN, times, 0.0)
        return np.asarray(np.maximum(np.sqrt((USUAL * usual + known * spread**2) / (USUAL + known)), LEAST))

    def clock(self, us: F64) -> F64:
        """The share of a spread's square that is the clock's."""
        clock = (self.short_us / us) ** 2
        return np.asarray(clock / (self.relative**2 + clock + LEAST**2))

    def drawn(self, us: F64, rank: F64) -> F64:
        """Factors on the durations of kernels that take `us` (operators), of which nothing else is known, when a single
        execution is at this rank (0 to 1; scenarios, operators) of what executions are off by."""
        us, none = np.maximum(us, TICK_US), np.zeros(len(us))
        scale = Scale.of(us, MEDIANS * self.spread(us, none, none) ** 2, self.apart, self.clock(us))
        errors = np.quantile(np.array(self.single.by_class[POOL], np.float64), rank)
        return np.asarray(np.exp(scale.factors(us, errors)))

    def variance(self, us: F64, times: F64, spread: F64) -> F64:
        """Of the logarithm of what is remembered, as a guess at another run's."""
        return MEDIANS * self.spread(us, times, spread) ** 2 / times + self.apart**2

    def factors(
        self, us: F64, times: F64, spread: F64, again: F64, level: float
    ) -> tuple[F64, F64, npt.NDArray[np.bool_]]:
        """Logarithms of the factors on what is remembered between which the median of `again` executions lies (1: a
        single execution) with probability `level`. Where the last is false too few repeat to say, and the factors are
        those of the widest level that can be said."""
        squared, clock = MEDIANS * self.spread(us, times, spread) ** 2, self.clock(us)
        low, high, known = np.zeros(len(us)), np.zeros(len(us)), np.zeros(len(us), bool)
        for errors, mine in ((self.single, again <= 1), (self.medians, again > 1)):
            known[mine] = errors.widest(POOL) >= level - 1e-9
            said = min(level, errors.widest(POOL))
            ends = [errors.quantile(POOL, q) for q in ((1 - said) / 2, (1 + said) / 2)]
            if ends[0] is None or ends[1] is None:
                continue
            within = squared[mine] * (1 / times[mine] + 1 / np.maximum(again[mine], 1))
            scale = Scale.of(us[mine], within, self.apart, clock[mine])
            low[mine] = scale.factors(us[mine], min(ends[0], 0.0))
            high[mine] = scale.factors(us[mine], max(ends[1], 0.0))
        return low, high, known


def repeats_of(rows: Rows, samples: Samples) -> Repeats | None:
    """From all executions; None where no signature was measured `OFTEN` times."""
    often = samples.times >= OFTEN
    if not often.any():
        return None
    relative, short_us = _usual(samples.us[often], samples.spread[often])
    none = collect(np.zeros(0), np.zeros(0, np.str_), np.zeros(0, np.str_))
    rough = Repeats(relative=relative, short_us=short_us, drift=0.0, runs=1, single=none, medians=none)
    executions, of = _executions(rows, samples, often)
    spread = rough.spread(samples.us, samples.times.astype(np.float64), samples.spread)
    within = (spread**2 * MEDIANS * (1 + 1 / samples.times))[of]
    us = samples.us[of]
    single = Scale.of(us, within, 0.0, rough.clock(us)).errors(us, executions)
    runs, before, after, squared, whose = _medians(rows, samples, often, rough)
    drift = _drift(np.log(after / before), squared)
    medians = Scale.of(before, squared, drift, rough.clock(before)).errors(before, after)
    return Repeats(
        relative=relative,
        short_us=short_us,
        drift=drift,
        runs=runs,
        single=_sorted(single, of),
        medians=_sorted(medians, whose),
    )


def _sorted(errors: F64, signature: I64) -> Errors:
    return collect(errors, np.zeros(len(errors), np.str_), signature.astype(np.str_))


def _usual(us: F64, spread: F64) -> tuple[float, float]:
    """Spread of long kernels, and by how many us short ones scatter: medians of the longer and the shorter half."""
    long = us >= np.median(us)
    relative = float(np.median(spread[long]))
    short = ~long if (~long).any() else long
    rest = np.sqrt(np.maximum(spread[short] ** 2 - relative**2, 0.0)) * us[short]
    return max(relative, LEAST), float(np.median(rest))


def _executions(rows: Rows, samples: Samples, often: npt.NDArray[np.bool_]) -> tuple[F64, I64]:
    """Duration of every execution of those measured often, and which sample it is of."""
    places = {key: i for i, key in enumerate(samples.signatures.keys)}
    of = np.array([places.get(key, -1) for key in rows.signatures.keys], np.int64)[rows.signature]
    mine = (of >= 0) & (rows.us > 0)
    mine[mine] = often[of[mine]]
    return rows.us[mine], of[mine]


def _medians(
    rows: Rows, samples: Samples, often: npt.NDArray[np.bool_], rough: Repeats
) -> tuple[int, F64, F64, F64, I64]:
    """How many runs; of each comparison the remembered median and the other one, the variance of the logarithm that the
    spread within a run makes, and which sample it is of."""
    places = {key: i for i, key in enumerate(samples.signatures.keys)}
    of = np.array([places.get(key, -1) for key in rows.signatures.keys], np.int64)[rows.signature]
    measured = np.flatnonzero((of >= 0) & (rows.us > 0))
    order = measured[np.argsort(of[measured], kind="stable")]
    run = np.zeros(len(rows.us), np.int64) if rows.run is None else rows.run
    several: list[tuple[F64, F64, int]] = []
    halves: list[tuple[F64, F64, int]] = []
    for mine in np.split(order, np.flatnonzero(np.diff(of[order])) + 1) if len(order) else []:
        us, runs, sample = rows.us[mine], run[mine], int(of[mine[0]])
        ways = np.unique(runs)
        if len(ways) > 1:
            several += [(us[runs != way], us[runs == way], sample) for way in ways]
        elif often[sample]:
            halves.append((us[: len(us) // 2], us[len(us) // 2 :], sample))
    chosen, count = (several, len(np.unique(run))) if several else (halves, 1)
    before, after, squared = np.zeros(len(chosen)), np.zeros(len(chosen)), np.zeros(len(chosen))
    for i, (known, new, _) in enumerate(chosen):
        middle = float(np.median(known))
        before[i], after[i] = middle, float(np.median(new))
        spread = float(np.median(np.abs(np.log(known / middle))))
        thought = rough.spread(np.array([middle]), np.array([float(len(known))]), np.array([spread]))[0]
        squared[i] = MEDIANS * thought**2 * (1 / len(known) + 1 / len(new))
    return count, before, after, squared, np.array([sample for *_, sample in chosen], np.int64)


def _drift(apart: F64, squared: F64) -> float:
    """What medians differ by beyond the spread within a run: what is left of their usual difference."""
    if not len(apart):
        return 0.0
    left = float(np.median(apart**2)) / HALF - float(np.median(squared))
    return float(np.sqrt(max(left, 0.0)))
