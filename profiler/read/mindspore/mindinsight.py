"""Pipeline runs as profilers of MindSpore up to 2.2 left them for MindInsight: times of steps and collectives.

    step_trace_raw_N_detail_time.csv              rank N: a row a step, ticks of 10 ns; a column triple for every
                                                  communication: ``stream_48_0_Receive-op663`` (its length),
                                                  ``.._start_point``, ``.._end_point``
    ascend_cluster_analyse_MODE_STAGES_RANKS_N.csv  the same steps, summed up, in ms: ``computation_time``, ..

Neither knows memory or single kernels, so the profile has times only. What no communication covers is computing::

    stream 48        Receive ========                     Receive ====
    stream 36                     AllReduce ==  ==
    compute    idle  (waits)       compute (waits) compute            compute     -> as long as the step

A last row whose step is no number is an average and no step. A first step whose beginning was not seen, or that takes
far longer than the others (it sets up connections), is left out; the others are taken together by their medians.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from hyperopt.profile import COMPUTE, IDLE, Measured, Operator, Profile, Run, check
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles, Source
from profiler.read.table import LINE, nanoseconds, read_table, without

KIND = "mindinsight_pipeline"

DETAIL = re.compile(r"step_trace_raw_(\d{1,9})_detail_time\.csv")
SUMMARY = re.compile(r"ascend_cluster_analyse_[a-z-]+_(\d{1,6})_(\d{1,9})_(\d{1,9})\.csv")
COMMUNICATION = re.compile(r"stream_(\d{1,9})_\d{1,9}_(.{1,200})")
START, END = "_start_point", "_end_point"

TICK_NS = 10
MILLISECOND_NS = 1_000_000

COMPUTING = "Computing"
"""Type of the operators that stand for all kernels between two communications."""

WARM_UP = 1.5
"""Times the median of the other steps from which on a step is no ordinary one."""

MAX_COLUMNS = 10_000
MAX_STEP_NS = 10**15
"""Eleven days: a longer step is a fault of the file."""


@dataclass(frozen=True)
class _Communication:
    """Columns of one communication in the table."""

    name: str
    stream: str
    start: str
    end: str


@dataclass(frozen=True)
class _Span:
    """A communication in the middling step: ns from the step's start."""

    what: _Communication
    start: int
    end: int


def find(path: Path) -> list[RankFiles]:
    """Ranks that have a file of steps, and those that have a summary alone."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    detailed = {int(match[1]): file for file in files if (match := DETAIL.fullmatch(file.name))}
    summed = {int(match[3]): file for file in files if (match := SUMMARY.fullmatch(file.name))}
    return [RankFiles(file, rank) for rank, file in sorted({**summed, **detailed}.items())]


def read(files: RankFiles, findings: Findings) -> Profile:
    """A timing-only profile of one rank's middling step.

    Raises `UnreadableError` where no complete step is left; the rank's computing time is in the findings then too.
    """
    rank = files.rank or 0
    summary, stages, ranks = _summary_of(files.path, rank)
    findings.stage = stage_of(rank, ranks, stages)
    if not DETAIL.fullmatch(files.path.name):
        _computing(files.path, None, findings)
        raise UnreadableError(f"{files.path.name} has sums of steps only (give step_trace_raw_{rank}_detail_time.csv)")
    communications = _communications(files.path)
    rows = _steps(files.path, communications, findings)
    kept = _ordinary(rows, communications, findings)
    _computing(summary, (rows.height - kept.height, rows.height), findings)
    lengths = (kept["end"] - kept["start"]).to_list()
    step_ns = round(statistics.median(lengths))
    operators = _operators(kept, communications, step_ns, findings)
    profile = Profile(
        run=Run(
            framework="mindspore",
            source=KIND,
            rank=rank,
            world_size=max(ranks or 0, rank + 1),
            step=int(kept["step"][0]),
            notes=tuple(_notes(kept, operators, findings)),
        ),
        operators=operators,
        storages=(),
        measured=Measured(step_us=step_ns / 1000, step_us_spread=(max(lengths) - min(lengths)) / 1000),
    )
    check(profile)
    return profile


# -- tables ------------------------------------------------------------------------------------------------


def stage_of(rank: int, ranks: int | None, stages: int | None) -> int | None:
    """The stage of `rank` among `ranks` on `stages` equal stages, each of consecutive ranks: MindSpore's and Megatron's
    order, in which the pipeline is the outermost dimension. None where a number is missing or they do not fit."""
    if not ranks or not stages or ranks % stages or not 0 <= rank < ranks:
        return None
    return rank * stages // ranks


def _summary_of(path: Path, rank: int) -> tuple[Path | None, int | None, int | None]:
    """The rank's summary beside the file, and the number of stages and ranks that its name tells."""
    for file in sorted(path.parent.iterdir()):
        match = SUMMARY.fullmatch(file.name)
        if match is not None and int(match[3]) == rank:
            return file, int(match[1]) or None, int(match[2]) or None
    return None, None, None


