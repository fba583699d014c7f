"""MindSpore's memory tracker: the peak to the byte, what is workspace, who uses what, and files that are broken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperopt.profile import Profile, Storage
from hyperopt.replay import replay
from profiler.read import read as read_any
from profiler.read.findings import Findings, UnreadableError
from profiler.read.mindspore import tracker_graph, tracker_table
from profiler.read.mindspore.memory_tracker import SOURCE
from tests.profiler.read.mindspore.tracker_files import (
    NEVER,
    NEWEST,
    VERSIONS,
    B,
    block_text,
    task_text,
    write,
    write_dry_run,
)

MIB = 2**20


def read(path: Path) -> tuple[Profile, Findings]:
    (files,) = SOURCE.find(path)
    findings = Findings(path)
    return SOURCE.read(files, findings), findings


def curve_peak(blocks: Sequence[B]) -> int:
    """Most bytes at a stamp: releases come before what is allocated at the same one."""
    changes = [(int(b.start), 1, int(b.size)) for b in blocks]
    changes += [(int(b.end), 0, -int(b.size)) for b in blocks if b.end != NEVER]
    level = peak = 0
    for _, _, size in sorted(changes):
        level += size
        peak = max(peak, level)
    return peak


def dropped(findings: Findings) -> dict[str, int]:
    return {entry.why: entry.rows for entry in findings.dropped}


def one(profile: Profile, name: str) -> Storage:
    (found,) = [storage for storage in profile.storages if storage.name.startswith(name)]
    return found


TRAIN = [
    B(1, NEVER, 100, "Weight", 0, "blocks.0.weight", (10, 30), persistent=1),
    B(2, NEVER, 100, "Weight", 0, "moment1.blocks.0.weight", (40,), persistent=1),
    B(12, 35, 64, "Kernel", 10, "Default/network-Net/blocks-CellList/0-Block/MatMul-op1", (20, 30)),
    B(13, 14, 512),
    B(22, 26, 16, "Kernel", 20, "Default/network-Net/head-Dense/Softmax-op2", (20,)),
    B(32, 42, 100, "Kernel", 30, "Gradients/Default/network-Net/blocks-CellList/0-Block/MatMul-op3", (40,)),
]
TASKS = [
    (10, "Default/network-Net/blocks-CellList/0-Block/MatMul-op1"),
    (20, "Default/network-Net/head-Dense/Softmax-op2"),
    (30, "Gradients/Default/network-Net/blocks-CellList/0-Block/MatMul-op3"),
    (40, "Default/optimizer-Adam/Adam-op4"),
]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_training_step_in_every_version(tmp_path: Path, version: str) -> None:
    profile, findings = read(write(tmp_path / "rank_3", TRAIN, TASKS, version))
    assert [(o.phase, o.layer, o.type, o.workspace_bytes) for o in profile.operators] == [
        ("forward", "blocks.0", "MatMul", 512),
        ("forward", "head", "Softmax", 16),
        ("backward", "blocks.0", "MatMul", 0),
        ("optimizer", "optimizer", "Adam", 0),
    ]
    weight, moment, activation, gradient = profile.storages
    assert [s.kind for s in profile.storages] == ["parameter", "optimizer_state", "activation", "gradient"]
    assert all(s.resident_at_start and s.resident_at_end for s in (weight, moment))
    assert not any(s.resident_at_start or s.resident_at_end for s in (activation, gradient))
    assert {s.certainty for s in profile.storages} == {"measured"}
    assert [o.reads for o in profile.operators] == [(0,), (2,), (0, 2), (1, 3)]
    assert [o.writes for o in profile.operators] == [(2,), (), (3,), (1,)]  # the optimizer updates its state
    assert profile.run.rank == 3 and profile.run.measured
    assert not findings.dropped
    assert profile.measured is not None
    assert replay(profile).peak_bytes == profile.measured.peak_bytes == curve_peak(TRAIN) == 776
    assert any("operator times" in text for text in findings.missing)


def test_a_workspace_of_one_tick_sets_the_peak_and_is_nothing_to_move(tmp_path: Path) -> None:
    """Case C14, in bytes: 29577.8 MiB and 730 for one operator make 30307.8."""
    rest, workspace = round(29577.8 * MIB), 730 * MIB
    blocks = [
        B(1, NEVER, rest - 512, "PyNativeOutput", 0, "Cast", (20,), used=rest - 512, peak=rest - 512),
        B(21, 30, 512, "PyNativeOutput", 20, "Reshape", (25,), used=rest, peak=rest),
        B(22, 23, workspace, used=rest + workspace, peak=rest + workspace),
    ]
    profile, findings = read(write(tmp_path, blocks, [(20, "Reshape"), (25, "View")]))
    assert profile.operators[0].workspace_bytes == workspace
    assert workspace not in {storage.bytes for storage in profile.storages}
    assert profile.measured is not None
    assert profile.measured.peak_bytes == replay(profile).peak_bytes == rest + workspace
    assert round(profile.measured.peak_bytes / MIB, 1) == 30307.8
    assert not findings.warnings
    (note,) = [note for note in profile.run.notes if note.startswith("the peak")]
    assert "Reshape (task 20)" in note and f"{workspace} bytes of it are workspace" in note


def test_unbound_blocks_that_stay_are_not_offered_for_offload(tmp_path: Path) -> None:
    blocks = [B(11, 25, 8), B(12, 25, 8, "WorkSpace", 10, "Sort"), B(13, 25, 8, "PyNativeOutput", 10, "Sort", (20,))]
    profile, _ = read(write(tmp_path, blocks, [(10, "Sort"), (20, "Add")]))
    assert [(s.offloadable, s.certainty) for s in profile.storages] == [
        (False, "unknown"),
        (False, "measured"),
        (True, "measured"),
    ]


@pytest.mark.parametrize("end", [NEVER, 0, "", 2**64 - 1])
def test_every_spelling_of_never_freed(tmp_path: Path, end: int | str) -> None:
    profile, findings = read(write(tmp_path, [B(12, end, 8, "Kernel", 10, "Mul", (10,))], [(10, "Mul")]))
    assert profile.storages[0].resident_at_end
    assert not findings.dropped


def test_blocks_inside_somas_and_of_the_host_are_not_counted(tmp_path: Path) -> None:
    blocks = [
        B(5, NEVER, 1000, "Somas", 1, "kernel_graph0", (10,)),
        B(-1, -1, 600, "InSideSomas", 10, "Mul", (10,)),
        B(6, NEVER, 77, "Kernel", 10, "Mul", (10,), pool="CPU"),
    ]
    profile, findings = read(write(tmp_path, blocks, [(10, "Mul")]))
    assert replay(profile).peak_bytes == 1000
    assert not one(profile, "kernel_graph0").offloadable
    assert sum("SOMAS" in why for why in dropped(findings)) == sum("CPU" in why for why in dropped(findings)) == 1


def test_a_block_held_past_its_last_user_is_read_where_it_is_last_held(tmp_path: Path) -> None:
    blocks = [B(12, 45, 8, "Kernel", 10, "Mul", (20,))]
    profile, _ = read(write(tmp_path, blocks, [(t, "Mul") for t in (10, 20, 30, 40, 50)]))
    assert [o.reads for o in profile.operators] == [(), (0,), (), (0,), ()]
    assert any("held longer" in note for note in profile.run.notes)


def test_a_release_before_the_operator_allocates_does_not_count_beside_it(tmp_path: Path) -> None:
    """The second operator lists the first block as used, but gave it back before it took its own."""
    blocks = [B(11, 21, 100, "Kernel", 10, "Mul", (20,)), B(22, 31, 90, "Kernel", 20, "Mul", (30,))]
    profile, _ = read(write(tmp_path, blocks, [(10, "Mul"), (20, "Mul"), (30, "Mul")]))
    assert replay(profile).peak_bytes == 100
    assert any("operator before" in note for note in profile.run.notes)


def test_rows_with_commas_in_stacks_and_names_are_put_together_again(tmp_path: Path) -> None:
    stack = "File:/home/a,b/train.py;Line:3;Function:step|File:/c,d,e.py;Line:9;Function:f|"
    blocks = [
        B(12, NEVER, 8, "Kernel", 10, "Mul", (10, 20), stack=stack),
        B(13, NEVER, 16, "Kernel", 10, "Fused(a,b)", (20,), stack=stack),
        B(14, NEVER, 32, "Kernel", 10, "Add", (20,), stack='File:/odd".py;Line:1;Function:f|'),
        B(15, NEVER, 64, "Kernel", 10, 'a"b,c"', (20,), stack='"x"y'),
    ]
    folder = write(tmp_path, blocks)
    (folder / "task.csv").write_text(task_text([(10, "Mul"), (20, "Add")], stack))
    profile, findings = read(folder)
    assert not findings.dropped
    assert [s.name for s in profile.storages] == ["Mul@12", "Fused(a,b)@13", "Add@14", 'a"b,c"@15']
    assert profile.operators[1].reads == (0, 1, 2, 3)


def test_simple_tracker_has_the_last_access_only(tmp_path: Path) -> None:
    text = block_text([B(12, 25, 8, "Kernel", 10, "Mul", (20,))]).replace("{20}", "")
    profile, findings = read(write(tmp_path, text, [(10, "Mul"), (20, "Add")]))
    assert profile.storages[0].certainty == "inferred"
    assert profile.operators[1].reads == (0,)
    assert any("simple_tracker" in text for text in findings.missing)


def test_tasks_that_share_a_stamp_with_the_allocation_before_them(tmp_path: Path) -> None:
    """Newer versions stamp a task before they count on, so allocation 20 came before task 20."""
    blocks = [B(20, 31, 8, "Kernel", 10, "Mul", (20, 30))]
    profile, _ = read(write(tmp_path, blocks, [(10, "Mul"), (20, "Add"), (30, "Add")]))
    assert [o.writes for o in profile.operators] == [(0,), (), ()]
    assert [o.reads for o in profile.operators] == [(), (0,), (0,)]


def test_memory_from_before_the_record_is_base(tmp_path: Path) -> None:
    """Case C15's kind: the file's own total is above its blocks by the same amount throughout."""
    blocks = [
        B(11, 30, 100, "Kernel", 10, "Mul", (20,), used=1100, peak=1500),
        B(21, NEVER, 50, "Kernel", 20, "Add", (20,), used=1150, peak=1500),
    ]
    profile, findings = read(write(tmp_path, blocks, [(10, "Mul"), (20, "Add")]))
    assert profile.device.base_bytes == 1000
    assert profile.measured is not None
    assert replay(profile).peak_bytes == profile.measured.peak_bytes == 1150
    assert profile.measured.reserved_bytes == 1500
    assert any("actual_peak_memory is 1500" in text for text in findings.warnings)


def test_the_dry_run_of_hyper_parallel(tmp_path: Path) -> None:
    """No task file; blocks have the stamp of the task that makes them; a release at a stamp comes before its task."""

    def dry(start: int, end: int, size: int, kind: str, node: str, users: tuple[int, ...], task: str, layer: int) -> B:
        address = f"0x{0xF00000000000 + 2**40 * start:x}"
        graph = f"Model.layers.{layer}.attention"
        return B(start, end, size, kind, start, node, users, address=address, task=task, graph=graph, stack='a,"b"')

    blocks = [
        dry(0, NEVER, 40, "Parameter", "aten.empty.memory_format", (1, 3), "forward", 0),
        dry(1, 3, 100, "Activation", "aten.mm.default", (2,), "forward", 0),
        dry(2, 4, 30, "Activation", "aten.gelu.default", (3,), "forward", 1),
        dry(3, NEVER, 40, "Gradient", "aten.mm.default", (4,), "backward", 0),
    ]
    write_dry_run(tmp_path / "rank_0_memory.csv", blocks)
    write_dry_run(tmp_path / "rank_1_memory.csv", blocks)
    metadata = '{"metadata": {"model": "qwen3", "torch_version": "2.7.1", "world_size": 8}, "memory_blocks": []}'
    (tmp_path / "rank_1.json").write_text(metadata)
    first, second = SOURCE.find(tmp_path)
    assert (first.rank, second.rank) == (0, 1)
    findings = Findings(tmp_path)
    profile = SOURCE.read(second, findings)
    assert not profile.run.measured
    assert (profile.run.model, profile.run.framework, profile.run.world_size) == ("qwen3", "torch", 8)
    assert [o.phase for o in profile.operators] == ["forward", "forward", "forward", "backward", "backward"]
    assert [o.layer for o in profile.operators] == ["layers.0", "layers.0", "layers.1", "layers.0", ""]
    assert [s.kind for s in profile.storages] == ["parameter", "activation", "activation", "gradient"]
    assert replay(profile).peak_bytes == curve_peak(blocks) == 170
    assert [o.reads for o in profile.operators] == [(), (0,), (1,), (0, 2), (3,)]


def test_weights_made_on_the_way_are_there_from_the_start_unless_that_raises_the_peak(tmp_path: Path) -> None:
    late = B(22, NEVER, 10, "Weight", 20, "w", (30,))
    tasks = [(10, "Mul"), (20, "Mul"), (30, "Mul")]
    low, _ = read(write(tmp_path / "rank_0", [B(11, 15, 5), late, B(31, 32, 90)], tasks))
    high, _ = read(write(tmp_path / "rank_1", [B(11, 15, 50), late], tasks))
    assert one(low, "w").resident_at_start and replay(low).peak_bytes == 100
    assert not one(high, "w").resident_at_start and replay(high).peak_bytes == 50


def test_ranks_are_folders(tmp_path: Path) -> None:
    for rank in (10, 2):
        write(tmp_path / f"rank_{rank}", TRAIN, TASKS)
    (tmp_path / "rank_5").mkdir()
    manifest = read_any(tmp_path)
    assert [(entry.rank, entry.kind) for entry in manifest.ranks] == [(2, "memory_tracker"), (10, "memory_tracker")]
    (files,) = SOURCE.find(tmp_path / "rank_10" / "memory_block.csv")
    assert files.rank == 10
    assert SOURCE.find(tmp_path / "rank_5") == SOURCE.find(tmp_path / "rank_10" / "task.csv") == []


def test_the_graph_says_what_is_written_in_place_and_of_what_shape(tmp_path: Path) -> None:
    write(tmp_path, TRAIN, TASKS)
    graph = """(%12) = Default/network-Net/blocks-CellList/0-Block/MatMul-op1(%1), task_info: 10, attrs {stream_id=0}
    (BFloat16:[2, 16]) <- (Float32:[4, 8]{strdes=[8, 1],offset=0})
    # File:a.py;Line:1;Function:(f)|
