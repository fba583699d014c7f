"""What lies at a place: the ranks of any source, found by walking down from a folder.

The first source that knows a place owns it: its files are not offered to another one. Folders below it that hold none
of the ranks found there are walked all the same, so that nothing beside them is lost silently. Links are not followed,
and the walk ends after so many entries or levels, which is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profiler.read import layers
from profiler.read.findings import UnreadableError
from profiler.read.ranks import RankFiles, Source

MAX_ENTRIES = 100_000
"""Files and folders that are looked at."""

MAX_LEVELS = 16
"""Folders below the one that was given."""


@dataclass(frozen=True)
class Place:
    """One rank and the source that knows it. `told`: what sources asked before say of the place."""

    source: Source
    files: RankFiles
    told: tuple[str, ...] = ()


@dataclass
class Found:
    """`places` in the order of the walk, folders by name. `layers`: layer descriptions, which are no rank's.
    `refused`: what a source took for its own and could not list, with the reason."""

    places: list[Place] = field(default_factory=list)
    layers: list[Path] = field(default_factory=list)
    refused: list[tuple[Path, str, str]] = field(default_factory=list)
    """(where, kind, reason)"""
    warnings: list[str] = field(default_factory=list)
    owned: set[Path] = field(default_factory=set)
    """Where ranks lie."""
    holders: set[Path] = field(default_factory=set)
    """Folders that those lie in: other files there are no further profiles."""

    def note(self, source: Source, ranks: Sequence[RankFiles], told: Sequence[str]) -> None:
        self.places += [Place(source, files, tuple(told)) for files in ranks]
        self.owned.update(files.path for files in ranks)
        self.holders.update(files.path.parent for files in ranks)


def recognise(root: Path, sources: Sequence[Source], skip: Path | None = None) -> Found:
    """Everything that the `sources` know at or below `root`, a folder or a file. Nothing is read but first bytes.

    `skip`: a folder that is left out, such as the one that profiles are written to.
    """
    found = Found()
    for path in _walk(root, found, skip):
        _ask(path, sources, found)
    return found


def _ask(path: Path, sources: Sequence[Source], found: Found) -> None:
    """Notes the ranks that the first source which knows the place finds there."""
    told: list[str] = []
    for source in sources:
        try:
            ranks = source.find(path)
            told += source.passed_over(path) if not ranks else ()
        except UnreadableError as error:
            found.refused.append((path, source.kind, str(error)))
            return
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a fault of one source must not hide the others' ranks
            found.warnings.append(f"{path.name}: {fault(error, source.kind)}")
            continue
        if ranks:
            found.note(source, ranks, told)
            return
    if path.is_file() and layers.is_layers(path):
        found.layers.append(path)


def fault(error: BaseException, kind: str) -> str:
    """What to say where a reader failed in a way that it must not."""
    first = str(error).partition("\n")[0][:200]
    return f"a fault of ours in the reader for {kind}: {type(error).__name__}: {first} (report it, with the file)"


def _walk(root: Path, found: Found, skip: Path | None) -> Iterator[Path]:
    """`root` and all below it that no rank has been found in, folders before what they hold.

    The caller notes ranks in `found` before it asks for the next place.
    """
    seen, level, folders = 0, 0, [root]
    yield root
    while folders and level < MAX_LEVELS:
        level += 1
        below: list[Path] = []
        for folder in folders:
            if not folder.is_dir() or folder in found.owned:
                continue
            files_taken = folder in found.holders
            for entry in _entries(folder, found):
                if (seen := seen + 1) > MAX_ENTRIES:
                    found.warnings.append(f"only the first {MAX_ENTRIES} files and folders were looked at")
                    return
                if entry.is_dir():
                    if skip is None or entry.name != skip.name or not entry.samefile(skip):
                        below.append(entry)  # asked after the files beside it
                elif entry.is_file() and not files_taken:
                    yield entry
        folders = []
        for folder in below:
            yield folder
            folders.append(folder)
    if folders:
        found.warnings.append(f"folders more than {MAX_LEVELS} levels down were not looked at")


def _entries(folder: Path, found: Found) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        found.warnings.append(f"{folder.name} cannot be listed: {error.strerror}")
        return []
    plain = [entry for entry in entries if not entry.is_symlink()]
    if len(plain) < len(entries):
        found.warnings.append(f"{folder.name}: {len(entries) - len(plain)} links not followed")
    return plain
