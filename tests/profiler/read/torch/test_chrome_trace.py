"""Chrome traces: every digit of a time, lanes of devices, launches, memory, and files that are broken or enormous."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperopt.profile import COMPUTE
from hyperopt.replay import replay
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles
from profiler.read.timeline.events import Events
from profiler.read.torch.chrome_trace import SOURCE, events_of
from profiler.read.torch.trace_spans import nanoseconds
from tests.conftest import ABSENT, SHARED_DATA

SAMPLES = SHARED_DATA / "ascend_convnet"
BASE = 1_700_000_000_000_000_000


def span(name: str, ts: object, dur: object, cat: str | None = None, **more: Any) -> dict[str, Any]:
    pid, tid = more.pop("pid", 1), more.pop("tid", 1)
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "cat": cat, "args": more}


def memory(ts: float, addr: int, size: int, total: int, kind: int = 1) -> dict[str, Any]:
    args = {"Addr": addr, "Bytes": size, "Total Allocated": total, "Total Reserved": 9000, "Device Type": kind}
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": {**args, "Device Id": 0}}


def kernel(number: int, ts: float, dur: float, **more: Any) -> list[dict[str, Any]]:
    """An operator of the host at ts, what it launches, and the kernel 50 us later."""
    return [
        span("aten::mm", ts, 8.25, "cpu_op", **{"External id": number, "Input Dims": [[4, 8], [8, 2], []]}),
        span("cudaLaunchKernel", ts + 5, 2, "cuda_runtime", correlation=number),
        span(
            "gemm",
            ts + 50,
            dur,
            "kernel",
            pid=0,
            tid=7,
            correlation=number,
            device=0,
            **{"External id": number},
            **more,
        ),
    ]


def kineto(events: Iterable[object], **more: object) -> dict[str, object]:
    head = {"schemaVersion": 1, "deviceProperties": [{"name": "X100"}], "baseTimeNanoseconds": BASE}
    return {**head, "displayTimeUnit": "ms", "traceEvents": list(events), "traceName": "t", **more}


def lane(pid: int, process: str, **threads: str) -> list[dict[str, Any]]:
    named = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}]
    return named + [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": int(tid[1:]), "args": {"name": name}}
        for tid, name in threads.items()
    ]


def written(folder: Path, given: object, name: str = "trace.json") -> Path:
    path = folder / name
    text = given if isinstance(given, bytes) else json.dumps(given).encode()
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    return path


def read(folder: Path, given: object, name: str = "trace.json") -> tuple[Events, Findings]:
    findings = Findings(folder)
    return events_of(RankFiles(written(folder, given, name)), findings), findings


@given(st.integers(0, 4 * 10**15), st.integers(0, 999))
def test_nanoseconds_lose_no_digit(whole: int, part: int) -> None:
    assert nanoseconds(f"{whole}.{part:03d}") == whole * 1000 + part
    assert nanoseconds(f" -{whole}.{part:03d}0000 ") == -(whole * 1000 + part)
    assert nanoseconds(whole) == whole * 1000


@given(st.decimals(-(10**6), 10**6, places=6), st.sampled_from([1, 1000, 1_000_000]))
def test_nanoseconds_round(value: Decimal, unit: int) -> None:
    found = nanoseconds(str(value), unit)
    assert found is not None and abs(found - value * unit) <= Decimal("0.5")


@pytest.mark.parametrize("value", [None, True, "", "NaN", "Infinity", "1e400", "1" * 40, 10**30, [], "1; DROP TABLE x"])
def test_what_is_no_time_is_none(value: object) -> None:
    assert nanoseconds(value) is None


def test_kernels_with_launch_shapes_stream_and_epoch(tmp_path: Path) -> None:
    copy = span("Memcpy HtoD", 1010.125, 3, "gpu_memcpy", pid=0, tid=20, device=0)
    events, findings = read(tmp_path, kineto([*kernel(1, 1000.5, 9), copy, *kernel(2, 1100.5, 30)]))
    rows = events.kernels.rows(named=True)
    assert [(r["name"], r["stream"], r["type"]) for r in rows] == [
        ("Memcpy HtoD", "stream 20", "gpu_memcpy"),
        ("gemm", COMPUTE, "aten::mm"),
        ("gemm", COMPUTE, "aten::mm"),
    ]
    assert [r["start"] - BASE for r in rows] == [1_010_125, 1_050_500, 1_150_500]
    assert [r["launched"] and r["launched"] - BASE for r in rows] == [None, 1_005_500, 1_105_500]
    assert rows[1]["inputs"] == "4,8;8,2;" and rows[1]["duration"] == 9000
    assert events.origin.device == "X100" and "memory: the trace has no memory events" in findings.missing


def test_old_traces_have_whole_microseconds_since_the_epoch(tmp_path: Path) -> None:
    old = {"traceEvents": [span("gemm", 1764246877073569, 10, "kernel", pid=0, tid=7)]}
    assert read(tmp_path, old)[0].kernels["start"].to_list() == [1764246877073569000]


def test_the_rank_is_the_headers_or_the_files(tmp_path: Path) -> None:
    given = kineto(kernel(1, 0, 1), distributedInfo={"rank": 3, "world_size": 8})
    events, _ = read(tmp_path, given)
    assert (events.origin.rank, events.origin.world_size) == (3, 8)
    path = written(tmp_path, kineto(kernel(1, 0, 1)), "trace_rank-5.json.gz")
    assert SOURCE.find(path) == [RankFiles(path, 5)]
    assert events_of(RankFiles(path, 5), Findings(tmp_path)).origin.rank == 5
    bad = kineto(kernel(1, 0, 1), distributedInfo={"rank": -1, "world_size": "x"})
    assert read(tmp_path, bad)[0].origin.rank == 0


def test_memory_events_become_blocks_named_by_the_operator(tmp_path: Path) -> None:
    inner = span("aten::empty", 1001, 1, "cpu_op")
    taken = [memory(1001.5, 4096, 1024, 6024), memory(1020, 4096, -1024, 5000), memory(1030, 1, -600, 4400)]
    events, findings = read(
        tmp_path, kineto([*kernel(1, 1000.5, 9), inner, *taken, memory(1, 5, 10**6, 10**6, kind=0)])
    )
    assert (
        events.memory.peak_bytes == 6024 and events.memory.base_bytes == 4400 and events.memory.reserved_bytes == 9000
    )
    rows = events.blocks.sort("bytes").rows(named=True)
    assert [(r["bytes"], r["name"]) for r in rows] == [(600, "allocated before the record began"), (1024, "aten::mm")]
    assert rows[0]["allocated"] is None and rows[1]["allocated"] == BASE + 1_001_500
    assert any("5,000 bytes were in use before the first" in warning for warning in findings.warnings)


def test_totals_that_disagree_are_told(tmp_path: Path) -> None:
    taken = [memory(1, 1, 100, 100), memory(2, 2, 100, 777)]
    _, findings = read(tmp_path, kineto([*kernel(1, 0, 1), *taken]))
    assert "memory events replay to 200 bytes where the trace says 777" in findings.warnings


def test_steps_are_the_devices_time_of_what_was_launched_in_a_mark(tmp_path: Path) -> None:
    events = [event for step in range(3) for event in kernel(step, 100 * step + 1, 9)]
    marks = [span(f"ProfilerStep#{step}", 100 * step, 100, "user_annotation") for step in range(4)]
    found, findings = read(tmp_path, kineto([*events, *marks]))
    assert [(s.number, s.start - BASE, s.us) for s in found.steps] == [
        (0, 51_000, 100),
        (1, 151_000, 100),
        (2, 251_000, 9),
    ]
    assert found.kernels["step"].to_list() == [0, 1, 2]
    assert any("1 marked steps have no kernels" in warning for warning in findings.warnings)


def test_of_several_devices_the_busiest_is_read_and_told(tmp_path: Path) -> None:
    events = [
        span("a", 0, 5, "kernel", pid=0, tid=7, device=0),
        span("b", 0, 50, "kernel", pid=1, tid=7, device=1),
    ]
    found, findings = read(tmp_path, kineto(events))
    assert found.kernels["name"].to_list() == ["b"]
    assert any("kernels of 1 further devices" in warning for warning in findings.warnings)


def test_collectives_are_on_their_own_stream(tmp_path: Path) -> None:
    events = [
        span("ncclDevKernel_AllReduce", 0, 500, "kernel", pid=0, tid=8),
        span("gemm", 0, 5, "kernel", pid=0, tid=7),
    ]
    assert read(tmp_path, kineto(events))[0].kernels["stream"].to_list() == ["communication", COMPUTE]


ASCEND = [
    *lane(1, "Python"),
    *lane(2, "Ascend Hardware", t2="Stream 2", t4="Stream 4"),
    *lane(3, "HCCL", t0="Group 0 Communication", t1="Plane 0"),
    *lane(4, "Overlap Analysis", t0="Computing"),
]


def ascend() -> list[dict[str, Any]]:
    """As trace_view.json has it: text for times, names of lanes behind, arrows from the framework and the runtime."""

    def arrow(ph: str, category: str, id: str, ts: str, pid: int, tid: int) -> dict[str, Any]:
        return {"ph": ph, "name": "x", "cat": category, "id": id, "ts": ts, "pid": pid, "tid": tid}

    start = "1736412474701224.784"
    return [
        span("ProfilerStep#50", "1736412474701000.000", 900.5, "cpu_op"),
        span("MatMul1", start, 55.1610625, pid=2, tid=2, **{"Task Type": "AI_CORE"}),
        span("EVENT_WAIT", "1736412474701300.000", 10, pid=2, tid=2, **{"Task Type": "EVENT_WAIT_SQE"}),
        span("copy", "1736412474701310.000", 10, pid=2, tid=2, **{"Task Type": "PCIE_DMA_SQE"}),
        span("Notify", "1736412474701320.000", 10, pid=2, tid=4, **{"Task Type": "Notify Wait"}),
        span("hcom_allReduce__271_0_1", "1736412474701400.000", 100, pid=3, tid=0),
        span("Reduce_Inline", "1736412474701401.000", 1, pid=3, tid=1),
        span("Computing", start, 55.161, pid=4, tid=0),
        arrow("s", "async_npu", "7", "1736412474701100.001", 1, 1),
        arrow("f", "async_npu", "7", start, 2, 2),
        arrow("s", "HostToDevice", "9", "1736412474701150.001", 5, 1),
        arrow("f", "HostToDevice", "9", start, 2, 2),
        arrow("f", "HostToDevice", "10", start, 2, 2),
        *ASCEND,
    ]


def test_ascend_lanes(tmp_path: Path) -> None:
    events, findings = read(tmp_path, ascend())
    rows = events.kernels.rows(named=True)
    assert [(r["name"], r["stream"]) for r in rows] == [
        ("MatMul1", COMPUTE),
        ("hcom_allReduce__271_0_1", "communication"),
    ]
    assert rows[0]["start"] == 1736412474701224784 and rows[0]["duration"] == 55161
    assert rows[0]["launched"] == 1736412474701100001
    assert rows[0]["step"] == 50 and not findings.dropped


def test_on_the_host_alone_outermost_operators_are_kernels(tmp_path: Path) -> None:
    events = [
        span("aten::linear", 0, 10, "cpu_op"),
        span("aten::mm", 1, 8, "cpu_op"),
        span("aten::add", 10, 5, "cpu_op"),
    ]
    found, findings = read(tmp_path, kineto(events))
    assert found.kernels["name"].to_list() == ["aten::linear", "aten::add"]
    assert found.kernels["launched"].to_list() == found.kernels["start"].to_list()
    assert any("no spans of a device" in warning for warning in findings.warnings)


def test_any_other_trace_is_its_outermost_spans(tmp_path: Path) -> None:
    halves = [
        {"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "B", "name": "in it", "pid": 1, "tid": 1, "ts": 1.5},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 2},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 7.25},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 8},
        {"ph": "B", "name": "open", "pid": 1, "tid": 1, "ts": 9},
    ]
    found, findings = read(tmp_path, halves)
    assert found.kernels.select("name", "start", "duration").rows() == [("a", 0, 7250)]
    assert {drop.why: drop.rows for drop in findings.dropped} == {
        "ends of spans without a begin": 1,
        "spans without an end": 1,
    }


def test_timeline_display_is_in_milliseconds(tmp_path: Path) -> None:
    found, findings = read(tmp_path, [span("MatMul-op1", 1.5, 0.25)], "timeline_display_0.json")
    assert found.kernels.select("start", "duration").rows() == [(1_500_000, 250_000)]
    assert findings.units == ["timeline_display_0.json: times of timeline_display files are milliseconds"]


def test_what_is_no_event_is_dropped_and_named(tmp_path: Path) -> None:
    bad = [
        7,
        None,
        {"name": "no phase"},
        span("a", None, 1, "kernel"),
        span("b", 1, float("nan"), "kernel"),
        span("c", 1, -3, "kernel"),
        {"ph": "i", "name": "[memory]", "ts": 1, "args": {"Bytes": "x"}},
        {"ph": "s", "cat": "async_npu", "id": 3, "ts": "later"},
        span("'; DROP TABLE kernels;--\x1b[2J" + "x" * 10**6, 5, 1, "kernel", pid={"a": []}, tid=[1]),
    ]
    found, findings = read(tmp_path, kineto(bad))
    (name,) = found.kernels["name"].to_list()
    assert name.startswith("'; DROP TABLE kernels;-- [2Jxxx") and len(name) == 200
    assert {drop.why: drop.rows for drop in findings.dropped} == {
        "elements that are no events": 2,
        "events without a phase": 1,
        "spans without a time or duration": 2,
        "spans of a negative duration": 1,
        "memory events without a time or figures": 1,
        "arrows without a time": 1,
    }


@pytest.mark.parametrize("cut", [1, 30, 200])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_c16_a_file_cut_short_is_read_up_to_there(tmp_path: Path, cut: int, name: str) -> None:
    text = json.dumps([*(event for i in range(50) for event in kernel(i, 100 * i, 9))]).encode()
    found, findings = read(tmp_path, text[:-cut], name)
    assert 48 <= found.kernels.height <= 50
    assert any(
        "ends in the middle" in warning and "elements before are read" in warning for warning in findings.warnings
    )


def test_c16_an_archive_cut_short_is_read_up_to_there(tmp_path: Path) -> None:
    text = gzip.compress(json.dumps([event for i in range(5000) for event in kernel(i, 100 * i, 9)]).encode())
    (tmp_path / "trace.json.gz").write_bytes(text[: len(text) // 2])
    findings = Findings(tmp_path)
    found = events_of(RankFiles(tmp_path / "trace.json.gz"), findings)
    assert 1000 < found.kernels.height < 5000 and findings.warnings


def test_what_is_no_trace_is_not_taken(tmp_path: Path) -> None:
    for name, content in {"a.json": {"nodes": []}, "b.json": [1, 2], "c.json": b"", "d.json.gz": b"\x1f\x8bxx"}.items():
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        assert SOURCE.find(path) == []
    assert SOURCE.find(tmp_path) == []
    with pytest.raises(UnreadableError, match="has no spans"):
        read(tmp_path, kineto([]))


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
json_values = st.recursive(
    values, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=4), v, max_size=4)
)


event_like = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XBEMisfC"),
        "name": st.sampled_from(["gemm", "[memory]", "ProfilerStep#1", "process_name"]),
    },
    optional={
        "ts": st.integers(0, 1000) | st.floats() | st.sampled_from(["5.125", "x"]),
        "dur": st.integers(-2, 50) | st.floats(),
        "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "async_npu", "", "user_annotation"]) | values,
        "pid": st.integers(0, 2) | values,
        "tid": st.integers(0, 2) | values,
        "id": st.integers(0, 3),
        "args": st.dictionaries(
            st.sampled_from(
                [
                    "correlation",
                    "External id",
                    "Addr",
                    "Bytes",
                    "Device Type",
                    "Total Allocated",
                    "name",
                    "Input Dims",
                    "device",
                ]
            ),
            st.integers(-3, 50) | st.sampled_from(["Ascend Hardware", "HCCL"]) | json_values,
        ),
    },
)


@given(st.lists(event_like | json_values, min_size=1, max_size=25))
def test_any_trace_gives_a_profile_that_replays_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any]
) -> None:
    path = written(tmp_path_factory.mktemp("t"), kineto(events))
    try:
        profile = SOURCE.read(RankFiles(path), Findings(path.parent))
    except UnreadableError:
        return
    assert profile.measured is not None
    assert replay(profile).step_us == pytest.approx(profile.measured.step_us, rel=0.01, abs=0.1)


@pytest.mark.skipif(not SAMPLES.exists(), reason=ABSENT)
@pytest.mark.parametrize(("level", "step_us"), [("text_level0", 116251.183), ("text_level2", 129862.874)])
def test_a_real_trace_has_the_kernels_of_kernel_details(level: str, step_us: float) -> None:
    folder = SAMPLES / level / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    findings = Findings(folder)
    (files,) = SOURCE.find(folder / "trace_view.json")
    events = events_of(files, findings)
    listed = pl.read_csv(folder / "kernel_details.csv", infer_schema=False)
    starts = [nanoseconds(start.strip()) or 0 for start in listed["Start Time(us)"]]
    # The two files round the starts of collectives differently.
    off = [abs(a - b) for a, b in zip(sorted(events.kernels["start"]), sorted(starts), strict=True)]
    assert max(off) <= 1 and sum(off) <= events.kernels.filter(pl.col("stream") == "communication").height
    assert sorted(events.kernels["name"]) == sorted(name.strip() for name in listed["Name"])
    assert [step.us for step in events.steps] == [step_us] and events.steps[0].number == 50
    assert events.kernels["launched"].null_count() == 0 and not findings.dropped
    assert replay(SOURCE.read(files, findings)).step_us == step_us


def test_kernels_of_a_step_may_run_after_the_next_has_begun(tmp_path: Path) -> None:
    """Found by fuzzing: a step that ended where the next began was shorter than its own kernels."""
    late = [
        span("late", 170, 20, "kernel", pid=0, tid=7, correlation=9),
        span("call", 20, 1, "cuda_runtime", correlation=9),
    ]
    marks = [span(f"ProfilerStep#{step}", 100 * step, 100, "user_annotation") for step in range(2)]
    found, _ = read(tmp_path, kineto([*kernel(1, 1, 9), *kernel(2, 101, 9), *late, *marks]))
    assert [(step.start - BASE, step.us) for step in found.steps] == [(51_000, 139), (151_000, 9)]


def test_a_category_may_be_anything(tmp_path: Path) -> None:
    """Found by fuzzing: one that is no text cannot be looked up."""
    odd = [span("x", 1, 1, cat) for cat in ({"a": 1}, ["kernel"], 7)]  # type: ignore[arg-type]
    assert read(tmp_path, kineto([*odd, *kernel(1, 1, 9)]))[0].kernels.height == 1


def test_only_so_many_steps_count(tmp_path: Path) -> None:
    marks = [span(f"ProfilerStep#{step}", step, 1, "user_annotation") for step in range(1500)]
    kernels = [span("k", step, 0.5, "kernel", pid=0, tid=7) for step in range(1500)]
    found, findings = read(tmp_path, kineto([*marks, *kernels]))
    assert len(found.steps) == 1000 and found.steps[-1].number == 1499
    assert "1500 steps are marked: the last 1000 are read" in findings.warnings
