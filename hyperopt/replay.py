"""The execution model (docs/reference/execution-model.md): the one definition of step time and peak.

`replay(profile, plan)` is what solver, gate, reports and tests judge by. It has two passes: `script` settles in
listed order what happens and whether it is legal and fits; here every instruction gets its time. All times are
integer nanoseconds, all sizes bytes.

Allocations happen in listed order, so the clock never runs backwards and one heap of coming releases is enough::

    HBM in use      ┌────┐ alloc (op start, or copy_in issued)
                ┌───┘    └──┐ release: when the last access or copy of the block has ended
    time ───────┴───────────┴────▶
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import msgspec

from hyperopt.legality import OutOfMemory
from hyperopt.plan import EMPTY, Plan
from hyperopt.profile import Profile
from hyperopt.script import COPY_IN, COPY_OUT, EXEC, RELEASE, RERUN, Program, Script, program_of, write_script

LARGE = 5_000
"""Operators from which on the compiled engine is used: for fewer, Python is done before the engine is loaded."""


class Copy(msgspec.Struct, frozen=True, gc=False):
    """One copy on a link, times in nanoseconds. `op` is the operator that the action stands at.

    Not a dataclass, because a plan has tens of thousands: made faster, and nothing for the collector to visit.
    """

    storage: int
    op: int
    tier: str
    out: bool
    issue: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a legal plan that fits does in time: nanoseconds and bytes.

    `start`, `end`: per operator of the profile (its original execution). The peak is reached at operator `peak_op`.
    `static_peak_bytes`: the smallest HBM budget with which the plan runs at all, with stalls; needed at operator
    `static_peak_op`.
    """

    step_ns: int
    peak_bytes: int
    peak_op: int
    stall_ns: int
    recompute_ns: int
    tier_peak_bytes: dict[str, int]
    static_peak_bytes: int
    static_peak_op: int
    start: list[int]
    end: list[int]
    copies: list[Copy]

    @property
    def step_us(self) -> float:
        return self.step_ns / 1000

    @property
    def stall_us(self) -> float:
        return self.stall_ns / 1000


def replay(profile: Profile, plan: Plan | None = None, hbm_bytes: int | None = None) -> Timeline:
    """The time line of a step under a plan (None: no plan).

    The HBM budget is `hbm_bytes` if given, else the plan's, else none. Raises `legality.IllegalPlan` or
    `legality.OutOfMemory`.
    """
    plan = plan or EMPTY
    limit = hbm_bytes if hbm_bytes is not None else plan.budget.hbm_bytes
    if len(profile.operators) >= LARGE:
        timeline = replay_compiled(profile, plan, limit)
        if timeline is not None:
            return timeline
    return replay_defined(profile, plan, limit)


def replay_defined(profile: Profile, plan: Plan, limit: int | None) -> Timeline:
    """The definition: `replay` by the two passes in Python, within `limit` bytes of HBM (None: no limit)."""
    script = write_script(profile, plan, limit)
    clock = Clock(program_of(profile), script.starts_out, limit)
    clock.run(script)
    return Timeline(
        step_ns=clock.step_ns,
        peak_bytes=clock.peak,
        peak_op=clock.peak_op,
        stall_ns=_stall_ns(profile, plan, limit, clock.step_ns, clock.recompute_ns),
        recompute_ns=clock.recompute_ns,
        tier_peak_bytes=script.tier_peak_bytes,
        static_peak_bytes=script.static_peak,
        static_peak_op=script.static_peak_op,
        start=clock.start,
        end=clock.end,
        copies=clock.copies,
    )


def replay_compiled(profile: Profile, plan: Plan, limit: int | None) -> Timeline | None:
    """`replay_defined` by the compiled engine.

    None where the definition has to speak: no numba here, integers too short for the profile or the plan, or a plan
    that is illegal, and is refused in its words.
    """
    try:
        from hyperopt.engine import OutOfPlace, arrays_of, orders_of, run
    except ImportError:
        return None
    try:
        arrays, orders = arrays_of(profile), orders_of(profile, plan)
        found = run(arrays, orders, limit, plan.budget.tiers)
    except (OverflowError, OutOfPlace):
        return None
    if found.status == "illegal":
        return None
    if found.status == "out_of_memory":
        assert found.op is not None
        raise OutOfMemory(found.op, found.short_bytes, "hbm" if found.tier < 0 else arrays.tiers[found.tier])
    tiers = arrays.tiers
    storage, *others = found.copies.T
    columns = [column.tolist() for column in others]
    return Timeline(
        step_ns=found.step_ns,
        peak_bytes=found.peak_bytes,
        peak_op=found.peak_op,
        stall_ns=_stall_ns(profile, plan, limit, found.step_ns, found.recompute_ns),
        recompute_ns=found.recompute_ns,
        tier_peak_bytes=dict(zip(tiers, found.tier_peak_bytes.tolist(), strict=True)),
        static_peak_bytes=found.static_peak_bytes,
        static_peak_op=found.static_peak_op,
        start=found.start.tolist(),
        end=found.end.tolist(),
        copies=[
            Copy(id, op, tiers[tier], out == 1, issue, start, end)
            for id, op, tier, out, issue, start, end in zip(arrays.ids[storage].tolist(), *columns, strict=True)
        ],
    )


def _stall_ns(profile: Profile, plan: Plan, limit: int | None, step_ns: int, recompute_ns: int) -> int:
    """What the step lasts beyond the unlimited one without a plan and the executions again."""
    if plan.residency.empty and limit is None:
        return 0
    return step_ns - unlimited_step_ns(profile) - recompute_ns


