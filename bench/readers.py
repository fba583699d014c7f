"""How long a profiler's folder of a million rows takes to read, and how much memory: `make bench-readers`.

First, where the shared sample data lies beside the checkout, a table of what is made of each folder in it. Then the
times. The folder is made up, with the columns of a 2025 level-2 export of torch_npu: kernels of some hundred steps, an
allocation for each, and the pool's record. Each reading is a process of its own; the table is printed and saved to
`build/bench/readers.json`. Wanted: 10 s and 1 GiB for a million rows (issue 4).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

KERNELS = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    "Output Data Types,Output Formats,Context ID"
)
BLOCKS = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),Active Duration(us),"
    "Allocation Total Allocated(MB),Allocation Total Reserved(MB),Allocation Total Active(MB),"
    "Release Total Allocated(MB),Release Total Reserved(MB),Release Total Active(MB),Stream Ptr,Device Type"
)
RECORD = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type"

OUT = Path("build/bench/readers.json")
SHARED = Path(__file__).parents[2] / "shared" / "data"
BEGIN_US = 1_764_246_877_000_000
LIVES_US = 400
STEP = 2_500
"""Kernels a step."""
CASES = (("kernels", 1_000_000, 0, 0), ("record", 20_000, 10_000, 1_000_000), ("all", 340_000, 330_000, 330_000))
"""What is long in it, and rows of kernels, allocations and record."""


def make(folder: Path, kernels: int, blocks: int, record: int) -> None:
    """Writes the folder; a step repeats itself, with other times."""
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (folder / "profiler_info_0.json").write_text('{"rank_id": 0, "torch_npu_version": "2.7.1"}')
    at = np.arange(kernels)
    width = 8 + (at % STEP) % 120
    frame = pl.DataFrame({"i": at, "step": at // STEP, "kind": at % STEP % 40, "width": width})
    digits = (pl.col("i") % 1000).cast(pl.String).str.zfill(3)
    start = (pl.lit(BEGIN_US) + pl.col("i") * 50).cast(pl.String) + "." + digits
    shape = "4096," + pl.col("width").cast(pl.String)
    row = pl.format(
        '{},0,4294967295,{},2,aclnnOp{}_Kernel{},Kernel{},dynamic,AI_CORE,{}\t,35.500,1.250000,40,0,NO,'
        '"""{};4096,1024""",DT_BF16;DT_BF16,ND;ND,"""{}""",DT_BF16,ND,N/A',
        *("step", "i", "kind", "kind", "kind", start, shape, shape),
    )
    _write(output / "kernel_details.csv", KERNELS, frame.select(row))
    frame = frame.head(blocks).with_columns(*_totals(width[:blocks]))
    freed = (pl.lit(BEGIN_US + LIVES_US - 1) + pl.col("i") * 50).cast(pl.String) + ".000"
    size = (pl.col("width") * 8 + 0.5).cast(pl.String)
    row = pl.format(
        "aten::op{},{},{}\t,{}\t,{}\t,400.0\t,399.0\t,{},2048.0,1000.0,{},2048.0,1000.0,2,NPU:0",
        *("kind", size, start, freed, freed, "had", "gave"),
    )
    _write(output / "operator_memory.csv", BLOCKS, frame.select(row))
    rows = pl.DataFrame({"i": np.arange(record)})
    row = pl.format("PTA,{}\t,{},2048.0,1000.0,2,NPU:0", start, 900 + (pl.col("i") % 1000) / 10)
    _write(output / "memory_record.csv", RECORD, rows.select(row))


def _totals(width: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[pl.Series]:
    """The pool's total in MB after each allocation and after each release: a block lives for `LIVES_US`."""
    size = (width * 8 + 0.5) / 1024
    taken = np.cumsum(size)
    alive = LIVES_US // 50
    given = np.concatenate([np.zeros(alive), taken])[: len(taken)]
    after = np.concatenate([taken[alive - 1 :], np.full(alive - 1, taken[-1] if len(taken) else 0.0)])[: len(taken)]
    return [pl.Series("had", 100 + taken - given), pl.Series("gave", 100 + after - taken)]


def _write(path: Path, header: str, rows: pl.DataFrame) -> None:
    path.write_text(header + "\n")
    with path.open("ab") as file:
        file.write("\n".join(rows.to_series()).encode())
        file.write(b"\n")


def measure(folder: Path) -> tuple[float, float, int]:
    """Seconds, MiB and operators of one reading in a process of its own."""
    script = (
        "import sys, pathlib, re; from profiler.read import read; "
        "m = read(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])); "
        # Not getrusage: a child's figure begins with that of the process it was forked from.
        "most = re.search(r'VmHWM:\\s+(\\d+) kB', pathlib.Path('/proc/self/status').read_text()); "
        "print(m.ranks[0].operators or 0, int(most[1]) / 1024)"
    )
    with tempfile.TemporaryDirectory() as out:
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder), out], check=True, capture_output=True, text=True
        )
        seconds = time.perf_counter() - begin
    operators, mib = done.stdout.split()
    return seconds, float(mib), int(operators)


def samples() -> list[dict[str, object]]:
    """What is made of each folder of the shared data, rank by rank."""
    from profiler.read import read

    head = "folder | kind | rank | status | operators | storages | peak MiB | replayed | base | external | step ms"
    print(f"| {head} | coverage step, peak | warnings |\n|{'---|' * 13}")
    rows: list[dict[str, object]] = []
    for folder in sorted(path for path in SHARED.iterdir() if path.is_dir()) if SHARED.exists() else ():
        manifest = read(folder)
        for rank in manifest.ranks:
            figures = (rank.peak_bytes, rank.replayed_peak_bytes, rank.base_bytes, rank.external_bytes)
            cells = [f"{size / 2**20:.2f}" if size is not None else "" for size in figures]
            covered = [f"{100 * c:.0f} %" if c is not None else "" for c in (rank.coverage.step, rank.coverage.peak)]
            place = f"{folder.name}/{rank.path}".removesuffix("/.")
            step = f"{rank.step_us / 1e3:.3f}" if rank.step_us is not None else ""
            counts = [str(rank.operators), str(rank.storages)]
            cells = [place, rank.kind, str(rank.rank), rank.status, *counts, *cells, step]
            print(f"| {' | '.join(cells)} | {', '.join(covered)} | {len(rank.warnings)} |", flush=True)
            rows.append(dict(zip(head.split(" | "), cells, strict=True)))
        if not manifest.ranks:
            print(f"| {folder.name} | {manifest.kind} |" + " |" * 11, flush=True)
    return rows


def main() -> None:
    made_of = samples()
    found = []
    print("| long in it | rows | MiB on disk | seconds | MiB | operators of the profile |\n|---|---|---|---|---|---|")
    for name, *rows in CASES:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made) / "rank_0_ascend_pt"
            make(folder, *rows)
            disk = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 2**20
            seconds, mib, operators = sorted(measure(folder) for _ in range(3))[1]
        print(f"| {name} | {sum(rows):,} | {disk:.0f} | {seconds:.1f} | {mib:.0f} | {operators} |", flush=True)
        found.append({"long": name, "rows": sum(rows), "seconds": seconds, "mib": mib, "operators": operators})
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"samples": made_of, "times": found}, indent=1))


if __name__ == "__main__":
    main()
