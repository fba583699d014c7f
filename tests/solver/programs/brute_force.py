"""Everything tried, with a simulator of its own: what small answers of `solver.programs` are compared with.

It reads the JSON itself and shares no code with the solver: all divisions of programs, all sizes and kinds, all choices
of what is swapped, and all orders of all runs, micro-batches in any order. Times are floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations, product
from typing import Any

Run = tuple[str, int]
Block = tuple[dict[str, Any], int, tuple[str, ...], tuple[str, ...]]
"""A kind, how many of it, the programs on them, and those that are swapped."""


def best(said: dict[str, Any]) -> float | None:
    """The least makespan; None where nothing fits."""
    found = [v for blocks in placements(said) for v in values(said, blocks)]
    return min(found, default=None)


def placements(said: dict[str, Any]) -> Iterator[list[Block]]:
    names = [program["name"] for program in said["programs"]]
    for labels in product(range(len(names)), repeat=len(names)):
        if any(label > max([-1, *labels[:i]]) + 1 for i, label in enumerate(labels)):
            continue  # the same division under other labels
        groups = [tuple(n for n, x in zip(names, labels, strict=True) if x == g) for g in range(max(labels) + 1)]
        kinds = [(kind, size) for kind in said["pool"] for size in range(1, kind["devices"] + 1)]
        for chosen in product(kinds, repeat=len(groups)):
            if any(sum(size for kind, size in chosen if kind is one) > one["devices"] for one in said["pool"]):
                continue
            swaps = [_subsets(group) if "swap" in said else [()] for group in groups]
            for swapped in product(*swaps):
                yield [(*at, group, out) for at, group, out in zip(chosen, groups, swapped, strict=True)]
    if len(said["pool"]) > 1:
        every = {
            "name": "all",
            "devices": sum(kind["devices"] for kind in said["pool"]),
            "speed": min(kind["speed"] for kind in said["pool"]),
            "memory": min(kind["memory"] for kind in said["pool"]),
        }
        swaps = [_subsets(tuple(names)) if "swap" in said else [()]]
        for out in swaps[0]:
            yield [(every, every["devices"], tuple(names), out)]


def _subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """None, or two and more."""
    return [(), *(s for k in range(2, len(names) + 1) for s in combinations(names, k))]


def values(said: dict[str, Any], blocks: list[Block]) -> Iterator[float]:
    """Of every order that keeps within memory."""
    program = {p["name"]: p for p in said["programs"]}
    calls = {c["name"]: c for c in said["calls"]}
    m = said["micro_batches"]
    runs = {c: (m if calls[c].get("per", "micro_batch") == "micro_batch" else 1) for c in calls}
    where = {name: block for block in blocks for name in block[2]}
    takes: dict[str, float] = {}
    for c, call in calls.items():
        kind, size, *_ = where[call["program"]]
        if isinstance(call["time"], dict):
            if str(size) not in call["time"]:
                return
            takes[c] = call["time"][str(size)] / kind["speed"]
        else:
            q = call.get("serial_fraction", 0.0)
            takes[c] = call["time"] * (q + (1 - q) / size) / kind["speed"]
        if size not in program[call["program"]].get("devices", [size]):
            return
    orders = []
    for kind, size, names, swapped in blocks:
        mine = [(c, k) for c in calls if calls[c]["program"] in names for k in range(runs[c])]
        needs = {n: program[n]["memory"] / size for n in names}
        static = sum(needs[n] for n in names if n not in swapped) + max([0.0, *(needs[n] for n in swapped)])
        if sum(needs[n] for n in swapped) > said.get("swap", {}).get("host_memory", 1e18) + 1e-9:
            return
        orders.append([
            order for order in permutations(mine)
            if sensible(calls, order, runs) and static + held(calls, order, size) <= kind["memory"] + 1e-9
        ])  # fmt: skip
    for chosen in product(*orders):
        value = makespan(said, blocks, chosen, takes, runs)
        if value is not None:
            yield value


def sensible(calls: dict[str, Any], order: tuple[Run, ...], runs: dict[str, int]) -> bool:
    """Not: a run before what it waits for on the same devices."""
    at = {run: i for i, run in enumerate(order)}
    return all(at[source] < i for i, run in enumerate(order) for source, _ in sources(calls, run, runs) if source in at)


def sources(calls: dict[str, Any], run: Run, runs: dict[str, int]) -> list[tuple[Run, float]]:
    call, k = run
    found = []
    for one in calls[call].get("after", []):
        name = one["call"]
        if calls[name].get("per", "micro_batch") == "step":
            found.append(((name, 0), one.get("mb", 0.0)))
        elif calls[call].get("per", "micro_batch") == "step":
            found += [((name, j), one.get("mb", 0.0)) for j in range(runs[name])]
        else:
            found.append(((name, k), one.get("mb", 0.0)))
    return found


def held(calls: dict[str, Any], order: tuple[Run, ...], size: int) -> float:
    alive: dict[Run, float] = {}
    most = 0.0
    for run in order:
        alive[run] = calls[run[0]].get("activation", 0.0) / size
        most = max(most, sum(alive.values()))
        if not calls[run[0]].get("until"):
            alive.pop(run)
        for other in [r for r in alive if calls[r[0]].get("until") == run[0] and r[1] == run[1]]:
            alive.pop(other)
    return most


def makespan(
    said: dict[str, Any], blocks: list[Block], orders: tuple[tuple[Run, ...], ...], takes: dict[str, float],
    runs: dict[str, int],
) -> float | None:  # fmt: skip
    program = {p["name"]: p for p in said["programs"]}
    calls = {c["name"]: c for c in said["calls"]}
    group = {c: next(i for i, b in enumerate(blocks) if calls[c]["program"] in b[2]) for c in calls}
    ends: dict[Run, float] = {}
    free, left = [0.0] * len(blocks), [list(order) for order in orders]
    there: list[str | None] = []
    for (_, _, _, swapped), order in zip(blocks, orders, strict=True):
        used = [calls[c]["program"] for c, _ in order if calls[c]["program"] in swapped]
        there.append(used[-1] if used else None)
    while any(left):
        moved = False
        for g, (_, size, _, swapped) in enumerate(blocks):
            if not left[g]:
                continue
            call, k = left[g][0]
            waits = sources(calls, (call, k), runs)
            if any(source not in ends for source, _ in waits):
                continue
            ready = 0.0
            for (name, j), mb in waits:
                lag = 0.0
                if group[name] != g and "link" in said:
                    pairs = min(blocks[group[name]][1], size)
                    lag = said["link"].get("latency", 0.0) + mb / said["link"]["mb_per_time"] / pairs
                ready = max(ready, ends[name, j] + lag)
            copies, mine, old = 0.0, calls[call]["program"], there[g]
            if mine in swapped and old != mine:
                copies += program[mine]["memory"] / size / said["swap"]["in_mb_per_time"]
                if old is not None and not program[old].get("read_only", False):
                    copies += program[old]["memory"] / size / said["swap"]["out_mb_per_time"]
            if mine in swapped:
                there[g] = mine
            free[g] = max(free[g] + copies, ready) + takes[call]
            ends[call, k] = free[g]
            left[g].pop(0)
            moved = True
        if not moved:
            return None
    return max(free)
