"""Errors of replayed peaks: an interval from 19 programs on, and before that the word that there are too few."""

from __future__ import annotations

from msgspec import structs

from hyperopt.cost.peaks import factor_of, peak_errors
from hyperopt.profile import Measured, Profile
from hyperopt.replay import replay
from tests.cost.steps import step


def captured(batch: int, factor: float) -> Profile:
    """A step whose measured peak, weights left out of the record, is `factor` times the replayed one."""
    profile = step(batch, 70)
    weights = sum(s.bytes for s in profile.storages if s.kind == "parameter")
    peak = round(replay(profile).peak_bytes * factor) - weights
    return structs.replace(profile, measured=Measured(peak_bytes=peak, excludes=("parameter",)))


def test_what_the_record_leaves_out_is_added_before_peaks_are_compared() -> None:
    found = factor_of(captured(16, 1.04))
    assert found is not None and abs(found[0] - 1.04) < 1e-4 and found[1] == 0
    assert factor_of(step(16, 70)) is None


def test_few_programs_give_no_interval_and_say_so() -> None:
    (found,) = peak_errors([captured(16, 1.0), captured(16, 1.02), captured(32, 1.05)]).values()
    assert len(found.factors) == 2 and abs(found.factors[0] - 1.01) < 1e-4 and found.interval is None
    assert "too few for an interval (19 programs are needed)" in found.told()


def test_enough_programs_give_the_empirical_interval() -> None:
    profiles = [captured(8 + 2 * i, 1 + i / 100) for i in range(20)]
    (found,) = peak_errors(profiles).values()
    assert found.interval is not None
    low, high = found.interval
    assert abs(low - 1.0) < 1e-3 and abs(high - 1.19) < 1e-3


def test_what_the_allocator_held_is_told_where_it_was_recorded() -> None:
    one = captured(16, 1.0)
    assert one.measured is not None
    held = structs.replace(one, measured=structs.replace(one.measured, reserved_bytes=one.measured.peak_bytes * 2))
    (found,) = peak_errors([held]).values()
    assert len(found.reserved) == 1 and found.reserved[0] > 1.5 and "allocators held" in found.told()


def test_ways_of_capturing_are_apart() -> None:
    other = structs.replace(captured(16, 1.0), run=structs.replace(step(16, 70).run, source="ascend"))
    assert len(peak_errors([captured(16, 1.0), other])) == 2
