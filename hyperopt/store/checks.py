"""Verdicts of the gate as they were given: what was asked, and what came of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from hyperopt.store.tables import CheckRow, Project, Rank, Run


@dataclass(frozen=True)
class StoredCheck:
    """`result`: `hyperopt.gate.Check.document()`; `policy`: what was asked for."""

    id: str
    project: str
    branch: str
    commit: str
    baseline: str
    candidate: str
    policy: dict[str, Any]
    verdict: str
    result: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, order=True)
class Kind:
    """What runs must share to be compared, beside project and branch."""

    model: str
    device: str
    framework: str
    framework_version: str
    mode: str
    rank: int
    world_size: int


def put_check(
    session: Session,
    *,
    branch: str,
    commit: str,
    baseline: str,
    candidate: str,
    policy: dict[str, Any],
    samples: dict[str, Any] | None,
    verdict: str,
    result: dict[str, Any],
) -> StoredCheck:
    """Stores a verdict about two stored profiles, in the candidate's project. Baselines stay as they are."""
    project = session.scalars(
        select(Run.project_id).join(Rank, Rank.run_id == Run.id).where(Rank.id == candidate)
    ).one()
    row = CheckRow(
        id=f"check-{uuid.uuid4().hex[:24]}",
        project_id=project,
        branch=branch,
        commit=commit,
        baseline_profile=baseline,
        candidate_profile=candidate,
        policy=policy,
        samples=samples,
        verdict=verdict,
        result=result,
    )
    session.add(row)
    session.flush()
    found = get_check(session, row.id)
    assert found is not None
    return found


def get_check(session: Session, id: str) -> StoredCheck | None:
    row = session.execute(
        select(CheckRow, Project.name).join(Project, Project.id == CheckRow.project_id).where(CheckRow.id == id)
    ).one_or_none()
    if row is None:
        return None
    return _stored(*row)


def _stored(check: CheckRow, project: str) -> StoredCheck:
    return StoredCheck(
        check.id,
        project,
        check.branch,
        check.commit,
        check.baseline_profile,
        check.candidate_profile,
        check.policy,
        check.verdict,
        check.result,
        check.created_at,
    )


def list_checks(
    session: Session,
    project: str | None = None,
    branch: str | None = None,
    model: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> list[tuple[StoredCheck, Kind]]:
    """Checks with the kind of their candidates, newest first. `before`: the id of the last one already seen, for the
    next page."""
    asked = (
        select(CheckRow, Project.name, Rank, Run)
        .join(Project, Project.id == CheckRow.project_id)
        .join(Rank, Rank.id == CheckRow.candidate_profile)
        .join(Run, Run.id == Rank.run_id)
    )
    for column, value in ((Project.name, project), (CheckRow.branch, branch), (Run.model, model)):
        if value is not None:
            asked = asked.where(column == value)
    if before is not None:
        seen = select(CheckRow.created_at).where(CheckRow.id == before).scalar_subquery()
        asked = asked.where((CheckRow.created_at < seen) | ((CheckRow.created_at == seen) & (CheckRow.id < before)))
    rows = session.execute(asked.order_by(CheckRow.created_at.desc(), CheckRow.id.desc()).limit(limit))
    return [(_stored(check, name), _kind(rank, run)) for check, name, rank, run in rows]


def _kind(rank: Rank, run: Run) -> Kind:
    device, mode = str(rank.device.get("name", "")), str(rank.adapter.get("mode", ""))
    return Kind(run.model, device, run.framework, run.framework_version, mode, rank.rank, run.world_size)


def get_samples(session: Session, id: str) -> dict[str, Any] | None:
    """The `hyperopt.samples/1` document that a check was given."""
    return session.scalar(select(CheckRow.samples).where(CheckRow.id == id))


def regressions(session: Session, baseline: str, candidate: str) -> list[str]:
    """Ids of the checks of that candidate against that baseline that found a regression, oldest first: on whatever
    branch and by whatever policy, since it is the same comparison."""
    found = session.scalars(
        select(CheckRow.id)
        .where(
            CheckRow.baseline_profile == baseline,
            CheckRow.candidate_profile == candidate,
            CheckRow.verdict == "regression",
        )
        .order_by(CheckRow.created_at, CheckRow.id)
    )
    return list(found)


def count_checks(session: Session, baseline: str, branch: str, since: datetime) -> int:
    """Checks on the branch against that profile since a moment."""
    return (
        session.scalar(
            select(func.count()).where(
                CheckRow.baseline_profile == baseline, CheckRow.branch == branch, CheckRow.created_at >= since
            )
        )
        or 0
    )
