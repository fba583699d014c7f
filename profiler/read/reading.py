"""One place read from beginning to end: ranks found, numbered, read one after the other, written and accounted for."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import msgspec

from hyperopt import profile as profiles
from hyperopt.profile import Profile
from profiler.read import entries, layers
from profiler.read.archive import is_archive
from profiler.read.findings import Findings, UnreadableError
from profiler.read.imbalance import imbalance, told
from profiler.read.layers import LayerModel
from profiler.read.manifest import Manifest, Program, Rank
from profiler.read.ranks import RankFiles, Source
from profiler.read.recognise import Found, Place, fault, recognise
from profiler.read.writing import written

MIXED, UNKNOWN = "mixed", "unknown"

REMEDY = "give the profiler's own folder, or an archive of it: docs/reference/readers/index.md lists what is understood"

UTF_16 = (b"\xff\xfe", b"\xfe\xff")

TOLD_CLASHES = 20
TOLD_LEFT_OVER = 8
MAX_RANK = 2**31 - 1


def read_folder(root: Path, output: Path | None, path: str, name: str, sources: Sequence[Source]) -> Manifest:
    """Reads all ranks below `root` as `profiler.read.read` does; the manifest says that `path` was read."""
    found = recognise(root, sources, output.resolve() if output is not None and output.exists() else None)
    job = _Reading(root, output, name, found)
    with _without_collector():
        ranks = [job.read(place) for place in found.places]
    ranks += [job.refused(where, kind, reason) for where, kind, reason in found.refused]
    ranks.sort(key=lambda rank: rank.rank)
    described = job.layers()
    compared = None if job.clashes else imbalance(ranks)
    warnings = [*found.warnings, *job.warnings()]
    if compared is not None and (line := told(compared)):
        warnings.append(line)
    kinds = sorted({rank.kind for rank in ranks} | ({layers.KIND} if described and not ranks else set()))
    if len(kinds) > 1:
        warnings.append(f"ranks of several kinds: {', '.join(kinds)}")
    if not kinds:
        warnings.append(f"no kind of profile was recognised in {Path(path).name or path} ({_remedy(root)})")
    if output is not None and (left := _left_over(output, ranks)):
        warnings.append(left)
    return Manifest(
        path=entries.clean(path),
        kind=MIXED if len(kinds) > 1 else kinds[0] if kinds else UNKNOWN,
        ranks=tuple(ranks),
        programs=_programs(ranks),
        imbalance=compared,
        layers=described,
        warnings=tuple(entries.clean(text) for text in warnings),
    )


class _Reading:
    """Numbers and names given so far. Ranks whose number the files say have it for themselves; the others get what
    their profile says if that is free, else the next free one."""

    def __init__(self, root: Path, output: Path | None, name: str, found: Found) -> None:
        self.root, self.output, self.name, self.found = root, output, name, found
        self.reserved = {_said(place.files) for place in found.places} - {None}
        self.taken: set[int] = set()
        self.clashes: dict[int, list[str]] = defaultdict(list)
        self.told: list[str] = []

    def read(self, place: Place) -> Rank:
        kind, files = place.source.kind, place.files
        findings = Findings(root=files.path if files.path.is_dir() else files.path.parent)
        where = self._where(files.path)
        for line in place.told:
            findings.warn(line)
        number = None if (said := _said(files)) is None else self._number(said, where)
        try:
            profile = place.source.read(files, findings)
            if number is None:
                number = self._free(profile.run.rank)
            run = msgspec.structs.replace(profile.run, rank=number, name=profile.run.name or self.name)
            profile = msgspec.structs.replace(profile, run=run)
            return self._accepted(profile, kind, where, findings)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # polars panics with one that is no Exception
            number = self._free(0) if number is None else number
            return entries.refused(number, kind, where, _reason(error, where, kind), findings)

    def _accepted(self, profile: Profile, kind: str, where: str, findings: Findings) -> Rank:
        """Writes the profile under its number, checked as whoever reads the document will see it."""
        number = profile.run.rank
        file = None if self.output is None else f"rank_{number}.json.gz"
        try:
            profiles.check(profile)
            with written(profile, None if self.output is None or file is None else self.output / file):
                return entries.accepted(number, kind, where, file, profile, findings)
        finally:
            # What digests and replay keep with a profile refers back to it: a hundred MB, if the next rank comes first.
            profile.__dict__.clear()

    def refused(self, path: Path, kind: str, reason: str) -> Rank:
        """The entry of a place that its source could not list."""
        return entries.refused(self._free(0), kind, self._where(path), reason, Findings(root=path))

    def layers(self) -> tuple[LayerModel, ...]:
        models = []
        for path in self.found.layers:
            try:
                models.append(layers.load(path))
                self.told += models[-1].warnings
            except UnreadableError as error:
                self.told.append(str(error))
        return tuple(models)

    def warnings(self) -> list[str]:
        lines = [
            f"rank {number} is there {len(others) + 1} times; the others are numbered on: {', '.join(others)} "
            "(different runs? read them one by one)"
            for number, others in sorted(self.clashes.items())[:TOLD_CLASHES]
        ]
        return [*self.told, *lines]

    def _number(self, rank: int, where: str) -> int:
        if rank not in self.taken:
            self.taken.add(rank)
            return rank
        number = self._free(rank)
        self.clashes[rank].append(f"{where} is rank {number}")
        return number

    def _free(self, wanted: int) -> int:
        number = wanted if wanted not in self.taken | self.reserved else 0
        while number in self.taken or number in self.reserved:
            number += 1
        self.taken.add(number)
        return number

    def _where(self, path: Path) -> str:
        return entries.clean(str(path.relative_to(self.root)) if path.is_relative_to(self.root) else path.name)


@contextmanager
def _without_collector() -> Iterator[None]:
    """No search for objects that refer to each other: readers make millions that do not, and looking at all of them
    again and again takes as long as reading."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _left_over(output: Path, ranks: Sequence[Rank]) -> str | None:
    """A warning of profiles in the output folder that another reading has written: they belong to no rank of this."""
    ours = {rank.file for rank in ranks}
    found = sorted(
        (path.name for path in output.glob("rank_*.json.gz") if path.name not in ours),
        key=lambda name: (len(name), name),
    )
    if not found:
        return None
    more = f" and {len(found) - TOLD_LEFT_OVER} more" if len(found) > TOLD_LEFT_OVER else ""
    shown = ", ".join(found[:TOLD_LEFT_OVER]) + more
    return f"profiles of an earlier reading stay in {output.name}: {shown} (remove them, or give another folder)"


