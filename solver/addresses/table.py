"""The table of buffers: CSV in, the same rows with a column `offset` out.

::

    id,lower,upper,size            required; ids are text, the rest whole numbers
    alignment,pinned,alias,apart,pool   optional, in any order; apart holds labels separated by ";"

Other columns are carried over as they are; a column `offset` that is there is replaced.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

from solver.addresses.problem import MOST, AddressError, Buffer, check

REQUIRED = ("id", "lower", "upper", "size")
COLUMNS = "required are id, lower, upper, size; optional alignment, pinned, alias, apart, pool"


@dataclass(frozen=True)
class Table:
    """The rows as text, and the buffers that they describe, in the same order."""

    header: list[str]
    rows: list[list[str]]
    buffers: list[Buffer]

    def with_offsets(self, offsets: Mapping[str, int]) -> bytes:
        """The table with the column `offset` last."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        keep = [i for i, name in enumerate(self.header) if name != "offset"]
        writer.writerow([*(self.header[i] for i in keep), "offset"])
        for row, buffer in zip(self.rows, self.buffers, strict=True):
            writer.writerow([*(row[i] for i in keep), offsets[buffer.id]])
        return out.getvalue().encode()


def read(data: bytes) -> Table:
    """The table in `data` (UTF-8, comma separated). Raises `AddressError` that names column, row and remedy."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AddressError("(all)", f"byte {error.start}", "not UTF-8", "save the table as UTF-8") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append([cell.strip() for cell in row])
                lines.append(reader.line_num)
    except csv.Error as error:
        raise AddressError("(all)", f"line {reader.line_num}", f"not CSV: {error}", "mend the quotes") from error
    if not rows:
        raise AddressError("id", "line 1", "the table is empty", f"give a header line: {COLUMNS}")
    header, rows, lines = rows[0], rows[1:], lines[1:]
    for name in REQUIRED:
        if name not in header:
            raise AddressError(name, f"line {reader.line_num if not rows else 1}", "there is no such column", COLUMNS)
    for name in header:
        if header.count(name) > 1:
            raise AddressError(name or "(no name)", "line 1", "the column is there twice", "leave one out")
    if not rows:
        raise AddressError("id", "line 2", "there are no buffers", "give one line a buffer")
    buffers = [_buffer(header, row, line) for row, line in zip(rows, lines, strict=True)]
    check(buffers, [f"line {line}" for line in lines])
    return Table(header, rows, buffers)


def _buffer(header: list[str], row: list[str], line: int) -> Buffer:
    place = f"line {line}"
    if len(row) != len(header):
        short = header[len(row)] if len(row) < len(header) else header[-1]
        problem = f"{len(row)} cells where the header has {len(header)}"
        raise AddressError(short, place, problem, "give every row as many cells as the header")
    cells = dict(zip(header, row, strict=True))
    if not cells["id"]:
        raise AddressError("id", place, "empty", "give every buffer its own id")
    return Buffer(
        id=cells["id"],
        lower=_whole(cells, "lower", place),
        upper=_whole(cells, "upper", place),
        size=_whole(cells, "size", place),
        alignment=_whole(cells, "alignment", place) if cells.get("alignment") else 1,
        pinned=_whole(cells, "pinned", place) if cells.get("pinned") else None,
        alias=cells.get("alias", ""),
        apart=tuple(sorted({label.strip() for label in cells.get("apart", "").split(";") if label.strip()})),
        pool=cells.get("pool", ""),
    )


def _whole(cells: dict[str, str], name: str, place: str) -> int:
    text = cells[name]
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise AddressError(name, place, f"{text[:40]!r} is not a whole number", "give bytes or steps, without a unit")
    if len(digits) > 20 or not 0 <= int(text) <= MOST:
        raise AddressError(name, place, f"{text[:40]} is not between 0 and 2^53", "shift times, or use larger units")
    return int(text)
