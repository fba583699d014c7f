"""What no stored model may say: times that run backwards, rates of nothing, parts that do not go together. (JSON has no
numbers that are not finite, and reading refuses what would become one.)"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from hyperopt.cost.features import CONTEXT, NUMBERS
from hyperopt.cost.process import EFFECTS, LENGTHS, REACH, Process
from hyperopt.cost.ranges import Ranges
from hyperopt.cost.repeats import Repeats
from hyperopt.cost.residual import GROUPS, MEMORY, column_names
from hyperopt.cost.trees import Forest, TreesError
from hyperopt.documents import DocumentError

if TYPE_CHECKING:
    from hyperopt.cost.model import CostModel

POSITIVE, NOT_NEGATIVE = "above 0", "0 or more"
REMEDY = "fit the model again: hyperopt cost fit"

LEARNED, ROOFLINE = "learned", "roofline"
"""What may predict a family."""

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
        for name in {*errors.by_class, *errors.counts}:
            known = errors.by_class.get(name, ())
            if (np.diff(known) < 0).any():
                raise DocumentError(f"$.{field}.by_class.{name}", "errors are not in order", REMEDY)
            if errors.counts.get(name, 0) > 0 and not known:
                raise DocumentError(f"$.{field}.by_class.{name}", "no errors of the groups counted", REMEDY)
    for group, learned in model.learned.items():
        try:
            Forest(learned.trees)
        except (TreesError, IndexError) as error:
            raise DocumentError(f"$.learned.{group}.trees", str(error), REMEDY) from error
        expected = len(column_names(learned))
        if learned.trees.features != expected:
            problem = f"{learned.trees.features} where the types in `order` make {expected}"
            raise DocumentError(f"$.learned.{group}.trees.features", problem, REMEDY)
    for field, problem in _apart(model):
        raise DocumentError(field, problem, REMEDY)
    return model


def _apart(model: CostModel) -> Iterator[tuple[str, str]]:
    """Field and problem of what is not of the form that it must have, or does not go together."""
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", model.data_digest):
        yield "$.data_digest", f"{model.data_digest!r:.80} is no sha256"
    for family, scores in model.scores.items():
        at = f"$.scores.{family}.used"
        if scores.used not in (LEARNED, ROOFLINE):
            yield at, f"{scores.used!r:.80} is neither {LEARNED} nor {ROOFLINE}"
        group = GROUPS.get(family, MEMORY)
        if scores.used == LEARNED and model.process is None and group not in model.learned:
            yield at, f"nothing is learned of it: `learned` has no {group}, and there is no `process`"
    for key, where in (model.seen_in or {}).items():
        if len(where) != len(CONTEXT):
            yield f"$.seen_in.{key}", f"{len(where)} numbers where {len(CONTEXT)} are ({', '.join(CONTEXT)})"
    yield from _ranges("$.ranges", model.ranges)
    for group, learned in model.learned.items():
        yield from _ranges(f"$.learned.{group}.ranges", learned.ranges)
    if model.process is not None:
        yield from _ranges("$.process.ranges", model.process.ranges)
        yield from _of_process(model.process)


def _ranges(at: str, ranges: Ranges) -> Iterator[tuple[str, str]]:
    for family, (low_flops, high_flops, low_bytes, high_bytes) in ranges.items():
        for what, low, high in (("FLOPs", low_flops, high_flops), ("bytes", low_bytes, high_bytes)):
            if low > high:
                yield f"{at}.{family}", f"{what} from {low:g} to {high:g} end before they begin"


def _of_process(process: Process) -> Iterator[tuple[str, str]]:
    count = len(process.weights)
    lengths = {
        "sizes": len(EFFECTS), "lengths": len(LENGTHS), "reach": len(REACH), "type_of": count, "family_of": count,
        "work": 2 * count, "shapes": len(NUMBERS) * count, "middle": len(NUMBERS), "width": len(NUMBERS),
    }  # fmt: skip
    for name, wanted in lengths.items():
        if len(found := getattr(process, name)) != wanted:
            yield f"$.process.{name}", f"{len(found)} numbers where {wanted} are"
    for name, places, words in (
        ("type_of", process.type_of, process.types), ("family_of", process.family_of, process.families)
    ):  # fmt: skip
        if any(not 0 <= place < len(words) for place in places):
            yield f"$.process.{name}", f"a place outside the {len(words)} that there are"
    for name in ("width", "lengths"):
        if any(value <= 0 for value in getattr(process, name)):
            yield f"$.process.{name}", "a number that is not above 0"


def _figures(model: CostModel) -> Iterator[Figure]:
    rooflines = {f"families.{name}": roofline for name, roofline in model.families.items()}
    for at, roofline in [*rooflines.items(), ("shared", model.shared)]:
        yield f"$.{at}.latency_us", roofline.latency_us, NOT_NEGATIVE
        yield f"$.{at}.flops_per_us", roofline.flops_per_us, POSITIVE
        yield f"$.{at}.bytes_per_us", roofline.bytes_per_us, POSITIVE
    yield "$.signatures", model.signatures, NOT_NEGATIVE
    yield from _counts("$.counts", model.counts)
    yield from _counts("$.errors.counts", model.errors.counts)
    for key, where in (model.seen_in or {}).items():
        yield from ((f"$.seen_in.{key}[{i}]", value, NOT_NEGATIVE) for i, value in enumerate(where))
    for name, (us, times, spread) in model.seen.items():
        yield f"$.seen.{name}[0]", us, POSITIVE
        yield f"$.seen.{name}[1]", times, POSITIVE
        yield f"$.seen.{name}[2]", spread, NOT_NEGATIVE
    for way, link in model.links.items():
        yield f"$.links.{way}.latency_us", link.latency_us, NOT_NEGATIVE
        yield f"$.links.{way}.alone", link.alone, POSITIVE
        yield f"$.links.{way}.capacity", link.capacity, POSITIVE
        for i, near in enumerate(link.nearer):
            yield f"$.links.{way}.nearer[{i}].most_bytes", near.most_bytes, POSITIVE
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


def _counts(at: str, counts: Mapping[str, int]) -> Iterator[Figure]:
    return ((f"{at}.{name}", count, NOT_NEGATIVE) for name, count in counts.items())


def _of_repeats(repeats: Repeats) -> Iterator[Figure]:
    yield "$.repeats.relative", repeats.relative, NOT_NEGATIVE
    yield "$.repeats.short_us", repeats.short_us, NOT_NEGATIVE
    yield "$.repeats.drift", repeats.drift, NOT_NEGATIVE
    yield "$.repeats.runs", repeats.runs, POSITIVE
    for name, errors in (("single", repeats.single), ("medians", repeats.medians)):
        yield from _counts(f"$.repeats.{name}.counts", errors.counts)
