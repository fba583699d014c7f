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


@dataclass(frozen=True)
class CheckLine:
    """A check in a list: what it was of and what came of it. Full answers are by id."""

    id: str
    project: str
    branch: str
    commit: str
    model: str
    baseline: str
    candidate: str
    verdict: str
    reason: str
    created_at: datetime


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
    check, project = row
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
