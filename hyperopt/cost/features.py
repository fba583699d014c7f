"""Operators of profiles as rows of numbers, for the models of this package.

Durations repeat: a step launches the same kernel on the same shapes hundreds of times. So whatever depends on type,
shapes and element types alone, the *signature*, is worked out once for each signature, and rows point to it::

    operators     0  1  2  3  4  5 ...        100,000 of them
    signature     0  1  0  2  1  0            a few thousand: counted work, `NUMBERS`
    row           us, phase, concurrency

Operators whose work cannot be counted are left out, with how many and why (`Rows.uncounted`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hyperopt.cost.shapes import NUMBERS
from hyperopt.cost.signatures import Signatures, signed
from hyperopt.cost.work import Table
from hyperopt.profile import IDLE, Operator, Profile

__all__ = [
    "CONTEXT", "F64", "I64", "NUMBERS", "Rows", "Samples", "Signatures", "concurrency", "device_of", "joined",
    "measured_rows", "rows_of", "samples_of",
]  # fmt: skip

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

CONTEXT = ("concurrency", "backward")
"""Columns beside a signature's own: operators of other streams that run meanwhile (their share of its duration), and
whether it is of the backward."""


@dataclass(frozen=True)
class Rows:
    """Operators whose work is counted. `place`: where in the profile; `signature`: which of `signatures`; `us`: as
    measured; `context`: (rows, len(CONTEXT)); `uncounted`: reason -> how many operators were left out for it; `run`:
    which profile, where there are several (None: one)."""

    device: str
    signatures: Signatures
    place: I64
    signature: I64
    us: F64
    context: F64
    uncounted: Counter[str]
    run: I64 | None = None

    @property
    def names(self) -> npt.NDArray[np.str_]:
        return self.signatures.names[self.signature]

    @property
    def families(self) -> npt.NDArray[np.str_]:
        return self.signatures.families[self.signature]

    def asked(self) -> tuple[Signatures, F64, I64]:
        """Each signature once for every context that it is in: signatures, contexts, and which of them each row is.
        Mostly a signature has one context, and then they are the signatures as they are."""
        context = np.zeros((len(self.signatures.keys), len(CONTEXT)))
        context[self.signature] = self.context
        if np.array_equal(context[self.signature], self.context):
            return self.signatures, context, self.signature
        order = np.lexsort((*self.context.T, self.signature))
        signature, context = self.signature[order], self.context[order]
        new = np.append(True, (np.diff(signature) != 0) | (np.diff(context, axis=0) != 0).any(axis=1))
        of = np.empty(len(order), np.int64)
        of[order] = np.cumsum(new) - 1
        return self.signatures.at(signature[new]), context[new], of

    def only(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """The rows that are true in `chosen`."""
        return replace(
            self,
            place=self.place[chosen],
            signature=self.signature[chosen],
            us=self.us[chosen],
            context=self.context[chosen],
            run=None if self.run is None else self.run[chosen],
        )


def device_of(profile: Profile) -> str:
    """What times are only comparable within: device, framework and its version."""
    run = profile.run
    return " ".join(part for part in (profile.device.name, run.framework, run.framework_version) if part)


def rows_of(profile: Profile, table: Table, device: str | None = None) -> Rows:
    """All operators of a profile that take time of their own: idle time is none, and what has no work neither."""
    every = profile.operators
    busy = [place for place, operator in enumerate(every) if operator.type != IDLE]
    own = [every[place] for place in busy]
    found = signed(own, table)
    counted = found.of >= 0
    us = np.array([o.duration_us for o in own], np.float64)
    backward = np.array([o.phase == "backward" for o in own], np.float64)
    places = np.array(busy, np.int64)
    context = np.column_stack([concurrency(every)[places], backward]).reshape(len(own), len(CONTEXT))
    return Rows(
        device=device_of(profile) if device is None else device,
        signatures=found.signatures,
        place=places[counted],
        signature=found.of[counted],
        us=us[counted],
        context=context[counted],
        uncounted=found.uncounted,
    )


NOT_MEASURED = "their run was not measured: made up, or predicted by a model (`run.measured` is false)"
PREDICTED = "predicted by a model (`predicted`)"


def measured_rows(profile: Profile, table: Table, device: str | None = None) -> Rows:
    """As `rows_of`, without what was not measured: it teaches nothing, and says nothing of whether a device has
    changed. How many operators are left out for that is in `uncounted`, under `NOT_MEASURED` and `PREDICTED`."""
    rows = rows_of(profile, table, device)
    if profile.run.measured:
        left = np.array([bool(profile.operators[place].predicted) for place in rows.place.tolist()], bool)
        why = PREDICTED
    else:
        left, why = np.ones(len(rows.us), bool), NOT_MEASURED
    if not left.any():
        return rows
    return replace(rows.only(~left), uncounted=rows.uncounted + Counter({why: int(left.sum())}))


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of several profiles of one device, with one list of signatures. `place` loses its meaning."""
    if not parts:
        raise ValueError("no rows to join")
    places: dict[str, int] = {}
    own: list[tuple[int, int]] = []
    moved = []
    for number, part in enumerate(parts):
        new = np.empty(len(part.signatures.keys), np.int64)
        for i, key in enumerate(part.signatures.keys):
            if key not in places:
                places[key] = len(places)
                own.append((number, i))
            new[i] = places[key]
        moved.append(new[part.signature])

    def column(name: str) -> npt.NDArray[np.generic]:
        return np.array([getattr(parts[part].signatures, name)[i] for part, i in own])

    numbers = [parts[part].signatures.numbers[i] for part, i in own]
    return Rows(
        device=parts[0].device,
        signatures=Signatures(
            keys=tuple(places),
            groups=tuple(parts[part].signatures.groups[i] for part, i in own),
            names=column("names").astype(np.str_),
            families=column("families").astype(np.str_),
            dtypes=column("dtypes").astype(np.str_),
            flops=column("flops").astype(np.float64),
            read=column("read").astype(np.float64),
            written=column("written").astype(np.float64),
            numbers=np.array(numbers, np.float64).reshape(len(own), len(NUMBERS)),
        ),
        place=np.concatenate([part.place for part in parts]),
        signature=np.concatenate(moved),
        us=np.concatenate([part.us for part in parts]),
        context=np.concatenate([part.context for part in parts]),
        uncounted=sum((part.uncounted for part in parts), Counter()),
        run=_runs(parts),
    )


