"""The execution model (DESIGN section 4): the one definition of step time and peak.

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

from hyperopt.plan import EMPTY, Plan
from hyperopt.profile import Profile
from hyperopt.script import COPY_IN, COPY_OUT, EXEC, RELEASE, RERUN, Program, Script, program_of, write_script


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy on a link, times in nanoseconds. `op` is the operator that the action stands at."""

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

    `start`, `end`: per operator of the profile (its original execution). `alloc_peak` is reached at operator
    `peak_op`. `static_peak_bytes` is the smallest HBM budget with which the plan runs at all, with stalls.
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
    program = program_of(profile)
    script = write_script(profile, plan, limit)
    baseline = None if plan.residency.empty and limit is None else unlimited_step_ns(profile)
    return _Clock(program, script, limit).run(baseline)


def unlimited_step_ns(profile: Profile) -> int:
    """Step time without a plan and without a limit of memory: what stalls are counted from."""
    found = profile.__dict__.get("_unlimited_step_ns")
    if found is None:
        found = profile.__dict__["_unlimited_step_ns"] = replay(profile).step_ns
    assert isinstance(found, int)
    return found


class _Clock:
    """The second pass. State per storage position, of the block that is in HBM now:

    `ready`: when its content is there; `busy`: when every access and copy so far has ended; `copied`: when its
    copy outside HBM is complete.
    """

    def __init__(self, program: Program, script: Script, limit: int | None) -> None:
        self.program, self.script = program, script
        self.limit = limit if limit is not None else 1 << 62
        count = len(program.size)
        self.ready = [0] * count
        self.busy = [0] * count
        self.copied = [0] * count
        self.coming: list[tuple[int, int]] = []  # heap of (time, bytes) of releases under way
        self.peak, self.peak_op = 0, 0
        self.copies: list[Copy] = []
        self.link_free: dict[tuple[str, bool], int] = {}

    def run(self, baseline_ns: int | None) -> Timeline:
        program, script = self.program, self.script
        ready, busy, coming = self.ready, self.busy, self.coming
        count = len(program.duration)
        start_of, end_of = [0] * count, [0] * count
        stream_free = [0] * program.streams
        in_hbm = self._initial()
        now = 0  # the latest start or allocation: nothing listed later happens before it
        end = recompute_ns = 0
        for i, (code, arg, op) in enumerate(zip(script.codes, script.args, script.at, strict=True)):
            if code == EXEC or code == RERUN:
                stream = program.stream[arg] if code == EXEC else 0
                start = max(now, stream_free[stream])
                for s in program.reads[arg]:
                    if ready[s] > start:
                        start = ready[s]
                need = program.workspace[arg]
                for s in program.writes[arg]:
                    if not in_hbm[s]:
                        need += program.size[s]
                    elif busy[s] > start:
                        start = busy[s]
                if need:
                    start = self._allocate(start, need, op)
                end = start + program.duration[arg]
                for s in program.reads[arg]:
                    if end > busy[s]:
                        busy[s] = end
                for s in program.writes[arg]:
                    ready[s] = end
                    busy[s] = end if not in_hbm[s] or end > busy[s] else busy[s]
                    in_hbm[s] = True
                if program.workspace[arg]:
                    heappush(coming, (end, program.workspace[arg]))
                now = start
                stream_free[stream] = end
                if code == EXEC:
                    start_of[arg], end_of[arg] = start, end
                else:
                    recompute_ns += program.duration[arg]
            elif code == RELEASE:
                in_hbm[arg] = False
                heappush(coming, (max(end, busy[arg]), program.size[arg]))
            elif code == COPY_IN:
                issue = max(now, stream_free[0])
                now = self._allocate(issue, program.size[arg], op)
                in_hbm[arg] = True
                ready[arg] = busy[arg] = self._copy(i, arg, op, now, max(now, self.copied[arg]))
            elif code == COPY_OUT:
                self.copied[arg] = self._copy(i, arg, op, end, max(end, ready[arg]))
                busy[arg] = max(busy[arg], self.copied[arg])
        step = max([0, *end_of, *stream_free, *(copy.end for copy in self.copies)])
        return Timeline(
            step_ns=step,
            peak_bytes=self.peak,
            peak_op=self.peak_op,
            stall_ns=0 if baseline_ns is None else step - baseline_ns - recompute_ns,
            recompute_ns=recompute_ns,
            tier_peak_bytes=script.tier_peak_bytes,
            static_peak_bytes=script.static_peak,
            static_peak_op=script.static_peak_op,
            start=start_of,
            end=end_of,
            copies=self.copies,
        )

    def _initial(self) -> list[bool]:
        """What is in HBM at step start; everything resident that the script does not bring in from a tier."""
        program = self.program
        in_hbm = list(program.resident)
        for s in self.script.starts_out:
            in_hbm[s] = False
        self.used = program.profile.device.base_bytes
        self.used += sum(size for size, there in zip(program.size, in_hbm, strict=True) if there)
        self.peak = self.used
        return in_hbm

    def _allocate(self, at: int, need: int, op: int) -> int:
        """Takes `need` bytes at the first moment from `at` on when they fit; returns that moment.

        `write_script` has made sure that the releases under way make enough room.
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

    def _copy(self, i: int, s: int, op: int, issue: int, earliest: int) -> int:
        """Queues one copy, first in first out per link direction (one queue if not duplex); returns its end."""
        tier = self.program.profile.device.tiers[self.script.tier[i]]
        out = self.script.codes[i] == COPY_OUT
        queue = (tier.name, out and tier.duplex)
        start = max(earliest, self.link_free.get(queue, 0))
        end = self.link_free[queue] = start + tier.copy_ns(self.program.size[s], out=out)
        self.copies.append(Copy(self.program.profile.storages[s].id, op, tier.name, out, issue, start, end))
        return end