() = Fused(a,b)(%12), task_info: 20
    () <- (kNumberTypeInt64:[])
(%1, %2) = Default/optimizer-Adam/Adam-op4(%1, %2, %32), task_info: 40, attrs {stream_id=0}
garbage
(%99, %12) = Late(%1), task_info: 999999999999999999999
"""
    (tmp_path / "tracker_graph.ir").write_text(graph)
    profile, findings = read(tmp_path)
    assert profile.operators[3].writes == (0, 1)
    assert profile.operators[0].shapes == ((4, 8), (2, 16)) and profile.operators[0].dtypes == ("float32", "bfloat16")
    assert profile.operators[1].shapes == ((),) and profile.operators[1].dtypes == ("int64",)
    assert replay(profile).peak_bytes == curve_peak(TRAIN)
    assert not any("in place" in text for text in findings.missing)
    found = [tracker_graph.read_graph(tmp_path / "tracker_graph.ir", findings)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracker_graph, "PIECE", 1)
        found.append(tracker_graph.read_graph(tmp_path / "tracker_graph.ir", findings))
    first, second = found
    assert first is not None and second is not None
    assert first.signatures == second.signatures
    assert first.start.tolist() == second.start.tolist() == [12, 1, 2]


@pytest.mark.parametrize("text", ["", "\x00\n(%1) = a(%2), task_info: 10", "() = A(), task_info: 10\n", "(" * 9999])
def test_damaged_graphs(tmp_path: Path, text: str) -> None:
    write(tmp_path, TRAIN, TASKS)
    (tmp_path / "tracker_graph.ir").write_text(text)
    profile, _ = read(tmp_path)
    assert replay(profile).peak_bytes == curve_peak(TRAIN)


# -- broken files ------------------------------------------------------------------------------------------


def test_what_makes_no_sense_is_dropped_and_named(tmp_path: Path) -> None:
    blocks = [
        B(12, NEVER, 8, "Kernel", 10, "Mul", (10,)),
        B(13, 12, 9),
        B(14, 15, -9),
        B(15, "nan", 9),
        B("x", 20, 9),
        B(-7, 20, 9),
        B(16, 20, 2**60),
        B(16, 16, 9),
        B(17, NEVER, 0),
        B(12, NEVER, 8, "Kernel", 10, "Mul", (10,)),
    ]
    text = "\ufeff" + block_text(blocks).replace("\n", "\r\n", 3) + "\n18,20,0x1,0,Asc"
    profile, findings = read(write(tmp_path, text, [(10, "Mul")]))
    assert len(profile.storages) == 1 and replay(profile).peak_bytes == 8
    assert dropped(findings) == {
        "rows of blocks that end no later than they start": 2,
        "rows with a negative stamp or size, or one of more than 1024 TiB": 3,
        "rows whose stamps or size are no whole numbers": 2,
        "rows that stand there twice": 1,
        "rows with fewer fields than the header": 1,
    }
    lines = {entry.why: entry.lines for entry in findings.dropped}
    assert lines["rows that stand there twice"] == (11,)
    assert lines["rows with fewer fields than the header"] == (13,)


def test_accesses_that_cannot_be_are_left_out_and_told(tmp_path: Path) -> None:
    text = block_text([B(22, 35, 8, "Kernel", 20, "Mul", (10, 20, 30, 40))]).replace("{10", "{1x0-10")
    profile, findings = read(write(tmp_path, text, [(t, "Mul") for t in (10, 20, 30, 40)]))
    assert [o.reads for o in profile.operators] == [(), (), (0,), ()]
    assert any("2 accesses" in text for text in findings.warnings)
    assert any("1 entries" in text for text in findings.warnings)


@pytest.mark.parametrize(
    "text", ["", "start_time_stamp,end_time_stamp,size,\n", block_text([]), block_text([B(-1, -1, 5)])]
)
def test_no_blocks_is_unreadable_and_says_what_would_help(tmp_path: Path, text: str) -> None:
    write(tmp_path, text, [(10, "Mul")])
    if not SOURCE.find(tmp_path):
        assert not text
        return
    with pytest.raises(UnreadableError, match="dry run"):
        read(tmp_path)


def test_blocks_that_add_up_to_more_than_any_device(tmp_path: Path) -> None:
    write(tmp_path, [B(1 + i, NEVER, 2**50) for i in range(20)], [(0, "Mul")])
    with pytest.raises(UnreadableError, match="more than any device"):
        read(tmp_path)


def test_damaged_task_files(tmp_path: Path) -> None:
    folder = write(tmp_path, TRAIN)
    (folder / "task.csv").write_text(task_text([(10, "Mul"), (10, "Add")]) + "x,PyNative,Sub,,a.cc,1,s,\n20,Py")
    profile, findings = read(folder)
    assert [o.name for o in profile.operators] == ["Mul"]
    assert len(findings.dropped) == 3
    assert replay(profile).peak_bytes == curve_peak(TRAIN)


@pytest.mark.parametrize("task_file", [None, "", "time_stamp,\n", "\x00\x01\n\xff"])
def test_without_tasks_the_blocks_name_them(tmp_path: Path, task_file: str | None) -> None:
    folder = write(tmp_path, TRAIN)
    if task_file is not None:
        (folder / "task.csv").write_text(task_file)
    profile, findings = read(folder)
    assert {"Default/network-Net/head-Dense/Softmax-op2", "task 40"} <= {o.name for o in profile.operators}
    assert any("task.csv" in text for text in findings.missing)
    assert replay(profile).peak_bytes == curve_peak(TRAIN)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_table, "MAX_LINE", 1 << 12)
    monkeypatch.setattr(tracker_table, "PIECE", 1 << 10)
    write(tmp_path, block_text(TRAIN) + "7" * 10_000, TASKS)
    with pytest.raises(UnreadableError, match="no table"):
        read(tmp_path)


@pytest.mark.parametrize("piece", [1, 50, 333, 4096])
def test_pieces_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    whole, _ = read(write(tmp_path, [*TRAIN, B(12, 35, 64, "Kernel", 10, "a", (1,))], TASKS))
    monkeypatch.setattr(tracker_table, "PIECE", piece)
    assert read(tmp_path)[0] == whole


# -- properties --------------------------------------------------------------------------------------------

STAMPS = st.integers(0, 40)
TYPES = st.sampled_from(["", "Kernel", "Weight", "PyNativeOutput", "WorkSpace", "Somas", "Other"])
NODES = st.sampled_from(["MatMul", "MatMulGrad", "Adam", "Default/net-Net/Mul-op1", "Gradients/Default/x-X/Mul-op1"])


@st.composite
def a_block(draw: st.DrawFn) -> B:
    start = draw(STAMPS)
    end = draw(st.one_of(st.just(NEVER), st.integers(start + 1, 60)))
    users = draw(st.lists(st.integers(0, 60), max_size=3))
    producer = draw(st.one_of(st.just(start), STAMPS, st.just("")))
    return B(start, end, draw(st.integers(1, 100)), draw(TYPES), producer, draw(NODES), sorted(users))


TABLES = st.lists(a_block(), min_size=1, max_size=25)
TASK_STAMPS = st.none() | st.lists(st.tuples(STAMPS, NODES), max_size=12)
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@QUICK
@given(blocks=TABLES, tasks=TASK_STAMPS, version=st.sampled_from(list(VERSIONS)))
def test_replay_meets_the_peak_of_any_table(
    tmp_path: Path, blocks: list[B], tasks: list[tuple[int, str]] | None, version: str
) -> None:
    (tmp_path / "task.csv").unlink(missing_ok=True)
    unique = list({(b.start, b.end, b.size): b for b in reversed(blocks)}.values())[::-1]
    profile, _ = read(write(tmp_path, unique, tasks, version))
    assert profile.measured is not None
    assert replay(profile).peak_bytes == profile.measured.peak_bytes == curve_peak(unique)
    assert not any(s.offloadable for s in profile.storages if s.name.startswith(("block", "WorkSpace")))


@QUICK
@given(
    blocks=TABLES,
    tasks=st.lists(st.tuples(STAMPS, NODES), max_size=6),
    damage=st.lists(
        st.tuples(
            st.integers(0, 2**16),
            st.integers(0, 8),
            st.sampled_from(["", ",", "\n", "-", "9" * 20, '"', "\x00", "{", "é", "\U0001f600"]),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_damaged_text_is_never_a_crash(
    tmp_path: Path, blocks: list[B], tasks: list[tuple[int, str]], damage: list[tuple[int, int, str]]
) -> None:
    texts = [block_text(blocks), task_text(tasks)]
    for place, length, instead in damage:
        which = place % 2
        at = len(texts[which]) * (place >> 1) // 2**15
        texts[which] = texts[which][:at] + instead + texts[which][at + length :]
    for name, text in zip(("memory_block.csv", "task.csv"), texts, strict=True):
        (tmp_path / name).write_bytes(text.encode("utf-8", "replace"))
    if not SOURCE.find(tmp_path):
        return
    try:
        profile, _ = read(tmp_path)
    except UnreadableError:
        return
    assert profile.measured is not None
    assert replay(profile).peak_bytes == profile.measured.peak_bytes


def test_headers_are_what_the_versions_write() -> None:
    assert len(VERSIONS["first"]) == 14
    assert len(NEWEST) == 20
