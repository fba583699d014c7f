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


def test_views_keep_their_readings_though_they_are_no_work() -> None:
    assert pairs("TransposeView", "none", [(8, 3)], [(3, 8)]) == [{(0, 3), (1, 2)}]
    assert pairs("ExpandView", "none", [(8, 1)], [(8, 3)]) == [{(0, 2)}]
    assert pairs("ReshapeView", "none", [(8, 3)], [(8, 1, 3)])
    assert pairs("StridedView", "none", [(8, 8)], [(8, 8)]) == []


def test_gradients_that_were_picked_lie_along_all_axes_but_one() -> None:
    assert pairs("GatherGrad", "gather", [(6, 50), (1,), (6, 2), (6, 2)], [(6, 50)]) == [
        {(0, 5), (0, 7), (1, 8), (3, 5), (4, 6)}
    ]
    assert pairs("GatherGrad", "gather", [(6, 50), (6, 2), (5, 2)], [(6, 50)]) == []


def test_a_gradient_that_goes_in_first_is_not_taken_for_queries() -> None:
    q, k = (2, 8, 128, 64), (2, 8, 256, 64)
    (found,) = pairs("DotProductAttentionGrad", "attention", [q, q, k, k], [q, k, k])
    assert {(2, 6), (6, 18), (10, 14), (10, 22), (10, 26)} <= found
    assert not {(2, 10), (6, 10)} & found


def test_queries_and_keys_that_are_rotated_come_out_as_they_went_in() -> None:
    q, k, table = (2, 5, 4, 8), (2, 5, 2, 8), (1, 5, 1, 8)
    (found,) = pairs("RotaryEmbeddingOfTwo", "elementwise", [q, k, table, table], [q, k])
    assert {(0, 4), (1, 5), (3, 7), (2, 18), (6, 22), (1, 9)} <= found and (2, 6) not in found
