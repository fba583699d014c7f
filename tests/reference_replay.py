"""The execution model of docs/reference/execution-model.md once more: slow, plain, and written from that text alone.

`hyperopt.replay` finds each time in one pass over the listed order; here everything that takes place in a
step (an operator's execution, a copy, a release) is a process, and a clock moves from one end to the next. At
each instant every process looks at the state of the others to see whether it may go on. So a misreading of a
rule in one of the two shows as a difference. Integer nanoseconds and bytes; numbers in brackets are rules.

Where the text can be read in two ways, this is how it is read here (the first four as in `hyperopt.replay`):

- A new block of a storage is allocated and filled beside an old one still in use (3); what overwrites or releases it
  waits for every earlier access and copy of the storage, on whichever block (1, 5).
- A storage at home in HBM may end the step with a spare copy in a tier (7). A resident storage that no operator
  touches ends where it starts, `resident_at_end` or not.
- Recomputed and copied in one gap (CASES C17) is refused only where the copy is listed first.
- What an action in listed order comes before waits for it, even where its stream would be free earlier (4).
- A tier of 0 bytes does not exist: to name it is illegal, not out of memory (3).
- What starts in tiers or in HBM is taken at once: an overflow is the whole excess; tiers are looked at first.
- Without any budget for HBM in call or plan, the profile's `hbm_bytes` holds (2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from hyperopt.plan import EMPTY, HOST, Plan
from hyperopt.profile import COMPUTE, Profile

HBM = "hbm"


class Illegal(Exception):
    """The plan breaks one of the rules 3 to 8."""


Block = tuple[int, int]
"""(storage id, which of its stays in HBM)"""


@dataclass(eq=False)
class Process(ABC):
    """What takes place at operator `op` in listed order, from `started` to `ended` (None: not yet)."""

    op: int
    ns: int = 0
    started: int | None = None
    ended: int | None = None

    @abstractmethod
    def touches(self, block: Block) -> bool: ...

    @abstractmethod
    def fills(self, block: Block) -> bool:
        """Whether the block's content is not ready until this has ended."""


@dataclass(eq=False)
class Run(Process):
    """One execution of an operator: its own, or a recompute. Sets are of blocks."""

    stream: str = COMPUTE
    reads: frozenset[Block] = frozenset()
    writes: frozenset[Block] = frozenset()
    fresh: frozenset[Block] = frozenset()
    request: int = 0
    workspace: int = 0

    def touches(self, block: Block) -> bool:
        return any(block[0] == own[0] for own in self.reads | self.writes)

    def fills(self, block: Block) -> bool:
        return block in self.writes


@dataclass(eq=False)
class Copy(Process):
    block: Block = (0, 0)
    queue: tuple[str, str] = ("", "")

    def touches(self, block: Block) -> bool:
        return block[0] == self.block[0]


@dataclass(eq=False)
class CopyOut(Copy):
    after: Run | None = None

    def operator_ended(self) -> bool:
        return self.after is not None and self.after.ended is not None

    def fills(self, block: Block) -> bool:
        return False


@dataclass(eq=False)
class CopyIn(Copy):
    request: int = 0
    source: CopyOut | None = None
    """The copy that makes the host copy; None where it is there from the step's start."""
    ended_before: Run | None = None
    """The compute operator before the one that this stands at."""
    started_before: Run | None = None
    """The operator listed before the one that this stands at."""

    def fills(self, block: Block) -> bool:
        return block == self.block


@dataclass(eq=False)
class Release(Process):
    """HBM of a storage given back, by action or by last access."""

    block: Block = (0, 0)
    bytes: int = 0
    after: Run | None = None

    def operator_ended(self) -> bool:
        return self.after is not None and self.after.ended is not None

    def touches(self, block: Block) -> bool:
        return False

    def fills(self, block: Block) -> bool:
        return False


@dataclass
class Place:
    """Where a storage is, in listed order."""

    in_hbm: bool = False
    block: Block = (0, 0)
    """Which of its stays in HBM this is: an old block may still be leaving while a new one is in use (3)."""
    tier: str | None = None
    copy: CopyOut | None = None
    """What made the copy in `tier`, unless it was there from the start."""
    dropped: bool = False
    version: int = -1
    """The operator that wrote it last; -1: none in this step."""


