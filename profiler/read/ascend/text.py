"""Ascend profiler folders as text: torch_npu's ``*_ascend_pt``, MindSpore's ``*_ascend_ms``, msprof's own output.

::

    rank_0_ascend_pt/
        profiler_info_0.json         rank, versions            (the rank is here: Device_id is not the rank)
        profiler_metadata.json       groups, world size
        ASCEND_PROFILER_OUTPUT/
            kernel_details.csv       kernels: device times, shapes at levels 1 and 2    (msprof: op_summary_*.csv)
            operator_memory.csv      one row an allocation, with the pool's totals
            memory_record.csv        the pool over time, by component
            npu_module_mem.csv       who else holds device memory
            step_trace_time.csv      computing, communication, free, for each step

Column sets from 2023 to 2026, by name. Units: KB and MB are 1024-based, except MindSpore's memory_record.csv, whose MB
are 1000 KiB; times are microseconds. Facts: PROFILE_FORMATS, A.2 to A.6.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl

from hyperopt.profile import COMPUTE, IDLE, Profile
from profiler.read.ascend.folder import OUTPUT, StepTimes, computing_us, infos, origin_of, rank_of, stage_of, steps_of
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles, Source
from profiler.read.table import LINE, nanoseconds, read_table, scaled, without
from profiler.read.timeline.events import KERNELS, Events, Memory, no_blocks, no_kernels
from profiler.read.timeline.join import profile_of
from profiler.read.timeline.pools import Pool, memory_of, pools_of

PATTERNS = {
    "kernels": r"kernel_details\.csv|op_summary.*\.csv",
    "blocks": r"operator_memory.*\.csv",
    "record": r"memory_record.*\.csv",
    "modules": r"npu_module_mem.*\.csv",
    "steps": r"step_trace_time\.csv",
}
KIB, MIB = 1 << 10, 1 << 20

LARGEST = 8 << 40
"""Bytes of a block: more than a device has, and their sums still fit a document."""

COMMUNICATION = ("COMMUNICATION", "HCCL")
KERNEL_COLUMNS = {
    "step": ("Step Id", "Step ID"),
    "task_stream": ("Stream ID", "Stream Id"),
    "name": ("Name", "Op Name"),
    "type": ("Type", "OP Type", "Op Type"),
    "core": ("Accelerator Core", "Task Type"),
    "start": ("Start Time(us)", "Task Start Time(us)"),
    "duration": ("Duration(us)", "Task Duration(us)"),
    "inputs": ("Input Shapes",),
    "input_types": ("Input Data Types",),
    "outputs": ("Output Shapes",),
    "output_types": ("Output Data Types",),
}
BLOCK_COLUMNS = {
    "name": ("Name",),
    "size": ("Size(KB)",),
    "allocated": ("Allocation Time(us)",),
    "freed": ("Release Time(us)",),
    "total_after": ("Allocation Total Allocated(MB)",),
    "total_freed": ("Release Total Allocated(MB)",),
    "reserved": ("Allocation Total Reserved(MB)",),
    "pool_stream": ("Stream Ptr",),
}
RECORD_COLUMNS = {
    "component": ("Component",),
    "allocated": ("Total Allocated(MB)",),
    "reserved": ("Total Reserved(MB)",),
}
STEP_COLUMNS = {
    "step": ("Step",),
    "computing": ("Computing",),
    "communication": ("Communication(Not Overlapped)",),
    "free": ("Free",),
}


def find(path: Path) -> list[RankFiles]:
    """The one rank at this folder, if it is a profiler's folder or its output; or in this file, if it is a table that
    lies loose among other folders."""
    if path.is_file():
        loose = any(re.fullmatch(PATTERNS[kind], path.name) for kind in ("kernels", "blocks", "record"))
        return [RankFiles(path, rank_of(path.parent))] if loose else []
    if not path.is_dir() or not _holds(path):
        return []
    marked = (path / OUTPUT).is_dir() or bool(infos(path)) or path.name == OUTPUT
    if not marked and any(entry.is_dir() and _holds(entry) for entry in path.iterdir()):
        return []
    return [RankFiles(path, rank_of(path.parent if path.name == OUTPUT else path))]


def read(files: RankFiles, findings: Findings) -> Profile:
    """The rank's profile. Raises `UnreadableError` where there are neither kernels nor memory."""
    found = _tables(files.path)
    times = _step_times(found["steps"], findings)
    folder = files.path.parent if files.path.is_file() or files.path.name == OUTPUT else files.path
    findings.stage = stage_of(folder, files.rank)
    if times:
        findings.computing_us = statistics.median(row["computing"] for row in times.values())
    kernels = _kernels(found["kernels"], findings)
    pools, mindspore = _blocks(found["blocks"], findings)
    memory = _memory(found, pools, mindspore, findings)
    if not kernels.height and memory.peak_bytes is None:
        raise UnreadableError(_nothing_in(files.path, found))
    blocks = pl.concat([pool.blocks for pool in pools]).sort("allocated") if pools else no_blocks()
    origin = origin_of(folder, files.rank, mindspore=mindspore)
    profile = profile_of(Events(origin, kernels, blocks, memory, steps_of(kernels, times)), findings)
    if kernels.height:
        _check_computing(profile, kernels, times, findings)
    return profile


