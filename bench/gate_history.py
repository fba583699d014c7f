"""How often the history of a branch is told of a change: of none, of a step of 10 and 50 % in its middle, of a creep of
2.5 % a commit. Series of times with normal noise; `docs/why/gate.md` has the table.

    python -m bench.gate_history [TRIALS]
"""

from __future__ import annotations

import sys

import numpy as np

from hyperopt.gate.history import Point, changes

LENGTHS = (8, 12, 20, 40)
NOISES = (0.01, 0.03, 0.10)


def shares(n: int, noise: float, trials: int) -> dict[str, float]:
    """Percent of series that are told anything; of the changed ones a quarter as many are drawn."""
    rng = np.random.default_rng(int(n * 1000 + noise * 100))
    half = np.arange(n) >= n // 2
    shapes = {"none": np.ones(n), "step10": 1 + 0.1 * half, "step50": 1 + 0.5 * half, "creep25": 1.025 ** np.arange(n)}
    found = {}
    for name, shape in shapes.items():
        count = trials if name == "none" else max(1, trials // 4)
        told = 0
        for _ in range(count):
            values = shape * np.exp(rng.normal(0, noise, n))
            told += bool(changes({"time": [Point(str(i), float(value)) for i, value in enumerate(values)]}))
        found[name] = 100 * told / count
    return found


if __name__ == "__main__":
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    print("| runs | noise | no change | +10 % | +50 % | +2.5 % a commit |\n|---:|---:|---:|---:|---:|---:|")
    for length in LENGTHS:
        for spread in NOISES:
            row = [f"{share:.1f}" for share in shares(length, spread, asked).values()]
            print(f"| {length} | {100 * spread:g} % | " + " | ".join(row) + " |", flush=True)
