"""Columns say what the formulas say, one signature at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperopt.cost import shapes, signatures
from hyperopt.cost.columns import FORMULAS
from hyperopt.cost.work import Kind, Table, Uncounted, tensors_of
from hyperopt.profile import Operator

TABLE = Table.load()


def reference(
    operators: list[Operator],
) -> tuple[list[str], list[tuple[Kind, tuple[int, ...], list[float]]], list[str]]:
    """Keys, work and numbers of what can be counted, and reasons of what cannot."""
    keys, found, reasons = [], [], []
    for o in operators:
        try:
            kind, work = TABLE.of(o)
            inputs, outputs = tensors_of(o)
            numbers = shapes.numbers_of(work, inputs, outputs)
        except Uncounted as why:
            reasons.append(f"{o.type}: {why}")
            continue
        if kind.family == signatures.NO_WORK:
            continue
        sides = " -> ".join(" ".join(f"{t.dtype}{list(t.shape)}" for t in side) for side in (inputs, outputs))
        keys.append(f"{o.type} {sides}")
        found.append((kind, tuple(work), numbers))
    return keys, found, reasons


def compare(operators: list[Operator]) -> None:
    unique = list({(o.type, o.shapes, o.dtypes, o.inputs): o for o in operators}.values())
    keys, found, reasons = reference(unique)
    signed = signatures.signed(operators, TABLE)
    mine = signed.signatures
    assert list(mine.keys) == keys
    assert sorted(signed.uncounted) == sorted(set(reasons))
    assert mine.names.tolist() == [kind.name for kind, _, _ in found]
    assert mine.families.tolist() == [kind.family for kind, _, _ in found]
    work = np.array([work for _, work, _ in found], float).reshape(len(found), 3)
    # To the last bit: trees are cut between such.
    assert np.array_equal(np.column_stack([mine.flops, mine.read, mine.written]), work)
    expected = np.array([numbers for _, _, numbers in found]).reshape(len(found), len(shapes.NUMBERS))
    assert np.array_equal(mine.numbers, expected)


sizes = st.sampled_from([0, 1, 1, 2, 3, 4, 8, 16, 16, 60, 1 << 20])
BY_FORMULA = {kind.formula: spelling for spelling, kind in TABLE.kinds.items()}
TYPES = sorted({*BY_FORMULA.values(), "matmul", "matmulext", "batchmatmul", "add", "riddle", "adamweightdecay"})


@st.composite
def of_one_form(draw: st.DrawFn) -> list[Operator]:
    """Operators that differ in sizes alone, enough of them to be reckoned as columns."""
    type = draw(st.sampled_from(TYPES))
    ranks = draw(st.lists(st.integers(0, 4), min_size=0, max_size=5))
    dtypes = tuple(draw(st.sampled_from(["float32", "bfloat16", "int64", "bool", "riddle"])) for _ in ranks)
    if draw(st.booleans()):
        dtypes = ("float32",) * len(ranks)
    inputs = draw(st.one_of(st.none(), st.integers(0, len(ranks)), st.just(max(len(ranks) - 1, 0))))
    found = []
    for _ in range(draw(st.integers(1, 14))):
        shapes = tuple(tuple(draw(sizes) for _ in range(rank)) for rank in ranks)
        found.append(Operator(type=type, duration_us=1.0, shapes=shapes, dtypes=dtypes, inputs=inputs))
    return found


@given(st.lists(of_one_form(), min_size=1, max_size=3))
def test_columns_say_what_single_signatures_say(parts: list[list[Operator]]) -> None:
    compare([operator for part in parts for operator in part])


@st.composite
def products(draw: st.DrawFn) -> Operator:
    m, n, k = (draw(st.sampled_from([1, 2, 5, 16])) for _ in range(3))
    stacked = tuple(draw(st.sampled_from([1, 3, 4])) for _ in range(draw(st.integers(0, 2))))
    a = (*stacked, m, k) if draw(st.booleans()) else (*stacked, k, m)
    own = tuple(1 if draw(st.booleans()) else size for size in stacked)
    b = (*own, k, n) if draw(st.booleans()) else (*own, n, k)
    wrong = draw(st.integers(0, 9)) == 0
    return Operator(
        type="MatMulExt", duration_us=1.0, shapes=(a, b, (*stacked, m + wrong, n)), dtypes=("float32",) * 3, inputs=2
    )


@given(st.lists(products(), min_size=8, max_size=40))
def test_products_with_their_matrices_turned_stacked_or_wrong(operators: list[Operator]) -> None:
    compare(operators)


def test_what_is_too_large_for_columns_is_worked_out_one_by_one() -> None:
    huge = [
        Operator(
            type="MatMul",
            duration_us=1.0,
            shapes=((n, 1 << 40), (1 << 40, n), (n, n)),
            dtypes=("float32",) * 3,
            inputs=2,
        )
        for n in range(1 << 15, (1 << 15) + 20)
    ]
    compare(huge)


def test_groups_are_the_shapes_alone() -> None:
    one = Operator(type="Add", duration_us=1.0, shapes=((8, 4), (1,), (8, 4)), dtypes=("float32",) * 3, inputs=2)
    other = Operator(type="Exp", duration_us=1.0, shapes=((8, 4), (8, 4)), dtypes=("float32",) * 2, inputs=1)
    groups = signatures.signed([one, other], TABLE).signatures.groups
    assert list(groups) == ["[8, 4]", "[8, 4]"] and list(groups[1:]) == ["[8, 4]"] and len(groups) == 2


@pytest.mark.parametrize("formula", sorted(FORMULAS))
def test_every_column_form_is_of_a_formula_that_the_table_uses(formula: str) -> None:
    assert formula in {kind.formula for kind in TABLE.kinds.values()}
