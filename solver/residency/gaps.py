"""Where storages can be off HBM, on the fluid bound's axis: gaps, alike storages together, and what recompute needs.

::

    rows        0    1    2    3    4    5
    gap              |---- may be off ---|          rows first .. end - 1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.residency.axis import Axis
from solver.residency.problem import Int64s, Problem

Floats = npt.NDArray[np.float64]

KEEP, MOVE, DROP = range(3)
INNER, HEAD, TAIL, WRAP_HEAD, WRAP_TAIL = range(5)
"""What a gap is: between two accesses; before the first or after the last of a resident; the same two when wrapped."""


CLASSES = 2
"""Of times to make something again, in a doubling: what is decided together costs the cheapest one's for each."""


@dataclass(frozen=True)
class Gaps:
    """Gaps of all storages on an axis; `first_gap[u] : first_gap[u + 1]` are those of unit u, in order of time.

    A unit is all storages that are alike: of one size, with gaps between the same rows, made again in about the same
    time. They are decided together, as one storage of their bytes and copy times together (and, made again, the
    cheapest one's time for each), so that a solution for the unit is one for each of them. `members[u]`: per storage
    the number of its first gap among all, of which `row_storage` and `row_after` are the storage and the access before.

    Off HBM only at rows `first` .. `end` - 1; out in slots `written` .., back in slots .. `due`. `version`: the
    operator that wrote the content; -1: as at the step's start. `rerun_ns`: what making it again costs at least; -1: it
    cannot be. `out_ns`, `in_ns`: copy times (gap, tier); -1: that tier cannot take it, or the adapter does not let it
    move in this gap.
    """

    members: tuple[Int64s, ...]
    row_storage: Int64s
    row_after: Int64s
    first_gap: Int64s
    kind: Int64s
    bytes: Int64s
    first: Int64s
    end: Int64s
    written: Int64s
    due: Int64s
    version: Int64s
    rerun_ns: Int64s
    out_ns: Int64s
    in_ns: Int64s
    inputs: Inputs


@dataclass(frozen=True)
class Inputs:
    """What making a gap's content again needs and the profile has freed by then: `at[g] : at[g + 1]` are gap g's.

    Such an input is held from row `row` on (`bytes`), or made again itself (`rerun_ns`: its share of that operator's
    time, whose other outputs may come back with it; -1: it cannot be), or moved (`out_ns`, from slot `slot` on: 0 where
    an earlier move may have left a copy; and `in_ns`; -1: it cannot be): each costs `share` of it, for one held input
    may serve several gaps, and the shares of one input over all gaps sum to at most 1.
    """

    at: Int64s
    row: Int64s
    slot: Int64s
    bytes: Int64s
    rerun_ns: Int64s
    out_ns: Int64s
    in_ns: Int64s
    share: Floats

    def of(self, gaps: Int64s) -> Inputs:
        """Those of some gaps, numbered in their order."""
        counts = np.diff(self.at)[gaps]
        at = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = np.repeat(self.at[:-1][gaps] - at[:-1], counts) + np.arange(at[-1])
        own = (
            np.ascontiguousarray(getattr(self, name)[rows])
            for name in ("row", "slot", "bytes", "rerun_ns", "out_ns", "in_ns", "share")
        )
        return Inputs(at, *own)


