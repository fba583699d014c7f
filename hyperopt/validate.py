"""A second judge of plans, apart from replay and solver: names every violation.

Where `script` walks the step once with all storages in hand, this one tells the story of one storage at a time
(its accesses, recomputed accesses and actions, sorted by position), and then adds the storages up. The two share
the documents and the names of violations, no code.

Positions in listed order, at operator k::

    (k, 0) copy_in   (k, 1) recomputed executions   (k, 2) the operator   (k, 3) actions after   (k, 4) frees
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from hyperopt.legality import Code, Violation
from hyperopt.plan import HOST, Plan
from hyperopt.profile import COMPUTE, Profile, Storage, Tier

BEFORE, AGAIN, ITSELF, AFTER, FREES = range(5)

Position = tuple[int, int, int, int]
"""(operator, one of the five above, index of the action or recompute, position in the recompute's list)."""

START: Position = (-1, 0, 0, 0)


@dataclass(slots=True)
class _Event:
    at: Position
    what: str  # "access", "free", or the kind of an action
    op: int = -1  # accesses: the operator executed
    reads: bool = False
    writes: bool = False
    tier: str = HOST


@dataclass(slots=True)
class _Use:
    """Bytes taken and given back, by position: the HBM and the tiers, to be swept once all are known."""

    deltas: dict[str, list[tuple[Position, int]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, place: str, at: Position, size: int) -> None:
        self.deltas[place].append((at, size))


def validate(profile: Profile, plan: Plan, hbm_bytes: int | None = None) -> list[Violation]:
    """Every violation of docs/reference/execution-model.md by a plan, in listed order; empty for a plan that can run.

    Memory is judged only where there is no other violation (rule 10). The HBM budget is `hbm_bytes` if given,
    else the plan's, else none.
    """
    found: list[Violation] = []
    events = _events(profile, plan, found)
    use = _Use()
    found += [
        Violation(Code.UNKNOWN_STORAGE, None, id, f"initial: the profile has no storage {id}")
        for id in plan.residency.initial.keys() - profile.by_id.keys()
    ]
    for storage in profile.storages:
        found += _Story(profile, plan, storage, use).violations(events.get(storage.id, []))
    if not found:
        limit = hbm_bytes if hbm_bytes is not None else plan.budget.hbm_bytes
        found += _over_budget(profile, plan, limit, use)
    return sorted(found, key=lambda v: (-1 if v.op is None else v.op, v.code))


def _events(profile: Profile, plan: Plan, found: list[Violation]) -> dict[int, list[_Event]]:
    """Accesses and actions by storage id; what stands in an impossible place is reported and left out."""
    events: dict[int, list[_Event]] = defaultdict(list)
    for k, operator in enumerate(profile.operators):
        for id in operator.accesses:
            access = _Event((k, ITSELF, 0, 0), "access", k, id in operator.reads, id in operator.writes)
            events[id].append(access)
    for i, action in enumerate(plan.residency.actions):
        if misplaced := list(_misplaced(profile, action.op, action.storage)):
            found += misplaced
            continue
        side = BEFORE if action.kind == "copy_in" else AFTER
        if (action.when == "before") != (side == BEFORE):
            message = f"{action.kind} cannot stand {action.when} an operator"
            found.append(Violation(Code.WRONG_SIDE, action.op, action.storage, message))
            continue
        events[action.storage].append(_Event((action.op, side, i, 0), action.kind, tier=action.tier or HOST))
    for i, recompute in enumerate(plan.residency.recompute):
        broken = list(_misplaced(profile, recompute.before_op, recompute.storage))
        broken = broken or list(_broken_recompute(profile, recompute.storage, recompute.before_op, recompute.ops))
        found += broken
        for j, op in enumerate(() if broken else recompute.ops):
            operator = profile.operators[op]
            at = (recompute.before_op, AGAIN, i, j)
            for id in operator.accesses:
                events[id].append(_Event(at, "access", op, id in operator.reads, id in operator.writes))
    for own in events.values():
        own.sort(key=lambda event: event.at)
    return events


def _misplaced(profile: Profile, op: int, storage: int) -> Iterator[Violation]:
    if storage not in profile.by_id:
        yield Violation(Code.UNKNOWN_STORAGE, op, storage, f"the profile has no storage {storage}")
    if op >= len(profile.operators):
        message = f"operator {op} of {len(profile.operators)} does not exist"
        yield Violation(Code.UNKNOWN_OPERATOR, op, storage, message)
    elif profile.operators[op].stream != COMPUTE:
        message = f"operator {op} runs on stream {profile.operators[op].stream!r}, not on {COMPUTE!r}"
        yield Violation(Code.WRONG_STREAM, op, storage, message)


def _broken_recompute(profile: Profile, storage: int, before: int, ops: tuple[int, ...]) -> Iterator[Violation]:
    for op in ops:
        if op >= len(profile.operators):
            message = f"operator {op} of {len(profile.operators)} does not exist"
            yield Violation(Code.UNKNOWN_OPERATOR, before, storage, message)
        elif op >= before:
            message = f"operator {op} is not listed before operator {before}"
            yield Violation(Code.RECOMPUTE_NOT_BEFORE, before, storage, message)
        elif not profile.operators[op].recomputable:
            yield Violation(Code.NOT_RECOMPUTABLE, before, storage, f"operator {op} may not run again")
    if all(op >= len(profile.operators) or storage not in profile.operators[op].writes for op in ops):
        message = f"none of the operators {list(ops)} writes storage {storage}"
        yield Violation(Code.RECOMPUTE_WITHOUT_WRITER, before, storage, message)


class _Story:
    """What happens to one storage in a step; goes on after a violation as if the fault had been mended."""

    def __init__(self, profile: Profile, plan: Plan, storage: Storage, use: _Use) -> None:
        self.profile, self.plan, self.storage, self.use = profile, plan, storage, use
        self.tiers = _tiers(profile, plan)
        self.found: list[Violation] = []
        self.in_hbm = False
        self.tier: str | None = None
        self.dropped = False
        self.untouched = False
        self.content = -1  # the operator that wrote what the storage holds
        self.swapped = False  # copied since the last ordinary access

    def violations(self, events: list[_Event]) -> list[Violation]:
        self._start()
        self.untouched = not any(event.what == "access" for event in events)
        for event in self._with_free(events):
            if event.what == "access":
                self._access(event)
            else:
                self._act(event)
        self._end()
        return self.found

    def _with_free(self, events: list[_Event]) -> list[_Event]:
        """The events and, after the last access, recomputed ones included, the free that it brings (rule 7)."""
        accesses = [event.at for event in events if event.what == "access"]
        if self.storage.resident_at_end or not accesses:
            return events
        last = accesses[-1]
        at = (last[0], FREES, 0, 0) if last[1] == ITSELF else last
        return sorted([*events, _Event(at, "free")], key=lambda event: event.at)  # stable: after its access

    def _start(self) -> None:
        tier = self.plan.residency.initial.get(self.storage.id)
        if tier is None:
            if self.storage.resident_at_start:
                self._arrive(START)
            return
        if tier not in self.tiers:
            self._say(Code.UNKNOWN_TIER, None, f"no tier {tier!r}")
        if not self.storage.resident_at_start:
            self._say(Code.INITIAL_NOT_RESIDENT, None, "initial is for storages that are resident at start")
        elif not self.storage.offloadable:
            self._say(Code.NOT_OFFLOADABLE, None, "it may not leave HBM")
        self._take(START, tier)

    def _access(self, event: _Event) -> None:
        again = event.at[1] == AGAIN
        if event.reads:
            self._read(event)
        if event.writes:
            if not self.in_hbm:
                if self.tier is not None:
                    self._say(
                        Code.WRITE_NOT_IN_HBM,
                        event.at[0],
                        f"operator {event.op} writes it in tier {self.tier}",
                    )
                elif self.dropped and not again:
                    self._say(
                        Code.WRITE_OF_DROPPED,
                        event.at[0],
                        "only a recompute may bring a dropped storage back",
                    )
                self._arrive(event.at)
            if again and self.swapped and self._is_target(event):
                self._say(Code.RECOMPUTE_AND_SWAP, event.at[0], "it is recomputed and copied in the same gap")
            self.content, self.dropped = event.op, False
            if self.tier is not None:
                self._give(event.at)
        if not again:
            self.swapped = False

    def _read(self, event: _Event) -> None:
        at = event.at[0]
        if not self.in_hbm:
            if self.dropped and self._in_cycle(event):
                self._say(Code.RECOMPUTE_CYCLE, at, f"recomputing it needs what operator {event.op} makes of it")
            elif self.dropped:
                self._say(Code.READ_OF_DROPPED, at, f"operator {event.op} reads it after its release without a copy")
            else:
                self._say(Code.READ_NOT_IN_HBM, at, f"operator {event.op} reads it while it is not in HBM")
            self._arrive(event.at)
            self.dropped = False
        elif self.content != (expected := self._version_for(event.op)):
            message = f"operator {event.op} would read what {_writer(self.content)} left, not {_writer(expected)}"
            self._say(Code.WRONG_VERSION, at, message)

    def _act(self, event: _Event) -> None:
        {
            "copy_in": self._copy_in,
            "copy_out": self._copy_out,
            "release": self._release,
            "release_host": self._release_host,
            "free": self._free,
        }[event.what](event)

    def _copy_in(self, event: _Event) -> None:
        at = event.at[0]
        if self.tier is None:
            self._say(Code.COPY_IN_WITHOUT_COPY, at, "no tier has a copy of it")
        elif self.in_hbm:
            self._say(Code.COPY_IN_ALREADY_IN_HBM, at, "it is in HBM already")
        elif self.tier in self.tiers and not self.tiers[self.tier].h2d_bytes_per_s:
            self._say(Code.NO_LINK, at, f"no bandwidth from tier {self.tier!r}")
        if not self.in_hbm:
            self._arrive(event.at)
        self.swapped, self.dropped = True, False

    def _copy_out(self, event: _Event) -> None:
        at = event.at[0]
        if event.tier not in self.tiers:
            self._say(Code.UNKNOWN_TIER, at, f"no tier {event.tier!r}")
        if not self.storage.offloadable:
            self._say(Code.NOT_OFFLOADABLE, at, "it may not leave HBM")
        if not self.in_hbm:
            self._say(Code.COPY_OUT_NOT_IN_HBM, at, "it is not in HBM")
        elif self.tier is None:
            if event.tier in self.tiers and not self.tiers[event.tier].d2h_bytes_per_s:
                self._say(Code.NO_LINK, at, f"no bandwidth to tier {event.tier!r}")
            self._take(event.at, event.tier)
            self.swapped = True

    def _release(self, event: _Event) -> None:
        if not self.in_hbm:
            self._say(Code.RELEASE_NOT_IN_HBM, event.at[0], "it is not in HBM")
            return
        self.dropped = self.tier is None
        self._leave(event.at)

    def _release_host(self, event: _Event) -> None:
        if self.tier is None or not self.in_hbm:
            self._say(Code.RELEASE_HOST_ILLEGAL, event.at[0], "it must be both in HBM and in a tier")
        if self.tier is not None:
            self._give(event.at)

    def _free(self, event: _Event) -> None:
        if self.in_hbm:
            self._leave(event.at)
        if self.tier is not None:
            self._give(event.at)
        self.dropped = False

    def _end(self) -> None:
        stays = self.storage.resident_at_start and self.untouched
        if not self.storage.resident_at_end and not stays:
            return
        last = len(self.profile.operators) - 1
        home = self.plan.residency.initial.get(self.storage.id)
        if home is None and not self.in_hbm:
            self._say(Code.END_LOCATION, last, "it must end in HBM, where the next step expects it")
        if home is not None and (self.in_hbm or self.tier != home):
            self._say(Code.END_LOCATION, last, f"it must end in tier {home!r}, where the next step expects it")
        if self.content != self._version_for(last + 1):
            self._say(Code.END_VERSION, last, f"it ends with what {_writer(self.content)} left")

    # -- places and names ----------------------------------------------------------------------------------

    def _arrive(self, at: Position) -> None:
        self.in_hbm = True
        self.use.add("hbm", at, self.storage.bytes)

    def _leave(self, at: Position) -> None:
        self.in_hbm = False
        self.use.add("hbm", at, -self.storage.bytes)

    def _take(self, at: Position, tier: str) -> None:
        self.tier = tier
        self.use.add("tier " + tier, at, self.storage.bytes)

    def _give(self, at: Position) -> None:
        self.use.add(f"tier {self.tier}", at, -self.storage.bytes)
        self.tier = None

    def _version_for(self, op: int) -> int:
        """The operator that wrote what operator `op` finds in this storage in the profile."""
        writers = [k for k in self._writers() if k < op]
        return writers[-1] if writers else -1

    def _writers(self) -> list[int]:
        cache: dict[int, list[int]] | None = self.profile.__dict__.get("_writers_by_storage")
        if cache is None:
            cache = defaultdict(list)
            for k, operator in enumerate(self.profile.operators):
                for id in set(operator.writes):
                    cache[id].append(k)
            self.profile.__dict__["_writers_by_storage"] = cache
        return cache.get(self.storage.id, [])

    def _is_target(self, event: _Event) -> bool:
        return self.plan.residency.recompute[event.at[2]].storage == self.storage.id

    def _in_cycle(self, event: _Event) -> bool:
        """Whether a later recompute before the same operator makes this storage from the one now being made."""
        if event.at[1] != AGAIN:
            return False
        recomputes = self.plan.residency.recompute
        now = recomputes[event.at[2]]
        return any(
            other.storage == self.storage.id
            and any(now.storage in self.profile.operators[op].reads for op in other.ops)
            for other in recomputes
            if other.before_op == now.before_op and other is not now
        )

    def _say(self, code: Code, op: int | None, message: str) -> None:
        where = "at step start" if op is None else f"at operator {op}"
        named = f"storage {self.storage.id}" + (f" ({self.storage.name})" if self.storage.name else "")
        self.found.append(Violation(code, op, self.storage.id, f"{named} {where}: {message}"))


def _tiers(profile: Profile, plan: Plan) -> dict[str, Tier]:
    """The tiers that exist under the plan's budget: one of 0 bytes does not."""
    budget = plan.budget.tier_bytes(profile)
    return {name: tier for name, tier in profile.device.tiers.items() if budget[name]}


def _writer(op: int) -> str:
    return "the step before" if op < 0 else f"operator {op}"


def _over_budget(profile: Profile, plan: Plan, limit: int | None, use: _Use) -> list[Violation]:
    found: list[Violation] = []
    if limit is not None:
        workspace = [((k, ITSELF, 0, 0), o.workspace_bytes) for k, o in enumerate(profile.operators)]
        for i, recompute in enumerate(plan.residency.recompute):
            for j, op in enumerate(recompute.ops):
                workspace.append(((recompute.before_op, AGAIN, i, j), profile.operators[op].workspace_bytes))
        needs: dict[Position, int] = defaultdict(int, {at: size for at, size in workspace if size})
        for at, over in _excesses(use.deltas["hbm"], needs, profile.device.base_bytes, limit):
            message = f"out of memory at operator {max(at[0], 0)}: {over} bytes over the budget of {limit}"
            found.append(Violation(Code.OUT_OF_MEMORY, max(at[0], 0), None, message))
            break  # what follows the first is not a fault of its own
    for tier, budget in plan.budget.tier_bytes(profile).items():
        for at, over in _excesses(use.deltas["tier " + tier], {}, 0, budget):
            message = f"tier {tier!r} is {over} bytes over its budget of {budget} at operator {max(at[0], 0)}"
            found.append(Violation(Code.TIER_OUT_OF_MEMORY, max(at[0], 0), None, message))
            break
    return found


def _excesses(
    deltas: list[tuple[Position, int]], transient: dict[Position, int], base: int, limit: int
) -> Iterator[tuple[Position, int]]:
    """Positions where what is in use exceeds the limit, and by how much.

    A position both takes and gives only where a recomputed execution is a storage's last access: in that order.
    """
    by_position: dict[Position, list[int]] = defaultdict(list, {at: [] for at in transient})
    for at, size in deltas:
        by_position[at].append(size)
    used = base
    if base > limit:
        yield START, base - limit
    for at in sorted(by_position):
        taken = sum(size for size in by_position[at] if size > 0)
        used += taken
        if used + transient.get(at, 0) > limit:
            yield at, used + transient.get(at, 0) - limit
        used += sum(by_position[at]) - taken
