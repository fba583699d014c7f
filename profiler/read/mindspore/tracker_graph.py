"""`tracker_graph.ir`: which blocks each task reads and writes, and the shapes and types of its tensors.

Three lines a task, blocks named by their stamps of allocation (MindSpore 2.5 and later; the stack is new)::

    (%13, %14) = Default/net-Net/Split-op0(%3, %12), task_info: 12, attrs {stream_id=0}
        (Float32:[2, 3], Float32:[2, 3]) <- (Float32:[4, 3]{strdes=[3, 1],offset=0}, Int64:[])
        # File:train.py;Line:3;Function:step|

The block file lists who uses a block, not who writes it: that an optimizer updates a weight in place is known from
here alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from profiler.read.findings import Findings
from profiler.read.mindspore.tracker_walk import I64
from profiler.read.table import MAX_LINE

TASK = r"^\(((?:%\d+(?:, )?)*)\) = .*\((?:%\d+(?:, )?)*\), task_info: (\d+)"
TENSOR = re.compile(r"(\w+):\[([\d, -]*)\]")
PIECE = 16 << 20
"""Bytes that are looked at a time."""

Signature = tuple[tuple[tuple[int, ...], ...], tuple[str, ...], int | None]


@dataclass(frozen=True)
class Graph:
    """`task`, `start`: pairs of a task's stamp and the stamp of a block that it writes. `signatures`: shapes and types
    of inputs and outputs by the task's stamp."""

    task: I64
    start: I64
    signatures: dict[int, Signature]


def read_graph(path: Path, findings: Findings) -> Graph | None:
    """The graph, as far as its lines read as such; None where there is none or nothing is written in it."""
    if path.is_symlink() or not path.is_file():
        return None
    found: list[pl.DataFrame] = []
    signatures: dict[int, Signature] = {}
    known: dict[str, Signature] = {}
    for lines in _pieces(path):
        frame = pl.DataFrame({"text": lines}, schema={"text": pl.String}).with_columns(
            after=pl.col("text").shift(-1).fill_null("")
        )
        tasks = frame.with_columns(
            outputs=pl.col("text").str.extract(TASK, 1),
            task=pl.col("text").str.extract(TASK, 2).cast(pl.Int64, strict=False),
        ).drop_nulls(("outputs", "task"))
        found.append(
            tasks.select("task", start=pl.col("outputs").str.extract_all(r"\d+"))
            .explode("start")
            .select("task", start=pl.col("start").cast(pl.Int64, strict=False))
            .drop_nulls()
        )
        for task, text in zip(tasks["task"].to_list(), tasks["after"].to_list(), strict=True):
            if (signature := known.get(text)) is None:
                signature = known[text] = _signature(text)
            signatures[task] = signature
    rows = pl.concat(found) if found else pl.DataFrame()
    if not rows.height:
        findings.lacks(f"writes in place: {findings.name(path)} names no outputs")
        return None
    return Graph(rows["task"].to_numpy(), rows["start"].to_numpy().astype(np.int64), signatures)


def _pieces(path: Path) -> Iterator[list[str]]:
    """Lines, in pieces that end before a task's first line. What is no line of text but longer is not looked at."""
    kept: list[str] = []
    size = 0
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            if size > PIECE and line.startswith(b"("):
                yield kept
                kept, size = [], 0
            kept.append(line.decode("utf-8", "replace").rstrip("\r\n") if len(line) < MAX_LINE else "")
            size += len(line)
    yield kept


def _signature(text: str) -> Signature:
    """Inputs, then outputs, as profiles have them; the line has outputs first."""
    outputs, arrow, inputs = text.strip().partition(" <- ")
    went_in, came_out = (TENSOR.findall(side) if arrow else [] for side in (inputs, outputs))
    tensors = went_in + came_out
    shapes = tuple(tuple(int(n) for n in re.findall(r"\d+", shape)) for _, shape in tensors)
    types = tuple(kind.removeprefix("kNumberType").lower() for kind, _ in tensors)
    return shapes, types, len(went_in) if arrow else None
