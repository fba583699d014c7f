"""MindSpore's memory tracker: every allocation of the device's memory pool, with who made and who used it.

`MS_ALLOC_CONF=memory_tracker:True` makes MindSpore write a folder (`rank_N` in it where there are ranks) at its end::

    memory_block.csv  start_time_stamp,end_time_stamp,device_addr,stream_id,pool_type,size,...,user_tasks,
                      31,40,0x12c0,0,Ascend,16777728,...,{32-35},
    task.csv          time_stamp,task_name,node_name,graph_name,file_name,line_num,python_stack,
                      32,PyNative,MatMulExt,,kernel.cc,12,File:a.py;Line:3;Function:f|,

Columns have been added three times; they are found by name. HyperParallel's dry run writes the block file alone
(`rank_N_memory.csv`, quoted, without the last comma), its tasks being named in the blocks; `rank_N.json` beside it
says of which model. Seen in the sources of MindSpore 2.3 to 2.10 (mem_tracker.cc) and of HyperParallel (dry_run.py).

    tracker_table.py   rows of such files            tracker_record.py  tasks and blocks, what is not read and why
    tracker_graph.py   who writes what               tracker_names.py   kinds, phases and layers by names
    tracker_walk.py    the level of memory, and who has what at which task
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from hyperopt.profile import Device, Links, Measured, Operator, Profile, Run, Storage, check
from profiler.capture.anatomy import operator_type
from profiler.read.findings import Findings, UnreadableError
from profiler.read.labels import label
from profiler.read.mindspore.tracker_graph import Signature
from profiler.read.mindspore.tracker_names import PINNED, kind_of, layer_of
from profiler.read.mindspore.tracker_record import CERTAINTIES, Record, read_record
from profiler.read.mindspore.tracker_walk import I64, Walk, walk
from profiler.read.ranks import RankFiles, Source
from profiler.read.timeline.join import D2H_BYTES_PER_S, H2D_BYTES_PER_S

BLOCKS_FILE, TASKS_FILE = "memory_block.csv", "task.csv"
HEADER = b"start_time_stamp,end_time_stamp,"
RANK = re.compile(r"rank_?(\d{1,6})(?!\d)")

LARGEST = 2**53
"""Bytes. What a profile can hold; more is a fault of the file."""

LARGEST_REPORT = 64 << 20
"""Bytes of a `rank_N.json` that is read for the few names in it; larger ones are passed over."""

BLANK: Signature = ((), (), None)


def find(path: Path) -> list[RankFiles]:
    """A folder with a block file, such a file by itself, or a folder of a dry run's files."""
    if _is_block_file(path) or _is_block_file(path / BLOCKS_FILE):
        return [RankFiles(path, _rank(path))]
    files = [RankFiles(file, _rank(file)) for file in path.glob("rank_*_memory.csv") if _is_block_file(file)]
    return sorted(files, key=lambda found: (found.rank or 0, found.path))


def _is_block_file(path: Path) -> bool:
    if path.suffix != ".csv" or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(128).removeprefix(b"\xef\xbb\xbf").startswith(HEADER)


def _rank(path: Path) -> int | None:
    match = RANK.match(path.name) or RANK.fullmatch(path.parent.name)
    return int(match[1]) if match else None


def read(files: RankFiles, findings: Findings) -> Profile:
    """The profile of one rank: all that the tracker recorded is one step.

    Raises `UnreadableError` where there are no blocks.
    """
    collects = gc.isenabled()
    gc.disable()  # nothing becomes garbage, and the collector would visit a million new objects again and again
    try:
        return _read(files, findings)
    finally:
        if collects:
            gc.enable()


