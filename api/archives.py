"""/v1/archives: what another profiler has written, as an archive; its ranks become profiles.

The reading itself is `profiler.read`'s, in a worker thread, one upload after the other as for profiles. The archive is
streamed to disk; unpacked it stays within HYPEROPT_MAX_ARCHIVE_BYTES, and nothing of it outlives the request.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from api.problems import ProblemError, documented
from api.profiles import Name, receive, store, upload_folder
from api.service import Here, Service
from hyperopt.documents import DocumentError
from hyperopt.store.profiles import ProjectConflict
from profiler.read import Limits, UnreadableError, read
from profiler.read.manifest import Manifest

router = APIRouter(prefix="/v1/archives", tags=["profiles"])

FileName = Annotated[
    str,
    Query(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f/\\.][^\x00-\x1f/\\]*$",
        description="Name of the file: single files are recognised by its end, and it names the run",
    ),
]

PREFIX = "reading-"
LEFT_BEHIND_S = 86_400
"""Folders of that age are of a process that was killed."""

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_MEDIA = ("application/octet-stream", "application/zip", "application/x-tar", "application/gzip", "application/zstd")
_BODY = {"requestBody": {"required": True, "content": dict.fromkeys(_MEDIA, _BINARY)}}


@dataclass(frozen=True)
class StoredRank:
    """What became of a rank that was read. `profile`: its id; None where it could not be stored, for the `reason`."""

    rank: int
    profile: str | None
    reason: str = ""


@dataclass(frozen=True)
class Reading:
    """`manifest`: what was read (docs/reference/readers/index.md); `stored`: its ranks as profiles."""

    manifest: Manifest
    stored: list[StoredRank]


@router.post(
    "",
    status_code=201,
    responses={
        201: {"description": "Read, and at least one rank stored"},
        200: {"description": "All ranks were stored before: nothing has changed", "model": Reading},
        **documented(400, 409, 413, 422),
    },
    openapi_extra=_BODY,
)
async def upload(
    request: Request, response: Response, here: Here, project: Name = "default", name: FileName = "upload"
) -> Reading:
    """Reads an archive (zip, tar, tar.gz, tar.bz2, tar.zst) of a profiler's folder, or one of its files, and stores
    every rank of it.

    A rank that cannot be read or stored does not sink the others. If no rank is stored, the answer is a problem.
    """
    folder = Path(upload_folder(here))
    await to_thread.run_sync(_sweep, folder)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=folder) as scratch:
        path = Path(scratch) / "body" / name
        path.parent.mkdir()
        with path.open("wb") as file:
            await receive(request, file, here.settings.max_upload_bytes)
        reading, new = await to_thread.run_sync(_read, here, project, path, limiter=here.heavy)
    if not new:
        response.status_code = 200
    return reading


def _read(here: Service, project: str, path: Path) -> tuple[Reading, bool]:
    profiles, scratch = path.parents[1] / "profiles", path.parents[1] / "unpacked"
    profiles.mkdir()
    scratch.mkdir()
    try:
        limits = Limits(bytes=here.settings.max_archive_bytes)
        manifest = replace(read(path, profiles, limits=limits, scratch=scratch), path=path.name)
    except UnreadableError as error:
        raise _unreadable(str(error)) from error
    if not any(rank.file for rank in manifest.ranks):
        raise _unreadable("layer descriptions are no profiles" if manifest.layers else manifest.refusal)
    stored: list[StoredRank] = []
    errors: list[Exception] = []
    any_new = False
    for rank in manifest.ranks:
        if rank.file is None:
            continue
        try:
            with (profiles / rank.file).open("rb") as file:
                summary, new = store(here, project, file, None)
            stored.append(StoredRank(rank.rank, summary.id))
            any_new |= new
        except (DocumentError, ProjectConflict, ProblemError) as error:
            stored.append(StoredRank(rank.rank, None, str(error)))
            errors.append(error)
    if len(errors) == len(stored):
        raise errors[0]
    return Reading(manifest, stored), any_new


def _unreadable(why: str) -> ProblemError:
    return ProblemError(
        422,
        "unreadable",
        "Nothing to be read",
        why,
        field="$",
        remedy="send the profiler's own folder as zip or tar; docs/reference/readers/index.md lists what is understood",
    )


def _sweep(folder: Path) -> None:
    """Removes what a process that was killed has left."""
    for left in folder.glob(f"{PREFIX}*"):
        if time.time() - left.stat().st_mtime > LEFT_BEHIND_S:
            shutil.rmtree(left, ignore_errors=True)