def gaps_on(problem: Problem, axis: Axis) -> Gaps:
    """Every span in which a storage can be off HBM at some row of the axis."""
    shares = _rerun_shares(problem)
    table = np.asarray(_spans(problem, shares), dtype=np.int64).reshape(-1, 11)
    s, kind, after, before, size, first, end, version, rerun, moves, maker = (
        np.ascontiguousarray(table[:, i]) for i in range(11)
    )
    n = problem.n
    tiers = list(problem.places.items())
    out_ns = np.full((len(s), max(1, len(tiers))), -1, dtype=np.int64)
    in_ns = out_ns.copy()
    for t, (name, tier) in enumerate(tiers):
        able = (moves >> t & 1 > 0) & (size <= problem.tier_bytes[name])
        for amount in np.unique(size[able]).tolist():
            here = able & (size == amount)
            if tier.d2h_bytes_per_s:
                out_ns[here, t] = tier.copy_ns(amount, out=True)
            # Without a way back it can only be the place of what never comes, which is charged nothing.
            in_ns[here, t] = tier.copy_ns(amount, out=False) if tier.h2d_bytes_per_s else 0
    never = (kind == WRAP_HEAD) & (before == n)
    columns = {
        "kind": kind,
        "bytes": size,
        "first": axis.deadline_slot(first),
        "end": axis.deadline_slot(end),
        "written": np.where(version < 0, 0, axis.slot_of(version)),
        "due": np.where(never, axis.rows + 1, axis.deadline_slot(before)),
    }
    weight = size * np.maximum(columns["end"] - columns["first"], 0).astype(np.float64) ** 2
    inputs = _inputs(problem, axis, s, before, maker, shares, weight)
    starts = np.flatnonzero(np.diff(s, prepend=-1))
    ends = np.append(starts, len(s))[1:]
    units = _alike(columns, s, version, rerun, moves, inputs, starts, ends)
    keep = (
        np.concatenate([np.arange(starts[u[0]], ends[u[0]]) for u in units]) if units else np.zeros(0, dtype=np.int64)
    )
    lengths = np.asarray([ends[u[0]] - starts[u[0]] for u in units], dtype=np.int64)
    times = np.repeat(np.asarray([len(u) for u in units], dtype=np.int64), lengths)
    cheapest_rerun = np.concatenate(
        [np.min([rerun[starts[m] : ends[m]] for m in u], axis=0) for u in units]
    ) if units else np.zeros(0, dtype=np.int64)  # fmt: skip
    chosen = {name: np.ascontiguousarray(column[keep]) for name, column in columns.items()}
    chosen["bytes"] = chosen["bytes"] * times
    return Gaps(
        members=tuple(starts[u] for u in units),
        row_storage=s,
        row_after=after,
        first_gap=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        version=np.ascontiguousarray(version[keep]),
        rerun_ns=np.where(cheapest_rerun < 0, -1, cheapest_rerun * times),
        out_ns=np.where(out_ns[keep] < 0, -1, out_ns[keep] * times[:, None]),
        in_ns=np.where(in_ns[keep] < 0, -1, in_ns[keep] * times[:, None]),
        inputs=inputs.of(keep),
        **chosen,
    )


def _spans(problem: Problem, shares: dict[tuple[int, int], int]) -> list[tuple[int, ...]]:
    """Rows of storage, kind, accesses around it, bytes, operators at which it may be off (first, end), version, least
    time to make it again, the tiers it may move to (a bit each), and the operator that makes it (-1: several
    may, or none)."""
    movable: dict[tuple[int, int, int], tuple[int, int]] = {}
    wraps: dict[int, tuple[int, int]] = {}
    bits = {name: 1 << t for t, name in enumerate(problem.places)}
    takers: dict[tuple[int, int], int] = {}  # (storage, access after which; -2: a wrap) -> bits of tiers
    for gap in problem.gaps:
        if gap.wraps:
            wraps[gap.storage] = (gap.back, gap.leave + 1)
        else:
            movable[gap.storage, gap.after, gap.before] = (gap.leave + 1, gap.back)
        takers[gap.storage, -2 if gap.wraps else gap.after] = sum(bits[name] for name in problem.takers(gap))
    program, n = problem.program, problem.n
    rows: list[tuple[int, ...]] = []
    for s, size in enumerate(program.size):
        problem.check()
        if not size:
            continue
        spans = [(INNER, after, before) for after, before in problem.idle(s) if before - after > 1]
        if s in wraps:
            head_end, tail_first = wraps[s]
            first_use = problem.accesses[s][0] if problem.accesses[s] else n
            rows.append((s, WRAP_HEAD, -1, first_use, size, 0, head_end, -1, -1, takers[s, -2], -1))
        for _, after, before in spans:
            kind = HEAD if after < 0 else TAIL if before == n else INNER
            version = program.version_before(s, before)
            makers = problem.makers(s, before) if shares else []
            rerun = min((shares[s, k] for k in makers), default=-1)
            maker = version if makers == [version] else -1
            span = movable.get((s, after, before))
            if span is None and rerun < 0:
                continue
            first, end = span or (after + 1, before)
            if rerun >= 0:  # dropped, it may be off wherever it is idle
                first, end = after + 1, before
            rows.append(
                (s, kind, after, before, size, first, end, version, rerun, takers.get((s, after), 0), maker)
            )
        if s in wraps and tail_first <= n and problem.accesses[s]:
            version = program.version_before(s, n)
            rows.append(
                (s, WRAP_TAIL, problem.accesses[s][-1], n, size, tail_first, n, version, -1, takers[s, -2], -1)
            )
    return rows


