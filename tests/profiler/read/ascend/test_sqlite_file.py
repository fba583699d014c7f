"""`profiler.read.ascend.sqlite_file` against files that are broken or mean harm."""

from __future__ import annotations

import random
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiler.read.ascend import sqlite_file
from profiler.read.ascend.sqlite_file import MAX_TEXT, Columns, SqliteFile, is_sqlite
from profiler.read.findings import Findings, UnreadableError

T: Columns = {"a": (pl.Int64, ("a", "older_a")), "b": (pl.String, ("b",)), "c": (pl.Float64, ("c",))}


def database(path: Path, *statements: str, rows: int = 0) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements or ("CREATE TABLE t (a INTEGER, b TEXT, c REAL)",):
            connection.execute(statement)
        if rows:
            values = ((n, f"text {n}", n / 2) for n in range(rows))
            connection.executemany("INSERT INTO t VALUES (?, ?, ?)", values)
    return path


def rows_of(path: Path, findings: Findings | None = None, columns: Columns = T) -> list[tuple[object, ...]]:
    with SqliteFile(path, findings or Findings(path.parent)) as file:
        return file.read("t", columns).rows()


def schema(path: Path, *rows: tuple[str, str, str, int, str]) -> None:
    """Rows into the schema as they are, past sqlite's own statements."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", rows)


def test_columns_by_any_of_their_names_others_are_null(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", "CREATE TABLE t (extra, older_a INTEGER)", "INSERT INTO t VALUES (9, 1)")
    assert rows_of(path) == [(1, None, None)]


def test_no_table_has_no_rows(tmp_path: Path) -> None:
    with SqliteFile(database(tmp_path / "x.db"), Findings(tmp_path)) as file:
        assert file.read("other", T).rows() == [] and not file.has("other", T)
        assert file.has("t", T) and file.has("T", T, "a")


def test_cells_of_another_type_are_null_and_told(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", "CREATE TABLE t (a, b, c)")
    with closing(sqlite3.connect(path)) as connection, connection:
        cells = [
            (7, "x", 1.5), ("0042", b"blob", 2), (3.0, 4, "2.0"), ("no", "", None), (b"1", None, float("inf")),
            ("9223372036854775807", "\u00e9", 0), (1e300, "z", 0), ("-5", "z", 0), ("9" * 40, "z", 0), (None, "z", 0),
            (-(2**63), "z", 0), ("1" * (1 << 20), "z", 0), (5, "a\0" + "b" * MAX_TEXT, 0), (5, "c" * MAX_TEXT, 0),
        ]  # fmt: skip
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", cells)
    findings = Findings(tmp_path)
    read = rows_of(path, findings)
    assert [row[0] for row in read] == [7, 42, 3, None, None, None, None, None, None, None, None, None, 5, 5]
    assert [row[1] for row in read[:8]] == ["x", None, None, "", None, "\u00e9", "z", "z"]
    assert read[-2][1] is None and read[-1][1] == "c" * MAX_TEXT
    assert [row[2] for row in read[:5]] == [1.5, 2.0, None, None, float("inf")]
    assert {(d.rows, d.why.split(" that")[0]) for d in findings.dropped} == {
        (8, "cells of t (a)"),
        (3, "cells of t (b)"),
    }


def test_text_that_is_no_utf8_and_utf16(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", "CREATE TABLE t (b TEXT)", "INSERT INTO t VALUES (CAST(x'61ff62' AS TEXT))")
    assert rows_of(path) == [(None, "a\ufffdb", None)]
    wide = ("PRAGMA encoding='UTF-16le'", "CREATE TABLE t (b TEXT)", "INSERT INTO t VALUES ('\u4e2d')")
    assert rows_of(database(tmp_path / "y.db", *wide)) == [(None, "\u4e2d", None)]


def test_nothing_is_written_and_nothing_appears_beside(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", rows=1000)
    path.chmod(0o644)
    before = path.read_bytes(), path.stat().st_mtime_ns
    rows_of(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.db"]


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_unfinished_writes_are_not_replayed(tmp_path: Path, suffix: str) -> None:
    path = database(tmp_path / "x.db", rows=3)
    if suffix == "-wal":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("INSERT INTO t VALUES (99, '', 0)")
            connection.commit()
            logged = path.with_name("x.db-wal").read_bytes()
        path.with_name("x.db-wal").write_bytes(logged)
    else:
        path.with_name("x.db-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(1024))
    path.with_name("x.db-shm").unlink(missing_ok=True)
    findings = Findings(tmp_path)
    before = sorted((p.name, p.stat().st_size) for p in tmp_path.iterdir())
    assert len(rows_of(path, findings)) >= 3
    assert any(suffix in warning for warning in findings.warnings)
    assert sorted((p.name, p.stat().st_size) for p in tmp_path.iterdir()) == before


def test_names_of_files_are_no_uri(tmp_path: Path) -> None:
    path = database(tmp_path / "a?mode=rwc&b#c%41 '.db", rows=2)
    assert len(rows_of(path)) == 2
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE u (a)", "CREATE VIEW t AS SELECT a, 'x' AS b, 1.0 AS c FROM u"),
        ("CREATE VIEW t AS WITH RECURSIVE n(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n) SELECT a FROM n",),
        ("CREATE VIRTUAL TABLE t USING fts5(a, b, c)",),
        ("CREATE VIRTUAL TABLE t USING rtree(a, b, c)",),
    ],
    ids=["view", "endless view", "fts5", "rtree"],
)
def test_views_and_virtual_tables_are_no_tables(tmp_path: Path, statements: tuple[str, ...]) -> None:
    assert rows_of(database(tmp_path / "x.db", *statements)) == []


@pytest.mark.parametrize(
    ("kind", "name", "page", "sql"),
    [
        ("table", "t", 2, "CREATE VIEW t AS SELECT 1 AS a"),
        ("table", "t", 0, "CREATE TABLE t (a, b, c)"),
        ("table", "t", 1, "CREATE TABLE t (a, b, c)"),
        ("table", "t", 3, "CREATE /**/ VIEW t AS SELECT 1 AS a"),
        ("table", "t", 900, "CREATE TABLE t (a, b, c)"),
        ("table", "t", -1, "CREATE TABLE t (a, b, c)"),
        ("index", "t", 2, "CREATE TABLE t (a, b, c)"),
        ("table", "t", 2, "CREATE TABLE other (a, b, c)"),
        ("table", "t", 2, "CREATE TABLE t (a DEFAULT (" + "(" * 5000 + "1" + ")" * 5001 + ", b, c)"),
        ("table", "t", 2, "SELECT 1"),
        ("trigger", "t", 0, "CREATE TRIGGER t AFTER INSERT ON u BEGIN SELECT 1; END"),
    ],
)
def test_a_schema_that_lies_yields_nothing(tmp_path: Path, kind: str, name: str, page: int, sql: str) -> None:
    path = database(tmp_path / "x.db", "CREATE TABLE u (a)", "INSERT INTO u VALUES (1)")
    schema(path, (kind, name, name, page, sql))
    try:
        assert rows_of(path) == []
    except UnreadableError as error:
        assert "x.db" in str(error)


def test_a_second_statement_in_the_schema_does_not_run(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", "CREATE TABLE u (a)", "INSERT INTO u VALUES (1)")
    schema(path, ("table", "t", "t", 2, "CREATE TABLE t (a, b, c); DROP TABLE u"))
    before = path.read_bytes()
    assert rows_of(path) == [(1, None, None)] and path.read_bytes() == before


def test_views_upon_views_are_not_expanded(tmp_path: Path) -> None:
    doubling = [f"CREATE VIEW v{n + 1} AS SELECT v{n}.a FROM v{n} JOIN v{n}" for n in range(60)]
    base = ("CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)", "CREATE VIEW v0 AS SELECT a FROM t")
    assert rows_of(database(tmp_path / "x.db", *base, *doubling)) == [(1, None, None)]


def test_generated_columns_are_not_computed(tmp_path: Path) -> None:
    made = "CREATE TABLE t (a INTEGER, b TEXT AS (hex(a)), c REAL AS (a * 2.0) STORED)"
    findings = Findings(tmp_path)
    assert rows_of(database(tmp_path / "x.db", made, "INSERT INTO t (a) VALUES (1)"), findings) == [(1, None, None)]
    assert any("2 generated columns" in warning for warning in findings.warnings)


def test_an_index_that_lies_is_not_asked(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", rows=500)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE INDEX i ON t (a, b, c)")
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'i'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    data = bytearray(path.read_bytes())
    data[(page - 1) * size : page * size] = bytes(size)
    path.write_bytes(data)
    assert len(rows_of(path)) == 500


def test_names_with_sql_in_them(tmp_path: Path) -> None:
    name = 't"; DROP TABLE t; --'
    quoted = name.replace('"', '""')
    path = database(
        tmp_path / "x.db",
        f'CREATE TABLE "{quoted}" (a)',
        f'CREATE TABLE t (a INTEGER, "{quoted}" TEXT, b TEXT)',
        "INSERT INTO t VALUES (1, 'x', ''' OR 1=1; --')",
    )
    assert rows_of(path) == [(1, "' OR 1=1; --", None)]


def test_pages_that_name_each_other_make_no_endless_table(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", rows=3000)
    with closing(sqlite3.connect(path)) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    data = bytearray(path.read_bytes())
    place = (root - 1) * size
    (cell,) = struct.unpack_from(">H", data, place + 12)
    child = bytes(data[place + cell : place + cell + 4])
    for _ in range(6):  # each an inner page that names the one before 400 times
        page = bytearray(size)
        page[0] = 5
        struct.pack_into(">HHB4s", page, 3, 400, size - 7, 0, child)
        page[size - 7 :] = child + b"\x01\0\0"
        struct.pack_into(">400H", page, 12, *([size - 7] * 400))
        data += page
        child = struct.pack(">I", len(data) // size)
    data[place : place + size] = data[-size:]
    struct.pack_into(">I", data, 28, len(data) // size)
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match="too many"):
        rows_of(path)


def test_a_schema_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = database(tmp_path / "x.db")
    schema(path, *(("view", f"v{n}", f"v{n}", 0, f"CREATE VIEW v{n} AS SELECT 1") for n in range(2000)))
    monkeypatch.setattr(sqlite_file, "SCHEMA_S", -1.0)
    with pytest.raises(UnreadableError, match="schema"):
        rows_of(path)


def test_a_huge_cell_ends_the_table_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sqlite_file._LIMITS, sqlite3.SQLITE_LIMIT_LENGTH, 1 << 20)
    path = database(tmp_path / "x.db", rows=5)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO t VALUES (5, hex(zeroblob(1000000)), 0)")
    findings = Findings(tmp_path)
    assert len(rows_of(path, findings)) <= 6
    assert findings.missing or findings.dropped


def test_limits_of_rows_texts_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = database(tmp_path / "x.db", rows=200_000)
    for name, value, told in (("MAX_ROWS", 1000, "rows"), ("MAX_TEXTS", 1000, "texts"), ("DEADLINE_S", -1.0, "took")):
        with monkeypatch.context() as patch, pytest.raises(UnreadableError, match=told):
            patch.setattr(sqlite_file, name, value)
            rows_of(path)


@pytest.mark.parametrize(
    "content", [b"", b"SQLite format 3", b"SQLite format 3\x00", b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    with pytest.raises(UnreadableError, match=r"x\.db"):
        rows_of(path)


def test_folders_and_absent_files_are_none(tmp_path: Path) -> None:
    assert not is_sqlite(tmp_path) and not is_sqlite(tmp_path / "absent.db")
    with pytest.raises(UnreadableError):
        SqliteFile(tmp_path, Findings(tmp_path))


def test_a_truncated_file_gives_what_is_there_and_says_so(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", rows=20_000)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    findings = Findings(tmp_path)
    try:
        assert 0 < len(rows_of(path, findings)) < 20_000
    except UnreadableError as error:
        assert "x.db" in str(error)
    else:
        assert any("breaks off" in warning for warning in findings.warnings) and findings.missing


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 60))
def test_flipped_bytes_never_surprise(tmp_path: Path, seed: int, flips: int) -> None:
    path = tmp_path / "x.db"
    if not (tmp_path / "good").exists():
        database(tmp_path / "good", rows=300)
    data = bytearray((tmp_path / "good").read_bytes())
    rng = random.Random(seed)
    for _ in range(flips):
        data[rng.randrange(16, len(data))] = rng.randrange(256)
    path.write_bytes(data)
    try:
        rows_of(path)
    except UnreadableError as error:
        assert "x.db" in str(error)
