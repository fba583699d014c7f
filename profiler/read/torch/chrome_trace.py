"""Chrome traces: Kineto's (torch), `trace_view.json` of torch_npu and MindSpore, and others -> kernels by time, blocks.

What lies on the device is found in this order::

    1  spans of a device's category (Kineto: kernel, gpu_memcpy, ...)
    2  lanes of the processes "Ascend Hardware" (tasks that compute) and "Communication" or "HCCL" (collectives)
    3  CPU only: operators of the framework that lie in no other one
    4  none of these: the outermost spans of each lane, whatever they are

The stream with the most time is ``compute``. Memory is in Kineto's ``[memory]`` events, where it was recorded.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hyperopt.profile import COMPUTE, Profile
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles, Source
from profiler.read.timeline.events import KERNELS, Events, Origin, Step
from profiler.read.torch.json_stream import JsonStream, head_of
from profiler.read.torch.trace_memory import memory_of
from profiler.read.torch.trace_spans import DEVICE, LAUNCH, NOT_KNOWN, OPERATOR, PLAIN, Trace, nanoseconds

COMMUNICATION = "communication"

HEAD = 256 << 10
"""Bytes at the start of a file that tell whether it is a trace."""

_LIST = re.compile(rb'\s*\[\s*\{.{0,65536}?"ph"\s*:', re.DOTALL)
_OBJECT = re.compile(rb'\s*\{.*("traceEvents"|"schemaVersion".*"deviceProperties")', re.DOTALL)

MAX_STEPS = 1000
"""Of these times are medians; more say nothing more, and a file may mark millions."""

HEADER = ("baseTimeNanoseconds", "distributedInfo", "deviceProperties", "schemaVersion")

HARDWARE = {"Ascend Hardware"}
COLLECTIVES = {"Communication", "HCCL"}

NO_KERNEL = re.compile(
    r"EVENT|NOTIFY|PLACE.?HOLDER|WRITE.?VALUE|PROFIL|DMA|MEMCPY|CMO|LABEL|STREAM_|MODEL_|END_GRAPH|^$", re.IGNORECASE
)
"""Tasks of an Ascend stream that compute nothing: waiting, marking, copying. Their kernels are those that
kernel_details.csv lists."""

COLLECTIVE_KERNEL = re.compile(r"nccl|hccl|hcom_|rccl|oneccl|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE)

MILLISECONDS = 1_000_000
"""Nanoseconds of the unit of MindInsight's timeline_display files, which are Chrome traces but for that."""


def find(path: Path) -> list[RankFiles]:
    """The file, if its first bytes are a Chrome trace's."""
    if not path.name.endswith((".json", ".json.gz", ".trace", ".trace.gz")) or not path.is_file():
        return []
    head = head_of(path, HEAD)
    if not (_LIST.match(head) or _OBJECT.match(head)):
        return []
    named = re.search(r"rank[_-]?(\d{1,6})(?!\d)", path.name)
    return [RankFiles(path, int(named[1]) if named else None)]


def read(files: RankFiles, findings: Findings) -> Profile:
    """The profile of one trace. Raises `UnreadableError`."""
    from profiler.read.timeline.join import profile_of

    return profile_of(events_of(files, findings), findings)


