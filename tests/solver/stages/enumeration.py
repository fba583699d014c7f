"""Everything tried, with a simulator of its own: what small answers are compared with.

It shares no code with `solver.stages`: times by repeated passes over rules read off the documents, memory by walking
each stage's order, splits by all cuts and all ways to share out levels. Times are floats in the description's unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    ahead: int = 1
    lag: int = 0


Levels = tuple[str, ...]
"""Of the layers of one group, in their order."""


def order(case: Case, stage: int) -> list[tuple[str, int, int]]:
    """(F, B or W, chunk, micro-batch) of a stage."""
    p, v, m = case.stages, case.chunks, case.micro_batches
    if case.schedule == "zero-bubble":
        return _zero_bubble(m, case.ahead * (p - 1 - stage), min(case.lag, case.ahead * stage))
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


def _zero_bubble(micro_batches: int, first: int, late: int) -> list[tuple[str, int, int]]:
    """What is done next: a forward while too few are ahead of the backwards, else a W that is late enough, else B."""
    done = {"F": 0, "B": 0, "W": 0}
    made = []
    while done["W"] < micro_batches:
        if done["F"] < micro_batches and done["F"] <= done["B"] + first and done["B"] - done["W"] <= late:
            what = "F"
        elif done["B"] < micro_batches and done["B"] - done["W"] <= late:
            what = "B"
        else:
            what = "W"
        made.append((what, 0, done[what]))
        done[what] += 1
    return made


def makespan(case: Case, forward: Sequence[float], backward: Sequence[float], weight: Sequence[float] = ()) -> float:
    """By group. Every task is started as early as its rules allow, until nothing changes."""
    takes = {"F": forward, "B": backward, "W": weight}
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
                elif what == "B":
                    source = (g + 1, "B", m) if g < last else (g, "F", m)
                else:
                    source = (g, "B", m)
                if source is not None and source not in ends:
                    break
                apart = source is not None and source[0] % p != s
                ready = 0.0 if source is None else ends[source] + (hop if apart else 0.0)
                free[s] = max(free[s], ready) + takes[what][g]
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
    halved = case.schedule == "zero-bubble"
    forward, backward, weight, activation, late, held = [], [], [], [], [], [0.0] * p
    for g, (part, levels) in enumerate(split):
        forward.append(sum(layer["time"] for layer in part))
        backward.append(sum(2 * layer["time"] * (1 + EXTRA[level]) for layer, level in zip(part, levels, strict=True)))
        weight.append(sum(layer.get("backward_weight_time", layer["time"]) for layer in part) if halved else 0.0)
        late.append(sum(layer.get("memory_backward_weight", layer["memory_activation"]) for layer in part))
        activation.append(sum(layer[KEYS[level]] for layer, level in zip(part, levels, strict=True)))
        held[g % p] += sum(layer["memory_parameter"] for layer in part)
    for layer in case.document["layers_description"]:
        if layer["type"] != "BODY":
            g = 0 if layer["type"] == "HEAD" else len(split) - 1
            forward[g] += layer["time"]
            backward[g] += 2 * layer["time"]
            weight[g] += layer["time"] if halved else 0.0
            held[g % p] += layer["memory_parameter"]
    for s in range(p):
        alive = held[s]
        listed = order(case, s)
        for i, (what, chunk, m) in enumerate(listed):
            g = chunk * p + s
            alive += activation[g] * {"F": 1, "B": -1, "W": 0}[what]
            if halved:
                alive += late[g] * {"F": 0, "B": 1, "W": -1}[what]
                if what == "B" and listed[i + 1] == ("W", chunk, m):
                    continue  # undivided
            if alive > case.document["memory_limits"][s] + 1e-9:
                return None
    if case.objective == "slowest":
        return max(float(sum(forward[g] + backward[g] for g in range(s, len(split), p))) for s in range(p))
    return makespan(case, forward, [b - w for b, w in zip(backward, weight, strict=True)], weight)


def best(case: Case) -> float | None:
    """The least value of all splits; None where none fits. Zero-bubble: of the orders that reference/stages.md has."""
    cases = [case]
    if case.schedule == "zero-bubble":
        far = case.stages - 1
        cases = [
            replace(case, ahead=ahead, lag=lag)
            for ahead in (1, 2)
            for lag in range(ahead * far + 1)
            if lag in (0, 1, 2, 4, 8, min(ahead * far, case.micro_batches))
        ]
    found = [v for one in cases for split in splits(one) if (v := value(one, split)) is not None]
    return min(found, default=None)
