"""`profiler.read.ascend.database` against databases of which every figure is known."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from profiler.read.ascend import database, places
from profiler.read.ascend.places import find
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles
from profiler.read.timeline.events import BLOCKS, KERNELS, Events
from tests.profiler.read.ascend.ascend_db_fixture import Database, make
from tests.profiler.read.ascend.ascend_fixture import OUTPUT, Block, Kernel, Run, random_run, write_db
from tests.profiler.read.ascend.ascend_run import KIB, MIB, T0


def events(folder: Path, findings: Findings | None = None) -> Events:
    (files,) = find(folder)
    return of_files(files, findings or Findings(folder))


def of_files(files: RankFiles, findings: Findings) -> Events:
    return database.events_of(places.database_of(files.path, findings), files, {}, findings)


def database_of(folder: Path) -> Path:
    return next((folder / OUTPUT).glob("ascend_*.db"))


def alter(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def small(**changes: object) -> Run:
    kernels = (
        Kernel("Mul1", "Mul", T0 + 300_000, 10_000, 7, T0 + 100_000, 2, "2,3;;", "FLOAT;FLOAT;INT64", "2,3", "FLOAT"),
        Kernel("hcom_send__1", "hcom_send_", T0 + 305_000, 20_000, 7, T0 + 110_000, communication=True),
        Kernel("Mul2", "Mul", T0 + 340_000, 30_000, 8, T0 + 330_000, 3),
    )
    blocks = (
        Block("aten::mul", 16 * KIB, T0 + 90_000, T0 + 400_000),
        Block("TransData", 4 * KIB, T0 + 95_000, T0 + 96_000, engine=True),
        Block("aten::add", 512, T0 + 320_000, None),
    )
    return replace(Run(kernels, blocks), **changes)  # type: ignore[arg-type]


def test_kernels_are_tasks_with_information_and_collectives_not_their_parts(tmp_path: Path) -> None:
    kernels = events(write_db(small(), tmp_path / "a_ascend_pt")).kernels
    assert dict(kernels.schema) == KERNELS
    assert kernels["name"].to_list() == ["Mul1", "hcom_send__1", "Mul2"]
    assert kernels["start"].to_list() == [T0 + 300_000, T0 + 305_000, T0 + 340_000]
    assert kernels["duration"].to_list() == [10_000, 20_000, 30_000]
    assert kernels["stream"].to_list() == ["2", "communication", "3"]
    assert kernels["type"].to_list() == ["Mul", "hcom_send_", "Mul"]
    assert kernels["inputs"].to_list()[:2] == ["2,3;;", None]
    assert kernels["input_types"].to_list()[0] == "FLOAT;FLOAT;INT64"


def test_a_kernel_is_launched_when_its_operator_was_called(tmp_path: Path) -> None:
    kernels = events(write_db(small(), tmp_path / "a_ascend_pt")).kernels
    assert kernels["launched"].to_list() == [T0 + 100_000, T0 + 110_000, T0 + 330_000]


def test_without_operators_it_is_launched_by_the_call_into_cann(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(database_of(folder), "DROP TABLE PYTORCH_API")
    assert events(folder).kernels["launched"].to_list() == [T0 + 120_000, T0 + 130_000, T0 + 350_000]


def test_kernels_without_a_launch_go_with_the_one_before(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(database_of(folder), "DELETE FROM CONNECTION_IDS WHERE id = 1")
    findings = Findings(folder)
    assert events(folder, findings).kernels["launched"].to_list() == [T0 + 100_000, T0 + 100_000, T0 + 330_000]
    assert any("1 kernels have no launch" in warning for warning in findings.warnings)


def test_launches_of_a_few_kernels_are_not_used(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(
        database_of(folder), "DELETE FROM CONNECTION_IDS WHERE id > 0", "DELETE FROM CANN_API WHERE connectionId > 1000"
    )
    findings = Findings(folder)
    assert events(folder, findings).kernels["launched"].null_count() == 3
    assert any("2 of 3 kernels have no launch" in warning for warning in findings.warnings)


def test_without_any_host_times_launches_are_unknown(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt", Database(host_times=False))
    assert events(folder).kernels["launched"].null_count() == 3


def test_steps_are_those_of_the_launch_and_as_long_as_the_profiler_says(tmp_path: Path) -> None:
    found = events(write_db(small(), tmp_path / "a_ascend_pt"))
    assert found.kernels["step"].to_list() == [7, 7, 8]
    assert [(s.number, s.start, s.end, s.us) for s in found.steps] == [
        (7, T0 + 300_000, T0 + 325_000, 25.0),
        (8, T0 + 340_000, T0 + 370_000, 30.0),
    ]


def test_without_steps_all_is_one(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt", Database(steps=False))
    (folder / OUTPUT / "analysis.db").unlink()
    found = events(folder)
    assert found.kernels["step"].null_count() == 3
    assert [(s.start, s.end, s.us) for s in found.steps] == [(T0 + 300_000, T0 + 370_000, 70.0)]


@pytest.mark.parametrize("engine_rows", [True, False])
def test_blocks_of_both_pools(tmp_path: Path, engine_rows: bool) -> None:
    found = events(write_db(small(), tmp_path / "a_ascend_pt", Database(engine_rows=engine_rows)))
    assert dict(found.blocks.schema) == BLOCKS
    assert found.blocks.rows() == [
        ("aten::mul", 16 * KIB, T0 + 90_000, T0 + 400_000),
        ("cann::TransData", 4 * KIB, T0 + 95_000, T0 + 96_000),
        ("aten::add", 512, T0 + 320_000, None),
    ]


def test_figures_of_memory(tmp_path: Path) -> None:
    run = small()
    memory = events(write_db(run, tmp_path / "a_ascend_pt")).memory
    assert memory.peak_bytes == run.peak == 4 * MIB + 64 * KIB + 20 * KIB
    assert memory.base_bytes == 4 * MIB + 64 * KIB
    assert memory.reserved_bytes == 112 * MIB  # PTA+GE, which contains PTA
    assert memory.external_bytes == 48 * MIB
    assert memory.external == {"HCCL": 20 * MIB, "RUNTIME": 3 * MIB + 512}


def test_blocks_older_than_the_record_are_no_base(tmp_path: Path) -> None:
    run = small(ghosts=((2 * MIB, T0 + 200_000),))
    found = events(write_db(run, tmp_path / "a_ascend_pt"))
    assert (found.memory.peak_bytes, found.memory.base_bytes) == (run.peak, 4 * MIB + 64 * KIB)
    ghosts = found.blocks.filter(pl.col("allocated").is_null())
    assert ghosts.select("bytes", "freed").rows() == [(2 * MIB, T0 + 320_000)]  # by the next total that shows it


def test_totals_that_contradict_the_allocations_are_not_used(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(database_of(folder), "UPDATE OP_MEMORY SET allocationTotalAllocated = 7, releaseTotalAllocated = 7")
    findings = Findings(folder)
    found = events(folder, findings)
    assert found.memory.base_bytes == 0 and found.blocks.height == 3
    assert any("contradict" in warning for warning in findings.warnings)


def test_the_record_of_the_pool_alone_gives_the_figures(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(database_of(folder), "DROP TABLE OP_MEMORY", "DROP TABLE NPU_OP_MEM")
    memory = events(folder).memory
    assert (memory.peak_bytes, memory.base_bytes, memory.reserved_bytes) == (small().peak, None, 112 * MIB)


@pytest.mark.parametrize("seed", range(4))
def test_random_runs_peak_to_the_byte(tmp_path: Path, seed: int) -> None:
    run = random_run(seed, steps=2)
    found = events(write_db(run, tmp_path / "a_ascend_pt", Database(studio=seed % 2 == 0)))
    assert found.memory.peak_bytes == run.peak
    assert found.memory.base_bytes == run.base + run.engine_base
    assert found.kernels.select("start", "duration", "step", "launched").rows() == [
        (k.start, k.duration, k.step, k.launched) for k in run.kernels
    ]
    assert [step.us for step in found.steps] == pytest.approx([run.times(s)["stage"] / 1e3 for s in run.steps])


def test_level_zero_has_names_only(tmp_path: Path) -> None:
    kernels = events(write_db(small(), tmp_path / "a_ascend_pt", Database(level=0))).kernels
    assert kernels["name"].to_list() == ["Mul1", "hcom_send__1", "Mul2"]
    assert kernels.select("type", "inputs", "outputs").row(0) == (None, None, None)


def test_columns_and_tables_of_mindstudio_change_nothing(tmp_path: Path) -> None:
    plain = events(write_db(small(), tmp_path / "a_ascend_pt"))
    opened = events(write_db(small(), tmp_path / "b_ascend_pt", Database(studio=True)))
    assert plain.kernels.equals(opened.kernels) and plain.blocks.equals(opened.blocks)
    assert plain.memory == opened.memory and plain.steps == opened.steps


def test_older_exports_have_names_with_underscores(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    before = events(folder)
    names = ("allocationTime", "releaseTime", "allocationTotalAllocated", "releaseTotalAllocated", "streamPtr")
    old = ["".join(f"_{c.lower()}" if c.isupper() else c for c in name) for name in names]
    renamed = [f"ALTER TABLE OP_MEMORY RENAME COLUMN {a} TO {b}" for a, b in zip(names, old, strict=True)]
    alter(database_of(folder), *renamed)
    assert events(folder).blocks.equals(before.blocks)


def test_numbers_that_are_kept_as_text_or_as_reals(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    before = events(folder)
    alter(
        database_of(folder),
        "CREATE TABLE T2 (startNs TEXT, endNs TEXT, connectionId INTEGER, globalTaskId REAL, streamId TEXT)",
        "INSERT INTO T2 SELECT startNs, endNs, connectionId, globalTaskId, streamId FROM TASK",
        "DROP TABLE TASK",
        "ALTER TABLE T2 RENAME TO TASK",
    )
    assert events(folder).kernels.equals(before.kernels)


def test_wrong_cells_and_rows_are_dropped_and_told(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(
        database_of(folder),
        "INSERT INTO TASK SELECT 'yesterday', endNs, deviceId, connectionId, 900, globalPid, taskType, contextId, "
        "streamId, taskId, modelId FROM TASK LIMIT 1",
        "INSERT INTO TASK SELECT endNs, startNs, deviceId, connectionId, 901, globalPid, taskType, contextId, "
        "streamId, taskId, modelId FROM TASK WHERE globalTaskId = 0",
        "INSERT INTO COMPUTE_TASK_INFO SELECT name, 901, blockDim, mixBlockDim, taskType, opType, inputFormats, "
        "inputDataTypes, inputShapes, outputFormats, outputDataTypes, outputShapes, attrInfo FROM COMPUTE_TASK_INFO "
        "LIMIT 1",
        "UPDATE OP_MEMORY SET size = x'00' WHERE name = (SELECT id FROM STRING_IDS WHERE value = 'aten::add')",
    )
    findings = Findings(folder)
    found = events(folder, findings)
    assert found.kernels["name"].to_list() == ["Mul1", "hcom_send__1", "Mul2"]
    assert "aten::add" not in found.blocks["name"].to_list()
    told = " | ".join(f"{d.rows} {d.why}" for d in findings.dropped)
    assert "1 cells of TASK (start)" in told and "1 rows of TASK or COMMUNICATION_OP with negative durations" in told
    assert "1 cells of OP_MEMORY (bytes)" in told and "1 rows of OP_MEMORY with no size" in told


def test_figures_beyond_what_a_profile_holds_are_dropped(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(
        database_of(folder),
        "UPDATE TASK SET endNs = 9223372036854775807 WHERE globalTaskId = 0",
        "UPDATE OP_MEMORY SET size = 9000000000000000000 WHERE releaseTime IS NULL",
        "UPDATE NPU_MEM SET hbm = 9000000000000000000",
        "UPDATE NPU_MODULE_MEM SET totalReserved = 9000000000000000000 WHERE moduleId = 1",
    )
    findings = Findings(folder)
    found = events(folder, findings)
    assert found.kernels["name"].to_list() == ["hcom_send__1", "Mul2"]
    assert max(found.blocks["bytes"]) < 2**43 and "HCCL" not in found.memory.external
    assert any("weeks" in dropped.why for dropped in findings.dropped)


def test_kernels_weeks_away_from_the_others_are_dropped(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(database_of(folder), "UPDATE TASK SET startNs = 5, endNs = 9 WHERE globalTaskId = 0")
    findings = Findings(folder)
    assert events(folder, findings).kernels["name"].to_list() == ["hcom_send__1", "Mul2"]
    assert any("weeks away" in dropped.why for dropped in findings.dropped)


def test_kernels_without_a_table_of_information(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(database_of(folder), "DROP TABLE COMPUTE_TASK_INFO")
    findings = Findings(folder)
    kernels = events(folder, findings).kernels.filter(pl.col("stream") != "communication")
    assert kernels["name"].to_list() == ["KERNEL_AIVEC", "KERNEL_MIX_AIV", "KERNEL_AIVEC"]
    assert any("COMPUTE_TASK_INFO" in text for text in findings.missing)


def test_neither_kernels_nor_memory(tmp_path: Path) -> None:
    path = tmp_path / "ascend_pytorch_profiler_0.db"
    make(path, {"STRING_IDS": [(0, "x")], "TASK": []})
    with pytest.raises(UnreadableError, match="neither kernels"):
        events(path)


def test_memory_alone(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(database_of(folder), "DROP TABLE TASK", "DROP TABLE COMMUNICATION_OP")
    found = events(folder)
    assert not found.kernels.height and found.memory.peak_bytes == small().peak


# which ranks


def test_the_rank_is_the_maps_not_the_device(tmp_path: Path) -> None:
    folder = write_db(small(rank=3, device=5), tmp_path / "a_ascend_pt")
    assert find(folder) == [RankFiles(folder, 3)]
    assert events(folder).origin.rank == 3


@pytest.mark.parametrize("say", ["info", "name", "folder"])
def test_the_rank_without_a_map(tmp_path: Path, say: str) -> None:
    folder = write_db(small(rank=6), tmp_path / "rank6_ascend_pt")
    path = database_of(folder)
    alter(path, "DROP TABLE RANK_DEVICE_MAP")
    if say != "info":
        (folder / "profiler_info_6.json").unlink()
    if say == "folder":
        path.rename(path.with_name("ascend_pytorch_profiler.db"))
    assert find(folder) == [RankFiles(folder, 6)]


def test_one_process_without_a_rank_says_minus_one(tmp_path: Path) -> None:
    folder = write_db(small(rank=0), tmp_path / "a_ascend_pt")
    alter(database_of(folder), "UPDATE RANK_DEVICE_MAP SET rankId = -1")
    assert find(folder) == [RankFiles(folder, 0)]


def test_several_ranks_in_one_database(tmp_path: Path) -> None:
    path = write_db(small(rank=0, device=4), tmp_path / "a_ascend_pt") / OUTPUT / "ascend_pytorch_profiler_0.db"
    alter(
        path,
        "INSERT INTO RANK_DEVICE_MAP VALUES (1, 9)",
        "INSERT INTO NPU_INFO VALUES (9, 'Ascend910C')",
        "UPDATE TASK SET deviceId = 9 WHERE globalTaskId = 2",
    )
    assert find(path.parent) == [RankFiles(path, 0), RankFiles(path, 1)]
    first, second = (of_files(files, Findings(tmp_path)) for files in find(path.parent))
    assert first.kernels["name"].to_list() == ["Mul1", "hcom_send__1"]
    assert second.kernels["name"].to_list() == ["Mul2"]
    assert (second.origin.rank, second.origin.device) == (1, "Ascend910C")
    assert first.blocks.height == 3 and second.blocks.height == 0


def test_devices_of_an_msprof_export_are_its_ranks(tmp_path: Path) -> None:
    folder = write_db(small(device=0), tmp_path / "a_ascend_pt")
    path = database_of(folder).rename(tmp_path / "msprof_20250109101532.db")
    alter(path, "DROP TABLE RANK_DEVICE_MAP", "INSERT INTO NPU_INFO VALUES (1, 'Ascend910B'), (2, 'Ascend910B')")
    assert find(tmp_path) == [RankFiles(tmp_path, None)]  # the machine has more, but one did something
    alter(path, "UPDATE TASK SET deviceId = 1 WHERE globalTaskId = 2")
    assert find(tmp_path) == [RankFiles(path, 0), RankFiles(path, 1)]


def test_the_last_export_of_msprof_is_taken(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    path = database_of(folder)
    data = path.read_bytes()
    for stamp in ("20250109101532", "20250110000000"):
        (tmp_path / f"msprof_{stamp}.db").write_bytes(data)
    (files,) = find(tmp_path)
    assert files == RankFiles(tmp_path, 2)


def test_a_database_under_another_name(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    path = database_of(folder).rename(tmp_path / "event_0.dat")
    assert find(path) == [RankFiles(path, 2)]
    assert of_files(RankFiles(path, 2), Findings(tmp_path)).kernels.height == 3


@pytest.mark.parametrize("name", ["analysis.db", "memscope_dump.db", "notes.db", "kernel_details.csv"])
def test_other_databases_are_not_ours(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".csv"):
        path.write_text("Name,Type\n")
    else:
        make(path, {"memscope": [(1, "malloc")]}, {"memscope": "id INTEGER, event TEXT"})
    assert find(path) == [] and find(tmp_path) == []


def test_a_broken_database_is_found_and_refused(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    database_of(folder).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (files,) = find(folder)
    assert files == RankFiles(folder, 2)
    with pytest.raises(UnreadableError, match="is no sqlite file"):
        database.read(files, Findings(folder))


def test_mindspore(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_ms")
    assert database_of(folder).name == "ascend_mindspore_profiler_2.db"
    origin = events(folder).origin
    assert (origin.framework, origin.framework_version, origin.device) == ("mindspore", "2.7.1", "Ascend910B")


@pytest.mark.parametrize(
    ("said", "world"),
    [('{"world_size": 16, "pipeline_model_parallel_size": 2}', 16), ("[", 3), ('{"world_size": -1}', 3)],
)
def test_how_the_run_is_distributed(tmp_path: Path, said: str, world: int) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    alter(database_of(folder), f"INSERT INTO META_DATA VALUES ('distributed_args', '{said}')")
    origin = events(folder).origin
    assert (origin.rank, origin.world_size) == (2, world)
    assert ("pipeline stages: 2" in origin.notes) == (world == 16)


def test_the_pipeline_stage_is_the_ranks_place_in_its_group(tmp_path: Path) -> None:
    folder = write_db(small(rank=6), tmp_path / "a_ascend_pt")
    groups = '{"group_name_19": {"group_name": "pp", "group_rank": 1, "global_ranks": [2, 6]}}'
    alter(database_of(folder), f"INSERT INTO META_DATA VALUES ('parallel_group_info', '{groups}')")
    findings = Findings(folder)
    events(folder, findings)
    assert findings.stage == 1
