"""A `Run` as the sqlite that torch_npu and msprof write, and as it looks after MindStudio had it.

Times are ns, sizes bytes, names ids into STRING_IDS, host times of PYTORCH_API text; NULL is "not released". Sub-tasks
of collectives, copies and events lie in TASK beside the kernels.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.profiler.read.ascend.ascend_run import T0, Run, records, released_total

NO_ID = 4294967295


@dataclass(frozen=True)
class Database:
    """Which database. `host_times`: the calls that launched the kernels; text has none. `studio`: opened by
    MindStudio, which adds columns and tables. `engine_rows`: OP_MEMORY lists the graph engine's blocks too; else they
    are in NPU_OP_MEM alone, as msprof writes them."""

    level: int = 2
    host_times: bool = True
    studio: bool = False
    engine_rows: bool = True
    steps: bool = True


SCHEMA = {
    "STRING_IDS": "id INTEGER PRIMARY KEY, value TEXT",
    "NPU_INFO": "id INTEGER, name TEXT",
    "HOST_INFO": "hostUid TEXT, hostName TEXT",
    "META_DATA": "name TEXT, value TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "ENUM_MODULE": "id INTEGER PRIMARY KEY, name TEXT",
    "TASK": "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER, "
    "globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER",
    "COMPUTE_TASK_INFO": "name INTEGER, globalTaskId INTEGER PRIMARY KEY, blockDim INTEGER, mixBlockDim INTEGER, "
    "taskType INTEGER, opType INTEGER, inputFormats INTEGER, inputDataTypes INTEGER, inputShapes INTEGER, "
    "outputFormats INTEGER, outputDataTypes INTEGER, outputShapes INTEGER, attrInfo INTEGER",
    "COMMUNICATION_OP": "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER, "
    "opId INTEGER PRIMARY KEY, relay INTEGER, retry INTEGER, dataType INTEGER, algType INTEGER, count NUMERIC, "
    "opType INTEGER",
    "COMMUNICATION_TASK_INFO": "name INTEGER, globalTaskId INTEGER, taskType INTEGER, planeId INTEGER, opId INTEGER",
    "CANN_API": "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, connectionId INTEGER PRIMARY KEY, "
    "name INTEGER",
    "PYTORCH_API": "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER, type INTEGER",
    "CONNECTION_IDS": "id INTEGER, connectionId INTEGER",
    "STEP_TIME": "id INTEGER, startNs INTEGER, endNs INTEGER",
    "OP_MEMORY": "name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER, activeReleaseTime INTEGER, "
    "duration INTEGER, activeDuration INTEGER, allocationTotalAllocated INTEGER, allocationTotalReserved INTEGER, "
    "allocationTotalActive INTEGER, releaseTotalAllocated INTEGER, releaseTotalReserved INTEGER, "
    "releaseTotalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
    "NPU_OP_MEM": "operatorName INTEGER, addr INTEGER, type INTEGER, size INTEGER, timestampNs INTEGER, "
    "globalTid INTEGER, totalAllocate NUMERIC, totalReserve NUMERIC, component INTEGER, deviceId INTEGER",
    "MEMORY_RECORD": "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER, "
    "totalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
    "NPU_MEM": "type INTEGER, ddr NUMERIC, hbm NUMERIC, timestampNs INTEGER, deviceId INTEGER",
    "NPU_MODULE_MEM": "moduleId INTEGER, timestampNs INTEGER, totalReserved NUMERIC, deviceId INTEGER",
}


class Strings:
    """Ids of the texts that a database has used so far."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))


def write(run: Run, path: Path, database: Database) -> None:
    """The database at `path`, and analysis.db beside it."""
    rows = _rows(run, database)
    make(path, rows)
    times = [(str(step), *_step_trace(run, step)) for step in run.steps]
    make(path.with_name("analysis.db"), {"StepTraceTime": times}, {"StepTraceTime": STEP_TRACE})
    if database.studio:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("ALTER TABLE TASK ADD COLUMN depth INTEGER")
            connection.execute("ALTER TABLE TASK ADD COLUMN waitNs INTEGER DEFAULT 17")
            connection.execute("ALTER TABLE COMPUTE_TASK_INFO RENAME TO _COMPUTE_TASK_INFO_old_20251014")
            connection.execute(
                "CREATE TABLE COMPUTE_TASK_INFO AS SELECT 7 AS waitNs, * FROM _COMPUTE_TASK_INFO_old_20251014"
            )
            connection.execute(
                "CREATE TABLE OVERLAP_ANALYSIS (id INTEGER, deviceId INTEGER, startNs INTEGER, endNs INTEGER)"
            )
            connection.execute("CREATE TABLE status_info (file TEXT, status INTEGER)")


