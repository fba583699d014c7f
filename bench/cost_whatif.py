"""What-if against what was captured: the demo model at one size made into another, and both captured with MindSpore.

    python -m bench.cost_whatif --calibration FILE [--folder FOLDER] [--mode graph]

Each size is captured in a process of its own. Sizes of storages, shapes and workspaces must be those of the larger
capture, operator by operator (by name: the runtime starts kernels in another order at another size). In graph mode a
kernel's duration is the median of the fastest quarter of its executions, as calibration has it, and the smaller of two
captures: what else runs on the machine only adds. Durations are compared: measured before x ratio of predictions, the
prediction alone, measured before x ratio of bytes, and unchanged. The model has learned from the sweep alone, and from
no step of the demo model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UnsetType, structs

from hyperopt import profile as profiles
from hyperopt.cost import model as models
from hyperopt.cost.features import rows_of
from hyperopt.cost.predicted import predicted
from hyperopt.cost.whatif import Growth, what_if
from hyperopt.cost.work import Table
from hyperopt.documents import write
from hyperopt.profile import IDLE, Operator, Profile
from hyperopt.replay import replay

SMALL = {"layers": 2, "width": 96, "heads": 4, "sequence": 128, "batch": 16}
TINY = {"layers": 1, "width": 64, "heads": 4, "sequence": 64, "batch": 8}
"""Kernels so short that other work seldom meets them."""
FEWEST_US = 20.0
"""Kernels below are left out of the median error: they are all launch."""


def read(path: Path) -> Profile:
    return profiles.load(path.read_bytes())[0]


def captured(folder: Path, mode: str, size: dict[str, int], steps: int, rounds: int) -> list[Profile]:
    paths = [folder / f"{mode}-{'-'.join(map(str, size.values()))}.{number}.json.gz" for number in range(rounds)]
    for path in paths:
        if not path.exists():
            print(f"capturing {path.name}", flush=True)
            given = json.dumps({"mode": mode, "size": size, "steps": steps, "output": str(path)})
            subprocess.run([sys.executable, "-m", "bench.cost_whatif", "--capture", given], check=True)
    return [read(path) for path in paths]


def capture(given: dict[str, Any]) -> None:
    """In a process of its own."""
    from importlib import import_module

    from profiler import capture as capture_step
    from profiler.calibrate.child import typical
    from profiler.trial import demo_training, prepare

    # `profiler.capture` as an attribute is the function.
    import_module("profiler.capture.assembly").median = lambda times: typical(list(times))  # type: ignore[attr-defined]
    prepare(given["mode"])
    training = demo_training(**given["size"])
    profile = capture_step(
        training.step, *training.batch(), net=training.net, mode=given["mode"], steps=given["steps"], warmup=1
    )
    write(profile, Path(given["output"]))


def quickest(rounds: list[Profile]) -> Profile:
    """The first, with the least duration of each operator of all."""
    least = {name: min(names(p)[name].duration_us for p in rounds if name in names(p)) for name in names(rounds[0])}
    operators = tuple(
        structs.replace(o, duration_us=least[o.name]) if o.type != IDLE else o for o in rounds[0].operators
    )
    return structs.replace(rounds[0], operators=operators)


def names(profile: Profile) -> dict[str, Any]:
    return {o.name: o for o in profile.operators if o.type != IDLE}


def compare(made: Profile, real: Profile, before: Profile, model: models.CostModel, table: Table) -> dict[str, Any]:
    sizes, theirs = ({s.name: s.bytes for s in p.storages} for p in (made, real))
    mine, other, small = names(made), names(real), names(before)
    common = [name for name in mine if name in other and name in small]
    alone = names(predicted(made, model, table).profile)
    traffic = {
        name: small[name].duration_us
        * sum(map(np.prod, mine[name].shapes))
        / max(sum(map(np.prod, small[name].shapes)), 1)
        for name in common
    }
    told: dict[str, Any] = {
        "storages": len(sizes),
        "storages_equal": sum(theirs.get(name) == size for name, size in sizes.items()),
        "storages_missing": len(set(theirs) ^ set(sizes)),
        "operators": len(mine),
        "operators_in_both": len(common),
        "shapes_equal": sum(mine[n].shapes == other[n].shapes for n in common),
        "workspaces_equal": sum(mine[n].workspace_bytes == other[n].workspace_bytes for n in common),
        "accesses_equal": sum(_accesses(made, mine[n]) == _accesses(real, other[n]) for n in common),
    }
    changed = [n for n in common if mine[n].predicted and other[n].duration_us >= FEWEST_US]
    for way, us in (
        ("ratio", {n: mine[n].duration_us for n in common}),
        ("alone", {n: alone[n].duration_us for n in common}),
        ("bytes", traffic),
        ("unchanged", {n: small[n].duration_us for n in common}),
    ):
        off = [abs(us[n] / other[n].duration_us - 1) for n in changed]
        total = sum(us[n] for n in common) / sum(other[n].duration_us for n in common) - 1
        told[way] = {"median": statistics.median(off), "p90": float(np.quantile(off, 0.9)), "sum_off": total}
    known = [(mine[n].interval_us, other[n].duration_us) for n in changed]
    inside = [low_high[0] <= us <= low_high[1] for low_high, us in known if not isinstance(low_high, UnsetType)]
    told["covered"] = statistics.fmean(inside) if inside else None
    told["intervals"] = len(inside)
    step, peak = replay(made), real.measured
    assert peak is not None
    told["step_off"] = step.step_us / peak.step_us - 1
    whole = peak.peak_bytes + sum(s.bytes for s in real.storages if s.kind in peak.excludes and s.resident_at_start)
    told["peak_off"] = step.peak_bytes / whole - 1
    told["peak_replayed_off"] = step.peak_bytes / replay(real).peak_bytes - 1
    return told


def _elements(operator: Operator) -> int:
    return sum(prod(shape) for shape in operator.shapes)


def _accesses(profile: Profile, operator: Any) -> tuple[list[str], list[str]]:
    return tuple(sorted(profile.by_id[s].name for s in side) for side in (operator.reads, operator.writes))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cost_whatif", description=__doc__)
    parser.add_argument("--calibration", type=Path, default=Path("build/bench/calibration.json.gz"))
    parser.add_argument("--folder", type=Path, default=Path("build/bench/cost-whatif"))
    parser.add_argument("--mode", default="graph")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--capture", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.capture:
        capture(json.loads(options.capture))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    table = Table.load()
    base = TINY if options.tiny else SMALL
    batch, length = 2 * base["batch"], 2 * base["sequence"]
    larger = ({"batch": batch}, {"sequence": length}, {"batch": batch, "sequence": length})
    every = [base, *(base | size for size in larger)]
    for number in range(1, options.rounds + 1):  # in turns
        found_so_far = [captured(options.folder, options.mode, size, options.steps, number) for size in every]
    small, *sizes = map(quickest, found_so_far)
    rows = rows_of(read(options.calibration), table)
    model = models.fit(rows)
    same = what_if(small, model, table, [Growth("batch", base["batch"], base["batch"])])
    print(f"the same batch: {'nothing changes' if same.profile == small else 'CHANGED'}")
    found = {}
    for size, real in zip(larger, sizes, strict=True):
        growths = [Growth(axis, new, base[axis]) for axis, new in size.items()]
        made = what_if(small, model, table, growths)
        name = ", ".join(f"{axis} {base[axis]} -> {new}" for axis, new in size.items())
        row = found[name] = compare(made.profile, real, small, model, table) | {"sources": dict(made.sources)}
        equal = ", ".join(f"{row[f'{what}_equal']} {what}" for what in ("shapes", "workspaces", "accesses"))
        print(
            f"{name}: {row['storages_equal']} of {row['storages']} storages equal, {row['storages_missing']} in "
            f"one only; of {row['operators_in_both']} operators equal: {equal}"
        )
        for way in ("ratio", "alone", "bytes", "unchanged"):
            one = row[way]
            told = f"median {one['median']:6.1%}  90th {one['p90']:7.1%}  sum of kernels {one['sum_off']:+.1%}"
            print(f"    {way:10} {told}")
        covered = "no" if row["covered"] is None else f"{row['covered']:.1%} of {row['intervals']}"
        print(
            f"    {covered} intervals hold; step {row['step_off']:+.1%}, peak {row['peak_off']:+.3%} of measured, "
            f"{row['peak_replayed_off']:+.3%} of replayed; {row['sources']}",
            flush=True,
        )
    path = options.folder / f"{options.mode}{'-tiny' if options.tiny else ''}.json"
    path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
