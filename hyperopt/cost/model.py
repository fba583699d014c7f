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

import msgspec
import numpy as np
import numpy.typing as npt

from hyperopt.cost.analytic import Link, Roofline, Rooflines, fit_link, fit_rooflines
from hyperopt.cost.features import F64, I64, Rows, Samples, Signatures, samples_of
from hyperopt.cost.folds import folds
from hyperopt.cost.intervals import POOL, Errors, collect
from hyperopt.cost.messages import Messages
from hyperopt.cost.peaks import PeakErrors
from hyperopt.cost.residual import FEWEST, Learned, group_of, importances, learn
from hyperopt.documents import decode, sha256

FAMILY, MAJOR = "hyperopt.cost", 1

LINK = "link"
SEEN, LEARNED, ROOFLINE, SHARED = "seen", "learned", "roofline", "shared"
SOURCES = (SEEN, LEARNED, ROOFLINE, SHARED)

SURE = 2.0
"""Standard errors by which a correction must be better on held-out groups to be used."""

DRIFT = 0.05
"""Between two runs of one kernel on one device, whatever its repetitions within a run say (logarithm)."""


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
    scores: Mapping[str, FamilyScores]
    errors: Errors
    seen_errors: Errors
    seen: Mapping[str, tuple[float, int, float]]
    """Signature -> median us, how often measured, spread (`Samples`)."""
    links: Mapping[str, Link]
    messages: Mapping[str, Messages] = {}
    """Between devices, by kind of link: what collectives are priced by."""
    peaks: Mapping[str, PeakErrors] = {}
    """By way of capturing: how far replayed peaks of memory were off."""
    notes: tuple[str, ...] = ()

    def predict(self, signatures: Signatures, context: F64, level: float = 0.9) -> Predictions:
        """Of every signature, in the context beside it (`features.CONTEXT`). The interval holds a measured duration
        with probability `level`, where there was enough to say so; else it is not a number."""
        base = Rooflines(self.families, self.shared, self.counts).us(signatures)
        source = np.where(np.isin(signatures.families, list(self.families)), ROOFLINE, SHARED).astype("<U8")
        shift, away = np.zeros(len(base)), np.zeros(len(base))
        groups = group_of(signatures.families)
        used = [family for family, scores in self.scores.items() if scores.used == LEARNED]
        for group, learned in self.learned.items():
            mine = (groups == group) & np.isin(signatures.families, used)
            if mine.any():
                shift[mine], away[mine] = learned.correction(signatures.only(mine), context[mine], base[mine])
                source[mine] = np.where(away[mine] < 1, LEARNED, ROOFLINE)
        for way, link in self.links.items():
            mine = signatures.names == way
            base[mine] = link.us(signatures.written[mine], 1.0 + context[mine, 0])
            source[mine] = ROOFLINE
        us = base * np.exp(shift)
        low, high = _interval(self.errors, signatures.families, us, away, level)
        self._remember(signatures, us, low, high, source, level)
        return Predictions(us, low, high, source, away)

    def _remember(
        self, signatures: Signatures, us: F64, low: F64, high: F64, source: npt.NDArray[np.str_], level: float
    ) -> None:
        """Puts in what was measured of signatures that are known, in place."""
        below, above = (self.seen_errors.quantile(POOL, q) for q in ((1 - level) / 2, (1 + level) / 2))
        off = {str(f): self.errors.quantile(str(f), 0.75) for f in np.unique(signatures.families)}
        for i, key in enumerate(signatures.keys):
            if (known := self.seen.get(key)) is None:
                continue
            measured, times, spread = known
            ours = off[str(signatures.families[i])]
            doubt = 0.3 if ours is None else max(abs(ours), 1e-3)
            weight = doubt**2 / (doubt**2 + DRIFT**2 + spread**2 / times)
            us[i] = measured**weight * us[i] ** (1 - weight)
            source[i] = SEEN
            if below is not None and above is not None:
                low[i], high[i] = us[i] * np.exp(min(below, 0.0)), us[i] * np.exp(max(above, 0.0))

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


