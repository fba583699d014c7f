"""CSV files of profilers: columns by name, rows that do not fit dropped and named, digits kept.

These files are written by many versions of many tools. Tabs stand inside time fields, line ends are mixed, rows end
with a comma or lack a field, new columns appear. So: every cell is read as text, stripped, and converted by the
caller with the functions here, which keep all digits::

    "1764246877073569.640\t"  --nanoseconds-->  1764246877073569640      (a double would keep 0.25 us)
    "16384.5"                 --scaled(1024)->  16777728

Polars streams the file; only the columns that are asked for are held in memory.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from profiler.read.findings import KEPT_PLACES, Findings, UnreadableError

NOTHING = ("", "N/A", "NA", "NULL", "null", "None", "nan", "NaN")
"""Cells that mean "no value"."""

MAX_LINE = 64 << 20
"""Bytes. A longer line is no row of a table but an attack or another format."""

MARK = "\x02"

LINE = "line"
"""Column of `read_table`: the row's line in its file, counted from 1; the header is line 1."""


def read_table(
    path: Path, columns: Mapping[str, Sequence[str]], findings: Findings, *, need: Sequence[str] = ()
) -> pl.DataFrame:
    """Rows of the CSV file at `path`, as stripped text (null where a cell says nothing).

    `columns`: name in the result -> the names it has had in files; the first one present is taken, and a column
    that is in no file is all null. `need`: results without which the file is of no use (`UnreadableError`).
    Besides them there is `LINE`. Rows with another number of fields than the header, or with an open quote, are
    dropped and told to `findings`. An empty file has no rows.
    """
    header = _header(path)
    if header is None:
        findings.warn(f"{findings.name(path)} is empty")
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.String) | {LINE: pl.Int64})
    present = {name: next((c for c in names if c in header), None) for name, names in columns.items()}
    if lost := [name for name in need if present[name] is None]:
        wanted = ", ".join("/".join(columns[name]) for name in lost)
        raise UnreadableError(f"{findings.name(path)} has no column {wanted}: its header is {','.join(header)[:80]!r}")
    source, lines = _well_formed(path, len(header), findings)
    frame = pl.scan_csv(
        source,
        has_header=False,
        glob=False,
        skip_rows=0 if lines is not None else 1,
        schema={f"{number}": pl.String for number in range(len(header))},
        encoding="utf8-lossy",
        empty_string_is_null=True,
        raise_if_empty=False,
    )
    picked = [
        _cell(f"{header.index(column)}").alias(name) if column is not None else pl.lit(None, pl.String).alias(name)
        for name, column in present.items()
    ]
    try:
        rows = frame.select(*picked, every="0").collect(engine="streaming").drop("every")
    except pl.exceptions.PolarsError as error:
        raise UnreadableError(f"{findings.name(path)} does not read as a table: {str(error)[:200]}") from error
    return rows.with_columns(lines.alias(LINE) if lines is not None else pl.int_range(2, rows.height + 2).alias(LINE))


def nanoseconds(column: str, per_unit: int = 1000) -> pl.Expr:
    """Integer nanoseconds of a text column of decimal numbers in units of `per_unit` ns (microseconds as default);
    null where it is no number, or more than 2^62 ns. Exact up to three decimals of a microsecond."""
    number = pl.col(column).cast(pl.Decimal(38, 6), strict=False)
    fitting = pl.when(number.abs() <= 2**62 // per_unit + 1).then(number)
    return (fitting * per_unit).round(0).cast(pl.Int64, strict=False)


def scaled(column: str, unit: int) -> pl.Expr:
    """Integer bytes of a text column of decimal numbers in units of `unit` bytes; null where it is no number or
    more than a profile can hold (2^53)."""
    number = pl.col(column).cast(pl.Decimal(38, 11), strict=False)
    fitting = pl.when(number.abs() <= 2**53 // unit).then(number)
    return (fitting * unit).round(0).cast(pl.Int64, strict=False)


def _cell(column: str) -> pl.Expr:
    text = pl.col(column).str.strip_chars(" \t\r\n")
    return pl.when(~text.is_in(NOTHING)).then(text)


def _header(path: Path) -> list[str] | None:
    """Names of the columns; the empty one behind a trailing comma is kept, as rows have it too."""
    with path.open("rb") as file:
        first = file.readline(MAX_LINE + 1)
    if len(first) > MAX_LINE:
        raise UnreadableError(f"{path.name} has a first line of more than {MAX_LINE >> 20} MiB: it is no table")
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UnreadableError(f"{path.name} is UTF-16: save it as UTF-8, or take the file as the profiler wrote it")
    text = first.decode("utf-8-sig", "replace").strip("\r\n")
    if not text.strip():
        return None
    try:
        return [name.strip() for name in next(csv.reader([text.replace("\x00", "")]), [])]
    except csv.Error as error:
        raise UnreadableError(f"{path.name} has no header that reads ({error}): is it a table at all?") from error


def _well_formed(path: Path, fields: int, findings: Findings) -> tuple[Path | io.BytesIO, pl.Series | None]:
    """The file itself where all its rows have `fields` fields; else its good rows without the header, and their
    lines."""
    raw = pl.scan_csv(
        path,
        has_header=False,
        glob=False,
        separator="\x01",
        quote_char=None,
        schema={"text": pl.String},
        encoding="utf8-lossy",
        empty_string_is_null=False,
        extra_columns="ignore",
    )
    # A quoted cell becomes one mark; what a quote is left in, or a mark stands beside, is no cell.
    text = pl.col("text").str.strip_chars_end("\r")
    marked = text.str.replace_all('"(?:[^"]|"")*"', MARK)
    odd = marked.str.contains(f'"|[^,]{MARK}|{MARK}[^,]')
    quoted = pl.col("text").str.contains('"', literal=True)
    commas = pl.when(quoted).then(marked).otherwise(text).str.count_matches(",", literal=True)
    good = (commas == fields - 1) & ~pl.when(quoted).then(odd).otherwise(False)
    shape = raw.select(good=good, blank=text.str.strip_chars() == "").collect(engine="streaming")
    if shape["good"].all():
        return path, None
    kept = shape.with_row_index("row", 1)
    bad = kept.filter(~pl.col("good") & ~pl.col("blank") & (pl.col("row") > 1))["row"]
    findings.drop(
        path, f"rows without exactly {fields} fields", bad.len(), tuple(int(n) for n in bad.head(KEPT_PLACES))
    )
    body = raw.with_row_index("row", 1).filter(kept["good"] & (kept["row"] > 1)).select("text", "row").collect()
    return io.BytesIO("\n".join(body["text"]).encode()), body["row"].cast(pl.Int64)


def without(rows: pl.DataFrame, bad: pl.Expr, path: Path, why: str, findings: Findings) -> pl.DataFrame:
    """The rows where `bad` is not true; those where it is are told to `findings` by their lines."""
    found = rows.filter(bad)
    if not found.height:
        return rows
    findings.drop(path, why, found.height, tuple(found[LINE].head(KEPT_PLACES).to_list()))
    return rows.filter(bad.fill_null(False).not_())
