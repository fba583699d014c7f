"""Gradient-boosted trees: grown by scikit-learn, kept and applied as plain arrays.

A model lies in a database and is read by whoever predicts. A pickle would run whatever code it holds, and only under
the version of scikit-learn that wrote it; arrays of numbers do neither, and predicting needs nothing but NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Column = npt.NDArray[Any]

MOST_NODES = 1 << 22
"""Nodes that a stored model may have: more is no model of ours."""

BLOCK = 1 << 16
"""Rows that are sent through all trees at once: fewer take longer to call NumPy for than to compare (60,000 rows, 300
trees: 0.41 s of processor time in blocks of 8,192, 0.30 of 16,384, 0.23 of 65,536); more only take room."""

BYTES = [np.uint8(byte) for byte in range(256)]

FIRST_FREE = np.array([next((bit for bit in range(8) if not bits >> bit & 1), 8) for bits in range(256)])
"""The lowest bit that is 0, of every byte; 8: none."""


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
    """Trees ready to be applied to many rows at once, by the bits of their leaves.

    Every node whose question is answered "right" rules out the leaves below its left side; the first leaf that is left
    over is where the row ends. So a tree is a few comparisons of whole columns, in any order, and no row walks::

        a <= 3 ?  left:  b <= 2 ?  left:  leaf 0       a = 5: rules out leaves 0 and 1
                                   right: leaf 1       b = 1: rules out nothing
                  right: leaf 2                        first leaf left over: 2

    After Lucchese et al., "QuickScorer: a fast algorithm to rank documents with additive ensembles of regression trees"
    (2015), with columns in place of single rows. Raises `TreesError` where a node points out of its tree or back (that
    would never end), or two point to one.
    """

    def __init__(self, trees: Trees) -> None:
        columns = (trees.threshold, trees.left, trees.right, trees.gap_left, trees.value)
        count = len(trees.feature)
        if any(len(column) != count for column in columns) or count > MOST_NODES:
            raise TreesError("columns of nodes are not of one length")
        feature, roots = np.array(trees.feature, np.int64), np.array(trees.roots, np.int64)
        inner = np.flatnonzero(feature >= 0)
        after = np.array([trees.left, trees.right], np.int64)[:, inner]
        if (
            (feature >= trees.features).any()
            or (after <= inner).any()
            or (after >= count).any()
            or (len(roots) and not (roots.min() >= 0 and roots.max() < count))
        ):
            raise TreesError("a node points back, or out of its tree")
        if count and np.bincount(np.concatenate([after.reshape(-1), roots]), minlength=count).max() > 1:
            raise TreesError("two nodes point to one")
        self.start, self.features = trees.start, trees.features
        thresholds = np.array(trees.threshold)
        self.cuts = {int(f): np.unique(thresholds[inner][feature[inner] == f]) for f in np.unique(feature[inner])}
        place = np.zeros(count, np.int64)
        for f, cuts in self.cuts.items():
            mine = feature == f
            place[mine] = np.searchsorted(cuts, thresholds[mine])
        # A number of NumPy's for each cut: turning Python's takes as long as comparing a thousand rows.
        numbers = {f: [_narrow(cuts)(cut) for cut in range(len(cuts))] for f, cuts in self.cuts.items()}
        places = [numbers[f][cut] if f >= 0 else 0 for f, cut in zip(trees.feature, place.tolist(), strict=True)]
        self.programs = [_Program.of(root, trees, places) for root in trees.roots]

    def predict(self, rows: F64) -> F64:
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise TreesError(f"rows of {rows.shape} where (n, {self.features}) are expected")
        if not len(rows) or not self.programs:
            return np.full(len(rows), self.start)
        bins, gaps = self._bins(rows)
        chosen, of = _alike(bins, gaps)
        found = np.full(len(chosen), self.start)
        for begin in range(0, len(chosen), BLOCK):
            block = chosen[begin : begin + BLOCK]
            room = _Room(
                {f: np.ascontiguousarray(column[block]) for f, column in bins.items()},
                {f: np.ascontiguousarray(column[block]) for f, column in gaps.items()},
                max(len(program.values) for program in self.programs),
                len(block),
            )
            total = found[begin : begin + BLOCK]
            for program in self.programs:
                program.add(room, total)
        return found[of]

    def _bins(self, rows: F64) -> tuple[dict[int, Column], dict[int, Column]]:
        """For each feature that is asked for, how many cuts lie below each row's number (a row goes left at cut j where
        that is at most j), and where there is no number."""
        bins, gaps = {}, {}
        for f, cuts in self.cuts.items():
            column = np.ascontiguousarray(rows[:, f])
            bins[f] = np.searchsorted(cuts, column).astype(_narrow(cuts))
            if (gap := np.isnan(column)).any():
                gaps[f] = gap
        return bins, gaps


def _narrow(cuts: F64) -> type[np.uint8 | np.uint32]:
    """What holds the number of any cut, and one more."""
    return np.uint8 if len(cuts) < 256 else np.uint32


class _Room:
    """A block of rows, and room to work on them."""

    def __init__(self, bins: dict[int, Column], gaps: dict[int, Column], planes: int, count: int) -> None:
        self.bins, self.gaps = bins, gaps
        self.ruled_out = np.zeros((planes, count), np.uint8)
        self.right = np.zeros(count, bool)
        self.bits = np.zeros(count, np.uint8)


class _Program(NamedTuple):
    """One tree. `questions`: (feature, cut, whether rows without a number go left, what "right" rules out as
    (plane, bits)); plane p has leaves 8p to 8p + 7. `values`: (planes, 256): value of the first leaf that a plane's
    bits leave over."""

    questions: list[tuple[int, Any, bool, list[tuple[int, np.uint8]]]]
    values: F64

    @classmethod
    def of(cls, root: int, trees: Trees, place: list[Any]) -> _Program:
        begin: dict[int, int] = {}
        leaves: list[float] = []
        inner: list[int] = []
        waiting = [root]
        while waiting:
            node = waiting.pop()
            begin[node] = len(leaves)
            if trees.feature[node] < 0:
                leaves.append(trees.value[node])
                continue
            inner.append(node)
            waiting += (trees.right[node], trees.left[node])
        questions = [
            (trees.feature[node], place[node], trees.gap_left[node], _bits(begin[node], begin[trees.right[node]]))
            for node in inner
        ]
        padded = np.zeros((len(leaves) + 7) // 8 * 8)
        padded[: len(leaves)] = leaves
        return cls(questions, np.where(FIRST_FREE < 8, padded.reshape(-1, 8)[:, np.minimum(FIRST_FREE, 7)], 0.0))

    def add(self, room: _Room, total: F64) -> None:
        """Adds the tree's value to every row of the block."""
        planes = room.ruled_out[: len(self.values)]
        planes[:] = 0
        right, bits = room.right, room.bits
        for feature, cut, gap_left, ruled_out in self.questions:
            np.greater(room.bins[feature], cut, out=right)
            if gap_left and feature in room.gaps:
                right[room.gaps[feature]] = False
            for plane, clear in ruled_out:
                np.multiply(right.view(np.uint8), clear, out=bits)
                np.bitwise_or(planes[plane], bits, out=planes[plane])
        value = self.values[0].take(planes[0], mode="clip")  # any byte is a place: nothing to check
        full = np.flatnonzero(planes[0] == 255)
        for values, plane in zip(self.values[1:], planes[1:], strict=True):
            theirs = plane[full]
            value[full] = values[theirs]
            full = full[theirs == 255]
        total += value


def _bits(begin: int, end: int) -> list[tuple[int, np.uint8]]:
    """Leaves begin to end - 1 as (plane, bits)."""
    bits = (1 << end) - (1 << begin)
    return [(plane, BYTES[bits >> 8 * plane & 255]) for plane in range(begin // 8, (end + 7) // 8)]


def _alike(bins: dict[int, Column], gaps: dict[int, Column]) -> tuple[Column, Column]:
    """Rows that lie between the same cuts end in the same leaves: places of one of each kind, and which kind each row
    is of. Kinds are told apart by a sum, and where two of them have the same every row is its own kind."""
    columns = [*bins.values(), *gaps.values()]
    weights = np.random.default_rng(0).integers(1, 1 << 62, len(columns), np.uint64) * np.uint64(2) + np.uint64(1)
    total = np.zeros(len(columns[0]), np.uint64)
    for column, weight in zip(columns, weights, strict=True):
        total += column.astype(np.uint64) * weight
    _, chosen, of = np.unique(total, return_index=True, return_inverse=True)
    if all(np.array_equal(column[chosen][of], column) for column in columns):
        return chosen, of
    every = np.arange(len(total))
    return every, every


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
