"""How long storages really live: longer than their last access, where something still holds them.

Two holders are not accesses. A Python variable keeps a tensor until its function returns; the observer saw
those. A backward formula of several operators keeps all its intermediate values until its last one (measured:
17 MiB in the softmax's gradient on the demo model); the memory record shows those::

    operator             Div     Div     Neg     Mul     Sum     next
    last access of       .       a       b       c       d
    bytes in use         ===========================================          model: freed at last access
    bytes in record      ====================================#####            a, b, c are held until Sum

Where the record is above the model, storages that are no longer accessed are kept, those that died last
first, as long as they fit into the difference. What the profile's format knows is accesses: a hold becomes a
read by the last operator that still held the storage.
"""

from __future__ import annotations

import bisect
import statistics

from profiler.capture.observation import HELD_BYTES
from profiler.capture.program import Program
from profiler.capture.recording import StepRecord


def hold_dead_blocks(program: Program, records: list[StepRecord], base_bytes: int) -> None:
    """Adds to `held` of the program's steps what the record shows to be still there. `base_bytes`: pool bytes
    that are always in use."""
    used = _used_at_kernels(records)
    first, last = _lives(program)
    deaths: dict[int, list[int]] = {}
    for id, place in last.items():
        deaths.setdefault(place, []).append(id)
    births: dict[int, list[int]] = {}
    for id, place in first.items():
        births.setdefault(place, []).append(id)
    dead: list[int] = []
    live = base_bytes
    for number, step in enumerate(program.steps):
        live += sum(program.blocks[id].bytes for id in births.get(number, ()))
        if step.kernels:
            excess = used[step.kernels[0]] - live
            kept = []
            for id in reversed(dead):
                size = program.blocks[id].bytes
                if size <= excess:
                    excess -= size
                    kept.append(id)
            dead = kept[::-1]
            step.held += [id for id in dead if id not in step.held]
        gone = deaths.get(number, [])
        live -= sum(program.blocks[id].bytes for id in gone)
        dead += [id for id in gone if program.blocks[id].bytes >= HELD_BYTES]


def lengthened(program: Program) -> list[list[int]]:
    """Per step, the storages whose life its holding lengthens: those it is the last to hold, in forward or
    after (a saved storage is held in forward by a variable, and accessed again in backward)."""
    last: dict[tuple[int, bool], int] = {}
    for number, step in enumerate(program.steps):
        forward = step.place == "forward"
        for id in (*step.reads, *step.writes, *step.held):
            last[id, forward] = number
    found: list[list[int]] = [[] for _ in program.steps]
    for (id, _), number in last.items():
        step = program.steps[number]
        if id not in step.reads and id not in step.writes:
            found[number].append(id)
    return found


def _lives(program: Program) -> tuple[dict[int, int], dict[int, int]]:
    """First and last access or hold of every storage made in the step."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    made = {block.id for block in program.blocks if block.origin == "made"}
    for number, step in enumerate(program.steps):
        for id in (*step.reads, *step.writes, *step.held):
            if id in made:
                first.setdefault(id, number)
                last[id] = number
    return first, last


def _used_at_kernels(records: list[StepRecord]) -> list[int]:
    """Pool bytes when each kernel starts, its outputs included: median over the steps."""
    rows = []
    for record in records:
        times, used = record.memory.times, record.memory.used
        row = []
        for kernel in record.kernels:
            at = bisect.bisect_right(times, kernel.start) - 1
            row.append(used[at] if at >= 0 else record.used_before)
        rows.append(row)
    return [int(statistics.median(same)) for same in zip(*rows, strict=True)]
