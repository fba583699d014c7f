"""Each operator is predicted in its own context: phase and how much runs beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from hyperopt.cost import model as models
from hyperopt.cost.features import CONTEXT, Rows, rows_of, samples_of
from hyperopt.cost.model import LEARNED, SEEN, CostModel
from hyperopt.cost.predicted import predicted
from hyperopt.cost.work import Table
from hyperopt.profile import Operator, Profile
from tests.cost.synthetic import device, operator

TABLE = Table.load()
SLOWER = 2.0


def backwards(profile: Profile) -> Profile:
    """Half of the operators are of the backward, and take twice as long there."""
    chance = np.random.default_rng(1)
    return structs.replace(
        profile,
        operators=tuple(
            structs.replace(o, phase="backward", duration_us=o.duration_us * SLOWER) if half else o
            for o, half in zip(profile.operators, chance.random(len(profile.operators)) < 0.5, strict=True)
        ),
    )


@pytest.fixture(scope="module")
def model() -> CostModel:
    return models.fit(rows_of(backwards(device(1, 600)), TABLE))


def exp(phase: str, size: int = 300) -> Operator:
    return structs.replace(operator("Exp", [(size, 77)], [(size, 77)], 1.0), phase=phase)


def told(model: CostModel, *operators: Operator) -> list[float]:
    found = predicted(Profile(operators=operators, storages=()), model, TABLE).profile.operators
    return [o.duration_us for o in found]


def test_one_shape_in_two_phases_has_two_times_in_any_order(model: CostModel) -> None:
    (alone,), (back,) = told(model, exp("forward")), told(model, exp("backward"))
    assert back > 1.3 * alone
    assert told(model, exp("forward"), exp("backward"), exp("forward")) == [alone, back, alone]
    assert told(model, exp("backward"), exp("forward")) == [back, alone]


def test_a_remembered_time_is_carried_into_another_context_and_its_interval_holds_both(model: CostModel) -> None:
    rows = rows_of(backwards(device(1, 600)), TABLE)
    samples = samples_of(rows.only(rows.names == "Exp"))
    same = model.predict(samples.signatures, samples.context)
    turned = samples.context.copy()
    turned[:, CONTEXT.index("backward")] = 1 - turned[:, CONTEXT.index("backward")]
    other = model.predict(samples.signatures, turned)
    assert set(same.source) == set(other.source) == {SEEN}
    factor = np.where(turned[:, CONTEXT.index("backward")] > 0, SLOWER, 1 / SLOWER)
    assert np.median(np.abs(np.log(other.us / same.us / factor))) < 0.25
    assert (other.low <= same.us * 1.001).all() and (other.high >= same.us * 0.999).all()


def test_what_was_measured_in_both_phases_is_told_for_each() -> None:
    """Its median is of both; each phase has the time that it had, not the median."""
    profile = backwards(device(1, 600))
    both = tuple(
        structs.replace(exp(phase, size), duration_us=(5 + 2 * 4 * size * 77 / 20_000) * factor)
        for size in range(200, 260, 10)
        for phase, factor in (("forward", 1.0), ("backward", SLOWER))
    )
    model = models.fit(rows_of(structs.replace(profile, operators=(*profile.operators, *both)), TABLE))
    found = np.array(told(model, *both))
    off = np.abs(np.log(found / [o.duration_us for o in both]))
    assert np.median(off) < 0.25


def test_a_document_that_does_not_say_in_what_context_it_measured_carries_nothing(model: CostModel) -> None:
    rows = rows_of(backwards(device(1, 600)), TABLE)
    samples = samples_of(rows)
    backward = np.array([0.0, 1.0])

    def slower(model: CostModel) -> float:
        one, two = (
            model.predict(samples.signatures, np.tile([0.0, phase], (len(samples.us), 1))) for phase in backward
        )
        return float(np.median(two.us / one.us))

    assert slower(structs.replace(model, seen_in=None)) < 1.6 < slower(model)


def test_each_signature_is_asked_once_for_every_context() -> None:
    operators = tuple(exp(phase, size) for size in (8, 9) for phase in ("backward", "forward", "backward"))
    rows = rows_of(Profile(operators=operators, storages=()), TABLE)
    signatures, context, of = rows.asked()
    assert len(signatures.keys) == len(signatures.groups) == 4 and (context[of] == rows.context).all()
    assert [signatures.keys[i] for i in of] == [rows.signatures.keys[i] for i in rows.signature]
    alike: Rows = replace(rows, context=np.zeros_like(rows.context))
    assert alike.asked()[0] is rows.signatures


def test_copies_of_one_size_go_by_how_many_run_beside_each() -> None:
    def copy(size: int, stream: str, start: float, us: float) -> Operator:
        return operator("CopyOut", [(size,)], [(size,)], us, stream=stream, start_us=start)

    base = device(5, 60)
    copies, now = [], 1e6
    for n in range(14, 24):
        alone = 10 + 4 * (1 << n) / 10_000
        copies.append(copy(1 << n, "c0", now, alone))
        copies += [copy(1 << n, f"c{i}", now + 1e5, 4 * alone) for i in range(4)]
        now += 1e6
    model = models.fit(rows_of(structs.replace(base, operators=(*base.operators, *copies)), TABLE))
    single, crowd = copy(1 << 20, "c0", 1.0, 500.0), [copy(1 << 20, f"c{i}", 1e5, 500.0) for i in range(4)]
    first = told(model, single, *crowd)
    assert first[1] > 2 * first[0] and first[1:] == [first[1]] * 4
    assert told(model, *crowd, single) == [*first[1:], first[0]]


def test_a_prediction_carries_its_interval(model: CostModel) -> None:
    """Of 90 %, whichever quantile the duration is."""
    step = Profile(operators=(exp("forward"), operator("Riddle", [(3,)], [(3,)], 7.0)), storages=())
    likely, safe = (predicted(step, model, TABLE, level).profile.operators for level in (None, 0.95))
    assert likely[0].interval_us == safe[0].interval_us and likely[0].predicted == LEARNED
    between = likely[0].interval_us
    assert isinstance(between, tuple) and between[0] <= likely[0].duration_us <= between[1]
    assert safe[0].duration_us == pytest.approx(between[1], abs=2e-3)
    assert not likely[1].interval_us
