from __future__ import annotations

import msgspec
import pytest

from hyperopt.documents import DocumentError
from hyperopt.gate.ranks import MOST_VALUES
from hyperopt.gate.samples import Metric, Samples, check, load


def document(**changed: object) -> bytes:
    metric: dict[str, object] = {"name": "step_us", "baseline": [[9, 1, 2, 3]] * 2, "candidate": [[9, 1, 5, 3]] * 2}
    plain: dict[str, object] = {"format": "hyperopt.samples/1", "design": "interleaved", "metrics": [metric]}
    for name, value in changed.items():
        (plain if name in ("design", "warmup_steps", "warmup_runs", "metrics") else metric)[name] = value
    return msgspec.json.encode(plain)


def test_a_run_counts_with_the_median_of_its_steps_after_the_warm_up() -> None:
    samples, warnings = load(document())
    assert samples.values(samples.metrics[0]) == ([2.0, 2.0], [3.0, 3.0]) and not warnings
    samples, _ = load(document(warmup_runs=1, warmup_steps=0))
    assert samples.values(samples.metrics[0]) == ([2.5], [4.0])


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"metrics": []}, "$.metrics"),
        ({"baseline": [[1.0]] * 2}, "$.metrics[0].baseline[0]"),
        ({"baseline": [[1, 2]]}, "$.metrics[0]"),
        ({"baseline": []}, "$.metrics[0].baseline"),
        ({"candidate": [[1, 2], [1, -2]]}, "$.metrics[0].candidate[1][1]"),
        ({"warmup_runs": 2}, "$.metrics[0].baseline"),
        ({"design": "by hand"}, "$.design"),
        ({"tolerance_percent": -1}, "$.metrics[0].tolerance_percent"),
    ],
)
def test_bad_samples_are_named_by_place(changed: dict[str, object], field: str) -> None:
    with pytest.raises(DocumentError) as refused:
        load(document(**changed))
    assert refused.value.field == field and refused.value.remedy


def test_the_warm_up_is_not_of_the_most_that_can_be_ranked() -> None:
    runs = [[1.0, 2.0]] * (MOST_VALUES + 1)
    load(document(baseline=runs, candidate=runs, warmup_runs=1))
    with pytest.raises(DocumentError, match="runs"):
        load(document(baseline=runs, candidate=runs))


def test_a_metric_is_there_once() -> None:
    metric = Metric(name="a", baseline=((1.0, 1.0),), candidate=((1.0, 1.0),))
    with pytest.raises(DocumentError, match="twice"):
        load(msgspec.json.encode(Samples(design="separate", metrics=(metric, metric))))


@pytest.mark.parametrize("tick", [1.0, 0.5, 15.625, 1e-3, 0.1])
def test_the_tick_is_what_all_readings_are_multiples_of(tick: float) -> None:
    def read(*counts: int) -> tuple[tuple[float, ...], ...]:
        return tuple((tick * count, tick * (count + 2)) for count in counts)

    varied = Metric(name="step", baseline=read(40, 42, 41), candidate=read(42, 44, 49))
    found = Samples(design="interleaved", warmup_steps=0, metrics=(varied,))
    assert found.tick(varied) == pytest.approx(tick)
    fine = Metric(name="step", baseline=((0.8123456789, 0.81998877),), candidate=((0.8071234321,),))
    assert found.tick(fine) == 0.0
    constant = Metric(name="step", baseline=((tick * 40,),) * 8, candidate=((tick * 42,),) * 8)
    assert found.tick(constant) == 0.0


def test_a_reading_that_is_too_large_is_called_that() -> None:
    huge = Metric(name="step", baseline=((1e308,),), candidate=((1.0,),))
    with pytest.raises(DocumentError, match="1e\\+308 is beyond 1e\\+300"):
        check(Samples(design="separate", warmup_steps=0, metrics=(huge,)))
