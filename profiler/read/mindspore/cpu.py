"""MindSpore's profiler on a CPU: kernels with their times, and the pool's total at each allocation and release.

::

    *_ascend_ms/FRAMEWORK/cpu_op_execute_timestamp_0.txt   executions by operator        (cpu_profiler)
    *_ascend_ms/FRAMEWORK/cpu_ms_memory_record_0.txt       bytes in use after each change
    actor_set/0_actor_set*.ir, final_actor_set*.ir         where graphs were saved too   (actors)

With the actor set beside it the profile is what capture makes of the same files: every access is known. Without,
storages are made of the record's steps: a release gives back the youngest block of its size (temporaries come and go
like a stack), and what uses a block in between is not known. The record counts the pool alone; parameters and
optimizer states of a compiled graph are outside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import gcd
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
from msgspec import structs

from hyperopt.profile import Device, Measured, Profile, Run, check
from hyperopt.replay import replay
from profiler.capture.anatomy import Anatomy, operator_type
from profiler.capture.assembly import assemble, launches
from profiler.peaks import excluded_bytes
from profiler.read.findings import Findings, UnreadableError
from profiler.read.labels import label
from profiler.read.mindspore.actors import ActorSet, ActorSetError, read_actor_set, read_signatures
from profiler.read.mindspore.cpu_profiler import CpuProfilerError, Execution, MemoryRecord, read_executions
from profiler.read.mindspore.tracker_names import OPTIMIZER_STATE
from profiler.read.ranks import RankFiles, Source
from profiler.read.table import LINE, read_table, without
from profiler.read.timeline.events import BLOCKS, KERNELS, Events, Memory, Origin, Step
from profiler.read.timeline.join import profile_of
from profiler.read.timeline.pools import GHOST

FRAMEWORK = "FRAMEWORK"
TIMES, RECORD = "cpu_op_execute_timestamp_*.txt", "cpu_ms_memory_record_*.txt"

LARGEST_TEXT = 1 << 30
"""Bytes of a file that is read whole: one line an operator, or the dump of a graph."""

SCALARS = frozenset({"global_step", "learning_rate", "beta1_power", "beta2_power", "current_iterator_step"})
"""Names of optimizers' own scalars."""


def find(path: Path) -> list[RankFiles]:
    """A profiler's output folder with times of CPU kernels."""
    times = sorted((path / FRAMEWORK).glob(TIMES)) if path.is_dir() else []
    return [RankFiles(path, _rank(times[0]))] if times else []


def _rank(path: Path) -> int | None:
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= 6 else None


def read(files: RankFiles, findings: Findings) -> Profile:
    """Raises `UnreadableError` where no kernel was recorded."""
    folder = files.path / FRAMEWORK
    executions = _executions(sorted(folder.glob(TIMES))[0], findings)
    if not executions:
        raise UnreadableError(f"{findings.name(folder)} has no executions of kernels: did the recorded steps run any?")
    record = _record(next(iter(sorted(folder.glob(RECORD))), None), findings)
    steps = steps_of(executions)
    graph = _graph(files.path, findings)
    run = Run(name=files.path.name, framework="mindspore", rank=files.rank or 0, source=SOURCE.kind)
    if graph is not None:
        profile = _of_graph(*graph, executions, record, steps, run, findings)
        if profile is not None:
            return profile
    return _of_record(executions, record, steps, run, findings)


def _executions(path: Path, findings: Findings) -> dict[str, list[Execution]]:
    """Operator -> executions; lines that do not read as such are dropped."""
    found: dict[str, list[Execution]] = {}
    bad = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            for name, runs in read_executions(line).items():
                if any(not 0 <= run.start <= run.end < 2**62 for run in runs):
                    raise CpuProfilerError("a time or duration is negative")
                found.setdefault(label(name), []).extend(runs)
        except (CpuProfilerError, OverflowError):
            bad.append(number)
    findings.drop(path, "lines that are no operator with its executions", len(bad), tuple(bad))
    return {name: sorted(runs) for name, runs in found.items() if runs}


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST_TEXT:
        raise UnreadableError(f"{path.name} has more than {LARGEST_TEXT >> 20} MiB")
    return path.read_text(errors="replace")


def _record(path: Path | None, findings: Findings) -> MemoryRecord | None:
    if path is None:
        findings.lacks("memory: the profiler ran without profile_memory=True")
        return None
    columns = {"time": ("Timestamp(ns)",), "used": ("Total Allocated(Byte)",)}
    rows = read_table(path, columns, findings, need=("time", "used"))
    numbers = rows.select(LINE, pl.col("time", "used").cast(pl.Int64, strict=False))
    bad = pl.any_horizontal(pl.col("time", "used").is_null() | (pl.col("time", "used") < 0)) | (pl.col("used") > 2**53)
    good = without(numbers, bad, path, "rows that are no time and bytes", findings).sort("time", maintain_order=True)
    return MemoryRecord(tuple(good["time"].to_list()), tuple(good["used"].to_list())) if good.height else None