def events_of(files: RankFiles, findings: Findings) -> Events:
    """Kernels, blocks and steps of the trace. Raises `UnreadableError` where it has no spans at all."""
    path = files.path
    unit = MILLISECONDS if path.name.startswith(("timeline_display", "ascend_timeline_display")) else 1000
    if unit == MILLISECONDS:
        findings.normalised(f"{findings.name(path)}: times of timeline_display files are milliseconds")
    stream, trace = JsonStream(path, findings, keep=HEADER), Trace(per_unit=unit)
    for element in stream.elements("traceEvents"):
        trace.add(element)
    trace.finish()
    for why, count in sorted(trace.dropped.items()):
        findings.drop(path, why, count)
    if stream.damage and not trace.spans:
        raise stream.but("spans that can be read")
    spans = trace.frame()
    kernels = _kernels(spans, trace, path, findings)
    epoch = nanoseconds(stream.header.get("baseTimeNanoseconds", 0), 1) or 0
    blocks, memory = memory_of(trace, _outermost(spans.filter(pl.col("what") == OPERATOR)), path, findings)
    kernels, steps = _steps(kernels, trace, findings)
    origin = _origin(stream.header, files, trace)
    return Events(
        origin=origin,
        kernels=_since(kernels, ("start", "launched"), epoch),
        blocks=_since(blocks, ("allocated", "freed"), epoch),
        memory=memory,
        steps=tuple(Step(s.number, s.start + epoch, s.end + epoch, s.us) for s in steps),
    )


def _since(rows: pl.DataFrame, columns: tuple[str, ...], epoch: int) -> pl.DataFrame:
    return rows.with_columns(pl.col(column) + epoch for column in columns) if epoch else rows


def _kernels(spans: pl.DataFrame, trace: Trace, path: Path, findings: Findings) -> pl.DataFrame:
    """Rows with the columns of `KERNELS`, by the first of the ways above that finds any."""
    device = _on_device(spans, path, findings)
    if device.height:
        return _finished(device.with_columns(_stream_of(device, trace)), spans, trace)
    device = _on_ascend(spans, trace)
    if device.height:
        return _finished(device, spans, trace)
    operators = _outermost(spans.filter(pl.col("what") == OPERATOR))
    if operators.height:
        findings.warn("no spans of a device: the framework's operators on the host are taken as kernels")
        return _finished(_named_by_lane(operators, trace), spans, trace)
    plain = _outermost(spans.filter((pl.col("what") == PLAIN) & (pl.col("duration") > 0)))
    if not plain.height:
        raise UnreadableError(f'{path.name} has no spans (complete events, "ph": "X") of operators or kernels')
    findings.warn("neither device nor framework are named in this trace: the outermost spans of its lanes are taken")
    return _finished(_named_by_lane(plain, trace), spans, trace)


def _on_device(spans: pl.DataFrame, path: Path, findings: Findings) -> pl.DataFrame:
    """Spans of a device's category; of several devices the busiest."""
    device = spans.filter(pl.col("what") == DEVICE)
    named = device.filter(pl.col("device") != NOT_KNOWN).group_by("device").agg(pl.col("duration").sum())
    busy = named.sort("duration", "device", descending=[True, False])["device"]
    if busy.len() < 2:
        return device
    others = busy.len() - 1
    findings.warn(f"{path.name} has kernels of {others} further devices: only those of {busy[0]} are read")
    return device.filter(pl.col("device").is_in([busy[0], NOT_KNOWN]))


def _stream_of(device: pl.DataFrame, trace: Trace) -> pl.Expr:
    """Collectives are on `COMMUNICATION`, whatever stream they ran on."""
    collective = pl.col("name").str.contains(f"(?i){COLLECTIVE_KERNEL.pattern}")
    names = _streams(device.filter(~collective), trace)
    lane = pl.col("lane").replace_strict(names, default=COMPUTE, return_dtype=pl.String)
    return pl.when(collective).then(pl.lit(COMMUNICATION)).otherwise(lane).alias("stream")