def _communications(path: Path) -> list[_Communication]:
    """Communications that the header names; where start and end stand in it does not matter."""
    with path.open("rb") as file:
        header = [name.strip().strip('"') for name in file.readline(1 << 22).decode("utf-8", "replace").split(",")]
    if len(header) > MAX_COLUMNS:
        raise UnreadableError(f"{path.name} has more than {MAX_COLUMNS} columns")
    names = set(header)
    return [
        _Communication(match[2], f"stream_{match[1]}", name + START, name + END)
        for name in header
        if (match := COMMUNICATION.fullmatch(name)) and name + START in names and name + END in names
    ]


def _steps(path: Path, communications: Sequence[_Communication], findings: Findings) -> pl.DataFrame:
    """Complete steps, times in ns; what is no step is dropped and named."""
    points = {"start": ["start_point"], "end": ["end_point"], "forward": ["fp_point"], "backward": ["bp_point"]}
    wanted = {"step": ["step_num"], **points}
    wanted |= {column: [column] for c in communications for column in (c.start, c.end)}
    rows = read_table(path, wanted, findings, need=("step", "start", "end"))
    number = pl.col("step").cast(pl.Int64, strict=False)
    average = number.is_null() | (number < 1)
    if rows.height and rows.tail(1).select(average).item():
        rows = rows.head(-1)
    times = [nanoseconds(name, TICK_NS) for name in rows.columns if name not in ("step", LINE)]
    rows = rows.with_columns(number, *times)
    bad = (pl.col("step").is_null() | pl.col("start").is_null() | pl.col("end").is_null()).or_(
        (pl.col("start") >= pl.col("end")) | (pl.col("start") < 0) | (pl.col("step") < 1) | (pl.col("step") > 2**31)
    )
    bad |= pl.col("end") - pl.col("start") > MAX_STEP_NS
    rows = without(rows, bad, path, "rows without a step's number, start and end", findings)
    if not rows.height:
        raise UnreadableError(f"{findings.name(path)} has no complete step (profile at least two)")
    return rows


def _computing(path: Path | None, kept: tuple[int, int] | None, findings: Findings) -> None:
    """The median computing time of the summary's steps from and up to those `kept` (None: all), to the findings. A
    further last row is an average, as in the file of steps."""
    if path is None:
        return
    try:
        sums = read_table(path, {"ms": ["computation_time", "computation"]}, findings, need=("ms",))
    except UnreadableError as error:
        findings.warn(str(error))
        return
    sums = sums.with_columns(nanoseconds("ms", MILLISECOND_NS))
    bad = pl.col("ms").is_null() | (pl.col("ms") < 0)
    times = without(sums, bad, path, "rows without a computing time", findings)["ms"].to_list()
    if kept is not None and len(times) in (kept[1], kept[1] + 1):
        times = times[slice(*kept)]
    if times:
        findings.computing_us = statistics.median(times) / 1000


# -- steps -------------------------------------------------------------------------------------------------


def _ordinary(rows: pl.DataFrame, communications: Sequence[_Communication], findings: Findings) -> pl.DataFrame:
    """The steps that are taken together; the first goes where it is no ordinary one, and there are others."""
    if rows.height < 2:
        findings.warn("one step only: it may be a warm-up, and there is no spread")
        return rows
    first, others = rows.head(1), rows.slice(1)
    length = first["end"][0] - first["start"][0]
    usual = statistics.median((others["end"] - others["start"]).to_list())
    if length > WARM_UP * usual:
        alone = sum(stop - start for start, stop in _covered(first, communications)) / 1e6
        findings.warn(
            f"step {first['step'][0]} left out as warm-up: {length / 1e6:.1f} ms, {alone:.1f} of them with "
            f"communication; the others take {usual / 1e6:.1f} ms"
        )
        return others
    if first["forward"][0] is not None and first["forward"][0] <= first["start"][0]:
        findings.warn(f"step {first['step'][0]} left out: its beginning was not recorded")
        return others
    return rows


def _covered(step: pl.DataFrame, communications: Sequence[_Communication]) -> list[tuple[int, int]]:
    """When any communication runs in the one step, ns, in order and apart."""
    row = step.row(0, named=True)
    spans = sorted((row[c.start] or 0, row[c.end] or 0) for c in communications)
    covered: list[tuple[int, int]] = []
    for start, end in spans:
        start = max(start, covered[-1][1]) if covered else start
        if 0 < start < end:
            covered.append((start, end))
    return covered


