"""CSV files as MindSpore's memory tracker writes them: nothing is quoted, and names and stacks may have commas.

::

    31,40,...,{32-35},35,File:a.py;Line:3;Function:f|File:b,c.py;Line:4;Function:g|,0,1,
    the first columns have fixed forms  ^ the access list divides     ^ and so have those behind the stack

Rows with the header's number of commas are read as they stand (or as quoted, which other writers do); one that has
more is put together again from both ends. Files are read in pieces, so that they may be larger than memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from profiler.read.findings import Findings, UnreadableError
from profiler.read.labels import label
from profiler.read.table import LINE, MAX_LINE

PIECE = 16 << 20
"""Bytes of a file that are parsed at a time."""

WHOLE = b"\x01"
"""Separator of tables whose rows are not divided: no text has it."""

QUOTED_CELL = r'(^|,)"(?:[^"]|"")*"'
"""A quote within a cell quotes nothing."""

PLAIN, QUOTED, WIDE, NARROW = range(4)
"""Forms of rows: as many commas as the header, as many outside quotes, more, fewer."""


class Dropping:
    """Collects, over the pieces of a file, rows that are not read, and tells of them at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, list[int]] = {}

    def take(self, why: str, lines: Sequence[int]) -> None:
        if lines:
            self.found.setdefault(why, []).extend(lines)

    def tell(self, findings: Findings) -> None:
        for why, lines in self.found.items():
            findings.drop(self.path, why, len(lines), tuple(lines))


def pieces(path: Path, columns: Sequence[str], dropping: Dropping) -> Iterator[pl.DataFrame]:
    """The cells of `columns` as text (null: nothing there, or no such column), with `LINE`, piece by piece;
    nothing where the file has none of the columns.

    Raises `UnreadableError` for a line of more than `MAX_LINE` bytes.
    """
    with path.open("rb") as file:
        header = header_of(file.readline(MAX_LINE))
        if not set(columns) & set(header):
            return
        line, rest = 2, b""
        while block := file.read(PIECE):
            cut = block.rfind(b"\n") + 1
            if len(rest) + len(block) > MAX_LINE + PIECE:
                raise UnreadableError(f"{path.name} has a line of more than {MAX_LINE >> 20} MiB: it is no table")
            if not cut:
                rest += block
                continue
            whole, rest = rest + block[:cut], block[cut:]
            yield _rows(whole, header, columns, line, dropping)
            line += whole.count(b"\n")
        if rest:
            yield _rows(rest, header, columns, line, dropping)


def header_of(line: bytes) -> list[str]:
    return [name.strip(' \t"') for name in line.decode("utf-8-sig", "replace").strip("\r\n").split(",")]


def _rows(text: bytes, header: list[str], columns: Sequence[str], first: int, dropping: Dropping) -> pl.DataFrame:
    """Rows as they are, if they have the header's commas, those put together again that have more, not the others."""
    text = text.replace(WHOLE, b" ")
    lines = _cells(text, 1, [0], separator=WHOLE.decode()).rename({"0": "text"})
    lines = lines.with_columns(pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias(LINE))
    lines = lines.filter(pl.col("text").str.strip_chars() != "")
    lines = lines.with_columns(form=_form(len(header) - 1, quoted=b'"' in text))
    found = []
    for form, quote in ((PLAIN, None), (QUOTED, '"')):
        part = lines.filter(pl.col("form") == form)
        if part.height:
            body = text if part.height == text.count(b"\n") else "\n".join(part["text"]).encode()
            places = [header.index(name) for name in columns if name in header]
            cells = _cells(body, len(header), places, quote=quote)
            cells = cells.rename({str(header.index(name)): name for name in columns if name in header})
            found.append(cells.with_columns(part[LINE]))
    wide = lines.filter(pl.col("form") == WIDE)
    if wide.height:
        rows = _wide(wide, header, columns)
        bad = pl.col("broken").fill_null(True)
        dropping.take("rows with commas in names that cannot be put together again", rows.filter(bad)[LINE].to_list())
        found.append(rows.filter(~bad).drop("broken"))
    dropping.take("rows with fewer fields than the header", lines.filter(pl.col("form") == NARROW)[LINE].to_list())
    empty = pl.DataFrame(schema=dict.fromkeys(columns, pl.String) | {LINE: pl.Int64})
    rows = pl.concat([empty, *found], how="diagonal")
    cell = pl.col(*columns).str.strip_chars(" \t\r\n")
    return rows.with_columns(pl.when(cell != "").then(cell).name.keep()).sort(LINE)


