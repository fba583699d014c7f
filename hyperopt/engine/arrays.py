"""A profile as flat integer arrays, made once and kept with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, chain

import numpy as np

from hyperopt.engine.kernel import I32, I64, Tables
from hyperopt.profile import COMPUTE, Profile, Tier, ns
from hyperopt.script import Program, program_of

LARGEST = 2.0**61
"""Sums of bytes and of nanoseconds stay below this, or the arrays refuse the profile: int64 holds them exactly."""


@dataclass(frozen=True)
class Arrays:
    """`tables` is what the loop reads. Storages and operators are positions in the profile, tiers positions in
    `tiers`; `ids` are the storages' ids.

    `stays`, `resident`, `returns`: as in `script.Program`. `final`: per storage, the version in which it ends.
    `write_keys`: sorted, operator x storages + storage of every write. The last four bound what sums can reach.
    """

    profile: Profile
    program: Program
    tables: Tables
    tiers: tuple[str, ...]
    ids: I64
    base_bytes: int
    streams: int
    resident: np.ndarray[tuple[int], np.dtype[np.bool_]]
    stays: np.ndarray[tuple[int], np.dtype[np.bool_]]
    returns: np.ndarray[tuple[int], np.dtype[np.bool_]]
    on_compute: np.ndarray[tuple[int], np.dtype[np.bool_]]
    recomputable: np.ndarray[tuple[int], np.dtype[np.bool_]]
    final: I32
    write_keys: I64
    most_bytes: float
    most_ns: float
    largest_need: float
    longest_ns: float

    @property
    def operators(self) -> int:
        return len(self.tables.duration)

    @property
    def storages(self) -> int:
        return len(self.tables.size)

    def fit(self, copies: int, reruns: int) -> bool:
        """Whether no sum of bytes or nanoseconds can leave 64 bits under so many copies and executions again."""
        orders = copies + reruns
        return (
            self.most_bytes + orders * self.largest_need < LARGEST and self.most_ns + orders * self.longest_ns < LARGEST
        )


def arrays_of(profile: Profile) -> Arrays:
    """The profile's `Arrays`, made once and kept with it.

    Raises `OverflowError` where bytes or nanoseconds may not fit 64 bits: then only the definition can replay it.
    """
    found = profile.__dict__.get("_arrays")
    if found is None:
        found = profile.__dict__["_arrays"] = _make(profile)
    assert isinstance(found, Arrays)
    return found


def rows(lists: Sequence[Sequence[int]]) -> tuple[I32, I32]:
    """Where each list starts (and the last one ends), and all of them on end."""
    at = np.fromiter(accumulate(map(len, lists), initial=0), np.int32, len(lists) + 1)
    return at, np.fromiter(chain.from_iterable(lists), np.int32, int(at[-1]))


def _make(profile: Profile) -> Arrays:
    program = program_of(profile)
    operators, storages = len(program.duration), len(program.size)
    read_at, read = rows(program.reads)
    write_at, write = rows(program.writes)
    size, duration = np.array(program.size, np.int64), np.array(program.duration, np.int64)
    workspace = np.array(program.workspace, np.int64)
    last_access, stays = np.array(program.last_access, np.int32), np.array(program.stays, np.bool_)

    reader = np.repeat(np.arange(operators), np.diff(read_at))
    writer = np.repeat(np.arange(operators), np.diff(write_at))
    turns = np.sort(write.astype(np.int64) * (operators + 1) + writer)  # all writes, by storage and then by operator
    mortal = np.flatnonzero((last_access >= 0) & ~stays)
    mortal = mortal[np.argsort(last_access[mortal], kind="stable")].astype(np.int32)

    tiers = list(profile.device.tiers.values())
    out_ns, in_ns = _copy_ns(tiers, size, out=True), _copy_ns(tiers, size, out=False)
    need = workspace.astype(np.float64)
    np.add.at(need, writer, size[write].astype(np.float64))
    made = Arrays(
        profile=profile,
        program=program,
        tables=Tables(
            read_at=read_at,
            read=read,
            expected=_version_before(turns, read.astype(np.int64), reader, operators),
            write_at=write_at,
            write=write,
            dying_at=np.searchsorted(last_access[mortal], np.arange(operators + 1)).astype(np.int32),
            dying=mortal,
            workspace=workspace,
            duration=duration,
            stream=np.array(program.stream, np.int32),
            size=size,
            offloadable=np.array([s.offloadable for s in profile.storages], np.uint8),
            last_access=last_access,
            out_ns=out_ns,
            in_ns=in_ns,
            duplex=np.array([tier.duplex for tier in tiers], np.uint8),
        ),
        tiers=tuple(tier.name for tier in tiers),
        ids=np.array([s.id for s in profile.storages], np.int64),
        base_bytes=profile.device.base_bytes,
        streams=program.streams,
        resident=np.array(program.resident, np.bool_),
        stays=stays,
        returns=np.array(program.returns, np.bool_),
        on_compute=np.array([o.stream == COMPUTE for o in profile.operators], np.bool_),
        recomputable=np.array([o.recomputable for o in profile.operators], np.bool_),
        final=_version_before(turns, np.arange(storages), np.full(storages, operators), operators),
        write_keys=np.sort(writer * storages + write),
        most_bytes=float(profile.device.base_bytes) + float(size.sum(dtype=np.float64)) + float(need.sum()),
        most_ns=float(duration.sum(dtype=np.float64)),
        largest_need=float(max(need.max(initial=0), size.max(initial=0))),
        longest_ns=float(max(duration.max(initial=0), out_ns.max(initial=0), in_ns.max(initial=0))),
    )
    if not made.fit(0, 0):
        raise OverflowError("bytes or nanoseconds of the profile do not fit 64 bits")
    return made


def _version_before(turns: I64, storage: I64, op: I64, operators: int) -> I32:
    """`Program.version_before` of many storages and operators. `turns`: storage x (operators + 1) + operator of every
    write, sorted."""
    if not len(turns):
        return np.full(len(storage), -1, np.int32)
    before = np.searchsorted(turns, storage * (operators + 1) + op) - 1
    found = turns[np.maximum(before, 0)]
    same = (before >= 0) & (found // (operators + 1) == storage)
    return np.where(same, found % (operators + 1), -1).astype(np.int32)


def _copy_ns(tiers: Sequence[Tier], size: I64, *, out: bool) -> I64:
    """`Tier.copy_ns` per tier and storage; -1 where there is no such path."""
    table = np.full((len(tiers), len(size)), -1, np.int64)
    for i, tier in enumerate(tiers):
        speed = Fraction(tier.d2h_bytes_per_s if out else tier.h2d_bytes_per_s)
        if not speed:
            continue
        latency, factor = ns(tier.latency_us), 10**9 * speed.denominator
        if speed.numerator < 2**62 and factor * int(size.max(initial=1)) < 2**62:
            table[i] = latency - (-size * factor // speed.numerator)
        else:
            table[i] = [latency - (-s * factor // speed.numerator) for s in size.tolist()]
    return table
