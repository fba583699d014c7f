"""A pipeline run of two stages as MindInsight's files have it: made up, in their columns and units."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TICKS_PER_MS = 100_000

COMMUNICATIONS = ("stream_48_0_Receive-op663", "stream_36_0_AllReduce-op4542", "stream_48_1_Receive-op794")


def write_pipeline(
    folder: Path,
    computing_ms: Sequence[float] = (10.0, 40.0),
    *,
    steps: int = 5,
    first_ms: float = 100.0,
    stages: int = 2,
    newline: str = "\n",
) -> Path:
    """One rank a stage, steps of 100 ms, the first of `first_ms`; each rank computes for `computing_ms` and
    communicates for the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, computing in enumerate(computing_ms):
        detail = folder / f"step_trace_raw_{rank}_detail_time.csv"
        detail.write_bytes(newline.join([*detail_rows(computing, steps, first_ms), ""]).encode())
        summary = folder / f"ascend_cluster_analyse_pipeline-parallel_{stages}_{len(computing_ms)}_{rank}.csv"
        sums = [f"{computing + 1:.4f},{100 - computing:.4f},90.0,5.0,6.0"] * (steps + 1)
        header = "computation_time,communication_alone_time,stage_time,receive_alone_time,collective_alone_time"
        summary.write_text("\n".join([header, *sums, ""]))
    return folder


def detail_rows(computing_ms: float, steps: int, first_ms: float) -> list[str]:
    columns = [part for name in COMMUNICATIONS for part in (name, f"{name}_start_point", f"{name}_end_point")]
    points = "step_num,start_point,end_point,total,fp_point,bp_point,iteration_interval,fp_and_bp,tail"
    rows = [",".join([points, *columns])]
    start = 1_162_412_079_349
    for step in range(1, steps + 1):
        length = round((first_ms if step == 1 else 100.0) * TICKS_PER_MS)
        rows.append(_row(str(step), start, length, round(computing_ms * TICKS_PER_MS)))
        start += length
    rows.append(_row("-", start + 77, 100 * TICKS_PER_MS, round(computing_ms * TICKS_PER_MS)))
    return rows


def _row(step: str, start: int, length: int, computing: int) -> str:
    """compute a quarter | Receive | compute a quarter | AllReduce | compute a quarter | Receive | compute a quarter"""
    each, alone = computing // 4, (length - computing) // 3
    cells = [step, start, start + length, length, start + each // 2, start + length - each // 2, each // 2, 0, 0]
    time = start
    for _ in COMMUNICATIONS:
        time += each
        cells += [alone, time, time + alone]
        time += alone
    return ",".join(map(str, cells))