def make(path: Path, rows: Mapping[str, Sequence[tuple[object, ...]]], schema: Mapping[str, str] | None = None) -> None:
    """A database of these tables."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, values in rows.items():
            connection.execute(f"CREATE TABLE {table} ({(schema or SCHEMA)[table]})")
            if values:
                connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)


STEP_TRACE = (
    "step TEXT, computing NUMERIC, communication_not_overlapped NUMERIC, overlapped NUMERIC, communication NUMERIC, "
    "free NUMERIC, stage NUMERIC, bubble NUMERIC, communication_not_overlapped_and_exclude_receive NUMERIC, "
    "preparing NUMERIC"
)


def _step_trace(run: Run, step: int) -> list[float]:
    times = run.times(step)
    names = ("computing", "not_overlapped", "overlapped", "communication", "free", "stage")
    us = [times[name] / 1e3 for name in names]
    return [*us, 0, us[1], 206.25]


def _rows(run: Run, database: Database) -> dict[str, list[tuple[object, ...]]]:
    text = Strings()
    rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in SCHEMA}
    rows["NPU_INFO"] = [(run.device, "Ascend910B")]
    rows["HOST_INFO"] = [("3538958389648580163", "ubuntu")]
    rows["META_DATA"] = [("SCHEMA_VERSION_MAJOR", "1"), ("SCHEMA_VERSION", "1.0.0")]
    rows["RANK_DEVICE_MAP"] = [(run.rank, run.device)]
    _kernels(run, database, text, rows)
    if database.steps:
        spans = [(step, *run.span(step)) for step in run.steps]
        early = {step: min(k.launched for k in run.kernels if k.step == step) for step in run.steps}
        begins = [early[step] if database.host_times else begin for step, begin, _ in spans]
        ends = [*(begin - 1 for begin in begins[1:]), spans[-1][2]]
        rows["STEP_TIME"] = [(step, b, e) for (step, *_), b, e in zip(spans, begins, ends, strict=True)]
    _memory(run, database, text, rows)
    rows["STRING_IDS"] = [(number, value) for value, number in text.ids.items()]
    return {table: values for table, values in rows.items() if values or table in ("TASK", "OP_MEMORY")}


def _kernels(run: Run, database: Database, text: Strings, rows: dict[str, list[tuple[object, ...]]]) -> None:
    for number, k in enumerate(run.kernels):
        connection = 1000 + number if database.host_times else NO_ID
        if database.host_times:
            # The operator's own call, on the thread that asks for memory; the launch is another thread's, later.
            rows["CANN_API"].append((k.launched + 20_000, k.launched + 25_000, 10000, 7, connection, text("launch")))
            rows["PYTORCH_API"].append((str(k.launched), str(k.launched + 9_000), 5, number, text(k.type), 50001))
            rows["PYTORCH_API"].append((str(k.launched - 9_000), str(k.launched), 5, None, text("aten::op"), 50001))
            rows["CONNECTION_IDS"].append((number, connection))
        if k.communication:
            op = len(rows["COMMUNICATION_OP"]) + 1
            rows["COMMUNICATION_OP"].append(
                (text(k.name), k.start, k.end, connection, text("group"), op, 0, 0, 4, text("RING"), 4096, text(k.type))
            )
            for part in range(3):
                task, kind = 10_000_000 + 10 * number + part, text("Notify Wait")
                since = k.start + part * k.duration // 3
                rows["TASK"].append(_task(run, since, since + k.duration // 3, connection, task, kind, 9))
                rows["COMMUNICATION_TASK_INFO"].append((text(k.name), task, kind, 0, op))
            continue
        rows["TASK"].append(_task(run, k.start, k.end, connection, number, text("KERNEL_AIVEC"), k.stream))
        said: Callable[[str], int] = text if database.level else lambda _: text("N/A")
        rows["COMPUTE_TASK_INFO"].append(
            (text(k.name), number, 32, 0, text("AI_VECTOR_CORE"), said(k.type), said("ND;ND"), said(k.input_types),
             said(f'"{k.inputs}"'), said("ND"), said(k.output_types), said(f'"{k.outputs}"'), text("N/A"))
        )  # fmt: skip
        if number % 5 == 0:  # an event, and the unnamed half of a mixed kernel
            rows["TASK"].append(_task(run, k.start, k.start, connection, 20_000_000 + number, text("EVENT_RECORD"), 2))
            rows["TASK"].append(_task(run, k.start, k.end, connection, 30_000_000 + number, text("KERNEL_MIX_AIV"), 2))


def _task(run: Run, start: int, end: int, connection: int, task: int, kind: int, stream: int) -> tuple[object, ...]:
    return start, end, run.device, connection, task, 3217657, kind, NO_ID, stream, task, NO_ID


def _memory(run: Run, database: Database, text: Strings, rows: dict[str, list[tuple[object, ...]]]) -> None:
    took: dict[int, int] = {}
    gave: dict[int, int] = {}
    for change in run.changes:
        (took if change.bytes > 0 else gave)[change.block] = (
            change.after if change.bytes > 0 else released_total(change)
        )
        if change.engine:
            name = text(run.blocks[change.block].name)
            kind = text("allocate" if change.bytes > 0 else "release")
            total = change.after if change.bytes > 0 else change.before
            address, size = 0x12C000000000 + change.block, abs(change.bytes)
            rows["NPU_OP_MEM"].append(
                (name, address, kind, size, change.time, 7, total, run.engine_reserved, text("GE"), run.device)
            )
    for number, b in enumerate(run.blocks):
        if b.engine and not database.engine_rows:
            continue
        held = run.engine_reserved if b.engine else run.reserved
        lived = None if b.freed is None else b.freed - b.allocated
        active: tuple[int | None, ...] = (b.freed and b.freed - 400, lived, took[number], gave.get(number))
        active = (None, None, None, None) if b.engine else active
        rows["OP_MEMORY"].append(
            (text(b.name), b.bytes, b.allocated, b.freed, active[0], lived, active[1], took[number], held, active[2],
             gave.get(number), held if b.freed else None, active[3], None if b.engine else 1244527088, run.device)
        )  # fmt: skip
    for component, time, allocated, reserved, engine in records(run, "PTA"):
        rows["MEMORY_RECORD"].append(
            (text(component), time, allocated, reserved, 0 if engine else allocated, 1244527088, run.device)
        )
    rows["NPU_MEM"] = [
        (text("app"), 0, run.process, T0, run.device),
        (text("device"), 0, 2 * run.process, T0, run.device),
    ]
    modules = {"APP": run.reserved, **run.modules}
    rows["ENUM_MODULE"] = list(enumerate(modules))
    for at in (0, 20_000_000):
        for number, size in enumerate(modules.values()):
            rows["NPU_MODULE_MEM"].append((number, T0 + at, size if at else size // 2, run.device))
