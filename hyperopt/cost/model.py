"""The cost model of one device: what was measured, the roofline, what it misses, and how far all that is off.

    signature measured before?  ──▶ its median, drawn towards the model where it was measured seldom or with spread
    family learned?             ──▶ roofline x learned correction, which fades outside the training data
    family fitted?              ──▶ roofline of the family
    otherwise                   ──▶ roofline of the whole device, and said so

The correction of a family is used only where it beat the roofline on groups of shapes that it had not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress

import msgspec
import numpy as np
import numpy.typing as npt

from hyperopt.cost import process as processes
from hyperopt.cost.analytic import Link, Roofline, Rooflines, fit_link, fit_rooflines
from hyperopt.cost.features import CONTEXT, F64, I64, Rows, Samples, Signatures, samples_of
from hyperopt.cost.folds import folds
from hyperopt.cost.gains import gain_of, pooled
from hyperopt.cost.intervals import Errors, collect
from hyperopt.cost.messages import Messages
from hyperopt.cost.peaks import PeakErrors
from hyperopt.cost.possible import checked
from hyperopt.cost.process import Process
from hyperopt.cost.ranges import ElementTypes, Ranges, away, element_types_of, never_met, ranges_of, strange_of
from hyperopt.cost.repeats import Repeats, repeats_of
from hyperopt.cost.residual import FEWEST, GROUPS, MEMORY, Learned, group_of, importances, learn
from hyperopt.documents import decode, sha256

FAMILY, MAJOR = "hyperopt.cost", 1

LINK = "link"
SEEN, LEARNED, ROOFLINE, SHARED = "seen", "learned", "roofline", "shared"
SOURCES = (SEEN, LEARNED, ROOFLINE, SHARED)

TREES, PROCESS = "trees", "process"
"""What learns the correction (`residual`, `process`)."""

SURE = 2.0
"""Standard errors by which a correction must be better on held-out groups to be used."""

DRIFT = 0.05
"""Between two runs of one kernel on one device (logarithm), where nothing was measured twice that could say."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """On groups held out: median and 90th percentile of |predicted / measured - 1|, of how many signatures."""

    signatures: int
    groups: int
    median: float
    p90: float


class FamilyScores(msgspec.Struct, frozen=True, kw_only=True):
    """`used`: whichever of the two predicts this family; `why`: in words."""

    roofline: Score
    learned: Score | None
    used: str
    why: str


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """`hyperopt.cost/1`: numbers only, so that reading one runs nothing. Times in us."""

    format: str = f"{FAMILY}/{MAJOR}"
    device: str
    data_digest: str
    """sha256 of the signatures and durations that it has learned from."""
    signatures: int
    families: Mapping[str, Roofline]
    shared: Roofline
    counts: Mapping[str, int]
    learned: Mapping[str, Learned]
    process: Process | None = None
    """In place of `learned`, where measurements are few."""
    scores: Mapping[str, FamilyScores]
    errors: Errors
    repeats: Repeats | None = None
    seen: Mapping[str, tuple[float, int, float]]
    """Signature -> median us, how often measured, spread (`Samples`)."""
    seen_in: Mapping[str, tuple[float, ...]] | None = None
    """Mean context (`features.CONTEXT`) of those that were not measured alone in the forward; None: not known."""
    ranges: Ranges = {}
    """Of all that it has learned from, whatever predicts the family."""
    element_types: ElementTypes = {}
    """The same; empty: not known."""
    links: Mapping[str, Link]
    messages: Mapping[str, Messages] = {}
    """Between devices, by kind of link: what collectives are priced by."""
    peaks: Mapping[str, PeakErrors] = {}
    """By way of capturing: how far replayed peaks of memory were off."""
    notes: tuple[str, ...] = ()

    def predict(
        self, signatures: Signatures, context: F64, level: float = 0.9, again: I64 | None = None
    ) -> Predictions:
        """Of every signature, in the context beside it (`features.CONTEXT`). The interval holds a measured duration
        with probability `level`, where there was enough to say so; else it is not a number. Of a signature that was
        measured it is for a single execution, or for the median of `again` of them (one number for each signature)."""
        base = Rooflines(self.families, self.shared, self.counts).us(signatures)
        families, family_of = signatures.coded_families
        fitted = np.array([family in self.families for family in families])[family_of]
        source = np.where(fitted, ROOFLINE, SHARED).astype("<U8")
        shift, far = np.zeros(len(base)), self._away(signatures)
        uses = np.array([self.uses(family) == LEARNED for family in families])[family_of]
        groups = np.array([GROUPS.get(family, MEMORY) for family in families])[family_of]
        for group, learned in self.learned.items():
            mine = (groups == group) & uses
            if mine.any():
                shift[mine], far[mine] = learned.correction(signatures.only(mine), context[mine], base[mine])
        if self.process is not None and uses.any():
            shift[uses], far[uses] = self.process.correction(signatures.only(uses))
        strange = strange_of(signatures, self.element_types)
        shift[strange], far[strange] = 0.0, np.maximum(far[strange], 1.0)
        source[uses & (far < 1)] = LEARNED
        for way, link in self.links.items():
            mine = signatures.names == way if way in signatures.coded_names[0] else np.zeros(len(base), bool)
            base[mine] = link.us(signatures.written[mine], 1.0 + context[mine, 0])
            source[mine], far[mine] = ROOFLINE, 0.0
        us = base * np.exp(shift)
        below, above = _factors(self.errors, families, family_of, far, level)
        seen = np.array([key in self.seen for key in signatures.keys], bool)
        if seen.any():
            remembered = np.array([self.seen[key] for key in compress(signatures.keys, seen.tolist())], np.float64)
            measured, times, spread = remembered.T
            off = np.array([self.errors.usual(family) for family in families], np.float64)[family_of[seen]]
            doubt = np.maximum(np.where(np.isnan(off), 0.3, np.abs(off)), 1e-3) ** 2
            apart = DRIFT**2 + spread**2 / times
            if self.repeats is not None:
                apart = self.repeats.variance(measured, times, spread)
            weight = doubt / (doubt + apart)
            carried = self._carried(signatures.only(seen), context[seen], base[seen])
            us[seen] = (measured * np.exp(carried)) ** weight * us[seen] ** (1 - weight)
            source[seen] = SEEN
            often = np.ones(len(times)) if again is None else again[seen].astype(np.float64)
            if self.repeats is not None:
                low, high, known = self.repeats.factors(measured, times, spread, often, level)
                below[seen] = np.where(known, low, np.minimum(below[seen], low))
                above[seen] = np.where(known, high, np.maximum(above[seen], high))
            # Wide enough to hold the measured time as it is, too: that it had to be carried is the trees' word alone.
            below[seen] -= np.maximum(carried, 0.0)
            above[seen] += np.maximum(-carried, 0.0)
        return Predictions(us, us * np.exp(below), us * np.exp(above), source, far)

    def strangers(self, rows: Rows) -> Counter[str]:
        """Of how many rows the element types were never measured in their family, in words: the roofline answers for
        them, by FLOPs and bytes, and their intervals are wider."""
        met = never_met(rows.signatures, self.element_types)
        return Counter({f"{family} of {what}": int(mine[rows.signature].sum()) for (family, what), mine in met.items()})

    def predict_rows(self, rows: Rows, level: float = 0.9) -> Predictions:
        """Of every row, in its own context."""
        signatures, context, of = rows.asked()
        return self.predict(signatures, context, level).of(of)

    def _away(self, signatures: Signatures) -> F64:
        """How far outside all that was learned from; 0 where a document does not say."""
        if not self.ranges:
            return np.zeros(len(signatures.keys))
        return away(signatures, self.ranges)

    def _carried(self, signatures: Signatures, context: F64, base: F64) -> F64:
        """Of signatures that were measured, the logarithm of what the trees say this context does by comparison with
        the one that they were measured in. What was measured in both phases is taken as a mean of the two."""
        found = np.zeros(len(base))
        if self.seen_in is None:
            return found
        none = (0.0,) * len(CONTEXT)
        before = np.array([self.seen_in.get(key, none) for key in signatures.keys], np.float64).reshape(-1, len(none))
        other = (np.abs(context - before) > 1e-6).any(axis=1)
        families, family_of = signatures.coded_families
        asked = other & np.array([self.uses(family) == LEARNED for family in families], bool)[family_of]
        groups = np.array([GROUPS.get(family, MEMORY) for family in families])[family_of]
        for group, learned in self.learned.items():
            mine = asked & (groups == group)
            if mine.any():
                now, then = learned.between(signatures.only(mine), [context[mine], before[mine]], base[mine])
                found[mine] = now - then
        return found

    def uses(self, family: str) -> str:
        """What predicts a family: `LEARNED` or `ROOFLINE`."""
        return self.scores[family].used if family in self.scores else ROOFLINE

    def quantile(self, signatures: Signatures, context: F64, level: float) -> F64:
        """The duration that is not exceeded with probability `level` (0.5 to 1); not a number where nothing says."""
        return self.predict(signatures, context, 2 * level - 1).high


@dataclass(frozen=True)
class Predictions:
    """Microseconds; `source`: `SEEN`, `LEARNED`, `ROOFLINE` or `SHARED`; `away`: how far outside the training data (0:
    within; 1 and more: the correction has no part any more)."""

    us: F64
    low: F64
    high: F64
    source: npt.NDArray[np.str_]
    away: F64

    def of(self, place: I64) -> Predictions:
        """Of rows, by their signature's place."""
        return Predictions(self.us[place], self.low[place], self.high[place], self.source[place], self.away[place])