def _operators(
    kept: pl.DataFrame, communications: Sequence[_Communication], step_ns: int, findings: Findings
) -> tuple[Operator, ...]:
    """Communications on their streams; on the compute stream what they leave, and idle time where they run alone."""
    spans = [span for c in communications if (span := _span(kept, c, step_ns, findings)) is not None]
    tail = _tail(kept)
    listed = _compute_stream(spans, step_ns, step_ns if tail is None else min(tail, step_ns), findings.stage)
    listed += [
        Operator(
            name=span.what.name,
            type=span.what.name.partition("-")[0],
            stream=span.what.stream,
            start_us=span.start / 1000,
            duration_us=(span.end - span.start) / 1000,
            recomputable=False,
            stage=findings.stage,
        )
        for span in _apart(spans)
    ]
    # Listed in order of start, computing first where both start: replay starts nothing before what is listed earlier.
    return tuple(sorted(listed, key=lambda operator: (operator.start_us, operator.stream != COMPUTE)))


def _apart(spans: Sequence[_Span]) -> list[_Span]:
    """Without the overlaps on one stream that medians of several steps bring in."""
    by_stream: dict[str, list[_Span]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        by_stream.setdefault(span.what.stream, []).append(span)
    return [
        replace(span, end=min(span.end, following.start)) if following is not None else span
        for row in by_stream.values()
        for span, following in zip(row, [*row[1:], None], strict=True)
    ]


def _span(kept: pl.DataFrame, what: _Communication, step_ns: int, findings: Findings) -> _Span | None:
    """The communication by the medians of its start and length, within the step; None where it never ran."""
    ran = kept.select("start", first=pl.col(what.start), last=pl.col(what.end)).drop_nulls()
    good = ran.filter((pl.col("first") > 0) & (pl.col("last") >= pl.col("first")))
    if good.height < ran.height:
        findings.warn(f"{what.name}: {ran.height - good.height} of {ran.height} times end before they start")
    if not good.height:
        return None
    start = round(statistics.median((good["first"] - good["start"]).to_list()))
    length = round(statistics.median((good["last"] - good["first"]).to_list()))
    start = min(max(start, 0), step_ns)
    return _Span(what, start, min(start + length, step_ns))


def _tail(kept: pl.DataFrame) -> int | None:
    """Where backward ends: ns from the step's start. What follows is the optimizer's."""
    inside = kept.select(pl.col("backward") - pl.col("start")).drop_nulls().to_series().to_list()
    return max(round(statistics.median(inside)), 0) if inside else None


def _compute_stream(spans: Sequence[_Span], step_ns: int, tail: int, stage: int | None) -> list[Operator]:
    """From 0 to `step_ns`: computing where no communication runs, else idle time, cut where a communication starts."""
    alive: dict[int, int] = {}
    for span in spans:
        alive[span.start] = alive.get(span.start, 0) + 1
        alive[span.end] = alive.get(span.end, 0) - 1
    starts = {span.start for span in spans}
    pieces: list[tuple[int, bool]] = []
    running = 0
    for time in sorted({0, min(tail, step_ns), *alive} - {step_ns}):
        running += alive.get(time, 0)
        if not pieces or time in starts or time == tail or pieces[-1][1] != (running > 0):
            pieces.append((time, running > 0))
    ends = [time for time, _ in pieces[1:]] + [step_ns]
    return [
        Operator(
            name="communication alone" if waits else "after backward" if start >= tail else "forward and backward",
            type=IDLE if waits else COMPUTING,
            start_us=start / 1000,
            duration_us=(end - start) / 1000,
            phase="optimizer" if start >= tail else "other",
            recomputable=False,
            stage=stage,
        )
        for (start, waits), end in zip(pieces, ends, strict=True)
    ]


def _notes(kept: pl.DataFrame, operators: Sequence[Operator], findings: Findings) -> list[str]:
    steps = kept["step"].to_list()
    notes = [f"medians of {len(steps)} steps, {steps[0]} to {steps[-1]}; no memory and no single kernels are recorded"]
    alone = sum(operator.duration_us for operator in operators if operator.type == COMPUTING)
    if findings.computing_us is not None and findings.computing_us > alone:
        hidden = (findings.computing_us - alone) / 1000
        notes.append(f"{hidden:.1f} ms of computing run beside communication and are no operator: nothing says where")
    received = sum(operator.type in ("Receive", "Send") for operator in operators)
    if received:
        kinds = {kind: sum(operator.type == kind for operator in operators) for kind in ("Receive", "Send")}
        notes.append(f"{kinds['Receive']} receives and {kinds['Send']} sends a step: as many micro-batches")
    return notes


SOURCE = Source(KIND, "MindSpore pipeline runs as older profilers left them for MindInsight", find, read)
