"""What followed plans teach: their copies, and how far they were off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hyperopt.cost.feedback import Copy, MeasuredPlan, copies_of, medians, plans_off, rows_of_copies
from hyperopt.cost.model import LINK
from hyperopt.cost.work import Table


def copy(size: int, issued: float | None, completed: float | None) -> dict[str, Any]:
    return {"bytes": size, "issued_us": issued, "completed_us": completed}


def test_a_copy_starts_when_it_is_issued_or_the_one_before_has_ended() -> None:
    log = {"copies_back": [copy(100, 0.0, 10.0), copy(300, 5.0, 40.0), copy(200, 60.0, 80.0)]}
    assert copies_of(log) == [Copy(100, 10.0), Copy(300, 30.0), Copy(200, 20.0)]


def test_copies_are_told_apart_by_their_ends_not_by_their_place_in_the_log() -> None:
    log = {"copies_back": [copy(300, 5.0, 40.0), copy(100, 0.0, 10.0)]}
    assert copies_of(log) == [Copy(100, 10.0), Copy(300, 30.0)]


def test_copies_that_never_ended_and_logs_that_are_none() -> None:
    assert copies_of({"copies_back": [copy(1, None, None), copy(1, 2.0, None), copy(0, 0.0, 1.0)]}) == []
    for bad in ({}, {"copies_back": [{"bytes": 1}]}, {"copies_back": [copy(1, "soon", 2.0)]}, {"copies_back": 3}):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="execution/1"):
            copies_of(bad)


def test_copies_of_one_size_count_with_their_median() -> None:
    found = medians([Copy(8, 3.0), Copy(4, 1.0), Copy(8, 9.0), Copy(8, 4.0)])
    assert found == [Copy(4, 1.0), Copy(8, 4.0)] and medians([]) == []


def test_copies_are_rows_of_a_link_that_nobody_shares() -> None:
    rows = rows_of_copies([Copy(4096, 7.0), Copy(1 << 20, 90.0), Copy(4096, 8.0)], Table.load(), "toy")
    assert set(rows.families) == {LINK} and set(rows.names) == {"CopyIn"} and rows.us.tolist() == [7.0, 90.0, 8.0]
    assert rows.signatures.written[rows.signature].tolist() == [4096, 1 << 20, 4096]
    assert not rows.context[:, 0].any() and rows.device == "toy"


def test_few_programs_give_a_median_and_say_why_there_is_no_interval() -> None:
    found = plans_off([MeasuredPlan("p", 100.0, 120.0, 50, 55), MeasuredPlan("p", 100.0, 110.0)])
    assert (found.step.plans, found.step.programs) == (2, 1) and found.step.median == pytest.approx(1.149, abs=1e-3)
    assert found.step.low is None and "1 programs are too few" in found.step.why and "19 are needed" in found.step.why
    assert (found.peak.plans, found.peak.median) == (1, 1.1)
    nothing = plans_off([])
    assert (nothing.step.plans, nothing.step.median, nothing.step.low) == (0, None, None)


def test_the_interval_holds_what_it_says() -> None:
    """Of factors drawn as those before were, nine in ten lie within, or a little more: ranks are rounded outwards."""
    chance = np.random.default_rng(0)
    inside = []
    for _ in range(400):
        factors = np.exp(chance.normal(0.1, 0.2, 40))
        found = plans_off([MeasuredPlan(str(i), 100.0, 100.0 * f) for i, f in enumerate(factors[:-1])])
        assert found.step.low is not None and found.step.high is not None and found.step.why == ""
        inside.append(found.step.low <= factors[-1] <= found.step.high)
    assert 0.87 <= float(np.mean(inside)) <= 0.97
