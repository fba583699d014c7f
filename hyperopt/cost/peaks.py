"""How far replayed peaks of memory are off, told from profiles that have both: what was measured, and the replay.

    factor = (measured peak + what its record leaves out) / replayed peak

An interval with probability 0.9 needs 19 different programs (`hyperopt.cost.intervals`); with fewer the factors that
were seen are told, and nothing is said of the next one. They belong to a way of capturing, not to a device: graph mode,
PyNative and readers of other tools are judged apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp

import msgspec
import numpy as np

from hyperopt.cost.intervals import collect
from hyperopt.profile import Profile
from hyperopt.replay import replay

LEVEL = 0.9
FEWEST = 19
"""Programs."""


class PeakErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Of one way of capturing: factors in order, of so many different programs."""

    factors: tuple[float, ...]
    programs: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Between which a factor lies with probability 0.9; None where the programs are too few to say."""
        if self.programs < FEWEST:
            return None
        logs = np.log(np.array(self.factors))
        errors = collect(logs, np.full(len(logs), "all"), np.arange(len(logs)).astype(np.str_))
        low, high = (errors.quantile("all", q) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return None if low is None or high is None else (exp(low), exp(high))

    def told(self) -> str:
        """In words."""
        seen = f"measured peaks of {self.programs} programs were {self.factors[0]:.3f} to {self.factors[-1]:.3f} times"
        if self.interval is None:
            return f"{seen} the replayed ones; too few for an interval ({FEWEST} programs are needed)"
        return f"{seen} the replayed ones; 90 % between {self.interval[0]:.3f} and {self.interval[1]:.3f}"


def source_of(profile: Profile) -> str:
    """The way in which it was captured."""
    run = profile.run
    return " ".join(part for part in (run.framework, run.source, profile.adapter.mode) if part) or "unknown"


def factor_of(profile: Profile) -> float | None:
    """None where no peak was measured, or there are no storages to replay."""
    told = profile.measured
    if told is None or not told.peak_bytes or profile.timing_only:
        return None
    left_out = sum(s.bytes for s in profile.storages if s.kind in told.excludes and s.resident_at_start)
    return (told.peak_bytes + left_out) / max(replay(profile).peak_bytes, 1)


def peak_errors(profiles: Iterable[Profile]) -> dict[str, PeakErrors]:
    """By way of capturing, of the profiles that have a measured peak."""
    found: dict[str, list[tuple[float, str]]] = {}
    for profile in profiles:
        if (factor := factor_of(profile)) is not None:
            found.setdefault(source_of(profile), []).append((factor, profile.structure_digest))
    return {
        source: PeakErrors(
            factors=tuple(sorted(round(factor, 6) for factor, _ in rows)), programs=len({name for _, name in rows})
        )
        for source, rows in found.items()
    }