def _form(want: int, *, quoted: bool) -> pl.Expr:
    """The form of each row; to look for quotes takes as long as all the rest, so only where there are any."""
    commas = pl.col("text").str.count_matches(",", literal=True)
    form = pl.when(commas == want).then(PLAIN).when(commas > want).then(WIDE).otherwise(NARROW)
    if not quoted:
        return form
    bare = pl.col("text").str.replace_all(QUOTED_CELL, "${1}\x02")
    whole = ~bare.str.contains('"', literal=True) & ~bare.str.contains("\x02[^,\r]")
    cells = bare.str.contains("\x02", literal=True) & (bare.str.count_matches(",", literal=True) == want)
    return pl.when(cells & whole).then(QUOTED).otherwise(form)


def _cells(
    text: bytes, fields: int, places: Sequence[int], separator: str = ",", quote: str | None = None
) -> pl.DataFrame:
    """Columns `places` of a table without header, named by their places, as text."""
    table = pl.scan_csv(
        io.BytesIO(text),
        has_header=False,
        separator=separator,
        quote_char=quote,
        infer_schema=False,
        new_columns=[str(place) for place in range(fields)],
        encoding="utf8-lossy",
        empty_string_is_null=False,
        truncate_ragged_lines=True,
    )
    return table.select(str(place) for place in places).collect()


def _wide(lines: pl.DataFrame, header: list[str], columns: Sequence[str]) -> pl.DataFrame:
    """Rows with more commas than the header: the access list in braces divides what is too much on its left, which
    is within the node's name, from what is on its right, within the stack. Without a list all is in the stack."""
    parts = pl.col("text").str.split(",")
    surplus = parts.list.len().cast(pl.Int64) - len(header)
    users, stack, node = (_place(header, name) for name in ("user_tasks", "python_stack", "node_name"))
    braces = parts.list.eval(pl.element().str.contains(r"^\s*\{[\d-]*\}\s*$"))
    shift = braces.list.arg_max().cast(pl.Int64) - (users or 0)
    left = pl.lit(0, pl.Int64) if users is None else pl.when(braces.list.any()).then(shift).otherwise(0)
    rows = lines.select(LINE, parts=parts, left=left, surplus=surplus)
    cells = []
    for name in columns:
        place = _place(header, name)
        if place is None:
            continue
        if place > (stack or len(header)):
            cell = pl.col("parts").list.get(place - len(header))
        elif name == "node_name":
            cell = pl.col("parts").list.slice(place, pl.col("left") + 1).list.join(",")
        else:
            after = node is not None and place > node
            cell = pl.col("parts").list.get(place + pl.col("left") if after else place, null_on_oob=True)
        cells.append(cell.alias(name))
    whole = (pl.col("left") >= 0) & (pl.col("left") <= pl.col("surplus"))
    for place in range((stack or len(header)) + 1, len(header)):  # 0, 1 or, behind the last comma, nothing
        whole &= pl.col("parts").list.get(place - len(header)).is_in(["", "0", "1"])
    return rows.select(LINE, *cells, broken=~whole)


def _place(header: list[str], name: str) -> int | None:
    return header.index(name) if name in header else None


class Names:
    """Every name once, under a number: a file repeats them in each row."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.listed: list[str] = []

    def number(self, name: str) -> int:
        if (known := self.numbers.get(name)) is None:
            known = self.numbers[name] = len(self.listed)
            self.listed.append(label(name))
        return known

    def keep(self, frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        """The frame with numbers for the names in `columns`; the number of "" where there is none."""
        return frame.with_columns(self._numbered(frame[column]) for column in columns)

    def _numbered(self, names: pl.Series) -> pl.Series:
        if not len(names):
            return pl.Series(names.name, [], pl.Int32)
        column = names.fill_null("")
        unique = column.unique().to_list()
        numbers = [self.number(name) for name in unique]
        return column.replace_strict(unique, numbers, return_dtype=pl.Int32).alias(names.name)

    def at(self, numbers: pl.Series) -> list[str]:
        listed = self.listed
        return [listed[number] for number in numbers.to_list()]
