"""Placement and residency together against enumerating (dp, tp, pp, ep), over the same cost model.

    python -m bench.joint [-o RESULTS.json] [--seconds S] [--hbm GIB ...] [--stages N ...]

The model is DeepSeek-V3-like (61 layers; shapes of arXiv 2412.19437), the machine 128 devices with the rates of
`hyperopt.mesh.ASCEND_910C_DIE` and links of 150 GB/s among 16 and 50 GB/s beyond: stated figures, nothing measured.
A micro-batch has 8 sequences of 4,096 tokens, a step 128 micro-batches.

*Enumerated*: for every number of stages every split of a stage's devices in data and tensor parallel, with ZeRO-1 and
ZeRO-3, with and without sequence parallel and expert parallel, as people and Fast-Tuner write them; layers and
recompute levels by the same stage solver, every stage planned and replayed, nothing leaves HBM. *Ours*: `hyperopt
place`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from hyperopt.graph import Graph
from hyperopt.mesh import ASCEND_910C_DIE as RATES
from hyperopt.mesh import Level, Mesh
from hyperopt.plan import Budget
from hyperopt.profile import Device, Links, Profile, Run
from hyperopt.profile_graph import graph_of
from hyperopt.testing.accelerator import ASCEND_910C_DIE, GIB
from hyperopt.testing.shapes import DEEPSEEK_V3
from hyperopt.testing.training import Training
from solver.joint import Candidate, Placement, candidates, cut, place
from solver.joint.candidates import between
from solver.placement import shard
from solver.placement.rivals import Rival
from solver.stages import NoPlanError

RESULTS = Path("build/bench/joint.json")
DEVICES, MICRO_BATCHES, SEQUENCES, TOKENS = 128, 128, 8, 4096
LAYERS = [("layer0", 3), ("layer2", DEEPSEEK_V3.layers - 3)]
SAMPLE_LAYERS = 4
"""Two dense ones and two with experts."""

HOST_BYTES = 256 * GIB
MESH = Mesh(
    shape=(8, 16),
    axes=("node", "die"),
    levels=(
        Level(devices=16, bytes_per_s=150e9, latency_us=5.0),
        Level(bytes_per_s=50e9, latency_us=10.0),
    ),
    device=RATES,
)


def sample() -> Profile:
    """One micro-batch of the short model on one device that could hold it."""
    recipe = Training(DEEPSEEK_V3, layers=SAMPLE_LAYERS, tokens=SEQUENCES * TOKENS, micro_batches=1)
    operators, storages = recipe.build(ASCEND_910C_DIE, SAMPLE_LAYERS, 1, "joint").finish()
    run = Run(framework="none", model=DEEPSEEK_V3.name, source="generator", measured=False)
    return Profile(operators=operators, storages=storages, run=run, device=device())


def device() -> Device:
    host = ASCEND_910C_DIE.host(HOST_BYTES)
    links = Links(
        d2h_bytes_per_s=host.d2h_bytes_per_s, h2d_bytes_per_s=host.h2d_bytes_per_s, latency_us=host.latency_us
    )
    return Device(name=ASCEND_910C_DIE.name, hbm_bytes=64 * GIB, base_bytes=GIB, host_bytes=HOST_BYTES, links=links)


def timed_by_rates(graph: Graph) -> Graph:
    """Durations from the mesh's rates throughout: the trace's are for one sequence of all tokens."""
    return replace(graph, operators=tuple(replace(o, duration_us=None) for o in graph.operators))


def enumerated(whole: Profile, graph: Graph, stages: Sequence[int], seconds: float) -> Iterator[Candidate]:
    """(dp, tp, pp, ep) as it is written by hand."""
    for count in stages:
        devices = DEVICES // count
        for tensor in (1, 2, 4, 8):
            if tensor > devices:
                continue
            data = devices // tensor
            shape, axes = ((data, tensor), ("dp", "tp")) if min(data, tensor) > 1 else ((devices,), ("dp",))
            mesh = msgspec.structs.replace(MESH, shape=shape, axes=axes, ranks=tuple(range(devices)))
            split: dict[str, Any] = {"data": (0,), "tensor": (1,)} if len(shape) == 2 else {"data": (0,)}
            if data == 1:
                split = {"tensor": (0,)}
            for experts, zero in product((False, True), (1, 3)):
                for sequence in (False, True) if tensor > 1 else (False,):
                    name = f"dp{data} tp{tensor} pp{count} ep{devices if experts else 1} zero{zero}"
                    name += " sp" if sequence else ""
                    rival = Rival(name, **split, zero=zero, sequence=sequence, experts=experts)
                    try:
                        found = shard(graph, mesh, time_limit_s=seconds, allowed=rival.allows(graph, mesh))
                        profile = found.per_device_profile(device())
                        yield Candidate(
                            name=name,
                            sample=cut(profile, LAYERS, whole),
                            stages=count,
                            devices=devices,
                            micro_batches=MICRO_BATCHES,
                            exchange=between(MESH, devices),
                            sharding=found,
                        )
                    except (ValueError, RuntimeError) as refused:
                        print(f"{name}: {refused}")


def told(placement: Placement) -> dict[str, Any]:
    out = sum(
        one.step.profile.by_id[c.storage].bytes for one in placement.run.stages for c in one.timeline.copies if c.out
    )
    return {
        "candidate": placement.candidate.name,
        "step_ms": placement.run.step_ns / 1e6,
        "without_ms": None if placement.without is None else placement.without / 1e6,
        "bound_ms": placement.bound_ns / 1e6,
        "layers": [len(one.types) for one in placement.run.stages],
        "peak_gib": [one.timeline.peak_bytes / GIB for one in placement.run.stages],
        "copied_out_gib": out / GIB,
        "tried": [
            {
                "candidate": t.candidate,
                "kind": t.terms.kind,
                "estimate_ms": t.estimate_ns / 1e6,
                "step_ms": None if t.step_ns is None else t.step_ns / 1e6,
                "why": t.why,
            }
            for t in placement.tried
        ],
    }


def attempt(ways: Sequence[Candidate], budget: Budget, seconds: float) -> dict[str, Any]:
    began = time.monotonic()
    try:
        row = told(place(ways, budget, seconds, 0))
    except NoPlanError as none:
        row = {"step_ms": None, "why": str(none)}
    return row | {"seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=240.0, help="of each placement")
    parser.add_argument("--sharding-seconds", type=float, default=20.0, help="of each sharding")
    parser.add_argument("--hbm", type=int, nargs="*", default=[64, 48, 40], help="GiB of a device")
    parser.add_argument("--stages", type=int, nargs="*", default=[4, 8, 16])
    asked = parser.parse_args()
    whole = sample()
    graph = timed_by_rates(graph_of(whole, SEQUENCES))
    began = time.monotonic()
    rivals = list(enumerated(whole, graph, asked.stages, asked.sharding_seconds))
    print(f"{len(rivals)} enumerated, {time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.1f}", flush=True)
    began = time.monotonic()
    seconds = 5 * len(asked.stages) * asked.sharding_seconds
    ours = candidates(whole, graph, MESH, LAYERS, MICRO_BATCHES, device(), asked.stages, seconds)
    print(f"{len(ours)} by the sharding solver, {time.monotonic() - began:.0f} s", flush=True)
    for one in ours:
        print("   ", one.name)
    rows: dict[str, Any] = {}
    for hbm in asked.hbm:
        budget = Budget(hbm_bytes=hbm * GIB)
        kept = msgspec.structs.replace(budget, tiers={"host": 0})
        rows[str(hbm)] = {
            "enumerated, nothing moves": attempt(rivals, kept, asked.seconds),
            "ours, nothing moves": attempt(ours, kept, asked.seconds),
            "ours": attempt([*ours, *rivals], budget, asked.seconds),
        }
        for name, row in rows[str(hbm)].items():
            step = "none fits" if row["step_ms"] is None else f"{row['step_ms']:.0f} ms, {row['candidate']}"
            print(f"{hbm} GiB, {name}: {step}; {row['seconds']:.0f} s", flush=True)
            for t in row.get("tried", []):
                took = "-" if t["step_ms"] is None else f"{t['step_ms']:.0f}"
                thought = f"{t['candidate']:34} {t['kind']:7} thought {t['estimate_ms']:.0f}"
                print(f"        {thought}, took {took} {t['why'][:70]}")
        asked.output.parent.mkdir(parents=True, exist_ok=True)
        asked.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
