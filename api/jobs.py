"""/v1/jobs: state, progress, result, cancel."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from api.engine import MAX_ATTEMPTS, JobStatus
from api.problems import documented, not_found
from api.service import Here
from hyperopt.store import jobs

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JobId = Annotated[str, Path(description="job-...", max_length=64)]


class Job(BaseModel):
    """A job. "Infeasible" is an answer like any other: state `succeeded`, result status `infeasible`."""

    id: str
    kind: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    profile: str | None
    request: dict[str, Any]
    attempts: int = Field(description="How often it was started: above 1 after a crash of its worker")
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: dict[str, Any] | None = Field(description="The newest report")
    result: dict[str, Any] | None = Field(
        description="Once finished: {status: planned, plan_id, predicted, bound}, {status: infeasible, "
        "infeasible: {lower_bound_bytes, reachable_bytes, operator, reliefs}}, {status: checked, check, verdict}, "
        "{status: trained, models: [{device, status: trained | unchanged | too few, model, state, why}]}, or "
        "{status: cancelled | failed, reason}"
    )
    plan: str | None = Field(description="Address of the plan")


class Jobs(BaseModel):
    jobs: list[Job]


class Event(BaseModel):
    seq: int
    at: datetime
    data: dict[str, Any]


class Events(BaseModel):
    """Reports of progress in order; ask again with `after` = `last`, until `state` is a final one."""

    state: str
    last: int
    events: list[Event]


def shown(status: JobStatus) -> Job:
    job = status.job
    result = job.result
    if result is None and status.state == "failed":
        result = {"status": "failed", "reason": f"given up: its worker died {MAX_ATTEMPTS} times while at it"}
    return Job(
        id=job.id,
        kind=job.kind,
        state=status.state,
        profile=job.profile_id,
        request=job.request,
        attempts=job.attempts,
        cancel_requested=job.cancel_requested_at is not None,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        progress=status.progress,
        result=result,
        plan=None if job.plan_id is None else f"/v1/plans/{job.plan_id}",
    )


@router.get("", responses=documented(422))
def index(
    here: Here,
    profile: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Jobs:
    """Jobs, newest first."""
    with here.database.read() as session:
        ids = [job.id for job in jobs.list_jobs(session, profile, limit)]
    return Jobs(jobs=[shown(status) for id in ids if (status := here.engine.status(id)) is not None])


@router.get("/{id}", responses=documented(404, 422))
def show(id: JobId, here: Here) -> Job:
    """State, newest progress and, once finished, the result."""
    status = here.engine.status(id)
    if status is None:
        raise not_found("job", id)
    return shown(status)


@router.get("/{id}/events", responses=documented(404, 422))
def events(
    id: JobId,
    here: Here,
    after: Annotated[int, Query(ge=0, le=2**31, description="`last` of the answer before")] = 0,
) -> Events:
    """Reports of progress with a number above `after`."""
    # The state first: when it is final, the events read after it are all there will be.
    status = here.engine.status(id)
    found = here.engine.events(id, after)
    if status is None or found is None:
        raise not_found("job", id)
    listed = [Event(seq=event.seq, at=event.at, data=event.data) for event in found]
    return Events(state=status.state, last=listed[-1].seq if listed else after, events=listed)


@router.delete(
    "/{id}",
    status_code=202,
    responses={
        202: {"description": "Asked to stop; a running job ends with its best plan so far"},
        200: {"description": "It was finished already", "model": Job},
        **documented(404, 422),
    },
)
def cancel(id: JobId, response: Response, here: Here) -> Job:
    """Cancels a job: one in the queue will not be solved, a running one keeps its best plan so far."""
    status = here.engine.cancel(id)
    if status is None:
        raise not_found("job", id)
    if status.job.outcome is not None:
        response.status_code = 200
    return shown(status)
