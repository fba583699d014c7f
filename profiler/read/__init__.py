"""Profiles that other tools have written -> `hyperopt.profile/1`, one document a rank, and a manifest of what was done.

    archive.py      a zip or tar, unpacked safely          recognise.py  which ranks lie where, and of which kind
    sources.py      the kinds, each a module with SOURCE   ranks.py      what such a source is
    findings.py     what a reader dropped or converted     manifest.py   the answer, rank by rank

    ascend/     text and sqlite of torch_npu, MindSpore, msprof      torch/      snapshots, Chrome and execution traces
    mindspore/  memory tracker, CPU profiler, MindInsight            timeline/   kernels and blocks by time -> a profile

    a folder, file or archive ─▶ ranks ─▶ read one after the other ─▶ rank_N.json.gz, manifest

One rank is in memory at a time, and one that cannot be read does not sink the others.
"""

from __future__ import annotations

from pathlib import Path

from profiler.read import documents
from profiler.read.archive import LIMITS, Limits, is_archive, unpacked
from profiler.read.findings import UnreadableError
from profiler.read.manifest import Manifest
from profiler.read.reading import read_folder
from profiler.read.recognise import recognise as _recognise
from profiler.read.sources import all_sources

__all__ = ["LIMITS", "Limits", "Manifest", "UnreadableError", "is_foreign", "read"]


def read(
    path: Path,
    output: Path | None = None,
    *,
    limits: Limits = LIMITS,
    name: str | None = None,
    scratch: Path | None = None,
) -> Manifest:
    """Reads every rank at `path`, a folder, a file or an archive of them, and writes its profile to
    `output`/``rank_N.json.gz`` (None: nothing is written). The folder is made with the first profile.

    `limits`: of what an archive may unpack to, below `scratch` (None: where temporary files go). `name`: of the run,
    for profiles that name none; None: the path's.

    Raises `UnreadableError` where there is nothing at the path, an archive that cannot be unpacked, or a file where the
    output folder should be. What cannot be
    recognised or read besides is told in the manifest.
    """
    if not path.exists():
        raise UnreadableError(f"there is no file or folder {path}")
    if output is not None and output.exists() and output.samefile(path):
        raise UnreadableError(f"{output} is read and written to at once (give another folder for the profiles)")
    if output is not None:
        _check(output)
    name = name or path.resolve().name.partition(".")[0]
    if path.is_file() and is_archive(path):
        with unpacked(path, limits, scratch) as folder:
            return read_folder(folder, output, str(path), name, all_sources())
    return read_folder(path, output, str(path), name, all_sources())


def _check(output: Path) -> None:
    there = next((path for path in (output, *output.absolute().parents) if path.exists()), output)
    if not there.is_dir():
        wrong = "is no folder" if there == output else f"cannot be made: {there} is no folder"
        raise UnreadableError(f"{output} {wrong} (give a folder for the profiles)")


def is_foreign(path: Path) -> bool:
    """Whether the file is an archive, or a profile of another kind than `hyperopt.profile/1`."""
    if documents.find(path):
        return False
    if is_archive(path):
        return True
    found = _recognise(path, all_sources())
    return bool(found.places or found.layers or found.refused)