def _factors(errors: Errors, families: list[str], of: I64, away: F64, level: float) -> tuple[F64, F64]:
    """Logarithms of the factors on the prediction that its interval lies between; not a number: none is known."""
    ends = np.array(
        [[errors.quantile(family, q) for q in ((1 - level) / 2, (1 + level) / 2)] for family in families], np.float64
    )
    ends[np.isnan(ends).any(axis=1)] = np.nan
    wider = 1.0 + np.minimum(away, 4.0)
    return ends[of, 0] * wider, ends[of, 1] * wider


def fit(rows: Rows, seed: int = 0, fold_count: int = 5) -> CostModel:
    """From rows of profiles of one device. Raises ValueError without any duration."""
    samples = samples_of(rows.only(rows.families != LINK))
    links, notes = _links(rows)
    if not len(samples.us):
        raise ValueError("no operator with a duration and counted work to learn from")
    if rows.uncounted:
        left = sum(rows.uncounted.values())
        notes.append(f"{left} operators are not learned from: {dict(rows.uncounted.most_common(8))}")
    held, scores, learner = _decided(samples, seed, fold_count)
    rooflines = fit_rooflines(samples.signatures, samples.us)
    base = rooflines.us(samples.signatures)
    known = ~np.isnan(held)
    used = any(score.used == LEARNED for score in scores.values())
    trees = _trees(samples, base, scores, seed) if used and learner == TREES else {}
    process = processes.learn(samples.signatures, base, samples.us) if used and learner == PROCESS else None
    return CostModel(
        device=rows.device,
        data_digest=digest_of(samples),
        signatures=len(samples.us),
        families=rooflines.families,
        ranges=ranges_of(samples.signatures, whole=True),
        element_types=element_types_of(samples.signatures),
        shared=rooflines.shared,
        counts=rooflines.counts,
        learned=trees,
        process=process,
        scores=scores,
        errors=collect(
            np.log(samples.us / held)[known],
            samples.signatures.families[known],
            np.array(samples.signatures.groups, np.str_)[known],
        ),
        repeats=repeats_of(rows, samples),
        seen={
            key: (round(float(us), 4), int(times), round(float(spread), 5))
            for key, us, times, spread in zip(
                samples.signatures.keys, samples.us, samples.times, samples.spread, strict=True
            )
        },
        seen_in={
            key: tuple(round(float(part), 6) for part in where)
            for key, where in zip(samples.signatures.keys, samples.context, strict=True)
            if where.any()
        },
        links=links,
        notes=tuple(notes),
    )


