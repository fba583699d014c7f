from __future__ import annotations

import msgspec
import numpy as np
import pytest

from hyperopt.gate.history import Answer, Change, Point, changes, of_answers, of_commits
from hyperopt.gate.ranks import Floats
from tests.cases.test_gate import c10


def points(values: object) -> list[Point]:
    return [Point(f"c{i}", float(value)) for i, value in enumerate(np.asarray(values))]


def noisy(seed: int, n: int, noise: float = 0.01) -> Floats:
    values: Floats = np.exp(np.random.default_rng(seed).normal(0, noise, n))
    return values


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_found_with_the_commits_around(seed: int) -> None:
    values = noisy(seed, 40)
    values[25:] *= 1.08
    (found,) = changes({"step": points(values)})
    assert abs(found.index - 25) <= 1 and (found.before, found.after) == (f"c{found.index - 1}", f"c{found.index}")
    assert found.effect_percent == pytest.approx(8, abs=1.5) and found.told.startswith("step +")


def test_a_creep_that_no_single_check_sees_is_found() -> None:
    values = noisy(0, 60)
    for at in (20, 30, 40):
        values[at:] *= 1.03
    assert sum(found.effect_percent for found in changes({"step": points(values)})) == pytest.approx(9, abs=3)


def test_better_is_told_too_and_many_series_are_corrected() -> None:
    values = noisy(3, 40)
    values[20:] *= 0.9
    (found,) = changes({"peak": points(values), **{f"m{i}": points(noisy(i, 40)) for i in range(8)}})
    assert found.series == "peak" and found.effect_percent < -8


def test_no_change_is_rarely_one() -> None:
    """C10's noise: five in a hundred histories are told anything, as promised, and a few by the luck of the draw."""
    rng = np.random.default_rng(5)
    for n in (8, 20, 60):
        alarms = sum(bool(changes({"step": points(rng.choice(c10(), n))})) for _ in range(100))
        assert alarms <= 10  # twice in a hundred draws of 100 from 5 %


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.03])
@pytest.mark.parametrize("seed", range(4))
def test_half_more_is_found_in_five_and_five(seed: int, noise: float) -> None:
    values = noisy(seed, 10, noise)
    values[5:] *= 1.5
    (found,) = changes({"step": points(values)})
    assert (found.kind, found.index) == ("step", 5)
    assert found.effect_percent == found.drift_percent == pytest.approx(50, abs=10)


@pytest.mark.parametrize(("n", "percent"), [(10, 2.5), (12, 2.0), (20, 2.5)])
def test_a_creep_is_a_trend_with_its_whole_size(n: int, percent: float) -> None:
    values = noisy(n, n, 0.003) * (1 + percent / 100) ** np.arange(n)
    (found,) = changes({"step": points(values)})
    assert found.kind == "trend" and (found.before, found.after) == ("c0", f"c{n - 1}")
    assert found.effect_percent == pytest.approx(100 * ((1 + percent / 100) ** (n - 1) - 1), rel=0.1)
    assert found.told.startswith("step +") and " crept from c0 to " in found.told


@pytest.mark.parametrize(("n", "at"), [(2, 1), (8, 4), (12, 6), (20, 17)])
def test_what_has_no_noise_changes_where_it_changes(n: int, at: int) -> None:
    (found,) = changes({"peak": points([100] * at + [200] * (n - at))}, exact=["peak"])
    assert (found.kind, found.index, found.effect_percent, found.p) == ("exact", at, 100.0, 0.0)
    creep = changes({"peak": points([100 + i for i in range(n)])}, exact=["peak"])
    assert len(creep) == n - 1 and creep[-1].drift_percent == pytest.approx(n - 1)
    assert "exact; +" in creep[-1].told and "since the start" in creep[-1].told


def test_exact_figures_change_at_once_and_wild_ones_do_not() -> None:
    (found,) = changes({"peak": points([100] * 12 + [101] * 12)})
    assert found.index == 12 and found.effect_percent == pytest.approx(1.0)
    assert changes({"peak": points([100] * 12 + [900] + [100] * 12)}) == []


@pytest.mark.parametrize("n", [0, 1, 5, 7])
def test_few_runs_say_nothing(n: int) -> None:
    """C10: five single runs, a +10 % change among them."""
    assert changes({"step": points([1.0, 1.0, 1.1, 1.1, 1.1, 1.1, 1.1][:n])}) == []


def test_values_that_are_no_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="step"):
        changes({"step": [Point("a", 0.0)]})
    assert Change("s", 1, "a", "b", 5.0, 0.001).told == (
        "s +5.00 % between a and b (p 0.001; +0.00 % since the start)"
    )


def test_answers_of_one_commit_are_one_point() -> None:
    """At the first one's place, with the newest values; a profile's own step time only where no samples were taken."""

    def told(peak: int, step: float = 12.0, **metrics: float) -> Answer:
        found = [{"name": name, "candidate": value} for name, value in metrics.items()]
        memory = {"status": "pass", "candidate_peak_bytes": peak}
        tree = {"verdict": "pass", "memory": memory, "throughput": {"candidate_us": step}, "metrics": found}
        return msgspec.convert(tree, Answer)

    first = [("a", told(1, step_us=10.0)), ("b", told(2, 20.0))]
    series = of_commits([*first, ("a", told(3, 11.0)), ("b", told(2, 21.0))])
    assert series["replayed peak"] == [Point("a", 3), Point("b", 2)]
    assert series["step_us"] == [Point("a", 10.0), Point("b", 21.0)]
    assert of_answers(first) == of_commits(first) and len(of_answers(first * 2)["step_us"]) == 4
