"""What few measurements can say: effects of family and type, drawn towards each other."""

from __future__ import annotations

import msgspec
import numpy as np

from hyperopt.cost import model as models
from hyperopt.cost.analytic import fit_rooflines
from hyperopt.cost.features import Rows, Samples, rows_of, samples_of
from hyperopt.cost.gains import pooled
from hyperopt.cost.process import Process, learn
from hyperopt.cost.work import Table
from hyperopt.profile import Device, Profile
from tests.cost.synthetic import operator

TABLE = Table.load()
SLOW = {"Add": 1.0, "Exp": 2.5, "Div": 1.6, "Sqrt": 0.7, "Sub": 1.1}


def rows(seed: int, sizes: int = 12) -> Rows:
    """Five types on a few shapes; each type is slower or faster than the family by a factor of its own."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(sizes):
        n = int(8 * 2 ** chance.uniform(0, 8))
        for name, factor in SLOW.items():
            us = (3.0 + n * n / 3000) * factor * float(np.exp(chance.normal(0, 0.03)))
            found.append(operator(name, [(n, n)] * (1 if name in ("Exp", "Sqrt") else 2), [(n, n)], us))
    return rows_of(Profile(operators=tuple(found), storages=(), device=Device(name="toy")), TABLE)


def few(seed: int) -> Samples:
    return samples_of(rows(seed))


def test_types_are_told_apart_from_few_measurements() -> None:
    train, test = few(1), few(2)
    base = fit_rooflines(train.signatures, train.us)
    process = learn(train.signatures, base.us(train.signatures), train.us)
    shift, away = process.correction(test.signatures)
    inside = away == 0
    alone = np.abs(base.us(test.signatures) / test.us - 1)[inside]
    ours = np.abs(base.us(test.signatures) * np.exp(shift) / test.us - 1)[inside]
    assert np.median(ours) < 0.35 * np.median(alone)


def test_a_trip_through_json_keeps_it_and_far_outside_nothing_is_left() -> None:
    train = few(1)
    base = fit_rooflines(train.signatures, train.us).us(train.signatures)
    process = learn(train.signatures, base, train.us)
    again = msgspec.json.decode(msgspec.json.encode(process), type=Process)
    assert np.array_equal(again.correction(train.signatures)[0], process.correction(train.signatures)[0])
    large = operator("Add", [(1 << 20, 1 << 10)] * 2, [(1 << 20, 1 << 10)], 1.0)
    unknown = operator("MatMul", [(8, 8), (8, 8)], [(8, 8)], 1.0)
    asked = rows_of(Profile(operators=(large, unknown), storages=()), TABLE)
    shift, away = process.correction(asked.signatures)
    assert shift.tolist() == [0.0, 0.0] and (away > 1).all()


def test_the_model_takes_it_where_measurements_are_few() -> None:
    found = models.fit(rows(4, 14))
    assert found.process is not None and not found.learned
    assert found.scores["elementwise"].used == models.LEARNED
    assert "process" in found.scores["elementwise"].why


def test_gains_of_few_groups_go_by_those_of_others() -> None:
    """Alike: all of them are as sure as they are together. Not alike: each speaks for itself."""
    alike = pooled([(0.10, 0.04), (0.09, 0.05), (0.11, 0.09), (0.12, np.inf)], [20, 12, 4, 1])
    assert all(gain > 2 * doubt for gain, doubt in alike)
    apart = pooled([(0.50, 0.02), (-0.30, 0.02), (0.01, 0.02)], [30, 30, 30])
    assert apart[0][0] > 0.45 and apart[1][0] < -0.25 and apart[2][0] < 2 * apart[2][1]
    assert pooled([(0.1, np.inf)], [1]) == [(0.1, np.inf)]


def test_two_groups_that_agree_by_chance_are_not_sure() -> None:
    found = pooled([(0.2, 1e-6), (0.0, 0.2), (0.02, 0.2)], [2, 6, 6])
    assert found[0][0] < 2 * found[0][1]
