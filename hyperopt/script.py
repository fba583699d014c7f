"""What a plan makes of a step, in listed order: one flat list of instructions, before any time is known.

::

    operators   0        1                    2        3
    plan                 ├─ out, release A    │        in A ─┤
    script      EXEC 0 · EXEC 1 · OUT A · RELEASE A · EXEC 2 · IN A · EXEC 3 · RELEASE A (last access)

Legality (rules 3 to 8), tier memory (rule 9) and "out of memory" (rule 2) depend on listed order alone, so they
are judged here. Out of memory does so too: everything released earlier in listed order is a release under way,
sure to come, so an allocation fails exactly when what is *not* released by then leaves too little room.
`replay` adds the clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NoReturn

from hyperopt.legality import Code, IllegalPlan, OutOfMemory, Violation
from hyperopt.plan import HOST, Action, Plan, Recompute
from hyperopt.profile import COMPUTE, Profile

EXEC, RERUN, COPY_IN, COPY_OUT, RELEASE = range(5)
"""Instruction codes; the argument is an operator for EXEC and RERUN, else a storage's position in the profile."""


@dataclass(slots=True)
class Script:
    """`codes[i]`, `args[i]`: instruction i; `at[i]`: the operator it stands at; `tier[i]`: of a copy, else "".

    `starts_out`: storages that `initial` places in a tier. `static_peak`: the smallest HBM budget (bytes, base
    included) with which the script runs, set at operator `static_peak_op`.
    """

    codes: list[int] = field(default_factory=list)
    args: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    tier: dict[int, str] = field(default_factory=dict)
    starts_out: list[int] = field(default_factory=list)
    tier_peak_bytes: dict[str, int] = field(default_factory=dict)
    static_peak: int = 0
    static_peak_op: int = 0

    def add(self, code: int, arg: int, op: int) -> None:
        self.codes.append(code)
        self.args.append(arg)
        self.at.append(op)


class Program:
    """A profile's operators and storages by position, with what both passes of the replay look up.

    Storages are numbered by position in the profile (`position[id]`).
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.tiers = profile.device.tiers
        position = {storage.id: i for i, storage in enumerate(profile.storages)}
        self.position = position
        self.size = [storage.bytes for storage in profile.storages]
        self.reads = [[position[id] for id in dict.fromkeys(o.reads)] for o in profile.operators]
        self.writes = [[position[id] for id in dict.fromkeys(o.writes)] for o in profile.operators]
        self.workspace = [o.workspace_bytes for o in profile.operators]
        self.duration = [round(o.duration_us * 1000) for o in profile.operators]
        streams = {COMPUTE: 0}
        self.stream = [streams.setdefault(o.stream, len(streams)) for o in profile.operators]
        self.streams = len(streams)
        self.last_access = [-1] * len(self.size)
        writers: list[list[int]] = [[] for _ in self.size]
        for op, (reads, writes) in enumerate(zip(self.reads, self.writes, strict=True)):
            for s in reads:
                self.last_access[s] = op
            for s in writes:
                self.last_access[s] = op
                writers[s].append(op)
        self.writers = writers
        self.resident = [s.resident_at_start for s in profile.storages]
        self.stays = [s.resident_at_end for s in profile.storages]
        # What no operator touches stays all step too (rule 7), though nothing needs it at the end.
        self.returns = [
            stays or (there and last < 0)
            for stays, there, last in zip(self.stays, self.resident, self.last_access, strict=True)
        ]
        self.dying: list[list[int]] = [[] for _ in profile.operators]
        for s, op in enumerate(self.last_access):
            if op >= 0 and not self.stays[s]:
                self.dying[op].append(s)

    def version_before(self, storage: int, op: int) -> int:
        """The operator whose write of `storage` operator `op` finds in the profile; -1: as at step start."""
        before = bisect_left(self.writers[storage], op)
        return self.writers[storage][before - 1] if before else -1


def program_of(profile: Profile) -> Program:
    """The profile's `Program`, made once and kept with it."""
    found = profile.__dict__.get("_program")
    if found is None:
        found = profile.__dict__["_program"] = Program(profile)
    assert isinstance(found, Program)
    return found


def write_script(profile: Profile, plan: Plan, hbm_bytes: int | None) -> Script:
    """The script of a plan.

    Raises `IllegalPlan` with the first violation in listed order, else `OutOfMemory` at the first operator that
    does not fit `hbm_bytes` (None: no limit) or a tier's budget.
    """
    walk = _Walk(program_of(profile), plan, hbm_bytes)
    script = walk.run()
    if walk.out_of_memory is not None:  # rule 10: memory is judged after legality
        raise walk.out_of_memory
    return script


