"""Solved plans, under the id that follows from what they order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from hyperopt.documents import canonical, sha256
from hyperopt.plan import Plan
from hyperopt.store.tables import PlanRow


@dataclass(frozen=True)
class StoredPlan:
    """`document`: the JSON that is served; `etag`: its sha256 in hex, without quotes."""

    id: str
    profile_id: str
    document: bytes
    etag: str
    created_at: datetime


def put_plan(session: Session, profile_id: str, plan: Plan) -> str:
    """Stores a plan and returns its id.

    A plan that orders the same as one already stored replaces it: what is known of it (its bound, how it was
    found) is newer, and the changed entity tag says so.
    """
    plan = msgspec.structs.replace(plan, plan_id=plan.content_id)
    document = canonical(plan)
    etag = sha256(document).removeprefix("sha256:")
    row = session.get(PlanRow, plan.plan_id)
    if row is None:
        session.add(
            PlanRow(
                id=plan.plan_id,
                profile_id=profile_id,
                program_digest=plan.program_digest,
                document=document,
                etag=etag,
            )
        )
    else:
        row.document, row.etag = document, etag
    session.flush()
    return plan.plan_id


def get_plan(session: Session, id: str) -> StoredPlan | None:
    row = session.execute(
        select(PlanRow.id, PlanRow.profile_id, PlanRow.document, PlanRow.etag, PlanRow.created_at).where(
            PlanRow.id == id
        )
    ).one_or_none()
    return None if row is None else StoredPlan(*row)


def get_etag(session: Session, id: str) -> str | None:
    """The entity tag alone, so that an unchanged plan is not read from the disk."""
    return session.scalar(select(PlanRow.etag).where(PlanRow.id == id))
