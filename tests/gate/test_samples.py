from __future__ import annotations

import msgspec
import pytest

from hyperopt.documents import DocumentError
from hyperopt.gate.ranks import MOST_VALUES
from hyperopt.gate.samples import Metric, Samples, load


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
