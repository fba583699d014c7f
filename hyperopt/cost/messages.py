"""Latency and bandwidth of messages between devices, fitted to what Ascend's profilers measured of collectives.

`communication.json` has, for each collective and kind of link (``HCCS``, ``RDMA``, ``SDMA``), how many messages of
which size there were and how long they took together; sizes are MB of 10^6. What a collective takes beyond its messages
is waiting for the other ranks, which no link knows: so the messages are what is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hyperopt.cost.analytic import fit_messages
from hyperopt.documents import DocumentError
from hyperopt.mesh import Level, Mesh

FEWEST = 3
"""Sizes of messages."""


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """One message of b bytes takes `latency_us` + b / `bytes_per_s`. `sizes`: how many were fitted to; `error`: median
    of |fitted / measured - 1|."""

    latency_us: float
    bytes_per_s: float
    sizes: int
    error: float


def read(data: bytes) -> dict[str, list[tuple[float, float]]]:
    """(bytes, us) of a message by link, one for each size of each collective. Raises `DocumentError`."""
    try:
        steps: dict[str, Any] = msgspec.json.decode(data)
        found: dict[str, list[tuple[float, float]]] = {}
        for step in steps.values():
            for name, one in step.get("collective", {}).items():
                if name.startswith("Total"):
                    continue
                for link, told in one.get("Communication Bandwidth Info", {}).items():
                    for size, (count, ms) in told.get("Size Distribution", {}).items():
                        if float(ms) > 0 and float(size) > 0:
                            found.setdefault(link, []).append((float(size) * 1e6, float(ms) * 1e3 / count))
        return found
    except (msgspec.DecodeError, AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        problem = "is no communication.json of Ascend's profilers"
        raise DocumentError("$", problem, "give the one under ASCEND_PROFILER_OUTPUT") from error


def fit(parts: Sequence[Mapping[str, Sequence[tuple[float, float]]]]) -> tuple[dict[str, Messages], list[str]]:
    """By link, of all files together, and what is too little to fit."""
    found, notes = {}, []
    for link in sorted({link for part in parts for link in part}):
        rows = np.array([row for part in parts for row in part.get(link, ())], np.float64)
        if len(np.unique(rows[:, 0])) < FEWEST:
            notes.append(f"messages over {link} in {len(np.unique(rows[:, 0]))} sizes are too few to fit")
            continue
        latency, bandwidth = fit_messages(np.ones(len(rows)), rows[:, 0], rows[:, 1])
        fitted = latency + rows[:, 0] / bandwidth * 1e6
        error = float(np.median(np.abs(fitted / rows[:, 1] - 1)))
        found[link] = Messages(
            latency_us=round(latency, 4), bytes_per_s=round(bandwidth), sizes=len(rows), error=round(error, 4)
        )
    return found, notes


def level_of(messages: Mapping[str, Messages]) -> Level | None:
    """The slowest link that the model has: a ring is as fast as that."""
    if not messages:
        return None
    name, slowest = min(messages.items(), key=lambda item: item[1].bytes_per_s)
    return Level(name=name, bytes_per_s=slowest.bytes_per_s, latency_us=slowest.latency_us)


def on_mesh(mesh: Mesh, messages: Mapping[str, Messages]) -> tuple[Mesh, list[str]]:
    """The mesh with latency and bandwidth as measured on each level whose `name` is that of a link of the model, and
    what was taken."""
    levels, told = [], []
    for level in mesh.levels:
        known = messages.get(level.name)
        if known is None:
            levels.append(level)
            continue
        levels.append(msgspec.structs.replace(level, latency_us=known.latency_us, bytes_per_s=known.bytes_per_s))
        told.append(
            f"level {level.name}: {known.latency_us:.2f} us and {known.bytes_per_s / 1e9:.1f} GB/s, fitted to "
            f"{known.sizes} measured sizes (median error {known.error:.1%})"
        )
    return msgspec.structs.replace(mesh, levels=tuple(levels)), told
