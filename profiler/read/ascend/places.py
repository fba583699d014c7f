"""Where Ascend's databases lie, what they are called, and whose ranks they hold."""

from __future__ import annotations

import re
from pathlib import Path

from profiler.read.ascend.folder import OUTPUT, rank_of, unsaid_rank
from profiler.read.ascend.schema import ALLOCATIONS, COLLECTIVES, DEVICE_OF_TASK, ENGINE, RANKS, RECORD, STRINGS, TASKS
from profiler.read.ascend.sqlite_file import SqliteFile, is_sqlite
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles

NAMED = re.compile(r"(?:ascend_(?:pytorch|mindspore)_profiler(?:_(\d+))?|msprof_(\d+))\.db")
TEXT = re.compile(r"(?:kernel_details|op_summary|operator_memory|memory_record).*\.csv")
"""Names of tables that are read as text where a database is broken."""
RANK_DIGITS = 6
"""A longer number in a file's name is a time."""
MAX_RANKS = 4096


def find(path: Path) -> list[RankFiles]:
    """The ranks at this file or folder. A database may have any name, and hold several ranks."""
    if path.is_file():
        return _ranks_in(path, path) if _is_profile(path) or NAMED.fullmatch(path.name) else []
    databases = _databases(path)
    return [rank for db in databases for rank in _ranks_in(db, path if len(databases) == 1 else db)]


def passed_over(path: Path) -> list[str]:
    """Of a profiler's folder, what is to be said if its text is read: of databases in it that are of no use, and of a
    rank that its file does not say."""
    if not path.is_dir():
        return []
    said = []
    for _, database in _named(path):
        try:
            with SqliteFile(database, Findings(path)) as file:
                lack = file.lack("STRING_IDS") or "neither kernels nor memory in it"
                said.append(f"{file.name} is not read: {lack}")
        except UnreadableError as error:
            said.append(f"a database is not read: {error}")
    folder = path.parent if path.name == OUTPUT else path
    if _has_text(path) and (told := unsaid_rank(folder, rank_of(folder))):
        said.append(told)
    return said


def database_of(path: Path, findings: Findings) -> Path:
    found = [path] if path.is_file() else _databases(path)
    if not found:
        raise UnreadableError(f"{findings.name(path)} holds no profiler database")
    return found[0]


def device_of(file: SqliteFile, rank: int | None) -> int | None:
    """The device of a rank whose database holds others too; None: all that is there is the rank's.

    Tables of the framework count devices among those that the process sees, others by their place in the machine, so
    that a device is only asked for where it must be.
    """
    ranks = dict(file.read("RANK_DEVICE_MAP", RANKS).drop_nulls().iter_rows())
    if ranks:
        return ranks.get(rank) if len(ranks) > 1 else None
    return rank if len(_devices(file)) > 1 else None


def _devices(file: SqliteFile) -> list[int]:
    """Devices that did something; NPU_INFO lists all of the machine's."""
    return file.read("TASK", DEVICE_OF_TASK)["device"].drop_nulls().unique().to_list()


def has_map(database: Path) -> bool:
    """Whether the database itself says whose ranks it holds."""
    try:
        with SqliteFile(database, Findings(database.parent)) as file:
            return bool(_mapped(file))
    except UnreadableError:
        return False


def _mapped(file: SqliteFile) -> list[int]:
    return [r for r in file.read("RANK_DEVICE_MAP", RANKS)["rank"].drop_nulls().unique() if 0 <= r < 2**31]


def folder_of(database: Path) -> Path:
    """The profiler's folder that a database lies in."""
    parent = database.parent
    return parent.parent if parent.name == OUTPUT else parent


def _is_profile(path: Path) -> bool:
    """Whether the file is a database with tables of a profile. One that does not open is none."""
    if not is_sqlite(path):
        return False
    try:
        with SqliteFile(path, Findings(path.parent)) as file:
            strings = file.has("STRING_IDS", STRINGS)
            kernels = file.has("TASK", TASKS, "start", "end") or file.has("COMMUNICATION_OP", COLLECTIVES, "start")
            memory = file.has("OP_MEMORY", ALLOCATIONS, "bytes", "allocated") or file.has("NPU_OP_MEM", ENGINE, "bytes")
            return strings and (kernels or memory or file.has("MEMORY_RECORD", RECORD, "component", "allocated"))
    except UnreadableError:
        return False


def _opens(path: Path) -> bool:
    """Whether the file is a database with a schema that can be read, of whatever kind."""
    try:
        SqliteFile(path, Findings(path.parent)).close()
    except UnreadableError:
        return False
    return True


def _databases(folder: Path) -> list[Path]:
    """The databases of a profiler's folder or its output folder: the framework's, else msprof's, whose names are
    times: the last of them, as a later export repeats an earlier one.

    One that does not open counts, so that its rank is missed, unless the folder has the same as text.
    """
    named = _named(folder)
    text = bool(named) and _has_text(folder)
    found = [(stamp, path) for stamp, path in named if _is_profile(path) or (not text and not _opens(path))]
    framework = [path for stamp, path in found if not stamp]
    exports = [path for stamp, path in found if len(stamp) > RANK_DIGITS]
    devices = [path for stamp, path in found if 0 < len(stamp) <= RANK_DIGITS]
    return framework or devices or exports[-1:]


def _named(folder: Path) -> list[tuple[str, Path]]:
    """Files that are called like databases of a profile, with the time or rank in msprof's names."""
    return sorted((m[2] or "", p) for p in _inside(folder) if (m := NAMED.fullmatch(p.name)) and p.is_file())


def _has_text(folder: Path) -> bool:
    return any(TEXT.fullmatch(path.name) for path in _inside(folder))


def _inside(folder: Path) -> list[Path]:
    inner = folder / OUTPUT if (folder / OUTPUT).is_dir() else folder
    try:
        return list(inner.iterdir())
    except OSError:
        return []


def _ranks_in(database: Path, place: Path) -> list[RankFiles]:
    """By the database's own map; else its devices, where it has several; else the folder's name for it, or its own."""
    ranks: list[int] = []
    try:
        with SqliteFile(database, Findings(database.parent)) as file:
            ranks = _mapped(file)
            if not ranks and len(devices := _devices(file)) > 1:
                ranks = [device for device in devices if 0 <= device < 2**31]
    except UnreadableError:
        pass  # said again, and to the one who asks, where the rank is read
    if len(ranks) > 1:
        return [RankFiles(database, rank) for rank in sorted(ranks)[:MAX_RANKS]]
    if ranks:
        return [RankFiles(place, ranks[0])]
    named = NAMED.fullmatch(database.name)
    number = next((n for n in (named.groups() if named else ()) if n and len(n) <= RANK_DIGITS), None)
    return [RankFiles(place, rank_of(folder_of(database), int(number) if number else None))]
