"""A `Run` as the text that torch_npu and MindSpore write, with its habits: tabs inside time fields, shapes in three
quotes, KB and MB, ``N/A``, components that repeat each other (PROFILE_FORMATS, A.2 to A.6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.profiler.read.ascend.ascend_run import KIB, MIB, T0, UNIT, Block, Change, Run, records, released_total


@dataclass(frozen=True)
class Text:
    """Which text. `year` 2023: whole microseconds, fewer columns. MindSpore: no tabs, one decimal in memory times,
    ``N/A`` for nothing, memory_record in units of 1000 KiB, components that repeat each other."""

    level: int = 2
    mindspore: bool = False
    year: int = 2025
    crlf: bool = False


def write(run: Run, output: Path, text: Text) -> None:
    """The tables of the run in the folder `output`."""
    for name, lines in (
        ("kernel_details", _kernel_details(run, text)),
        ("operator_memory", _operator_memory(run, text)),
        ("memory_record", _memory_record(run, text)),
        ("npu_module_mem", _npu_module_mem(run, text)),
        ("step_trace_time", _step_trace_time(run, text)),
    ):
        end = "\r\n" if text.crlf else "\n"
        (output / f"{name}.csv").write_bytes("".join(",".join(line) + end for line in lines).encode())


def _kernel_details(run: Run, text: Text) -> Iterator[list[str]]:
    yield {
        0: ["Step Id", *_FEW],
        1: ["Step Id", *_DETAILS],
        2: ["Step Id", "Device_id", *_DETAILS, "aicore_time(us)", "cube_utilization(%)"],
    }[text.level]  # fmt: skip
    tab = "" if text.mindspore or text.year == 2023 else "\t"
    for task, k in enumerate(run.kernels):
        start, duration, step = f"{_us(k.start, 3)}{tab}", _us(k.duration, 3), str(k.step)
        core = "HCCL" if text.year == 2023 else "COMMUNICATION"
        if text.level == 0:
            yield [step, k.name, "N/A", core if k.communication else "N/A", start, duration, "0", "0"]
            continue
        head = [step] if text.level == 1 else [step, str(run.device)]
        tail = [] if text.level == 1 else (["N/A", "N/A"] if k.communication else ["12.5", "63.1"])
        if k.communication:
            nothing = ["N/A"] * 9
            yield [
                *head,
                "4294967295",
                "N/A",
                "N/A",
                k.name,
                k.type,
                "N/A",
                core,
                start,
                duration,
                "0",
                "0",
                *nothing,
                *tail,
            ]
            continue
        shapes = [f'"""{k.inputs}"""', k.input_types, "ND;ND", f'"""{k.outputs}"""', k.output_types, "ND", "N/A"]
        ids = ["4294967295", str(task), str(k.stream), k.name, k.type, "dynamic", "AI_VECTOR_CORE"]
        yield [*head, *ids, start, duration, "1.5", "32", "0", "NO", *shapes, *tail]


_FEW = ["Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim"]
_DETAILS = [
    "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core", "Start Time(us)",
    "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible", "Input Shapes",
    "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Context ID",
]  # fmt: skip


def _operator_memory(run: Run, text: Text) -> Iterator[list[str]]:
    old = text.year == 2023
    names = ["Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)", "Duration(us)",
             "Active Duration(us)", "Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)",
             "Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)",
             "Release Total Active(MB)", "Stream Ptr", "Device Type"]  # fmt: skip
    shown = [i for i, name in enumerate(names) if not old or ("Active" not in name and name != "Stream Ptr")]
    yield [names[i] for i in shown]
    none, tab, digits = ("N/A", "", 1) if text.mindspore else ("", "\t", 3)
    reserved = {False: _mb(run.reserved), True: _mb(run.engine_reserved)}
    for b, (took, gave) in _by_block(run):
        quiet = b.engine or text.mindspore
        freed, since = b.freed, b.allocated
        row = [
            f"cann::{b.name}" if b.engine else b.name,
            f"{b.bytes / KIB}",
            _us(since, digits) + tab,
            none if freed is None else _us(freed, digits) + tab,
            none if freed is None or quiet else _us(freed - 400, digits) + tab,
            none if freed is None else _us(freed - since, digits) + tab,
            none if freed is None or quiet else _us(freed - since - 400, digits) + tab,
            _mb(took.after),
            reserved[b.engine],
            none if quiet else _mb(took.after),
            none if gave is None else _mb(released_total(gave)),
            none if gave is None else reserved[b.engine],
            none if gave is None or quiet else _mb(gave.after),
            none if b.engine else "1162636336",
            f"NPU:{run.device}",
        ]
        yield [row[i] for i in shown]


def _by_block(run: Run) -> Iterator[tuple[Block, tuple[Change, Change | None]]]:
    """Blocks in order of allocation, with what they did to their pool."""
    changes: dict[int, list[Change]] = {}
    for change in run.changes:
        changes.setdefault(change.block, []).append(change)
    for place in sorted(range(len(run.blocks)), key=lambda i: run.blocks[i].allocated):
        took, *gave = sorted(changes[place], key=lambda change: change.time)
        yield run.blocks[place], (took, gave[0] if gave else None)


def _memory_record(run: Run, text: Text) -> Iterator[list[str]]:
    old = text.year == 2023 or text.mindspore
    yield ["Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)", "Total Active(MB)",
           *([] if old else ["Stream Ptr"]), "Device Type"]  # fmt: skip
    none, tab = ("N/A", "") if text.mindspore else ("", "\t")
    place = f"NPU:{run.device}"
    unit = (lambda size: f"{size / KIB / 1000:.3f}") if text.mindspore else _mb
    tail = [place] if old else ["1162636336", place]
    samples = [
        ["APP", _us(T0 + at, 3) + tab, none, unit(run.process), none, *([] if old else [""]), place]
        for at in (0, 20_000_000)
    ]
    if not text.mindspore:
        yield from samples
    for component, time, allocated, reserved, engine in records(run, "MindSpore" if text.mindspore else "PTA"):
        active = none if engine else unit(allocated)
        yield [component, _us(time, 1 if text.mindspore else 3) + tab, unit(allocated), unit(reserved), active, *tail]
    if text.mindspore:
        yield from samples


def _npu_module_mem(run: Run, text: Text) -> Iterator[list[str]]:
    head = ["Device_id"] if text.level == 2 else []
    yield [*head, "Component", "Timestamp(us)", "Total Reserved(MB)", "Device"]
    lead = [str(run.device)] if text.level == 2 else []
    for at in (0, 20_000_000):
        for name, size in (("APP", run.reserved), *run.modules.items()):
            yield [
                *lead,
                name,
                _us(T0 + at, 3) + "\t",
                _mb(size if at else size // 2 // UNIT * UNIT),
                f"NPU:{run.device}",
            ]


def _step_trace_time(run: Run, text: Text) -> Iterator[list[str]]:
    head = ["Device_id"] if text.level == 2 else []
    yield [*head, "Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage",
           "Bubble", "Communication(Not Overlapped and Exclude Receive)", "Preparing"]  # fmt: skip
    lead = [str(run.device)] if text.level == 2 else []
    for step in run.steps:
        t = run.times(step)
        us = [t[name] / 1e3 for name in ("computing", "not_overlapped", "overlapped", "communication", "free", "stage")]
        yield [*lead, str(step), *(repr(value + 1e-11) for value in us), "0", repr(us[1]), "206.25"]


def _us(ns: int, digits: int) -> str:
    """Microseconds with a number of decimals, exact as far as they go: a double would lose digits."""
    whole, rest = divmod(round(ns, digits - 3), 1000)
    return f"{whole}.{rest:03d}"[: len(str(whole)) + 1 + digits]


def _mb(size: int) -> str:
    return f"{size / MIB}"
