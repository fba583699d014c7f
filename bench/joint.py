"""Placement and residency together, against every (dp, tp, pp, ep) without moves, over the same cost model.

    python -m bench.joint [-o RESULTS.json] [--seconds S] [--hbm GIB ...]

The model is DeepSeek-V3-like (61 layers; shapes of arXiv 2412.19437), the machine 128 devices as the traces have them
(docs/reference/traces.md): stated figures, nothing measured. Every way to divide 128 into data, tensor, pipeline and
expert parallel is a candidate, as Fast-Tuner enumerates them; global batch 512 sequences of 4,096 tokens. For each HBM
budget: the best step without anything leaving HBM over all candidates that can be better, and the best of one call
that places and moves together, both with every stage replayed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hyperopt.plan import Budget
from hyperopt.profile import Device, Links, Profile, Run
from hyperopt.testing.accelerator import ASCEND_910C_DIE, GIB
from hyperopt.testing.blocks import Parallel
from hyperopt.testing.shapes import DEEPSEEK_V3
from hyperopt.testing.training import Training
from solver.joint import Candidate, Exchange, Placement, cut, place
from solver.stages import NoPlanError

RESULTS = Path("build/bench/joint.json")
DEVICES, SEQUENCES, TOKENS = 128, 512, 4096
EXCHANGE = Exchange(bytes_per_s=50e9, latency_us=10.0)
HOST_BYTES = 256 * GIB
SAMPLE_LAYERS = 4
"""Two dense ones and two with experts."""


def sample(parallel: Parallel) -> Profile:
    """One micro-batch of a short model on one device."""
    recipe = Training(DEEPSEEK_V3, layers=SAMPLE_LAYERS, tokens=TOKENS, micro_batches=1, parallel=parallel)
    operators, storages = recipe.build(ASCEND_910C_DIE, SAMPLE_LAYERS, 1, "joint").finish()
    host = ASCEND_910C_DIE.host(HOST_BYTES)
    links = Links(
        d2h_bytes_per_s=host.d2h_bytes_per_s, h2d_bytes_per_s=host.h2d_bytes_per_s, latency_us=host.latency_us
    )
    device = Device(
        name=ASCEND_910C_DIE.name, hbm_bytes=64 * GIB, base_bytes=GIB, host_bytes=HOST_BYTES, links=links
    )
    run = Run(framework="none", model=DEEPSEEK_V3.name, source="generator", measured=False)
    return Profile(operators=operators, storages=storages, run=run, device=device)


def candidates() -> Iterator[Candidate]:
    """Every division of the devices that the model's counts allow."""
    dense = 3
    for stages in (4, 8, 16, 32):
        for tensor in (1, 2, 4, 8):
            data = DEVICES // (stages * tensor)
            if data < 1 or SEQUENCES % data or SEQUENCES // data < stages:
                continue
            for experts in (1, 2, 4, 8, 16, 32, 64):
                if (data * tensor) % experts:
                    continue
                split = Parallel(tensor=tensor, data=data, experts=experts, expert_data=data * tensor // experts)
                yield Candidate(
                    name=f"dp{data} tp{tensor} pp{stages} ep{experts}",
                    sample=cut(sample(split), [("layer0", dense), ("layer2", DEEPSEEK_V3.layers - dense)]),
                    stages=stages,
                    devices=data * tensor,
                    micro_batches=SEQUENCES // data,
                    exchange=EXCHANGE,
                )


def told(placement: Placement) -> dict[str, Any]:
    sizes = [len(one.types) for one in placement.run.stages]
    return {
        "candidate": placement.candidate.name,
        "step_ms": placement.run.step_ns / 1e6,
        "without_ms": None if placement.without is None else placement.without / 1e6,
        "bound_ms": placement.bound_ns / 1e6,
        "layers": sizes,
        "moved_gib": sum(
            sum(c.end > 0 and one.step.profile.by_id[c.storage].bytes for c in one.timeline.copies)
            for one in placement.run.stages
        ) / GIB,
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
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=300.0, help="of one call")
    parser.add_argument("--hbm", type=int, nargs="*", default=[64, 48, 40, 32], help="GiB of a device")
    asked = parser.parse_args()
    ways = list(candidates())
    print(f"{len(ways)} ways to divide {DEVICES} devices; load {os.getloadavg()[0]:.1f}")
    rows: dict[str, Any] = {}
    for hbm in asked.hbm:
        began = time.monotonic()
        try:
            rows[str(hbm)] = row = told(place(ways, Budget(hbm_bytes=hbm * GIB), asked.seconds, 0))
        except NoPlanError as none:
            print(f"{hbm} GiB: {none}")
            continue
        row["seconds"] = time.monotonic() - began
        without = "none fits" if row["without_ms"] is None else f"{row['without_ms']:.0f} ms"
        print(
            f"{hbm} GiB: {row['candidate']}, layers {row['layers']}: {row['step_ms']:.0f} ms, "
            f"without moves {without}, bound {row['bound_ms']:.0f}; {row['moved_gib']:.0f} GiB copied; "
            f"{row['seconds']:.0f} s"
        )
        for t in row["tried"]:
            step = "-" if t["step_ms"] is None else f"{t['step_ms']:.0f}"
            print(f"    {t['candidate']:24} {t['kind']:7} thought {t['estimate_ms']:.0f}, took {step} {t['why'][:90]}")
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
