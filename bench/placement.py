"""Placement against layouts as people write them, all by the same judge, in one run.

    python -m bench.placement [-o RESULTS.json] [--cases block,moe] [--seconds 30]

Models are `hyperopt.testing.graphs` and a made-up profile; devices are a stated Ascend 910C die, links as in each case:
everything is estimated, nothing measured but the seconds. Each case is also run with less memory than its best layouts
take, down to what ZeRO-3 needs.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hyperopt.graph import Graph
from hyperopt.mesh import Level, Mesh
from hyperopt.profile_graph import graph_of
from hyperopt.testing import generate
from hyperopt.testing.graphs import Model, training
from solver.placement import DoesNotFit, shard
from solver.placement.compare import compare

RESULTS = Path("build/bench/placement.json")

NODE = (Level(devices=8, bytes_per_s=2e11, latency_us=2), Level(bytes_per_s=2.5e10, latency_us=8))
SUPERNODE = (
    Level(devices=16, bytes_per_s=2e11, latency_us=2),
    Level(devices=384, bytes_per_s=2.5e10, latency_us=8),
    Level(bytes_per_s=1e10, latency_us=20),
)
EIGHT = Mesh(shape=(8,), axes=("x",), levels=NODE)
TWO_BY_FOUR = Mesh(shape=(2, 4), axes=("dp", "tp"), levels=NODE)
FOUR_BY_EIGHT = Mesh(shape=(4, 8), axes=("dp", "tp"), levels=NODE)
EIGHT_BY_SIXTEEN = Mesh(shape=(8, 16), axes=("dp", "tp"), levels=SUPERNODE)
LLAMA = {"hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336}

CASES: dict[str, tuple[Mesh, Callable[[], Graph]]] = {
    "block": (EIGHT, lambda: training(Model(batch=1, sequence=8192, **LLAMA))),
    "llama": (TWO_BY_FOUR, lambda: training(Model(batch=8, sequence=4096, layers=8, vocab=128256, **LLAMA))),
    "two levels": (
        FOUR_BY_EIGHT,
        lambda: training(Model(batch=16, sequence=4096, layers=8, vocab=128256, micro_batches=2, clip=True, **LLAMA)),
    ),
    "small": (
        EIGHT,
        lambda: training(
            Model(batch=64, sequence=1024, hidden=512, heads=8, kv_heads=8, head_dim=64, ffn=1024, layers=4)
        ),
    ),
    "moe": (
        EIGHT,
        lambda: training(
            Model(
                batch=8, sequence=2048, hidden=2048, heads=32, kv_heads=4, head_dim=128, ffn=768, layers=4,
                experts=128, top_k=8, vocab=151936,
            )
        ),
    ),
    "deepseek": (
        EIGHT_BY_SIXTEEN,
        lambda: training(
            Model(
                batch=128, sequence=4096, hidden=7168, heads=128, kv_heads=128, head_dim=128, ffn=2048, layers=16,
                experts=256, top_k=8, vocab=129280,
            )
        ),
    ),
    "profile": (TWO_BY_FOUR, lambda: graph_of(generate("llama3-8b-optimizer-states", 1000))),
}  # fmt: skip


def run(mesh: Mesh, graph: Graph, memory: int | None, seconds: float) -> dict[str, Any]:
    """Ours and the rivals, which have a third of its time each."""
    began = time.monotonic()
    rivals = compare(graph, mesh, memory_bytes=memory, time_limit_s=seconds / 3)
    between = time.monotonic()
    found = shard(graph, mesh, memory_bytes=memory, time_limit_s=seconds)
    return {
        "operators": len(graph.operators),
        "memory": memory,
        "step_us": found.step.us,
        "communication_us": found.step.communication_us,
        "bound_us": found.bound_us,
        "peak_bytes": found.peak_bytes,
        "stop_reason": found.stop_reason,
        "seconds": round(time.monotonic() - between, 2),
        "rivals_seconds": round(between - began, 2),
        "load": round(os.getloadavg()[0], 2),
        "rivals": {
            name: None if one is None else {"step_us": one.step.us, "peak_bytes": one.peak_bytes}
            for name, one in rivals.items()
        },
    }


def line(name: str, told: dict[str, Any]) -> str:
    fitting = {n: r["step_us"] for n, r in told["rivals"].items() if r}
    best = min(fitting, key=fitting.__getitem__) if fitting else "none fits"
    gap = max(0.0, told["step_us"] / told["bound_us"] - 1) if told["bound_us"] else float("nan")
    cells = (
        name,
        str(told["operators"]),
        "" if told["memory"] is None else f"{told['memory'] / 2**30:.2f}",
        f"{told['step_us'] / 1000:.2f}",
        f"{told['communication_us'] / 1000:.2f}",
        f"{100 * gap:.2f} %",
        f"{told['peak_bytes'] / 2**30:.2f}",
        f"{best} {fitting[best] / 1000:.2f}" if fitting else best,
        ", ".join(f"{n} {s / 1000:.1f}" for n, s in fitting.items() if n != best and not n.startswith("expert")),
        f"{told['seconds']:.1f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args()
    results: dict[str, Any] = {}
    head = (
        "case, operators, GiB a device, ms, of it communication, above the bound, peak GiB, best rival, others, seconds"
    )
    print("| " + " | ".join(head.split(", ")) + " |\n" + "|---" * len(head.split(", ")) + "|")
    for name in asked.cases.split(","):
        mesh, make = CASES[name]
        graph = make()
        free = results[name] = run(mesh, graph, None, asked.seconds)
        print(line(name, free), flush=True)
        least = (free["rivals"]["ZeRO-3"] or free)["peak_bytes"]
        for share in (0.5, 0.0):
            memory = round(least + share * (free["peak_bytes"] - least))
            if least >= free["peak_bytes"]:
                break
            try:
                told = results[f"{name} {share}"] = run(mesh, graph, memory, asked.seconds)
                print(line(name, told), flush=True)
            except DoesNotFit as none:
                print(f"| {name} | | {memory / 2**30:.2f} | {none} |", flush=True)
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