def _runs(parts: Sequence[Rows]) -> I64:
    found, first = [], 0
    for part in parts:
        own = np.zeros(len(part.us), np.int64) if part.run is None else part.run
        found.append(first + own)
        first += int(own.max(initial=0)) + 1
    return np.concatenate(found)


def concurrency(operators: Sequence[Operator]) -> F64:
    """For each operator how many of other streams run meanwhile, on average over its duration; 0 where starts are not
    known (all 0) or there is one stream."""
    starts = np.array([o.start_us for o in operators], np.float64)
    found = np.zeros(len(operators))
    streams = {o.stream for o in operators}
    if len(streams) < 2 or not starts.any():
        return found
    lasts = np.array([o.duration_us for o in operators], np.float64)
    of = np.array([o.stream for o in operators])
    for stream in streams:
        theirs, others = of == stream, of != stream
        order = np.argsort(starts[theirs])
        begin, length = starts[theirs][order], lasts[theirs][order]
        busy = np.concatenate([[0.0], np.cumsum(length)])

        def until(when: F64, begin: F64 = begin, length: F64 = length, busy: F64 = busy) -> F64:
            """Busy time of the stream before `when`: operators of one stream do not overlap."""
            last = np.searchsorted(begin, when, "right") - 1
            into = np.clip(when - begin[np.maximum(last, 0)], 0.0, length[np.maximum(last, 0)])
            return np.where(last < 0, 0.0, busy[np.maximum(last, 0)] + into)

        first, end = starts[others], starts[others] + lasts[others]
        found[others] += (until(end) - until(first)) / np.maximum(end - first, 1e-9)
    return found


@dataclass(frozen=True)
class Samples:
    """One row for each signature that was measured, in the order of `signatures`: median duration in us, mean context,
    how often it was measured, and the spread of its durations (median distance of their logarithms to the median's)."""

    device: str
    signatures: Signatures
    us: F64
    context: F64
    times: I64
    spread: F64

    def only(self, chosen: npt.NDArray[np.bool_]) -> Samples:
        return Samples(
            self.device, self.signatures.only(chosen), self.us[chosen], self.context[chosen], self.times[chosen],
            self.spread[chosen],
        )  # fmt: skip


def samples_of(rows: Rows) -> Samples:
    """What was measured of each signature, together. Durations of 0 are none: of some sources they are not known."""
    rows = rows.only(rows.us > 0)
    order = np.argsort(rows.signature, kind="stable")
    found, starts, times = np.unique(rows.signature[order], return_index=True, return_counts=True)
    us = np.zeros(len(found))
    spread = np.zeros(len(found))
    context = np.zeros((len(found), len(CONTEXT)))
    for i, (start, count) in enumerate(zip(starts.tolist(), times.tolist(), strict=True)):
        mine = order[start : start + count]
        us[i] = np.median(rows.us[mine])
        spread[i] = np.median(np.abs(np.log(rows.us[mine] / us[i])))
        context[i] = rows.context[mine].mean(axis=0)
    chosen = np.zeros(len(rows.signatures.keys), bool)
    chosen[found] = True
    return Samples(rows.device, rows.signatures.only(chosen), us, context, times.astype(np.int64), spread)
