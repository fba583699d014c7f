"""Which stage or rank computes longest, and how much longer than the one that computes least.

Computing time and not the profilers' ``Bubble``, which is 0 on real pipeline runs: a rank that waits for another one
spends the same step as all, but computes less of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from profiler.read.manifest import Imbalance, Rank

TOLD_FROM = 1.1
"""Ratio from which on a warning names it: less is noise between equal ranks."""

TOLD_RANKS = 8


def imbalance(ranks: Iterable[Rank]) -> Imbalance | None:
    """The comparison; None where fewer than two stages (or ranks, where stages are not known) have a computing time."""
    known = [(rank, rank.computing_us) for rank in ranks if rank.computing_us]
    by_stage = {rank.stage for rank, _ in known} - {None}
    staged = len(by_stage) > 1
    groups: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for rank, computing_us in known:
        key = rank.stage if staged else rank.rank
        if key is not None:
            groups[key].append((rank.rank, computing_us))
    if len(groups) < 2:
        return None
    mean = {key: fmean(us for _, us in members) for key, members in groups.items()}
    slowest, fastest = max(mean, key=lambda key: (mean[key], -key)), min(mean, key=lambda key: (mean[key], key))
    return Imbalance(
        of="stages" if staged else "ranks",
        slowest=slowest,
        slowest_ranks=tuple(sorted(rank for rank, _ in groups[slowest])),
        slowest_us=mean[slowest],
        fastest=fastest,
        fastest_ranks=tuple(sorted(rank for rank, _ in groups[fastest])),
        fastest_us=mean[fastest],
        ratio=mean[slowest] / mean[fastest],
    )


def told(found: Imbalance) -> str | None:
    """The warning that names it; None where it is no more than noise."""
    if found.ratio < TOLD_FROM:
        return None
    if found.of == "stages":
        slow = f"stage {found.slowest} ({_ranks(found.slowest_ranks)})"
        fast = f"stage {found.fastest} ({_ranks(found.fastest_ranks)})"
    else:
        slow, fast = f"rank {found.slowest}", f"rank {found.fastest}"
    times = f"{found.slowest_us / 1000:.1f} ms against {found.fastest_us / 1000:.1f} ms a step"
    return f"{slow} computes {found.ratio:.2f} times as long as {fast}: {times}"


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:TOLD_RANKS])) + (", ..." if len(ranks) > TOLD_RANKS else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