def _check_computing(profile: Profile, kernels: pl.DataFrame, times: StepTimes, findings: Findings) -> None:
    """Says the computing time of the profile's own step, and where the kernels are not all of it."""
    said = findings.computing_us = computing_us(profile, kernels, times)
    numbered = kernels["step"].null_count() < kernels.height
    listed = [number for number in times if number is not None]
    if not numbered and len(listed) > 1:
        findings.lacks(f"step numbers: kernels have none, the step trace has {len(listed)}; all kernels are one step")
    elif said is not None:
        computed = sum(o.duration_us for o in profile.operators if o.stream == COMPUTE and o.type != IDLE)
        if computed < 0.95 * said:
            findings.lacks(
                f"kernels: the table has {computed / 1e3:.1f} of {said / 1e3:.1f} ms of computing, so it "
                "was cut; the rest of the step is idle time"
            )


def _nothing_in(path: Path, found: Mapping[str, list[Path]]) -> str:
    tables = [file for kind in ("kernels", "blocks", "record") for file in found[kind]]
    if tables and not any(file.stat().st_size for file in tables):
        return f"all tables are empty ({', '.join(file.name for file in tables[:4])}, ...): export the profile again"
    if tables:
        return f"no row of {', '.join(file.name for file in tables[:4])} can be used"
    had = ", ".join(sorted(p.name for p in _output(path).iterdir())[:8])
    return (
        f"no kernels (kernel_details.csv) and no memory (operator_memory.csv, memory_record.csv), only {had}: profile "
        "this rank with kernels and memory"
    )


SOURCE = Source("ascend", "Ascend profiler folder as text (torch_npu, MindSpore, msprof)", find, read)


def _output(path: Path) -> Path:
    inner = path / OUTPUT
    return inner if inner.is_dir() else path


def _holds(path: Path) -> bool:
    return any(_tables(path).values())


def _tables(path: Path) -> dict[str, list[Path]]:
    """The files of each kind: several where msprof wrote its output in slices."""
    files = [path] if path.is_file() else sorted(p for p in _output(path).iterdir() if p.is_file())
    return {kind: [p for p in files if re.fullmatch(pattern, p.name)] for kind, pattern in PATTERNS.items()}


def _read(
    paths: list[Path], read_one: Callable[[Path, Findings], pl.DataFrame], findings: Findings
) -> list[pl.DataFrame]:
    """The tables that read; what of the others is missing is told."""
    parts = []
    for path in paths:
        try:
            parts.append(read_one(path, findings))
        except UnreadableError as error:
            findings.lacks(str(error))
    return parts


