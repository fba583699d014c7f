"""The contest's JSON, read and written::

    {"problem": {"name": "...", "usage_limit": 50,
                 "nodes": {"intervals": [[30, 70], ...], "costs": [[15], ...], "usages": [[10], ...]},
                 "edges": {"nodes": [[0, 1], ...], "costs": [[30, 40], ...]}}}

`edges.costs` are the matrices row by row, the first node's strategies along the rows. A solution is a list of strategy
indices, one a node. Both plain, gzip or zstd compressed. Fields that are not of the format are passed over.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from hyperopt.documents import DocumentError, decompress
from solver.sharding.problem import MOST, MOST_LIMIT, MOST_USAGE, Int64s, Problem, ShardingError, check_solution

T = TypeVar("T")
Whole = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
FORMAT = "the format is that of solver/sharding/document.py: whole numbers from 0 to 2^63 - 1"


class _Nodes(msgspec.Struct):
    intervals: list[tuple[Whole, Whole]]
    costs: list[list[Whole]]
    usages: list[list[Whole]]


class _Edges(msgspec.Struct):
    nodes: list[tuple[Whole, Whole]]
    costs: list[list[Whole]]


class _Problem(msgspec.Struct):
    nodes: _Nodes
    edges: _Edges
    usage_limit: Whole
    name: str = ""


class _Document(msgspec.Struct):
    problem: _Problem


def read(data: bytes) -> Problem:
    """The problem in `data`. Raises `ShardingError` that names the field, its place and the remedy."""
    given = _decoded(data, _Document).problem
    nodes, edges = given.nodes, given.edges
    count = len(nodes.costs)
    for name, length in (("usages", len(nodes.usages)), ("intervals", len(nodes.intervals))):
        if length != count:
            problem = f"{length} entries where nodes.costs has {count}"
            raise ShardingError(f"$.problem.nodes.{name}", problem, "give every node one entry in each of the lists")
    if not count:
        raise ShardingError("$.problem.nodes.costs", "there are no nodes", "give at least one")
    for i, (costs, usages) in enumerate(zip(nodes.costs, nodes.usages, strict=True)):
        if not costs:
            raise ShardingError(f"$.problem.nodes.costs[{i}]", "no strategy", "give every node at least one")
        if len(usages) != len(costs):
            problem = f"{len(usages)} usages for {len(costs)} strategies"
            raise ShardingError(f"$.problem.nodes.usages[{i}]", problem, "give every strategy a cost and a usage")
    for i, (lower, upper) in enumerate(nodes.intervals):
        if upper < lower:
            problem = f"the end {upper} is before the start {lower}"
            raise ShardingError(f"$.problem.nodes.intervals[{i}]", problem, "intervals are half-open: start, end")
    if len(edges.costs) != len(edges.nodes):
        problem = f"{len(edges.costs)} matrices for {len(edges.nodes)} edges"
        raise ShardingError("$.problem.edges.costs", problem, "give every edge one matrix")
    for e, ((a, b), matrix) in enumerate(zip(edges.nodes, edges.costs, strict=True)):
        if a >= count or b >= count:
            problem = f"there is no node {max(a, b)}"
            raise ShardingError(f"$.problem.edges.nodes[{e}]", problem, f"nodes are numbered 0 to {count - 1}")
        rows, columns = len(nodes.costs[a]), len(nodes.costs[b])
        if len(matrix) != rows * columns:
            problem = f"{len(matrix)} entries where nodes {a} and {b} have {rows} x {columns} strategies"
            raise ShardingError(f"$.problem.edges.costs[{e}]", problem, "give the whole matrix, row by row")
    total = sum(map(max, nodes.usages))
    if total > MOST_USAGE or min(total, given.usage_limit) > MOST_LIMIT:
        problem = "the largest usages add up to more than 2^62, or with the limit to more than 2^53"
        raise ShardingError("$.problem.nodes.usages", problem, "give usages and the limit in larger units")
    intervals = np.array(nodes.intervals, np.int64)
    return Problem(
        name=given.name,
        first=_starts(nodes.costs),
        cost=_flat(nodes.costs),
        usage=_flat(nodes.usages),
        lower=intervals[:, 0].copy(),
        upper=intervals[:, 1].copy(),
        edges=np.array(edges.nodes, np.int64).reshape(-1, 2),
        edge_first=_starts(edges.costs),
        edge_cost=_flat(edges.costs),
        usage_limit=given.usage_limit,
    )


def write(problem: Problem) -> bytes:
    """The problem as JSON that `read` reads back."""

    def lists(flat: Int64s, starts: Int64s) -> list[list[int]]:
        return [part.tolist() for part in np.split(flat, starts[1:-1])] if len(starts) > 1 else []

    nodes = _Nodes(
        np.stack([problem.lower, problem.upper], axis=1).tolist(),
        lists(problem.cost, problem.first),
        lists(problem.usage, problem.first),
    )
    edges = _Edges(problem.edges.tolist(), lists(problem.edge_cost, problem.edge_first))
    return msgspec.json.encode(_Document(_Problem(nodes, edges, problem.usage_limit, problem.name)))


def read_solution(data: bytes, problem: Problem) -> Int64s:
    """A solution of `problem`. Raises `ShardingError` where it is not one strategy a node."""
    return check_solution(problem, _decoded(data, list[Whole]))


def write_solution(solution: Int64s) -> bytes:
    return msgspec.json.encode(solution.tolist())


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(decompress(data), type=kind)
    except DocumentError as error:
        raise ShardingError(error.field, error.problem, error.remedy) from error
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise ShardingError(re.sub("`", "", place) or "$", problem.replace("`", ""), FORMAT) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ShardingError("$", f"not JSON: {error}", "send a complete UTF-8 JSON document") from error


def _starts(lists: list[list[int]]) -> Int64s:
    starts = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(part) for part in lists], out=starts[1:])
    return starts


def _flat(lists: list[list[int]]) -> Int64s:
    return np.fromiter(chain.from_iterable(lists), np.int64, sum(map(len, lists)))
