"""Verdicts of the gate as they were given: what was asked, and what came of it."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from hyperopt.store.tables import CheckRow, Project, Rank, Run

AT_ONCE = 500
"""Ids in one question: databases limit how many."""


@dataclass(frozen=True)
class StoredCheck:
    """`result`: `hyperopt.gate.Check.document()`; `policy`: what was asked for. `head`: what the candidate is a commit
    of; empty: `branch` itself."""

    id: str
    project: str
    branch: str
    head: str
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
    head: str,
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
        head=head,
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
        check.head,
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
    asked = _with_kind()
    for column, value in ((Project.name, project), (CheckRow.branch, branch), (Run.model, model)):
        if value is not None:
            asked = asked.where(column == value)
    if before is not None:
        seen = select(CheckRow.created_at).where(CheckRow.id == before).scalar_subquery()
        asked = asked.where((CheckRow.created_at < seen) | ((CheckRow.created_at == seen) & (CheckRow.id < before)))
    rows = session.execute(asked.order_by(CheckRow.created_at.desc(), CheckRow.id.desc()).limit(limit))
    return [(_stored(check, name), _kind(rank, run)) for check, name, rank, run in rows]


def _with_kind() -> Select[CheckRow, str, Rank, Run]:
    return (
        select(CheckRow, Project.name, Rank, Run)
        .join(Project, Project.id == CheckRow.project_id)
        .join(Rank, Rank.id == CheckRow.candidate_profile)
        .join(Run, Run.id == Rank.run_id)
    )


def _kind(rank: Rank, run: Run) -> Kind:
    device, mode = str(rank.device.get("name", "")), str(rank.adapter.get("mode", ""))
    return Kind(run.model, device, run.framework, run.framework_version, mode, rank.rank, run.world_size)


@dataclass(frozen=True)
class Place:
    """A check of a branch's own line, and where it belongs: `name` is its commit, or the first check's id where no
    check of the run says one."""

    name: str
    check: StoredCheck
    kind: Kind


def branch_line(session: Session, project: str, branch: str, model: str | None = None, limit: int = 200) -> list[Place]:
    """Checks of the newest `limit` commits of a branch itself: oldest commit first, each one's checks in the order of
    time.

    A commit keeps the place of its first check, of whatever kind of run: a pipeline that runs again moves nothing. A
    check without a commit belongs to the last one that its run was checked as.
    """
    asked = (
        select(CheckRow.id, CheckRow.commit, CheckRow.candidate_profile, Run.model)
        .join(Project, Project.id == CheckRow.project_id)
        .join(Rank, Rank.id == CheckRow.candidate_profile)
        .join(Run, Run.id == Rank.run_id)
        .where(Project.name == project, CheckRow.branch == branch, CheckRow.head.in_(("", branch)))
        .order_by(CheckRow.created_at, CheckRow.id)
    )
    line: dict[str, list[str]] = {}
    of_run: dict[str, str] = {}
    unnamed = set()
    for id, commit, candidate, of_model in session.execute(asked):
        known = of_run.get(candidate)
        name = commit or known or id
        if not commit and known is None:
            unnamed.add(id)
        elif commit and commit not in line and known in unnamed:  # only now it is said which commit it was
            line = {commit if place == known else place: ids for place, ids in line.items()}
        of_run[candidate] = name
        line.setdefault(name, []).extend([id] if model in (None, of_model) else [])
    kept = [(name, ids) for name, ids in line.items() if ids][-limit:]
    checks = _of_ids(session, [id for _, ids in kept for id in ids])
    return [Place(name, *checks[id]) for name, ids in kept for id in ids]


def _of_ids(session: Session, ids: list[str]) -> dict[str, tuple[StoredCheck, Kind]]:
    found = {}
    for at in range(0, len(ids), AT_ONCE):
        for check, name, rank, run in session.execute(_with_kind().where(CheckRow.id.in_(ids[at : at + AT_ONCE]))):
            found[check.id] = (_stored(check, name), _kind(rank, run))
    return found


def checks_of(
    session: Session, candidate: str, baselines: Collection[str]
) -> list[tuple[StoredCheck, dict[str, Any] | None]]:
    """Checks of that candidate against any of those baselines, on whatever branch and by whatever policy, each with the
    `hyperopt.samples/1` document that it was given; oldest first."""
    rows = session.execute(
        select(CheckRow, Project.name)
        .join(Project, Project.id == CheckRow.project_id)
        .where(CheckRow.candidate_profile == candidate, CheckRow.baseline_profile.in_(baselines))
        .order_by(CheckRow.created_at, CheckRow.id)
    )
    return [(_stored(check, name), check.samples) for check, name in rows]


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
