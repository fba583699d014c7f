"""/v1/history: where the figures of a branch changed, from its stored checks. Advice, never a verdict."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from api.judging import Branch
from api.problems import documented
from api.service import Here
from hyperopt.gate.history import changes, of_commits
from hyperopt.store.checks import Kind, Place, branch_line

router = APIRouter(prefix="/v1/history", tags=["checks"])


class Changed(BaseModel):
    """A series changed between two commits; a trend between the first and the last. `p` is 0 without noise."""

    series: str
    kind: Literal["exact", "step", "trend"]
    before: str = Field(description="Commit, or id of the check where it has none")
    after: str
    effect_percent: float
    drift_percent: float = Field(description="Since the start of the series")
    p: float
    told: str


class History(BaseModel):
    """Of runs of one kind, which alone are compared. `checks`: one a commit, at its first check's place."""

    model: str
    device: str
    framework: str
    framework_version: str
    mode: str
    rank: int
    world_size: int
    checks: int
    since: str
    changes: list[Changed]


class Histories(BaseModel):
    branch: str
    histories: list[History]


@router.get("", responses=documented(422))
def find(
    here: Here,
    branch: Annotated[Branch, Query()] = "main",
    model: Annotated[str | None, Query(max_length=200)] = None,
    project: Annotated[str, Query(max_length=200)] = "default",
    limit: Annotated[int, Query(ge=1, le=500, description="Newest commits to look at")] = 200,
) -> Histories:
    """Change points and trends over the stored checks of a branch's own commits, each kind of run for itself."""
    with here.database.read() as session:
        line = branch_line(session, project, branch, model, limit)
    kinds: dict[Kind, list[Place]] = {}
    for place in line:
        kinds.setdefault(place.kind, []).append(place)
    return Histories(branch=branch, histories=[_history(kind, found) for kind, found in sorted(kinds.items())])


def _history(kind: Kind, places: list[Place]) -> History:
    found = changes(of_commits([(place.name, place.check.result) for place in places]))
    told = [
        Changed(
            series=one.series,
            kind=one.kind,
            before=one.before,
            after=one.after,
            effect_percent=one.effect_percent,
            drift_percent=one.drift_percent,
            p=one.p,
            told=one.told,
        )
        for one in found
    ]
    runs, since = len({place.name for place in places}), places[0].check.created_at.isoformat()
    return History(**asdict(kind), checks=runs, since=since, changes=told)
