"""What was read, rank by rank, and how much of it the profiles explain: the answer of `hyperopt read`.

Sizes are bytes, times microseconds; null is "not known". `peak_bytes`, `reserved_bytes`, `external_bytes` and `step_us`
are the source's own figures; what replaying the profile without a plan gives is named ``replayed_``.
docs/reference/readers/index.md has the fields one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiler.read.layers import LayerModel

Status = Literal["accepted", "degraded", "refused"]


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Shares between 0 and 1. `step`: of the measured step, in which an operator other than idle time runs, on any
    stream. Of the peak: `peak` is held by storages, `workspace` by operators while they run, `base` by what was
    allocated before the record and is not described."""

    step: float | None = None
    peak: float | None = None
    workspace: float | None = None
    base: float | None = None


@dataclass(frozen=True, kw_only=True)
class DroppedRows:
    """Rows of a file that were not read. `lines`: the first of them, the header is line 1."""

    file: str
    why: str
    rows: int
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank. `path`: where it lay, relative to what was given. `file`: the profile that was written, a name in the
    output folder. `reason`: why it is degraded or refused. `units`: figures whose unit is not what their file says."""

    rank: int
    status: Status
    reason: str = ""
    kind: str
    path: str = ""
    file: str | None = None
    stage: int | None = None
    operators: int = 0
    storages: int = 0
    timing_only: bool = False
    peak_bytes: int | None = None
    replayed_peak_bytes: int | None = None
    base_bytes: int | None = None
    reserved_bytes: int | None = None
    external_bytes: int | None = None
    fragmentation_bytes: int | None = None
    step_us: float | None = None
    step_us_spread: float | None = None
    replayed_step_us: float | None = None
    computing_us: float | None = None
    coverage: Coverage = Coverage()
    program_digest: str | None = None
    warnings: tuple[str, ...] = ()
    dropped: tuple[DroppedRows, ...] = ()
    units: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Program:
    """Ranks that run the same operators on the same storages; only their times differ."""

    program_digest: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Imbalance:
    """Pipeline stages (or ranks, where stages are not known) by computing time: `slowest` over `fastest` is `ratio`.
    Times are means over a stage's ranks."""

    of: Literal["stages", "ranks"]
    slowest: int
    slowest_ranks: tuple[int, ...]
    slowest_us: float
    fastest: int
    fastest_ranks: tuple[int, ...]
    fastest_us: float
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`kind`: of all ranks; ``mixed`` where they differ, ``unknown`` where nothing was recognised."""

    path: str
    kind: str
    ranks: tuple[Rank, ...] = ()
    programs: tuple[Program, ...] = ()
    imbalance: Imbalance | None = None
    layers: tuple[LayerModel, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether anything came of it."""
        return any(rank.status != "refused" for rank in self.ranks) or bool(self.layers)

    @property
    def refusal(self) -> str:
        """In one line, why nothing came of it."""
        if not self.ranks:
            return "; ".join(self.warnings)
        more = f" (and {len(self.ranks) - 1} more were refused)" if len(self.ranks) > 1 else ""
        return f"rank {self.ranks[0].rank}: {self.ranks[0].reason}{more}"
