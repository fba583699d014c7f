"""The two files of MindSpore's memory tracker as arrays: tasks, blocks, and what the file's own totals say.

Rows that make no sense are dropped and named: stamps or sizes that are no numbers, negative ones, blocks that end
before they start, rows that stand there twice. Tensors inside a SOMAS block (both stamps -1) are in memory that is
counted already, and the host's pool is not the device's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from hyperopt.profile import Certainty, Phase
from profiler.read.findings import Findings, UnreadableError
from profiler.read.mindspore.tracker_graph import Graph, Signature, read_graph
from profiler.read.mindspore.tracker_names import phases_of
from profiler.read.mindspore.tracker_table import Dropping, Names, pieces
from profiler.read.mindspore.tracker_walk import I64, NEVER, UNKNOWN, Blocks, Tasks
from profiler.read.table import LINE

GRAPH_FILE = "tracker_graph.ir"

LARGEST_BLOCK = 2**50
"""Bytes. A larger block is a fault: no device has a pebibyte, and sums stay exact."""

VIRTUAL = "0xf00000000000"
"""Address of the first block in HyperParallel's dry run: it counts up from there and uses none twice."""

LOGICAL_POOL = "LogicalMemoryPool"
"""End of the names that it has for pools, in some versions."""

CERTAINTIES: tuple[Certainty, ...] = ("unknown", "inferred", "measured")
"""Of a block's accesses: the file says nothing, it has the last one, it lists them."""

LISTED = CERTAINTIES.index("measured")

INSIDE_SOMAS = "tensors inside a block that SOMAS has planned: the block is counted, once"
HOST_POOL = "blocks of the host's memory pool (CPU)"

UNFREED = ("0", str(NEVER), str(2**64 - 1))
"""End stamps, by version, of a block that is never freed; or the cell is empty."""

BLOCK_COLUMNS = (
    "start_time_stamp",
    "end_time_stamp",
    "device_addr",
    "pool_type",
    "size",
    "actual_used_memory",
    "actual_peak_memory",
    "type",
    "producer_task",
    "task_name",
    "node_name",
    "graph_name",
    "user_tasks",
    "last_user_task",
)
TASK_COLUMNS = ("time_stamp", "task_name", "node_name", "graph_name")


@dataclass(frozen=True)
class Record:
    """What both files say. `told`: per block, where in `CERTAINTIES` its accesses stand; `listed`: any are listed.
    `phases`: per task. `signatures`: shapes and types by the task's stamp, where known.

    `base`: bytes in use that belong to no block. `used_peak`, `pool_peak`: highest of the file's own columns
    `actual_used_memory` (all blocks) and `actual_peak_memory` (the pool with its fragments); None without.
    `dry`: nothing ran on a device, as the first block's address tells.
    """

    tasks: Tasks
    blocks: Blocks
    phases: Sequence[Phase]
    signatures: Mapping[int, Signature]
    told: npt.NDArray[np.int32]
    listed: bool
    base: int
    used_peak: int | None
    pool_peak: int | None
    dry: bool


def read_record(path: Path, tasks_path: Path, findings: Findings) -> Record:
    """Reads a block file, and the task file if there is one. Rows that make no sense are told to `findings`.

    Raises `UnreadableError` without any block.
    """
    names = Names()
    rows, user, stamp = _read_blocks(path, names, findings)
    tasks = _tasks(tasks_path, names, findings)
    dry = bool(rows["virtual"].any())
    if tasks is None:
        tasks = _tasks_of_blocks(rows, stamp, names)
        if not dry:
            findings.lacks("task.csv: operators are those that blocks name as producers or users")
    told = rows["told"].to_numpy()
    graph = read_graph(tasks_path.with_name(GRAPH_FILE), findings)
    phases = phases_of(tasks.task, tasks.node)
    writer, writer_stamp = _written(rows, graph) if graph else _updated(rows, user, stamp, tasks, phases)
    if graph is None and not dry:
        findings.lacks(
            "writes in place (tracker_graph.ir): what an optimizer's operator uses and nobody frees, it updates"
        )
    return Record(
        tasks=tasks,
        blocks=Blocks(
            start=rows["start"].to_numpy(),
            end=rows["end"].to_numpy(),
            size=rows["size"].to_numpy(),
            producer=rows["producer"].to_numpy(),
            type=names.at(rows["type"]),
            node=names.at(rows["node_name"]),
            user=user,
            user_stamp=stamp,
            writer=writer,
            writer_stamp=writer_stamp,
        ),
        phases=phases,
        signatures=graph.signatures if graph else {},
        told=told,
        listed=bool((told == LISTED).any()),
        base=_base(rows),
        used_peak=_highest(rows["used"]),
        pool_peak=_highest(rows["pool"]),
        dry=dry,
    )