@dataclass
class Listing:
    """All processes of a step in listed order, and the first overflow of a tier in that order."""

    processes: list[Process] = field(default_factory=list)
    overflow: tuple[int, dict[str, Any]] | None = None
    """How many processes are listed before it, and the answer."""
    tier_peaks: dict[str, int] = field(default_factory=dict)


def reference(profile: Profile, plan: Plan | None = None, hbm_bytes: int | None = None) -> dict[str, Any]:
    """`{"illegal": why}`, `{"oom": {op, short_bytes, tier}}`, or `{step_ns, peak_bytes, tier_peak_bytes}`.

    The budget is `hbm_bytes`, else the plan's, else the profile's.
    """
    plan = plan or EMPTY
    if hbm_bytes is None:
        hbm_bytes = plan.budget.hbm_bytes
    if hbm_bytes is None:
        hbm_bytes = profile.device.hbm_bytes
    try:
        listing = Lister(profile, plan).listing()
    except Illegal as illegal:
        return {"illegal": str(illegal)}
    at_start = profile.device.base_bytes + sum(
        s.bytes for s in profile.storages if s.resident_at_start and s.id not in plan.residency.initial
    )
    return Clock(listing, profile, at_start, hbm_bytes).run()


class Lister:
    """Follows the plan in listed order, without time: legality, tier memory, and what takes place (10)."""

    def __init__(self, profile: Profile, plan: Plan) -> None:
        self.profile, self.plan, self.residency = profile, plan, plan.residency
        self.places = {s.id: Place(block=(s.id, 0)) for s in profile.storages}
        self.out = Listing()
        self.budgets = plan.budget.tier_bytes(profile)
        self.used = dict.fromkeys(self.budgets, 0)
        self.out.tier_peaks = dict.fromkeys(self.budgets, 0)
        self.runs: list[Run] = []
        """The operators' own executions so far."""
        self.reads_version, self.last_version = self.profile_versions()
        self.executions_left = self.count_executions()
        self.copied: dict[int, list[float]] = {s.id: [] for s in profile.storages}
        """At which operators each storage was copied; back before k counts as k - 0.5."""

    def profile_versions(self) -> tuple[list[dict[int, int]], dict[int, int]]:
        """The version of each storage that each operator reads in the profile, and the last versions."""
        now = {s.id: -1 for s in self.profile.storages}
        read = []
        for k, operator in enumerate(self.profile.operators):
            read.append({s: now[s] for s in operator.reads})
            for s in operator.writes:
                now[s] = k
        return read, now

    def count_executions(self) -> dict[int, int]:
        """How many executions, recomputed ones too, are still to access each storage."""
        left = dict.fromkeys(self.places, 0)
        executed = list(range(len(self.profile.operators)))
        executed += [j for r in self.residency.recompute for j in r.ops if j < len(self.profile.operators)]
        for j in executed:
            for s in self.profile.operators[j].accesses:
                left[s] += 1
        return left

    def listing(self) -> Listing:
        self.check_positions()
        self.start()
        for k, operator in enumerate(self.profile.operators):
            for action in self.residency.actions:
                if action.op == k and action.kind == "copy_in":
                    self.copy_in(k, action.storage)
            for recompute in self.residency.recompute:
                if recompute.before_op == k:
                    self.not_swapped_too(k, recompute.storage)
                    for j in recompute.ops:
                        again = self.execute(j, k, COMPUTE, again=True)
                        self.free_by_last_access(j, k, again)
            run = self.execute(k, k, operator.stream, again=False)
            self.runs.append(run)
            for action in self.residency.actions:
                if action.op == k and action.kind == "copy_out":
                    self.copy_out(k, action.storage, action.tier or HOST, run)
                elif action.op == k and action.kind == "release":
                    self.release(k, action.storage, run)
                elif action.op == k and action.kind == "release_host":
                    self.release_host(k, action.storage)
            self.free_by_last_access(k, k, run)
        self.end()
        return self.out

    def check_positions(self) -> None:
        """(3) and the sides of section 3; (8) as far as it is about the recompute itself."""
        operators = self.profile.operators
        for action in self.residency.actions:
            if action.op >= len(operators):
                raise Illegal(f"no operator {action.op}")
            if action.storage not in self.places:
                raise Illegal(f"no storage {action.storage}")
            if operators[action.op].stream != COMPUTE:
                raise Illegal(f"operator {action.op} is not on the compute stream")
            if action.when != ("before" if action.kind == "copy_in" else "after"):
                raise Illegal(f"{action.kind} stands {action.when} operator {action.op}")
        for recompute in self.residency.recompute:
            k = recompute.before_op
            if k >= len(operators) or any(j >= len(operators) for j in recompute.ops):
                raise Illegal("a recompute names an operator that does not exist")
            if recompute.storage not in self.places:
                raise Illegal(f"no storage {recompute.storage}")
            if operators[k].stream != COMPUTE:
                raise Illegal(f"operator {k} is not on the compute stream")
            if any(j >= k for j in recompute.ops):
                raise Illegal(f"a recompute before {k} runs an operator not listed before {k}")
            if any(not operators[j].recomputable for j in recompute.ops):
                raise Illegal("an operator is not recomputable")
            if not any(recompute.storage in operators[j].writes for j in recompute.ops):
                raise Illegal(f"the recompute does not write storage {recompute.storage}")

    def arrive(self, place: Place) -> None:
        storage, stay = place.block
        place.in_hbm, place.block = True, (storage, stay + 1)

    def tier_exists(self, name: str) -> None:
        if self.budgets.get(name, 0) == 0:
            raise Illegal(f"no tier {name}")

    def start(self) -> None:
        for id, home in self.residency.initial.items():
            named = self.profile.by_id.get(id)
            if named is None:
                raise Illegal(f"no storage {id}")
            if not named.resident_at_start or not named.offloadable:
                raise Illegal(f"storage {id} cannot start outside HBM")
            self.tier_exists(home)
        for storage in self.profile.storages:
            if storage.resident_at_start:
                tier = self.residency.initial.get(storage.id)
                self.places[storage.id] = Place(block=(storage.id, 0), tier=tier)
                if tier is None:
                    self.arrive(self.places[storage.id])
                else:
                    self.used[tier] += storage.bytes
        for name in self.used:
            self.look_at_tier(0, name)

    def look_at_tier(self, op: int, tier: str) -> None:
        """(9) and the end of (2)."""
        short = self.used[tier] - self.budgets[tier]
        if short > 0 and self.out.overflow is None:
            answer = {"oom": {"op": op, "short_bytes": short, "tier": tier}}
            self.out.overflow = (len(self.out.processes), answer)
        self.out.tier_peaks[tier] = max(self.out.tier_peaks[tier], self.used[tier])

    def lose_host_copy(self, id: int) -> None:
        place = self.places[id]
        if place.tier is not None:
            self.used[place.tier] -= self.profile.by_id[id].bytes
        place.tier = place.copy = None

    def execute(self, j: int, k: int, stream: str, *, again: bool) -> Run:
        """Operator j runs, right before k if `again` (a recompute), else as itself."""
        operator = self.profile.operators[j]
        for s in operator.reads:
            if not self.places[s].in_hbm:
                raise Illegal(f"operator {j} at {k} reads storage {s}, which is not in HBM")
            if self.places[s].version != self.reads_version[j][s]:
                raise Illegal(f"operator {j} at {k} reads storage {s} in another version than in the profile")
        read = frozenset(self.places[s].block for s in operator.reads)
        fresh = set()
        for s in operator.writes:
            place = self.places[s]
            if not place.in_hbm:
                if place.tier is not None:
                    raise Illegal(f"operator {j} at {k} writes storage {s}, which is only in a tier")
                if place.dropped and not again:
                    raise Illegal(f"operator {j} at {k} writes storage {s}, which was dropped")
                fresh.add(s)
                self.arrive(place)
            self.lose_host_copy(s)
            place.dropped, place.version = False, j
        run = Run(
            op=k,
            ns=round(operator.duration_us * 1000),
            stream=stream,
            reads=read,
            writes=frozenset(self.places[s].block for s in operator.writes),
            fresh=frozenset(self.places[s].block for s in fresh),
            request=operator.workspace_bytes + sum(self.profile.by_id[s].bytes for s in fresh),
            workspace=operator.workspace_bytes,
        )
        self.out.processes.append(run)
        return run

    def free_by_last_access(self, j: int, k: int, run: Run) -> None:
        """(7)"""
        for s in self.profile.operators[j].accesses:
            self.executions_left[s] -= 1
            if self.executions_left[s] == 0 and not self.profile.by_id[s].resident_at_end:
                place = self.places[s]
                if place.in_hbm:
                    size = self.profile.by_id[s].bytes
                    self.out.processes.append(Release(k, block=place.block, bytes=size, after=run))
                self.lose_host_copy(s)
                place.in_hbm = False

    def not_swapped_too(self, k: int, id: int) -> None:
        """C17: a storage that is recomputed is not also copied in the same gap (so far)."""
        before = [j for j, o in enumerate(self.profile.operators[:k]) if id in o.accesses]
        if any(at >= max(before, default=-1) for at in self.copied[id]):
            raise Illegal(f"storage {id} is recomputed before {k} and copied in the same gap")

    def link(self, name: str, id: int, *, out: bool) -> tuple[int, tuple[str, str]]:
        """Nanoseconds of a copy and the queue that it stands in."""
        tier = self.profile.device.tiers[name]
        if (tier.d2h_bytes_per_s if out else tier.h2d_bytes_per_s) == 0:
            raise Illegal(f"no link {'to' if out else 'from'} tier {name}")
        direction = ("out" if out else "in") if tier.duplex else "both"
        return tier.copy_ns(self.profile.by_id[id].bytes, out=out), (name, direction)

    def copy_in(self, k: int, id: int) -> None:
        place = self.places[id]
        if place.tier is None:
            raise Illegal(f"copy_in of storage {id} before {k}: there is no copy outside HBM")
        if place.in_hbm:
            raise Illegal(f"copy_in of storage {id} before {k}: it is in HBM")
        time, queue = self.link(place.tier, id, out=False)
        compute = [run for run in self.runs if run.stream == COMPUTE]
        self.arrive(place)
        copy = CopyIn(
            op=k,
            ns=time,
            block=place.block,
            queue=queue,
            request=self.profile.by_id[id].bytes,
            source=place.copy,
            ended_before=compute[-1] if compute else None,
            started_before=self.runs[-1] if self.runs else None,
        )
        self.out.processes.append(copy)
        self.copied[id].append(k - 0.5)

    def copy_out(self, k: int, id: int, tier: str, run: Run) -> None:
        place = self.places[id]
        self.tier_exists(tier)
        if not self.profile.by_id[id].offloadable:
            raise Illegal(f"storage {id} is not offloadable")
        if not place.in_hbm:
            raise Illegal(f"copy_out of storage {id} after {k}: it is not in HBM")
        if place.tier is not None:
            return
        time, queue = self.link(tier, id, out=True)
        copy = CopyOut(op=k, ns=time, block=place.block, queue=queue, after=run)
        place.tier, place.copy = tier, copy
        self.copied[id].append(k)
        self.used[tier] += self.profile.by_id[id].bytes
        self.look_at_tier(k, tier)
        self.out.processes.append(copy)

    def release(self, k: int, id: int, run: Run) -> None:
        place = self.places[id]
        if not place.in_hbm:
            raise Illegal(f"release of storage {id} after {k}: it is not in HBM")
        place.in_hbm = False
        place.dropped = place.tier is None
        self.out.processes.append(Release(k, block=place.block, bytes=self.profile.by_id[id].bytes, after=run))

    def release_host(self, k: int, id: int) -> None:
        if not self.places[id].in_hbm or self.places[id].tier is None:
            raise Illegal(f"release_host of storage {id} after {k}: it is not in HBM and in a tier")
        self.lose_host_copy(id)

    def end(self) -> None:
        """(7), (8): the step repeats."""
        for storage in self.profile.storages:
            touched = any(storage.id in operator.accesses for operator in self.profile.operators)
            if not storage.resident_at_end and (touched or not storage.resident_at_start):
                continue
            place, tier = self.places[storage.id], self.residency.initial.get(storage.id)
            # Read here: in HBM with a spare copy in a tier counts as in HBM.
            there = place.in_hbm if tier is None else place.tier == tier and not place.in_hbm
            if not there:
                raise Illegal(f"storage {storage.id} does not end where it starts")
            if place.version != self.last_version[storage.id]:
                raise Illegal(f"storage {storage.id} does not end in its last version")


