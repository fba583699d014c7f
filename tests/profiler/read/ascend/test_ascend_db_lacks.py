"""Databases that miss a table, a rank or their own pages: what is read all the same, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.read import read
from profiler.read.ascend import database
from profiler.read.ascend.places import find
from profiler.read.findings import Findings
from profiler.read.ranks import RankFiles
from tests.profiler.read.ascend import ascend_db_fixture
from tests.profiler.read.ascend.ascend_db_fixture import Database, make
from tests.profiler.read.ascend.ascend_fixture import OUTPUT, random_run, write_db, write_text
from tests.profiler.read.ascend.test_ascend_db import alter, database_of, small

BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "is no sqlite file"),
    "pointer": (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "is no sqlite file"),
    "cut": (lambda data: data[:5000], "has a broken schema"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_database_says_what_to_do_in_one_line(tmp_path: Path, how: str) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    breaks, words = BROKEN[how]
    database_of(folder).write_bytes(breaks(database_of(folder).read_bytes()))
    (rank,) = read(folder).ranks
    assert rank.status == "refused" and words in rank.reason and "\n" not in rank.reason
    assert rank.reason.endswith("(copy it again from where it was written, or export the profile again)")


@pytest.mark.parametrize("name", ["kernel_details.csv", "operator_memory_20250109101532.csv", "memory_record.csv"])
def test_a_broken_database_beside_text_is_left_to_the_text(tmp_path: Path, name: str) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    database_of(folder).write_bytes(b"")
    (folder / OUTPUT / name).write_text("Name\n")
    assert find(folder) == []


@pytest.mark.parametrize("how", [*BROKEN, "without names", "whole"])
def test_a_rank_that_is_read_as_text_says_that_its_database_was_not(tmp_path: Path, how: str) -> None:
    run = random_run(1)
    folder = write_db(run, tmp_path / "run" / "a_ascend_pt")
    for file in (write_text(run, tmp_path / "text_ascend_pt") / OUTPUT).iterdir():
        file.rename(folder / OUTPUT / file.name)
    words = "is not read: no table STRING_IDS"
    if how == "without names":
        alter(database_of(folder), "DROP TABLE STRING_IDS")
    elif how != "whole":
        breaks, words = BROKEN[how]
        database_of(folder).write_bytes(breaks(database_of(folder).read_bytes()))
    (rank,) = read(tmp_path / "run").ranks
    told = [line for line in rank.warnings if "is not read" in line]
    assert rank.kind == ("ascend_db" if how == "whole" else "ascend")
    assert len(told) == (how != "whole") and all("ascend_pytorch_profiler_2.db" in t and words in t for t in told)


LOST = {
    "OP_MEMORY": "allocations of the framework",
    "TASK": "kernels that compute",
    "COMPUTE_TASK_INFO": "names and shapes of kernels",
    "STRING_IDS": "names of all",
}


@pytest.mark.parametrize("how", ["gone", "empty", "view"])
@pytest.mark.parametrize("table", LOST)
def test_a_main_table_that_says_nothing_is_named(tmp_path: Path, table: str, how: str) -> None:
    folder = write_db(random_run(1, engine=False), tmp_path / "a_ascend_pt")
    changes = {
        "gone": (f"DROP TABLE {table}",),
        "empty": (f"DELETE FROM {table}",),
        "view": (f"ALTER TABLE {table} RENAME TO x", f"CREATE VIEW {table} AS SELECT * FROM x"),
    }
    alter(database_of(folder), *changes[how])
    (rank,) = read(folder).ranks
    why = {"gone": f"no table {table}", "empty": f"no rows in {table}", "view": f"{table} is no ordinary table"}[how]
    assert rank.status == "degraded" and f"{LOST[table]}" in rank.reason and f": {why}" in rank.reason
    assert (rank.storages == 0) == ("nothing can be planned" in rank.reason)


def test_a_whole_database_lacks_nothing(tmp_path: Path) -> None:
    (rank,) = read(write_db(random_run(1), tmp_path / "a_ascend_pt")).ranks
    assert (rank.status, rank.reason) == ("accepted", "")


def test_msprof_alone_has_no_blocks_of_the_framework(tmp_path: Path) -> None:
    """Its exports have the graph engine's in NPU_OP_MEM, and that is all there is."""
    folder = write_db(random_run(1), tmp_path / "a_ascend_pt", Database(engine_rows=False))
    alter(database_of(folder), "DROP TABLE OP_MEMORY")
    assert "no table OP_MEMORY" in read(folder).ranks[0].reason
    database_of(folder).rename(folder / OUTPUT / "msprof_20250109101532.db")
    assert "OP_MEMORY" not in read(folder).ranks[0].reason