def _written(rows: pl.DataFrame, graph: Graph) -> tuple[I64, I64]:
    """Writes by the graph: positions of blocks, and stamps."""
    start = rows["start"].to_numpy()
    at = np.minimum(np.searchsorted(start, graph.start, "left"), len(start) - 1)
    known = start[at] == graph.start
    return at[known], graph.task[known]


def _updated(rows: pl.DataFrame, user: I64, stamp: I64, tasks: Tasks, phases: Sequence[Phase]) -> tuple[I64, I64]:
    """Without the graph: an optimizer writes what it uses of blocks that stay. To take a weight for unwritten would
    let a plan restore the old one from the host."""
    updates = np.array([phase == "optimizer" for phase in phases])
    op = np.searchsorted(tasks.stamps, stamp, "right") - 1
    wrote = (op >= 0) & updates[np.maximum(op, 0)] & (rows["end"].to_numpy()[user] == NEVER)
    return user[wrote], stamp[wrote]


def _read_blocks(path: Path, names: Names, findings: Findings) -> tuple[pl.DataFrame, I64, I64]:
    """Blocks by start, numbers and numbered names; accesses as positions of blocks and stamps."""
    dropping = Dropping(path)
    frames, accesses = [], []
    count = garbled = 0
    for piece in pieces(path, BLOCK_COLUMNS, dropping):
        good = _blocks(piece, dropping)
        users = _users(good.select("user_tasks"), count)
        garbled += users["stamp"].null_count()
        accesses.append(users.drop_nulls())
        frames.append(names.keep(good.drop("user_tasks"), ("type", "task_name", "node_name", "graph_name")))
        count += good.height
    rows = pl.concat(frames).with_row_index("row") if frames else _no_rows()
    del frames
    first = rows.select(pl.struct("start", "end", "size", "address").is_first_distinct()).to_series()
    if not first.all():
        dropping.take("rows that stand there twice", rows.filter(~first)[LINE].to_list())
        rows = rows.filter(first)
    dropping.tell(findings)
    if garbled:
        findings.warn(f"{findings.name(path)}: {garbled} entries of user_tasks are no stamps")
    if not rows.height or rows["size"].cast(pl.Float64).sum() > 2.0**62:
        raise UnreadableError(
            f"{findings.name(path)} has no usable block of device memory (the tracker passes over the CPU's pool): "
            "take it on an accelerator or in a dry run; on a CPU, use MindSpore's profiler"
        )
    rows = rows.drop("address", LINE).sort("start", maintain_order=True)
    position = np.full(count, -1, np.int64)
    position[rows["row"].to_numpy()] = np.arange(rows.height)
    if not (rows["told"] == LISTED).any():  # simple_tracker: the last access alone
        last = rows.filter(pl.col("last").is_not_null())
        return rows, position[last["row"].to_numpy()], last["last"].to_numpy()
    users = pl.concat(accesses)
    block, stamp = position[users["row"].to_numpy()], users["stamp"].to_numpy()
    return rows, block[block >= 0], stamp[block >= 0]


def _no_rows() -> pl.DataFrame:
    """A file with a header alone."""
    numbers = ("row", LINE, "start", "end", "size")
    return pl.DataFrame(schema=dict.fromkeys(numbers, pl.Int64) | {"address": pl.UInt64})


def _blocks(piece: pl.DataFrame, dropping: Dropping) -> pl.DataFrame:
    """Numbers and names of the blocks that make sense; blocks of no bytes are passed over."""
    start, end, size = (_whole(name) for name in ("start_time_stamp", "end_time_stamp", "size"))
    unfreed = pl.col("end_time_stamp").is_null() | pl.col("end_time_stamp").is_in(UNFREED)
    why = (
        pl.when(pl.col("pool_type") == "CPU")
        .then(pl.lit(HOST_POOL))
        .when(start.is_null() | size.is_null() | (end.is_null() & ~unfreed))
        .then(pl.lit("rows whose stamps or size are no whole numbers"))
        .when((start == -1) & (end == -1))
        .then(pl.lit(INSIDE_SOMAS))
        .when((start < 0) | (size < 0) | (size > LARGEST_BLOCK))
        .then(pl.lit(f"rows with a negative stamp or size, or one of more than {LARGEST_BLOCK >> 40} TiB"))
        .when(~unfreed & (end <= start))
        .then(pl.lit("rows of blocks that end no later than they start"))
    )
    rows = piece.with_columns(why=why)
    for (reason,), part in rows.filter(pl.col("why").is_not_null()).group_by("why", maintain_order=True):
        dropping.take(str(reason), part[LINE].to_list())
    return rows.filter(pl.col("why").is_null() & (size > 0)).select(
        LINE,
        start=start,
        end=pl.when(unfreed).then(NEVER).otherwise(end),
        size=size,
        producer=_whole("producer_task").fill_null(UNKNOWN),
        last=_whole("last_user_task"),
        used=_whole("actual_used_memory"),
        pool=_whole("actual_peak_memory"),
        address=pl.col("device_addr").hash(),
        virtual=(
            (pl.col("device_addr").str.to_lowercase() == VIRTUAL) | pl.col("pool_type").str.ends_with(LOGICAL_POOL)
        ).fill_null(False),
        type="type",
        task_name="task_name",
        node_name="node_name",
        graph_name="graph_name",
        user_tasks="user_tasks",
        told=pl.when(pl.col("user_tasks").is_not_null())
        .then(LISTED)
        .when(_whole("last_user_task").is_not_null())
        .then(1)
        .otherwise(0),
    )


