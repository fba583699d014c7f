from __future__ import annotations

import numpy as np
import pytest

from hyperopt.gate import Metric, Samples, Sensitivity, check_samples
from hyperopt.gate.ranks import Floats
from hyperopt.gate.samples import Better, Design
from hyperopt.gate.throughput import judge_samples


def metric(name: str, before: Floats, after: Floats, better: Better = "lower") -> Metric:
    sides = (tuple((float(value),) for value in side) for side in (before, after))
    baseline, candidate = sides
    return Metric(name=name, unit="us", better=better, baseline=baseline, candidate=candidate)


def samples(*metrics: Metric, design: Design = "interleaved") -> Samples:
    return Samples(design=design, warmup_steps=0, metrics=metrics)


def noisy(seed: int, n: int, slower: float, noise: float = 0.01) -> Metric:
    rng = np.random.default_rng(seed)
    before, after = np.exp(rng.normal(0, noise, (2, n)))
    return metric(f"step {seed}", before, slower * after)


@pytest.mark.parametrize("seed", range(5))
def test_the_three_verdicts_of_pairs(seed: int) -> None:
    verdicts = {1.0: "pass", 0.5: "pass", 1.05: "inconclusive", 1.1: "regression", 2.0: "regression"}
    for slower, status in verdicts.items():
        (found,) = judge_samples(samples(noisy(seed, 10, slower)), 5.0)
        assert found.status == status and found.n == 10 and not found.weak
        assert found.low_percent is not None and found.high_percent is not None
        assert found.low_percent < found.effect_percent < found.high_percent
        assert found.effect_percent == pytest.approx(100 * (slower - 1), abs=2)
        assert f"{found.effect_percent:+.2f}" in found.reason and "10 pairs" in found.reason


def test_too_few_pairs_are_inconclusive_however_far_off() -> None:
    (found,) = judge_samples(samples(noisy(0, 6, 3.0)), 5.0)
    assert found.status == "inconclusive" and "fewer than 7" in found.reason and found.low_percent is None
    assert judge_samples(samples(noisy(0, 7, 3.0)), 5.0)[0].status == "regression"


def test_noise_beyond_ten_pairs_says_how_many_would_do() -> None:
    (found,) = judge_samples(samples(noisy(3, 10, 1.0, 0.05)), 5.0)
    assert found.status == "inconclusive" and found.needed is not None and found.needed > 100
    assert f"{found.needed} pairs" in found.reason
    (wild,) = judge_samples(samples(noisy(3, 10, 1.0, 3.0)), 5.0)
    assert wild.needed is None and "more than 2000 pairs" in wild.reason


def test_more_is_better_for_rates() -> None:
    rng = np.random.default_rng(0)
    before, after = np.exp(rng.normal(0, 0.005, (2, 10)))
    assert judge_samples(samples(metric("tokens", before, 0.8 * after, "higher")), 5.0)[0].status == "regression"
    (better,) = judge_samples(samples(metric("tokens", before, 1.2 * after, "higher")), 5.0)
    assert better.status == "pass" and better.effect_percent < -10


def test_a_metric_has_its_own_tolerance() -> None:
    one = noisy(1, 10, 1.1)
    wide = Metric(name="wide", tolerance_percent=20.0, baseline=one.baseline, candidate=one.candidate)
    assert [found.status for found in judge_samples(samples(one, wide), 5.0)] == ["regression", "pass"]


def test_many_metrics_must_be_surer_each() -> None:
    """Seven pairs all beyond: once in 128, enough alone, not beside another."""
    alone, other = noisy(0, 7, 1.2), noisy(1, 7, 1.0)
    assert judge_samples(samples(alone), 5.0)[0].status == "regression"
    first, second = judge_samples(samples(alone, other), 5.0)
    assert first.status == "inconclusive" and first.p == pytest.approx(2 / 128) and "2 metrics" in first.reason
    assert second.status == "pass"
    assert judge_samples(samples(noisy(0, 10, 1.2), noisy(1, 10, 1.0)), 5.0)[0].status == "regression"


@pytest.mark.parametrize("seed", range(10))
def test_verdict_and_interval_agree_with_many_metrics(seed: int) -> None:
    """A regression is a lower bound beyond the tolerance and a pass an upper one within, however many there are."""
    rng = np.random.default_rng(seed)
    for n in (7, 8, 10, 20):
        many = [noisy(100 * seed + i, n, slower) for i, slower in enumerate(rng.choice([1.0, 1.04, 1.07, 1.2], 6))]
        for found in judge_samples(samples(*many), 5.0):
            low, high = found.low_percent, found.high_percent
            assert (found.status == "regression") == (low is not None and low > 5.0)
            assert found.status == "regression" or (found.status == "pass") == (high is not None and high < 5.0)
            assert found.low_level <= found.level


def test_one_job_a_side_has_no_spread_to_tell() -> None:
    (found,) = judge_samples(samples(metric("step", np.ones(1), np.ones(1)), design="separate"), 5.0)
    assert "is not known" in found.reason and "0.00 % apart" not in found.reason


