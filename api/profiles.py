"""/v1/profiles: upload, list, summary, the document itself, and the questions people ask of it."""

from __future__ import annotations

import tempfile
from typing import IO, Annotated, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel

from api.problems import ProblemError, documented, not_found
from api.service import Here, Service, check_encoding
from hyperopt import plan as plans
from hyperopt import profile as profiles
from hyperopt.documents import DocumentError
from hyperopt.legality import Code, IllegalPlan
from hyperopt.plan import Plan
from hyperopt.profile import Profile
from hyperopt.replay import Timeline, replay
from hyperopt.store import queries
from hyperopt.store.profiles import (
    ProfileSummary,
    ProjectConflict,
    StoredDocument,
    check_storable,
    find_uploaded,
    get_document,
    get_summary,
    keep_profile,
    list_summaries,
)
from hyperopt.validate import validate

T = TypeVar("T")

router = APIRouter(prefix="/v1/profiles", tags=["profiles"])

ProfileId = Annotated[str, Path(description="profile-...", max_length=64)]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many, the largest first")]
Name = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]

_MEDIA = {"identity": "application/json", "gzip": "application/gzip", "zstd": "application/zstd"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_DOCUMENT = dict.fromkeys(_MEDIA.values(), _BINARY)
_BODY = {"requestBody": {"required": True, "content": {**_DOCUMENT, "application/octet-stream": _BINARY}}}


class Profiles(BaseModel):
    """A page of profiles, newest first; `next` is the `before` of the next page, absent on the last."""

    profiles: list[ProfileSummary]
    next: str | None = None


class Idle(BaseModel):
    storages: list[queries.IdleStorage]


class Accesses(BaseModel):
    groups: list[queries.AccessFrequency]


class Found(BaseModel):
    """One violation by a plan; the codes are listed in docs/reference."""

    code: str
    op: int | None
    storage: int | None
    message: str


class Verdict(BaseModel):
    """Every violation of a plan against a profile; none: it can run."""

    violations: list[Found]
    warnings: list[str]


@router.post(
    "",
    status_code=201,
    responses={
        201: {"description": "Stored; Location says where"},
        200: {"description": "Stored before: nothing has changed", "model": ProfileSummary},
        **documented(400, 409, 413, 415, 422),
    },
    openapi_extra=_BODY,
)
async def upload(request: Request, response: Response, here: Here, project: Name = "default") -> ProfileSummary:
    """Stores a `hyperopt.profile/1` document: plain, gzip or zstd, by Content-Encoding or by its first bytes.

    All of it is stored, or nothing. The same profile again, however compressed, is the same resource.
    """
    # A file without a name: whatever ends this process, the kernel takes it away.
    with tempfile.TemporaryFile(dir=upload_folder(here)) as file:
        await receive(request, file, here.settings.max_upload_bytes)
        encoding = request.headers.get("content-encoding")
        summary, new = await to_thread.run_sync(store, here, project, file, encoding, limiter=here.heavy)
    response.headers["Location"] = f"/v1/profiles/{summary.id}"
    if not new:
        response.status_code = 200
    return summary


def upload_folder(here: Service) -> str:
    folder = here.settings.data_dir / "uploads"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


async def receive(request: Request, file: IO[bytes], limit: int) -> None:
    """The body into a file, so that a slow upload holds no memory."""
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdigit() else 0
    if size <= limit:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                break
            await to_thread.run_sync(file.write, chunk)
    if size > limit:
        raise ProblemError(
            413,
            "too-large",
            "Body too large",
            f"the body is larger than {limit} bytes",
            field="$",
            remedy="send it compressed (gzip or zstd), or raise HYPEROPT_MAX_UPLOAD_BYTES on the server",
        )


def store(here: Service, project: str, file: IO[bytes], encoding: str | None) -> tuple[ProfileSummary, bool]:
    """The profile in a file that was received, stored whole or not at all; and whether it is new.

    Raises `DocumentError`, `ProjectConflict` or `ProblemError`.
    """
    file.seek(0)
    raw = file.read()
    check_encoding(encoding, raw)
    with here.database.read() as session:
        known = find_uploaded(session, raw)
    if known is not None:
        return _summary(here, known, project), False
    profile, warnings = profiles.load(raw, here.settings.max_document_bytes)
    timeline = _replayed(profile)
    check_storable(profile, timeline)
    id, new = keep_profile(here.database, project, profile, warnings, raw, timeline)
    return _summary(here, id, project), new


def _summary(here: Service, id: str, project: str) -> ProfileSummary:
    with here.database.read() as session:
        summary = get_summary(session, id)
    assert summary is not None
    if summary.project != project:
        raise ProjectConflict(id, summary.project)
    return summary


def _replayed(profile: Profile) -> Timeline:
    try:
        return replay(profile)
    except IllegalPlan as error:
        # What `profile.check` lets through can still be no step that repeats.
        problem = f"the step cannot be replayed: {error.violation.message}"
        raise DocumentError("$", problem, "list all operators, in the order of their start") from error


@router.get("", responses=documented(422))
def index(
    here: Here,
    project: Name | None = None,
    run: Name | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[str | None, Query(max_length=64, description="`next` of the page before")] = None,
) -> Profiles:
    """Stored profiles, newest first."""
    with here.database.read() as session:
        found = list_summaries(session, project, run, limit + 1, before)
    return Profiles(profiles=found[:limit], next=found[limit - 1].id if len(found) > limit else None)


@router.get("/{id}", responses=documented(404, 422))
def show(id: ProfileId, here: Here) -> ProfileSummary:
    """What is known of a profile without its document."""
    with here.database.read() as session:
        summary = get_summary(session, id)
    return _there(summary, id)


@router.get(
    "/{id}/document",
    response_class=Response,
    responses={200: {"description": "The bytes as uploaded", "content": _DOCUMENT}, **documented(404, 422)},
)
def document(id: ProfileId, here: Here) -> Response:
    """The document as it was uploaded, byte by byte; the media type says how it is compressed."""
    found = _document(here, id)
    return Response(found.data, media_type=_MEDIA[found.encoding], headers={"ETag": f'"{found.sha256}"'})


@router.get("/{id}/peak", responses=documented(404, 409, 422))
def peak(id: ProfileId, here: Here, limit: Limit = 50) -> queries.Peak:
    """Which storages are alive when HBM is at its (replayed) peak."""
    with here.database.read() as session:
        return _there(queries.alive_at_peak(session, id, limit), id)


@router.get("/{id}/idle", responses=documented(404, 409, 422))
def idle(id: ProfileId, here: Here, limit: Limit = 50) -> Idle:
    """Which storages lie untouched in HBM longest, by bytes x time."""
    with here.database.read() as session:
        return Idle(storages=_there(queries.longest_idle(session, id, limit), id))


@router.get("/{id}/accesses", responses=documented(404, 422))
def accesses(id: ProfileId, here: Here) -> Accesses:
    """How often storages are touched, by kind and layer, over all profiles of the program."""
    with here.database.read() as session:
        return Accesses(groups=_there(queries.access_frequency(session, id), id))


@router.post("/{id}/validate", responses=documented(400, 404, 413, 422), openapi_extra=_BODY)
async def validate_plan(id: ProfileId, request: Request, here: Here) -> Verdict:
    """Checks a `hyperopt.plan/1` document against a profile: every violation by name.

    A plan whose recomputes need each other's results orders nothing that could be done, and is refused.
    """
    with tempfile.TemporaryFile(dir=upload_folder(here)) as file:
        await receive(request, file, here.settings.max_upload_bytes)
        return await to_thread.run_sync(_judge, here, id, file, limiter=here.heavy)


def _judge(here: Service, id: str, file: IO[bytes]) -> Verdict:
    stored = _document(here, id)
    file.seek(0)
    plan, warnings = plans.load(file.read(), here.settings.max_document_bytes)
    profile, _ = profiles.load(stored.data)
    violations = validate(profile, plan)
    for violation in violations:
        if violation.code == Code.RECOMPUTE_CYCLE:
            remedy = "recompute at least one of them from storages that are in HBM"
            raise DocumentError(_recompute_place(plan, violation.op, violation.storage), violation.message, remedy)
    found = [Found(code=v.code, op=v.op, storage=v.storage, message=v.message) for v in violations]
    return Verdict(violations=found, warnings=warnings)


def _recompute_place(plan: Plan, op: int | None, storage: int | None) -> str:
    for i, recompute in enumerate(plan.residency.recompute):
        if (recompute.before_op, recompute.storage) == (op, storage):
            return f"$.residency.recompute[{i}]"
    return "$.residency.recompute"


def _document(here: Service, id: str) -> StoredDocument:
    with here.database.read() as session:
        return _there(get_document(session, id), id)


def _there(found: T | None, id: str) -> T:
    if found is None:
        raise not_found("profile", id)
    return found
