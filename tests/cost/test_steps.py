"""Whole steps of a made-up device, whose kernels run faster inside a step and have a gap between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hyperopt.cost import model as models
from hyperopt.cost.features import Rows, rows_of
from hyperopt.cost.steps import fit_steps
from hyperopt.cost.work import Table
from tests.cost.synthetic import device

INSIDE = {"MatMul": 1.0, "Add": 0.7, "Exp": 1.3}
GAP_US, ONCE_US = 20.0, 500.0


def step(seed: int, count: int) -> tuple[Rows, float]:
    rows = rows_of(device(seed, count), Table.load())
    rows = replace(rows, us=rows.us * np.array([INSIDE[name] for name in rows.names]))
    return rows, float(rows.us.sum() + GAP_US * count + ONCE_US)


def test_a_step_is_its_kernels_as_they_run_inside_and_the_gaps_between() -> None:
    sweep = models.fit(rows_of(device(1, 150), Table.load()))
    steps = [step(seed, count) for seed, count in ((11, 20), (12, 35), (13, 50), (14, 80))]
    model = fit_steps(sweep, steps)
    assert model.share == pytest.approx(1.0, abs=0.02)
    assert model.gap_us == pytest.approx(GAP_US, rel=0.05) and model.once_us == pytest.approx(ONCE_US, rel=0.2)
    rows, us = step(15, 60)
    inside = model.kernels_us(rows)
    alone = replace(model, inside=None).kernels_us(rows)
    error = [np.mean(np.abs(np.log(kernels / rows.us))) for kernels in (inside, alone)]
    assert error[0] < 0.7 * error[1]
    assert model.us(rows) == pytest.approx(us, rel=0.15)


def test_without_a_step_there_is_nothing_to_fit_to() -> None:
    sweep = models.fit(rows_of(device(1, 30), Table.load()))
    with pytest.raises(ValueError, match="no captured step"):
        fit_steps(sweep, [])
    few = fit_steps(sweep, [step(11, 6)])
    assert few.inside is None
