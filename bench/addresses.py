"""Address planning against rules of thumb: minimalloc's A-F, two MindSpore traces, one trace repeated with other sizes.

    python -m bench.addresses [-o RESULTS.json]

Rivals: buffers by size into the lowest gap, buffers by start into the lowest gap, and the depth-first search alone
without jumps or restarts, which stands for minimalloc's. Seconds of the clock and, in brackets, of this process.
Every answer is checked by `violations`. Compiled code is warmed up first; what a cold start adds is printed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from solver.addresses import Buffer, allocate, table, violations
from solver.addresses.exact import FOUND, STEADY, Searcher
from solver.addresses.fit import first_fit
from solver.addresses.problem import Int64s, Packing, pack

DATA = Path(__file__).parents[2] / "shared" / "data" / "static_allocation"
RESULTS = Path("build/bench/addresses.json")
CAPACITY = 1_048_576
LARGE = 20_000
LIMIT_S = {"small": 4.0, "large": 6.5}
SEARCH_NODES = 1_000_000
DEEPEST = 3000
"""Items up to which the search alone is asked: it needs memory with the square."""


def repeated(pattern: list[Buffer], count: int, seed: int) -> list[Buffer]:
    """`count` buffers: the pattern again and again, half a span later each time, sizes changed by up to a fifth."""
    dice = random.Random(seed)
    span = max(b.upper for b in pattern)
    made: list[Buffer] = []
    while len(made) < count:
        shift = len(made) // len(pattern) * (span // 2)
        for b in pattern[: count - len(made)]:
            size = max(1, round(b.size * dice.uniform(0.8, 1.2)))
            made.append(replace(b, id=str(len(made)), lower=b.lower + shift, upper=b.upper + shift, size=size))
    return made


def packed(buffers: list[Buffer]) -> Packing:
    packing = pack(buffers, range(len(buffers)))
    assert packing is not None
    return packing


def by_key(packing: Packing, key: Int64s) -> int:
    rank = np.empty(len(key), np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(len(key))
    return packing.peak(first_fit(packing, rank))


def search_alone(packing: Packing, capacity: int | None) -> int | None:
    """The peak by one steady search under the capacity, or the bound; None if it found nothing."""
    if len(packing.size) > DEEPEST:
        return None
    height = packing.bound() if capacity is None else capacity
    rank = np.empty(len(packing.size), np.int64)
    rank[np.lexsort((-packing.width * packing.size, -packing.width, -packing.crowd))] = np.arange(len(rank))
    found, offsets = Searcher(packing).search(height, rank, SEARCH_NODES, STEADY)
    return packing.peak(offsets) if found == FOUND else None


def ours(buffers: list[Buffer], capacity: int | None) -> int:
    limit = LIMIT_S["large" if len(buffers) > DEEPEST else "small"]
    found = allocate(buffers, capacity, limit)
    assert not violations(buffers, found.offsets)
    return found.peak_bytes


def timed(run: Callable[[], int | None]) -> dict[str, Any]:
    clock, processor = time.perf_counter(), time.process_time()
    peak = run()
    return {"peak_bytes": peak, "s": time.perf_counter() - clock, "cpu_s": time.process_time() - processor}


def cases() -> list[tuple[str, list[Buffer], int | None]]:
    def read(name: str) -> list[Buffer]:
        return table.read((DATA / f"{name}.csv").read_bytes()).buffers

    told: list[tuple[str, list[Buffer], int | None]] = [(k, read(f"{k}.{CAPACITY}"), CAPACITY) for k in "ABCDEF"]
    told += [(k, read(k), None) for k in ("resnet50", "G_1")]
    return told + [(f"G_1 x 24.5, seed {seed}", repeated(read("G_1"), LARGE, seed), None) for seed in range(3)]


def main() -> None:
    if not DATA.exists():
        sys.exit(f"bench.addresses: there is no folder {DATA}: lay the shared data beside the repository")
    output = Path(sys.argv[2]) if sys.argv[1:2] == ["-o"] else RESULTS
    two = [Buffer("a", 0, 2, 8), Buffer("b", 1, 3, 4)]
    first = packed(two)
    cold = timed(lambda: ours(two, None) and by_key(first, first.size) and search_alone(first, None))
    print(f"first calls, compilation included: {cold['s']:.1f} s ({cold['cpu_s']:.1f} s)")
    rows: list[dict[str, Any]] = []
    for name, buffers, capacity in cases():
        packing = packed(buffers)
        lower = packing.bound()
        starts = np.array([b.lower for b in buffers], np.int64)
        row: dict[str, Any] = {"case": name, "buffers": len(buffers), "lower_bound_bytes": lower}
        row["capacity_bytes"] = capacity
        runs: dict[str, Callable[[], int | None]] = {
            "by size": lambda p=packing: by_key(p, -p.size),  # type: ignore[misc]
            "by start": lambda p=packing, s=starts: by_key(p, s),  # type: ignore[misc]
            "search alone": lambda p=packing, c=capacity: search_alone(p, c),  # type: ignore[misc]
            "ours": lambda b=buffers, c=capacity: ours(b, c),  # type: ignore[misc]
        }
        row["runs"] = {what: timed(run) for what, run in runs.items()}
        rows.append(row)
        print(f"{name:20} {len(buffers):6} buffers, bound {lower}", end="")
        for what, told in row["runs"].items():
            peak = told["peak_bytes"]
            above = "none" if peak is None else f"+{100 * (peak / lower - 1):.3f} %"
            fits = "" if capacity is None else " fits" if peak is not None and peak <= capacity else " too high"
            print(f" | {what} {above}{fits} {told['s']:.2f} s ({told['cpu_s']:.2f} s)", end="")
        print(flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(msgspec.json.format(msgspec.json.encode({"cold": cold, "cases": rows})))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
