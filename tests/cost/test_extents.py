"""How dimensions go together, by type and lengths alone."""

from __future__ import annotations

from hyperopt.cost.extents import between, readings


def pairs(
    name: str, family: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]]
) -> list[set[tuple[int, int]]]:
    found = readings(name, family, tuple(inputs), tuple(outputs))
    return [{(min(p), max(p)) for p in reading.same} for reading in found]


def test_a_product_has_one_reading_where_lengths_differ() -> None:
    assert pairs("MatMul", "matmul", [(8, 3), (3, 5)], [(8, 5)]) == [{(0, 4), (3, 5), (1, 2)}]
    assert pairs("MatMul", "matmul", [(3, 8), (5, 3)], [(8, 5)]) == [{(1, 4), (2, 5), (0, 3)}]


def test_square_operands_have_several_readings_and_are_not_taken_for_elementwise() -> None:
    assert len(pairs("MatMul", "matmul", [(4, 4), (4, 4)], [(4, 4)])) == 4
    assert len(pairs("Transpose", "move", [(4, 4)], [(4, 4)])) == 2


def test_matrices_of_a_batch_go_together_from_the_end() -> None:
    assert pairs("BatchMatMul", "batch_matmul", [(7, 2, 8, 3), (2, 3, 5)], [(7, 2, 8, 5)]) == [
        {(0, 7), (1, 8), (4, 8), (2, 9), (6, 10), (3, 5)}
    ]


def test_broadcasting_aligns_at_the_last_and_row_sums_at_the_first() -> None:
    assert pairs("Add", "elementwise", [(6, 4), (4,)], [(6, 4)]) == [{(0, 3), (1, 4), (2, 4)}]
    assert pairs("RmsNorm", "norm", [(6, 4), (4,)], [(6, 4), (6,)]) == [{(0, 3), (1, 4), (2, 4), (3, 5)}]
    assert pairs("Div", "elementwise", [(6, 4), (6, 1)], [(6, 4)]) == [{(0, 4), (1, 5), (2, 4)}]


def test_a_reduction_keeps_what_is_left_in_order() -> None:
    assert pairs("ReduceSum", "reduction", [(6, 4)], [(6, 1)]) == [{(0, 2)}]
    assert pairs("ReduceSum", "reduction", [(6, 4)], [(4,)]) == [{(1, 2)}]
    assert len(pairs("ReduceSum", "reduction", [(6, 6)], [(6,)])) == 2
    assert pairs("ReduceSum", "reduction", [(6, 4)], [()]) == [set()]


def test_lookups_and_their_gradients() -> None:
    assert pairs("Gather", "gather", [(50, 4), (6,)], [(6, 4)]) == [{(2, 3), (1, 4)}]
    assert pairs("EmbeddingGrad", "gather", [(6, 4), (6,)], [(50, 4)]) == [{(0, 2), (1, 4)}]


def test_a_block_in_two_shapes_is_balanced_in_runs() -> None:
    found = between((4096, 96), (32, 128, 4, 24))
    assert found is not None and not found.same
    assert set(found.sums) == {((0,), (2, 3)), ((1,), (4, 5))}
    assert between((4, 6), (5, 5)) is None
    ones = between((6, 4), (6, 1, 4, 1))
    assert ones is not None and {dim for left, right in ones.sums for dim in (*left, *right)} | {
        dim for pair in ones.same for dim in pair
    } == set(range(6))


def test_what_fits_nothing_has_no_reading() -> None:
    assert pairs("MatMul", "matmul", [(8, 3), (4, 5)], [(8, 5)]) == []
    assert pairs("", "", [(8, 3), (4, 5)], [(8, 5)]) == []
