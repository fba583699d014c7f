"""How well durations of operators are predicted that were not measured: `make bench-cost`.

For each device, this CPU and the Ascend of the shared sample data (skipped where that is absent), apart: samples in
five folds of whole shapes (all operators on the same tensor shapes are held out together); for the Ascend's run also
one rank held out. In the same run, on the same folds: mean per type, roofline alone, linear on logs, k-nearest, ours.
A sample is a signature (type, shapes, element types): what was measured of it, in the median.

Then whole steps of the demo model at a size that was held out, copies against those of a published sweep, and how long
100,000 operators take to predict. The table is printed and saved to `build/bench/cost.json`.

    python -m bench.cost [--calibration FILE] [--shared FOLDER] [--devices cpu,ascend]
                         [--parts devices,steps,copies,collectives,speed]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.cost_rivals import RIVALS
from hyperopt import profile as profiles
from hyperopt.cost import model as models
from hyperopt.cost.features import F64, Rows, Samples, joined, rows_of, samples_of
from hyperopt.cost.folds import folds
from hyperopt.cost.work import Table
from hyperopt.profile import Operator, Profile

OUT = Path("build/bench")
SHARED = Path(__file__).parents[2] / "shared" / "data"
QWEN = "ascend_qwen3_pp2_dp2"
OURS = "ours"
LEVEL = 0.9
Mask = npt.NDArray[np.bool_]
HALF, COVERED = 0.5, (0.85, 0.95)


def read(path: Path) -> Profile:
    return profiles.load(path.read_bytes())[0]


def evaluate(train: Rows, test: Samples) -> dict[str, F64]:
    """Predictions of every rival for the samples, and of ours with its intervals: of the samples, which are medians,
    and of single executions. `seen`: whether ours has met the signature."""
    samples = samples_of(train)
    found = {name: rival(samples, test.signatures) for name, rival in RIVALS.items()}
    model = models.fit(train)
    ours = model.predict(test.signatures, test.context, LEVEL, test.times)
    single = model.predict(test.signatures, test.context, LEVEL)
    return found | {
        OURS: ours.us, "low": ours.low, "high": ours.high, "single low": single.low, "single high": single.high,
        "seen": (ours.source == models.SEEN).astype(float),
    }  # fmt: skip


def shapes_held_out(rows: Rows) -> tuple[Samples, dict[str, F64]]:
    samples = samples_of(rows)
    found: dict[str, F64] = {}
    for held in folds(samples.signatures.groups, 5, seed=7):
        keep = {key for key, out in zip(samples.signatures.keys, held, strict=True) if not out}
        wanted = np.array([key in keep for key in rows.signatures.keys], bool)[rows.signature]
        for name, values in evaluate(rows.only(wanted), samples.only(held)).items():
            found.setdefault(name, np.full(len(samples.us), np.nan))[held] = values
    return samples, found


def summary(samples: Samples, found: dict[str, F64]) -> dict[str, Any]:
    """Errors of each rival; `covered`: the share of samples within ours' interval, of those that have one."""
    errors = {name: np.abs(found[name] / samples.us - 1) for name in (*RIVALS, OURS)}
    rows = {
        name: {"median": float(np.median(off)), "p90": float(np.quantile(off, 0.9))} for name, off in errors.items()
    }
    known = ~np.isnan(found["low"])
    inside = (found["low"] <= samples.us) & (samples.us <= found["high"])
    families = {
        str(family): {
            "samples": int((samples.signatures.families == family).sum()),
            **{name: float(np.median(off[samples.signatures.families == family])) for name, off in errors.items()},
            "covered": float(inside[samples.signatures.families == family].mean()),
        }
        for family in np.unique(samples.signatures.families)
    }
    return {
        "samples": len(samples.us),
        "groups": len(set(samples.signatures.groups)),
        "rivals": rows,
        "covered": float(inside[known].mean()) if known.any() else None,
        "covered_seen": _share(inside, known & (found["seen"] > 0)),
        "covered_new": _share(inside, known & (found["seen"] == 0)),
        "without_interval": int((~known).sum()),
        "ratio": rows[OURS]["median"] / rows["roofline alone"]["median"],
        "best": min(rows, key=lambda name: rows[name]["median"]),
        "families": families,
    }


