"""How far replayed peaks of memory are off, told from profiles that have both: what was measured, and the replay.

    factor = (measured peak + what its record leaves out) / replayed peak

An interval with probability 0.9 needs 19 different programs (`hyperopt.cost.intervals`); with fewer the factors that
were seen are told, and nothing is said of the next one. They belong to a way of capturing, not to a device: graph mode,
PyNative and readers of other tools are judged apart. Readers that find memory in use before the window put it into
`base_bytes` so that the replay meets the measured peak: their factor is 1 and says nothing, but what the allocator held
beyond that is told too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp
from statistics import median

import msgspec
import numpy as np

from hyperopt.cost.intervals import collect
from hyperopt.profile import Profile
from hyperopt.replay import replay

LEVEL = 0.9
FEWEST = 19
"""Programs."""


class PeakErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Of one way of capturing, in order, one for each program: factors of measured peaks, and of what the allocator
    held (where that was recorded)."""

    factors: tuple[float, ...]
    reserved: tuple[float, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """Between which a factor lies with probability 0.9; None where the programs are too few to say."""
        if len(self.factors) < FEWEST:
            return None
        logs = np.log(np.array(self.factors))
        errors = collect(logs, np.full(len(logs), "all"), np.arange(len(logs)).astype(np.str_))
        low, high = (errors.quantile("all", q) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return None if low is None or high is None else (exp(low), exp(high))

    def told(self) -> str:
        """In words."""
        seen = f"measured peaks of {len(self.factors)} programs were {_range(self.factors)} off the replayed ones"
        if self.reserved:
            seen += f", and allocators held {_range(self.reserved)}"
        if self.interval is None:
            return f"{seen}; too few for an interval ({FEWEST} programs are needed)"
        return f"{seen}; 90 % between {_range(self.interval)}"


def _range(factors: Sequence[float]) -> str:
    return f"{factors[0] - 1:+.3%} to {factors[-1] - 1:+.3%}"


def source_of(profile: Profile) -> str:
    """The way in which it was captured."""
    run = profile.run
    return " ".join(part for part in (run.framework, run.source, profile.adapter.mode) if part) or "unknown"


def factor_of(profile: Profile) -> tuple[float, float] | None:
    """Factors of the measured peak and of what was reserved (0: not recorded). None where no peak was measured, or
    there are no storages to replay."""
    told = profile.measured
    if told is None or not told.peak_bytes or profile.timing_only:
        return None
    left_out = sum(s.bytes for s in profile.storages if s.kind in told.excludes and s.resident_at_start)
    replayed = max(replay(profile).peak_bytes, 1)
    reserved = (told.reserved_bytes + left_out) / replayed if told.reserved_bytes else 0.0
    return (told.peak_bytes + left_out) / replayed, reserved


def peak_errors(profiles: Iterable[Profile]) -> dict[str, PeakErrors]:
    """By way of capturing, of the profiles that have a measured peak. A program counts once, however often it was
    captured: it is told by the sizes of its storages, since kernels may start in another order."""
    found: dict[str, dict[tuple[int, ...], list[tuple[float, float]]]] = {}
    for profile in profiles:
        if (factors := factor_of(profile)) is not None:
            program = tuple(sorted(storage.bytes for storage in profile.storages))
            found.setdefault(source_of(profile), {}).setdefault(program, []).append(factors)
    return {
        source: PeakErrors(
            factors=_sorted([median(f for f, _ in rows) for rows in programs.values()]),
            reserved=_sorted([median(r for _, r in rows) for rows in programs.values() if all(r for _, r in rows)]),
        )
        for source, programs in found.items()
    }


def _sorted(factors: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted(round(factor, 6) for factor in factors))
