"""Acceptance case C10: the noisy gate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm

from hyperopt.gate import Metric, Samples, check_samples
from hyperopt.gate.samples import Design

Floats = NDArray[np.float64]


def c10() -> Floats:
    """530 values with the figures of C10: a shifted log-normal through median, mean and 95th percentile, and the
    highest. Only the four figures are known of the report's samples; this is the simplest skewed distribution that has
    them."""
    sigma, scale = 0.42507, 0.26264
    at = (np.arange(530) + 0.5) / 530
    values: Floats = 5.809 - scale + scale * np.exp(sigma * norm.ppf(at))
    values[-1] = 7.723
    return values


def pairs(rng: np.random.Generator, n: int, slower: float, steps: int = 1) -> Samples:
    """n pairs of runs of so many steps, drawn from the samples, the candidate slower by a factor."""
    drawn = rng.choice(c10(), (2, n, steps))
    sides = [tuple(tuple(map(float, run)) for run in side) for side in (drawn[0], slower * drawn[1])]
    metric = Metric(name="step", unit="ms", baseline=sides[0], candidate=sides[1])
    return Samples(design="interleaved", warmup_steps=0, metrics=(metric,))


def rate(n: int, slower: float, trials: int, steps: int = 1) -> float:
    rng = np.random.default_rng(10)
    return float(np.mean([check_samples(pairs(rng, n, slower, steps)).verdict == "regression" for _ in range(trials)]))


def test_the_samples_have_the_figures_of_the_case() -> None:
    values = c10()
    seen = (values.mean(), np.median(values), np.quantile(values, 0.95), values.max())
    assert [round(figure, 3) for figure in map(float, seen)] == [5.836, 5.809, 6.073, 7.723]


def test_c10a_no_change_is_no_alarm_and_at_the_tolerance_at_most_one_in_a_hundred() -> None:
    trials = 1500
    most = binom.ppf(0.999, trials, 0.01) / trials
    assert rate(10, 1.0, trials) == 0.0
    assert rate(10, 1.05, trials) <= most


def test_c10a_ten_percent_are_found_with_ten_pairs() -> None:
    assert rate(10, 1.10, 400) >= 0.90  # single steps as pairs
    assert rate(10, 1.10, 200, steps=5) >= 0.995  # runs of five steps


def test_c10a_five_single_runs_are_inconclusive() -> None:
    designs: tuple[Design, ...] = ("separate", "interleaved")
    rng = np.random.default_rng(1)
    for slower in (1.0, 1.1, 1.3, 3.0):
        drawn = rng.choice(c10(), (2, 5))
        for design in designs:
            sides = [tuple((float(value),) for value in side) for side in (drawn[0], slower * drawn[1])]
            metric = Metric(name="step", baseline=sides[0], candidate=sides[1])
            five = Samples(design=design, warmup_steps=0, metrics=(metric,))
            assert check_samples(five).verdict == "inconclusive"


def test_c10b_the_first_step_is_warm_up_and_a_wild_one_a_rank() -> None:
    wild = (2041.2, 56.0, 53.1, 55.0, 53.9, 96.4)
    calm = (2000.0, 56.0, 53.1, 55.0, 53.9, 54.2)
    once = Metric(name="communication", unit="ms", baseline=(calm,), candidate=(wild,))
    samples = Samples(design="separate", metrics=(once,))
    assert samples.values(once) == ([54.2], [55.0])
    assert check_samples(samples).verdict == "inconclusive"  # one run: no regression, and no proof of none
    rng = np.random.default_rng(0)
    runs = [tuple(value * f for value in calm) for f in np.exp(rng.normal(0, 0.005, 10))]
    last = (*runs[:-1], wild)  # one run of ten has the wild step
    ten = Metric(name="communication", unit="ms", baseline=tuple(runs), candidate=last)
    assert check_samples(Samples(design="interleaved", metrics=(ten,))).verdict == "pass"


def test_c10c_an_injected_slowdown_of_15_percent_fails() -> None:
    assert rate(10, 1.15, 300, steps=5) == 1.0
    assert rate(10, 1.15, 300) >= 0.97  # single steps as pairs
    assert math.isclose(rate(10, 1.0, 300), 0.0)