def _once(rows: pl.DataFrame, what: str, by: list[str], findings: Findings) -> pl.DataFrame:
    """Without rows that stand there twice, as after exporting twice."""
    kept = rows.unique(by, keep="first", maintain_order=True)
    findings.drop(what, "rows that stand there twice", rows.height - kept.height)
    return kept


def _kernels(paths: list[Path], findings: Findings) -> pl.DataFrame:
    parts = [part for part in _read(paths, _kernels_of, findings) if part.height]
    rows = pl.concat(parts or [no_kernels()]).sort("start", maintain_order=True)
    return _once(rows, _named(paths, "kernels"), ["name", "stream", "start", "duration"], findings)


def _named(paths: list[Path], otherwise: str) -> str:
    return paths[0].name if len(paths) == 1 else otherwise


def _no_number(*columns: str) -> pl.Expr:
    """Cells that say something, but no number that can be."""
    return pl.any_horizontal(*[pl.col(c).is_not_null() & nanoseconds(c).is_null() for c in columns])


def _tell_rounding(rows: pl.DataFrame, column: str, path: Path, findings: Findings) -> None:
    if 10 * int(rows[column].str.contains("[eE]").sum()) > rows.height:
        findings.lacks(
            f"digits of times: a spreadsheet has rounded those of {findings.name(path)} (1.76E+15), and what is joined "
            "by time is joined wrongly; give the file as the profiler wrote it"
        )


def _kernels_of(path: Path, findings: Findings) -> pl.DataFrame:
    rows = read_table(path, KERNEL_COLUMNS, findings, need=("name", "start", "duration"))
    _tell_rounding(rows, "start", path, findings)
    rows = without(rows, _no_number("start", "duration"), path, "rows whose times are no numbers", findings)
    rows = rows.with_columns(nanoseconds("start"), nanoseconds("duration"), pl.col("step").cast(pl.Int64, strict=False))
    rows = without(rows, pl.col("start").is_null(), path, "rows without a start time", findings)
    rows = without(rows, pl.col("duration").is_null(), path, "rows without a duration", findings)
    rows = without(rows, pl.col("duration") < 0, path, "rows with a negative duration", findings)
    rows = without(rows, pl.col("start") < 0, path, "rows with a negative start time", findings)
    hccl = pl.col("core").is_in(COMMUNICATION) | pl.col("name").str.contains(r"^hcom_|^Hccl|^hccl")
    shapes = [pl.col(c).str.strip_chars('"').alias(c) for c in ("inputs", "outputs", "input_types", "output_types")]
    return rows.select(
        "name",
        pl.col("type"),
        pl.when(hccl.fill_null(False)).then(pl.lit("communication")).otherwise(pl.col("task_stream")).alias("stream"),
        "start",
        "duration",
        pl.lit(None, pl.Int64).alias("launched"),
        "step",
        *shapes,
    ).select(pl.col(name).cast(kind) for name, kind in KERNELS.items())


def _blocks(paths: list[Path], findings: Findings) -> tuple[list[Pool], bool]:
    """The pools whose blocks the files list, and whether MindSpore wrote them (its names are no ``aten::``)."""
    parts = [part for part in _read(paths, _blocks_of, findings) if part.height]
    if not parts:
        return [], False
    same = ["name", "bytes", "allocated", "freed", "total_after"]
    rows = _once(pl.concat(parts), _named(paths, "allocations"), same, findings)
    ours = rows.filter(~pl.col("graph_engine"))
    mindspore = bool(ours.height) and not ours["name"].str.contains("::", literal=True).any()
    return pools_of(rows, findings), mindspore


