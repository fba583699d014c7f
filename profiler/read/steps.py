"""Which of the recorded steps stands for all: a complete one of ordinary length, with the median times of its like.

Warm-up makes the first steps long, the end of the recording cuts the last one short. Steps that launch the same
kernels in the same order are alike; the most frequent kind counts, and in it times are medians over the steps.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

import polars as pl

from profiler.read.events import Events, Step
from profiler.read.findings import Findings

WARM_UP = 1.5
"""A first step this much longer than the median of the others is warm-up."""


@dataclass(frozen=True)
class Chosen:
    """`kernels`: those of the chosen step, durations medians over the steps like it (at most up to the next kernel of
    their stream). `spread_us`: longest less
    shortest of them. `until`: where the next step begins, on the device's clock; None: nothing follows."""

    step: Step
    kernels: pl.DataFrame
    spread_us: float
    steps: int
    until: int | None


def choose(events: Events, findings: Findings) -> Chosen:
    """The step that stands for all."""
    kernels, steps = events.kernels, list(events.steps)
    if not steps:
        ends = kernels.select((pl.col("start") + pl.col("duration")).max()).item() if kernels.height else 0
        first = kernels["start"][0] if kernels.height else 0
        whole = Step(0, first, ends, (ends - first) / 1e3)
        return Chosen(whole, events.kernels, 0.0, 1, None)
    if len(steps) == 1:
        step = steps[0]
        return Chosen(step, _of(events.kernels, step), 0.0, 1, None)
    outside = events.kernels.filter(pl.col("step").is_null()).height
    if outside:
        findings.warn(f"{outside} kernels belong to no step and are left out")
    order = {step.number: tuple(_of(events.kernels, step)["name"]) for step in steps}
    alike = Counter(order.values())
    kind, count = max(alike.items(), key=lambda item: (item[1], len(item[0])))
    kept = [step for step in steps if order[step.number] == kind]
    left = [step.number for step in steps if order[step.number] != kind]
    if count == 1:
        # No two are alike: work depends on the data. The last but one is neither warm-up nor cut short.
        kept = [steps[-2]] if len(steps) > 2 else [max(steps, key=lambda step: len(order[step.number]))]
        left = [step.number for step in steps if step is not kept[0]]
    if left:
        findings.warn(f"steps {left} are left out: they launch other kernels (warm-up, cut short, or other work)")
    if len(kept) > 2 and kept[0].us > WARM_UP * statistics.median(step.us for step in kept[1:]):
        findings.warn(f"step {kept[0].number} is left out as warm-up: {kept[0].us / 1e3:.1f} ms")
        kept = kept[1:]
    middle = statistics.median(step.us for step in kept)
    chosen = min(kept, key=lambda step: (abs(step.us - middle), step.number))
    tables = [_of(events.kernels, step) for step in kept]
    medians = pl.DataFrame({str(i): table["duration"] for i, table in enumerate(tables)})
    durations = medians.select(pl.concat_list(pl.all()).list.median().round(0).cast(pl.Int64)).to_series()
    own = _of(events.kernels, chosen)
    room = pl.col("start").shift(-1).over("stream") - pl.col("start")
    fitting = pl.when(pl.col("duration") <= room).then(pl.min_horizontal("median", room)).otherwise(pl.col("median"))
    own = own.with_columns(durations.alias("median")).with_columns(fitting.alias("duration")).drop("median")
    following = [step.start for step in steps if step.start > chosen.start]
    length = Step(chosen.number, chosen.start, chosen.end, middle)
    spread = max(step.us for step in kept) - min(step.us for step in kept)
    return Chosen(length, own, spread, len(kept), min(following, default=None))


def _of(kernels: pl.DataFrame, step: Step) -> pl.DataFrame:
    """Kernels of a step; where kernels bear no numbers, those that start in its span."""
    if kernels["step"].null_count() == kernels.height:
        return kernels.filter((pl.col("start") >= step.start) & (pl.col("start") < step.end))
    return kernels.filter(pl.col("step") == step.number)