class Clock:
    """Lets the listed processes happen, each as early as the rules allow, one instant after another."""

    def __init__(self, listing: Listing, profile: Profile, used: int, budget: int) -> None:
        self.listing, self.profile, self.used, self.budget = listing, profile, used, budget
        self.all = listing.processes
        self.now, self.peak = 0, used
        self.queues: dict[tuple[str, str], list[Copy]] = {}
        self.queued: set[Copy] = set()

    def run(self) -> dict[str, Any]:
        if self.listing.overflow is not None and self.listing.overflow[0] == 0:
            return self.listing.overflow[1]
        if self.used > self.budget:
            return {"oom": {"op": 0, "short_bytes": self.used - self.budget, "tier": HBM}}
        while True:
            while self.end_something() or self.release_something() or self.copy_something() or self.start_next():
                pass
            ends = [p.started + p.ns for p in self.all if p.started is not None and p.ended is None]
            if not ends:
                break
            self.now = min(ends)
        head = self.head()
        if self.listing.overflow is not None:
            listed_before, answer = self.listing.overflow
            if head is None or self.all.index(head) >= listed_before:
                return answer
        if head is not None:
            short = self.used + head.request - self.budget
            assert self.may_start(head) and short > 0, "nothing but memory can hold back for ever"
            return {"oom": {"op": head.op, "short_bytes": short, "tier": HBM}}
        assert all(p.ended is not None for p in self.all)
        ends = [p.ended for p in self.all if isinstance(p, Run | Copy) and p.ended is not None]
        return {
            "step_ns": max(ends, default=0),
            "peak_bytes": self.peak,
            "tier_peak_bytes": self.listing.tier_peaks,
        }

    def earlier(self, process: Process) -> list[Process]:
        """What is listed before it and has not ended."""
        return [p for p in self.all[: self.all.index(process)] if p.ended is None]

    def end_something(self) -> bool:
        changed = False
        for p in self.all:
            if p.started is not None and p.ended is None and p.started + p.ns == self.now:
                p.ended = self.now
                if isinstance(p, Run):
                    self.used -= p.workspace
                changed = True
        return changed

    def release_something(self) -> bool:
        """(5), (7): after its operator, and when every earlier access and copy of the storage has ended."""
        for p in self.all:
            if not isinstance(p, Release) or p.ended is not None or not p.operator_ended():
                continue
            if not any(q.touches(p.block) for q in self.earlier(p)):
                p.started = p.ended = self.now
                self.used -= p.bytes
                return True
        return False

    def copy_something(self) -> bool:
        """(3), (4): copies out are issued as their operator ends; each queue goes on with its first."""
        for p in self.all:
            if isinstance(p, CopyOut) and p not in self.queued and p.operator_ended():
                self.enqueue(p)
                return True
        for queue in self.queues.values():
            copy = next((c for c in queue if c.ended is None), None)
            if copy is not None and copy.started is None:
                if isinstance(copy, CopyIn):
                    ready = copy.source is None or copy.source.ended is not None
                else:
                    ready = not any(q.fills(copy.block) for q in self.earlier(copy))
                if ready:
                    copy.started = self.now
                    return True
        return False

    def enqueue(self, copy: Copy) -> None:
        self.queues.setdefault(copy.queue, []).append(copy)
        self.queued.add(copy)

    def head(self) -> Run | CopyIn | None:
        """The first in listed order that is not started or issued: all after it are held back (1, 2, 3)."""
        for p in self.all:
            if isinstance(p, Run) and p.started is None:
                return p
            if isinstance(p, CopyIn) and p not in self.queued:
                return p
        return None

    def may_start(self, p: Run | CopyIn) -> bool:
        """All conditions but memory."""
        if isinstance(p, CopyIn):
            ended = p.ended_before is None or p.ended_before.ended is not None
            return ended and (p.started_before is None or p.started_before.started is not None)
        before = self.earlier(p)
        if any(isinstance(q, Run) and q.stream == p.stream for q in before):
            return False
        if any(q.fills(s) for q in before for s in p.reads):
            return False
        return not any(q.touches(s) for q in before for s in p.writes - p.fresh)

    def start_next(self) -> bool:
        p = self.head()
        if p is None or not self.may_start(p) or self.used + p.request > self.budget:
            return False
        self.used += p.request
        self.peak = max(self.peak, self.used)
        if isinstance(p, CopyIn):
            self.enqueue(p)
        else:
            p.started = self.now
        return True
