"""A model of all that was measured of one device, from documents that come one at a time.

    profiles ──▶ rows of those operators that were measured ─┐
    plans that were followed ──▶ rows of their copies ───────┴▶ model, and whether it takes the place of the one in use

Documents are dropped as soon as they are rows: a project may hold more of them than memory.

Whether the device has changed, what is new says against the model in use (among all that was ever measured it would be
lost), and newer profiles against older ones (`hyperopt.cost.epochs`). If it has, what is measured again takes the place
of what was measured before of the same signatures, now and in later lessons::

                 superseded      known to the model in use      new
    as it was    gaps only       all                            all
    changed      gaps only       gaps only: superseded now      all, but what is older than the change: as the known

Of several epochs each fills the gaps of all newer ones, so that no signature is of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from msgspec import structs

from hyperopt.cost.analytic import Link, fit_link
from hyperopt.cost.drift import Drift, drift_of
from hyperopt.cost.epochs import Epochs, epochs
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

_AGE: Mapping[When, int] = {"new": 0, "known": 1, "superseded": 2}
"""By how many changes a profile is older than the device as it is now, where what is new says that it has changed."""


@dataclass(frozen=True)
class Learned:
    """A new model; `promoted`: it is to be used, for the reason `why`. `groups`: of shapes, in its data. `drift`: what
    is new and was measured before says of the model in use; `superseded`: places, among the profiles as they were
    added, of those that are from before the device has changed."""

    model: CostModel
    promoted: bool
    why: str
    groups: int
    drift: Drift | None
    superseded: tuple[int, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether what is new has left the intervals of the model in use."""
        return self.drift is not None and self.drift.drifted


class Lesson:
    """What was measured of `device`, as `features.device_of` has it: profiles, oldest first, then copies."""

    def __init__(self, device: str, table: Table) -> None:
        self.device, self.table = device, table
        self.parts: list[tuple[Rows, When]] = []
        self.copies: list[Rows] = []

    def add(self, profile: Profile, when: When = "new") -> int:
        """Takes in a profile's measured operators, and returns how many: what a model has predicted teaches nothing."""
        rows = measured_rows(profile, self.table, self.device)
        self.parts.append((rows, when))
        return len(rows.us)

    def add_copies(self, copies: Sequence[Copy]) -> None:
        self.copies.append(rows_of_copies(copies, self.table, self.device))

    def learn(self, current: CostModel | None, seed: int = 0) -> Learned:
        """A model of all of it, held against `current`. Raises `TooFew`."""
        repeats = None if current is None else current.repeats
        profiles = [rows for rows, _ in self.parts]
        now = epochs(profiles, repeats, [when == "superseded" for _, when in self.parts])
        drift = None if current is None else self._drift(current, now)
        changed = drift is not None and drift.drifted
        if changed:
            now = epochs(profiles, repeats, [_AGE[when] for _, when in self.parts])
        learned = self._learn(current, self._rows(now, changed), drift, seed)
        superseded = tuple(place for place, epoch in enumerate(now.of) if epoch)
        if not superseded:
            return learned
        note = (
            f"{len(superseded)} of {len(profiles)} profiles are from before the device has changed: only what nothing "
            "newer has is learned from them"
        )
        model = structs.replace(learned.model, notes=(*learned.model.notes, note))
        found = [one.told() for one in now.found if self.parts[one.place][1] != "superseded"]
        why = "; newer profiles say ".join([learned.why, *found])
        return replace(learned, model=model, why=why, superseded=superseded)

    def _learn(self, current: CostModel | None, rows: Rows | None, drift: Drift | None, seed: int) -> Learned:
        if rows is None:
            raise TooFew(f"0 groups of shapes were measured on {self.device}, {FEWEST_SHAPES} are needed")
        groups = groups_of(self.device, samples_of(rows.only(rows.families != LINK)))
        if current is not None and drift is not None and drift.drifted:
            model = fit(rows, seed)
            missing = lacks(model, current)
            why = drift.told() + (f", but it covers less than the one in use: {missing}" if missing else "")
            return Learned(model, not missing, why, groups, drift)
        found = train(rows, current, seed)
        if current is None or found.model.data_digest != current.data_digest:
            return Learned(found.model, found.promoted, found.why, groups, drift)
        links, why = better_links(rows, current.links, seed)
        return Learned(structs.replace(current, links=links), True, f"operators are as before; {why}", groups, drift)

    def _drift(self, current: CostModel, now: Epochs) -> Drift | None:
        """What new measurements of the device as it is now say of what the model in use has seen."""
        new = [rows for (rows, when), epoch in zip(self.parts, now.of, strict=True) if when == "new" and not epoch]
        if not new:
            return None
        rows = joined(new)
        samples = samples_of(rows.only(rows.families != LINK))
        known = np.array([key in current.seen for key in samples.signatures.keys], bool)
        return drift_of(current, samples.only(known)) if known.any() else None

    def _rows(self, now: Epochs, changed: bool) -> Rows | None:
        """All of it, but of each epoch only signatures that no newer one has. Copies that were measured before are of
        the model in use, if that is of another device."""
        parts = [*zip((rows for rows, _ in self.parts), now.of, strict=True)]
        parts += [(rows, int(changed)) for rows in self.copies]
        found: list[Rows] = []
        newer: set[str] = set()
        for epoch in sorted({epoch for _, epoch in parts}):
            mine = [rows for rows, of in parts if of == epoch]
            found += [_without(rows, newer) for rows in mine]
            newer |= {key for rows in mine for key in _measured(rows)}
        return _without_poor_links(joined(found)) if found else None


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
