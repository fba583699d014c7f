"""Everything tried, with a simulator of its own: what small answers are compared with.

It shares no code with `solver.stages`: times by repeated passes over rules read off the documents, memory by walking
each stage's order, splits by all cuts and all ways to share out levels. Times are floats in the description's unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise, product
from typing import Any

EXTRA = {"none": 0.0, "select": 0.04, "full": 0.5}
KEYS = {"none": "memory_activation", "select": "memory_select_rec", "full": "memory_recompute"}


@dataclass(frozen=True)
class Case:
    """A description as it is sent, and what is asked of it."""

    document: dict[str, Any]
    stages: int
    chunks: int
    micro_batches: int
    schedule: str
    objective: str
    min_layers: int


Levels = tuple[str, ...]
"""Of the layers of one group, in their order."""


def order(case: Case, stage: int) -> list[tuple[str, int, int]]:
    """(F or B, chunk, micro-batch) of a stage."""
    p, v, m = case.stages, case.chunks, case.micro_batches
    blocks, rest = divmod(m, p)
    sizes = [p] * blocks if blocks else [m]
    if blocks:
        sizes[0] += rest
    forward, backward, start = [], [], 0
    for size in sizes:
        forward += [("F", c, start + i) for c in range(v) for i in range(size)]
        backward += [("B", c, start + i) for c in range(v - 1, -1, -1) for i in range(size)]
        start += size
    if case.schedule == "gpipe":
        return forward + backward
    warm = p - 1 - stage if v == 1 else 2 * (p - 1 - stage) + (v - 1) * sizes[0]
    warm = min(warm, len(forward))
    made = forward[:warm]
    for i in range(warm, len(forward)):
        made += [forward[i], backward[i - warm]]
    return made + backward[len(forward) - warm :]


def makespan(case: Case, forward: Sequence[float], backward: Sequence[float]) -> float:
    """By group. Every task is started as early as its rules allow, until nothing changes."""
    p, last = case.stages, case.stages * case.chunks - 1
    hop = float(case.document.get("transfer_times", 0.0))
    ends: dict[tuple[int, str, int], float] = {}
    orders = [order(case, s) for s in range(p)]
    at = [0] * p
    free = [0.0] * p
    while any(at[s] < len(orders[s]) for s in range(p)):
        for s in range(p):
            while at[s] < len(orders[s]):
                what, chunk, m = orders[s][at[s]]
                g = chunk * p + s
                if what == "F":
                    source = (g - 1, "F", m) if g else None
                else:
                    source = (g + 1, "B", m) if g < last else (g, "F", m)
                if source is not None and source not in ends:
                    break
                apart = source is not None and source[0] % p != s
                ready = 0.0 if source is None else ends[source] + (hop if apart else 0.0)
                free[s] = max(free[s], ready) + (forward if what == "F" else backward)[g]
                ends[g, what, m] = free[s]
                at[s] += 1
    return max(ends.values())


def splits(case: Case) -> Iterator[list[tuple[list[dict[str, Any]], Levels]]]:
    """Every [group] of layers with their levels; equal layers of a group are told apart only by how many have which."""
    bodies = [d for d in case.document["layers_description"] if d["type"] == "BODY"]
    layers = [d for d in bodies for _ in range(d["nb_layer"])]
    groups = case.stages * case.chunks
    for cuts in combinations_with_replacement(range(len(layers) + 1), groups - 1):
        bounds = [0, *cuts, len(layers)]
        parts = [layers[a:b] for a, b in pairwise(bounds)]
        if min(map(len, parts)) < case.min_layers:
            continue
        for levels in product(*(list(_levels(part)) for part in parts)):
            yield list(zip(parts, levels, strict=True))


def _levels(part: list[dict[str, Any]]) -> Iterator[Levels]:
    names = list(dict.fromkeys(layer["name"] for layer in part))
    by_type = []
    for name in names:
        same = [layer for layer in part if layer["name"] == name]
        known = [level for level, key in KEYS.items() if key in same[0]]
        by_type.append(list(combinations_with_replacement(known, len(same))))
    for chosen in product(*by_type):
        yield tuple(level for levels in chosen for level in levels)


def value(case: Case, split: list[tuple[list[dict[str, Any]], Levels]]) -> float | None:
    """None where a stage's memory is over its limit at some prefix of its order."""
    p = case.stages
    forward, backward, activation, held = [], [], [], [0.0] * p
    for g, (part, levels) in enumerate(split):
        forward.append(sum(layer["time"] for layer in part))
        backward.append(
            sum(2 * layer["time"] * (1 + EXTRA[level]) for layer, level in zip(part, levels, strict=True))
        )
        activation.append(sum(layer[KEYS[level]] for layer, level in zip(part, levels, strict=True)))
        held[g % p] += sum(layer["memory_parameter"] for layer in part)
    for layer in case.document["layers_description"]:
        if layer["type"] != "BODY":
            g = 0 if layer["type"] == "HEAD" else len(split) - 1
            forward[g] += layer["time"]
            backward[g] += 2 * layer["time"]
            held[g % p] += layer["memory_parameter"]
    for s in range(p):
        alive = held[s]
        for what, chunk, _ in order(case, s):
            alive += activation[chunk * p + s] * (1 if what == "F" else -1)
            if alive > case.document["memory_limits"][s] + 1e-9:
                return None
    if case.objective == "slowest":
        return max(float(sum(forward[g] + backward[g] for g in range(s, len(split), p))) for s in range(p))
    return makespan(case, forward, backward)


def best(case: Case) -> float | None:
    """The least value of all splits; None where none fits."""
    found = [v for split in splits(case) if (v := value(case, split)) is not None]
    return min(found, default=None)
