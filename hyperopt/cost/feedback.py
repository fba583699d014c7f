"""What a training that followed a plan says of the predictions that the plan was made from.

    execution log ──▶ copies back, one after the other on their link ──▶ training data of the link
    apply's figures ─▶ step and peak, predicted and measured         ──▶ how far plans are off, with intervals

A copy back is clean although the log has no moment at which it starts: the adapter does one at a time, first in, first
out (`profiler.apply.copies.Link`), so each starts when it is issued or when the one before has ended::

    issued       1   2                   3
    completed          1          2            3
    copy        |--1--||----2-----|     |--3---|
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from hyperopt.cost.features import Rows, rows_of
from hyperopt.cost.intervals import POOL, collect
from hyperopt.cost.work import Table
from hyperopt.profile import Operator, Profile

COPY_IN = "CopyIn"

SIZES = 3
"""Different sizes of copies below which nothing is said of a link: latency and bandwidth cannot be told apart."""


class Copy(NamedTuple):
    """One copy back from the host: microseconds from its start to its end."""

    bytes: int
    us: float


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan that was followed. `program`: digest of what it is a plan of; peaks are None where none was measured."""

    program: str
    predicted_us: float
    measured_us: float
    predicted_bytes: int | None = None
    measured_bytes: int | None = None


class Off(msgspec.Struct, frozen=True, kw_only=True):
    """How many times the predicted one the measured figure is: the median over `plans` of `programs` different
    programs, and the range that holds one with probability `level`. None, with `why`, where they are too few."""

    plans: int
    programs: int
    median: float | None
    level: float
    low: float | None
    high: float | None
    why: str


class PlansOff(msgspec.Struct, frozen=True, kw_only=True):
    step: Off
    peak: Off


def copies_of(execution: Mapping[str, Any]) -> list[Copy]:
    """The copies back of a `hyperopt.execution/1` log. What did not end, or took no time, is left out. Raises
    ValueError where it is no such log."""
    found: list[Copy] = []
    free = -math.inf
    try:
        ended = [c for c in execution["copies_back"] if c["issued_us"] is not None and c["completed_us"] is not None]
        for copy in sorted(ended, key=lambda c: float(c["completed_us"])):
            issued, completed, size = float(copy["issued_us"]), float(copy["completed_us"]), int(copy["bytes"])
            took = completed - max(issued, free)
            free = completed
            if took > 0 and size > 0:
                found.append(Copy(size, round(took, 3)))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("no hyperopt.execution/1 log: its copies_back need bytes, issued_us, completed_us") from error
    return found


def medians(copies: Iterable[Copy]) -> list[Copy]:
    """One for each size, in order of size: a plan copies the same few storages in every step."""
    times: dict[int, list[float]] = {}
    for size, us in copies:
        times.setdefault(size, []).append(us)
    return [Copy(size, statistics.median(times[size])) for size in sorted(times)]


def rows_of_copies(copies: Iterable[Copy], table: Table, device: str) -> Rows:
    """As rows of a profile: each alone on the link, beside whatever kernels ran."""
    operators = tuple(
        Operator(type=COPY_IN, duration_us=us, shapes=((size,), (size,)), dtypes=("uint8", "uint8"), inputs=1)
        for size, us in copies
    )
    return rows_of(Profile(operators=operators, storages=()), table, device)


def plans_off(plans: Sequence[MeasuredPlan], level: float = 0.9) -> PlansOff:
    """How far plans of one device were off. Plans of one program are alike, and count as one group."""
    steps = [(p.program, p.measured_us / p.predicted_us) for p in plans if p.predicted_us > 0 and p.measured_us > 0]
    peaks = [(p.program, p.measured_bytes / p.predicted_bytes) for p in plans if p.predicted_bytes and p.measured_bytes]
    return PlansOff(step=_off(steps, level), peak=_off(peaks, level))


def _off(found: Sequence[tuple[str, float]], level: float) -> Off:
    programs = np.array([program for program, _ in found], np.str_)
    logs = np.log(np.array([factor for _, factor in found], np.float64))
    errors = collect(logs, np.array([], np.str_), programs)
    count = errors.counts[POOL]
    below, above = (errors.quantile(POOL, q) for q in ((1 - level) / 2, (1 + level) / 2))
    needed = math.ceil(2 / (1 - level) - 1 - 1e-9)
    why = "" if below is not None else f"{count} programs are too few for a {level:.0%} interval: {needed} are needed"
    return Off(
        plans=len(found),
        programs=count,
        median=round(float(np.exp(np.median(logs))), 5) if found else None,
        level=level,
        low=None if below is None else round(float(np.exp(below)), 5),
        high=None if above is None else round(float(np.exp(above)), 5),
        why=why,
    )