def _share(inside: Mask, chosen: Mask) -> tuple[float, int] | None:
    """Of how many which part is inside; None without any."""
    return (float(inside[chosen].mean()), int(chosen.sum())) if chosen.any() else None


def told(name: str, result: dict[str, Any]) -> Iterator[str]:
    yield f"{name}: {result['samples']} samples, {result['groups']} groups of shapes"
    yield f"  {'':16} {'median':>8} {'90th':>8}   |predicted / measured - 1|"
    for rival, row in result["rivals"].items():
        yield f"  {rival:16} {row['median']:8.1%} {row['p90']:8.1%}"
    verdicts = [
        f"{result['ratio']:.2f} of the roofline's error ({'ok' if result['ratio'] <= HALF else 'MISSED'}, wanted 0.50)",
        f"best: {result['best']} ({'ok' if result['best'] == OURS else 'MISSED'})",
    ]
    if result["covered"] is not None:
        fits = COVERED[0] <= result["covered"] <= COVERED[1]
        verdicts.append(
            f"90 % intervals hold {result['covered']:.1%} ({'ok' if fits else 'MISSED'}, wanted 85 to 95 %)"
        )
    for name, what in (("covered_seen", "remembered"), ("covered_new", "new")):
        if result[name] is not None and result["covered_seen"] is not None:
            verdicts.append(f"{result[name][0]:.1%} of the {result[name][1]} {what} ones")
    if "covered_executions" in result:
        verdicts.append(f"and {result['covered_executions']:.1%} of {result['executions']} single executions")
    if result["without_interval"]:
        verdicts.append(f"{result['without_interval']} samples without an interval: too few to say")
    yield f"  ours: {'; '.join(verdicts)}"
    for family, row in result["families"].items():
        parts = "  ".join(f"{rival} {row[rival]:.1%}" for rival in ("roofline alone", "k-nearest", OURS))
        yield f"    {family:13} {row['samples']:5}  {parts}  covered {row['covered']:.0%}"


def this_cpu(calibration: Path, minutes: float) -> Rows:
    from profiler.calibrate import calibrate

    if not calibration.exists():
        print(f"measuring this CPU: up to {minutes:g} minutes, to {calibration}", flush=True)
        calibrate(calibration, minutes, lambda line: print(f"  {line}", flush=True))
    rows = rows_of(read(calibration), Table.load())
    return rows.only(rows.families != models.LINK)


def ascend(run: Path) -> dict[int, Rows] | None:
    """Rows of each rank of the real run that has kernels; None where the data are absent."""
    if not run.exists():
        return None
    from profiler.read import read as read_place

    with tempfile.TemporaryDirectory(prefix="hyperopt-") as folder:
        manifest = read_place(run, Path(folder))
        found = {}
        for rank in manifest.ranks:
            if rank.file is not None:
                rows = rows_of(read(Path(folder) / rank.file), Table.load())
                found[rank.rank] = rows
        return found


