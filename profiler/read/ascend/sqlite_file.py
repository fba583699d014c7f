"""A sqlite file that somebody else wrote, opened so that it can neither be changed nor do harm.

What is read are plain columns of ordinary tables, one table at a time; joins are done outside. So nothing that a file
brings along ever runs: no view, trigger, virtual table, generated column or index of its own choosing. ::

    file --> mode=ro, immutable --> limits --> names of ordinary tables --> SELECT typed columns --> polars frames
             (-wal, -journal not              (CREATE TABLE in the          (cells of another type
              touched)                         schema, nothing else)         become null, and are counted)

Time and memory are bounded: the schema by `SCHEMA_S`, all reading by `DEADLINE_S`, a table by `MAX_ROWS` and by the
rows that the file has room for (pages that name each other many times over make endless tables), a text by
`MAX_TEXT`, all texts of one file by `MAX_TEXTS`.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import polars as pl

from profiler.read.findings import Findings, UnreadableError
from profiler.read.labels import label

MAGIC = b"SQLite format 3\x00"
DEADLINE_S = 120.0
"""Seconds for all that is read of one file."""
SCHEMA_S = 10.0
"""Seconds for its schema: sqlite's time for that grows with the square of what it lists."""
LEAST_ROW = 4
"""Bytes: no row takes less of a file."""
MAX_ROWS = 50_000_000
MAX_TEXT = 1 << 16
"""Bytes of one cell of text. Shapes of a kernel with a thousand inputs are 20,000."""
MAX_TEXTS = 1 << 28
"""Bytes of all texts read from one file."""

_CHUNK, _CHUNK_OF_TEXTS = 1 << 16, 1 << 11  # rows at a time
_STEPS_BETWEEN_LOOKS, _STEPS_OF_SCHEMA = 200_000, 1_000  # of sqlite's virtual machine: some milliseconds
_TABLE = re.compile(r"CREATE TABLE\s+[\"'`\[]?(\w+)[\"'`\]]?\s*\(", re.ASCII | re.IGNORECASE)
_WRONG = -(2**63)  # stands for an integer cell of another type until it is counted
_WRONG_TEXT = "\x00"

