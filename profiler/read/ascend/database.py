"""Ascend profiler exports as sqlite: what torch_npu, MindSpore and msprof write with export type "db".

::

    rank0_ascend_pt/
        profiler_info_0.json                     rank, versions
        ASCEND_PROFILER_OUTPUT/
            ascend_pytorch_profiler_0.db         (ascend_mindspore_profiler_0.db; msprof_20250109.db of msprof)
                STRING_IDS                       every name is an id into this
                TASK, COMPUTE_TASK_INFO          kernels: device times, shapes (joined by globalTaskId)
                COMMUNICATION_OP                 collectives (their sub-tasks are not kernels)
                CANN_API, PYTORCH_API,
                CONNECTION_IDS                   host times: kernel -> launch -> the framework's operator
                OP_MEMORY, NPU_OP_MEM            allocations of the framework's pool, and of the graph engine's
                MEMORY_RECORD, NPU_MEM           pools over time; what the process holds
                NPU_MODULE_MEM, ENUM_MODULE      who else holds device memory
                STEP_TIME                        steps, on the host's clock
                RANK_DEVICE_MAP, NPU_INFO        which rank, on which device
            analysis.db                          StepTraceTime: computing, communication, free, for each step

Times are ns and sizes bytes. Tools add columns and tables to a database that they have opened: columns are taken by
name. Facts: PROFILE_FORMATS, A.7; msprof's reference of its exports. The file itself is `sqlite_file`'s.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec
import polars as pl

from hyperopt.profile import Profile
from profiler.read.ascend.folder import StepTimes, computing_us, origin_of, stage_in, stage_of, steps_of, unsaid_rank
from profiler.read.ascend.places import database_of, device_of, find, folder_of, has_map, passed_over
from profiler.read.ascend.schema import (
    ALLOCATIONS,
    CALLS,
    COLLECTIVES,
    CONNECTIONS,
    DEVICES,
    ENGINE,
    KERNEL_INFO,
    META,
    MODULE_MEMORY,
    MODULES,
    PARTS,
    PROCESS,
    RECORD,
    STEP_TRACE,
    STEPS,
    STRINGS,
    TASKS,
)
from profiler.read.ascend.sqlite_file import Columns, SqliteFile, is_sqlite
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles, Source
from profiler.read.timeline.events import KERNELS, Events, Memory, Origin, no_blocks, no_kernels
from profiler.read.timeline.join import profile_of
from profiler.read.timeline.pools import Pool, memory_of, pools_of

BESIDE = ("analysis.db", "communication_analyzer.db")
NOT_SAID = ("", "N/A", "NA")
LONGEST_NS = 10**15
AWAY = "times weeks away from the others"
MOST_BYTES = 2**43
"""More than any device has; sums of it still fit into a profile."""
NO_CONNECTION = 2**32 - 1
LACKS = {
    "STRING_IDS": "names of all, and kernels, which are known by theirs",
    "TASK": "kernels that compute",
    "COMPUTE_TASK_INFO": "names and shapes of kernels",
    "OP_MEMORY": "allocations of the framework",
}
"""Main tables, and what a rank has to do without where they have nothing of it."""
SHAPES = ("inputs", "input_types", "outputs", "output_types")
COMPUTING = "KERNEL_|AI_CORE|AI_VECTOR_CORE|AI_CPU|MIX_AIC|MIX_AIV|DSA_SQE"
"""Types of tasks that are kernels, where nothing else says so."""


def read(files: RankFiles, findings: Findings) -> Profile:
    """The rank's profile. Raises `UnreadableError` where there are neither kernels nor memory, or no database."""
    database = database_of(files.path, findings)
    if not has_map(database) and (told := unsaid_rank(folder_of(database), files.rank)):
        findings.warn(told)
    times = _step_times(database, findings)
    if times:  # all that is known of a rank whose profile then fails, or has no kernels
        findings.computing_us = statistics.median(row["computing"] for row in times.values())
    events = events_of(database, files, times, findings)
    profile = profile_of(events, findings)
    if events.kernels.height:
        findings.computing_us = computing_us(profile, events.kernels, times)
    return profile


SOURCE = Source("ascend_db", "Ascend profiler export as sqlite (torch_npu, MindSpore, msprof)", find, read, passed_over)


def events_of(database: Path, files: RankFiles, times: StepTimes, findings: Findings) -> Events:
    """What the database says of one rank, before kernels and blocks are joined. Raises `UnreadableError`."""
    with SqliteFile(database, findings) as file:
        rank = _Rank(file, files, findings)
        findings.stage = rank.stage()
        kernels = rank.kernels()
        pools = rank.pools()
        rank.tell_missing()
        memory = rank.memory(pools)
        if not kernels.height and memory.peak_bytes is None:
            why = "; ".join(rank.missing.values()) or "no row can be used"
            raise UnreadableError(
                f"{findings.name(database)} has neither kernels (TASK, COMPUTE_TASK_INFO, COMMUNICATION_OP) nor memory "
                f"(OP_MEMORY, MEMORY_RECORD) of this rank: {why} (profile it again, or export it as text)"
            )
        blocks = pl.concat([pool.blocks for pool in pools]).sort("allocated") if pools else no_blocks()
        return Events(rank.origin(), kernels, blocks, memory, steps_of(kernels, times))


