"""Profiles of a made-up device whose times follow a rule, with a little noise: what a model must find again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hyperopt.profile import Device, Operator, Profile, Run

PEAK, BANDWIDTH, LATENCY = 50_000.0, 20_000.0, 5.0
"""FLOPs and bytes per microsecond, and microseconds, of the made-up device."""


Shapes = Sequence[tuple[int, ...]]


def operator(type: str, inputs: Shapes, outputs: Shapes, us: float, **more: Any) -> Operator:
    shapes = (*inputs, *outputs)
    return Operator(
        type=type, duration_us=us, shapes=shapes, dtypes=("float32",) * len(shapes), inputs=len(inputs), **more
    )


def device(seed: int, count: int = 400, noise: float = 0.05, slow: float = 3.0) -> Profile:
    """Products, sums and exponentials; a sum whose second operand is a column is `slow` times as slow, which no
    roofline knows."""
    chance = np.random.default_rng(seed)
    found = []
    for number in range(count):
        rows, columns, inner = (int(8 * 2 ** chance.uniform(0, 7)) for _ in range(3))
        off = float(np.exp(chance.normal(0, noise)))
        kind = ("MatMul", "Add", "Exp")[number % 3]
        if kind == "MatMul":
            flops, traffic = 2 * rows * columns * inner, 4 * (rows * inner + inner * columns + rows * columns)
            us = LATENCY + max(flops / PEAK, traffic / BANDWIDTH)
            found.append(operator(kind, [(rows, inner), (inner, columns)], [(rows, columns)], us * off))
            continue
        column = kind == "Add" and number % 2 == 0
        inputs = [(rows, columns)] if kind == "Exp" else [(rows, columns), (rows, 1) if column else (rows, columns)]
        traffic = 4 * (sum(int(np.prod(shape)) for shape in inputs) + rows * columns)
        us = (LATENCY + traffic / BANDWIDTH) * (slow if column else 1.0)
        found.append(operator(kind, inputs, [(rows, columns)], us * off))
    run = Run(framework="made up", framework_version="1")
    return Profile(run=run, device=Device(name="toy"), operators=tuple(found), storages=())
