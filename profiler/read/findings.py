"""What a reader noticed about one rank: what it dropped and where, what it converted, what is missing.

A reader never fails on a bad row: it drops the row and says so here. It raises `UnreadableError` only where nothing
of the rank can be used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

KEPT_PLACES = 20
"""Dropped rows that are named one by one for each file and reason; the rest is counted."""


class UnreadableError(ValueError):
    """Nothing can be made of this file, rank or folder; the message names it, what is wrong and what would help."""


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a file that were not read. `lines`: the first of them, counted from 1, header included; empty where
    the source has no lines."""

    file: str
    why: str
    rows: int
    lines: tuple[int, ...] = ()


@dataclass
class Findings:
    """Filled while one rank is read. `root`: files are named relative to it."""

    root: Path
    warnings: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """What the profile has to do without. The rank is *degraded* where there is any."""
    units: list[str] = field(default_factory=list)
    """Figures whose unit is not what their file says, and what was done."""
    dropped: list[Dropped] = field(default_factory=list)
    computing_us: float | None = None
    """Time of the step in which the device computes, as the source itself gives it: known of some ranks that have no
    profile, and ranks and stages are compared by it."""
    stage: int | None = None
    """Pipeline stage, where the source says it."""

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def lacks(self, text: str) -> None:
        if text not in self.missing:
            self.missing.append(text)

    def normalised(self, text: str) -> None:
        if text not in self.units:
            self.units.append(text)

    def drop(self, file: Path | str, why: str, rows: int, lines: tuple[int, ...] = ()) -> None:
        if rows:
            self.dropped.append(Dropped(file=self.name(file), why=why, rows=rows, lines=lines[:KEPT_PLACES]))

    def name(self, file: Path | str) -> str:
        path = Path(file)
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else path.name
