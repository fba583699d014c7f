"""Jobs as the database knows them: the request, progress, and what came of it.

Whether an unfinished job is queued or running is for the job engine to say; here is what must outlive it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from hyperopt.store.tables import Job, JobEvent, now

Outcome = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class JobRecord:
    """`outcome` is None until the job is finished; `result` is JSON (docs/reference/http.md, "Jobs")."""

    id: str
    kind: str
    profile_id: str | None
    request: dict[str, Any]
    created_at: datetime
    started_at: datetime | None
    attempts: int
    cancel_requested_at: datetime | None
    finished_at: datetime | None
    outcome: Outcome | None
    result: dict[str, Any] | None
    plan_id: str | None


@dataclass(frozen=True)
class EventRecord:
    seq: int
    at: datetime
    data: dict[str, Any]


def add_job(session: Session, id: str, kind: str, profile_id: str | None, request: dict[str, Any]) -> None:
    session.add(Job(id=id, kind=kind, profile_id=profile_id, request=request))
    session.flush()


def get_job(session: Session, id: str) -> JobRecord | None:
    row = session.get(Job, id)
    return None if row is None else _record(row)


def unfinished_jobs(session: Session) -> Sequence[str]:
    """Ids of jobs accepted and not finished, oldest first."""
    return session.scalars(select(Job.id).where(Job.finished_at.is_(None)).order_by(Job.created_at, Job.id)).all()


def list_jobs(session: Session, profile_id: str | None = None, limit: int = 50) -> list[JobRecord]:
    """Jobs, newest first."""
    query = select(Job).order_by(Job.created_at.desc(), Job.id.desc()).limit(limit)
    if profile_id is not None:
        query = query.where(Job.profile_id == profile_id)
    return [_record(row) for row in session.scalars(query)]


def start_job(session: Session, id: str) -> JobRecord:
    """Notes one more attempt at the job, unless it is finished or cancelled; returns it as it is now."""
    row = session.get_one(Job, id)
    if row.finished_at is None and row.cancel_requested_at is None:
        row.started_at = now()
        row.attempts += 1
        session.flush()
    return _record(row)


def request_cancel(session: Session, id: str) -> JobRecord | None:
    """Asks the job to stop; the first request counts. A finished job stays as it is."""
    row = session.get(Job, id)
    if row is None:
        return None
    if row.finished_at is None and row.cancel_requested_at is None:
        row.cancel_requested_at = now()
        session.flush()
    return _record(row)


def cancel_requested(session: Session, id: str) -> bool:
    return session.scalar(select(Job.cancel_requested_at).where(Job.id == id)) is not None


def finish_job(session: Session, id: str, outcome: Outcome, result: dict[str, Any], plan_id: str | None = None) -> None:
    """Closes the job. A job already finished keeps its first result: two workers may have run it."""
    row = session.get_one(Job, id)
    if row.finished_at is None:
        row.finished_at, row.outcome, row.result, row.plan_id = now(), outcome, result, plan_id
        session.flush()


def add_event(session: Session, id: str, data: dict[str, Any]) -> int:
    """Appends a report of progress and returns its number, from 1."""
    last = session.scalar(select(func.max(JobEvent.seq)).where(JobEvent.job_id == id)) or 0
    session.add(JobEvent(job_id=id, seq=last + 1, data=data))
    session.flush()
    return last + 1


def list_events(session: Session, id: str, after: int = 0, limit: int = 1000) -> list[EventRecord]:
    """Reports of progress with a number above `after`, in order."""
    rows = session.scalars(
        select(JobEvent).where(JobEvent.job_id == id, JobEvent.seq > after).order_by(JobEvent.seq).limit(limit)
    )
    return [EventRecord(row.seq, row.at, row.data) for row in rows]


def last_event(session: Session, id: str) -> EventRecord | None:
    row = session.scalar(select(JobEvent).where(JobEvent.job_id == id).order_by(JobEvent.seq.desc()).limit(1))
    return None if row is None else EventRecord(row.seq, row.at, row.data)


def _record(row: Job) -> JobRecord:
    return JobRecord(
        id=row.id,
        kind=row.kind,
        profile_id=row.profile_id,
        request=row.request,
        created_at=row.created_at,
        started_at=row.started_at,
        attempts=row.attempts,
        cancel_requested_at=row.cancel_requested_at,
        finished_at=row.finished_at,
        outcome=row.outcome,  # type: ignore[arg-type]  # only `finish_job` writes it
        result=row.result,
        plan_id=row.plan_id,
    )
