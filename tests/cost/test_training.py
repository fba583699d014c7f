"""Promotion and drift, on a made-up device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hyperopt.cost import model as models
from hyperopt.cost.drift import drift_of
from hyperopt.cost.features import Rows, joined, rows_of, samples_of
from hyperopt.cost.training import TooFew, train
from hyperopt.cost.work import Table
from tests.cost.synthetic import device

TABLE = Table.load()


def rows(seed: int, count: int = 200) -> Rows:
    return rows_of(device(seed, count), TABLE)


def slower(given: Rows, factor: float) -> Rows:
    return replace(given, us=given.us * factor)


def test_the_first_model_is_used_and_one_without_new_data_is_not() -> None:
    first = train(rows(1), None)
    assert first.promoted and first.drift is None
    again = train(rows(1), first.model)
    assert not again.promoted and again.why == "nothing was measured since"


def test_a_model_that_has_seen_more_takes_the_place_of_one_that_knew_little() -> None:
    little = models.fit(rows(1, 24))
    more = train(joined([rows(1, 24), rows(2, 400)]), little)
    assert more.promoted and "lower" in more.why


def test_a_model_that_is_no_better_does_not() -> None:
    """What is new is noise: the times of the new shapes follow the rule that the model in use has found."""
    good = models.fit(rows(1, 500))
    worse = train(joined([rows(1, 500), rows(2, 60)]), good)
    assert not worse.promoted and "standard error" in worse.why


def test_few_new_shapes_are_too_few_to_say() -> None:
    current = models.fit(rows(1))
    found = train(joined([rows(1), rows(2, 6)]), current)
    assert not found.promoted and "too few" in found.why


def test_drift_is_found_and_a_stable_device_has_none() -> None:
    model = models.fit(rows(1, 300))
    assert not drift_of(model, samples_of(rows(2, 300))).drifted
    moved = drift_of(model, samples_of(slower(rows(2, 300), 2.0)))
    assert moved.drifted and moved.outside > 0.5 and set(moved.families) == {"matmul", "elementwise"}
    assert not drift_of(model, samples_of(slower(rows(2, 12), 2.0))).drifted  # too few to say


def test_a_device_that_changed_gets_a_new_model() -> None:
    twice = joined([rows(1), rows(1), rows(1)])  # measured often enough for intervals of what is known
    current = models.fit(twice)
    found = train(slower(twice, 2.0), current)
    assert found.promoted and found.drift is not None and found.drift.drifted


def only(given: Rows, family: str, count: int | None = None) -> Rows:
    chosen = given.families == family
    return given.only(chosen & (np.cumsum(chosen) <= (len(chosen) if count is None else count)))


def test_a_model_of_one_family_takes_no_place_of_one_of_several() -> None:
    """However much better it is where it was measured, and however much has changed there."""
    current = models.fit(rows(1, 300))
    sums = only(slower(rows(7, 200), 3.0), "elementwise")
    new = train(sums, current)
    assert not new.promoted and "covers less" in new.why and "0 signatures of matmul" in new.why
    again = train(only(slower(joined([rows(1, 300)] * 3), 2.0), "matmul"), models.fit(joined([rows(1, 300)] * 3)))
    assert again.drift is not None and again.drift.drifted and not again.promoted and "covers less" in again.why


def test_a_handful_and_a_narrow_range_take_no_place_either() -> None:
    current = models.fit(rows(1, 300))
    assert "covers less" in train(rows(2, 60), current).why
    big = rows(2, 900)
    work = (big.signatures.flops + big.signatures.bytes)[big.signature]
    narrow = train(big.only((work > np.quantile(work, 0.5)) & (work < np.quantile(work, 0.9))), current)
    assert not narrow.promoted and ("FLOPs of" in narrow.why or "bytes of" in narrow.why)


def test_below_19_groups_of_shapes_there_is_no_model() -> None:
    with pytest.raises(TooFew, match="15 groups of shapes were measured on toy made up 1, 19 are needed"):
        train(rows(1, 15), None)
    assert train(rows(1, 24), None).promoted


def test_nothing_is_scored_on_what_it_has_learned_from() -> None:
    """One group of shapes cannot be held out of itself."""
    found = models.fit(rows(1, 1))
    assert not found.scores and not found.errors.counts.get("", 0)
    assert any("no scores" in line for line in models.told(found))


def scattered(given: Rows, seed: int, run: float, each: float) -> Rows:
    """Once more: the whole run off by `run` (logarithm), each execution by `each`."""
    chance = np.random.default_rng(seed)
    return replace(given, us=given.us * np.exp(chance.normal(0, run) + chance.normal(0, each, len(given.us))))


def test_runs_that_differ_as_a_whole_are_no_drift_and_a_change_is() -> None:
    base = replace(joined([rows(1, 200)] * 5), run=None)
    model = models.fit(joined([scattered(base, seed, 0.02, 0.03) for seed in range(4)]))
    again = [samples_of(scattered(base, 100 + seed, 0.02, 0.03)) for seed in range(20)]
    assert sum(drift_of(model, one).drifted for one in again) <= 1
    assert all(drift_of(model, replace(one, us=one.us * 1.3)).drifted for one in again)


def test_a_family_that_changed_alone_is_found() -> None:
    model = models.fit(rows(1, 600))
    samples = samples_of(rows(2, 600))
    few = np.flatnonzero(samples.signatures.families == "matmul")[30:]
    samples = samples.only(~np.isin(np.arange(len(samples.us)), few))
    mine = samples.signatures.families == "matmul"
    assert not drift_of(model, samples).drifted
    found = drift_of(model, replace(samples, us=np.where(mine, 2 * samples.us, samples.us)))
    assert found.drifted and found.changed == ("matmul",) and found.outside < 0.3
    assert "of matmul" in found.told()


def test_another_device_is_refused() -> None:
    current = models.fit(rows(1))
    with pytest.raises(ValueError, match="one model for each device"):
        train(replace(rows(2), device="other"), current)
