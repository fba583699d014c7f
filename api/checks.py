"""/v1/checks: judge a stored profile against another, or against its branch's baseline; list what was judged."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from api.jobs import Job, shown
from api.judging import KIND, CheckAsked, judged, series_of, sides
from api.problems import ProblemError, documented, not_found, timing_only
from api.service import Here, Service, SmallBody
from hyperopt.store.checks import StoredCheck, get_check, list_checks, put_check

router = APIRouter(prefix="/v1/checks", tags=["checks"], route_class=SmallBody)


class CheckLine(BaseModel):
    """A check in a list. `model` to `world_size`: the kind of its candidate. The whole answer is at its address."""

    id: str
    project: str
    branch: str
    head: str = Field(description="What the candidate is a commit of; empty: branch itself")
    commit: str
    model: str
    device: str
    framework: str
    framework_version: str
    mode: str
    rank: int
    world_size: int
    baseline: str
    candidate: str
    verdict: str
    reason: str = Field(description="The first")
    created_at: datetime


class Checks(BaseModel):
    """A page of checks, newest first; `next` is the `before` of the next page, absent on the last."""

    checks: list[CheckLine]
    next: str | None = None


@router.post(
    "",
    status_code=201,
    response_model=StoredCheck,
    responses={
        202: {"model": Job, "description": "With must_fit_bytes: accepted; Location is the job, its result the check"},
        **documented(400, 404, 409, 413, 415, 422),
    },
)
async def ask(asked: CheckAsked, response: Response, here: Here) -> StoredCheck | Response:
    """Judges and keeps the verdict. The baseline of the branch stays what it is, whatever the verdict.

    With `policy.must_fit_bytes` plans are solved for, so that the answer is a job; its result names the check.
    """
    if asked.policy.must_fit_bytes is not None:
        job = await to_thread.run_sync(_queued, asked, here)
        headers = {"Location": f"/v1/jobs/{job.id}"}
        return JSONResponse(job.model_dump(mode="json"), 202, headers=headers)
    kept = await to_thread.run_sync(_judged, asked, here, limiter=here.heavy)
    response.headers["Location"] = f"/v1/checks/{kept.id}"
    return kept


def _judged(asked: CheckAsked, here: Service) -> StoredCheck:
    found = judged(here.database, asked)
    with here.database.write() as session:
        return put_check(session, **found)


def _queued(asked: CheckAsked, here: Service) -> Job:
    candidate = sides(here.database, asked).candidate
    if candidate.timing_only:
        raise timing_only(candidate.id, "$.candidate")
    _check_fit(asked, candidate.device, here.settings.max_time_limit_s)
    id = here.engine.start(KIND, candidate.id, asked.model_dump(mode="json"))
    status = here.engine.status(id)
    assert status is not None
    return shown(status)


def _check_fit(asked: CheckAsked, device: dict[str, Any], most: float) -> None:
    known = {"host", *(tier["name"] for tier in device["links"]["tiers"])}
    for name in asked.policy.tiers:
        if name not in known:
            detail = f"the profile's device has no tier {name!r}; it has {', '.join(sorted(known))}"
            remedy = "name a tier of the device, or describe it in the profile under device.links.tiers"
            place = f"$.policy.tiers.{name}"
            raise ProblemError(422, "unknown-tier", "Unknown tier", detail, field=place, remedy=remedy)
    if asked.policy.time_limit_s > most:
        detail = f"time_limit_s {asked.policy.time_limit_s:g} is above this server's {most:g}"
        remedy = "ask for less, or raise HYPEROPT_MAX_TIME_LIMIT_S on the server"
        place = "$.policy.time_limit_s"
        raise ProblemError(422, "bad-request", "Bad request", detail, field=place, remedy=remedy)
    series_of(asked)


@router.get("", responses=documented(422))
def index(
    here: Here,
    branch: Annotated[str | None, Query(max_length=200)] = None,
    model: Annotated[str | None, Query(max_length=200)] = None,
    project: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[str | None, Query(max_length=64, description="`next` of the page before")] = None,
) -> Checks:
    """Stored checks, newest first."""
    with here.database.read() as session:
        found = list_checks(session, project, branch, model, limit + 1, before)
    lines = [
        CheckLine(
            id=one.id,
            project=one.project,
            branch=one.branch,
            head=one.head,
            commit=one.commit,
            **asdict(kind),
            baseline=one.baseline,
            candidate=one.candidate,
            verdict=one.verdict,
            reason=next(iter(one.result.get("reasons", ())), ""),
            created_at=one.created_at,
        )
        for one, kind in found[:limit]
    ]
    return Checks(checks=lines, next=lines[-1].id if len(found) > limit else None)


@router.get("/{id}", responses=documented(404, 422))
def fetch(id: Annotated[str, Path(description="check-...", max_length=64)], here: Here) -> StoredCheck:
    """A verdict as it was given."""
    with here.database.read() as session:
        found = get_check(session, id)
    if found is None:
        raise not_found("check", id)
    return found
