"""`hyperopt.samples/1`: measured values of a baseline and a candidate, one list a run, and how the runs were taken.

    interleaved   base and candidate in one job, in turns (A B  B A  B A  A B ...); run i of one is the partner of run i
                  of the other, so what the machine did meanwhile happened to both
    separate      each run a job of its own, at another time, without a partner

A run's value is the median of its steps after `warmup_steps`: a wild step is one rank among the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hyperopt.documents import DocumentError, decode
from hyperopt.gate.clock import tick
from hyperopt.gate.ranks import MOST_VALUES

FAMILY, MAJOR = "hyperopt.samples", 1
MOST_BYTES = 64 << 20

MOST = 1e300
"""Of a reading: no figure of a run is larger, and ratios of larger ones could not be told."""

Design = Literal["interleaved", "separate"]
Better = Literal["lower", "higher"]
Steps = tuple[float, ...]
Percent = Annotated[float, Meta(ge=0, le=1e6)]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of each run of both sides, in `unit`; `better`: whether less is good (times) or more (tokens a second).

    `tolerance_percent`: how much worse this metric may become; None: as the policy says.
    """

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    unit: str = ""
    better: Better = "lower"
    tolerance_percent: Percent | None = None
    baseline: tuple[Steps, ...]
    candidate: tuple[Steps, ...]


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """`warmup_steps`: of each run, its first steps that do not count; `warmup_runs`: of each side, its first runs.

    `lacking`: names of what the baseline measured and not every run did, so that it cannot be judged; `added`: of what
    only the candidate did. `obstacles`: why the two sides must not be compared at all, as other machines.
    """

    format: str = f"{FAMILY}/{MAJOR}"
    design: Design
    warmup_steps: Annotated[int, Meta(ge=0)] = 1
    warmup_runs: Annotated[int, Meta(ge=0)] = 0
    metrics: tuple[Metric, ...]
    lacking: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()

    def values(self, metric: Metric) -> tuple[list[float], list[float]]:
        """One value a run that counts: (baseline, candidate), in the metric's unit."""
        sides = (metric.baseline, metric.candidate)
        before, after = ([median(run[self.warmup_steps :]) for run in side[self.warmup_runs :]] for side in sides)
        return before, after

    def unjudged(self) -> dict[str, str]:
        """What could not be judged, and why: a check of it is inconclusive at best."""
        why = "the baseline measured it, and not every run did: a metric that is gone is no pass"
        found = {name: f"{name} is not judged: {why}" for name in self.lacking}
        if self.obstacles:
            found["comparable runs"] = f"the runs are never compared: {'; '.join(self.obstacles)}"
        return found

    def tick(self, metric: Metric) -> float:
        """The step of which all readings are multiples, in the metric's unit; 0 where they are of none that matters."""
        before, after = (
            [value for run in side[self.warmup_runs :] for value in run[self.warmup_steps :]]
            for side in (metric.baseline, metric.candidate)
        )
        return tick(before, after)


def load(data: bytes) -> tuple[Samples, list[str]]:
    """Samples from document bytes, checked, and warnings. Raises `DocumentError`."""
    found, warnings = decode(data, Samples, FAMILY, MAJOR, MOST_BYTES)
    check(found)
    return found, warnings


def check(samples: Samples) -> None:
    """Raises `DocumentError` where a value is not above 0, or a side has nothing after the warm-up."""
    if not samples.metrics:
        raise DocumentError("$.metrics", "no metric", "give at least one")
    names = [metric.name for metric in samples.metrics]
    for i, metric in enumerate(samples.metrics):
        at = f"$.metrics[{i}]"
        if metric.name in names[:i]:
            raise DocumentError(f"{at}.name", f"{metric.name!r} is there twice", "give every metric a name of its own")
        _check_side(f"{at}.baseline", metric.baseline, samples)
        _check_side(f"{at}.candidate", metric.candidate, samples)
        runs = len(metric.baseline), len(metric.candidate)
        if samples.design == "interleaved" and runs[0] != runs[1]:
            problem = f"{runs[0]} runs of the baseline and {runs[1]} of the candidate are no pairs"
            raise DocumentError(at, problem, 'leave out what has no partner, or set "design" to "separate"')


def _check_side(at: str, runs: Sequence[Steps], samples: Samples) -> None:
    if not 0 < len(runs) - samples.warmup_runs <= MOST_VALUES:
        problem = f"{len(runs)} runs, of which {samples.warmup_runs} are warm-up"
        raise DocumentError(at, problem, f"give between 1 and {MOST_VALUES} more than the warm-up")
    for i, run in enumerate(runs):
        if len(run) <= samples.warmup_steps:
            problem = f"{len(run)} steps, of which {samples.warmup_steps} are warm-up"
            raise DocumentError(f"{at}[{i}]", problem, 'give more steps, or set "warmup_steps" to 0')
        for j, value in enumerate(run):
            if not 0 < value < MOST:
                problem = f"{value:g} is " + (f"beyond {MOST:g}" if value >= MOST else "not above 0")
                raise DocumentError(f"{at}[{i}][{j}]", problem, "leave the failed run and its partner out")
