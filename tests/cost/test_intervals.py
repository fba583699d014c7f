"""Intervals from held-out errors: they hold what they promise, and say nothing where there is too little."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hyperopt.cost.intervals import F64, KEPT, POOL, collect


def gathered(counts: dict[str, int], seed: int = 1) -> tuple[F64, npt.NDArray[np.str_]]:
    chance = np.random.default_rng(seed)
    classes = np.concatenate([np.full(n, name) for name, n in counts.items()])
    widths = {name: 0.1 * (i + 1) for i, name in enumerate(counts)}
    return np.array([chance.normal(0, widths[name]) for name in classes]), classes


def test_each_class_has_its_own_interval_which_covers() -> None:
    errors, classes = gathered({"a": 300, "b": 300})
    found = collect(errors, classes, np.arange(600).astype(str))
    new, of = gathered({"a": 4000, "b": 4000}, seed=2)
    for name in ("a", "b"):
        low, high = found.quantile(name, 0.05), found.quantile(name, 0.95)
        assert low is not None and high is not None
        covered = np.mean((low <= new[of == name]) & (new[of == name] <= high))
        assert 0.85 <= covered <= 0.95
    wide, narrow = (found.quantile(name, 0.95) for name in ("b", "a"))
    assert wide is not None and narrow is not None and wide > 1.5 * narrow


def test_too_few_groups_go_by_all_classes_and_then_by_none() -> None:
    errors, classes = gathered({"a": 100, "b": 18})
    found = collect(errors, classes, np.arange(118).astype(str))
    assert found.class_used("b", 0.95) == POOL and found.class_used("a", 0.95) == "a"
    assert found.quantile("b", 0.95) == found.quantile(POOL, 0.95)
    alone = collect(errors[-18:], classes[-18:], np.arange(18).astype(str))
    assert alone.quantile("b", 0.95) is None and alone.quantile("b", 0.9) is not None


def test_a_wider_level_never_has_a_narrower_interval() -> None:
    """Even where a class, narrow or wide, has to give way to all classes."""
    errors, classes = gathered({"narrow": 30, "middle": 200, "wide": 40, "few": 5})
    found = collect(errors, classes, np.arange(len(errors)).astype(str))
    levels = np.linspace(0.5, 0.995, 100)
    for name in ("narrow", "wide", "few", "unknown"):
        highs = [q for level in levels if (q := found.quantile(name, level)) is not None]
        lows = [q for level in levels if (q := found.quantile(name, 1 - level)) is not None]
        assert len(highs) == len(lows) == 100
        assert (np.diff(highs) >= 0).all() and (np.diff(lows) <= 0).all()


def test_what_was_held_out_together_counts_once() -> None:
    errors, classes = gathered({"a": 100})
    together = collect(errors, classes, np.repeat(np.arange(5), 20).astype(str))
    assert together.counts["a"] == 5 and together.quantile("a", 0.95) is None


def test_errors_are_thinned_without_losing_their_ends() -> None:
    errors, classes = gathered({"a": 5000})
    found = collect(errors, classes, np.arange(5000).astype(str))
    kept = found.by_class["a"]
    assert len(kept) == KEPT
    assert kept[0] == pytest.approx(errors.min(), abs=1e-6) and kept[-1] == pytest.approx(errors.max(), abs=1e-6)