def held_out(samples: Samples, seed: int = 0, fold_count: int = 5) -> tuple[F64, dict[str, FamilyScores]]:
    """What a model of these samples says of each without having seen its group (not a number: there is one group
    alone), and the scores that decided how."""
    return _decided(samples, seed, fold_count)[:2]


def _decided(samples: Samples, seed: int, fold_count: int) -> tuple[F64, dict[str, FamilyScores], str]:
    """Also what learns: of trees and process the one whose error is lower on held-out groups, each group once."""
    every = _held_out(samples, seed, fold_count)
    groups = np.array(samples.signatures.groups, np.str_)
    error = {}
    for name in (TREES, PROCESS):
        if not np.isnan(every[name]).all():
            said = np.where(np.isnan(every[name]), every[ROOFLINE], every[name])
            error[name] = gain_of(np.abs(np.log(said / samples.us)), groups)[0]
    learner = min(error, key=lambda name: error[name]) if error else TREES
    both = {ROOFLINE: every[ROOFLINE], LEARNED: every[learner]}
    scores = _scores(samples, both, learner)
    using = {family for family, score in scores.items() if score.used == LEARNED}
    uses = np.array([str(family) in using for family in samples.signatures.families], bool)
    return np.where(uses, both[LEARNED], both[ROOFLINE]), scores, learner