class _Walk:
    """One pass in listed order; the state is what rules 4 to 8 speak of, per storage position."""

    def __init__(self, program: Program, plan: Plan, hbm_bytes: int | None) -> None:
        self.program, self.plan, self.hbm_bytes = program, plan, hbm_bytes
        self.out_of_memory: OutOfMemory | None = None
        self.late_deaths: dict[tuple[int, int], list[int]] = {}
        self.script = Script()
        count = len(program.size)
        self.in_hbm = list(program.resident)
        self.in_tier: list[str | None] = [None] * count
        self.dropped = [False] * count
        self.version = [-1] * count
        # Storages copied, out or back, since their last ordinary access: not to be recomputed too (C17).
        self.copied_since_access: set[int] = set()
        self.tier_budget = {name: size for name, size in plan.budget.tier_bytes(program.profile).items() if size > 0}
        self.tiers = {name: program.tiers[name] for name in self.tier_budget}  # 0 bytes: no such tier
        self.tier_used = dict.fromkeys(self.tiers, 0)
        self.script.tier_peak_bytes = dict.fromkeys(program.tiers, 0)
        self.used = program.profile.device.base_bytes

    def run(self) -> Script:
        before, after, reruns = self._by_operator()
        self._start()
        program, script = self.program, self.script
        dying = self._dying(reruns) if reruns else program.dying
        for op in range(len(program.duration)):
            for action in before.get(op, ()):
                self._copy_in(op, action)
            for r, recompute in reruns.get(op, ()):
                for j, rerun in enumerate(recompute.ops):
                    self._execute(op, rerun, RERUN)
                    self._free(op, self.late_deaths.get((r, j), []))
                self._check_not_swapped(op, recompute)
            self._execute(op, op, EXEC)
            for action in after.get(op, ()):
                self._after(op, action)
            self._free(op, dying[op])
        self._end()
        return script

    # -- the plan by operator ------------------------------------------------------------------------------

    def _by_operator(
        self,
    ) -> tuple[dict[int, list[Action]], dict[int, list[Action]], dict[int, list[tuple[int, Recompute]]]]:
        before: dict[int, list[Action]] = defaultdict(list)
        after: dict[int, list[Action]] = defaultdict(list)
        reruns: dict[int, list[tuple[int, Recompute]]] = defaultdict(list)
        for action in self.plan.residency.actions:
            self._check_place(action.op, action.storage)
            if (action.kind == "copy_in") != (action.when == "before"):
                self._refuse(Code.WRONG_SIDE, action.op, action.storage, f"{action.kind} {action.when} an operator")
            (before if action.when == "before" else after)[action.op].append(action)
        for i, recompute in enumerate(self.plan.residency.recompute):
            self._check_place(recompute.before_op, recompute.storage)
            self._check_recompute(recompute)
            reruns[recompute.before_op].append((i, recompute))
        return before, after, reruns

    def _check_place(self, op: int, storage: int) -> None:
        operators = self.program.profile.operators
        if op >= len(operators):
            self._refuse(Code.UNKNOWN_OPERATOR, op, storage, f"there are {len(operators)} operators")
        if storage not in self.program.position:
            self._refuse(Code.UNKNOWN_STORAGE, op, storage, "the profile has no such storage")
        if operators[op].stream != COMPUTE:
            self._refuse(Code.WRONG_STREAM, op, storage, f"operator {op} is on stream {operators[op].stream!r}")

    def _check_recompute(self, recompute: Recompute) -> None:
        operators, storage = self.program.profile.operators, recompute.storage
        for op in recompute.ops:
            if op >= len(operators):
                self._refuse(Code.UNKNOWN_OPERATOR, op, storage, f"there are {len(operators)} operators")
            if op >= recompute.before_op:
                self._refuse(Code.RECOMPUTE_NOT_BEFORE, op, storage, f"it runs again before {recompute.before_op}")
            if not operators[op].recomputable:
                self._refuse(Code.NOT_RECOMPUTABLE, op, storage, f"operator {op} may not run again")
        if not any(storage in operators[op].writes for op in recompute.ops):
            self._refuse(Code.RECOMPUTE_WITHOUT_WRITER, recompute.before_op, storage, "none of its operators writes it")

    def _dying(self, reruns: dict[int, list[tuple[int, Recompute]]]) -> list[list[int]]:
        """Storages to free after each operator, where recomputed executions lengthen lifetimes (rule 7).

        Those that die at a recomputed execution go to `late_deaths[(recompute, position in its list)]`.
        """
        program = self.program
        last: dict[int, tuple[int, int]] = {}
        for op in sorted(reruns):
            for i, recompute in reruns[op]:
                for j, rerun in enumerate(recompute.ops):
                    for s in (*program.reads[rerun], *program.writes[rerun]):
                        if program.last_access[s] < op and not program.stays[s]:
                            last[s] = (i, j)
        for s, place in last.items():
            self.late_deaths.setdefault(place, []).append(s)
        return [[s for s in dying if s not in last] for dying in program.dying]

    # -- the step ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        program = self.program
        for id, tier in self.plan.residency.initial.items():
            s = program.position.get(id)
            if s is None:
                self._refuse(Code.UNKNOWN_STORAGE, None, id, "initial names a storage that does not exist")
            if tier not in self.tiers:
                self._refuse(Code.UNKNOWN_TIER, None, id, f"no tier {tier!r}")
            if not program.resident[s]:
                self._refuse(Code.INITIAL_NOT_RESIDENT, None, id, "initial is for storages resident at start")
            if not program.profile.storages[s].offloadable:
                self._refuse(Code.NOT_OFFLOADABLE, None, id, "not offloadable")
            self.in_hbm[s] = False
            self.script.starts_out.append(s)
            self._take_tier(s, tier)
        for tier in self.tiers:
            self._check_tier(0, tier)
        self.used += sum(size for size, there in zip(program.size, self.in_hbm, strict=True) if there)
        self.script.static_peak = self.used
        self._check_room(0, 0)

    def _execute(self, op: int, executed: int, code: int) -> None:
        program, in_hbm = self.program, self.in_hbm
        reads, writes = program.reads[executed], program.writes[executed]
        for s in reads:
            if not in_hbm[s]:
                dropped = self.dropped[s]
                why = "was released without a copy" if dropped else "is not in HBM"
                which = Code.READ_OF_DROPPED if dropped else Code.READ_NOT_IN_HBM
                self._refuse(which, op, self._id(s), f"operator {executed} reads it and it {why}")
            if self.version[s] != program.version_before(s, executed):
                written = "as at the start" if self.version[s] < 0 else f"as operator {self.version[s]} wrote it"
                self._refuse(Code.WRONG_VERSION, op, self._id(s), f"operator {executed} would read it {written}")
        need = program.workspace[executed]
        for s in writes:
            if not in_hbm[s]:
                if self.in_tier[s] is not None:
                    self._refuse(Code.WRITE_NOT_IN_HBM, op, self._id(s), f"operator {executed} writes it in a tier")
                if self.dropped[s] and code == EXEC:
                    self._refuse(Code.WRITE_OF_DROPPED, op, self._id(s), "only a recompute may bring it back")
                need += program.size[s]
        self._check_room(op, need)
        for s in writes:
            if not in_hbm[s]:
                in_hbm[s] = True
                self.used += program.size[s]
            self.dropped[s] = False
            self.version[s] = executed
            if self.in_tier[s] is not None:
                self._give_tier(s)
        if self.copied_since_access and code == EXEC:
            self.copied_since_access.difference_update(reads, writes)
        self.script.add(code, executed, op)

    def _copy_in(self, op: int, action: Action) -> None:
        s = self.program.position[action.storage]
        tier = self.in_tier[s]
        if tier is None:
            self._refuse(Code.COPY_IN_WITHOUT_COPY, op, action.storage, "it has no copy outside HBM")
        if self.in_hbm[s]:
            self._refuse(Code.COPY_IN_ALREADY_IN_HBM, op, action.storage, "it is in HBM")
        if not self.tiers[tier].h2d_bytes_per_s:
            self._refuse(Code.NO_LINK, op, action.storage, f"no bandwidth from tier {tier!r}")
        self._check_room(op, self.program.size[s])
        self.in_hbm[s] = True
        self.used += self.program.size[s]
        self.copied_since_access.add(s)
        self.script.tier[len(self.script.codes)] = tier
        self.script.add(COPY_IN, s, op)

    def _after(self, op: int, action: Action) -> None:
        s = self.program.position[action.storage]
        {"copy_out": self._copy_out, "release": self._release, "release_host": self._release_host}[action.kind](
            op, s, action
        )

    def _copy_out(self, op: int, s: int, action: Action) -> None:
        tier = action.tier or HOST
        if tier not in self.tiers:
            self._refuse(Code.UNKNOWN_TIER, op, action.storage, f"no tier {tier!r}")
        if not self.program.profile.storages[s].offloadable:
            self._refuse(Code.NOT_OFFLOADABLE, op, action.storage, "not offloadable")
        if not self.in_hbm[s]:
            self._refuse(Code.COPY_OUT_NOT_IN_HBM, op, action.storage, "it is not in HBM")
        if self.in_tier[s] is not None:  # rule 4: the copy is still valid, no bytes move
            return
        if not self.tiers[tier].d2h_bytes_per_s:
            self._refuse(Code.NO_LINK, op, action.storage, f"no bandwidth to tier {tier!r}")
        self._take_tier(s, tier)
        self._check_tier(op, tier)
        self.copied_since_access.add(s)
        self.script.tier[len(self.script.codes)] = tier
        self.script.add(COPY_OUT, s, op)

    def _release(self, op: int, s: int, action: Action) -> None:
        if not self.in_hbm[s]:
            self._refuse(Code.RELEASE_NOT_IN_HBM, op, action.storage, "it is not in HBM")
        self.dropped[s] = self.in_tier[s] is None
        self._leave(op, s)

    def _release_host(self, op: int, s: int, action: Action) -> None:
        if not self.in_hbm[s] or self.in_tier[s] is None:
            self._refuse(Code.RELEASE_HOST_ILLEGAL, op, action.storage, "it must be in HBM and in a tier")
        self._give_tier(s)

    def _free(self, op: int, dying: list[int]) -> None:
        """Frees by last access (rule 7), the copy outside HBM included (rule 9)."""
        for s in dying:
            if self.in_hbm[s]:
                self._leave(op, s)
            if self.in_tier[s] is not None:
                self._give_tier(s)

    def _end(self) -> None:
        last = len(self.program.duration) - 1
        for s, storage in enumerate(self.program.profile.storages):
            if not self.program.returns[s]:
                continue
            tier = self.plan.residency.initial.get(storage.id)
            if tier is None and not self.in_hbm[s]:
                self._refuse(Code.END_LOCATION, last, storage.id, "it starts in HBM and does not end there")
            if tier is not None and (self.in_hbm[s] or self.in_tier[s] != tier):
                self._refuse(Code.END_LOCATION, last, storage.id, f"it starts in tier {tier!r} and does not end there")
            if self.version[s] != self.program.version_before(s, last + 1):
                self._refuse(Code.END_VERSION, last, storage.id, "it does not end in its last version")

    def _check_not_swapped(self, op: int, recompute: Recompute) -> None:
        if self.program.position[recompute.storage] in self.copied_since_access:
            self._refuse(Code.RECOMPUTE_AND_SWAP, op, recompute.storage, "recomputed and copied in the same gap")

    # -- memory --------------------------------------------------------------------------------------------

    def _check_room(self, op: int, need: int) -> None:
        total = self.used + need
        if total > self.script.static_peak:
            self.script.static_peak, self.script.static_peak_op = total, op
        if self.hbm_bytes is not None and total > self.hbm_bytes and self.out_of_memory is None:
            self.out_of_memory = OutOfMemory(op, total - self.hbm_bytes)

    def _leave(self, op: int, s: int) -> None:
        self.in_hbm[s] = False
        self.used -= self.program.size[s]
        self.script.add(RELEASE, s, op)

    def _take_tier(self, s: int, tier: str) -> None:
        self.in_tier[s] = tier
        used = self.tier_used[tier] = self.tier_used[tier] + self.program.size[s]
        self.script.tier_peak_bytes[tier] = max(self.script.tier_peak_bytes[tier], used)

    def _check_tier(self, op: int, tier: str) -> None:
        short = self.tier_used[tier] - self.tier_budget[tier]
        if short > 0 and self.out_of_memory is None:
            self.out_of_memory = OutOfMemory(op, short, tier)

    def _give_tier(self, s: int) -> None:
        tier = self.in_tier[s]
        assert tier is not None
        self.tier_used[tier] -= self.program.size[s]
        self.in_tier[s] = None

    # -- refusals ------------------------------------------------------------------------------------------

    def _id(self, s: int) -> int:
        return self.program.profile.storages[s].id

    def _refuse(self, code: Code, op: int | None, storage: int | None, why: str) -> NoReturn:
        where = "at the start of the step" if op is None else f"at operator {op}"
        raise IllegalPlan(Violation(code, op, storage, f"storage {storage} {where}: {why}"))
