"""Acceptance cases about profiles of other tools: units, base and external memory, broken files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperopt.profile import Profile
from hyperopt.replay import replay
from profiler.read import read as read_all
from profiler.read.ascend.text import SOURCE
from profiler.read.findings import Findings, UnreadableError
from tests.conftest import ABSENT, SHARED_DATA

MIB = 2**20
QWEN = SHARED_DATA / "ascend_qwen3_pp2_dp2"
CONVNET = SHARED_DATA / "ascend_convnet"

MEMORY_COLUMNS = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),Active Duration(us),"
    "Allocation Total Allocated(MB),Allocation Total Reserved(MB),Allocation Total Active(MB),"
    "Release Total Allocated(MB),Release Total Reserved(MB),Release Total Active(MB),Stream Ptr,Device Type"
)
RECORD_COLUMNS = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Device Type"
KERNEL_COLUMNS = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim"


def read(folder: Path) -> tuple[Profile, Findings]:
    findings = Findings(folder)
    (files,) = SOURCE.find(folder)
    return SOURCE.read(files, findings), findings


def written(folder: Path, **tables: str) -> Path:
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    for name, text in tables.items():
        (output / f"{name}.csv").write_bytes(text.encode())
    return folder


def mindspore_memory(factor: float) -> str:
    rows = [
        f"{component},1764246877000{i}00.1,{allocated * factor:.3f},{reserved * factor:.3f},0.0,NPU:0"
        for i, (allocated, reserved) in enumerate(((15000.0, 16092.0), (15415.466796875, 16092.0)))
        for component in ("MindSpore", "MindSpore+GE")
    ]
    return "\n".join([RECORD_COLUMNS, *rows]) + "\n"


def mindspore_operators() -> str:
    def row(name: str, size: float, begin: str, end: str, total: float, after: float) -> str:
        totals = f"{total},16092.0,{total},{after},16092.0,{after}"
        return f"{name},{size},{begin},{end},N/A,10.0,N/A,{totals},1234567890,NPU:0"

    return "\n".join(
        [
            MEMORY_COLUMNS,
            row("RmsNorm", 2048.0, "1764246877000100.1", "1764246877000400.1", 15395.466796875, 15393.466796875),
            row("MatMulExt", 20480.0, "1764246877000200.1", "1764246877000300.1", 15415.466796875, 15395.466796875),
        ]
    )


@pytest.mark.parametrize("operators", [True, False], ids=["with allocations", "record alone"])
def test_c1_mindspore_s_megabytes_are_1000_kib(tmp_path: Path, operators: bool) -> None:
    tables = {"memory_record": mindspore_memory(1.024)}
    if operators:
        tables["operator_memory"] = mindspore_operators()
    profile, findings = read(written(tmp_path / "rank_0_ascend_ms", **tables))
    assert profile.measured is not None
    assert profile.measured.peak_bytes / MIB == pytest.approx(15415.5, abs=0.1)
    assert profile.measured.reserved_bytes / MIB == pytest.approx(16092, abs=0.01)
    assert [warning for warning in findings.warnings if "1000 KiB" in warning] and len(findings.units) == 1
    assert replay(profile).peak_bytes == profile.measured.peak_bytes
    assert profile.run.framework == "mindspore"


def test_c1_a_record_that_agrees_with_its_allocations_stays_as_it_is(tmp_path: Path) -> None:
    tables = {"memory_record": mindspore_memory(1.0), "operator_memory": mindspore_operators()}
    profile, findings = read(written(tmp_path / "rank_0_ascend_ms", **tables))
    assert profile.measured is not None and not findings.units
    assert profile.measured.peak_bytes / MIB == pytest.approx(15415.467, abs=0.001)


@pytest.mark.skipif(not QWEN.exists(), reason=ABSENT)
@pytest.mark.parametrize(
    ("rank", "peak", "base", "reserved", "computing_us"),
    [(0, 10282.749, 4304.957, 10372, 231290.1), (2, 10818.063, 4304.970, 10868, 400448.26)],
)
def test_c2_base_and_external_memory(rank: int, peak: float, base: float, reserved: float, computing_us: float) -> None:
    profile, findings = read(QWEN / f"rank_{rank}_ascend_pt")
    measured, found = profile.measured, replay(profile)
    assert measured is not None and profile.run.rank == rank and profile.run.world_size == 4
    assert measured.peak_bytes / MIB == pytest.approx(peak, abs=0.001) and found.peak_bytes == measured.peak_bytes
    assert profile.device.base_bytes / MIB == pytest.approx(base, abs=0.001)
    assert measured.reserved_bytes / MIB == reserved
    assert found.step_us == pytest.approx(measured.step_us, rel=1e-6)
    computed = sum(o.duration_us for o in profile.operators if o.stream == "compute" and o.type != "idle")
    assert computed == pytest.approx(computing_us, rel=1e-6) == findings.computing_us
    assert not findings.units and not findings.dropped and not findings.missing


@pytest.mark.skipif(not QWEN.exists(), reason=ABSENT)
def test_c2_what_is_beside_the_pool_and_what_stays() -> None:
    profile, _ = read(QWEN / "rank_0_ascend_pt")
    assert profile.measured is not None
    assert profile.measured.external_bytes / MIB == pytest.approx(1553, abs=0.1)
    assert any("HCCL 1241.7 MiB" in note for note in profile.run.notes)
    assert len([s for s in profile.storages if s.resident_at_end]) == 1
    assert any("2 micro-batches through 14 layers" in note for note in profile.run.notes)


@pytest.mark.skipif(not QWEN.exists(), reason=ABSENT)
def test_the_run_s_stages_are_told_apart_and_their_imbalance_named() -> None:
    manifest = read_all(QWEN)
    assert [(rank.rank, rank.status) for rank in manifest.ranks] == [
        (0, "accepted"),
        (1, "refused"),
        (2, "accepted"),
        (3, "refused"),
    ]
    assert any("stage 1" in warning and "1.7" in warning for warning in manifest.warnings)


@pytest.mark.skipif(not QWEN.exists(), reason=ABSENT)
def test_the_logits_set_the_peak_of_the_last_stage() -> None:
    profile, _ = read(QWEN / "rank_2_ascend_pt")
    assert any(note.startswith("the peak is at") and "4096,1,151936 FLOAT" in note for note in profile.run.notes)
    logits = max(profile.storages, key=lambda storage: storage.bytes)
    assert "4096,1,151936 FLOAT" in logits.name and logits.kind == "activation"


@pytest.mark.skipif(not CONVNET.exists(), reason=ABSENT)
@pytest.mark.parametrize(("level", "peak"), [(0, 1188.106), (2, 1261.043)])
def test_the_graph_engine_s_pool_is_part_of_the_peak(level: int, peak: float) -> None:
    profile, findings = read(CONVNET / f"text_level{level}" / "rank0_ascend_pt")
    assert profile.measured is not None
    assert replay(profile).peak_bytes == profile.measured.peak_bytes
    assert profile.measured.peak_bytes / MIB == pytest.approx(peak, abs=0.001)
    assert bool(findings.missing) == (level == 0)


def test_c16_broken_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    kernels = (
        KERNEL_COLUMNS.encode()
        + b"\r\n1,MatMul,N/A,N/A,1764246877073569.640\t,12.5,0,8\r\n"
        + b"1,Add,N/A,N/A,1764246877073590.000\t,2.0,0\n"  # a field too few
        + b"1,Mul,N/A,N/A,1764246877073600.000\t,-3.0,0,8\n"
        + b"1,Sub,N/A,N/A,soon,3.0,0,8\n"
        + b"1,Cast,N/A,N/A,1764246877073700.125,nan,0,8\n"
        + b"1,Cast,N/A,N/A,1764246877073700.125,4.0,0,8\n"
        + b"1,Last,N/A,N/A,17642468770738"  # cut short
    )
    folder = written(tmp_path / "rank_3_ascend_pt", memory_record="", step_trace_time="Step,Computing\n")
    (folder / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_bytes(kernels)
    profile, findings = read(folder)
    assert [o.name for o in profile.operators if o.type != "idle"] == ["MatMul", "Cast"]
    assert [o.start_us for o in profile.operators if o.type != "idle"] == [0.0, 130.485]
    assert any("begins at 1764246877073569640 ns" in note for note in profile.run.notes)
    told = {(drop.why.split(" ")[-1], drop.lines) for drop in findings.dropped}
    assert ("fields", (3, 8)) in told and len(findings.dropped) == 4
    assert profile.run.rank == 3


def test_c16_a_rank_of_empty_slices_is_refused_with_a_reason(tmp_path: Path) -> None:
    for name in ("op_summary_slice_0_20230919172304.csv", "operator_memory_slice_0_20230919172304.csv"):
        (tmp_path / name).touch()
    with pytest.raises(UnreadableError, match="all tables are empty"):
        read(tmp_path)