def test_a_database_without_any_row_names_its_tables(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    tables = ("OP_MEMORY", "NPU_OP_MEM", "MEMORY_RECORD", "TASK", "COMMUNICATION_OP")
    alter(database_of(folder), *(f"DELETE FROM {table}" for table in tables))
    (rank,) = read(folder).ranks
    assert rank.status == "refused"
    assert "no rows in TASK; no rows in OP_MEMORY (profile it again" in rank.reason


@pytest.mark.parametrize("said", ["-3", "1e30", '"../../x"', "[[1]]", "99999999999", None])
@pytest.mark.parametrize("file", ["profiler_info_4.json", "profiler_info.json"])
def test_a_rank_that_its_file_does_not_say_is_told(tmp_path: Path, said: str | None, file: str) -> None:
    folder = write_db(small(), tmp_path / "rank_5_ascend_pt")
    path = database_of(folder).rename(folder / OUTPUT / "ascend_pytorch_profiler.db")
    (folder / "profiler_info_2.json").unlink()
    (folder / file).write_text('{"rank_id":' + ("" if said is None else f"{said}}}"))
    (rank,) = read(folder).ranks
    assert not any("the rank is not known" in line for line in rank.warnings), "the database has a map"
    alter(path, "DROP TABLE RANK_DEVICE_MAP")
    (rank,) = read(folder).ranks
    number, place = (4, "the file's name") if "4" in file else (5, "the folder's name")
    assert rank.rank == number
    (told,) = (line for line in rank.warnings if "the rank is not known" in line)
    assert told.startswith(f"{file} has ") and told.endswith(f"from it, {number} is taken, from {place}")
    assert len(told) < 200


@pytest.mark.parametrize("said", ["-3", "1e30", '"../../x"', "[[1]]", "99999999999", None])
def test_nor_is_it_left_out_where_text_is_read(tmp_path: Path, said: str | None) -> None:
    folder = write_text(small(), tmp_path / "rank_5_ascend_pt")
    assert not any("the rank is not known" in line for line in read(folder).ranks[0].warnings)
    info = folder / "profiler_info_2.json"
    info.write_text('{"rank_id":' + ("" if said is None else f"{said}}}"))
    for path, number, place in ((folder, 2, "the file's name"), (tmp_path, 2, "the file's name")):
        (rank,) = read(path).ranks
        (told,) = (line for line in rank.warnings if "the rank is not known" in line)
        assert rank.rank == number and told.endswith(f"from it, {number} is taken, from {place}")
    info.rename(folder / "profiler_info.json")
    (rank,) = read(folder).ranks
    assert rank.rank == 5 and any("5 is taken, from the folder's name" in line for line in rank.warnings)


def step_trace(folder: Path, *rows: tuple[str, float]) -> None:
    times = [(step, us, *(0,) * 8) for step, us in rows]
    path = folder / OUTPUT / "analysis.db"
    path.unlink()
    make(path, {"StepTraceTime": times}, {"StepTraceTime": ascend_db_fixture.STEP_TRACE})


def test_computing_time_is_that_of_the_profiles_own_step(tmp_path: Path) -> None:
    """And no mean: warm-up would count."""
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    step_trace(folder, ("6", 9_000.0), ("7", 11.0), ("8", 31.0))
    (rank,) = read(folder).ranks
    profile = database.read(RankFiles(folder, 2), Findings(folder))
    assert rank.computing_us == {7: 11.0, 8: 31.0}[profile.run.step or 0]


@pytest.mark.parametrize("steps", [True, False])
def test_the_trace_of_another_step_is_not_used(tmp_path: Path, steps: bool) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt", Database(steps=steps))
    step_trace(folder, ("0", 9_000.0), ("6", 9_000.0))
    (rank,) = read(folder).ranks
    assert rank.step_us is not None and rank.step_us < 100
    assert rank.computing_us is not None and rank.computing_us < 100, "the sum over the compute stream"


def test_a_rank_without_a_profile_has_the_median_over_steps(tmp_path: Path) -> None:
    folder = write_db(small(), tmp_path / "a_ascend_pt")
    step_trace(folder, ("6", 9_000.0), ("7", 11.0), ("8", 31.0))
    database_of(folder).write_bytes(b"")
    (rank,) = read(folder).ranks
    assert (rank.status, rank.computing_us) == ("refused", 31.0)