def _interval(errors: Errors, families: npt.NDArray[np.str_], us: F64, away: F64, level: float) -> tuple[F64, F64]:
    low, high = np.full(len(us), np.nan), np.full(len(us), np.nan)
    wider = 1.0 + np.minimum(away, 4.0)
    for family in np.unique(families):
        mine = families == family
        ends = [errors.quantile(str(family), q) for q in ((1 - level) / 2, (1 + level) / 2)]
        if ends[0] is not None and ends[1] is not None:
            low[mine] = us[mine] * np.exp(ends[0] * wider[mine])
            high[mine] = us[mine] * np.exp(ends[1] * wider[mine])
    return low, high


def fit(rows: Rows, seed: int = 0, fold_count: int = 5) -> CostModel:
    """From rows of profiles of one device. Raises ValueError without any duration."""
    samples = samples_of(rows.only(rows.families != LINK))
    links, notes = _links(rows)
    if not len(samples.us):
        raise ValueError("no operator with a duration and counted work to learn from")
    if rows.uncounted:
        left = sum(rows.uncounted.values())
        notes.append(f"{left} operators are not learned from: {dict(rows.uncounted.most_common(8))}")
    held, scores = held_out(samples, seed, fold_count)
    rooflines = fit_rooflines(samples.signatures, samples.us)
    base = rooflines.us(samples.signatures)
    groups = group_of(samples.signatures.families)
    learned = {
        str(group): _learn(samples, base, groups == group, seed)
        for group in np.unique(groups)
        if any(
            scores[family].used == LEARNED
            for family in np.unique(samples.signatures.families[groups == group]).tolist()
        )
    }
    return CostModel(
        device=rows.device,
        data_digest=digest_of(samples),
        signatures=len(samples.us),
        families=rooflines.families,
        shared=rooflines.shared,
        counts=rooflines.counts,
        learned=learned,
        scores=scores,
        errors=collect(
            np.log(samples.us / held), samples.signatures.families, np.array(samples.signatures.groups, np.str_)
        ),
        seen_errors=_repeated(rows, samples),
        seen={
            key: (round(float(us), 4), int(times), round(float(spread), 5))
            for key, us, times, spread in zip(
                samples.signatures.keys, samples.us, samples.times, samples.spread, strict=True
            )
        },
        links=links,
        notes=tuple(notes),
    )


def held_out(samples: Samples, seed: int = 0, fold_count: int = 5) -> tuple[F64, dict[str, FamilyScores]]:
    """What a model of these samples says of each without having seen its group, and the scores that decided how."""
    both = _held_out(samples, seed, fold_count)
    scores = _scores(samples, both)
    uses = np.array([scores[str(family)].used == LEARNED for family in samples.signatures.families], bool)
    return np.where(uses, both[LEARNED], both[ROOFLINE]), scores


def digest_of(samples: Samples) -> str:
    pairs = sorted(zip(samples.signatures.keys, samples.us.tolist(), strict=True))
    return sha256(msgspec.json.encode(pairs))


def _learn(samples: Samples, base: F64, mine: npt.NDArray[np.bool_], seed: int) -> Learned:
    return learn(samples.signatures.only(mine), samples.context[mine], base[mine], samples.us[mine], seed)


def _held_out(samples: Samples, seed: int, count: int) -> dict[str, F64]:
    """What roofline and correction say of each sample without having seen its group. Where nothing could be learned
    the correction is not a number."""
    roofline, learned = np.full(len(samples.us), np.nan), np.full(len(samples.us), np.nan)
    for held in folds(samples.signatures.groups, count, seed):
        if held.all():
            break
        train, test = samples.only(~held), samples.only(held)
        fitted = fit_rooflines(train.signatures, train.us)
        base, ahead = fitted.us(train.signatures), fitted.us(test.signatures)
        roofline[held] = ahead
        groups, theirs = group_of(train.signatures.families), group_of(test.signatures.families)
        found = np.full(len(ahead), np.nan)
        for group in np.unique(theirs):
            mine, wanted = groups == group, theirs == group
            if mine.sum() < FEWEST:
                continue
            model = _learn(train, base, mine, seed)
            shift, _ = model.correction(test.signatures.only(wanted), test.context[wanted], ahead[wanted])
            found[wanted] = ahead[wanted] * np.exp(shift)
        learned[held] = found
    missing = np.isnan(roofline)  # one group alone: nothing is left to fit to
    if missing.any():
        roofline[missing] = fit_rooflines(samples.signatures, samples.us).us(samples.signatures)[missing]
    return {"roofline": roofline, "learned": learned}


