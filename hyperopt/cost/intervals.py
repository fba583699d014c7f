"""How far predictions are off, from predictions that were made without having seen the answer.

Split conformal prediction (Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005; Lei et al.,
"Distribution-free predictive inference for regression", 2018) with out-of-fold errors in place of a split of its own
(Barber et al., "Predictive inference with the jackknife+", 2021), by class (Mondrian): the interval of a class is
between quantiles of its own errors, where there are enough of them; of all classes together where there are not; and
where those are too few too, there is none, and that is said.

Errors are logarithms of measured over predicted, so intervals are factors: 0.8 to 1.3 times the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

KEPT = 401
"""Errors of a class that are kept, evenly by rank: quantiles of 1 in 400 are as good as those of all."""

OWN = 19
"""Groups from which on a class has intervals of its own: with fewer it cannot say where 90 % lie, at any level."""

POOL = ""
"""The class of all classes."""


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Sorted errors by class; `counts`: of how many groups (held out together) they are."""

    by_class: Mapping[str, tuple[float, ...]]
    counts: Mapping[str, int]

    def quantile(self, name: str, level: float) -> float | None:
        """Logarithm of the factor that measured over predicted stays below with probability `level`: of the class if
        it has `OWN` groups and enough for that level, else of all; None where even all are too few. Where a class has
        to give way to all it is no nearer than what the class said last: a wider level never has a narrower interval.

        Enough: with n errors the highest is passed with probability 1/(n + 1) (exchangeable errors), so a level of
        0.95 needs 19.
        """
        own = self.counts.get(name, 0) >= OWN
        used = self.class_used(name if own else POOL, level)
        if used is None:
            return None
        found = self._ranked(used, level)
        if own and used != name:
            outermost = 1 / (self.counts[name] + 1)
            found = max(found, self._ranked(name, 1 - outermost)) if level >= 0.5 else (
                min(found, self._ranked(name, outermost))
            )  # fmt: skip
        return found

    def usual(self, name: str) -> float | None:
        """The upper quartile, of the class itself from 3 groups on: how far off predictions usually are."""
        used = self.class_used(name, 0.75)
        return None if used is None else self._ranked(used, 0.75)

    def _ranked(self, name: str, level: float) -> float:
        """Ranks from 1 to n of n + 1 places, widened outwards."""
        errors = self.by_class[name]
        n = len(errors)
        place = np.ceil(level * (n + 1) - 1e-9) if level >= 0.5 else np.floor(level * (n + 1) + 1e-9)
        return errors[int(np.clip(place, 1, n)) - 1]

    def widest(self, name: str) -> float:
        """The highest level of a two-sided interval that the class can say."""
        return 1 - 2 / (self.counts.get(name, 0) + 1)

    def class_used(self, name: str, level: float) -> str | None:
        """Who has enough groups for a level: the class, all, or nobody."""
        for found in (name, POOL):
            groups = self.counts.get(found, 0)
            if groups and min(level, 1 - level) * (groups + 1) >= 1 - 1e-9:
                return found
        return None


def collect(errors: F64, classes: npt.NDArray[np.str_], groups: npt.NDArray[np.str_]) -> Errors:
    """From one error for each sample, with its class and the group that it was held out with."""
    by_class: dict[str, tuple[float, ...]] = {}
    counts: dict[str, int] = {}
    for name in [POOL, *np.unique(classes).tolist()]:
        mine = np.ones(len(errors), bool) if name == POOL else classes == name
        by_class[str(name)] = _thinned(np.sort(errors[mine]))
        counts[str(name)] = len(np.unique(groups[mine]))
    return Errors(by_class=by_class, counts=counts)


def _thinned(errors: F64) -> tuple[float, ...]:
    if len(errors) > KEPT:
        errors = errors[np.round(np.linspace(0, len(errors) - 1, KEPT)).astype(int)]
    return tuple(round(float(error), 6) for error in errors)