def _read(files: RankFiles, findings: Findings) -> Profile:
    path = files.path / BLOCKS_FILE if files.path.is_dir() else files.path
    record = read_record(path, path.with_name(TASKS_FILE), findings)
    walked = walk(record.tasks.stamps, record.blocks)
    peak = walked.peak + record.base
    if peak > LARGEST:
        raise UnreadableError(f"{findings.name(path)}: blocks of {peak} bytes at a time are more than any device has")
    operators = _operators(record, walked)
    said = _said(path)
    _tell(record, walked, path, findings)
    profile = Profile(
        run=Run(
            name=files.path.stem,
            framework="torch" if record.dry else "mindspore",
            framework_version=said.torch_version,
            model=said.model,
            rank=files.rank or 0,
            world_size=max(said.world_size, _ranks_beside(files.path), (files.rank or 0) + 1),
            source=SOURCE.kind,
            measured=not record.dry,
            notes=tuple(_notes(record, walked, operators)),
        ),
        device=Device(
            hbm_bytes=max(peak, record.pool_peak or 0),
            base_bytes=record.base,
            host_bytes=peak,
            links=Links(d2h_bytes_per_s=D2H_BYTES_PER_S, h2d_bytes_per_s=H2D_BYTES_PER_S),
        ),
        operators=operators,
        storages=_storages(record, walked),
        measured=Measured(peak_bytes=peak, reserved_bytes=_reserved(record, peak)),
    )
    check(profile)
    return profile


def _reserved(record: Record, peak: int) -> int:
    """The pool's own peak, which has its fragments; 0 where the source has no pool."""
    return 0 if record.dry or record.pool_peak is None else max(record.pool_peak, peak)


def _operators(record: Record, walked: Walk) -> tuple[Operator, ...]:
    """One operator a task, without duration: to run one again would look free, so none is offered for it."""
    tasks = record.tasks
    layers = {scope: layer_of(*scope) for scope in set(zip(tasks.node, tasks.graph, strict=True))}
    types = {name: operator_type(name) for name in set(tasks.node)}
    ids = np.cumsum(walked.storage) - 1
    signatures = record.signatures
    rows = zip(
        tasks.node,
        tasks.graph,
        tasks.stamps.tolist(),
        record.phases,
        walked.workspace.tolist(),
        _by_operator(walked.reads, ids, len(tasks.node)),
        _by_operator(walked.writes, ids, len(tasks.node)),
        strict=True,
    )
    return tuple(
        Operator(
            name=name or f"task {stamp}",
            type=types[name],
            duration_us=0.0,
            workspace_bytes=workspace,
            layer=layers[name, graph],
            phase=phase,
            reads=reads,
            writes=writes,
            shapes=signatures.get(stamp, BLANK)[0],
            dtypes=signatures.get(stamp, BLANK)[1],
            inputs=signatures.get(stamp, BLANK)[2],
            recomputable=False,
        )
        for name, graph, stamp, phase, workspace, reads, writes in rows
    )


def _by_operator(pairs: tuple[I64, I64], ids: I64, count: int) -> Iterator[tuple[int, ...]]:
    """Storages per operator, from pairs of operator and block."""
    listed = ids[pairs[1]].tolist()
    ends = np.searchsorted(pairs[0], np.arange(count), "right").tolist()
    return (tuple(listed[start:end]) for start, end in pairwise([0, *ends]))


def _storages(record: Record, walked: Walk) -> tuple[Storage, ...]:
    blocks, own = record.blocks, np.flatnonzero(walked.storage)
    rows = zip(
        own.tolist(),
        blocks.start[own].tolist(),
        blocks.size[own].tolist(),
        walked.born[own].tolist(),
        walked.at_start[own].tolist(),
        walked.at_end[own].tolist(),
        record.told[own].tolist(),
        strict=True,
    )
    return tuple(
        Storage(
            id=id,
            bytes=size,
            name=f"{blocks.node[block] or blocks.type[block] or 'block'}@{start}",
            kind=kind_of(blocks.type[block], blocks.node[block], record.phases[born], at_end),
            resident_at_start=at_start,
            resident_at_end=at_end,
            offloadable=blocks.type[block] not in PINNED,
            certainty=CERTAINTIES[told],
        )
        for id, (block, start, size, born, at_start, at_end, told) in enumerate(rows)
    )


