"""Files as MindSpore's memory tracker writes them, in its three versions, and as HyperParallel's dry run does."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NEVER = 2**63 - 1

FIRST = [
    "start_time_stamp",
    "end_time_stamp",
    "device_addr",
    "stream_id",
    "pool_type",
    "size",
    "file_name",
    "line_num",
    "type",
    "producer_task",
    "task_name",
    "node_name",
    "graph_name",
    "user_tasks",
]
SECOND = [*FIRST[:6], "actual_peak_memory", *FIRST[6:], "last_user_task", "python_stack"]
NEWEST = [*FIRST[:6], "actual_used_memory", *SECOND[6:], "is_persistent", "is_small"]
VERSIONS = {"first": FIRST, "second": SECOND, "newest": NEWEST}

STACK = "File:/home/a/train.py;Line:3;Function:step|File:/home/a/net.py;Line:9;Function:construct|"


@dataclass(frozen=True)
class B:
    """One block. `type` "" is a block that no tensor is bound to: then the last cells are empty too."""

    start: int | str
    end: int | str
    size: int | str
    type: str = ""
    producer: int | str = ""
    node: str = ""
    users: Sequence[int] = ()
    pool: str = "DefaultEnhancedAscendMemoryPool"
    address: str = ""
    used: int | str = 0
    peak: int | str = 0
    task: str = "PyNative"
    graph: str = ""
    stack: str = STACK
    persistent: int = 0

    def cells(self, version: str) -> dict[str, object]:
        braces = "{" + "".join(f"{user}-" for user in self.users) + "}"
        cells: dict[str, object] = {
            "start_time_stamp": self.start,
            "end_time_stamp": self.end,
            "device_addr": self.address or f"0x12c0{self.start}",
            "stream_id": 0,
            "pool_type": self.pool,
            "size": self.size,
            "actual_used_memory": self.used,
            "actual_peak_memory": self.peak,
            "is_persistent": self.persistent,
            "is_small": 0,
        }
        if self.type:
            cells |= {
                "file_name": "kernel_actor.cc",
                "line_num": 12,
                "type": self.type,
                "producer_task": self.producer,
                "task_name": self.task,
                "node_name": self.node,
                "graph_name": self.graph,
                "user_tasks": braces if version == "first" else braces.replace("-}", "}"),
                "last_user_task": self.users[-1] if self.users else "",
                "python_stack": self.stack,
            }
        return cells


def block_text(blocks: Sequence[B], version: str = "newest") -> str:
    header = VERSIONS[version]
    rows = [[str(block.cells(version).get(name, "")) for name in header] for block in blocks]
    return "".join(",".join(row) + ",\n" for row in [header, *rows])


def task_text(tasks: Sequence[tuple[int, str]], stack: str = STACK) -> str:
    rows = [f"{stamp},PyNative,{node},,op_runner.cc,7,{stack},\n" for stamp, node in tasks]
    return "time_stamp,task_name,node_name,graph_name,file_name,line_num,python_stack,\n" + "".join(rows)


def write(
    folder: Path, blocks: Sequence[B] | str, tasks: Sequence[tuple[int, str]] | None = None, version: str = "newest"
) -> Path:
    """Writes both files (no task file where `tasks` is None) and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = blocks if isinstance(blocks, str) else block_text(blocks, version)
    (folder / "memory_block.csv").write_text(text, newline="")
    if tasks is not None:
        (folder / "task.csv").write_text(task_text(tasks), newline="")
    return folder


def write_dry_run(path: Path, blocks: Sequence[B]) -> Path:
    """HyperParallel's file: quoted where needed, no last comma, carriage returns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, NEWEST)
        writer.writeheader()
        writer.writerows(block.cells("newest") for block in blocks)
    return path
