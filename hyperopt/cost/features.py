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
from math import log1p, prod

import numpy as np
import numpy.typing as npt

from hyperopt.cost.work import Kind, Table, Tensor, Uncounted, Work, tensors_of
from hyperopt.profile import IDLE, Operator, Profile

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

NUMBERS = (
    "flops", "read", "written", "intensity", "elements_out", "elements_in", "inputs", "rank", "first", "last_in",
    "last_out", "rows", "columns", "inner", "matrices", "left_turned", "right_turned", "spread_last", "spread_first",
    "spread_one", "kept_last", "item", "blocked", "aligned", "kept_end", "kept_start", "smallest", "repeat", "rank_out",
)  # fmt: skip
"""Columns of `Signatures.numbers`; sizes as natural logarithms of 1 + size. `blocked`: Ascend's layouts of 16 x 16
blocks, which shapes show; `spread_*`: an input is repeated along the last or the first axes, or is a single number;
`kept_last`: the last axis stays last (a transpose that moves it costs more); `aligned`: the last axis by 16 and 8;
`kept_end`, `kept_start`: product of the last and of the first axes that come out as they went in (what is copied,
reduced or transposed in one piece); `smallest`: of the inputs that are no single number; `repeat`: how often the
smallest input's numbers are used one after the other."""

CONTEXT = ("concurrency", "backward")
"""Columns beside a signature's own: operators of other streams that run meanwhile (their share of its duration), and
whether it is of the backward."""


@dataclass(frozen=True)
class Signatures:
    """One entry for each signature. `names` is the canonical type, `keys` what tells two signatures apart; `groups` the
    shapes alone, in no order: all that works on the same shapes (a product and its gradients, a sum and a difference)
    is of one group, and held out together."""

    keys: tuple[str, ...]
    groups: tuple[str, ...]
    names: npt.NDArray[np.str_]
    families: npt.NDArray[np.str_]
    flops: F64
    read: F64
    written: F64
    numbers: F64
    """(signatures, len(NUMBERS))"""

    @property
    def bytes(self) -> F64:
        return self.read + self.written

    def only(self, chosen: npt.NDArray[np.bool_]) -> Signatures:
        """Those that are true in `chosen`."""
        return Signatures(
            keys=tuple(key for key, keep in zip(self.keys, chosen, strict=True) if keep),
            groups=tuple(group for group, keep in zip(self.groups, chosen, strict=True) if keep),
            names=self.names[chosen],
            families=self.families[chosen],
            flops=self.flops[chosen],
            read=self.read[chosen],
            written=self.written[chosen],
            numbers=self.numbers[chosen],
        )


@dataclass(frozen=True)
class Rows:
    """Operators whose work is counted. `place`: where in the profile; `signature`: which of `signatures`; `us`: as
    measured; `context`: (rows, len(CONTEXT)); `uncounted`: reason -> how many operators were left out for it."""

    device: str
    signatures: Signatures
    place: I64
    signature: I64
    us: F64
    context: F64
    uncounted: Counter[str]

    @property
    def names(self) -> npt.NDArray[np.str_]:
        return self.signatures.names[self.signature]

    @property
    def families(self) -> npt.NDArray[np.str_]:
        return self.signatures.families[self.signature]

    def only(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        """The rows that are true in `chosen`."""
        return replace(
            self,
            place=self.place[chosen],
            signature=self.signature[chosen],
            us=self.us[chosen],
            context=self.context[chosen],
        )


def device_of(profile: Profile) -> str:
    """What times are only comparable within: device, framework and its version."""
    run = profile.run
    return " ".join(part for part in (profile.device.name, run.framework, run.framework_version) if part)


def rows_of(profile: Profile, table: Table, device: str | None = None) -> Rows:
    """All operators of a profile that take time of their own: idle time is none, and what has no work neither."""
    book = _Book(table)
    place, signature = [], []
    for number, operator in enumerate(profile.operators):
        if operator.type != IDLE and (found := book.of(operator)) >= 0:
            place.append(number)
            signature.append(found)
    places = np.array(place, np.int64)
    every = profile.operators
    us = np.array([every[i].duration_us for i in place], np.float64)
    backward = np.array([every[i].phase == "backward" for i in place], np.float64)
    context = np.column_stack([concurrency(every)[places], backward]) if place else np.zeros((0, len(CONTEXT)))
    return Rows(
        device=device_of(profile) if device is None else device,
        signatures=book.signatures(),
        place=places,
        signature=np.array(signature, np.int64),
        us=us,
        context=context,
        uncounted=book.uncounted,
    )


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
    )


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


