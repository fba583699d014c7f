"""Compiled chains and clashes of reruns against their definitions, written out."""

from __future__ import annotations

import numpy as np
import pytest

from solver.residency.candidates import Rerun, reruns
from solver.residency.chains import chains
from solver.residency.clashes import clashes
from solver.residency.draft import Table
from solver.residency.problem import Problem
from tests.solver.test_search import problem_of


def chain(problem: Problem, s: int, before: int, *, shallow: bool, longest: int) -> tuple[list[int], list[int]]:
    """Operators and held storages; none where there is no chain."""
    program, operators = problem.program, problem.profile.operators
    needed: set[int] = set()
    held: set[int] = set()
    frontier = [program.version_before(s, before)]
    while frontier:
        writer = frontier.pop()
        if writer < 0 or not operators[writer].recomputable or len(needed) >= longest:
            return [], []
        if writer in needed:
            continue
        needed.add(writer)
        for read in program.reads[writer]:
            version = program.version_before(read, writer)
            if read == s or version != program.version_before(read, before):
                return [], []
            span = problem.alive[read]
            alive = span is not None and span[0] <= before < span[1]
            if alive or (shallow and program.size[read] < program.size[s]):
                held.add(read)
            elif version >= 0 and operators[version].recomputable:
                frontier.append(version)
            else:
                held.add(read)
    return sorted(needed), sorted(held)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shallow", [False, True])
@pytest.mark.parametrize("longest", [1, 3, 64])
def test_chains_are_those_of_the_definition(seed: int, shallow: bool, longest: int) -> None:
    problem = problem_of(seed)
    wanted = [(s, k) for s in range(len(problem.program.size)) for k in range(0, problem.n, 3)]
    table = np.asarray(wanted, dtype=np.int64)
    storage, before = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])
    found = chains(problem, storage, before, shallow=shallow, longest=longest)
    some = 0
    for i, (s, k) in enumerate(wanted):
        ops, held = chain(problem, s, k, shallow=shallow, longest=longest)
        assert found.of(i) == (tuple(ops), tuple(held))
        some += len(ops) > 0
    assert some


def clash(one: Rerun, two: Rerun) -> bool:
    """Whether `one` drops what `two` holds or drops, at that moment, or the other way round."""
    for a, b in ((one, two), (two, one)):
        for s, leave in a.drops:
            if s in b.held and leave < b.before < a.before:
                return True
            if any(s == t and leave < b.before and other < a.before for t, other in b.drops):
                return True
    return False


@pytest.mark.parametrize("seed", range(8))
def test_clashes_are_those_of_the_definition(seed: int) -> None:
    problem = problem_of(seed)
    table = Table(problem, reruns(problem))
    at, other = clashes(table.parts, len(table.reruns), len(problem.program.size))
    for r, rerun in enumerate(table.reruns):
        expected = [q for q, two in enumerate(table.reruns) if q != r and clash(rerun, two)]
        assert other[at[r] : at[r + 1]].tolist() == expected