_BROKEN = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite raises of a broken file; the second where its own message quotes bytes of the file."""

_AGAIN = "copy it again from where it was written, or export the profile again"

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 64 << 20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1 << 20,
    sqlite3.SQLITE_LIMIT_COLUMN: 2000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

# One cell of each kind. Some writers keep integers as text (PYTORCH_API.startNs) or as reals; a cast would make 0 of
# what is neither. The length of a text is that of its bytes: `length` of a text ends at a zero byte.
_CELL = {
    pl.Int64: (
        "CASE typeof(\"{0}\") WHEN 'integer' THEN \"{0}\" WHEN 'null' THEN NULL "
        'WHEN \'real\' THEN CASE WHEN abs("{0}") < 9e15 THEN CAST(round("{0}") AS INTEGER) ELSE {1} END '
        "WHEN 'text' THEN CASE WHEN length(CAST(\"{0}\" AS BLOB)) BETWEEN 1 AND 18 OR "
        'length(CAST("{0}" AS BLOB)) = 19 AND "{0}" < \'9223372036854775807\' THEN '
        'CASE WHEN "{0}" NOT GLOB \'*[^0-9]*\' THEN CAST("{0}" AS INTEGER) ELSE {1} END ELSE {1} END ELSE {1} END'
    ),
    pl.Float64: "CASE WHEN typeof(\"{0}\") IN ('integer', 'real') THEN CAST(\"{0}\" AS REAL) END",
    pl.String: (
        "CASE typeof(\"{0}\") WHEN 'null' THEN NULL WHEN 'text' THEN "
        'CASE WHEN length(CAST("{0}" AS BLOB)) <= {2} THEN "{0}" ELSE char(0) END ELSE char(0) END'
    ),
}
Kind = type[pl.Int64] | type[pl.Float64] | type[pl.String]
Columns = Mapping[str, tuple[Kind, tuple[str, ...]]]
"""Name in the frame -> type, and the names that the column has had in files."""


def _first(error: Exception) -> str:
    """What sqlite says, which may quote the file, in one short line."""
    return label(str(error)) or type(error).__name__


def is_sqlite(path: Path) -> bool:
    """Whether a regular file begins as sqlite's do."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class SqliteFile:
    """Tables of the sqlite file at `path`; a context manager. Raises `UnreadableError` where the file is none, or
    its schema cannot be parsed."""

    def __init__(self, path: Path, findings: Findings) -> None:
        self.path = path
        self.findings = findings
        self.name = findings.name(path)
        if not is_sqlite(path):
            raise UnreadableError(f"{self.name} is no sqlite file: it does not begin with {MAGIC[:15]!r} ({_AGAIN})")
        self._warn_of_unfinished_writes()
        self._texts = 0
        self._most_rows = min(MAX_ROWS, path.stat().st_size // LEAST_ROW)
        self._deadline = time.monotonic() + SCHEMA_S
        self._tables: dict[str, frozenset[str]] = {}
        self._others: set[str] = set()
        try:
            self._connection = self._open()
        except _BROKEN as error:
            raise UnreadableError(f"{self.name} cannot be opened: {_first(error)} ({_AGAIN})") from error
        try:
            self._ordinary = self._ordinary_tables()
        except _BROKEN as error:
            self.close()
            raise UnreadableError(f"{self.name} has a broken schema: {_first(error)} ({_AGAIN})") from error
        self._deadline = time.monotonic() + DEADLINE_S
        self._connection.set_progress_handler(self._is_late, _STEPS_BETWEEN_LOOKS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def columns(self, table: str) -> frozenset[str]:
        """Names of the columns that are stored in the file; empty where there is no such ordinary table."""
        if table.lower() not in self._ordinary:
            return frozenset()
        if table not in self._tables:
            try:
                rows = self._connection.execute(f'PRAGMA table_xinfo("{table}")').fetchall()
            except _BROKEN as error:
                said = f"{self.name}: table {table} cannot be read: {_first(error)}"
                raise UnreadableError(f"{said} ({_AGAIN})") from error
            if made := [row[1] for row in rows if row[6]]:
                self.findings.warn(f"{self.name}: {len(made)} generated columns of {table} are not read")
            self._tables[table] = frozenset(str(row[1]) for row in rows if not row[6])
        return self._tables[table]

    def lack(self, table: str) -> str | None:
        """In words, that there is no such table to read; None if there is."""
        if self.columns(table):
            return None
        return f"{table} is no ordinary table" if table.lower() in self._others else f"no table {table}"

    def has(self, table: str, columns: Columns, *names: str) -> bool:
        """Whether the table has, under one of their names, these of the columns (all of them by default)."""
        there = self.columns(table)
        return bool(there) and all(any(c in there for c in columns[name][1]) for name in names or columns)

    def read(self, table: str, columns: Columns) -> pl.DataFrame:
        """All rows of a table. A column that is not there is null; without the table, there are no rows.

        Cells of another type than asked for are null and told to the findings, as is a table that breaks off.
        Raises `UnreadableError` where a limit is reached.
        """
        schema = {name: kind for name, (kind, _) in columns.items()}
        there = self.columns(table)
        if not there:
            return pl.DataFrame(schema=schema)
        found = {name: next((c for c in names if c in there), None) for name, (_, names) in columns.items()}
        cells = [
            _CELL[columns[name][0]].format(column, _WRONG, MAX_TEXT) if column is not None else "NULL"
            for name, column in found.items()
        ]
        frames = [pl.DataFrame(schema=schema)]
        rows, size = 0, _CHUNK_OF_TEXTS if pl.String in schema.values() else _CHUNK
        try:
            # NOT INDEXED: an index of the file may be broken, or an expression.
            cursor = self._connection.execute(f'SELECT {", ".join(cells)} FROM "{table}" NOT INDEXED')
            while chunk := cursor.fetchmany(size):
                frames.append(pl.DataFrame(chunk, schema=schema, orient="row"))
                rows += len(chunk)
                self._spend(table, rows, frames[-1])
        except _BROKEN as error:
            if self._is_late():
                raise UnreadableError(f"{self.name}: reading took more than {DEADLINE_S:.0f} s") from error
            self.findings.warn(f"{self.name}: table {table} breaks off after {rows} rows: {_first(error)}")
            self.findings.lacks(f"rows of {table} beyond the {rows} that can be read")
        return self._counted(table, pl.concat(frames))

    def _spend(self, table: str, rows: int, chunk: pl.DataFrame) -> None:
        if rows > self._most_rows:
            raise UnreadableError(f"{self.name}: table {table} has more than {self._most_rows} rows, too many for it")
        self._texts += sum(int(chunk[c].str.len_bytes().sum()) for c, t in chunk.schema.items() if t == pl.String)
        if self._texts > MAX_TEXTS:
            raise UnreadableError(f"{self.name}: texts of more than {MAX_TEXTS >> 20} MiB")

    def _counted(self, table: str, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with null for cells of a wrong type, which are told to the findings."""
        wrong = {
            name: (pl.col(name) == (_WRONG_TEXT if kind == pl.String else _WRONG)).fill_null(False)
            for name, kind in rows.schema.items()
            if kind != pl.Float64
        }
        counts = rows.select(expr.sum().alias(name) for name, expr in wrong.items())
        if not counts.width or not sum(counts.row(0)):
            return rows
        for name, count in counts.row(0, named=True).items():
            if count:
                self.findings.drop(self.path, f"cells of {table} ({name}) that are of another type or too long", count)
        return rows.with_columns(pl.when(~expr).then(pl.col(name)).alias(name) for name, expr in wrong.items())

    def _open(self) -> sqlite3.Connection:
        uri = f"file:{quote(str(self.path.absolute()))}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        connection.set_progress_handler(self._is_late, _STEPS_OF_SCHEMA)
        return connection

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _ordinary_tables(self) -> frozenset[str]:
        """Lower-case names of tables. A schema may lie in each of its fields but the text of the statement, which
        is what sqlite goes by, so that one counts: views, virtual tables and tables named otherwise are left out."""
        rows = self._connection.execute("SELECT type, name, rootpage, sql FROM sqlite_master").fetchall()
        ordinary = set()
        for kind, name, page, sql in rows:
            known = isinstance(name, str) and isinstance(sql, str) and isinstance(page, int)
            statement = _TABLE.match(sql) if known else None
            if kind == "table" and page > 1 and statement and statement[1].lower() == name.lower():
                ordinary.add(name.lower())
            elif isinstance(name, str):
                self._others.add(name.lower())
        return frozenset(ordinary)

    def _warn_of_unfinished_writes(self) -> None:
        for suffix in ("-wal", "-journal"):
            beside = self.path.with_name(self.path.name + suffix)
            try:
                size = beside.stat().st_size
            except OSError:
                continue
            if size:
                self.findings.warn(f"{beside.name} ({size} bytes, a write that was not finished) is not read")