def _remedy(root: Path) -> str:
    """What would help where nothing was recognised: by what lies there."""
    if root.is_file() and not _begins(root):
        return "the file is empty: export the profile again"
    files = [root] if root.is_file() else islice(root.rglob("*"), 1000)
    files = [path for path in files if path.is_file() and not path.is_symlink()]
    for remedy, fits in (
        ("it holds archives: unpack {}, or give one of them", is_archive),
        ("it is UTF-16 and no UTF-8: convert {}", lambda path: _begins(path).startswith(UTF_16)),
        (
            "brackets are nested too deeply in {}: no profiler writes such",
            lambda path: set(_begins(path)) == {ord("[")},
        ),
    ):
        if found := [entries.clean(path.name) for path in islice(filter(fits, files), 3)]:
            return remedy.format(", ".join(found))
    return REMEDY


def _begins(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError:
        return b"?"


def _said(files: RankFiles) -> int | None:
    """The rank that the files say, where it can be one."""
    return files.rank if files.rank is not None and 0 <= files.rank <= MAX_RANK else None


def _reason(error: BaseException, where: str, kind: str) -> str:
    match error:
        case UnreadableError():
            return str(error)
        case MemoryError():
            return f"{where} needs more memory than there is (profile fewer steps)"
        case OSError():
            return f"{where} cannot be read: {error.strerror or error}"
    return fault(error, kind)


def _programs(ranks: Sequence[Rank]) -> tuple[Program, ...]:
    groups: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        if rank.program_digest is not None:
            groups[rank.program_digest].append(rank.rank)
    return tuple(Program(program_digest=digest, ranks=tuple(group)) for digest, group in groups.items())