def _whole(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.Int64, strict=False)


def _users(lists: pl.DataFrame, first: int) -> pl.DataFrame:
    """`row` (counted from `first`) and `stamp` of every access; no stamp where an entry is no number."""
    return (
        lists.with_row_index("row", first)
        .select("row", entry=pl.col("user_tasks").str.strip_chars("{} ").str.split("-"))
        .explode("entry")
        .filter(pl.col("entry").is_not_null() & (pl.col("entry") != ""))
        .select("row", stamp=_whole("entry"))
    )


def _tasks(path: Path, names: Names, findings: Findings) -> Tasks | None:
    """The task file's tasks by stamp; None if there is none, or none with a task."""
    if path.is_symlink() or not path.is_file():
        return None
    dropping = Dropping(path)
    frames = []
    for piece in pieces(path, TASK_COLUMNS, dropping):
        rows = piece.with_columns(stamp=_whole("time_stamp"))
        bad = pl.col("stamp").is_null() | (pl.col("stamp") < 0)
        dropping.take("tasks whose stamp is no whole number", rows.filter(bad)[LINE].to_list())
        frames.append(names.keep(rows.filter(~bad).drop("time_stamp"), TASK_COLUMNS[1:]))
    rows = pl.concat(frames) if frames else pl.DataFrame()
    tasks = rows.unique("stamp", keep="first", maintain_order=True) if frames else rows
    if tasks.height < rows.height:
        dropping.take("tasks with a stamp that one has already", rows.join(tasks, on=LINE, how="anti")[LINE].to_list())
    dropping.tell(findings)
    return _named(tasks.sort("stamp"), names) if tasks.height else None


def _tasks_of_blocks(rows: pl.DataFrame, stamps: I64, names: Names) -> Tasks:
    """The tasks that blocks name: producers with their names, users without. At least one."""
    made = rows.filter(pl.col("producer") >= 0).unique("producer", keep="first", maintain_order=True)
    made = made.select(stamp="producer", task_name="task_name", node_name="node_name", graph_name="graph_name")
    others = pl.DataFrame({"stamp": stamps[stamps >= 0]}).unique().join(made, on="stamp", how="anti")
    tasks = pl.concat([made, others], how="diagonal").fill_null(names.number(""))
    if not tasks.height:
        tasks = pl.concat([made, rows.select(stamp=pl.col("start").min())], how="diagonal").fill_null(names.number(""))
    return _named(tasks.sort("stamp"), names)


def _base(rows: pl.DataFrame) -> int:
    """Bytes in use beside the blocks: what the file's own total has more, at the median of its rows.

    It is the same at all rows where the record is whole. Rows of one stamp are taken together, as a dry run gives the
    total after all that an operator makes.
    """
    used = rows.filter(pl.col("used").is_not_null()).group_by("start").agg(pl.col("used").max())
    if not used.height:
        return 0
    start, size, end = rows["start"].to_numpy(), rows["size"].to_numpy(), rows["end"].to_numpy()
    order = np.argsort(end, kind="stable")
    at = used["start"].to_numpy()
    taken = np.concatenate([[0], np.cumsum(size)])[np.searchsorted(start, at, "right")]
    given = np.concatenate([[0], np.cumsum(size[order])])[np.searchsorted(end[order], at, "right")]
    return max(0, int(np.median(used["used"].to_numpy() - taken + given)))


def _highest(column: pl.Series) -> int | None:
    top = column.filter(column <= LARGEST_BLOCK).max()
    return int(top) if isinstance(top, int) and top >= 0 else None


def _named(rows: pl.DataFrame, names: Names) -> Tasks:
    task, node, graph = (names.at(rows[name]) for name in ("task_name", "node_name", "graph_name"))
    return Tasks(stamps=rows["stamp"].to_numpy(), task=task, node=node, graph=graph)