def _alike(
    columns: dict[str, Int64s],
    s: Int64s,
    version: Int64s,
    rerun: Int64s,
    moves: Int64s,
    inputs: Inputs,
    starts: Int64s,
    ends: Int64s,
) -> list[Int64s]:
    """Storages (numbers in `starts`) that are alike, together; those that are made from freed inputs stay alone."""
    fresh = np.concatenate([[1], np.diff(version) != 0]) if len(s) else np.zeros(0, dtype=np.int64)
    alone = np.diff(inputs.at) > 0
    times = np.where(rerun < 0, -1, CLASSES * np.log2(np.maximum(rerun, 1))).astype(np.int64)
    table = np.stack([*columns.values(), fresh, version < 0, times, moves, np.where(alone, s, -1)], axis=1)
    found: dict[bytes, list[int]] = {}
    for u, (first, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        found.setdefault(table[first:end].astype(np.int64).tobytes(), []).append(u)
    return [np.asarray(members, dtype=np.int64) for members in found.values()]


def _inputs(
    problem: Problem,
    axis: Axis,
    s: Int64s,
    before: Int64s,
    maker: Int64s,
    shares: dict[tuple[int, int], int],
    weight: Floats,
) -> Inputs:
    """Of the gaps whose content one operator alone can make again: `maker`, else -1.

    What several gaps need is charged to each in proportion to `weight`. Any weights will do, for what a plan pays for
    an input is at least what the dearest of the gaps that it drops would pay alone, and so at least any mean of them;
    best is most on the gaps that are dropped, which are the long ones, and nothing on those that hold no row.
    """
    program, storages = problem.program, problem.profile.storages
    found: list[tuple[int, int]] = []  # (gap, input)
    total: dict[tuple[int, int], float] = {}  # (input, its version) -> weight of the gaps that may need it
    for g in np.flatnonzero((maker >= 0) & (weight > 0)).tolist():
        writer = int(maker[g])
        for u in program.reads[writer]:
            last = program.last_access[u]
            if u != s[g] and not program.stays[u] and last < before[g] and program.size[u]:
                found.append((g, u))
                key = (u, program.version_before(u, writer))
                total[key] = total.get(key, 0.0) + float(weight[g])
    moving = problem.profile.adapter.moves != "none"
    at_hand = {
        (gap.storage, -1 if gap.wraps else program.version_before(gap.storage, gap.before)) for gap in problem.gaps
    }
    copies: dict[tuple[int, bool], tuple[int, int]] = {}  # (input, of the start) -> least ns out, back; -1: it stays
    for u, first in {(u, program.version_before(u, int(maker[g])) < 0) for g, u in found}:
        size = program.size[u]
        names = {*problem.tiers, *(problem.homes(u) if first else ())}
        tiers = [problem.places[name] for name in names if size <= problem.tier_bytes[name]]
        back = [t.copy_ns(size, out=False) for t in tiers if t.h2d_bytes_per_s]
        out = [t.copy_ns(size, out=True) if t.d2h_bytes_per_s else 0 for t in tiers if t.h2d_bytes_per_s]
        copies[u, first] = (min(out), min(back)) if moving and storages[u].offloadable and back else (-1, -1)
    rows = []
    for g, u in found:
        problem.check()
        made = program.version_before(u, int(maker[g]))
        again = shares.get((u, made), -1)
        out_ns, in_ns = copies[u, made < 0]
        out_ns = 0 if in_ns >= 0 and (u, made) in at_hand else out_ns  # a copy that an earlier move has paid for
        rows.append((g, program.last_access[u], max(made, 0), program.size[u], again, out_ns, in_ns))
    table = np.asarray(rows, dtype=np.int64).reshape(-1, 7)
    share = np.asarray(
        [weight[g] / total[u, program.version_before(u, int(maker[g]))] for g, u in found], dtype=np.float64
    )
    return Inputs(
        at=np.searchsorted(table[:, 0], np.arange(len(s) + 1)).astype(np.int64),
        row=axis.slot_of(table[:, 1]),
        slot=axis.slot_of(table[:, 2]),
        bytes=np.ascontiguousarray(table[:, 3]),
        rerun_ns=np.ascontiguousarray(table[:, 4]),
        out_ns=np.ascontiguousarray(table[:, 5]),
        in_ns=np.ascontiguousarray(table[:, 6]),
        share=share,
    )


def _rerun_shares(problem: Problem) -> dict[tuple[int, int], int]:
    """Nanoseconds to charge for making (storage, version) again: its writer's time, split over what that writes.

    One execution brings back all outputs of an operator, so only together are they charged its time.
    """
    if problem.profile.adapter.recompute == "none":
        return {}
    program, shares = problem.program, {}
    for k, operator in enumerate(problem.profile.operators):
        if not operator.recomputable or not program.writes[k]:
            continue
        total = sum(program.size[s] for s in program.writes[k])
        for s in program.writes[k]:
            shares[s, k] = program.duration[k] * program.size[s] // total if total else 0
    return shares
