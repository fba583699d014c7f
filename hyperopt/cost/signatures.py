"""Signatures of operators: whatever depends on type, shapes and element types alone, worked out once for each.

A profile's operators are sorted out in two steps. Equal ones are one signature; and signatures that differ in sizes
alone are of one *form*, whose work and numbers are reckoned as columns (`columns`)::

    operators    100,000      Add (4, 8) (4, 8)     Add (4, 8) (4, 8)     Add (2, 8) (2, 8)     MatMul ...
    signatures     2,940      Add (4, 8) (4, 8)                           Add (2, 8) (2, 8)     MatMul ...
    forms            300      Add (., .) (., .)                                                 MatMul ...

Operators whose work cannot be counted are left out, with how many and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from math import prod
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from hyperopt.cost import columns, shapes
from hyperopt.cost.columns import Column
from hyperopt.cost.formulas import element_type
from hyperopt.cost.work import Kind, Table, Uncounted, tensors_of
from hyperopt.profile import Operator

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FEW = 6
"""Signatures of a form below which they are worked out one by one: columns cost as much for one as for a hundred."""

NO_WORK = "none"
"""Family of the types that do nothing."""


class Groups(Sequence[str]):
    """The groups of signatures: the shapes alone, in no order. Worked out when asked for: predicting does not ask."""

    def __init__(self, every: Sequence[Operator]) -> None:
        self.every = every

    def __len__(self) -> int:
        return len(self.every)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Groups: ...
    def __getitem__(self, place: int | slice) -> str | Groups:
        if isinstance(place, slice):
            return Groups(self.every[place])
        o = self.every[place]
        return " ".join(sorted({str(list(shape)) for shape in o.shapes[: len(o.dtypes)] if prod(shape) > 1}))

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self.every)))


@dataclass(frozen=True)
class Signatures:
    """One entry for each signature. `names` is the canonical type, `keys` what tells two signatures apart; `groups` the
    shapes alone, in no order: all that works on the same shapes (a product and its gradients, a sum and a difference)
    is of one group, and held out together."""

    keys: tuple[str, ...]
    groups: Sequence[str]
    names: npt.NDArray[np.str_]
    families: npt.NDArray[np.str_]
    dtypes: npt.NDArray[np.str_]
    """Which element types are met in it, with spaces between them."""
    flops: F64
    read: F64
    written: F64
    numbers: F64
    """(signatures, len(shapes.NUMBERS))"""

    @property
    def bytes(self) -> F64:
        return self.read + self.written

    @cached_property
    def coded_names(self) -> tuple[list[str], I64]:
        return coded(self.names)

    @cached_property
    def coded_families(self) -> tuple[list[str], I64]:
        return coded(self.families)

    @cached_property
    def coded_dtypes(self) -> tuple[list[str], I64]:
        return coded(self.dtypes)

    def only(self, chosen: Mask) -> Signatures:
        """Those that are true in `chosen`."""
        return self if chosen.all() else self.at(np.flatnonzero(chosen))

    def at(self, places: npt.NDArray[np.int64]) -> Signatures:
        """Those at `places`, in that order; one may stand in several."""
        each, groups = places.tolist(), self.groups
        return Signatures(
            keys=tuple(self.keys[place] for place in each),
            groups=Groups([groups.every[place] for place in each])
            if isinstance(groups, Groups)
            else tuple(groups[place] for place in each),
            names=self.names[places],
            families=self.families[places],
            dtypes=self.dtypes[places],
            flops=self.flops[places],
            read=self.read[places],
            written=self.written[places],
            numbers=self.numbers[places],
        )


def coded(words: npt.NDArray[np.str_]) -> tuple[list[str], I64]:
    """The different words in order of first appearance, and which of them each is: `np.unique` sorts, and is slow."""
    places: dict[str, int] = {}
    of = np.array([places.setdefault(word, len(places)) for word in words.tolist()], np.int64)
    return list(places) or [""], of


class Signed(NamedTuple):
    """`of`: for each operator which of `signatures`; -1: its work is not counted, or it has none. `uncounted`: reason
    -> how many operators."""

    of: I64
    signatures: Signatures
    uncounted: Counter[str]


def signed(operators: Sequence[Operator], table: Table) -> Signed:
    """The signatures of the operators, in order of first appearance."""
    places: dict[tuple[object, ...], int] = {}
    ids = [places.setdefault((o.type or o.name, o.shapes, o.dtypes, o.inputs), len(places)) for o in operators]
    of = np.array(ids, np.int64)
    first = np.flatnonzero(np.diff(np.maximum.accumulate(of), prepend=-1)) if ids else of
    one_each = [operators[i] for i in first.tolist()]
    found = _Found(len(one_each))
    for form, members in _forms(one_each).items():
        own = [one_each[i] for i in members]
        rest = range(len(own)) if len(own) < FEW else _as_columns(form, own, np.array(members), table, found)
        for place in rest:
            _one_by_one(own[place], members[place], table, found)
    uncounted: Counter[str] = Counter()
    times = np.bincount(of, minlength=len(one_each))
    for place, why in sorted(found.reasons.items()):
        uncounted[why] += int(times[place])
    counted = found.kind >= 0
    new = np.where(counted, np.cumsum(counted) - 1, -1)
    return Signed(new[of], found.signatures(one_each, counted), uncounted)


_Form = tuple[str, tuple[str, ...], int | None, tuple[int, ...]]
"""What signatures share that differ in sizes alone: type (or name), element types, how many go in, numbers of axes."""


class _Found:
    """What is known so far of each signature; `kind`: place in `kinds`, -1: its work is not counted, or none."""

    def __init__(self, count: int) -> None:
        self.kinds: dict[tuple[str, str], int] = {}
        self.kind = np.full(count, -1, np.int64)
        self.keys = [""] * count
        self.work = np.zeros((3, count))
        self.numbers = np.zeros((count, len(shapes.NUMBERS)), order="F")
        self.reasons: dict[int, str] = {}

    def place_of(self, kind: Kind) -> int:
        if kind.family == NO_WORK:
            return -1
        return self.kinds.setdefault((kind.name, kind.family), len(self.kinds))

    def signatures(self, operators: Sequence[Operator], counted: Mask) -> Signatures:
        keep = counted.tolist()
        kind = self.kind[counted]
        names, families = (np.array([pair[i] for pair in self.kinds] or [""], np.str_) for i in (0, 1))
        flops, read, written = self.work[:, counted]
        own = tuple(compress(operators, keep))
        every: dict[tuple[str, ...], int] = {}
        mix = np.array([every.setdefault(o.dtypes, len(every)) for o in own], np.int64)
        mixes = np.array([" ".join(sorted(set(map(element_type, dtypes)))) for dtypes in every] or [""], np.str_)
        return Signatures(
            keys=tuple(compress(self.keys, keep)),
            groups=Groups(own),
            names=names[kind],
            families=families[kind],
            dtypes=mixes[mix],
            flops=flops,
            read=read,
            written=written,
            numbers=self.numbers[counted],
        )


def _forms(operators: Sequence[Operator]) -> dict[_Form, list[int]]:
    forms: dict[_Form, list[int]] = {}
    for place, o in enumerate(operators):
        forms.setdefault((o.type or o.name, o.dtypes, o.inputs, tuple(map(len, o.shapes))), []).append(place)
    return forms


def _one_by_one(o: Operator, place: int, table: Table, found: _Found) -> None:
    try:
        kind, work = table.of(o)
        inputs, outputs = tensors_of(o)
        numbers = shapes.numbers_of(work, inputs, outputs)
    except Uncounted as why:
        found.reasons[place] = f"{o.type or o.name}: {why}"
        return
    found.kind[place] = found.place_of(kind)
    sides = " -> ".join(" ".join(f"{t.dtype}{list(t.shape)}" for t in side) for side in (inputs, outputs))
    found.keys[place] = f"{o.type or o.name} {sides}"
    found.work[:, place] = work
    found.numbers[place] = numbers


def _as_columns(form: _Form, own: Sequence[Operator], places: I64, table: Table, found: _Found) -> Iterable[int]:
    """Works out what it can of the members of one form; gives back which of them are left."""
    kind = table.kind(own[0].type, own[0].name)
    _, dtypes, inputs, ranks = form
    count = min(len(ranks), len(dtypes))
    if kind is None or inputs is None or not count:
        return range(len(own))
    try:
        sizes = np.fromiter(chain.from_iterable(chain.from_iterable(o.shapes for o in own)), np.int64)
        sizes = sizes.reshape(len(own), sum(ranks))
        ends = np.cumsum(ranks).tolist()
        cut = [sizes[:, end - rank : end] for rank, end in zip(ranks, ends, strict=True)][:count]
        fit = np.logical_and.reduce([columns.fitting(each) for each in cut])
        tensors = [Column.of(each[fit], dtype) for each, dtype in zip(cut, dtypes, strict=False)]
    except (Uncounted, OverflowError):
        return range(len(own))
    stacked = np.zeros(len(own), bool)
    if kind.name == "MatMul":
        stacked[fit] = columns.batched(tensors[:inputs], tensors[inputs:])
    done = np.zeros(len(own), bool)
    for mine, what in ((fit & ~stacked, kind), (fit & stacked, table.kinds["batchmatmul"])):
        if mine.any():
            done |= _columns_of(what, [c.only(mine[fit]) for c in tensors], inputs, mine, places, found)
    for place, text in zip(places.tolist(), _texts(form, count, sizes), strict=True):
        found.keys[place] = text
    return [place for place, is_done in enumerate(done.tolist()) if not is_done]


def _columns_of(kind: Kind, tensors: Sequence[Column], inputs: int, mine: Mask, places: I64, found: _Found) -> Mask:
    """Puts in the work and numbers of the members `mine`, whose tensors are given; true for those that it could."""
    done = np.zeros(len(mine), bool)
    try:
        works = columns.works(kind, tensors[:inputs], tensors[inputs:])
    except Uncounted:
        return done
    done[mine] = works.fits
    own = places[done]
    found.kind[own] = found.place_of(kind)
    numbers = columns.numbers_of(works, tensors[:inputs], tensors[inputs:])
    found.numbers[own] = numbers[works.fits]
    for row, column in enumerate((works.flops, works.read, works.written)):
        found.work[row, own] = column[works.fits]
    return done


def _texts(form: _Form, count: int, sizes: I64) -> list[str]:
    """The keys of all members."""
    word, dtypes, inputs, ranks = form
    sides = [
        f"{dtype.replace('%', '%%')}[{', '.join(['%d'] * rank)}]"
        for dtype, rank in zip(dtypes[:count], ranks, strict=False)
    ]
    text = f"{word.replace('%', '%%')} {' '.join(sides[: inputs or 0])} -> {' '.join(sides[inputs or 0 :])}"
    return [text % tuple(row) for row in sizes[:, : sum(ranks[:count])].tolist()]
