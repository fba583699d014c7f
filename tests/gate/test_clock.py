"""The tick is found in readings of a clock, however they are told, and not in readings of none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hyperopt.gate.clock import tick
from hyperopt.gate.ranks import Floats
from hyperopt.gate.throughput import judge_samples
from tests.gate.test_throughput import metric, samples

SIXTIETH = 1 / 60


def ticked(rng: np.random.Generator, n: int, base: float, noise: float = 0.3) -> tuple[Floats, Floats]:
    """Ticks that went by in runs of `base` ticks, and of 5 % more."""
    before, after = (np.floor(mean + rng.normal(0, noise, n)) for mean in (base, 1.05 * base))
    return before, after


@pytest.mark.parametrize("decimals", [4, 6, 9])
@pytest.mark.parametrize("base", [20.0, 20.9])
def test_a_tick_survives_printing(decimals: int, base: float) -> None:
    for seed in range(20):
        before, after = ticked(np.random.default_rng(seed), 20, base)
        told = [np.round(side * SIXTIETH, decimals).tolist() for side in (before, after)]
        assert tick(*told) == pytest.approx(SIXTIETH, rel=0.01)


@pytest.mark.parametrize("jitter", [1e-4, 1e-3, 5e-3])
def test_a_tick_survives_a_jitter(jitter: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        before, after = ticked(rng, 20, 20.9, 0.6)
        told = [(side + jitter * rng.random(20)).tolist() for side in (before, after)]
        assert tick(*told) == pytest.approx(1.0, rel=0.01)


def heavy(rng: np.random.Generator, n: int) -> Floats:
    return np.asarray(rng.standard_t(2, n), np.float64)


def modes(rng: np.random.Generator, n: int) -> Floats:
    return np.asarray(rng.normal(size=n) + 6 * (rng.random(n) < 0.3), np.float64)


def normal(rng: np.random.Generator, n: int) -> Floats:
    return np.asarray(rng.normal(size=n), np.float64)


@pytest.mark.parametrize("shape", [normal, heavy, modes])
@pytest.mark.parametrize("n", [7, 10, 20, 45])
@pytest.mark.parametrize("noise", [1e-3, 0.01, 0.05])
def test_noise_that_is_no_clocks_has_no_tick(
    shape: Callable[[np.random.Generator, int], Floats], n: int, noise: float
) -> None:
    rng = np.random.default_rng(n)
    for slower in (1.0, 1.05, 1.2, 1.3) * 10:
        base = rng.uniform(1, 9)
        assert tick(*((base * by * np.exp(noise * shape(rng, n))).tolist() for by in (1.0, slower))) == 0.0


def test_one_wild_reading_or_a_change_between_tight_sides_is_no_tick() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        before, after = 10 * np.exp(rng.normal(0, 1e-4, (2, 10)))
        after *= rng.choice([1.0, 1.1, 1.2, 1.5])
        before[3] *= rng.uniform(1.1, 3)
        found += tick(before.tolist(), after.tolist()) > 0
    assert found <= 4  # 2 %: some wild readings do lie on a lattice with the rest
    assert tick([100.0, 100.0123456], [120.0, 120.0198765]) == 0.0


def test_two_modes_are_no_clock() -> None:
    """Every tenth step writes a log and takes half as long again."""
    rng = np.random.default_rng(1)
    steps = [10 * np.exp(rng.normal(0, 0.01, 60)) * np.where(np.arange(60) % 10 == 9, 1.5, 1.0) for _ in range(2)]
    assert tick(*(side.tolist() for side in steps)) == 0.0


@pytest.mark.parametrize("read", [np.floor, np.ceil])
@pytest.mark.parametrize("told", ["6 decimals", "jitter"])
def test_ticks_at_exactly_the_tolerance_are_neither_a_regression_nor_a_pass(
    read: Callable[[Floats], Floats], told: str
) -> None:
    rng = np.random.default_rng(5)
    # With a jitter, two levels of ticks beside each other look like two modes of a machine: docs/why/gate.md.
    for base in (20.0, 20.9) if told == "jitter" else (20.0, 20.4, 20.9):
        wrong = {"regression": 0, "pass": 0, "inconclusive": 0}
        for _ in range(60):
            before, after = (read(mean + rng.normal(0, 0.3, 20)) * SIXTIETH for mean in (base, 1.05 * base))
            if told == "jitter":
                before, after = (side + 1e-3 * SIXTIETH * rng.random(20) for side in (before, after))
            else:
                before, after = before.round(6), after.round(6)
            wrong[judge_samples(samples(metric("step", before, after)), 5.0)[0].status] += 1
        # It was 60 % and more. 6 of 60 are what 4 % bring once in a hundred times.
        assert wrong["regression"] <= 6 and wrong["pass"] <= 6
