from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from hyperopt.documents import DocumentError
from hyperopt.gate import check_samples
from hyperopt.gate.pytest_benchmark import read


def file(
    seconds: float,
    names: tuple[str, ...] = ("test_a", "test_b"),
    data: bool = True,
    machine: Mapping[str, object] | None = None,
) -> tuple[str, bytes]:
    """As pytest-benchmark writes it, other keys left out but one."""
    stats: dict[str, object] = {"median": seconds, "mean": 99.0, "rounds": 3}
    if data:
        stats["data"] = [seconds, seconds, 50 * seconds]
    found = [{"name": name, "fullname": f"tests/t.py::{name}", "stats": stats} for name in names]
    return "run.json", msgspec.json.encode(
        {"machine_info": {"node": "x", **(machine or {})}, "benchmarks": found, "version": "5.1.0"}
    )


@pytest.mark.parametrize("data", [True, False])
def test_a_file_is_a_run_and_a_benchmark_a_metric(data: bool) -> None:
    before = [file(1.0 + i / 1000, data=data) for i in range(8)]
    after = [file(1.2 + i / 900, data=data) for i in range(8)]
    samples, warnings = read(before, after, "interleaved")
    assert [metric.name for metric in samples.metrics] == ["tests/t.py::test_a", "tests/t.py::test_b"]
    assert not warnings and check_samples(samples).verdict == "regression"
    assert check_samples(read(before, before, "interleaved")[0]).verdict == "pass"


def test_one_file_each_never_fails() -> None:
    assert check_samples(read([file(1.0)], [file(9.0)], "separate")[0]).verdict == "inconclusive"


def test_what_is_not_in_every_file_is_left_out_and_said() -> None:
    samples, warnings = read([file(1.0)], [file(1.0, ("test_b", "test_c"))], "separate")
    assert [metric.name for metric in samples.metrics] == ["tests/t.py::test_b"]
    assert len(warnings) == 2 and all("left out" in warning for warning in warnings)
    with pytest.raises(DocumentError, match="no benchmark"):
        read([file(1.0, ("test_a",))], [file(1.0, ("test_c",))], "separate")


def test_a_benchmark_that_vanishes_is_no_pass() -> None:
    before = [file(1.0 + i / 1000, ("test_a", "test_b")) for i in range(8)]
    after = [file(1.0 + i / 1000, ("test_b", "test_new")) for i in range(8)]
    samples, _ = read(before, after, "interleaved")
    assert samples.lacking == ("tests/t.py::test_a",) and samples.added == ("tests/t.py::test_new",)
    found = check_samples(samples)
    assert found.verdict == "inconclusive" and "tests/t.py::test_a" in found.reasons[0]
    # In one file of eight it is gone as well.
    samples, _ = read(before, [*before[:7], after[7]], "interleaved")
    assert samples.lacking == ("tests/t.py::test_a",)


CPU: dict[str, object] = {
    "arch": "X86_64",
    "brand_raw": "A CPU",
    "count": 2,
    "hz_actual_friendly": "2.5 GHz",
    "flags": ["sse"],
}
MACHINE = {"system": "Linux", "machine": "x86_64", "python_implementation": "CPython", "python_version": "3.11.7"}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"machine": "aarch64"}, "different machine: baseline 'x86_64', candidate 'aarch64'"),
        ({"cpu": CPU | {"brand_raw": "Another"}}, "different CPU: baseline 'A CPU', candidate 'Another'"),
        ({"cpu": CPU | {"count": 64}}, "different number of CPUs"),
        ({"cpu": {}}, "candidate none given"),
        ({"python_implementation": "PyPy"}, "different Python: baseline 'CPython 3.11', candidate 'PyPy 3.11'"),
        ({"node": "runner-7", "release": "6.9", "cpu": CPU | {"hz_actual_friendly": "3.1 GHz"}}, ""),
        ({"python_version": "3.11.9"}, ""),
    ],
)
def test_other_machines_are_never_compared(other: dict[str, object], told: str) -> None:
    given: dict[str, object] = {**MACHINE, "cpu": CPU}
    before = [file(1.0 + i / 1000, machine=given) for i in range(8)]
    after = [file(1.5 + i / 1000, machine=given | other) for i in range(8)]
    found = check_samples(read(before, after, "separate")[0])
    assert found.verdict == ("inconclusive" if told else "regression")
    assert told in found.reasons[0]
    # One run of another machine among a side's is as much of an obstacle.
    assert bool(read(before, [*before[:7], after[7]], "separate")[0].obstacles) == bool(told)


@pytest.mark.parametrize("data", [b"{}", b"no", b'{"benchmarks": [{"name": "a"}]}'])
def test_other_files_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(DocumentError, match="--benchmark-json") as refused:
        read([("wrong.json", data)], [file(1.0)], "separate")
    assert refused.value.field == "wrong.json"
