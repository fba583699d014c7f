"""`hyperopt read`: profiles that other tools have written, as documents, with a manifest of what was done."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from hyperopt.cli.files import BAD_INPUT, AsJson, say

if TYPE_CHECKING:
    from profiler.read.manifest import DroppedRows, Manifest, Rank

MIB = 2**20
MOST_TOLD = 10
"""Warnings of a rank, and dropped rows, that the table repeats; the manifest has all."""


def register(app: typer.Typer) -> None:
    app.command("read")(read)


def read(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="folder, file, or archive (zip, tar, .gz, .bz2, .zst)")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="where to write rank_N.json.gz")],
    as_json: AsJson = False,
) -> int:
    """Read what another profiler has written: one profile a rank. Exit 64 if no rank can be used."""
    manifest = read_place(path, output)
    if as_json:
        print(msgspec.json.encode(manifest).decode())
    else:
        print("\n".join(lines(manifest)))
    if not manifest.usable:
        say(f"nothing could be read: {manifest.refusal}")
        return BAD_INPUT
    return 0


def read_place(path: Path, output: Path | None) -> Manifest:
    """As `profiler.read.read`; leaves with `BAD_INPUT` and a line on what cannot be read at all."""
    from profiler.read import UnreadableError
    from profiler.read import read as read_profiles

    try:
        return read_profiles(path, output)
    except UnreadableError as error:
        say(str(error))
        raise typer.Exit(BAD_INPUT) from error


@contextmanager
def as_documents(path: Path) -> Iterator[list[tuple[str, Path]]]:
    """Profile documents of what lies at `path`, with what to call them: the file itself if it is one, else the ranks
    that are read from it into a folder that goes away."""
    if path.is_file() and not _foreign(path):
        yield [(str(path), path)]
        return
    with tempfile.TemporaryDirectory(prefix="hyperopt-") as folder:
        manifest = read_place(path, Path(folder))
        for line in notices(manifest):
            say(f"{path.name}: {line}")
        documents = [rank for rank in manifest.ranks if rank.file is not None]
        if not documents:
            reason = "layer descriptions are no profiles" if manifest.layers else manifest.refusal
            say(f"nothing to upload in {path}: {reason}")
            raise typer.Exit(BAD_INPUT)
        yield [(f"{path} rank {rank.rank}", Path(folder) / str(rank.file)) for rank in documents]


def _foreign(path: Path) -> bool:
    """Whether the file is something else than a profile document, and known: what is neither goes to the server as it
    is, which says best what is wrong with a document."""
    from profiler.read import is_foreign

    return is_foreign(path)


def notices(manifest: Manifest) -> Iterator[str]:
    """What a person must know of it: ranks that were not read whole, and warnings of the whole."""
    for rank in manifest.ranks:
        if rank.reason:
            yield f"rank {rank.rank} {rank.status}: {rank.reason}"
    yield from manifest.warnings


def lines(manifest: Manifest) -> Iterator[str]:
    """The manifest as a table with notes below it."""
    yield f"{manifest.path}: {manifest.kind}"
    if manifest.ranks:
        head = ["rank", "status", "kind", "operators", "storages", "peak MiB", "base", "reserved", "external"]
        head += ["step ms", "computing", "explained"]
        rows = [head, *(_row(rank) for rank in manifest.ranks)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        for row in rows:
            yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    for model in manifest.layers:
        what = f"{len(model.layers)} types of layers" if model.layers else "a dry run"
        yield f"  {model.file}: {model.name}, {what}"
    for rank in manifest.ranks:
        told = [*([rank.reason] if rank.reason else []), *rank.units, *rank.warnings]
        told += [_dropped(rows) for rows in rank.dropped]
        yield from (f"  rank {rank.rank}: {line}" for line in told[:MOST_TOLD])
        if len(told) > MOST_TOLD:
            yield f"  rank {rank.rank}: and {len(told) - MOST_TOLD} more (--json has all)"
    for program in manifest.programs:
        if len(program.ranks) > 1:
            yield f"  ranks {', '.join(map(str, program.ranks))} run one program"
    yield from (f"  {line}" for line in manifest.warnings)


def _row(rank: Rank) -> list[str]:
    peak = rank.peak_bytes if rank.peak_bytes is not None else rank.replayed_peak_bytes
    step = rank.step_us if rank.step_us is not None else rank.replayed_step_us
    shares = [f"{100 * share:.0f} %" for share in (rank.coverage.step, rank.coverage.peak) if share is not None]
    return [
        str(rank.rank),
        rank.status,
        rank.kind,
        str(rank.operators),
        str(rank.storages),
        *(_mib(size) for size in (peak, rank.base_bytes, rank.reserved_bytes, rank.external_bytes)),
        "-" if step is None else f"{step / 1000:.3f}",
        "-" if rank.computing_us is None else f"{rank.computing_us / 1000:.3f}",
        " / ".join(shares) or "-",
    ]


def _dropped(rows: DroppedRows) -> str:
    first = f", the first in line {rows.lines[0]}" if rows.lines else ""
    return f"{rows.file}: {rows.rows} {rows.why}{first}: dropped"


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / MIB:.2f}"