def _blocks_of(path: Path, findings: Findings) -> pl.DataFrame:
    rows = read_table(path, BLOCK_COLUMNS, findings, need=("size", "allocated"))
    engine = pl.col("name").str.starts_with("cann::").fill_null(False)
    _tell_rounding(rows, "allocated", path, findings)
    rows = without(rows, _no_number("allocated", "freed"), path, "rows whose times are no numbers", findings)
    rows = rows.with_columns(
        nanoseconds("allocated"),
        nanoseconds("freed"),
        scaled("size", KIB).alias("bytes"),
        scaled("total_after", MIB),
        scaled("total_freed", MIB),
        scaled("reserved", MIB),
        engine.alias("graph_engine"),
    )
    rows = without(rows, pl.col("allocated").is_null(), path, "rows without an allocation time", findings)
    rows = without(rows, pl.col("bytes").is_null(), path, "rows without a size", findings)
    rows = without(rows, pl.col("bytes") < 0, path, "rows with a negative size", findings)
    rows = without(rows, pl.col("bytes") > LARGEST, path, "rows of more than 8 TiB", findings)
    rows = without(rows, pl.col("freed") < pl.col("allocated"), path, "rows released before they were had", findings)
    # The graph engine says the total before a release, the framework the one after it.
    before = pl.when("graph_engine").then("bytes").otherwise(0)
    return rows.with_columns(total_freed=pl.col("total_freed") - before).drop("size", "pool_stream", LINE)


def _memory(found: Mapping[str, list[Path]], pools: list[Pool], mindspore: bool, findings: Findings) -> Memory:
    """Figures of the pool's record, in the unit that the allocations prove; those of the allocations where there is
    no record."""
    parts = _read(found["record"], _record, findings)
    most = pl.concat(parts).group_by("component").agg(pl.all().max()) if parts else None
    record = {name: (a or 0, r or 0) for name, a, r in most.iter_rows()} if most is not None else {}
    mindspore = mindspore or any(name.startswith("MindSpore") for name in record)
    modules = _modules(found["modules"], findings)
    return memory_of(pools, record, modules, mindspore, findings)


def _record(path: Path, findings: Findings) -> pl.DataFrame:
    """By component most allocated and most reserved, in bytes as if MB were MiB."""
    rows = read_table(path, RECORD_COLUMNS, findings, need=("component",))
    rows = rows.with_columns(scaled("allocated", MIB), scaled("reserved", MIB))
    rows = without(rows, pl.col("component").is_null(), path, "rows without a component", findings)
    bad = (pl.col("allocated") < 0) | (pl.col("reserved") < 0)
    rows = without(rows, bad.fill_null(False), path, "rows with a negative total", findings)
    return rows.group_by("component").agg(pl.col("allocated").max(), pl.col("reserved").max())


def _modules(paths: list[Path], findings: Findings) -> dict[str, int]:
    """Module of the runtime -> most reserved, bytes; those that hold anything."""
    found: dict[str, int] = {}
    for path in paths:
        rows = read_table(path, {"component": ("Component",), "reserved": ("Total Reserved(MB)",)}, findings)
        rows = rows.with_columns(scaled("reserved", MIB)).filter(pl.col("reserved") > 0)
        for name, size in rows.group_by("component").agg(pl.col("reserved").max()).iter_rows():
            found[str(name)] = max(size, found.get(str(name), 0))
    return found


def _step_times(paths: list[Path], findings: Findings) -> StepTimes:
    """Step number (None: not said) -> computing, communication that nothing hides, and free time in us."""
    found: StepTimes = {}
    for path in paths:
        rows = read_table(path, STEP_COLUMNS, findings)
        numbers = [pl.col(c).cast(pl.Float64, strict=False) for c in ("computing", "communication", "free")]
        rows = rows.with_columns(*numbers, pl.col("step").cast(pl.Float64, strict=False).cast(pl.Int64, strict=False))
        bad = pl.any_horizontal(
            *[pl.col(c).is_null() | ~pl.col(c).is_finite() | (pl.col(c) < 0) for c in STEP_COLUMNS if c != "step"]
        )
        rows = without(rows, bad, path, "rows without computing, communication and free times", findings)
        for row in rows.iter_rows(named=True):
            found[row["step"]] = {c: row[c] for c in ("computing", "communication", "free")}
    return found
