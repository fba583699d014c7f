"""/v1/baselines: what branches are compared with; accepting a profile, freezing, and who did it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from api.acceptance import objections
from api.judging import Branch, ProfileId
from api.problems import ProblemError, documented, not_found
from api.service import Here, SmallBody
from hyperopt.store.baselines import Refused, StoredBaseline, accept, baseline_id, freeze, get_baseline, list_baselines
from hyperopt.store.profiles import get_summary

router = APIRouter(prefix="/v1/baselines", tags=["baselines"], route_class=SmallBody)

_STRICT = ConfigDict(extra="forbid", strict=True)
Told = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
BaselineId = Annotated[str, Path(description="baseline-...", max_length=64)]
StaleAfter = Annotated[float, Query(gt=0, le=36500, description="Days after which a baseline is stale")]
IfMatch = Annotated[str | None, Header(description="The ETag of the baseline that is to change")]
IfNoneMatch = Annotated[str | None, Header(description="*: there is none yet")]


class Acted(BaseModel):
    """One act on a baseline."""

    version: int
    act: str
    profile: str
    check: str | None
    accept_regression: bool
    accept_inconclusive: bool
    who: str
    why: str
    at: str


class BaselineShown(BaseModel):
    """A baseline: its kind, the profile, and whether it should be looked at. `history`: all acts, newest first."""

    id: str
    project: str
    branch: str
    model: str
    device: str
    framework: str
    framework_version: str
    mode: str
    rank: int
    world_size: int
    profile: str
    etag: str
    frozen: bool
    stale: bool
    accepted_at: str
    checks: int = Field(description="Made against it on its branch since it was accepted")
    history: list[Acted]


class BaselinesShown(BaseModel):
    baselines: list[BaselineShown]


class AcceptAsked(BaseModel):
    """Make a stored profile the baseline of its kind on a branch."""

    model_config = _STRICT

    profile: ProfileId
    branch: Branch = "main"
    who: Told
    why: Told
    check: str | None = Field(None, max_length=64, description="Of this profile against the present baseline")
    accept_regression: bool = Field(False, description="Although a check of it found a regression; kept")
    accept_inconclusive: bool = Field(False, description="Although its checks do not all pass; kept")


class FreezeAsked(BaseModel):
    """Keep a baseline from being replaced, or allow it again."""

    model_config = _STRICT

    frozen: bool
    who: Told
    why: Told


_REFUSALS = {
    "changed": (412, "The baseline changed"),
    "frozen": (409, "Frozen"),
    "unchecked": (409, "Not checked"),
    "regressed": (409, "Regressed"),
    "inconclusive": (409, "Inconclusive"),
}


@router.get("", responses=documented(422))
def find(
    here: Here,
    project: Annotated[str | None, Query(max_length=200)] = None,
    branch: Annotated[str | None, Query(max_length=200)] = None,
    stale_after_days: StaleAfter = 30,
) -> BaselinesShown:
    """All baselines, with those that are frozen or stale marked."""
    with here.database.read() as session:
        found = list_baselines(session, project, branch)
    return BaselinesShown(baselines=[_shown(one, stale_after_days) for one in found])


@router.get("/{id}", responses=documented(404, 422))
def fetch(id: BaselineId, response: Response, here: Here, stale_after_days: StaleAfter = 30) -> BaselineShown:
    """A baseline with its ETag, which an act on it must name in If-Match."""
    with here.database.read() as session:
        found = get_baseline(session, id)
    if found is None:
        raise not_found("baseline", id)
    response.headers["ETag"] = f'"{found.etag}"'
    return _shown(found, stale_after_days)


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": BaselineShown, "description": "Replaced"},
        **documented(400, 409, 412, 413, 415, 422, 428),
    },
)
def make(
    asked: AcceptAsked,
    response: Response,
    here: Here,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> BaselineShown:
    """Accepts a profile: `If-None-Match: *` for the first of its kind, else `If-Match` with the present one's ETag."""
    expected = _expected(if_match, if_none_match)
    known = objections(
        here.database, asked.profile, asked.branch, asked.check, expected, asked=not asked.accept_regression
    )
    with here.database.write() as session:
        profile = get_summary(session, asked.profile)
        if profile is None:
            detail = f"there is no profile {asked.profile}"
            remedy = "upload it: POST /v1/profiles"
            raise ProblemError(422, "unknown-profile", "Unknown profile", detail, field="$.profile", remedy=remedy)
        try:
            found = accept(
                session,
                profile,
                asked.branch,
                who=asked.who,
                why=asked.why,
                expected=expected,
                check=asked.check,
                objections=known,
                accept_regression=asked.accept_regression,
                accept_inconclusive=asked.accept_inconclusive,
            )
        except Refused as refused:
            raise _refused(refused, baseline_id(profile, asked.branch)) from refused
    response.status_code = 201 if expected is None else 200
    response.headers["Location"] = f"/v1/baselines/{found.id}"
    response.headers["ETag"] = f'"{found.etag}"'
    return _shown(found, 30)