def digest_of(samples: Samples) -> str:
    pairs = sorted(zip(samples.signatures.keys, samples.us.tolist(), strict=True))
    return sha256(msgspec.json.encode(pairs))


def _learn(samples: Samples, base: F64, mine: npt.NDArray[np.bool_], seed: int) -> Learned:
    return learn(samples.signatures.only(mine), samples.context[mine], base[mine], samples.us[mine], seed)


def _trees(samples: Samples, base: F64, scores: Mapping[str, FamilyScores], seed: int) -> dict[str, Learned]:
    """Of every group with a family that uses them."""
    groups = group_of(samples.signatures.families)
    using = {str(group_of(np.array([name]))[0]) for name, score in scores.items() if score.used == LEARNED}
    return {group: _learn(samples, base, groups == group, seed) for group in sorted(using)}


def _held_out(samples: Samples, seed: int, count: int) -> dict[str, F64]:
    """What roofline, trees and process say of each sample without having seen its group. Where nothing could be learned
    (of one group alone not even a roofline) that is not a number. Also of element types that are of that group alone,
    for which they are not asked in earnest: what is wrong there counts against them."""
    found = {name: np.full(len(samples.us), np.nan) for name in (ROOFLINE, TREES, PROCESS)}
    for held in folds(samples.signatures.groups, count, seed):
        if held.all():
            break
        train, test = samples.only(~held), samples.only(held)
        fitted = fit_rooflines(train.signatures, train.us)
        base, ahead = fitted.us(train.signatures), fitted.us(test.signatures)
        found[ROOFLINE][held] = ahead
        groups, theirs = group_of(train.signatures.families), group_of(test.signatures.families)
        trees = np.full(len(ahead), np.nan)
        for group in np.unique(theirs):
            mine, wanted = groups == group, theirs == group
            if mine.sum() < FEWEST:
                continue
            model = _learn(train, base, mine, seed)
            shift, _ = model.correction(test.signatures.only(wanted), test.context[wanted], ahead[wanted])
            trees[wanted] = ahead[wanted] * np.exp(shift)
        found[TREES][held] = trees
        if FEWEST <= len(base) <= processes.MOST:
            shift, _ = processes.learn(train.signatures, base, train.us).correction(test.signatures)
            found[PROCESS][held] = ahead * np.exp(shift)
    return found