def _on_ascend(spans: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Kernels and collectives of a trace_view.json, with their `stream`."""
    plain = spans.filter(pl.col("what") == PLAIN)
    processes = trace.processes
    lanes = {index: (processes.get(lane[0], ""), trace.threads.get(lane, "")) for lane, index in trace.lanes.items()}
    tasks = plain.filter(
        pl.col("lane").is_in([index for index, (process, _) in lanes.items() if process in HARDWARE])
        & ~pl.col("kind").str.contains(f"(?i){NO_KERNEL.pattern}")
    )
    groups = [index for index, (process, _) in lanes.items() if process in COLLECTIVES]
    # Beside the lane of whole collectives there are "planes" with their parts, which overlap.
    whole = [index for index in groups if "Communication" in lanes[index][1]]
    collectives = plain.filter(pl.col("lane").is_in(whole or groups))
    if not whole:
        collectives = collectives.filter(pl.col("name").str.starts_with("hcom_"))
    names = _streams(tasks, trace)
    return pl.concat(
        [
            tasks.with_columns(
                pl.col("lane").replace_strict(names, default=COMPUTE, return_dtype=pl.String).alias("stream")
            ),
            collectives.with_columns(pl.lit(COMMUNICATION).alias("stream"), pl.lit(COMMUNICATION).alias("kind")),
        ]
    ).sort("start", maintain_order=True)


def _named_by_lane(spans: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    names = _streams(spans, trace)
    return spans.with_columns(
        pl.col("lane").replace_strict(names, default=COMPUTE, return_dtype=pl.String).alias("stream")
    )


def _streams(spans: pl.DataFrame, trace: Trace) -> dict[int, str]:
    """Lane -> stream: the busiest is `COMPUTE`, others have their own name."""
    busy = spans.group_by("lane").agg(pl.col("duration").sum()).sort("duration", "lane", descending=[True, False])
    by_index = {index: lane for lane, index in trace.lanes.items()}
    names: dict[int, str] = {}
    taken = {COMPUTE, COMMUNICATION}
    for lane in busy["lane"]:
        process, thread = by_index[lane]
        name = trace.threads.get((process, thread)) or f"stream {thread}"
        names[lane] = COMPUTE if not names else f"{name} of {process} {thread}" if name in taken else name
        taken.add(names[lane])
    return names


def _outermost(spans: pl.DataFrame) -> pl.DataFrame:
    """Spans that lie in no other one of their lane."""
    if not spans.height:
        return spans
    ordered = spans.sort("lane", "start", "duration", descending=[False, False, True], maintain_order=True)
    end = pl.col("start") + pl.col("duration")
    before = end.cum_max().shift(1).over("lane").fill_null(np.iinfo(np.int64).min)
    return ordered.filter(pl.col("start") >= before).sort("start", maintain_order=True)


def _finished(device: pl.DataFrame, spans: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """With the time of launch and the arguments' shapes, as far as links and arrows tell."""
    launches = _first(spans.filter((pl.col("what") == LAUNCH) & (pl.col("link") != NOT_KNOWN)), "link")
    calls = _first(spans.filter((pl.col("what") == OPERATOR) & (pl.col("operator") != NOT_KNOWN)), "operator")
    linked = (
        device.join(launches.select("link", called="start"), on="link", how="left", maintain_order="left")
        .join(
            calls.select("operator", call="name", dims="shapes", kinds="types"),
            on="operator",
            how="left",
            maintain_order="left",
        )
        .join(_arrows(trace), on=["lane", "start"], how="left", maintain_order="left")
    )
    own = pl.col("what") == OPERATOR
    copies = pl.when(pl.col("kind").str.contains("mem")).then("kind")
    return (
        linked.select(
            "name",
            pl.coalesce(copies, "call").alias("type"),
            "stream",
            "start",
            "duration",
            pl.when(own).then("start").otherwise(pl.coalesce("called", "tail")).alias("launched"),
            pl.lit(None, pl.Int64).alias("step"),
            pl.coalesce("shapes", "dims").alias("inputs"),
            pl.coalesce("types", "kinds").alias("input_types"),
            pl.lit(None, pl.String).alias("outputs"),
            pl.lit(None, pl.String).alias("output_types"),
        )
        .cast(pl.Schema(KERNELS))
        .sort("start", maintain_order=True)
    )


def _first(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    return rows.unique(key, keep="first", maintain_order=True)


def _arrows(trace: Trace) -> pl.DataFrame:
    """(lane, start) of a span on the device -> `tail`, the time on the host where the arrow to it begins.

    Where two arrows end at a span, the framework's own counts: memory is taken there, the driver is called later."""
    tails: dict[tuple[int, int], int] = {}
    for category, arrow, lane, time in sorted(trace.heads, key=lambda head: head[0], reverse=True):
        tail = trace.arrows.get((category, arrow))
        if tail is not None:
            tails.setdefault((lane, time), tail)
    columns = {"lane": [lane for lane, _ in tails], "start": [time for _, time in tails], "tail": list(tails.values())}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int64))