def devices(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    if "cpu" in options.devices:
        cpu = this_cpu(options.calibration, options.minutes)
        yield f"{cpu.device}, shapes held out", summary(*shapes_held_out(cpu))
    ranks = ascend(options.shared / QWEN) if "ascend" in options.devices else None
    if ranks is None:
        print(f"Ascend: skipped{f', {QWEN} is absent' if 'ascend' in options.devices else ''}")
        return
    both = joined(list(ranks.values()))
    yield f"{both.device}, shapes held out", summary(*shapes_held_out(both))
    for rank, rows in ranks.items():
        others = joined([other for number, other in ranks.items() if number != rank])
        samples = samples_of(rows)
        found = evaluate(others, samples)
        known = rows.only(rows.us > 0)
        place = {key: i for i, key in enumerate(samples.signatures.keys)}
        of = np.array([place.get(key, -1) for key in known.signatures.keys])[known.signature]
        inside = (found["single low"][of] <= known.us) & (known.us <= found["single high"][of])
        result = summary(samples, found) | {"covered_executions": float(inside.mean()), "executions": len(of)}
        yield f"{both.device}, rank {rank} held out", result


COUNT = 100_000


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds to predict 100,000 operators, from profile to intervals: a step that repeats its layers, sums of which no
    two have one shape, and the sweep's kinds of operators of which no two are alike. Fastest of three."""
    table = Table.load()
    measured = read(options.calibration)
    model = models.fit(rows_of(measured, table))
    own = [o for o in measured.operators if o.stream == "compute"]
    shapes = (((i + 8, 64),) * 3 for i in range(COUNT))
    found = {}
    for name, operators in (
        ("layers repeat", [own[i % len(own)] for i in range(COUNT)]),
        ("sums, all different", [_operator("Add", each, 2) for each in shapes]),
        ("all kinds, all different", _all_different(COUNT)),
    ):
        profile = Profile(operators=tuple(operators), storages=())
        seconds = []
        for _ in range(3):
            begin = time.perf_counter()
            rows = rows_of(profile, table)
            model.predict_rows(rows)
            seconds.append(time.perf_counter() - begin)
        found[name] = {
            "seconds": min(seconds), "all": seconds, "signatures": len(rows.signatures.keys), "predicted": len(rows.us),
        }  # fmt: skip
    return found


def _operator(type: str, shapes: tuple[tuple[int, ...], ...], inputs: int) -> Operator:
    return Operator(
        type=type, duration_us=1.0, shapes=shapes, dtypes=("float32",) * len(shapes), inputs=inputs, phase="forward"
    )


TYPES = {
    "matmul": "MatMul", "batch_matmul": "BatchMatMul", "layer_norm": "LayerNorm", "softmax": "Softmax",
    "log_softmax": "LogSoftmax", "embedding": "Gather", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div",
    "maximum": "Maximum", "pow": "Pow", "less": "Less", "equal": "Equal", "addn": "AddN", "exp": "Exp", "neg": "Neg",
    "sqrt": "Sqrt", "log": "Log", "tanh": "Tanh", "sigmoid": "Sigmoid", "gelu": "GeLU", "relu": "ReLU", "silu": "SiLU",
    "square": "Square", "abs": "Abs", "rsqrt": "Rsqrt", "reciprocal": "Reciprocal", "cast": "Cast", "sum": "ReduceSum",
    "mean": "ReduceMean", "max": "ReduceMax", "transpose": "Transpose", "concat": "Concat", "slice": "Slice",
    "tile": "Tile",
}  # fmt: skip
"""Of the sweep's kinds that are one operator."""


def _all_different(count: int) -> list[Operator]:
    """Operators as the sweep draws them, of other seeds than its own; no two alike."""
    from profiler.calibrate.sweep import items

    found: dict[tuple[object, ...], Operator] = {}
    seed = 1000
    while len(found) < count:
        for item in items(seed):
            if item.kind in TYPES:
                shapes = (*item.shapes, item.output)
                found[item.kind, shapes] = _operator(TYPES[item.kind], shapes, len(item.shapes))
        seed += 1
    return list(found.values())[:count]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    parser.add_argument("--calibration", type=Path, default=OUT / "calibration.json.gz")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=Path, default=OUT / "cost-steps", help="folder of the demo model's captures")
    parser.add_argument("--rounds", type=int, default=2, help="captures of each size")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of the shared sample data")
    parser.add_argument("--devices", default="cpu,ascend")
    parser.add_argument("--parts", default="devices,steps,copies,collectives,speed")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    parts, result = options.parts.split(","), {}
    result["load"] = os.getloadavg()[1]
    if "devices" in parts:
        result["devices"] = {}
        for name, found in devices(options):
            result["devices"][name] = found
            print("\n".join(told(name, found)), flush=True)
    if "steps" in parts:
        from bench.cost_steps import steps

        result["steps"] = steps(options.steps, options.calibration, options.rounds)
    if "copies" in parts:
        from bench.cost_copies import copies

        result["copies"] = copies(options.calibration)
    if "collectives" in parts:
        from bench.cost_collectives import collectives

        result["collectives"] = collectives(options.shared / QWEN)
        if result["collectives"] is None:
            print(f"collectives: skipped, {QWEN} is absent")
    if "speed" in parts:
        result["speed"] = speed(options)
        for name, row in result["speed"].items():
            verdict = "ok" if row["seconds"] <= 1 else "MISSED"
            print(
                f"100,000 operators, {name} ({row['signatures']} signatures): {row['seconds']:.2f} s ({verdict}, 1 s)"
            )
    path = OUT / "cost.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | result, indent=1))
    print(f"saved to {path}; load {result['load']:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
