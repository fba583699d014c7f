"""A model of all that was measured of one device, from documents that come one at a time.

    profiles ──▶ rows of those operators that were measured ─┐
    plans that were followed ──▶ rows of their copies ───────┴▶ model, and whether it takes the place of the one in use

Documents are dropped as soon as they are rows: a project may hold more of them than memory.

Whether the device has changed, only what is new can say: among all that was ever measured it would be lost. If it has,
what is measured again takes the place of what was measured before of the same signatures, now and in later lessons::

                 superseded      known to the model in use      new
    as it was    gaps only       all                            all
    changed      gaps only       gaps only: superseded now      all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import structs

from hyperopt.cost.analytic import Link, fit_link
from hyperopt.cost.drift import Drift, drift_of
from hyperopt.cost.features import Rows, joined, measured_rows, samples_of
from hyperopt.cost.feedback import SIZES, Copy, rows_of_copies
from hyperopt.cost.folds import folds
from hyperopt.cost.gains import gain_of
from hyperopt.cost.model import LINK, SURE, CostModel, fit
from hyperopt.cost.training import FEWEST_GROUPS, FEWEST_SHAPES, TooFew, groups_of, lacks, train
from hyperopt.cost.work import Table
from hyperopt.profile import Profile

When = Literal["superseded", "known", "new"]
"""Of a profile, as the model in use goes."""


@dataclass(frozen=True)
class Learned:
    """A new model; `promoted`: it is to be used, for the reason `why`. `groups`: of shapes, in its data. `drift`: what
    is new and was measured before says of the model in use; `changed`: so much that what that knew is superseded."""

    model: CostModel
    promoted: bool
    why: str
    groups: int
    drift: Drift | None
    changed: bool = False


class Lesson:
    """What was measured of `device`, as `features.device_of` has it."""

    def __init__(self, device: str, table: Table) -> None:
        self.device, self.table = device, table
        self.parts: list[tuple[Rows, When]] = []

    def add(self, profile: Profile, when: When = "new") -> int:
        """Takes in a profile's measured operators, and returns how many: what a model has predicted teaches nothing."""
        rows = measured_rows(profile, self.table, self.device)
        self.parts.append((rows, when))
        return len(rows.us)

    def add_copies(self, copies: Sequence[Copy]) -> None:
        self.parts.append((rows_of_copies(copies, self.table, self.device), "known"))

    def learn(self, current: CostModel | None, seed: int = 0) -> Learned:
        """A model of all of it, held against `current`. Raises `TooFew`."""
        drift = None if current is None else self._drift(current)
        changed = drift is not None and drift.drifted
        rows = self._rows({"superseded", "known"} if changed else {"superseded"})
        if rows is None:
            raise TooFew(f"0 groups of shapes were measured on {self.device}, {FEWEST_SHAPES} are needed")
        groups = groups_of(self.device, samples_of(rows.only(rows.families != LINK)))
        if current is not None and drift is not None and changed:
            model = fit(rows, seed)
            missing = lacks(model, current)
            why = drift.told() + (f", but it covers less than the one in use: {missing}" if missing else "")
            return Learned(model, not missing, why, groups, drift, changed=True)
        found = train(rows, current, seed)
        if current is None or found.model.data_digest != current.data_digest:
            return Learned(found.model, found.promoted, found.why, groups, drift)
        links, why = better_links(rows, current.links, seed)
        return Learned(structs.replace(current, links=links), True, f"operators are as before; {why}", groups, drift)

    def _drift(self, current: CostModel) -> Drift | None:
        """What new measurements say of what the model in use has seen."""
        if not (new := [rows for rows, when in self.parts if when == "new"]):
            return None
        rows = joined(new)
        samples = samples_of(rows.only(rows.families != LINK))
        known = np.array([key in current.seen for key in samples.signatures.keys], bool)
        return drift_of(current, samples.only(known)) if known.any() else None

    def _rows(self, superseded: set[When]) -> Rows | None:
        """All of it, but of what is superseded only signatures that nothing else has."""
        if not self.parts:
            return None
        fresh = [rows for rows, when in self.parts if when not in superseded]
        keys = {key for rows in fresh for key in _measured(rows)}
        gaps = [_without(rows, keys) for rows, when in self.parts if when in superseded]
        return _without_poor_links(joined([*fresh, *gaps]))


def better_links(rows: Rows, current: Mapping[str, Link], seed: int = 0) -> tuple[dict[str, Link], str]:
    """Links fitted to all copies where they beat the ones in use on sizes held out; else those in use."""
    links, told = dict(current), []
    for way in sorted(set(rows.names[rows.families == LINK].tolist())):
        mine = rows.only((rows.names == way) & (rows.us > 0))
        size = mine.signatures.written[mine.signature]
        copiers, us = 1.0 + mine.context[:, 0], mine.us
        sizes = [str(int(one)) for one in size]
        fitted = fit_link(size, copiers, us)
        if way not in current:
            links[way] = fitted
            told.append(f"{way} is new")
            continue
        ours = np.full(len(us), np.nan)
        for held in folds(sizes, seed=seed):
            if held.all() or len(np.unique(size[~held])) < SIZES:
                continue
            ours[held] = fit_link(size[~held], copiers[~held], us[~held]).us(size[held], copiers[held])
        theirs = current[way].us(size, copiers)
        told_of = np.array(sizes, np.str_)
        known = ~np.isnan(ours)
        count = len(np.unique(told_of[known]))
        if count < FEWEST_GROUPS:
            told.append(f"{count} sizes of {way} are too few to say who is better")
            continue
        gain, doubt = gain_of(
            np.abs(np.log(theirs[known] / us[known])) - np.abs(np.log(ours[known] / us[known])), told_of[known]
        )
        if gain > SURE * doubt:
            links[way] = fitted
        told.append(
            f"over {count} sizes of {way} held out its error of the logarithm is {abs(gain):.3f} "
            f"{'lower' if gain > 0 else 'higher'} (standard error {doubt:.3f})"
        )
    return links, "; ".join(told) or "no copies were measured"


def _measured(rows: Rows) -> set[str]:
    """Signatures with a duration."""
    return {rows.signatures.keys[place] for place in np.unique(rows.signature[rows.us > 0]).tolist()}


def _without(rows: Rows, keys: set[str]) -> Rows:
    known = np.array([key in keys for key in rows.signatures.keys], bool)
    return rows.only(~known[rows.signature]) if len(known) else rows


def _without_poor_links(rows: Rows) -> Rows:
    """Copies of fewer than `SIZES` different sizes are left out: they say nothing of other sizes."""
    keep = np.ones(len(rows.us), bool)
    for way in set(rows.names[rows.families == LINK].tolist()):
        mine = rows.names == way
        if len(np.unique(rows.signature[mine])) < SIZES:
            keep &= ~mine
    return rows.only(keep)
