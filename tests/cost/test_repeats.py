"""Intervals of what was measured before: of single executions, and of medians of another run."""

from __future__ import annotations

import numpy as np
import pytest

from hyperopt.cost import model as models
from hyperopt.cost.features import Rows, joined, rows_of, samples_of
from hyperopt.cost.repeats import RUN_TO_RUN, Repeats, repeats_of
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


def test_without_repetitions_nothing_is_said_about_them() -> None:
    rows = run(1, 1)
    assert repeats_of(rows, samples_of(rows)) is None
    model = models.fit(rows)
    samples = samples_of(rows)
    found = model.predict(samples.signatures, samples.context, 0.9)
    assert (found.low <= found.us).all() and (found.us <= found.high).all()
