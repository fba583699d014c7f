"""Intervals of what was measured before: of single executions, and of medians of another run."""

from __future__ import annotations

import numpy as np
import pytest

from hyperopt.cost import model as models
from hyperopt.cost.features import Rows, joined, rows_of, samples_of
from hyperopt.cost.intervals import POOL, Errors
from hyperopt.cost.repeats import RUN_TO_RUN, Repeats, Scale, repeats_of
from hyperopt.cost.work import Table
from hyperopt.profile import Device, Operator, Profile
from tests.cost.synthetic import operator

TABLE = Table.load()
SIGNATURES = 120


def run(seed: int, times: int, drift: float = 0.0) -> Rows:
    """Sums of many sizes, `times` executions each; short ones scatter more, and a run shifts each by `drift`."""
    chance = np.random.default_rng(seed)
    sizes = [16 * (i + 1) for i in range(SIGNATURES)]
    shift = np.exp(chance.normal(0, drift, SIGNATURES))
    operators: list[Operator] = []
    for _ in range(times):
        for i, n in enumerate(sizes):
            us = 2.0 + n * n / 4000
            off = np.exp(chance.normal(0, 0.01 + 0.3 / us))
            operators.append(operator("Add", [(n, n), (n, n)], [(n, n)], float(us * shift[i] * off)))
    return rows_of(Profile(operators=tuple(operators), storages=(), device=Device(name="toy")), TABLE)


def covered(known: Rows, new: Rows, single: bool) -> float:
    model = models.fit(known)
    samples = samples_of(new)
    found = model.predict(samples.signatures, samples.context, 0.9, None if single else samples.times)
    assert set(found.source) == {models.SEEN}
    low, high, us = found.low, found.high, samples.us
    if single:
        low, high, us = low[new.signature], high[new.signature], new.us
    return float(((low <= us) & (us <= high)).mean())


@pytest.mark.parametrize("single", [False, True])
def test_another_run_lies_within_nine_times_of_ten(single: bool) -> None:
    """Where runs differ by what is assumed of one run."""
    assert 0.82 <= covered(run(1, 20, RUN_TO_RUN / 2), run(2, 20, RUN_TO_RUN / 2), single) <= 0.99


def test_a_median_of_many_is_nearer_than_a_single_execution() -> None:
    model = models.fit(run(1, 20))
    samples = samples_of(run(2, 20))
    one = model.predict(samples.signatures, samples.context, 0.9)
    many = model.predict(samples.signatures, samples.context, 0.9, samples.times)
    assert np.median(np.log(many.high / many.low)) < 0.8 * np.median(np.log(one.high / one.low))
    assert np.allclose(one.us, many.us)


def test_what_changes_from_run_to_run_is_learned_from_several_runs() -> None:
    several = joined([run(seed, 8, drift=0.1) for seed in (1, 2, 3)])
    found = repeats_of(several, samples_of(several))
    assert found is not None and found.runs == 3 and 0.03 < found.drift < 0.3
    assert 0.82 <= covered(several, run(9, 20, drift=0.1), single=False) <= 0.98


def test_short_kernels_scatter_more_and_their_intervals_are_wider() -> None:
    rows = run(1, 20)
    samples = samples_of(rows)
    found = repeats_of(rows, samples)
    assert isinstance(found, Repeats) and found.runs == 1
    ends = found.factors(samples.us, samples.times.astype(float), samples.spread, np.ones(SIGNATURES), 0.9)
    assert ends is not None
    width = ends[1] - ends[0]
    assert width[:20].mean() > 2 * width[-20:].mean()


def of_a_clock(short_us: float) -> Repeats:
    """Errors of up to 4 scales both ways."""
    errors = Errors(by_class={POOL: tuple(np.linspace(-4, 4, 101).tolist())}, counts={POOL: 101})
    return Repeats(relative=0.05, short_us=short_us, drift=0.1, runs=1, single=errors, medians=errors)


@pytest.mark.parametrize("us", [0.001, 0.1, 0.5])
def test_what_the_clock_is_off_is_added_to_a_short_kernel_and_is_no_factor_on_it(us: float) -> None:
    """A kernel of 0.1 us was drawn up to 10^14 us, and its interval went to a second."""
    repeats = of_a_clock(0.5)
    kernel, one = np.array([us]), np.array([1.0])
    ranks = np.linspace(0.001, 0.999, 200)[:, None]
    drawn = us * repeats.drawn(kernel, ranks)
    assert (drawn > 0).all() and (drawn < us + 7).all()
    assert drawn.max() > us + 0.5 and (np.diff(drawn[:, 0]) >= 0).all()
    low, high, _ = repeats.factors(kernel, one, np.zeros(1), one, 0.9)
    assert us + 0.5 < us * np.exp(high[0]) < us + 7 and low[0] <= 0
    assert us * np.exp(low[0]) >= 0.000999


def test_a_long_kernel_scatters_by_a_share_of_its_length() -> None:
    long = np.array([1e3, 1e6])
    high = of_a_clock(0.5).factors(long, np.full(2, 8.0), np.full(2, 0.05), np.ones(2), 0.9)[1]
    assert high[0] == pytest.approx(high[1], rel=0.01) and 0.2 < high[0] < 1


def test_errors_and_factors_are_each_others_reverse() -> None:
    chance = np.random.default_rng(0)
    us, within = np.exp(chance.uniform(-2, 12, 500)), np.exp(chance.uniform(-9, 3, 500))
    for clock in (0.0, 0.3, 1.0):
        scale = Scale.of(us, within, 0.01, np.full(500, clock))
        measured = us * np.exp(chance.normal(0, 0.5, 500))
        assert np.allclose(us * np.exp(scale.factors(us, scale.errors(us, measured))), measured, rtol=1e-6)


def test_without_repetitions_nothing_is_said_about_them() -> None:
    rows = run(1, 1)
    assert repeats_of(rows, samples_of(rows)) is None
    model = models.fit(rows)
    samples = samples_of(rows)
    found = model.predict(samples.signatures, samples.context, 0.9)
    assert (found.low <= found.us).all() and (found.us <= found.high).all()