def unlimited_step_ns(profile: Profile) -> int:
    """Step time without a plan and without a limit of memory: what stalls are counted from."""
    found = profile.__dict__.get("_unlimited_step_ns")
    if found is None:
        found = profile.__dict__["_unlimited_step_ns"] = replay(profile).step_ns
    assert isinstance(found, int)
    return found


class Clock:
    """The second pass: gives each instruction of a script its time.

    State per storage position: `ready`, when the content of its block in HBM is there; `busy`, when every access and
    copy of the storage so far has ended, on whichever block; `copied`, when its copy outside HBM is complete. `now`
    is the latest start or allocation: nothing listed later happens before it. `starts_out`: storages not in HBM at
    step start.
    """

    def __init__(self, program: Program, starts_out: list[int], limit: int | None) -> None:
        self.program = program
        self.limit = limit if limit is not None else 1 << 62
        count = len(program.size)
        self.in_hbm = list(program.resident)
        for s in starts_out:
            self.in_hbm[s] = False
        self.ready, self.busy, self.copied = [0] * count, [0] * count, [0] * count
        self.coming: list[tuple[int, int]] = []  # heap of (time, bytes) of releases under way
        self.stream_free = [0] * program.streams
        self.link_free: dict[tuple[str, bool], int] = {}
        self.now = self.last_end = self.step_ns = self.recompute_ns = 0
        self.start, self.end = [0] * len(program.duration), [0] * len(program.duration)
        self.copies: list[Copy] = []
        self.used = program.profile.device.base_bytes
        self.used += sum(size for size, there in zip(program.size, self.in_hbm, strict=True) if there)
        self.peak, self.peak_op = self.used, 0

    def run(self, script: Script) -> None:
        for i, (code, arg, op) in enumerate(zip(script.codes, script.args, script.at, strict=True)):
            if code in (EXEC, RERUN):
                self.execute(arg, op, code == RERUN)
            elif code == RELEASE:
                self.release(arg)
            elif code == COPY_IN:
                self.copy_in(arg, op, script.tier[i])
            elif code == COPY_OUT:
                self.copy_out(arg, op, script.tier[i])

    def execute(self, executed: int, op: int, again: bool = False) -> None:
        """Rules 1 and 2: starts when stream, inputs and outputs allow and memory is there."""
        program, ready, busy, in_hbm = self.program, self.ready, self.busy, self.in_hbm
        stream = 0 if again else program.stream[executed]
        reads, writes = program.reads[executed], program.writes[executed]
        start = max(self.now, self.stream_free[stream])
        for s in reads:
            if ready[s] > start:
                start = ready[s]
        workspace = need = program.workspace[executed]
        for s in writes:
            if not in_hbm[s]:
                need += program.size[s]
            elif busy[s] > start:
                start = busy[s]
        if need:
            start = self._allocate(start, need, op)
        end = start + program.duration[executed]
        for s in reads:
            if end > busy[s]:
                busy[s] = end
        for s in writes:
            ready[s] = end
            busy[s] = max(busy[s], end)  # a new block may be written while an old one is still read
            in_hbm[s] = True
        if workspace:
            heappush(self.coming, (end, workspace))
        self.now = start
        self.stream_free[stream] = self.last_end = end
        if end > self.step_ns:
            self.step_ns = end
        if again:
            self.recompute_ns += program.duration[executed]
        else:
            self.start[executed], self.end[executed] = start, end

    def copy_in(self, s: int, op: int, tier: str) -> None:
        """Rule 3: issued when the compute operator before has ended; its HBM is taken then."""
        issue = max(self.now, self.stream_free[0])
        self.now = self._allocate(issue, self.program.size[s], op)
        self.in_hbm[s] = True
        end = self._copy(s, op, tier, self.now, max(self.now, self.copied[s]), out=False)
        self.ready[s] = end
        self.busy[s] = max(self.busy[s], end)

    def copy_out(self, s: int, op: int, tier: str) -> None:
        """Rule 4: issued when the operator has ended, starts when the content is there."""
        end = self._copy(s, op, tier, self.last_end, max(self.last_end, self.ready[s]), out=True)
        self.copied[s] = end
        self.busy[s] = max(self.busy[s], end)

    def release(self, s: int) -> None:
        """Rules 5 and 7: the block is free when every access and copy of it has ended."""
        self.in_hbm[s] = False
        heappush(self.coming, (max(self.last_end, self.busy[s]), self.program.size[s]))

    def _allocate(self, at: int, need: int, op: int) -> int:
        """Takes `need` bytes at the first moment from `at` on when they fit; returns that moment.

        The script has made sure that the releases under way make enough room.
        """
        coming = self.coming
        while coming and (coming[0][0] <= at or self.used + need > self.limit):
            when, size = heappop(coming)
            at = max(at, when)
            self.used -= size
        self.used += need
        if self.used > self.peak:
            self.peak, self.peak_op = self.used, op
        return at

    def _copy(self, s: int, op: int, name: str, issue: int, earliest: int, *, out: bool) -> int:
        """Queues one copy, first in first out per link direction (one queue if not duplex); returns its end."""
        tier = self.program.tiers[name]
        queue = (name, out and tier.duplex)
        start = max(earliest, self.link_free.get(queue, 0))
        end = self.link_free[queue] = start + tier.copy_ns(self.program.size[s], out=out)
        self.copies.append(Copy(self.program.profile.storages[s].id, op, name, out, issue, start, end))
        self.step_ns = max(self.step_ns, end)
        return end
