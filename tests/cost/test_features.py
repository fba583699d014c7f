"""Rows of numbers from profiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import structs

from hyperopt.cost.features import (
    NOT_MEASURED,
    NUMBERS,
    PREDICTED,
    concurrency,
    device_of,
    joined,
    measured_rows,
    rows_of,
    samples_of,
)
from hyperopt.cost.work import Table
from hyperopt.profile import Operator, Profile
from tests.cost.synthetic import device, operator

TABLE = Table.load()


def test_operators_of_one_shape_share_a_signature_and_idle_time_is_none() -> None:
    add = operator("Add", [(4, 8), (4, 8)], [(4, 8)], 2.0)
    other = operator("Add", [(8, 4), (8, 4)], [(8, 4)], 3.0)
    idle = Operator(type="idle", duration_us=9.0)
    unknown = Operator(type="Riddle", duration_us=1.0, shapes=((1,),), dtypes=("float32",), inputs=1)
    profile = Profile(operators=(add, idle, other, add, unknown), storages=())
    rows = rows_of(profile, TABLE)
    assert rows.place.tolist() == [0, 2, 3] and rows.signature.tolist() == [0, 1, 0]
    assert rows.us.tolist() == [2.0, 3.0, 2.0]
    assert rows.uncounted == {"Riddle: type 'Riddle' is unknown": 1}
    assert rows.signatures.numbers.shape == (2, len(NUMBERS)) and np.isfinite(rows.signatures.numbers).all()


def test_a_product_and_its_gradients_are_of_one_group() -> None:
    forward = operator("MatMul", [(4, 5), (5, 6)], [(4, 6)], 1.0)
    left = operator("MatMul", [(4, 6), (5, 6)], [(4, 5)], 1.0)
    right = operator("MatMul", [(4, 5), (4, 6)], [(5, 6)], 1.0)
    other = operator("MatMul", [(4, 5), (5, 7)], [(4, 7)], 1.0)
    rows = rows_of(Profile(operators=(forward, left, right, other), storages=()), TABLE)
    assert len(rows.signatures.keys) == 4 and len(set(rows.signatures.groups)) == 2


def test_turned_matrices_and_spread_inputs_are_told_apart() -> None:
    at = {name: place for place, name in enumerate(NUMBERS)}
    plain = operator("MatMul", [(4, 5), (5, 6)], [(4, 6)], 1.0)
    turned = operator("MatMul", [(4, 5), (6, 5)], [(4, 6)], 1.0)
    column = operator("Add", [(4, 6), (4, 1)], [(4, 6)], 1.0)
    row = operator("Add", [(4, 6), (6,)], [(4, 6)], 1.0)
    numbers = rows_of(Profile(operators=(plain, turned, column, row), storages=()), TABLE).signatures.numbers
    assert numbers[:, at["right_turned"]].tolist() == [0, 1, 0, 0]
    assert numbers[:, at["spread_last"]].tolist() == [0, 0, 1, 0]
    assert numbers[:, at["spread_first"]].tolist() == [0, 0, 0, 1]


def test_concurrency_is_the_share_of_time_that_others_run() -> None:
    def on(stream: str, start: float, last: float) -> Operator:
        return Operator(type="Add", stream=stream, start_us=start, duration_us=last)

    operators = [on("compute", 0, 10), on("a", 5, 10), on("b", 5, 5), on("compute", 20, 10)]
    assert concurrency(operators).tolist() == [1.0, 1.0, 2.0, 0.0]
    assert concurrency([structs.replace(o, start_us=0.0) for o in operators]).tolist() == [0.0] * 4


def test_joined_rows_have_each_signature_once() -> None:
    one, two = (rows_of(device(seed, 30), TABLE) for seed in (1, 1))
    both = joined([one, two])
    assert both.signatures.keys == one.signatures.keys and len(both.us) == 2 * len(one.us)
    samples = samples_of(both)
    assert samples.times.min() == 2 and np.allclose(samples.spread, 0)
    assert np.allclose(samples.us, samples_of(one).us)


def test_durations_of_zero_are_no_samples() -> None:
    rows = rows_of(device(1, 30), TABLE)
    none = replace(rows, us=np.where(np.arange(len(rows.us)) < 10, 0.0, rows.us))
    assert len(samples_of(none).us) == len(samples_of(rows).us) - 10


def test_times_are_comparable_within_device_and_version() -> None:
    assert device_of(device(1, 3)) == "toy made up 1"


def test_what_was_not_measured_is_left_out_and_counted() -> None:
    profile = device(1, 30)
    some = tuple(structs.replace(o, predicted="learned") if i < 12 else o for i, o in enumerate(profile.operators))
    half = measured_rows(structs.replace(profile, operators=some), TABLE)
    assert half.uncounted == {PREDICTED: 12} and half.place.tolist() == list(range(12, 30))
    none = measured_rows(structs.replace(profile, run=structs.replace(profile.run, measured=False)), TABLE)
    assert none.uncounted == {NOT_MEASURED: 30} and not len(none.us)
    assert not measured_rows(profile, TABLE).uncounted