def steps_of(executions: Mapping[str, Sequence[Execution]]) -> tuple[tuple[int, int], ...]:
    """[start, end) of each recorded step, ns: the CPU's profiler does not mark them.

    As many as all operators' executions can be shared out among, in equal parts one after the other.
    """
    order = sorted(
        chain.from_iterable(((run.start, run.end, name) for run in runs) for name, runs in executions.items())
    )
    common = gcd(*(len(runs) for runs in executions.values()))
    for count in sorted((n for n in range(1, common + 1) if common % n == 0), reverse=True):
        size = len(order) // count
        parts = [order[size * i : size * (i + 1)] for i in range(count)]
        kinds = [Counter(name for _, _, name in part) for part in parts]
        if (all(kind == kinds[0] for kind in kinds) and len(kinds[0]) > 1) or count == 1:
            starts = [part[0][0] for part in parts]
            return tuple(pairwise([*starts, max(end for _, end, _ in order)]))
    raise AssertionError("one step is always possible")


def _graph(path: Path, findings: Findings) -> tuple[ActorSet, Path] | None:
    """The actor set in the folder or beside it; None without, or where it cannot be understood."""
    for place in (path / "actor_set", path.parent / "actor_set"):
        dumps = sorted(place.glob("0_*.ir"))
        if len(dumps) > 1:
            findings.warn(f"{place.name}: the dumps of {len(dumps)} graphs; only a step of one graph can be joined")
        elif dumps:
            try:
                return read_actor_set(_text(dumps[0])), place
            except (ActorSetError, IndexError, RecursionError) as error:
                findings.warn(f"{dumps[0].name} is left out: {error}")
    findings.lacks("what each kernel reads and writes: save_graphs=1 writes an actor_set that says it")
    return None


def _of_graph(
    graph: ActorSet,
    place: Path,
    executions: Mapping[str, Sequence[Execution]],
    record: MemoryRecord | None,
    steps: tuple[tuple[int, int], ...],
    run: Run,
    findings: Findings,
) -> Profile | None:
    """As capture makes it, of the recorded steps; None where the dump and the times are of different programs."""
    launched = launches(graph, executions, len(steps))
    if len(launched.order) < len(graph.kernels) / 2 or not launched.order:
        findings.warn(f"{place.name} is left out: only {len(launched.order)} of its kernels were timed in each step")
        return None
    final = next(iter(sorted(place.glob("final_*.ir"))), None)
    try:
        signatures = read_signatures(_text(final)) if final else {}
    except ActorSetError as error:
        findings.warn(f"{place.name}: no shapes: {error}")
        signatures = {}
    times = [(end - start) / 1000 for start, end in steps]
    parameters = frozenset(graph.stored) - graph.constants
    made = assemble(
        graph, launched, signatures, _anatomy(graph, parameters), _trainable(parameters), median(times), len(steps)
    )
    if launched.unjoined:
        findings.lacks(f"{len(launched.unjoined)} kernels that the dump and the times do not have in common")
    profile = Profile(
        run=structs.replace(run, notes=(*made.notes, *_notes(steps))),
        device=Device(name="cpu"),
        operators=made.operators,
        storages=made.storages,
        measured=Measured(
            step_us=median(times),
            step_us_spread=max(times) - min(times),
            peak_bytes=_peak(record, steps),
            excludes=("parameter", "optimizer_state"),
        ),
    )
    profile = _with_base(profile, findings) if record is not None else profile
    check(profile)
    return profile


def _with_base(profile: Profile, findings: Findings) -> Profile:
    """The base that brings replay to the measured peak: constants of the program, and what stays between steps."""
    assert profile.measured is not None
    whole = profile.measured.peak_bytes + excluded_bytes(profile)
    missing = whole - replay(profile).peak_bytes
    if missing < 0:
        findings.warn(f"the graph's storages are {-missing} bytes more at the peak than the record says")
    base = max(0, missing)
    device = structs.replace(profile.device, base_bytes=base, hbm_bytes=max(whole, whole - missing))
    return structs.replace(profile, device=device)


def _anatomy(graph: ActorSet, parameters: frozenset[str]) -> Anatomy:
    """The network's cells, as far as names of parameters tell: ``blocks.0.norm.weight`` is of ``blocks.0.norm``."""
    owners = {name: name.rpartition(".")[0] for name in parameters if not _is_state(name, parameters)}
    cells = {""}
    for owner in owners.values():
        parts = owner.split(".")
        cells.update(".".join(parts[: i + 1]) for i in range(len(parts)))
    lists = {cell.rpartition(".")[0] for cell in cells if cell.rpartition(".")[2].isdecimal()}
    return Anatomy(frozenset(cells), frozenset(lists), owners)


def _trainable(parameters: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in parameters if not _is_state(name, parameters))