@router.patch("/{id}", responses=documented(400, 404, 409, 412, 413, 415, 422, 428))
def hold(
    id: BaselineId,
    asked: FreezeAsked,
    response: Response,
    here: Here,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> BaselineShown:
    """Freezes or thaws a baseline: `If-Match` with its ETag."""
    expected = _expected(if_match, if_none_match)
    with here.database.write() as session:
        try:
            found = freeze(session, id, asked.frozen, who=asked.who, why=asked.why, expected=expected)
        except Refused as refused:
            raise _refused(refused, id) from refused
    if found is None:
        raise not_found("baseline", id)
    response.headers["ETag"] = f'"{found.etag}"'
    return _shown(found, 30)


def _expected(if_match: str | None, if_none_match: str | None) -> str | None:
    """The etag that the caller saw; None: that there was none."""
    if if_match is not None and if_none_match is not None:
        raise ProblemError(
            422,
            "bad-request",
            "Bad request",
            "If-Match says that there is a baseline, If-None-Match that there may be none",
            field="header.if-none-match",
            remedy="send one of them: If-Match with the ETag of what is replaced, or If-None-Match: * for the first",
        )
    if if_match is not None:
        return if_match.strip().strip('"')
    if if_none_match is not None and if_none_match.strip() == "*":
        return None
    raise ProblemError(
        428,
        "precondition-required",
        "Precondition required",
        "a baseline changes only for who says which one is to change",
        field="header.if-match",
        remedy="send If-Match with the ETag of GET /v1/baselines/{id}, or If-None-Match: * for the first",
    )


def _refused(refused: Refused, id: str) -> ProblemError:
    status, title = _REFUSALS[refused.kind]
    detail = f"{id}: {refused.reason}"
    return ProblemError(status, f"baseline-{refused.kind}", title, detail, remedy=refused.remedy)


def _shown(found: StoredBaseline, stale_after_days: float) -> BaselineShown:
    return BaselineShown(
        id=found.id,
        project=found.project,
        branch=found.branch,
        model=found.model,
        device=found.device,
        framework=found.framework,
        framework_version=found.framework_version,
        mode=found.mode,
        rank=found.rank,
        world_size=found.world_size,
        profile=found.profile,
        etag=found.etag,
        frozen=found.frozen,
        stale=found.stale(timedelta(days=stale_after_days)),
        accepted_at=found.accepted_at.isoformat(),
        checks=found.checks,
        history=[
            Acted(
                version=one.version,
                act=one.act,
                profile=one.profile,
                check=one.check,
                accept_regression=one.accept_regression,
                accept_inconclusive=one.accept_inconclusive,
                who=one.who,
                why=one.why,
                at=one.at.isoformat(),
            )
            for one in found.history
        ],
    )
