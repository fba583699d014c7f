"""Robust plans against ordinary ones over made-up steps: what safety costs and what it brings, simulated.

    python -m bench.robust --model MODEL [--operators 1000] [--work 2000] [--quantile 0.95]

Errors are those of a cost model that was fitted to this CPU (`hyperopt cost fit`), laid over steps of published models;
no accelerator was measured. Both searches have the same work in all: the ordinary plan here is made with all of it, and
not with the share that the robust one's search gives it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hyperopt.cost.model import load
from hyperopt.cost.scenarios import TOGETHER, scenarios
from hyperopt.cost.work import Table
from hyperopt.plan import Budget, Plan
from hyperopt.replay import replay
from hyperopt.testing import generate
from solver import Request, solve
from solver.residency.bound import memory_bound
from solver.residency.problem import Problem
from solver.robust import Steps, plan_robustly

TRACES = ("llama3-8b", "llama3-8b-three-tiers", "llama3-8b-contended", "qwen3-30b-a3b", "llama3-8b-1f1b")
SHARES = (0.4, 0.7)
"""Of the way from the least HBM to the peak."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.robust", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--operators", type=int, default=1000)
    parser.add_argument("--work", type=int, default=2000, help="replays and search steps")
    parser.add_argument("--quantile", type=float, default=0.95)
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument("--together", type=float, default=TOGETHER)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/bench/robust.json"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    model, table = load(options.model.read_bytes()), Table.load()
    found: list[dict[str, Any]] = []
    for name in options.traces.split(","):
        profile = generate(name, options.operators, 0)
        peak, least = replay(profile).peak_bytes, memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
        chosen_on, told_on = (scenarios(profile, model, table, n, i, options.together) for n, i in ((60, 0), (200, 1)))
        for share in SHARES:
            limit = int(least + share * (peak - least))
            request = Request(Budget(hbm_bytes=limit), time_limit_s=None, work_limit=options.work)
            robust = plan_robustly(profile, request, chosen_on, told_on, options.quantile)
            ordinary = solve(profile, request)
            if not isinstance(ordinary, Plan) or not hasattr(robust, "robust_worth"):
                print(f"{name} at {share:.0%}: no plan")
                continue
            worth = Steps(profile).worth(ordinary, told_on, options.quantile, limit)
            row = {"trace": name, "share": share, "hbm_bytes": limit, "chosen": robust.chosen} | {
                "robust": asdict(robust.robust_worth), "ordinary": asdict(worth), "unlimited": asdict(robust.unlimited),
                "candidates": robust.plan.provenance["robust"]["candidates"],
            }  # fmt: skip
            found.append(row)
            for which in ("ordinary", "robust", "unlimited"):
                one = row[which]
                print(
                    f"{name:22} {share:.0%} {which:9} step {one['step_us'] / 1000:9.1f} {one['step_us_at'] / 1000:9.1f}"
                    f"  stall {one['stall_us'] / 1000:8.1f} {one['stall_us_at'] / 1000:8.1f} ms  peak "
                    f"{one['peak_bytes'] / 2**30:6.2f} of {limit / 2**30:.2f} GiB, fits {one['fitted']}"
                    + (f"  ({robust.chosen})" if which == "robust" else ""),
                    flush=True,
                )
            options.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
