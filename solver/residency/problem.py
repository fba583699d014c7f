"""A profile and a budget, seen by the solver: where each storage is idle, and how full HBM is at each operator.

A *gap* is a span in which a storage is alive and not accessed, so that it may be elsewhere::

    operators     0    1    2    3    4    5    6    7
    storage A     W         R                   R            after=2, before=6
                            leave=2 ........ back=6          off HBM at operators 3, 4, 5

Gaps of storages that are resident at both ends of the step may wrap around it: out at the start (`initial`), back
before the first access, out again after the last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hyperopt.plan import Budget
from hyperopt.profile import COMPUTE, Profile, Tier
from hyperopt.replay import Timeline, replay
from hyperopt.script import Program, program_of

Int64s = npt.NDArray[np.int64]


class Gap(NamedTuple):
    """One idle span of a storage (by position in the profile).

    `after`, `before`: the accesses around it (-1: step start, n: step end). `leave`: first compute operator after
    which it can be released; `back`: last compute operator before which it can be copied in (n: need not come
    back). `written`: compute operator after which its content is final, from where it can be copied out.
    `wraps`: the span goes over the step's end: `leave` is near the end, `back` near the start.
    """

    storage: int
    bytes: int
    after: int
    before: int
    leave: int
    back: int
    written: int
    wraps: bool = False

    def off(self) -> list[tuple[int, int]]:
        """Ranges [first, end) of operators at which the storage is off HBM, with the copy in at `back`."""
        if self.wraps:
            return [(0, self.back), (self.leave + 1, np.iinfo(np.int64).max)]
        return [(self.leave + 1, self.back)]


def go_on() -> None:
    """The check of a problem that nobody waits for: never ends anything."""


class Problem:
    """What every part of the residency solver looks up, computed once per profile and budget.

    `places`: all tiers with a budget; `tiers`: those with links both ways, to which anything may go and come back.
    What may be in the others, see `homes` and `elsewhere`.

    `check` is called in the midst of what takes long on large steps, here and in all that is given the problem. It may
    raise `Stopped`, to end it.
    """

    def __init__(self, profile: Profile, budget: Budget) -> None:
        if budget.hbm_bytes is None:
            raise ValueError("the budget must give hbm_bytes")
        self.profile, self.budget = profile, budget
        self.hbm_bytes: int = budget.hbm_bytes
        self.check: Callable[[], None] = go_on
        self.program: Program = program_of(profile)
        self.n = len(profile.operators)
        self.compute = [k for k, o in enumerate(profile.operators) if o.stream == COMPUTE]
        self.tier_bytes = {name: size for name, size in budget.tier_bytes(profile).items() if size > 0}
        self.places: dict[str, Tier] = {
            name: tier for name, tier in profile.device.tiers.items() if name in self.tier_bytes
        }
        self.tiers: dict[str, Tier] = {
            name: tier for name, tier in self.places.items() if tier.d2h_bytes_per_s > 0 and tier.h2d_bytes_per_s > 0
        }

    @cached_property
    def unlimited(self) -> Timeline:
        """The step without a plan and without a limit of memory."""
        return replay(self.profile)

    @cached_property
    def accesses(self) -> list[list[int]]:
        """Per storage, the operators that access it, in listed order."""
        found: list[list[int]] = [[] for _ in self.program.size]
        for op, (reads, writes) in enumerate(zip(self.program.reads, self.program.writes, strict=True)):
            for s in {*reads, *writes}:
                found[s].append(op)
        return found

    def next_compute(self, op: int) -> int:
        """The first compute operator at or after `op`; n where there is none."""
        return _at_or_after(self.compute, op, self.n)

    def last_compute(self, op: int) -> int:
        """The last compute operator at or before `op`; -1 where there is none."""
        return _at_or_before(self.compute, op)

    @cached_property
    def by_calls(self) -> bool:
        """Whether the adapter acts at the calls that operators name (`saves`, `loads`) and nowhere else."""
        operators = self.profile.operators
        return self.profile.adapter.moves == "window" and any(o.saves or o.loads for o in operators)

    @cached_property
    def arrivals(self) -> list[int]:
        """Compute operators before which a copy in can stand."""
        operators = self.profile.operators
        if not self.by_calls:
            return self.compute
        return [k for k in self.compute if operators[k].loads or (k and operators[k - 1].saves)]

    @cached_property
    def departures(self) -> list[int]:
        """Compute operators after which a copy out and a release can stand."""
        operators = self.profile.operators
        if not self.by_calls:
            return self.compute
        return [k for k in self.compute if operators[k].saves or (k + 1 < self.n and operators[k + 1].loads)]

    def next_arrival(self, op: int) -> int:
        return _at_or_after(self.arrivals, op, self.n)

    def last_arrival(self, op: int) -> int:
        """The last place for a copy in at or before operator `op`; -1 where there is none."""
        return _at_or_before(self.arrivals, op)

    def next_departure(self, op: int) -> int:
        return _at_or_after(self.departures, op, self.n)

    @cached_property
    def roomy(self) -> set[str]:
        """Tiers that could hold, at any moment, a copy of everything alive."""
        most = int(self.load.max(initial=0))
        return {tier for tier, size in self.tier_bytes.items() if most <= size}

    @cached_property
    def expected_bytes(self) -> npt.NDArray[np.float64]:
        """Per storage its bytes, times the share of the steps that touch it where that has been observed."""
        storages = self.profile.storages
        share = [s.steps_accessed / s.steps_observed if s.steps_observed else 1.0 for s in storages]
        return np.asarray(self.program.size, dtype=np.float64) * np.asarray(share, dtype=np.float64)

    @cached_property
    def _uses(self) -> Int64s:
        """Storage x (n + 1) + operator of every access, rising."""
        keys = [s * (self.n + 1) + op for s, ops in enumerate(self.accesses) for op in ops]
        return np.asarray(keys, dtype=np.int64)

    def next_use(self, storage: Int64s, op: Int64s) -> Int64s:
        """Per pair the first operator at or after `op` that accesses the storage; n where there is none."""
        if not len(self._uses):
            return np.full(len(storage), self.n, dtype=np.int64)
        place = np.minimum(np.searchsorted(self._uses, storage * (self.n + 1) + op), len(self._uses) - 1)
        found = self._uses[place]
        same = (found // (self.n + 1) == storage) & (found % (self.n + 1) >= op)
        return np.where(same, found % (self.n + 1), self.n)

    @cached_property
    def idle_ns(self) -> Int64s:
        """Per operator, how long the compute stream waits for it in the unlimited step: time that costs nothing."""
        compute = np.asarray(self.compute, dtype=np.int64)
        times = self.unlimited
        start, end = (np.asarray(of, dtype=np.int64)[compute] for of in (times.start, times.end))
        idle = np.zeros(self.n, dtype=np.int64)
        idle[compute] = start - np.concatenate([[0], end[:-1]])
        return idle

    # -- memory in listed order ----------------------------------------------------------------------------

    @cached_property
    def alive(self) -> list[tuple[int, int] | None]:
        """Per storage, the operators [first, end) at whose start it takes HBM when nothing is planned."""
        spans: list[tuple[int, int] | None] = []
        for s, accesses in enumerate(self.accesses):
            first = 0 if self.program.resident[s] else (accesses[0] if accesses else None)
            if first is None:
                spans.append(None)
            elif self.program.stays[s] or not accesses:
                spans.append((first, self.n))
            else:
                spans.append((first, accesses[-1] + 1))
        return spans

    @cached_property
    def load(self) -> Int64s:
        """Bytes of HBM needed at each operator when nothing is planned: base, storages, workspace."""
        steps = np.zeros(self.n + 1, dtype=np.int64)
        for span, size in zip(self.alive, self.program.size, strict=True):
            if span is not None:
                steps[span[0]] += size
                steps[span[1]] -= size
        load = np.cumsum(steps)[: self.n] + self.profile.device.base_bytes
        return np.asarray(load + np.asarray(self.program.workspace, dtype=np.int64), dtype=np.int64)

    @cached_property
    def working_set(self) -> Int64s:
        """Bytes without which an operator cannot run: base, what it reads and writes, workspace."""
        sets = [
            sum(self.program.size[s] for s in {*reads, *writes})
            for reads, writes in zip(self.program.reads, self.program.writes, strict=True)
        ]
        fixed = np.asarray(self.program.workspace, dtype=np.int64) + self.profile.device.base_bytes
        return np.asarray(np.asarray(sets, dtype=np.int64) + fixed, dtype=np.int64)

    # -- gaps ----------------------------------------------------------------------------------------------

    def idle(self, s: int) -> list[tuple[int, int]]:
        """Pairs (after, before) of operators between which storage `s` is alive and not accessed."""
        accesses = self.accesses[s]
        if not accesses:
            return [(-1, self.n)] if self.program.resident[s] else []
        spans = list(pairwise(accesses))
        if self.program.resident[s]:
            spans.insert(0, (-1, accesses[0]))
        if self.program.stays[s]:
            spans.append((accesses[-1], self.n))
        return spans

    def makers(self, s: int, before: int) -> list[int]:
        """Operators of which one must run again to bring `s` back, dropped, for the access at `before`.

        Who reads it needs the version of the profile. Who only overwrites it does with any content: an older writer
        will do, and may be cheaper, or the only one that may run again.
        """
        operators, program = self.profile.operators, self.program
        if before < self.n and s in program.writes[before] and s not in program.reads[before]:
            writers = program.writers[s][: bisect_left(program.writers[s], before)]
        else:
            writers = [k for k in [program.version_before(s, before)] if k >= 0]
        return [k for k in writers if operators[k].recomputable]

    @cached_property
    def gaps(self) -> list[Gap]:
        """All spans in which a storage may be in a tier, within what the adapter can do."""
        if not self.places or self.profile.adapter.moves == "none":
            return []
        gaps = []
        for s, storage in enumerate(self.profile.storages):
            self.check()
            if not storage.offloadable or not storage.bytes:
                continue
            if self.profile.adapter.moves == "window" and storage.window is None:
                continue
            for after, before in self.idle(s):
                gap = self._gap(s, after, before)
                if gap is not None and gap.leave + 1 < gap.back and self.takers(gap):
                    gaps.append(gap)
            wrap = self._wrap(s)
            if wrap is not None and self.takers(wrap):
                gaps.append(wrap)
        return gaps

    # -- tiers ---------------------------------------------------------------------------------------------

    def homes(self, s: int) -> list[str]:
        """Tiers in which storage `s` may start the step, whatever its size: at the end it has to be there again.

        One that nothing can be copied to will do for what ends the step as it started, or is over by then, and one
        without any link for what nobody touches.
        """
        storage, program = self.profile.storages[s], self.program
        if not storage.resident_at_start or not storage.offloadable or self.profile.adapter.moves != "any":
            return []
        clean = not program.stays[s] or not program.writers[s]
        return [
            name
            for name, tier in self.places.items()
            if not self.accesses[s] or (tier.h2d_bytes_per_s > 0 and (clean or tier.d2h_bytes_per_s > 0))
        ]

    def takers(self, gap: Gap) -> list[str]:
        """Tiers that could hold the storage of a gap in it, whatever its size.

        Between two accesses one that nothing can be copied to is among them while the content is that of the start.
        """
        if gap.wraps:
            return self.homes(gap.storage)
        inner = gap.after >= 0 and gap.before < self.n
        return self.elsewhere(gap.storage, gap.after, gap.before) if inner else list(self.tiers)

    def elsewhere(self, s: int, after: int, before: int) -> list[str]:
        """Tiers that could hold storage `s` while it is idle between two accesses, around the step's end too."""
        inner = after >= 0 and before < self.n
        if inner and (not self.program.resident[s] or self.program.version_before(s, before) >= 0):
            return list(self.tiers)
        return list(dict.fromkeys([*self.tiers, *self.homes(s)]))

    def _gap(self, s: int, after: int, before: int) -> Gap | None:
        low, high = self.window(s)
        leave = self.next_departure(max(after, low, 0))
        # A consumer's own call is too late for a copy ahead of it.
        back = self.last_arrival(min(before, high, self.n - 1) - self.by_calls)
        written = self.program.writers[s][: bisect_right(self.program.writers[s], after)]
        final = self.next_departure(max(written[-1] if written else 0, low))
        return Gap(s, self.program.size[s], after, before, leave, back, min(final, leave))

    def _wrap(self, s: int) -> Gap | None:
        storage, accesses = self.profile.storages[s], self.accesses[s]
        if not storage.resident_at_start or self.profile.adapter.moves == "window":
            return None
        size = self.program.size[s]
        if not accesses:
            return Gap(s, size, -1, self.n, self.n, self.n, self.n, wraps=True)
        back = self.last_compute(accesses[0])
        leave = self.next_compute(accesses[-1]) if storage.resident_at_end else self.n
        written = self.program.writers[s]
        if back < 0 or (storage.resident_at_end and leave == self.n):
            return None
        final = self.next_compute(written[-1]) if written else leave
        return Gap(s, size, accesses[-1], accesses[0], leave, back, min(final, leave), wraps=True)

    @cached_property
    def movable(self) -> set[int]:
        """Storages that a plan may have in a tier: those with a gap, and what recomputes may keep past its end."""
        found = {gap.storage for gap in self.gaps}
        adapter = self.profile.adapter
        if self.tiers and adapter.moves == "any" and adapter.recompute == "operator":
            for operator, reads in zip(self.profile.operators, self.program.reads, strict=True):
                if operator.recomputable and operator.writes:
                    found.update(s for s in reads if self.profile.storages[s].offloadable and self.program.size[s])
        return found

    def kept_gap(self, s: int, before: int) -> Gap | None:
        """The span in which a storage that a recompute before `before` keeps past its last access may be in a tier."""
        storage, last = self.profile.storages[s], self.program.last_access[s]
        if self.profile.adapter.moves != "any" or not self.tiers or not storage.offloadable or not storage.bytes:
            return None
        gap = self._gap(s, last, before)
        return gap if gap is not None and gap.leave + 1 < gap.back else None

    def window(self, s: int) -> tuple[int, int]:
        window = self.profile.storages[s].window
        if self.profile.adapter.moves != "window" or window is None:
            return -1, self.n
        return window


def _at_or_after(places: list[int], op: int, none: int) -> int:
    i = bisect_left(places, op)
    return places[i] if i < len(places) else none


def _at_or_before(places: list[int], op: int) -> int:
    i = bisect_right(places, op)
    return places[i - 1] if i else -1
