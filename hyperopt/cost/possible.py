"""What no stored model may say: times that run backwards, rates of nothing. (JSON has no numbers that are not finite,
and reading refuses what would become one.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hyperopt.cost.repeats import Repeats
from hyperopt.cost.trees import Forest, TreesError
from hyperopt.documents import DocumentError

if TYPE_CHECKING:
    from hyperopt.cost.model import CostModel

POSITIVE, NOT_NEGATIVE = "above 0", "0 or more"
REMEDY = "fit the model again: hyperopt cost fit"

Figure = tuple[str, float, str]
"""Field, value, what it has to be."""


def checked(model: CostModel) -> CostModel:
    """The model as it is. Raises `DocumentError` with the first field that cannot be."""
    for field, value, bound in _figures(model):
        if value < 0 or (value == 0 and bound == POSITIVE):
            raise DocumentError(field, f"{value:g} is not {bound}", REMEDY)
    every = {"errors": model.errors}
    if model.repeats is not None:
        every |= {"repeats.single": model.repeats.single, "repeats.medians": model.repeats.medians}
    for field, errors in every.items():
        for name, known in errors.by_class.items():
            if (np.diff(known) < 0).any():
                raise DocumentError(f"$.{field}.by_class.{name}", "errors are not in order", REMEDY)
            if errors.counts.get(name, 0) > 0 and not known:
                raise DocumentError(f"$.{field}.by_class.{name}", "no errors of the groups counted", REMEDY)
    for group, learned in model.learned.items():
        try:
            Forest(learned.trees)
        except (TreesError, IndexError) as error:
            raise DocumentError(f"$.learned.{group}.trees", str(error), REMEDY) from error
    return model


def _figures(model: CostModel) -> Iterator[Figure]:
    rooflines = {f"families.{name}": roofline for name, roofline in model.families.items()}
    for at, roofline in [*rooflines.items(), ("shared", model.shared)]:
        yield f"$.{at}.latency_us", roofline.latency_us, NOT_NEGATIVE
        yield f"$.{at}.flops_per_us", roofline.flops_per_us, POSITIVE
        yield f"$.{at}.bytes_per_us", roofline.bytes_per_us, POSITIVE
    for name, (us, times, spread) in model.seen.items():
        yield f"$.seen.{name}[0]", us, POSITIVE
        yield f"$.seen.{name}[1]", times, POSITIVE
        yield f"$.seen.{name}[2]", spread, NOT_NEGATIVE
    for way, link in model.links.items():
        yield f"$.links.{way}.latency_us", link.latency_us, NOT_NEGATIVE
        yield f"$.links.{way}.alone", link.alone, POSITIVE
        yield f"$.links.{way}.capacity", link.capacity, POSITIVE
        for i, near in enumerate(link.nearer):
            yield f"$.links.{way}.nearer[{i}].alone", near.alone, POSITIVE
            yield f"$.links.{way}.nearer[{i}].capacity", near.capacity, POSITIVE
    for name, messages in model.messages.items():
        yield f"$.messages.{name}.latency_us", messages.latency_us, NOT_NEGATIVE
        yield f"$.messages.{name}.bytes_per_s", messages.bytes_per_s, POSITIVE
    for source, peaks in model.peaks.items():
        for i, factor in enumerate(peaks.factors):
            yield f"$.peaks.{source}.factors[{i}]", factor, POSITIVE
    if model.repeats is not None:
        yield from _of_repeats(model.repeats)


def _of_repeats(repeats: Repeats) -> Iterator[Figure]:
    yield "$.repeats.relative", repeats.relative, NOT_NEGATIVE
    yield "$.repeats.short_us", repeats.short_us, NOT_NEGATIVE
    yield "$.repeats.drift", repeats.drift, NOT_NEGATIVE
    yield "$.repeats.runs", repeats.runs, POSITIVE