def _steps(kernels: pl.DataFrame, trace: Trace, findings: Findings) -> tuple[pl.DataFrame, list[Step]]:
    """Kernels with their step, and the steps that have any, in the device's time.

    A kernel is of the step in whose mark it was launched (it may run after that), or in which it starts.
    """
    marks = sorted({(start, number, length) for number, start, length in trace.steps})
    if len(marks) > MAX_STEPS:
        findings.warn(f"{len(marks)} steps are marked: the last {MAX_STEPS} are read")
        marks = marks[-MAX_STEPS:]
    if not marks or not kernels.height:
        return kernels, []
    when = kernels.select(pl.coalesce("launched", "start")).to_series().to_numpy()
    begins = np.array([start for start, _, _ in marks])
    ends = np.array([start + length for start, _, length in marks])
    place = np.searchsorted(begins, when, side="right") - 1
    inside = (place >= 0) & (when < ends[place])
    place = np.where(inside, place, -1)
    numbers = np.array([number for _, number, _ in marks])
    column = pl.Series("step", np.where(inside, numbers[place], -1))
    kernels = kernels.with_columns(pl.when(column >= 0).then(column).alias("step"))
    begun, ended = pl.col("start").min(), (pl.col("start") + pl.col("duration")).max()
    rows = kernels.select("start", "duration", pl.Series("place", place)).filter(pl.col("place") >= 0)
    found = rows.group_by("place").agg(begun.alias("begun"), ended.alias("ended")).sort("place").iter_rows()
    spans = [(marks[place][1], begin, end) for place, begin, end in found]
    if len(spans) < len(marks):
        findings.warn(f"{len(marks) - len(spans)} marked steps have no kernels: they are left out")
    # A step lasts until the next one's first kernel, and at least until its own last one has ended.
    nexts = [after[1] if after[0] == this[0] + 1 else this[2] for this, after in pairwise(spans)]
    ends_at = [max(span[2], end) for span, end in zip(spans, [*nexts, *(s[2] for s in spans[-1:])], strict=True)]
    return kernels, [
        Step(number, start, end, (end - start) / 1000) for (number, start, _), end in zip(spans, ends_at, strict=True)
    ]


def _origin(header: dict[str, Any], files: RankFiles, trace: Trace) -> Origin:
    told = header.get("distributedInfo")
    group = told if isinstance(told, dict) else {}
    rank, world = group.get("rank"), group.get("world_size")
    devices = header.get("deviceProperties")
    device = devices[0].get("name") if isinstance(devices, list) and devices and isinstance(devices[0], dict) else ""
    ascend = bool(HARDWARE & set(trace.processes.values()))
    told_rank = rank if type(rank) is int and 0 <= rank < 2**31 else 0
    own = told_rank if files.rank is None else files.rank
    return Origin(
        framework="torch" if header else "",
        source=SOURCE.kind,
        device=device if isinstance(device, str) and not ascend else "Ascend" if ascend else "",
        rank=own,
        world_size=world if type(world) is int and own < world < 2**31 else own + 1,
    )


SOURCE = Source(
    kind="chrome_trace",
    about="Chrome trace: Kineto's, or trace_view.json (.json, .json.gz)",
    find=find,
    read=read,
)
