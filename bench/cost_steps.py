"""The demo model's step at a size that the cost model has not seen: measured against predicted.

Each size is measured in processes of its own, the sizes in turn, several rounds: kernels under MindSpore's profiler and
the step by the clock, of both the typical time (`profiler.calibrate.child.typical`). One size is held out at a time:
the cost model learns from the sweep and from the kernels of all others, predicts every kernel of the one held out, and

    step  =  a x sum of predicted kernels  +  b x number of kernels

with a (kernels overlap, or wait for each other) and b (what launching one takes) fitted to the other sizes' steps.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from hyperopt import profile as profiles
from hyperopt.cost import model as models
from hyperopt.cost.features import Rows, joined, rows_of
from hyperopt.cost.work import Table
from hyperopt.documents import write

SIZES = (
    {"layers": 2, "width": 64, "heads": 4, "sequence": 64, "batch": 16},
    {"layers": 4, "width": 64, "heads": 4, "sequence": 128, "batch": 16},
    {"layers": 3, "width": 128, "heads": 4, "sequence": 96, "batch": 24},
    {"layers": 4, "width": 96, "heads": 4, "sequence": 128, "batch": 32},
    {"layers": 2, "width": 160, "heads": 5, "sequence": 128, "batch": 16},
    {"layers": 6, "width": 96, "heads": 4, "sequence": 64, "batch": 32},
)
STEPS = 25
WANTED = 0.05


def name_of(size: dict[str, int]) -> str:
    return "-".join(f"{value}" for value in size.values())


def measure(size: dict[str, int], output: Path) -> None:
    """In a process of its own: kernels to `output`, and the step's typical time beside it."""
    from profiler.calibrate.child import kernels_of, typical
    from profiler.trial import demo_training, prepare

    prepare("graph")
    training = demo_training(**size)
    batch = training.batch()
    profile = kernels_of(training.step, batch, STEPS)
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        training.loss(batch)
        times.append((time.perf_counter() - begin) * 1e6)
    write(profile, output)
    output.with_suffix(".step").write_text(json.dumps({"us": typical(times), "median_us": statistics.median(times)}))


def steps(folder: Path, calibration: Path, rounds: int) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(rounds):
        for place, size in enumerate(SIZES):
            output = folder / f"{name_of(size)}.{number}.json"
            if not output.exists():
                print(f"measuring the demo model {name_of(size)}, round {number + 1} of {rounds}", flush=True)
                subprocess.run([sys.executable, "-m", "bench.cost_steps", str(place), str(output)], check=True)
    table = Table.load()
    sweep = rows_of(profiles.load(calibration.read_bytes())[0], table, "cpu")
    rows, times, medians = [], [], []
    for size in SIZES:
        paths = [folder / f"{name_of(size)}.{number}.json" for number in range(rounds)]
        rows.append([rows_of(profiles.load(path.read_bytes())[0], table, "cpu") for path in paths])
        told = [json.loads(path.with_suffix(".step").read_text()) for path in paths]
        times.append(min(step["us"] for step in told))
        medians.append(statistics.median(step["median_us"] for step in told))
    found = []
    for held, size in enumerate(SIZES):
        others = [i for i in range(len(SIZES)) if i != held]
        model = models.fit(joined([sweep, *(part for i in others for part in rows[i])]))
        kernels = [_kernels(model, rows[i][0]) for i in range(len(SIZES))]
        a, b = _fit([kernels[i] for i in others], [times[i] for i in others])
        total, count = kernels[held]
        measured_kernels = min(float(part.us.sum()) for part in rows[held])
        predicted = a * total + b * count
        found.append(
            {
                "size": name_of(size),
                "measured_us": times[held],
                "measured_median_us": medians[held],
                "predicted_us": predicted,
                "off": predicted / times[held] - 1,
                "kernels_off": total / measured_kernels - 1,
                "a": a,
                "b_us": b,
                "operators": count,
            }
        )
        row = found[-1]
        print(
            f"  {row['size']:18} {count:5} kernels  measured {times[held] / 1000:7.1f} ms  predicted "
            f"{predicted / 1000:7.1f} ms  {row['off']:+.1%}  (kernels alone {row['kernels_off']:+.1%})",
            flush=True,
        )
    off = [abs(row["off"]) for row in found]
    verdict = "ok" if max(off) <= WANTED else f"MISSED in {sum(o > WANTED for o in off)} of {len(off)}"
    print(f"step of a size held out: {statistics.median(off):.1%} in the median, worst {max(off):.1%} ({verdict}, 5 %)")
    return {"sizes": found, "median": statistics.median(off), "worst": max(off)}


def _kernels(model: models.CostModel, rows: Rows) -> tuple[float, int]:
    """Sum of the predicted kernels in us, without what was measured of these very shapes, and how many they are."""
    context = np.zeros((len(rows.signatures.keys), rows.context.shape[1]))
    context[rows.signature] = rows.context
    return float(model.predict(rows.signatures, context).of(rows.signature).us.sum()), len(rows.us)


def _fit(kernels: list[tuple[float, int]], times: list[float]) -> tuple[float, float]:
    """Least squares of the relative errors; neither constant below 0."""
    a = np.array(kernels, float) / np.array(times)[:, None]
    found = np.linalg.lstsq(a, np.ones(len(times)), rcond=None)[0]
    if found.min() < 0:
        best = int(np.argmax(found))
        alone = 1 / np.median(a[:, best])
        found = np.zeros(2)
        found[best] = alone
    return float(found[0]), float(found[1])


if __name__ == "__main__":
    measure(SIZES[int(sys.argv[1])], Path(sys.argv[2]))
