"""Blocks with lives and accesses -> the storages of a profile, and what each operator does with them.

A block that is there for a single operator is that operator's workspace: nothing can be planned for it. All others are
storages: written by the operator that asked for them, read by the last one before they are given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from hyperopt.profile import Certainty, Kind, Phase, Storage
from profiler.read.labels import label
from profiler.read.timeline.accesses import Accesses
from profiler.read.timeline.lives import Lives
from profiler.read.timeline.pools import GHOST, UNLISTED


@dataclass(frozen=True)
class Storages:
    """`listed`, and by operator (counted as in the lives): storages read and written, and bytes of workspace."""

    listed: list[Storage]
    reads: list[list[int]]
    writes: list[list[int]]
    workspace: list[int] = field(repr=False)


def storages_of(blocks: pl.DataFrame, found: Lives, touched: Accesses, phases: Sequence[Phase]) -> Storages:
    """`phases`: of the operators that `found` counts by."""
    count = len(phases)
    reads: list[list[int]] = [[] for _ in range(count)]
    writes: list[list[int]] = [[] for _ in range(count)]
    workspace = found.transient.tolist()
    ids: dict[int, int] = {}
    listed: list[Storage] = []
    rows = zip(
        blocks["name"].to_list(),
        blocks["bytes"].to_list(),
        found.first.tolist(),
        found.last.tolist(),
        found.before.tolist(),
        found.after.tolist(),
        strict=True,
    )
    for block, (name, size, first, last, before, after) in enumerate(rows):
        if first > last:
            continue
        if first == last and not before and not after:
            workspace[first] += size
            continue
        id = ids[block] = len(listed)
        if not before:
            writes[first].append(id)
        if not after:
            reads[last].append(id)
        proven = name in (GHOST, UNLISTED)
        certainty: Certainty = "unknown" if proven or not touched.shaped else "inferred"
        held = touched.tensor.get(block)
        listed.append(
            Storage(
                id=id,
                bytes=size,
                name=label(f"{name} ({held})" if held else name),
                kind=_kind(phases[first], phases[last], before, after),
                resident_at_start=before,
                resident_at_end=after,
                offloadable=not proven,
                certainty=certainty,
            )
        )
    for k, middle in enumerate(touched.reads):
        reads[k] += [ids[block] for block in sorted(middle) if block in ids and ids[block] not in reads[k]]
    return Storages(listed, reads, writes, workspace)


def _kind(first: Phase, last: Phase, before: bool, after: bool) -> Kind:
    """By the passes in which it is asked for and given back; what outlives the step could be anything."""
    if before or after:
        return "gradient" if after and first == "backward" else "other"
    if first == "forward":
        return "activation"
    return "gradient" if first == "backward" and last == "optimizer" else "other"
