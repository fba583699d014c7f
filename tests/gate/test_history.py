from __future__ import annotations

import numpy as np
import pytest

from hyperopt.gate.history import Change, Point, changes
from hyperopt.gate.ranks import Floats
from tests.cases.test_gate import c10


def points(values: object) -> list[Point]:
    return [Point(f"c{i}", float(value)) for i, value in enumerate(np.asarray(values))]


def noisy(seed: int, n: int, noise: float = 0.01) -> Floats:
    values: Floats = np.exp(np.random.default_rng(seed).normal(0, noise, n))
    return values


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_found_with_the_commits_around(seed: int) -> None:
    values = noisy(seed, 40)
    values[25:] *= 1.08
    (found,) = changes({"step": points(values)})
    assert abs(found.index - 25) <= 1 and (found.before, found.after) == (f"c{found.index - 1}", f"c{found.index}")
    assert found.effect_percent == pytest.approx(8, abs=1.5) and found.told.startswith("step +")


def test_a_creep_that_no_single_check_sees_is_found() -> None:
    values = noisy(0, 60)
    for at in (20, 30, 40):
        values[at:] *= 1.03
    assert sum(found.effect_percent for found in changes({"step": points(values)})) == pytest.approx(9, abs=3)


def test_better_is_told_too_and_many_series_are_corrected() -> None:
    values = noisy(3, 40)
    values[20:] *= 0.9
    (found,) = changes({"peak": points(values), **{f"m{i}": points(noisy(i, 40)) for i in range(8)}})
    assert found.series == "peak" and found.effect_percent < -8


def test_no_change_is_rarely_one() -> None:
    """C10's noise, 60 runs a history: at most a few in a hundred are told anything."""
    rng = np.random.default_rng(5)
    alarms = sum(bool(changes({"step": points(rng.choice(c10(), 60))})) for _ in range(150))
    assert alarms <= 4


def test_exact_figures_change_at_once_and_wild_ones_do_not() -> None:
    (found,) = changes({"peak": points([100] * 12 + [101] * 12)})
    assert found.index == 12 and found.effect_percent == pytest.approx(1.0)
    assert changes({"peak": points([100] * 12 + [900] + [100] * 12)}) == []


@pytest.mark.parametrize("n", [0, 1, 5, 7])
def test_few_runs_say_nothing(n: int) -> None:
    """C10: five single runs, a +10 % change among them."""
    assert changes({"step": points([1.0, 1.0, 1.1, 1.1, 1.1, 1.1, 1.1][:n])}) == []


def test_values_that_are_no_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="step"):
        changes({"step": [Point("a", 0.0)]})
    assert Change("s", 1, "a", "b", 5.0, 0.001).told == "s +5.00 % between a and b (p 0.001)"