class _Book:
    """Signatures met so far."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.places: dict[tuple[object, ...], int] = {}
        self.found: list[tuple[str, str, Kind, Work, list[float]]] = []
        self.reasons: dict[tuple[object, ...], str] = {}
        self.uncounted: Counter[str] = Counter()

    def of(self, o: Operator) -> int:
        """Place of the operator's signature; -1 where its work is not counted, or none."""
        key = (o.type or o.name, o.shapes, o.dtypes, o.inputs)
        if (place := self.places.get(key)) is None:
            try:
                kind, work = self.table.of(o)
            except Uncounted as why:
                self.reasons[key] = f"{o.type or o.name}: {why}"
                place = -1
            else:
                place = -1 if kind.family == "none" else self._new(o, kind, work)
            self.places[key] = place
        if place < 0 and key in self.reasons:
            self.uncounted[self.reasons[key]] += 1
        return place

    def _new(self, o: Operator, kind: Kind, work: Work) -> int:
        inputs, outputs = tensors_of(o)
        sides = " -> ".join(" ".join(f"{t.dtype}{list(t.shape)}" for t in side) for side in (inputs, outputs))
        group = " ".join(sorted({str(list(t.shape)) for t in (*inputs, *outputs) if t.elements > 1}))
        self.found.append((f"{o.type or o.name} {sides}", group, kind, work, _numbers(work, inputs, outputs)))
        return len(self.found) - 1

    def signatures(self) -> Signatures:
        return Signatures(
            keys=tuple(key for key, _, _, _, _ in self.found),
            groups=tuple(group for _, group, _, _, _ in self.found),
            names=np.array([kind.name for _, _, kind, _, _ in self.found], np.str_),
            families=np.array([kind.family for _, _, kind, _, _ in self.found], np.str_),
            flops=np.array([work.flops for _, _, _, work, _ in self.found], np.float64),
            read=np.array([work.read for _, _, _, work, _ in self.found], np.float64),
            written=np.array([work.written for _, _, _, work, _ in self.found], np.float64),
            numbers=np.array([n for *_, n in self.found], np.float64).reshape(len(self.found), len(NUMBERS)),
        )


NONE = Tensor((), "float32")


def _numbers(work: Work, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[float]:
    """One row of `NUMBERS`."""
    large = max((*inputs, *outputs), key=lambda t: t.elements, default=NONE)
    out = max(outputs, key=lambda t: t.elements, default=large)
    first = max(inputs, key=lambda t: t.elements, default=large)
    rows, columns, inner, matrices, left, right = _matrices(inputs, out)
    last = large.shape[-1] if large.shape else 1
    return [
        log1p(work.flops), log1p(work.read), log1p(work.written), log1p(work.flops) - log1p(work.bytes),
        log1p(out.elements), log1p(first.elements), float(len(inputs)), float(len(large.shape)),
        log1p(large.shape[0] if large.shape else 1), log1p(first.shape[-1] if first.shape else 1),
        log1p(out.shape[-1] if out.shape else 1), rows, columns, inner, matrices, left, right,
        *_spread(inputs, large),
        float(bool(first.shape and out.shape) and first.shape[-1] == out.shape[-1]),
        float(large.bytes // max(large.elements, 1)),
        float(len(first.shape) >= 4 and first.shape[-2:] == (16, 16)),
        float((last % 16 == 0) + (last % 8 == 0)),
        log1p(_kept(first.shape[::-1], out.shape[::-1])), log1p(_kept(first.shape, out.shape)),
        *_repeated(inputs, large), float(len(out.shape)),
    ]  # fmt: skip


def _kept(went_in: tuple[int, ...], came_out: tuple[int, ...]) -> int:
    """Product of the first axes that are the same."""
    size = 1
    for a, b in zip(went_in, came_out, strict=False):
        if a != b:
            break
        size *= a
    return size


def _repeated(inputs: Sequence[Tensor], large: Tensor) -> tuple[float, float]:
    """Logarithms of the smallest input's elements, and of the product of the last axes that it is repeated along."""
    small = min((t for t in inputs if t.elements > 1), key=lambda t: t.elements, default=large)
    padded = (1,) * (len(large.shape) - len(small.shape)) + small.shape
    repeat = 1
    for a, b in zip(padded[::-1], large.shape[::-1], strict=False):
        if a != 1:
            break
        repeat *= b
    return log1p(small.elements), log1p(repeat)


def _matrices(inputs: Sequence[Tensor], out: Tensor) -> tuple[float, float, float, float, float, float]:
    """Logarithms of rows, columns, inner length and number of a product's matrices, and whether they are turned. For
    other operators the last two axes of what comes out, and the number of such."""
    if len(out.shape) < 2:
        return log1p(1), log1p(out.elements), 0.0, log1p(1), 0.0, 0.0
    rows, columns = out.shape[-2:]
    number = prod(out.shape[:-2])
    if len(inputs) < 2 or min(len(t.shape) for t in inputs[:2]) < 2:
        return log1p(rows), log1p(columns), 0.0, log1p(number), 0.0, 0.0
    a, b = inputs[0].shape[-2:], inputs[1].shape[-2:]
    inner = prod(a) / max(rows, 1)
    return (
        log1p(rows), log1p(columns), log1p(inner), log1p(number), float(a[0] != rows and a[1] == rows),
        float(b[1] != columns and b[0] == columns),
    )  # fmt: skip


def _spread(inputs: Sequence[Tensor], large: Tensor) -> tuple[float, float, float]:
    """Whether an input is repeated along the last axis, along the first ones, or is a single number."""
    last = first = one = 0.0
    for tensor in inputs:
        if tensor.elements == 1:
            one = 1.0
        elif tensor.elements < large.elements and large.shape:
            padded = (1,) * (len(large.shape) - len(tensor.shape)) + tensor.shape
            last = max(last, float(padded[-1] == 1 < large.shape[-1]))
            first = max(first, float(padded[0] == 1 < large.shape[0]))
    return last, first, one


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