class _Rank:
    """One rank's part of an open database."""

    def __init__(self, file: SqliteFile, files: RankFiles, findings: Findings) -> None:
        self.file = file
        self.files = files
        self.findings = findings
        self.device = device_of(file, files.rank)
        self.missing: dict[str, str] = {}
        """Main tables without a row of this rank -> that in words."""
        strings = self.main("STRING_IDS", STRINGS).drop_nulls().unique("id", keep="first", maintain_order=True)
        self.strings = strings.select("id", pl.col("value").str.strip_chars(" \t\r\n"))

    def rows(self, table: str, columns: Columns) -> pl.DataFrame:
        """Rows of a table that are this device's, where the database holds several."""
        rows = self.file.read(table, columns)
        return rows.filter(pl.col("device") == self.device) if self.device is not None else rows

    def main(self, table: str, columns: Columns) -> pl.DataFrame:
        """As `rows`, of a table that a whole profile has."""
        rows = self.rows(table, columns) if "device" in columns else self.file.read(table, columns)
        if not rows.height:
            mine = "" if self.device is None else f" of device {self.device}"
            self.missing[table] = self.file.lack(table) or f"no rows{mine} in {table}"
        return rows

    def tell_missing(self) -> None:
        """What the rank must do without, by the tables that have nothing of it."""
        for table, what in LACKS.items():
            if why := self.missing.get(table):
                self.findings.lacks(f"{what}: {why}")

    def named(self, rows: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """The rows with names for ids; null where the name says nothing."""
        for column in columns:
            names = self.strings.select(pl.col("id").alias(column), pl.col("value").alias("_name"))
            rows = rows.join(names, on=column, how="left", maintain_order="left").drop(column)
            said = pl.when(~pl.col("_name").is_in(NOT_SAID)).then(pl.col("_name"))
            rows = rows.with_columns(said.alias(column)).drop("_name")
        return rows

    def kernels(self) -> pl.DataFrame:
        """Columns `KERNELS`."""
        found = pl.concat([self._computing(), self._communicating()], how="diagonal")
        found = self._good(found, "TASK or COMMUNICATION_OP", pl.col("start") < 0, "negative start times")
        length = pl.col("end") - pl.col("start")
        found = self._good(found, "TASK or COMMUNICATION_OP", length < 0, "negative durations")
        found = self._good(found, "TASK or COMMUNICATION_OP", length > LONGEST_NS, "durations of weeks")
        found = self._good(found, "TASK or COMMUNICATION_OP", _is_away("start"), AWAY)
        if not found.height:
            return no_kernels()
        found = self._launched(found.sort("start", maintain_order=True))
        found = self._stepped(found.with_columns(duration=length))
        texts = [pl.col(column).str.strip_chars('"') for column in SHAPES]
        return found.with_columns(texts).select(pl.col(name).cast(kind) for name, kind in KERNELS.items())

    def pools(self) -> list[Pool]:
        rows = self.main("OP_MEMORY", ALLOCATIONS)
        rows = self.named(rows, "name").with_columns(
            # The graph engine counts neither active memory nor streams, and its names have no namespace.
            graph_engine=pl.col("active").is_null()
            & pl.col("pool_stream").is_null()
            & ~pl.col("name").str.contains("::", literal=True).fill_null(False)
        )
        rows = rows.drop("active", "pool_stream", "device")
        if not rows["graph_engine"].any():
            engine_rows = self._engine()
            if engine_rows.height and self.file.path.name.startswith("msprof"):
                self.missing.pop("OP_MEMORY", None)  # msprof knows the graph engine's alone
            rows = pl.concat([rows, engine_rows], how="diagonal")
        lived = pl.col("freed") - pl.col("allocated")
        for bad, what in (
            (pl.col("allocated").is_null(), "no allocation time"),
            (_bytes("bytes").is_null(), "no size"),
            (lived < 0, "a release before the allocation"),
            (_is_away("allocated") | (lived > LONGEST_NS), AWAY),
        ):
            rows = self._good(rows, "OP_MEMORY", bad, what)
        if not rows.height:
            return []
        engine = pl.col("graph_engine")
        rows = rows.with_columns(_bytes(c) for c in ("total_after", "total_freed", "reserved")).with_columns(
            name=pl.when(engine).then("cann::" + pl.col("name")).otherwise(pl.col("name")),
            # The graph engine says the total before a release, the framework the one after it.
            total_freed=pl.col("total_freed") - pl.when(engine).then(pl.col("bytes")).otherwise(0),
        )
        return pools_of(rows, self.findings)

    def memory(self, pools: list[Pool]) -> Memory:
        most = pl.col("allocated").max(), pl.col("reserved").max()
        record = self.named(self.rows("MEMORY_RECORD", RECORD), "component").drop_nulls("component")
        record = record.with_columns(_bytes("allocated"), _bytes("reserved"))
        totals = {name: (a or 0, r or 0) for name, a, r in record.group_by("component").agg(*most).iter_rows()}
        process = self.named(self.rows("NPU_MEM", PROCESS), "kind").filter(pl.col("kind") == "app")
        held = process.select((_bytes("ddr").fill_null(0) + _bytes("hbm").fill_null(0)).max()).item()
        if "APP" not in totals and isinstance(held, int) and held > 0:
            totals["APP"] = (0, held)
        modules = self.rows("NPU_MODULE_MEM", MODULE_MEMORY).filter(_bytes("reserved") > 0)
        modules = modules.join(self.file.read("ENUM_MODULE", MODULES).drop_nulls(), on="module")
        parts = {str(n): int(r) for n, r in modules.group_by("name").agg(pl.col("reserved").max()).iter_rows()}
        return memory_of(pools, totals, parts, False, self.findings)

    def origin(self) -> Origin:
        mindspore = "mindspore" in self.file.path.name or self.files.path.name.endswith("_ascend_ms")
        devices = self.file.read("NPU_INFO", DEVICES)
        if self.device is not None:
            devices = devices.filter(pl.col("device") == self.device)
        device = next(iter(devices["name"].drop_nulls()), "Ascend NPU")
        folder, arguments = folder_of(self.file.path), self._said("distributed_args")
        return origin_of(folder, self.files.rank, mindspore=mindspore, device=device, arguments=arguments)

    def stage(self) -> int | None:
        groups, rank = self._said("parallel_group_info"), self.files.rank
        return stage_in(groups, rank) if groups else stage_of(folder_of(self.file.path), rank)

    def _said(self, name: str) -> dict[str, object]:
        """An object that META_DATA keeps under this name; empty where there is none that reads."""
        texts = self.file.read("META_DATA", META).filter(pl.col("name") == name)["value"].drop_nulls()
        try:
            return msgspec.json.decode(next(iter(texts), "{}"), type=dict[str, object])
        except (msgspec.DecodeError, RecursionError):
            return {}

    def _computing(self) -> pl.DataFrame:
        tasks = self.main("TASK", TASKS).drop_nulls(["start", "end"]).drop("device")
        # A task without information is no kernel: a copy, an event, the second half of a mixed kernel.
        info = self.main("COMPUTE_TASK_INFO", KERNEL_INFO).drop_nulls("task").unique("task", keep="first")
        if not info.height:
            rows = self._unnamed(tasks)
        else:
            rows = tasks.drop("kind").join(info, on="task", maintain_order="left").drop("task")
            rows = self.named(rows, "name", "type", *SHAPES)
        rows = self._good(rows, "COMPUTE_TASK_INFO", pl.col("name").is_null(), "no name")
        return rows.with_columns(pl.col("stream").cast(pl.String))

    def _unnamed(self, tasks: pl.DataFrame) -> pl.DataFrame:
        """Kernels where only the type of a task tells that it is one."""
        parts = self.file.read("COMMUNICATION_TASK_INFO", PARTS)
        rows = self.named(tasks.join(parts, on="task", how="anti", maintain_order="left").drop("task"), "kind")
        rows = rows.filter(pl.col("kind").str.contains(COMPUTING).fill_null(False)).rename({"kind": "name"})
        return rows.with_columns(pl.lit(None, pl.String).alias(column) for column in ("type", *SHAPES))

    def _communicating(self) -> pl.DataFrame:
        rows = self.file.read("COMMUNICATION_OP", COLLECTIVES).drop_nulls(["start", "end"])
        if self.device is not None:
            if self.file.has("COMMUNICATION_OP", COLLECTIVES, "device"):
                rows = rows.filter(pl.col("device") == self.device)
            else:
                rows = rows.join(self.rows("TASK", TASKS).select("connection").unique(), on="connection", how="semi")
        rows = self.named(rows, "name", "type").with_columns(pl.lit("communication").alias("stream"))
        return rows.with_columns(pl.col("name").fill_null(pl.col("type")).fill_null("communication"))

    def _launched(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """The kernels with the host time of their launch, and of the call into CANN that made it (`issued`).

        torch_npu's operators ask for memory on one thread and are launched by another one, later: blocks go with the
        operator's own time, which is taken where the database has it.
        """
        calls = self.file.read("CANN_API", CALLS).drop_nulls().filter(pl.col("connection") != NO_CONNECTION)
        issued = calls.group_by("connection").agg(pl.col("launched").min().alias("issued"))
        operators = self.file.read("PYTORCH_API", CALLS).drop_nulls().rename({"connection": "call"})
        links = self.file.read("CONNECTION_IDS", CONNECTIONS).drop_nulls()
        by_operator = links.join(operators, on="call").group_by("connection").agg(pl.col("launched").min())
        kernels = kernels.join(issued, on="connection", how="left", maintain_order="left")
        kernels = kernels.join(by_operator, on="connection", how="left", maintain_order="left")
        # One clock or the other: times of the launching thread among those of the operators' would be late ones.
        if (
            kernels["launched"].null_count() > kernels["issued"].null_count()
            and 2 * kernels["launched"].count() < kernels.height
        ):
            kernels = kernels.with_columns(launched=pl.col("issued"))
        lost = kernels["launched"].null_count()
        if 0 < lost <= kernels.height // 2:
            self.findings.warn(f"{lost} kernels have no launch in the database: taken as launched with the one before")
            kernels = kernels.with_columns(pl.col("launched").forward_fill().backward_fill())
        elif 0 < lost < kernels.height:
            self.findings.warn(f"{lost} of {kernels.height} kernels have no launch in the database: none is used")
            kernels = kernels.with_columns(launched=pl.lit(None, pl.Int64))
        return kernels

    def _stepped(self, kernels: pl.DataFrame) -> pl.DataFrame:
        """The kernels with the step in which the host launched them; steps of the database are the host's."""
        steps = self.file.read("STEP_TIME", STEPS).drop_nulls().filter(pl.col("end") > pl.col("begin"))
        steps = steps.filter(pl.col("step").is_between(0, 2**31)).sort("begin")
        at = pl.coalesce("issued", "launched", "start").alias("at")
        rows = kernels.with_columns(at).with_row_index("row").sort("at")
        rows = rows.join_asof(steps.rename({"end": "until"}), left_on="at", right_on="begin", strategy="backward")
        step = pl.when(pl.col("at") <= pl.col("until")).then(pl.col("step"))
        return rows.with_columns(step.alias("step")).sort("row")

    def _engine(self) -> pl.DataFrame:
        """Blocks of the graph engine from its allocations and releases: a release ends the block at its address."""
        rows = self.named(self.rows("NPU_OP_MEM", ENGINE), "name", "kind").drop_nulls(["time", "bytes", "address"])
        by_address = pl.col("kind", "time", "total").shift(-1).over("address", order_by="time").name.prefix("next_")
        rows = rows.sort("time", maintain_order=True).with_columns(by_address)
        released = pl.col("next_kind") == "release"
        return rows.filter(pl.col("kind") == "allocate").select(
            "name",
            "bytes",
            allocated="time",
            freed=pl.when(released).then("next_time"),
            total_after="total",
            total_freed=pl.when(released).then("next_total"),
            reserved="reserved",
            graph_engine=pl.lit(True),
        )

    def _good(self, rows: pl.DataFrame, table: str, bad: pl.Expr, what: str) -> pl.DataFrame:
        """The rows where `bad` is not true; those where it is are told."""
        kept = rows.filter(bad.fill_null(False).not_())
        self.findings.drop(self.file.path, f"rows of {table} with {what}", rows.height - kept.height)
        return kept


def _bytes(column: str) -> pl.Expr:
    """The column, null where it is no size."""
    return pl.when(pl.col(column).is_between(0, MOST_BYTES)).then(pl.col(column))


def _is_away(column: str) -> pl.Expr:
    """Whether a time is nowhere near most others: one such would make the step weeks long."""
    return ((pl.col(column).cast(pl.Float64) - pl.col(column).median()).abs() > LONGEST_NS).fill_null(False)


def _step_times(database: Path, findings: Findings) -> StepTimes:
    """StepTraceTime of the database beside, in us."""
    times: StepTimes = {}
    for path in (database.with_name(name) for name in BESIDE):
        if not is_sqlite(path):
            continue
        try:
            with SqliteFile(path, findings) as file:
                rows = file.read("StepTraceTime", STEP_TRACE)
        except UnreadableError as error:
            findings.warn(str(error))
            continue
        figures = ("computing", "communication", "free")
        good = pl.all_horizontal(pl.col(c).is_between(0, LONGEST_NS / 1e3) for c in figures).fill_null(False)
        findings.drop(
            path,
            "rows of StepTraceTime without computing, communication and free",
            rows.filter(~good).height,
        )
        for row in rows.filter(good).iter_rows(named=True):
            times.setdefault(row["number"], {c: row[c] for c in figures})
    return times
