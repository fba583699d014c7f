"""What-if against what was captured: the demo model at one size made into another, and both captured with MindSpore.

    python -m bench.cost_whatif --calibration FILE [--folder FOLDER] [--mode graph]

Each size is captured in a process of its own. Sizes of storages, shapes and workspaces must be those of the larger
capture, operator by operator (by name: the runtime starts kernels in another order at another size). Durations are
compared three ways: measured before x ratio of predictions, the prediction alone, measured before x ratio of bytes.
The model has learned from the sweep alone, and from no step of the demo model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UnsetType

from hyperopt import profile as profiles
from hyperopt.cost import model as models
from hyperopt.cost.features import rows_of
from hyperopt.cost.predicted import predicted
from hyperopt.cost.whatif import Growth, what_if
from hyperopt.cost.work import Table
from hyperopt.profile import IDLE, Profile
from hyperopt.replay import replay

SMALL = {"layers": 2, "width": 96, "heads": 4, "sequence": 128, "batch": 16}
LARGE = ({"batch": 32}, {"batch": 48}, {"sequence": 256}, {"batch": 32, "sequence": 256})
FEWEST_US = 20.0
"""Kernels below are left out of the median error: they are all launch."""


def read(path: Path) -> Profile:
    return profiles.load(path.read_bytes())[0]


def captured(folder: Path, mode: str, size: dict[str, int]) -> Profile:
    path = folder / f"{mode}-{'-'.join(map(str, size.values()))}.json.gz"
    if not path.exists():
        print(f"capturing {path.name}", flush=True)
        options = [part for name, value in size.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "hyperopt", "capture", "-o", str(path), "--mode", mode, "--steps", "7"]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return read(path)


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


def _accesses(profile: Profile, operator: Any) -> tuple[list[str], list[str]]:
    return tuple(sorted(profile.by_id[s].name for s in side) for side in (operator.reads, operator.writes))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cost_whatif", description=__doc__)
    parser.add_argument("--calibration", type=Path, default=Path("build/bench/calibration.json.gz"))
    parser.add_argument("--folder", type=Path, default=Path("build/bench/cost-whatif"))
    parser.add_argument("--mode", default="graph")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    table = Table.load()
    small = captured(options.folder, options.mode, SMALL)
    sizes = [captured(options.folder, options.mode, SMALL | size) for size in LARGE]
    rows = rows_of(read(options.calibration), table)
    model = models.fit(rows)
    same = what_if(small, model, table, [Growth("batch", SMALL["batch"], SMALL["batch"])])
    print(f"the same batch: {'nothing changes' if same.profile == small else 'CHANGED'}")
    found = {}
    for size, real in zip(LARGE, sizes, strict=True):
        growths = [Growth(axis, new, SMALL[axis]) for axis, new in size.items()]
        made = what_if(small, model, table, growths)
        name = ", ".join(f"{axis} {SMALL[axis]} -> {new}" for axis, new in size.items())
        row = found[name] = compare(made.profile, real, small, model, table) | {"sources": dict(made.sources)}
        print(
            f"{name}: {row['storages_equal']} of {row['storages']} storages of equal size, {row['storages_missing']} in "
            f"one only; of {row['operators_in_both']} operators shapes {row['shapes_equal']}, workspaces "
            f"{row['workspaces_equal']}, accesses {row['accesses_equal']} equal"
        )
        for way in ("ratio", "alone", "bytes", "unchanged"):
            one = row[way]
            print(
                f"    {way:10} median {one['median']:6.1%}  90th {one['p90']:7.1%}  sum of kernels {one['sum_off']:+.1%}"
            )
        covered = (
            "no intervals" if row["covered"] is None else f"{row['covered']:.1%} of {row['intervals']} intervals hold"
        )
        print(
            f"    {covered}; step {row['step_off']:+.1%}, peak {row['peak_off']:+.3%} of measured, "
            f"{row['peak_replayed_off']:+.3%} of replayed; {row['sources']}",
            flush=True,
        )
    path = options.folder / f"{options.mode}.json"
    path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
