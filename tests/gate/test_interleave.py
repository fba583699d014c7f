from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from hyperopt.documents import DocumentError
from hyperopt.gate.interleave import interleave, turned


def prints(line: str) -> list[str]:
    return [sys.executable, "-c", f"print('noise'); print({line!r})"]


def test_runs_alternate_and_the_warm_up_does_not_count() -> None:
    said: list[str] = []
    both = prints('{"step_us": [9, 1, 2]}'), prints('{"step_us": [9, 3, 4]}')
    samples = interleave(*both, 3, warmup_steps=1, say=said.append)
    order = [line.split(", ")[1].split(":")[0][0] for line in said]
    assert "".join(order) == "bcbccbcb"  # the pair that warms up, and three that count, A B first
    (metric,) = samples.metrics
    assert samples.warmup_runs == 1 and len(metric.baseline) == 4
    assert samples.values(metric) == ([1.5] * 3, [3.5] * 3)


def test_a_metric_says_its_unit_and_direction() -> None:
    line = '{"tokens": {"values": [5], "unit": "1/s", "better": "higher"}, "loss": 2.5}'
    tokens, loss = interleave(prints(line), prints(line), 1, warmup_runs=0).metrics
    assert (tokens.unit, tokens.better, loss.baseline) == ("1/s", "higher", ((2.5,),))


def test_without_figures_the_seconds_count() -> None:
    (metric,) = interleave([sys.executable, "-c", ""], prints("done"), 1, warmup_runs=0).metrics
    assert metric.name == "wall_s" and metric.unit == "s" and metric.baseline[0][0] > 0


@pytest.mark.parametrize("warmup", [0, 1, 2, 3])
def test_pairs_that_count_are_balanced_whatever_the_warm_up(warmup: int) -> None:
    assert [turned(pair) for pair in range(8)] == [False, True, True, False] * 2
    said: list[str] = []
    interleave(prints("1"), prints("2"), 4, warmup_runs=warmup, say=said.append)
    counted = [line.split(", ")[1][0] for line in said[2 * warmup :]]
    assert "".join(counted) == "bccbcbbc"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ('{"t": {"values": [0.2], "unit": "s"}}', "'s' .*before it in 'ms'"),
        ('{"t": [200]}', "no unit .*before it in 'ms'"),
        ('{"t": {"values": [200], "unit": "ms", "better": "higher"}}', "higher is better"),
        ('{"t": {"values": [200], "unit": "ms", "beter": "higher"}}', "unknown field `beter`"),
        ('{"t": {"values": [200], "unit": "ms", "better": "bigger"}}', "bigger"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_units_and_directions_are_never_mixed(other: str, told: str, first: bool) -> None:
    one, two = prints('{"t": {"values": [100], "unit": "ms"}}'), prints(other)
    if first:
        one, two = two, one
        told = told if "before" not in told else "before it in"
    with pytest.raises(DocumentError, match=told):
        interleave(one, two, 1, warmup_runs=0)


def test_what_a_late_command_has_started_is_ended_with_it(tmp_path: Path) -> None:
    """Else it would go on beside the next run."""
    mark = tmp_path / "mark"
    child = f"sleep 4; touch {mark}"
    with pytest.raises(DocumentError, match="not finished after 1 s"):
        interleave(["sh", "-c", f"({child}) & wait"], prints("1"), 1, warmup_runs=0, timeout_s=1.0)
    time.sleep(4)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('out of luck')"], "exit code 1: out of luck"),
        (["./there-is-no-such-command"], "cannot be started"),
        (prints('{"step": "slow"}'), "its last line"),
        (prints('{"other": 1}'), "measured other"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "not finished after 2 s"),
    ],
)
def test_what_fails_is_named_by_side(command: list[str], told: str) -> None:
    with pytest.raises(DocumentError, match=told) as refused:
        interleave(prints('{"step": 1}'), command, 1, warmup_runs=0, timeout_s=2.0 if "60" in command[-1] else None)
    assert refused.value.field == "--candidate"
