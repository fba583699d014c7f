"""Trees as plain arrays: what scikit-learn grew, and nothing that does harm."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from hyperopt.cost.trees import F64, Forest, Trees, TreesError, grow


def grown(seed: int = 1, **options: Any) -> tuple[F64, F64, Trees]:
    chance = np.random.default_rng(seed)
    rows = chance.uniform(-3, 3, (400, 3))
    rows[::17, 1] = np.nan
    target = np.sin(rows[:, 0]) + np.nan_to_num(rows[:, 1]) * 0.5
    return rows, target, grow(rows, target, max_iter=40, **options)


def test_arrays_say_what_scikit_learn_says() -> None:
    """`grow` compares both and raises where they differ; here that it fits, and that a trip through JSON keeps it."""
    rows, target, trees = grown()
    assert np.abs(trees.predict(rows) - target).mean() < 0.2
    again = msgspec.json.decode(msgspec.json.encode(trees), type=Trees)
    assert np.array_equal(again.predict(rows), trees.predict(rows))


def walked(trees: Trees, row: F64) -> float:
    """What a row comes to that goes from node to node."""
    total = trees.start
    for node in trees.roots:
        while (feature := trees.feature[node]) >= 0:
            number = row[feature]
            left = trees.gap_left[node] if np.isnan(number) else number <= trees.threshold[node]
            node = trees.left[node] if left else trees.right[node]
        total += trees.value[node]
    return total


@pytest.mark.parametrize("leaves", [2, 8, 9, 70])
def test_ruling_leaves_out_ends_where_walking_does(leaves: int) -> None:
    rows, _, trees = grown(2, max_leaf_nodes=leaves, min_samples_leaf=2)
    again = np.concatenate([rows, rows[::3], np.sort(rows, axis=0)])
    assert np.allclose(trees.predict(again), [walked(trees, row) for row in again], rtol=1e-12, atol=1e-12)


def test_nodes_may_stand_in_any_order_that_goes_on() -> None:
    """The right side before the left one, as scikit-learn does not write them."""
    trees = Trees(
        start=0.5, roots=(0,), feature=(0, -1, 1, -1, -1), threshold=(1.0, 0.0, 2.0, 0.0, 0.0), left=(2, 0, 4, 0, 0),
        right=(1, 0, 3, 0, 0), gap_left=(True,) * 5, value=(0.0, 10.0, 0.0, 20.0, 30.0), features=2,
    )  # fmt: skip
    rows = np.array([[0.0, 0.0], [0.0, 3.0], [2.0, 0.0], [np.nan, 2.0]])
    assert trees.predict(rows).tolist() == [30.5, 20.5, 10.5, 30.5]


def test_a_rising_feature_never_lowers_the_prediction() -> None:
    _, _, trees = grown(rising=(0,))
    line = np.zeros((200, 3))
    line[:, 0] = np.linspace(-3, 3, 200)
    assert (np.diff(trees.predict(line)) >= -1e-12).all()


def test_without_trees_the_start_is_the_prediction() -> None:
    empty = Trees(
        start=1.5, roots=(), feature=(), threshold=(), left=(), right=(), gap_left=(), value=(), features=2
    )
    assert empty.predict(np.zeros((3, 2))).tolist() == [1.5] * 3


@pytest.mark.parametrize(
    "change",
    [
        {"left": lambda t: (0, *t.left[1:])},  # back to itself: would never end
        {"right": lambda t: (len(t.right), *t.right[1:])},
        {"feature": lambda t: (99, *t.feature[1:])},
        {"roots": lambda t: (-1, *t.roots[1:])},
        {"value": lambda t: t.value[1:]},
        {"left": lambda t: (t.right[0], *t.left[1:])},  # both sides of a node are one
    ],
)
def test_arrays_that_are_no_trees_are_refused(change: dict[str, Any]) -> None:
    trees = grown()[2]
    with pytest.raises(TreesError):
        Forest(msgspec.structs.replace(trees, **{name: make(trees) for name, make in change.items()}))


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(TreesError, match="expected"):
        grown()[2].predict(np.zeros((2, 4)))