def _scores(samples: Samples, held: Mapping[str, F64]) -> dict[str, FamilyScores]:
    found = {}
    for family in np.unique(samples.signatures.families).tolist():
        mine = samples.signatures.families == family
        names = np.array(samples.signatures.groups, np.str_)[mine]
        groups = len(np.unique(names))
        roofline = score(samples.us[mine], held["roofline"][mine], groups)
        if np.isnan(held["learned"][mine]).any():
            why = f"{int(mine.sum())} signatures of {groups} groups of shapes are too few to learn from"
            found[family] = FamilyScores(roofline=roofline, learned=None, used=ROOFLINE, why=why)
            continue
        learned = score(samples.us[mine], held["learned"][mine], groups)
        errors = [np.abs(np.log(held[name][mine] / samples.us[mine])) for name in (ROOFLINE, LEARNED)]
        gain, doubt = gain_of(errors[0] - errors[1], names)
        better = gain > SURE * doubt
        why = (
            f"the correction {'lowers' if gain > 0 else 'raises'} the error of the logarithm by {abs(gain):.3f} "
            f"(standard error {doubt:.3f}) over {groups} held-out groups"
        )
        used = LEARNED if better else ROOFLINE
        found[family] = FamilyScores(roofline=roofline, learned=learned, used=used, why=why)
    return found


def gain_of(lower: F64, groups: npt.NDArray[np.str_]) -> tuple[float, float]:
    """Mean over the groups of how much the error is lower, and the standard error of that: samples of one group are
    alike, and count once. One group says nothing: its standard error is infinite."""
    means = np.array([lower[groups == name].mean() for name in np.unique(groups)])
    doubt = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else np.inf
    return float(means.mean()), doubt


def score(measured: F64, predicted: F64, groups: int) -> Score:
    off = np.abs(predicted / measured - 1)
    return Score(
        signatures=len(off),
        groups=groups,
        median=round(float(np.median(off)), 5),
        p90=round(float(np.quantile(off, 0.9)), 5),
    )


def _repeated(rows: Rows, samples: Samples) -> Errors:
    """How far single executions are from the median of their signature, of signatures measured three times or more."""
    places = {key: i for i, key in enumerate(samples.signatures.keys)}
    of = np.array([places.get(key, -1) for key in rows.signatures.keys])[rows.signature]
    often = (of >= 0) & (samples.times[of] >= 3) & (rows.us > 0)
    errors = np.log(rows.us[often] / samples.us[of[often]])
    keys = np.array([str(i) for i in of[often]], np.str_)
    return collect(errors, np.array([], np.str_) if not len(errors) else np.full(len(errors), "all"), keys)


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


def load(data: bytes, limit: int = 1 << 28) -> CostModel:
    """A model from its document. Raises `DocumentError`; `TreesError` where its trees are none, when they are used."""
    return decode(data, CostModel, FAMILY, MAJOR, limit)[0]


def told(model: CostModel) -> list[str]:
    """The model's scores as lines."""
    lines = [f"{model.device}: {model.signatures} signatures"]
    by_use: Counter[str] = Counter(scores.used for scores in model.scores.values())
    lines.append(", ".join(f"{count} families by {used}" for used, count in by_use.most_common()))
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


__all__ = ["CostModel", "FamilyScores", "Predictions", "Score", "fit", "load", "score", "told"]
