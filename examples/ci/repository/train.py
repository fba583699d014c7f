"""One training step of a small network in numpy, and what it costs.

    python train.py --profile step.json    what is allocated, when, by whom: a hyperopt.profile/1
    python train.py                        processor time of each of 40 steps, as `hyperopt interleave` reads it
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

LAYERS, WIDTH, BATCH = 8, 128, 192
STEPS = 40


class Tape:
    """Writes down every operator of a step and the arrays that it reads and writes."""

    def __init__(self):
        self.operators, self.storages, self.ids = [], [], {}

    def storage(self, array, name, kind, resident=False):
        self.ids[id(array)] = len(self.storages)
        told = {"id": len(self.storages), "name": name, "bytes": array.nbytes, "kind": kind}
        # Kept alive here, so that no other array gets its id.
        self.storages.append((array, told | {"resident_at_start": resident, "resident_at_end": resident}))
        return array

    def run(self, name, layer, phase, function, *inputs, kind="activation", into=None):
        begun = time.perf_counter()
        result = function(*inputs)
        took = 1e6 * (time.perf_counter() - begun)
        if into is None:
            self.storage(result, f"{layer}.{name}", kind)
        operator = {"name": f"{layer}.{name}", "type": name, "layer": layer, "phase": phase, "duration_us": took}
        operator["reads"] = [self.ids[id(array)] for array in inputs]
        operator["writes"] = [self.ids[id(result)]]
        self.operators.append(operator)
        return result

    def profile(self):
        run = {"name": "train", "framework": "numpy", "framework_version": np.__version__, "model": "mlp"}
        storages = [told for _, told in self.storages]
        return {"format": "hyperopt.profile/1", "run": run, "operators": self.operators, "storages": storages}


def descend(weight, update):
    return np.subtract(weight, 1e-6 * update, out=weight)


def relu(x):
    return np.maximum(x, 0)


def step(weights, batch):
    """Forward, backward and update; returns the tape."""
    tape = Tape()
    for i, weight in enumerate(weights):
        tape.storage(weight, f"weight{i}", "parameter", resident=True)
    x = tape.storage(batch, "batch", "input", resident=True)
    kept = []
    for i, weight in enumerate(weights):
        h = tape.run("matmul", f"layer{i}", "forward", np.matmul, x, weight)
        y = tape.run("relu", f"layer{i}", "forward", relu, h)
        kept.append((x, y))
        x = y
    gradient = tape.run("loss", "head", "backward", np.copy, x)
    for i in reversed(range(LAYERS)):
        x, y = kept[i]
        gradient = tape.run("relu_grad", f"layer{i}", "backward", lambda g, y: g * (y > 0), gradient, y)
        update = tape.run("weight_grad", f"layer{i}", "backward", lambda x, g: x.T @ g, x, gradient, kind="gradient")
        gradient = tape.run("input_grad", f"layer{i}", "backward", lambda g, w: g @ w.T, gradient, weights[i])
        tape.run("update", f"layer{i}", "optimizer", descend, weights[i], update, into=weights[i])
    return tape


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile")
    asked = parser.parse_args()
    random = np.random.default_rng(1)
    weights = [random.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]
    batch = random.normal(0, 1, (BATCH, WIDTH)).astype(np.float32)
    if asked.profile:
        Path(asked.profile).write_text(json.dumps(step(weights, batch).profile()))
        return
    times = []
    for _ in range(STEPS):
        begun = time.process_time()
        step(weights, batch)
        times.append(1000 * (time.process_time() - begun))
    print(json.dumps({"step_cpu_ms": {"values": times, "unit": "ms"}}))


if __name__ == "__main__":
    main()
