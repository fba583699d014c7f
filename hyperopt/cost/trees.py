"""Gradient-boosted trees: grown by scikit-learn, kept and applied as plain arrays.

A model lies in a database and is read by whoever predicts. A pickle would run whatever code it holds, and only under
the version of scikit-learn that wrote it; arrays of numbers do neither, and predicting needs nothing but NumPy.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

MOST_NODES = 1 << 22
"""Nodes that a stored model may have: more is no model of ours."""

BLOCK = 4096
"""Rows that are sent through all trees at once: their places fit the cache."""


class TreesError(ValueError):
    """Arrays that are no trees."""


class Trees(msgspec.Struct, frozen=True, kw_only=True):
    """All trees one after the other. Node i is a leaf where `feature[i]` is -1; else rows whose feature is at most
    `threshold[i]` go on to node `left[i]`, others to `right[i]`, and rows without a number there where `gap_left[i]`
    says. `roots`: first node of each tree. A prediction is `start` plus the `value` of one leaf of every tree. `gains`:
    share of each feature in what all cuts gained (what the trees go by; correlated features share it)."""

    start: float
    roots: tuple[int, ...]
    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    gap_left: tuple[bool, ...]
    value: tuple[float, ...]
    features: int
    gains: tuple[float, ...] = ()

    def predict(self, rows: F64) -> F64:
        """One number for each row of (n, features)."""
        return Forest(self).predict(rows)


class Forest:
    """Trees ready to be applied. Raises `TreesError` where a node points out of its tree or back: that would never
    end."""

    def __init__(self, trees: Trees) -> None:
        columns = (trees.threshold, trees.left, trees.right, trees.gap_left, trees.value)
        count = len(trees.feature)
        if any(len(column) != count for column in columns) or count > MOST_NODES:
            raise TreesError("columns of nodes are not of one length")
        self.start, self.features = trees.start, trees.features
        self.roots = np.array(trees.roots, np.int32)
        self.feature = np.array(trees.feature, np.int32)
        self.threshold = np.array(trees.threshold)
        self.value = np.array(trees.value)
        self.next = np.array([trees.left, trees.right], np.int32).T.reshape(-1)
        self.gap = np.where(np.array(trees.gap_left, bool), 0, 1)
        inner = np.flatnonzero(self.feature >= 0)
        after = self.next.reshape(-1, 2)[inner]
        if (
            (self.feature >= trees.features).any()
            or (after <= inner[:, None]).any()
            or (after >= count).any()
            or (len(self.roots) and not (self.roots.min() >= 0 and self.roots.max() < count))
        ):
            raise TreesError("a node points back, or out of its tree")

    def predict(self, rows: F64) -> F64:
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise TreesError(f"rows of {rows.shape} where (n, {self.features}) are expected")
        found = np.full(len(rows), self.start)
        for begin in range(0, len(rows), BLOCK):
            found[begin : begin + BLOCK] += self._leaves(rows[begin : begin + BLOCK])
        return found

    def _leaves(self, rows: F64) -> F64:
        if not len(self.roots):
            return np.zeros(len(rows))
        flat = np.ascontiguousarray(rows).reshape(-1)
        offset = np.repeat(np.arange(len(rows)) * self.features, len(self.roots))
        place = np.tile(self.roots, len(rows))
        open_ = np.flatnonzero(self.feature[place] >= 0)
        while len(open_):
            here = place[open_]
            number = flat[offset[open_] + self.feature[here]]
            side = np.where(np.isnan(number), self.gap[here], (number > self.threshold[here]).astype(np.int64))
            place[open_] = there = self.next[2 * here + side]
            open_ = open_[self.feature[there] >= 0]
        return np.asarray(self.value[place].reshape(len(rows), -1).sum(axis=1))


def grow(rows: F64, target: F64, *, rising: tuple[int, ...] = (), seed: int = 0, **options: Any) -> Trees:
    """Trees that predict `target` from `rows` (n, features); they never fall along the features `rising`. `options`
    are those of `HistGradientBoostingRegressor`. One thread: its threads wait for each other, and a busy machine makes
    that take many times as long (measured: five folds of 157 rows in 28 s, against 2.2 s)."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    directions = np.zeros(rows.shape[1], int)
    directions[list(rising)] = 1
    model = HistGradientBoostingRegressor(random_state=seed, monotonic_cst=directions, **options)
    with threadpool_limits(1):
        model.fit(rows, target)
        expected = model.predict(rows[:64])
    trees = _plain(model, rows.shape[1])
    if not np.allclose(trees.predict(rows[:64]), expected, rtol=1e-9, atol=1e-9):
        raise TreesError("scikit-learn keeps its trees in another way than this version of hyperopt reads them")
    return trees


def _plain(model: Any, features: int) -> Trees:
    """scikit-learn has no public form of these trees; `grow` compares what comes out of this one."""
    roots: list[int] = []
    feature: list[int] = []
    columns: dict[str, list[Any]] = {"threshold": [], "left": [], "right": [], "gap_left": [], "value": []}
    gains = np.zeros(features)
    for (tree,) in model._predictors:
        inner = tree.nodes[tree.nodes["is_leaf"] == 0]
        np.add.at(gains, inner["feature_idx"], inner["gain"])
        first = len(feature)
        roots.append(first)
        for node in tree.nodes:
            leaf = bool(node["is_leaf"])
            feature.append(-1 if leaf else int(node["feature_idx"]))
            columns["threshold"].append(0.0 if leaf else float(node["num_threshold"]))
            columns["left"].append(0 if leaf else first + int(node["left"]))
            columns["right"].append(0 if leaf else first + int(node["right"]))
            columns["gap_left"].append(bool(node["missing_go_to_left"]))
            columns["value"].append(float(node["value"]))
    start = float(np.ravel(model._baseline_prediction)[0])
    plain = {name: tuple(column) for name, column in columns.items()}
    shares = tuple(round(float(g), 5) for g in gains / max(gains.sum(), 1e-12))
    return Trees(start=start, roots=tuple(roots), feature=tuple(feature), features=features, gains=shares, **plain)