def test_separate_jobs_are_weaker_and_judged_with_the_noise_between_them() -> None:
    def jobs(seed: int, n: int, slower: float, noise: float) -> str:
        (found,) = judge_samples(samples(noisy(seed, n, slower, noise), design="separate"), 5.0)
        assert found.weak and "weaker" in found.reason and found.level == 0.0025
        return found.status

    assert jobs(0, 8, 1.0, 0.005) == "pass" and jobs(0, 8, 1.2, 0.005) == "regression"
    assert jobs(0, 5, 3.0, 0.005) == "inconclusive"  # fewer than six a side
    assert jobs(0, 8, 1.2, 0.2) == "inconclusive"
    # Within the spread between jobs of one side beyond the tolerance: not the code's alone.
    base = np.array([100.0, 104.0, 96.0, 102.0, 98.0, 101.0])
    (near,) = judge_samples(samples(metric("step", base, np.full(6, 113.5)), design="separate"), 5.0)
    assert near.status == "regression"
    (wide,) = judge_samples(samples(metric("step", base, np.full(6, 108.0)), design="separate"), 5.0)
    assert wide.status == "inconclusive"


def test_an_hour_between_the_sides_is_rarely_taken_for_the_code() -> None:
    """All jobs of a side shared an hour, which differs by as much as jobs do; the code is at the tolerance."""
    rng = np.random.default_rng(0)

    def alarms(slower: float, hour: float) -> int:
        count = 0
        for _ in range(150):
            before = np.exp(rng.normal(0, 0.02, 8))
            after = slower * np.exp(rng.normal(0, 0.02, 8) + rng.normal(0, hour))
            (found,) = judge_samples(samples(metric("step", before, after), design="separate"), 5.0)
            count += found.status == "regression"
        return count

    assert alarms(1.05, 0.0) == alarms(1.0, 0.02) == 0
    assert alarms(1.05, 0.02) <= 6
    assert alarms(1.15, 0.0) >= 140


def test_one_job_each_never_fails_however_many_steps_it_has() -> None:
    rng = np.random.default_rng(0)
    one = Metric(name="step", baseline=(tuple(rng.normal(100, 1, 500)),), candidate=(tuple(rng.normal(300, 1, 500)),))
    designs: tuple[Design, ...] = ("separate", "interleaved")
    for design in designs:
        found = check_samples(Samples(design=design, metrics=(one,)))
        assert found.verdict == "inconclusive"


def test_the_level_is_asked_for() -> None:
    strict = Sensitivity(level=0.001)
    assert judge_samples(samples(noisy(0, 8, 2.0)), 5.0, strict)[0].status == "inconclusive"
    assert judge_samples(samples(noisy(0, 10, 2.0)), 5.0, strict)[0].status == "regression"


def test_identical_values_pass() -> None:
    (found,) = judge_samples(samples(metric("step", np.full(8, 3.0), np.full(8, 3.0))), 0.0)
    assert found.status == "pass" and found.effect_percent == 0.0
    (slower,) = judge_samples(samples(metric("step", np.full(20, 3.0), np.full(20, 3.3))), 5.0)
    assert slower.status == "regression"


@pytest.mark.parametrize("n", [8, 10, 20])
@pytest.mark.parametrize("base", [100.0, 20.0, 0.04, 812.0])
def test_constant_runs_at_exactly_the_tolerance_are_inconclusive(n: int, base: float) -> None:
    for design in ("interleaved", "separate"):
        given = samples(metric("step", np.full(n, base), np.full(n, base * 1.05)), design=design)
        (found,) = judge_samples(given, 5.0)
        assert found.status == "inconclusive" and found.p == 1.0


def ticked(rng: np.random.Generator, n: int, base: float, slower: float, noise: float, round_down: bool) -> Metric:
    """Readings of a clock that ticks by 1; `base` and `noise` in ticks."""
    read = np.floor if round_down else np.round
    before, after = (read(mean + rng.normal(0, noise, n)) for mean in (base, slower * base))
    return metric("step", before, after)


@pytest.mark.parametrize("round_down", [False, True])
@pytest.mark.parametrize("base", [20.0, 20.4, 40.0, 100.0])
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_a_coarse_clock_raises_no_false_alarm_at_the_tolerance(base: float, noise: float, round_down: bool) -> None:
    rng = np.random.default_rng(int(10 * (base + noise)))
    wrong = {"regression": 0, "pass": 0}
    for n in (10, 20):
        for _ in range(100):
            found = judge_samples(samples(ticked(rng, n, base, 1.05, noise, round_down)), 5.0)[0]
            if found.status in wrong:
                wrong[found.status] += 1
    # One in a hundred of 200 is 2; 8 or more of them come by once in a thousand tests.
    assert wrong["regression"] < 8 and wrong["pass"] < 8


def test_a_coarse_clock_says_that_it_is_one_and_still_finds_what_is_beyond_its_ticks() -> None:
    rng = np.random.default_rng(0)
    (near,) = judge_samples(samples(ticked(rng, 20, 20.0, 1.08, 0.5, False)), 5.0)
    assert near.status == "inconclusive" and "finer clock" in near.reason and "ticks by 1 us" in near.reason
    assert judge_samples(samples(ticked(rng, 10, 20.0, 1.3, 0.5, False)), 5.0)[0].status == "regression"
    assert judge_samples(samples(ticked(rng, 10, 200.0, 1.09, 1.0, False)), 5.0)[0].status == "regression"
    assert judge_samples(samples(ticked(rng, 10, 200.0, 1.0, 1.0, False)), 5.0)[0].status == "pass"
    (fine,) = judge_samples(samples(noisy(0, 10, 1.0)), 5.0)
    assert "tick" not in fine.reason