def _notes(record: Record, walked: Walk, operators: Sequence[Operator]) -> Iterator[str]:
    """What a plan's reader must know: above all what sets the peak, and what of it no plan can move (C14)."""
    stamp, operator = record.tasks.stamps[walked.peak_op], operators[walked.peak_op]
    share = walked.peak_workspace
    lives = f"{share} bytes of it are workspace, there for this operator only" if share else "none of it is workspace"
    peak = walked.peak + record.base
    yield f"the peak, {peak} bytes, is at operator {walked.peak_op}, {operator.name} (task {stamp}): {lives}"
    if record.base:
        yield f"{record.base} bytes in use belong to no block (base_bytes): allocated before the tracker began"
    if held := int(walked.held.sum()):
        size = int(record.blocks.size[walked.held].sum())
        yield (
            f"{held} storages ({size} bytes) were held longer than anything was seen to use them: they have a read at "
            "the last operator that had them"
        )
    if walked.moved:
        yield (
            f"{walked.moved} accesses count to the operator before: the block was given back before the operator "
            "allocated"
        )
    yield (
        "links and host memory were not measured: 20 GB/s out, 55 GB/s back (MindSpore's defaults for Ascend), and as "
        "much host memory as the peak"
    )
    yield "no operator may be recomputed: what that costs is not known without times"
    yield f"all that was recorded is one step of {len(operators)} operators"
    if record.dry:
        yield "a dry run: nothing ran on a device; its tracker sees no workspace and no fragmentation"


def _tell(record: Record, walked: Walk, path: Path, findings: Findings) -> None:
    """What the profile has to do without, and where the file's own totals are not what its blocks make."""
    findings.lacks("operator times: the tracker counts events, it does not time them")
    if not record.listed:
        findings.lacks("accesses between a block's first and last one: the file lists none (simple_tracker)")
    name = findings.name(path)
    if walked.outside:
        findings.warn(f"{name}: {walked.outside} accesses of blocks at stamps when they were not there, left out")
    peak = walked.peak + record.base
    if record.used_peak is not None and record.used_peak != peak:
        findings.warn(
            f"{name}: actual_used_memory peaks at {record.used_peak} bytes, the blocks with {record.base} bytes beside "
            f"them at {peak}; the profile has the latter"
        )
    if record.pool_peak is not None and record.pool_peak != peak:
        why = "fragments of the pool, or memory that no block has" if record.pool_peak > peak else "rows are missing"
        findings.warn(f"{name}: actual_peak_memory is {record.pool_peak} bytes, the blocks' peak {peak}: {why}")


class _Metadata(msgspec.Struct):
    model: str = ""
    torch_version: str = ""
    world_size: int = 1


class _Report(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


def _said(path: Path) -> _Metadata:
    """What HyperParallel's dry run says of itself beside its blocks."""
    beside = path.with_name(path.name.removesuffix("_memory.csv") + ".json")
    if beside.is_symlink() or not beside.is_file() or beside.stat().st_size > LARGEST_REPORT:
        return _Metadata()
    try:
        said = msgspec.json.decode(beside.read_bytes(), type=_Report).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Metadata()
    return _Metadata(
        label(said.model), label(said.torch_version), said.world_size if 0 < said.world_size < 2**31 else 1
    )


def _ranks_beside(path: Path) -> int:
    """Ranks in the folder that this one lies in."""
    pattern = "rank_*_memory.csv" if path.is_file() else "rank_*"
    return sum(1 for place in path.parent.glob(pattern) if RANK.match(place.name)) if RANK.match(path.name) else 1


SOURCE = Source(
    kind="memory_tracker",
    about="MindSpore's memory tracker (memory_block.csv, task.csv), dry runs of MindSpore and HyperParallel",
    find=find,
    read=read,
)
