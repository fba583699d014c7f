"""Promotion and drift, on a made-up device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hyperopt.cost import model as models
from hyperopt.cost.drift import drift_of
from hyperopt.cost.features import Rows, joined, rows_of, samples_of
from hyperopt.cost.training import train
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


def test_another_device_is_refused() -> None:
    current = models.fit(rows(1))
    with pytest.raises(ValueError, match="one model for each device"):
        train(replace(rows(2), device="other"), current)