def _scores(samples: Samples, held: Mapping[str, F64], learner: str) -> dict[str, FamilyScores]:
    """By family. Whether the correction is used goes by its gain on held-out groups, drawn towards that of all
    families as far as they gain alike: a family of five groups alone can say nothing (`pooled`)."""
    names = np.array(samples.signatures.groups, np.str_)
    families = np.unique(samples.signatures.families).tolist()
    of = {family: samples.signatures.families == family for family in families}
    errors = {name: np.abs(np.log(values / samples.us)) for name, values in held.items()}
    tried = [family for family in families if not np.isnan(held[LEARNED][of[family]]).any()]
    gains = [gain_of((errors[ROOFLINE] - errors[LEARNED])[of[family]], names[of[family]]) for family in tried]
    counts = [len(np.unique(names[of[family]])) for family in tried]
    sure = dict(zip(tried, pooled(gains, counts), strict=True))
    found = {}
    for family in families:
        mine = of[family]
        if np.isnan(held[ROOFLINE][mine]).any():
            continue
        groups = len(np.unique(names[mine]))
        roofline = score(samples.us[mine], held[ROOFLINE][mine], groups)
        if family not in sure:
            why = f"{int(mine.sum())} signatures of {groups} groups of shapes are too few to learn from"
            found[family] = FamilyScores(roofline=roofline, learned=None, used=ROOFLINE, why=why)
            continue
        gain, doubt = sure[family]
        own, its_doubt = gains[tried.index(family)]
        why = (
            f"the {learner} {'lower' if own > 0 else 'raise'} the error of the logarithm by {abs(own):.3f} "
            f"(standard error {its_doubt:.3f}) over {groups} held-out groups; with what other families say "
            f"{gain:+.3f} ({doubt:.3f})"
        )
        found[family] = FamilyScores(
            roofline=roofline,
            learned=score(samples.us[mine], held[LEARNED][mine], groups),
            used=LEARNED if gain > SURE * doubt else ROOFLINE,
            why=why,
        )
    return found


def score(measured: F64, predicted: F64, groups: int) -> Score:
    off = np.abs(predicted / measured - 1)
    return Score(
        signatures=len(off),
        groups=groups,
        median=round(float(np.median(off)), 5),
        p90=round(float(np.quantile(off, 0.9)), 5),
    )


def _links(rows: Rows) -> tuple[dict[str, Link], list[str]]:
    links, notes = {}, []
    for way in sorted(set(rows.names[rows.families == LINK].tolist())):
        mine = (rows.names == way) & (rows.us > 0)
        if mine.sum() < 3:
            notes.append(f"{int(mine.sum())} copies {way} are too few to fit a link to")
            continue
        size = rows.signatures.written[rows.signature[mine]]
        links[way] = fit_link(size, 1.0 + rows.context[mine, 0], rows.us[mine])
    return links, notes


def read(data: bytes, limit: int = 1 << 28) -> tuple[CostModel, list[str]]:
    """A model from its document, with a warning for every unknown field that was left out. Raises `DocumentError`,
    also of what no device can do, and of what does not go together (`possible`)."""
    model, warnings = decode(data, CostModel, FAMILY, MAJOR, limit)
    if not model.device:
        warnings.append("$.device is empty: the model is of profiles that name neither device nor framework")
    return checked(model), warnings


def load(data: bytes) -> CostModel:
    """As `read`, where nobody is there to be warned."""
    return read(data)[0]


def told(model: CostModel) -> list[str]:
    """The model's scores as lines."""
    lines = [f"{model.device}: {model.signatures} signatures"]
    by_use: Counter[str] = Counter(scores.used for scores in model.scores.values())
    by = ", ".join(f"{count} families by {used}" for used, count in by_use.most_common())
    lines.append(by or "no scores: all that was measured is on one group of shapes, so that nothing could be held out")
    for family, scores in sorted(model.scores.items()):
        ours = "-" if scores.learned is None else f"{scores.learned.median:.1%}"
        lines.append(
            f"  {family:13} {scores.roofline.signatures:5} signatures  roofline {scores.roofline.median:6.1%}  "
            f"learned {ours:>6}  uses {scores.used}: {scores.why}"
        )
    for group, learned in sorted(model.learned.items()):
        parts = ", ".join(f"{name} {share:.0%}" for name, share in importances(learned, 6))
        lines.append(f"  {group} goes by {parts}")
    return [*lines, *model.notes]


__all__ = ["CostModel", "FamilyScores", "Predictions", "Score", "fit", "load", "read", "score", "told"]
