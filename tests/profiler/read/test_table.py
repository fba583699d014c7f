"""Tables as profilers write them: every digit kept, every row that does not fit named."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.read.findings import Findings, UnreadableError
from profiler.read.table import LINE, nanoseconds, read_table, scaled, without

COLUMNS = {"name": ("Name", "Op Name"), "start": ("Start Time(us)",), "size": ("Size(KB)",), "new": ("Not Yet",)}


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, text: str | bytes) -> tuple[pl.DataFrame, Findings]:
    findings = Findings(folder)
    return read_table(written(folder, text), COLUMNS, findings), findings


def test_columns_by_any_of_their_names_and_all_digits(tmp_path: Path) -> None:
    text = 'Op Name,Extra,Start Time(us),Size(KB)\na,x,1764246877073569.640\t,16384.5\n"b, with a comma",,2,0.5\n'
    rows, findings = read(tmp_path, text)
    rows = rows.with_columns(nanoseconds("start"), scaled("size", 1024))
    assert rows["name"].to_list() == ["a", "b, with a comma"]
    assert rows["start"].to_list() == [1764246877073569640, 2000]
    assert rows["size"].to_list() == [16384 * 1024 + 512, 512]
    assert rows["new"].to_list() == [None, None] and rows[LINE].to_list() == [2, 3]
    assert not findings.dropped and not findings.warnings


@given(st.integers(0, 2**62))
def test_no_digit_of_a_time_is_lost(ns: int) -> None:
    frame = pl.DataFrame({"t": [f"{ns // 1000}.{ns % 1000:03d}"]})
    assert frame.select(nanoseconds("t")).item() == ns


def test_what_is_no_number_is_null() -> None:
    frame = pl.DataFrame({"t": ["", "N/A", "nan", "inf", "1.2.3", "0x10", "1e400", None]})
    assert frame.select(nanoseconds("t"))["t"].to_list() == [None] * 8
    assert frame.select(scaled("t", 1024))["t"].to_list() == [None] * 8
    assert pl.DataFrame({"t": ["1e30"]}).select(scaled("t", 1)).item() is None


def test_rows_of_another_width_and_open_quotes_are_dropped_and_named(tmp_path: Path) -> None:
    """Case C16: a field too few, a field too many, an open quote, a blank line, mixed line ends."""
    text = b'Name,Start Time(us),Size(KB)\r\na,1.5\t,2.5\nb,2\n\n"c,3,4\nd,,8\r\ne,5,6,7\nf,9,1'
    rows, findings = read(tmp_path, text)
    assert rows["name"].to_list() == ["a", "d", "f"]
    assert rows[LINE].to_list() == [2, 6, 8]
    (dropped,) = findings.dropped
    assert (dropped.file, dropped.rows, dropped.lines) == ("table.csv", 3, (3, 5, 7))


def test_a_comma_at_every_line_s_end_is_a_column_without_a_name(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, "Name,Start Time(us),\na,1,\nb,2,\n")
    assert rows["start"].to_list() == ["1", "2"] and not findings.dropped


def test_an_empty_file_has_no_rows_and_says_so(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, "")
    assert rows.height == 0 and findings.warnings == ["table.csv is empty"]


def test_a_header_alone_is_no_fault(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, "Name,Start Time(us)\n")
    assert rows.height == 0 and not findings.warnings


def test_a_file_without_what_is_needed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no column Size"):
        read_table(written(tmp_path, "Name,Start\na,1\n"), COLUMNS, Findings(tmp_path), need=("size",))


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no table"):
        read(tmp_path, b"x" * (65 << 20))


def test_rows_left_out_by_a_rule_are_named(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, "Name,Size(KB)\na,1\nb,-1\nc,\n")
    rows = rows.with_columns(scaled("size", 1024))
    kept = without(rows, pl.col("size") < 0, tmp_path / "table.csv", "negative", findings)
    assert kept["name"].to_list() == ["a", "c"]
    assert [(d.why, d.lines) for d in findings.dropped] == [("negative", (3,))]


def test_a_byte_that_parts_lines_here_is_only_a_byte_there(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, b"Name\x01,Size(KB)\na,1\nb\x01,2\n")
    assert rows["size"].to_list() == ["1"] and findings.dropped[0].lines == (3,)


def test_no_column_that_is_asked_for_and_no_row_that_is_good(tmp_path: Path) -> None:
    findings = Findings(tmp_path)
    rows = read_table(written(tmp_path, "A,B\n1\n"), {"c": ("C",)}, findings)
    assert rows.height == 0 and findings.dropped[0].lines == (2,)


@given(st.binary(max_size=400) | st.text("\",\n\r\x00\x01\x02 a1", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    try:
        rows, _ = read(folder, b"Name,Start Time(us),Size(KB)\n" + data)
    except UnreadableError:
        return
    assert rows.columns == [*COLUMNS, LINE]
