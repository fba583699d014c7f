"""Which of the recorded steps stands for all: a complete one of ordinary length, with the median times of its like.

Warm-up makes the first steps long, the end of the recording cuts the last one short. Steps that launch the same
kernels in the same order are alike; the most frequent kind counts, and in it times are medians over the steps.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

import polars as pl

from profiler.read.findings import Findings
from profiler.read.timeline.events import Events, Step

WARM_UP = 1.5
"""A first step this much longer than the median of the others is warm-up."""


@dataclass(frozen=True)
class Chosen:
    """`kernels`: those of the chosen step, durations medians over the steps like it (at most up to the next kernel of
    their stream, or the step's end). `spread_us`: longest less
    shortest of them. `before`: the step before it; None: it is the first. `until`: where the next step begins, on the
    device's clock; None: nothing follows."""

    step: Step
    kernels: pl.DataFrame
    spread_us: float
    steps: int
    before: Step | None
    until: int | None


def choose(events: Events, findings: Findings) -> Chosen:
    """The step that stands for all."""
    kernels, steps = events.kernels, list(events.steps)
    if not steps:
        ends = kernels.select((pl.col("start") + pl.col("duration")).max()).item() if kernels.height else 0
        first = kernels["start"][0] if kernels.height else 0
        whole = Step(0, first, ends, (ends - first) / 1e3)
        return Chosen(whole, kernels, 0.0, 1, None, None)
    if len(steps) == 1:
        step = steps[0]
        return Chosen(step, _of(kernels, step), 0.0, 1, None, None)
    outside = kernels["step"].null_count() if kernels["step"].null_count() < kernels.height else 0
    if outside:
        findings.warn(f"{outside} kernels belong to no step and are left out")
    order = _orders(kernels, steps)
    alike = Counter(order.values())
    kind, count = max(alike.items(), key=lambda item: item[1])
    kept = [step for step in steps if order[step.number] == kind]
    if count == 1:
        # No two are alike: work depends on the data. The last but one is neither warm-up nor cut short.
        kept = [steps[-2] if len(steps) > 2 else max(steps, key=lambda step: step.us)]
    numbers = {step.number for step in kept}
    if left := [step.number for step in steps if step.number not in numbers]:
        shown = ", ".join(str(number) for number in left[:8]) + (", ..." if len(left) > 8 else "")
        findings.warn(
            f"{len(left)} of {len(steps)} steps are left out ({shown}): they launch other kernels (warm-up, cut short, "
            "or other work)"
        )
    if len(kept) > 2 and kept[0].us > WARM_UP * statistics.median(step.us for step in kept[1:]):
        findings.warn(f"step {kept[0].number} is left out as warm-up: {kept[0].us / 1e3:.1f} ms")
        kept = kept[1:]
    middle = statistics.median_low(step.us for step in kept)
    chosen = min(kept, key=lambda step: (abs(step.us - middle), step.number))
    own = _of(kernels, chosen)
    durations = _medians(kernels, kept, own.height)
    room = pl.col("start").shift(-1).over("stream").fill_null(chosen.end) - pl.col("start")
    fitting = pl.when(pl.col("duration") <= room).then(pl.min_horizontal("median", room)).otherwise("duration")
    own = own.with_columns(durations.alias("median")).with_columns(fitting.alias("duration")).drop("median")
    before = [step for step in steps if step.start < chosen.start]
    following = [step.start for step in steps if step.start > chosen.start]
    length = Step(chosen.number, chosen.start, chosen.end, middle)
    spread = max(step.us for step in kept) - min(step.us for step in kept)
    return Chosen(length, own, spread, len(kept), before[-1] if before else None, min(following, default=None))


def _of(kernels: pl.DataFrame, step: Step) -> pl.DataFrame:
    """Kernels of a step; where kernels bear no numbers, those that start in its span."""
    if kernels["step"].null_count() == kernels.height:
        return kernels.filter((pl.col("start") >= step.start) & (pl.col("start") < step.end))
    return kernels.filter(pl.col("step") == step.number)


def _numbered(kernels: pl.DataFrame, steps: list[Step]) -> pl.DataFrame:
    """Kernels of the steps, each with its step's number."""
    if kernels["step"].null_count() < kernels.height:
        return kernels.filter(pl.col("step").is_in([step.number for step in steps]))
    rows = [(step.number, step.start, step.end) for step in steps]
    spans = pl.DataFrame(rows, schema=["step", "start", "end"], orient="row")
    found = kernels.drop("step").join_asof(spans.sort("start"), on="start")
    return found.filter(pl.col("start") < pl.col("end"))


def _orders(kernels: pl.DataFrame, steps: list[Step]) -> dict[int, int]:
    """For each step a hash of the names of its kernels in their order."""
    names = _numbered(kernels, steps).group_by("step").agg(pl.col("name").str.join("\n"))
    found: dict[int, int] = dict(names.select("step", pl.col("name").hash()).iter_rows())
    return {step.number: found.get(step.number, 0) for step in steps}


def _medians(kernels: pl.DataFrame, kept: list[Step], count: int) -> pl.Series:
    """Median duration over the steps of the first kernel, the second, and so on."""
    numbered = _numbered(kernels, kept).select("duration", place=pl.int_range(pl.len()).over("step"))
    found = numbered.group_by("place").agg(pl.col("duration").median().round(0).cast(pl.Int64)).sort("place")
    return found["duration"].head(count)
