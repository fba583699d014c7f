"""MindSpore's CPU profiler, with the saved graph and without: the measured peak to the byte, and broken files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperopt.profile import Profile
from hyperopt.replay import replay
from profiler.peaks import excluded_bytes
from profiler.read.findings import Findings, UnreadableError
from profiler.read.mindspore.cpu import SOURCE, blocks_of, steps_of
from profiler.read.mindspore.cpu_profiler import Execution, MemoryRecord
from tests.profiler.actor_text import two_layers

MS = 1_000_000
HEADER = "Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)\n"


def write(
    folder: Path, executions: Mapping[str, Sequence[tuple[int, float]]], record: Sequence[tuple[int, int]] | None
) -> Path:
    """`executions`: start (ns) and duration (ms) by operator; `record`: time (ns) and bytes."""
    framework = folder / "FRAMEWORK"
    framework.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{name};HostCpuOps;" + " ".join(f"{start},{duration},0" for start, duration in runs)
        for name, runs in executions.items()
    ]
    (framework / "cpu_op_execute_timestamp_2.txt").write_text("\n".join(lines) + "\n")
    if record is not None:
        rows = "".join(f"{time},{used},1073741824,{used}\n" for time, used in record)
        (framework / "cpu_ms_memory_record_2.txt").write_text(HEADER + rows)
    return folder


def read(path: Path) -> tuple[Profile, Findings]:
    (files,) = SOURCE.find(path)
    findings = Findings(path)
    return SOURCE.read(files, findings), findings


def meets_measured(profile: Profile) -> bool:
    timeline, measured = replay(profile), profile.measured
    assert measured is not None
    same_time = timeline.step_us == pytest.approx(measured.step_us, rel=0.01)
    return same_time and timeline.peak_bytes == measured.peak_bytes + excluded_bytes(profile)


def two_steps() -> tuple[dict[str, list[tuple[int, float]]], list[tuple[int, int]]]:
    """MatMul, Relu, MatMul of another name, twice; the first makes 64 bytes that the last one uses, Relu 16."""
    executions: dict[str, list[tuple[int, float]]] = {"A/MatMul-op0": [], "A/ReLU-op1": [], "A/MatMul-op2": []}
    record = [(0, 1000)]
    for step in range(2):
        at = 10 * MS * (step + 1)
        for i, runs in enumerate(executions.values()):
            runs.append((at + 2 * MS * i, 1.0))
        record += [(at - 9, 1064), (at + 2 * MS - 9, 1080), (at + 4 * MS - 9, 1064), (at + 5 * MS, 1000)]
    return executions, record


def test_steps_are_told_by_repetition() -> None:
    executions, _ = two_steps()
    runs = {name: [Execution(t, t + MS) for t, _ in times] for name, times in executions.items()}
    assert steps_of(runs) == ((10 * MS, 20 * MS), (20 * MS, 25 * MS))
    runs["A/Extra-op9"] = [Execution(1, 2)]
    assert steps_of(runs) == ((1, 25 * MS),)


def test_without_a_graph_blocks_follow_the_record(tmp_path: Path) -> None:
    profile, findings = read(write(tmp_path, *two_steps()))
    assert meets_measured(profile)
    assert profile.measured is not None and profile.measured.peak_bytes == 1080
    assert profile.device.base_bytes == 1000
    assert profile.run.rank == 2 and profile.run.source == "mindspore_cpu"
    assert {s.certainty for s in profile.storages} <= {"inferred", "unknown"}
    assert len(findings.missing) >= 2


def test_with_the_graph_beside_it_the_profile_is_capture_s(tmp_path: Path) -> None:
    folder = tmp_path / "host_1_ascend_ms"
    text = two_layers()
    for layer in "01":
        text = text.replace(f"mean.{layer}", f"moment1.layers.{layer}.weight")
    names = [line.split("kernel_name:")[1].split()[0] for line in text.splitlines() if "kernel_name:" in line]
    skipped = {line.split("kernel_name:")[1].split()[0] for line in text.splitlines() if "is_launch_skipped:1" in line}
    launched = [name for name in names if name not in skipped]
    runs = {name: [(MS * (100 * step + i), 0.5) for step in (1, 2, 3)] for i, name in enumerate(launched)}
    record = [(100 * MS * step + MS * i, 50 * i + 10_000) for step in (1, 2, 3) for i in range(len(launched))]
    write(folder, runs, record)
    (tmp_path / "actor_set").mkdir()
    (tmp_path / "actor_set" / "0_actor_set_kernel_graph_0.ir").write_text(text)
    profile, findings = read(folder)
    assert meets_measured(profile)
    assert {s.certainty for s in profile.storages} == {"measured"}
    kinds = {s.name: s.kind for s in profile.storages}
    assert (kinds["layers.1.weight"], kinds["moment1.layers.0.weight"]) == ("parameter", "optimizer_state")
    assert {o.layer for o in profile.operators} >= {"layers.0", "layers.1"}
    assert not findings.missing
    (tmp_path / "actor_set" / "0_actor_set_kernel_graph_0.ir").write_text(text[: len(text) // 2])
    profile, findings = read(folder)
    assert any("left out" in warning for warning in findings.warnings)
    assert meets_measured(profile)


def test_kernels_alone_give_times(tmp_path: Path) -> None:
    executions, _ = two_steps()
    profile, findings = read(write(tmp_path, executions, None))
    assert not profile.storages and meets_measured(profile)
    assert any("profile_memory" in text for text in findings.missing)


def test_damaged_rows_are_dropped_and_named(tmp_path: Path) -> None:
    write(tmp_path, *two_steps())
    times = tmp_path / "FRAMEWORK" / "cpu_op_execute_timestamp_2.txt"
    times.write_text(
        times.read_text() + "Add;HostCpuOps;5,nan,0\nAdd;HostCpuOps;-5,1,0\nAdd;HostCpuOps\nAdd;H;7,1e300,0\nA;H;7"
    )
    record = tmp_path / "FRAMEWORK" / "cpu_ms_memory_record_2.txt"
    record.write_text(record.read_text() + "25000001,many,0,0\n25000002,-5,0,0\n25000003")
    profile, findings = read(tmp_path)
    assert meets_measured(profile)
    assert [entry.rows for entry in findings.dropped] == [5, 1, 2]


@pytest.mark.parametrize("text", ["", "\n", "Add;HostCpuOps;\n", "\x00"])
def test_no_executions_is_unreadable(tmp_path: Path, text: str) -> None:
    write(tmp_path, *two_steps())
    (tmp_path / "FRAMEWORK" / "cpu_op_execute_timestamp_2.txt").write_text(text)
    with pytest.raises(UnreadableError, match="no executions"):
        read(tmp_path)


@given(st.lists(st.integers(0, 6), max_size=40))
def test_blocks_rise_and_fall_as_the_totals_do(levels: list[int]) -> None:
    record = MemoryRecord(tuple(range(len(levels))), tuple(levels))
    blocks = blocks_of(record)
    for time, level in enumerate(levels):
        live = blocks.filter(
            (blocks["allocated"].is_null() | (blocks["allocated"] <= time))
            & (blocks["freed"].is_null() | (blocks["freed"] > time))
        )
        before = sum(blocks.filter(blocks["allocated"].is_null())["bytes"].to_list())
        assert sum(live["bytes"].to_list()) - before == level - levels[0]
        assert before <= levels[0]
    assert (blocks["bytes"] > 0).all()


CUTS = st.tuples(
    st.floats(0, 1), st.integers(0, 9), st.sampled_from(["", ";", ",", "-", " ", "9" * 25, "nan", "\n", '"'])
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.lists(CUTS, min_size=1, max_size=8), which=st.integers(0, 1))
def test_damaged_text_is_never_a_crash(tmp_path: Path, damage: list[tuple[float, int, str]], which: int) -> None:
    write(tmp_path, *two_steps())
    path = sorted((tmp_path / "FRAMEWORK").iterdir())[which]
    text = path.read_text()
    for place, length, instead in damage:
        at = int(place * len(text))
        text = text[:at] + instead + text[at + length :]
    path.write_text(text)
    try:
        profile, _ = read(tmp_path)
    except UnreadableError:
        return
    assert meets_measured(profile)


# -- a real run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of the demo model, profiled by MindSpore itself, and its saved graphs."""
    import mindspore as ms
    from mindspore.profiler import ProfilerActivity

    from profiler.capture.graph import compile_and_read
    from tests.profiler.graph_mode import graph_mode, model

    folder = tmp_path_factory.mktemp("real")
    with graph_mode():
        _, step, args = model()
        compile_and_read(step, args, folder, run=True)
        session = ms.profiler.profile(
            activities=[ProfilerActivity.CPU],
            profile_memory=True,
            schedule=ms.profiler.schedule(wait=0, warmup=0, active=3, repeat=1, skip_first=0),
            on_trace_ready=ms.profiler.tensorboard_trace_handler(str(folder), analyse_flag=False),
        )
        with session:
            for _ in range(3):
                step(*args).asnumpy()
                session.step()
    (output,) = folder.glob("*_ascend_ms")
    return output


def test_a_real_run_with_its_graph(real: Path) -> None:
    profile, findings = read(real)
    assert meets_measured(profile)
    assert not findings.missing and not findings.dropped
    assert {o.phase for o in profile.operators} >= {"forward", "backward", "optimizer"}
    assert {s.kind for s in profile.storages} >= {"parameter", "optimizer_state", "activation", "gradient", "input"}
    assert any("3 recorded steps" in note for note in profile.run.notes)


def test_a_real_run_without_its_graph(real: Path, tmp_path: Path) -> None:
    shutil.copytree(real / "FRAMEWORK", tmp_path / "FRAMEWORK")
    profile, _ = read(tmp_path)
    assert meets_measured(profile)
    assert profile.storages
