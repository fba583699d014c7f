"""What lies in HBM when: the replay's allocations one by one, for whoever must explain a peak or draw it.

`replay` keeps only sums, because the solver calls it thousands of times. Here the same clock runs once more and
every block is written down::

    block    from allocation ├──────────────────┤ to release      used(t) = base + all blocks that span t
"""

from __future__ import annotations

from dataclasses import dataclass

from hyperopt.plan import EMPTY, Plan
from hyperopt.profile import Profile
from hyperopt.replay import Clock
from hyperopt.script import Script, program_of, write_script


@dataclass(frozen=True, slots=True)
class Block:
    """`bytes` of HBM from `start` to `end` (nanoseconds; None: past the step's end).

    Held by `storage` (its id) or, where that is None, by the workspace of `operator`, which is where the block was
    allocated (-1: it was there at the step's start).
    """

    bytes: int
    start: int
    end: int | None
    storage: int | None
    operator: int


@dataclass(frozen=True)
class Occupancy:
    """HBM over one step. `times` (ns, ascending) and `used` (bytes, base included): the level from each time on.

    `at_peak`: the blocks that, with `base_bytes`, make the peak of `peak_bytes`, first reached at operator
    `peak_op` (None: at the step's start).
    """

    times: tuple[int, ...]
    used: tuple[int, ...]
    base_bytes: int
    peak_bytes: int
    peak_op: int | None
    at_peak: tuple[Block, ...]


def occupancy(profile: Profile, plan: Plan | None = None, hbm_bytes: int | None = None) -> Occupancy:
    """HBM over a step under a plan (None: no plan), by the rules and with the arguments of `replay`.

    Raises `legality.IllegalPlan` or `legality.OutOfMemory`.
    """
    plan = plan or EMPTY
    limit = hbm_bytes if hbm_bytes is not None else plan.budget.hbm_bytes
    script = write_script(profile, plan, limit)
    clock = Recorder(profile, script, limit)
    clock.run(script)
    return clock.occupancy()


@dataclass(slots=True)
class _Note:
    """A block and the places of its allocation and its release in listed order."""

    bytes: int
    storage: int | None
    operator: int
    taken: int
    start: int
    given: int | None = None
    end: int | None = None


class Recorder(Clock):
    """The replay's clock, with a note of every block.

    A release is noted when it is ordered, and so before every allocation that it makes room for: sorted by time
    and, at the same time, by that place, releases come before the allocations that use them.
    """

    def __init__(self, profile: Profile, script: Script, limit: int | None) -> None:
        super().__init__(program_of(profile), script.starts_out, limit)
        self.notes: list[_Note] = []
        self.open: dict[int, _Note] = {}
        self.place = 0
        self.base_bytes = profile.device.base_bytes
        for s, there in enumerate(self.in_hbm):
            if there:
                self._take(s, 0, -1)

    def execute(self, executed: int, op: int, again: bool = False) -> None:
        fresh = [s for s in self.program.writes[executed] if not self.in_hbm[s]]
        super().execute(executed, op, again)
        for s in fresh:
            self._take(s, self.now, op)
        if workspace := self.program.workspace[executed]:
            note = self._note(workspace, None, op, self.now)
            note.given, note.end = self._next(), self.last_end

    def copy_in(self, s: int, op: int, tier: str) -> None:
        super().copy_in(s, op, tier)
        self._take(s, self.now, op)

    def release(self, s: int) -> None:
        super().release(s)
        note = self.open.pop(s)
        note.given, note.end = self._next(), max(self.last_end, self.busy[s])

    def _take(self, s: int, at: int, op: int) -> None:
        self.open[s] = self._note(self.program.size[s], self.program.profile.storages[s].id, op, at)

    def _note(self, size: int, storage: int | None, op: int, at: int) -> _Note:
        note = _Note(size, storage, op, self._next(), at)
        self.notes.append(note)
        return note

    def _next(self) -> int:
        self.place += 1
        return self.place

    def occupancy(self) -> Occupancy:
        changes = [(note.start, note.taken, note.bytes, note) for note in self.notes]
        changes += [(n.end, n.given, -n.bytes, n) for n in self.notes if n.end is not None and n.given is not None]
        changes.sort(key=lambda change: change[:2])
        level = peak = self.base_bytes
        levels: dict[int, int] = {0: level}
        peak_at: tuple[int, int] = (0, 0)
        peak_op = -1
        for time, place, size, note in changes:
            level += size
            levels[time] = level
            if level > peak:
                peak, peak_at, peak_op = level, (time, place), note.operator
        return Occupancy(
            times=tuple(levels),
            used=tuple(levels.values()),
            base_bytes=self.base_bytes,
            peak_bytes=peak,
            peak_op=None if peak_op < 0 else peak_op,
            at_peak=tuple(_block(note) for note in self.notes if _holds(note, peak_at)),
        )


def _holds(note: _Note, at: tuple[int, int]) -> bool:
    """Whether the block is there right after the change `at` (time, place in listed order)."""
    gone = note.end is not None and note.given is not None and (note.end, note.given) <= at
    return (note.start, note.taken) <= at and not gone


def _block(note: _Note) -> Block:
    return Block(note.bytes, note.start, note.end, note.storage, note.operator)
