"""The judge against the definition; the contest's JSON in and out; bad input named."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from solver.sharding import ShardingError, evaluate, read, write, write_solution
from solver.sharding.document import read_solution
from solver.sharding.problem import MOST, least_shortfall
from tests.solver.sharding.cases import document, documents, everything, problem_of


@settings(max_examples=100, deadline=None)
@given(documents())
def test_the_judge_says_what_the_definition_says(drawn: dict[str, Any]) -> None:
    problem = problem_of(drawn)
    least = None
    for x, cost, peak in everything(drawn):
        judged = evaluate(problem, x)
        assert (judged.cost, judged.peak) == (cost, peak)
        assert judged.shortfall == max(0, peak - problem.usage_limit)
        assert judged.feasible == (peak <= problem.usage_limit)
        least = peak if least is None else min(least, peak)
    assert least is not None
    assert least_shortfall(problem)[1] <= max(0, least - problem.usage_limit)


def test_intervals_are_half_open_and_empty_ones_use_nothing() -> None:
    judged = evaluate(problem_of(document()), [0, 0, 0])
    assert judged.times.tolist() == [0, 1, 2, 3]
    assert judged.usage.tolist() == [4, 7, 3, 0]
    assert (judged.cost, judged.peak, judged.moment, judged.feasible) == (1 + 2 + 3 + 0 + 2, 7, 1, True)


def test_a_shortfall_has_its_moment() -> None:
    judged = evaluate(problem_of(document()), [0, 1, 0])
    assert (judged.moment, judged.peak, judged.shortfall, judged.feasible) == (1, 9, 2, False)


def test_sums_beyond_64_bits_are_right() -> None:
    given = document(nodes_costs=[[MOST, 0], [MOST, 0], [MOST]], edges_costs=[[MOST, 0, 0, 0], [MOST, 0]])
    assert evaluate(problem_of(given), [0, 0, 0]).cost == 5 * MOST


@settings(max_examples=50, deadline=None)
@given(documents())
def test_what_is_written_is_read_back(drawn: dict[str, Any]) -> None:
    problem = problem_of(drawn)
    again = read(gzip.compress(write(problem)))
    for name, value in vars(problem).items():
        assert np.array_equal(value, getattr(again, name)), name
    assert json.loads(write(problem)) == drawn


def test_a_solution_is_read_back_and_checked() -> None:
    problem = problem_of(document())
    x = np.array([1, 0, 0])
    assert read_solution(write_solution(x), problem).tolist() == [1, 0, 0]
    for text, field in (("[1, 0]", "$"), ("[1, 2, 0]", "$[1]"), ("[1, 0.5, 0]", "$[1]"), ("{}", "$")):
        with pytest.raises(ShardingError) as error:
            read_solution(text.encode(), problem)
        assert error.value.field == field


BAD: list[tuple[dict[str, Any], str]] = [
    ({"nodes_costs": [[1, 5], [2, 0]]}, "$.problem.nodes.usages"),
    ({"nodes_costs": [[1, 5], [2, 0], []]}, "$.problem.nodes.costs[2]"),
    ({"nodes_costs": [[1, -5], [2, 0], [3]]}, "$.problem.nodes.costs[0][1]"),
    ({"nodes_costs": [[1, 2**63], [2, 0], [3]]}, "$.problem.nodes.costs[0][1]"),
    ({"nodes_usages": [[4], [3, 5], [9]]}, "$.problem.nodes.usages[0]"),
    ({"nodes_usages": [[2**62, 1], [2**62, 5], [9]], "usage_limit": 2**62}, "$.problem.nodes.usages"),
    ({"nodes_usages": [[2**54, 1], [3, 5], [9]], "usage_limit": 2**54}, "$.problem.nodes.usages"),
    ({"nodes_intervals": [[0, 2], [1, 3]]}, "$.problem.nodes.intervals"),
    ({"nodes_intervals": [[2, 0], [1, 3], [4, 4]]}, "$.problem.nodes.intervals[0]"),
    ({"edges_nodes": [[0, 1], [1, 3]]}, "$.problem.edges.nodes[1]"),
    ({"edges_nodes": [[0, 1]]}, "$.problem.edges.costs"),
    ({"edges_costs": [[0, 7, 1], [2, 4]]}, "$.problem.edges.costs[0]"),
    ({"usage_limit": None}, "$.problem.usage_limit"),
    ({"nodes_costs": [], "nodes_usages": [], "nodes_intervals": []}, "$.problem.nodes.costs"),
]


@pytest.mark.parametrize(("changes", "field"), BAD)
def test_bad_input_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ShardingError) as error:
        problem_of(document(**changes))
    assert error.value.field == field
    assert error.value.problem and error.value.remedy


@pytest.mark.parametrize("data", [b"", b"[1", b"\x1f\x8bxx", gzip.compress(b"{}")[:-4], b"[]", b'{"problem": 3}'])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(ShardingError):
        read(data)