def _is_state(name: str, parameters: frozenset[str]) -> bool:
    """Whether it is an optimizer's: named after another one (``moment1.blocks.0.norm.weight``), or a scalar of its."""
    return name in SCALARS or name.partition(".")[2] in parameters or bool(OPTIMIZER_STATE.match(name))


def _peak(record: MemoryRecord | None, steps: Sequence[tuple[int, int]]) -> int:
    """Most bytes in use within the steps; of all that was recorded, where no row lies within them."""
    if record is None:
        return 0
    within = record.between(steps[0][0], steps[-1][1])
    return max(within or record.used)


def _of_record(
    executions: Mapping[str, Sequence[Execution]],
    record: MemoryRecord | None,
    steps: Sequence[tuple[int, int]],
    run: Run,
    findings: Findings,
) -> Profile:
    """Kernels in order of time, and blocks as the record's steps suggest them."""
    rows = sorted((run.start, run.end - run.start, name) for name, runs in executions.items() for run in runs)
    starts = np.array([start for start, _, _ in rows], np.int64)
    step = np.searchsorted(np.array([start for start, _ in steps], np.int64), starts, "right") - 1
    kernels = pl.DataFrame(
        {
            "name": [name for _, _, name in rows],
            "type": [operator_type(name) for _, _, name in rows],
            "stream": ["compute"] * len(rows),
            "start": starts,
            "duration": [duration for _, duration, _ in rows],
            "launched": starts,
            "step": step,
        }
    )
    blank = [pl.lit(None, kind).alias(name) for name, kind in KERNELS.items() if name not in kernels.columns]
    events = Events(
        origin=Origin(
            framework="mindspore", source=SOURCE.kind, device="cpu", rank=run.rank, notes=tuple(_notes(steps))
        ),
        kernels=kernels.with_columns(*blank).select(list(KERNELS)).cast(KERNELS),  # type: ignore[arg-type]
        blocks=blocks_of(record),
        memory=Memory(peak_bytes=_peak(record, steps) if record else None),
        steps=tuple(Step(i, start, end, (end - start) / 1000) for i, (start, end) in enumerate(steps)),
    )
    if record is not None:
        findings.lacks("which block is given back: the record has totals only; taken for the youngest of its size")
    profile = profile_of(events, findings)
    return structs.replace(profile, run=structs.replace(profile.run, name=run.name))


def blocks_of(record: MemoryRecord | None) -> pl.DataFrame:
    """Blocks (columns `BLOCKS`) out of a pool's totals, which rise and fall exactly as the totals do.

    A row may stand for several releases. One of a size that no block has gives back the youngest blocks, the last of
    them in part; and when there are none, one from before the record.
    """
    made = _Blocks([], [], [])
    by_size: dict[int, list[int]] = {}
    youngest: list[int] = []
    totals = zip(record.times, record.used, strict=True) if record else ()
    for (_, before), (time, used) in pairwise(totals):
        if used > before:
            block = made.take(used - before, time)
            by_size.setdefault(used - before, []).append(block)
            youngest.append(block)
            continue
        size = before - used
        same = by_size.get(size, [])
        while same and not made.there(same[-1], size):
            same.pop()
        if same:
            made.freed[same.pop()] = time
            continue
        while size and youngest:
            block = youngest[-1]
            if made.freed[block] is None:
                size -= (part := min(size, made.sizes[block]))
                if part < made.sizes[block]:
                    made.split(block, part, time)
                    by_size.setdefault(made.sizes[block], []).append(block)
                    break
                made.freed[block] = time
            youngest.pop()
        if size:
            made.freed[made.take(size, None)] = time
    names = ["block" if time is not None else GHOST for time in made.taken]
    data = {"name": names, "bytes": made.sizes, "allocated": made.taken, "freed": made.freed}
    return pl.DataFrame(data, schema=BLOCKS).sort("allocated", nulls_last=False, maintain_order=True)


@dataclass(frozen=True)
class _Blocks:
    """Bytes, and times (ns) of allocation and release; None: before and after the record."""

    sizes: list[int]
    taken: list[int | None]
    freed: list[int | None]

    def take(self, size: int, time: int | None) -> int:
        self.sizes.append(size)
        self.taken.append(time)
        self.freed.append(None)
        return len(self.sizes) - 1

    def there(self, block: int, size: int) -> bool:
        return self.freed[block] is None and self.sizes[block] == size

    def split(self, block: int, part: int, time: int) -> None:
        """Gives back `part` bytes of a block, as one that was taken with it."""
        self.sizes[block] -= part
        self.freed[self.take(part, self.taken[block])] = time


def _notes(steps: Sequence[tuple[int, int]]) -> list[str]:
    return [f"{len(steps)} recorded steps, told by repetition: the CPU's profiler does not mark them"]


SOURCE = Source(
    kind="mindspore_cpu",
    about="MindSpore's profiler on a CPU (FRAMEWORK/cpu_op_execute_timestamp_*.txt), with saved graphs or without",
    find=find,
    read=read,
)
