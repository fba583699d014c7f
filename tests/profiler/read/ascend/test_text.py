"""Text folders that are not as they should be: each of these was read wrongly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperopt.profile import Profile
from hyperopt.replay import replay
from profiler.read.ascend.text import SOURCE
from profiler.read.findings import Findings

MIB = 2**20
KERNELS = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim"
BLOCKS = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Allocation Total Allocated(MB),Allocation Total Reserved(MB),"
    "Release Total Allocated(MB)"
)
RECORD = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB)"
STEPS = "Step,Computing,Communication(Not Overlapped),Free"


def folder_of(place: Path, **tables: list[str]) -> Path:
    output = place / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    heads = {"kernel_details": KERNELS, "operator_memory": BLOCKS, "memory_record": RECORD, "step_trace_time": STEPS}
    for name, lines in tables.items():
        (output / f"{name}.csv").write_text("\n".join([heads[name], *lines]) + "\n")
    return place


def read(folder: Path) -> tuple[Profile, Findings]:
    findings = Findings(folder)
    (files,) = SOURCE.find(folder)
    return SOURCE.read(files, findings), findings


def kernel(step: int, start: float, duration: float = 8.0, name: str = "MatMul") -> str:
    return f"{step},{name},N/A,AI_CORE,{1000 + start:.3f},{duration},0,8"


def block(size_kb: float, had: float, gone: float, total: float, after: float) -> str:
    return f"aten::mm,{size_kb},{1000 + had:.3f},{1000 + gone:.3f},{total},2048.0,{after}"


def names(profile: Profile) -> list[str]:
    return [operator.name for operator in profile.operators if operator.type != "idle"]


def test_mindspore_s_unit_is_known_where_the_peak_is_before_the_allocations(tmp_path: Path) -> None:
    rows = [f"MindSpore,{t},{mib * 1.024:.3f},{2048 * 1.024:.3f}" for t, mib in ((900, 1900.0), (1010, 1500.0))]
    blocks = [block(1024, 5, 25, 1500.0, 1499.0)]
    tables = {"kernel_details": [kernel(1, 10), kernel(1, 20)], "operator_memory": blocks, "memory_record": rows}
    profile, findings = read(folder_of(tmp_path / "rank_0_ascend_ms", **tables))
    assert profile.measured is not None and profile.measured.peak_bytes / MIB == pytest.approx(1900, abs=0.01)
    assert profile.measured.reserved_bytes == 2048 * MIB and len(findings.units) == 1


def test_rows_that_stand_there_twice_count_once(tmp_path: Path) -> None:
    kernels, blocks = [kernel(1, 10), kernel(1, 20)], [block(1024, 5, 25, 101.0, 100.0)]
    folder = folder_of(tmp_path / "rank_0_ascend_pt", kernel_details=kernels * 2, operator_memory=blocks * 2)
    profile, findings = read(folder)
    assert len(names(profile)) == 2 and replay(profile).peak_bytes == 101 * MIB
    twice = {(drop.file, drop.rows) for drop in findings.dropped}
    assert twice == {("kernel_details.csv", 2), ("operator_memory.csv", 1)}


def test_a_path_is_no_pattern(tmp_path: Path) -> None:
    folder_of(tmp_path / "ra_ascend_pt", kernel_details=[kernel(1, 10, name="Other")])
    for name in ("r*_ascend_pt", "run[1]", "a?b", "{x}"):
        profile, _ = read(folder_of(tmp_path / name, kernel_details=[kernel(1, 10, name="Own")]))
        assert names(profile) == ["Own"]


def test_computing_time_is_that_of_the_profile_s_step(tmp_path: Path) -> None:
    kernels = [kernel(step, 1000 * step + 10 * i, 8.0 * (3 if step == 1 else 1)) for step in (1, 2, 3) for i in (1, 2)]
    trace = ["1,48,0,2000", "2,16,0,2", "3,16,0,2"]
    _, findings = read(folder_of(tmp_path / "rank_0_ascend_pt", kernel_details=kernels, step_trace_time=trace))
    assert findings.computing_us == 16


def test_another_step_s_times_are_not_this_one_s(tmp_path: Path) -> None:
    tables = {"kernel_details": [kernel(13, 10), kernel(13, 20)], "step_trace_time": ["98,1,0,1", "99,2,1,2"]}
    profile, findings = read(folder_of(tmp_path / "rank_0_ascend_pt", **tables))
    assert findings.computing_us is None and profile.measured is not None and profile.measured.step_us == 18


def test_a_warm_up_step_s_peak_is_not_the_profile_s(tmp_path: Path) -> None:
    kernels = [kernel(step, 100 * step + 10 * i) for step in (1, 2, 3) for i in (1, 2, 3)]
    sizes = {1: 9.0, 2: 2.0, 3: 2.0}
    blocks = [block(1024 * size, 100 * s + 5, 100 * s + 25, 100 + size, 100.0) for s, size in sizes.items()]
    trace = ["1,24,0,60", "2,24,0,4", "3,24,0,4"]
    tables = {"kernel_details": kernels, "operator_memory": blocks, "step_trace_time": trace}
    profile, findings = read(folder_of(tmp_path / "rank_0_ascend_pt", **tables))
    assert profile.measured is not None and profile.run.step in (2, 3)
    assert profile.measured.peak_bytes == replay(profile).peak_bytes == 102 * MIB
    assert profile.device.base_bytes == 100 * MIB
    assert any("109.0 MiB is in another step" in warning for warning in findings.warnings)


@pytest.mark.parametrize("number", ["1e30", "inf", "nan", "99999999999999999999999999", "1e-400"])
@pytest.mark.parametrize("column", range(4))
def test_numbers_out_of_range_cost_their_row_at_most(tmp_path: Path, number: str, column: int) -> None:
    bad = block(1024, 6, 26, 102.0, 101.0).split(",")
    bad[1 + column] = number
    odd = kernel(1, 30).split(",")
    odd[4 + column % 2] = number
    kernels = [kernel(1, 10 + 10 * i) for i in range(12)]
    blocks = [block(1024, 5, 25, 101.0, 100.0), ",".join(bad)]
    tables = {"kernel_details": [*kernels, ",".join(odd)], "operator_memory": blocks}
    profile, _ = read(folder_of(tmp_path / "rank_0_ascend_pt", **tables))
    assert profile.measured is not None and profile.measured.step_us < 2000
    assert replay(profile).step_us == pytest.approx(profile.measured.step_us, rel=0.01)


def test_kernels_that_end_early_are_told(tmp_path: Path) -> None:
    tables = {"kernel_details": [kernel(1, 10), kernel(1, 20)], "step_trace_time": ["1,64,0,36"]}
    profile, findings = read(folder_of(tmp_path / "rank_0_ascend_pt", **tables))
    assert profile.measured is not None and profile.measured.step_us == 100
    assert any("16" in text or "0.0 of 0.1 ms" in text for text in findings.missing)


def test_steps_without_numbers_are_told(tmp_path: Path) -> None:
    kernels = [kernel(0, 10 * i).replace("0,", "N/A,", 1) for i in range(6)]
    tables = {"kernel_details": kernels, "step_trace_time": ["1,16,0,4", "2,16,0,4", "3,16,0,4"]}
    _, findings = read(folder_of(tmp_path / "rank_0_ascend_pt", **tables))
    assert any("the step trace has 3" in text for text in findings.missing)


def test_times_that_a_spreadsheet_rounded_are_told(tmp_path: Path) -> None:
    kernels = [kernel(1, 10).replace("1010.000", "1.76425E+15"), kernel(1, 20).replace("1020.000", "1.76425E+15")]
    _, findings = read(folder_of(tmp_path / "rank_0_ascend_pt", kernel_details=kernels))
    assert any("spreadsheet" in text for text in findings.missing)


def test_a_table_that_cannot_be_read_is_as_one_that_is_missing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "rank_0_ascend_pt", kernel_details=[kernel(1, 10)])
    (folder / "ASCEND_PROFILER_OUTPUT" / "operator_memory.csv").write_bytes(b"\xff\xfeN\x00a\x00\x00\x01\n")
    profile, findings = read(folder)
    assert names(profile) == ["MatMul"] and any("operator_memory.csv" in text for text in findings.missing)
