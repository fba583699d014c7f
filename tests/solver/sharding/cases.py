"""Small sharding problems, and all their solutions tried one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

from hypothesis import strategies as st

from solver.sharding import Problem, read

FAR = 10**18


def document(**changes: Any) -> dict[str, Any]:
    """A problem's JSON: three nodes, two edges; `changes` go into its parts by name."""
    problem: dict[str, Any] = {
        "name": "small",
        "nodes": {
            "intervals": [[0, 2], [1, 3], [4, 4]],
            "costs": [[1, 5], [2, 0], [3]],
            "usages": [[4, 1], [3, 5], [9]],
        },
        "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[0, 7, 1, 0], [2, 4]]},
        "usage_limit": 7,
    }
    for name, value in changes.items():
        part, _, field = name.partition("_")
        if part in ("nodes", "edges"):
            problem[part][field] = value
        else:
            problem[name] = value
    return {"problem": problem}


def problem_of(given: dict[str, Any]) -> Problem:
    return read(json.dumps(given).encode())


@st.composite
def documents(draw: st.DrawFn, nodes: int = 5, strategies: int = 3) -> dict[str, Any]:
    """Edges may be parallel, may join a node to itself, may forbid, and may tie two nodes together."""
    n = draw(st.integers(1, nodes))
    k = [draw(st.integers(1, strategies)) for _ in range(n)]
    cost = st.one_of(st.integers(0, 20), st.integers(0, 20), st.just(FAR))
    starts = [draw(st.integers(0, 5)) for _ in range(n)]
    matrices, ends = [], []
    for _ in range(draw(st.integers(0, 2 * n))):
        a, b = draw(st.integers(0, n - 1)), draw(st.integers(0, n - 1))
        ends.append([a, b])
        if draw(st.booleans()) and k[a] == k[b]:
            turn = draw(st.permutations(range(k[a])))
            matrices.append([0 if turn[x] == y else FAR for x in range(k[a]) for y in range(k[b])])
        else:
            matrices.append([draw(cost) for _ in range(k[a] * k[b])])
    return {
        "problem": {
            "name": "drawn",
            "nodes": {
                "intervals": [[s, s + draw(st.integers(0, 4))] for s in starts],
                "costs": [[draw(cost) for _ in range(m)] for m in k],
                "usages": [[draw(st.integers(0, 9)) for _ in range(m)] for m in k],
            },
            "edges": {"nodes": ends, "costs": matrices},
            "usage_limit": draw(st.integers(0, 30)),
        }
    }


@st.composite
def knots(draw: st.DrawFn) -> dict[str, Any]:
    """What presolve leaves a core of: all joined to all, nothing tied, lives that overlap and memory that is scarce."""
    n, k = draw(st.integers(4, 6)), 3
    dice = draw(st.randoms(use_true_random=False))
    starts = [dice.randrange(4) for _ in range(n)]
    usages = [[dice.randrange(1, 20) for _ in range(k)] for _ in range(n)]
    most = 5 if dice.random() < 0.5 else 1000
    ends = [[a, b] for a in range(n) for b in range(a + 1, n)]
    least, middle = sum(map(min, usages)), sum(sorted(u)[1] for u in usages)
    return {
        "problem": {
            "name": "knot",
            "nodes": {
                "intervals": [[s, s + 3] for s in starts],
                "costs": [[dice.randrange(most) for _ in range(k)] for _ in range(n)],
                "usages": usages,
            },
            "edges": {
                "nodes": ends,
                "costs": [[FAR if dice.random() < 0.1 else dice.randrange(most) for _ in range(k * k)] for _ in ends],
            },
            "usage_limit": dice.randrange(least // 2, middle + 1),
        }
    }


def everything(given: dict[str, Any]) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """(solution, cost, peak) of every choice, from the definition."""
    problem = given["problem"]
    nodes, edges = problem["nodes"], problem["edges"]
    k = [len(c) for c in nodes["costs"]]
    horizon = max(end for _, end in nodes["intervals"])
    for x in product(*map(range, k)):
        cost = sum(nodes["costs"][i][s] for i, s in enumerate(x))
        for (a, b), matrix in zip(edges["nodes"], edges["costs"], strict=True):
            cost += matrix[x[a] * k[b] + x[b]]
        used = [
            sum(
                nodes["usages"][i][s]
                for i, s in enumerate(x)
                if nodes["intervals"][i][0] <= t < nodes["intervals"][i][1]
            )
            for t in range(horizon + 1)
        ]
        yield x, cost, max(used)


def optimum(given: dict[str, Any]) -> int | None:
    """The least cost of what fits; None if nothing does."""
    limit = given["problem"]["usage_limit"]
    return min((cost for _, cost, peak in everything(given) if peak <= limit), default=None)
