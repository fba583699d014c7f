"""Sharding against the contest: eight of its instances with its time limits, through the command.

    python -m bench.sharding [-o RESULTS.json] [--instances ABG] [--seeds 0,1]

Every run is a process of its own, start and compilation included; every solution is judged by `evaluate`. Runs that
RESULTS.json holds are not repeated: a stopped bench goes on where it was; delete the file to begin anew. Rivals are the
published results (best_known.csv, contest_results.csv), not runs on this machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from solver.sharding import evaluate, read
from solver.sharding.document import read_solution

DATA = Path(__file__).parents[2] / "shared" / "data" / "iopddl"
RESULTS = Path("build/bench/sharding.json")
LIMIT_S = {"A": 60, "B": 60, "G": 120, "K": 180, "M": 180, "P": 240, "S": 240, "V": 300}
"""Those of the contest."""

COLUMNS = "cost", "to best", "to winner", "to XLA", "bound", "gap", "first", "seconds"


def run(name: str, seed: int) -> dict[str, Any]:
    """One run of the command, judged apart from it."""
    instance = DATA / f"asplos-2025-iopddl-{name}.json.gz"
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "solution.json"
        command = [sys.executable, "-m", "hyperopt", "shard", str(instance), "-o", str(output)]
        command += ["--time-limit", str(LIMIT_S[name]), "--seed", str(seed)]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - began
        told: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"error": done.stderr.strip()}
        if output.exists():
            problem = read(instance.read_bytes())
            judged = evaluate(problem, read_solution(output.read_bytes(), problem))
            assert judged.feasible and judged.cost == told["cost"] >= told["bound"], "the judge disagrees"
    return {**told, "wall_s": round(wall, 2), "load_before": load, "limit_s": LIMIT_S[name], "seed": seed}


def published() -> dict[str, dict[str, int | None]]:
    """Costs by instance: of the best contest team, the winner and XLA's own solver."""
    with (DATA / "best_known.csv").open() as lines:
        return {
            row["inst"]: {
                key: int(row[column]) if row[column] else None
                for key, column in (("best", "best_contest"), ("winner", "team01_winner"), ("xla", "XLA_ortools"))
            }
            for row in csv.DictReader(lines)
        }


def line(name: str, told: dict[str, Any], rivals: dict[str, int | None]) -> str:
    if not told.get("feasible"):
        return f"| {name} | {told['seed']} | {told.get('error') or 'not feasible'} |" + " |" * (len(COLUMNS) - 1)
    ratios = [f"{told['cost'] / rival:.4f}" if rival else "-" for rival in rivals.values()]
    gap = "-" if told["gap"] is None else f"{100 * told['gap']:.2f} %"
    cells = [f"{told['cost']:,}", *ratios, f"{told['bound']:,}", gap]
    cells += [f"{told['first_feasible_seconds']:.1f} s", f"{told['wall_s']:.1f} of {told['limit_s']} s"]
    return f"| {name} | {told['seed']} | " + " | ".join(cells) + " |"


def main() -> None:
    if not DATA.exists():
        sys.exit(f"bench.sharding: there is no folder {DATA}: lay the shared data beside the repository")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("--instances", default="".join(LIMIT_S))
    parser.add_argument("--seeds", default="0")
    asked = parser.parse_args()
    seen: dict[str, dict[str, Any]] = json.loads(asked.output.read_text()) if asked.output.exists() else {}
    rivals = published()
    print("| instance | seed | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 2))
    for seed in (int(s) for s in asked.seeds.split(",")):
        for name in asked.instances:
            key = f"{name}/{seed}"
            if key not in seen:
                seen[key] = run(name, seed)
                asked.output.parent.mkdir(parents=True, exist_ok=True)
                asked.output.write_text(json.dumps(seen, indent=1))
            print(line(name, seen[key], rivals[name]), flush=True)


if __name__ == "__main__":
    main()
