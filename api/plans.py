"""/v1/plans: ask for a plan, fetch a plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Header, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from api.jobs import Job, shown
from api.problems import ProblemError, documented, not_found, timing_only
from api.service import Here, SmallBody
from hyperopt.documents import DocumentError
from hyperopt.node import Node
from hyperopt.node import check as check_node
from hyperopt.plan import HOST, Budget, Objective
from hyperopt.store.plans import get_etag, get_plan
from hyperopt.store.profiles import ProfileSummary, get_summary
from solver.request import Request

router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=SmallBody)

# Strict: a misspelt field, or a number in quotes, is refused instead of ignored or guessed.
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Bytes = Annotated[int, Field(ge=0, le=2**53)]
PlanId = Annotated[str, Path(description="plan-...", max_length=64)]


class BudgetAsked(BaseModel):
    """Bytes per tier. What is left out is the profile's; 0 means no such tier."""

    model_config = _STRICT

    hbm_bytes: Bytes | None = None
    tiers: dict[str, Bytes] = {}


class NodeAsked(BaseModel):
    """A `hyperopt.node/1` document: host memory and links that ranks share, in bytes and bytes per second."""

    model_config = _STRICT

    format: Literal["hyperopt.node/1"] = "hyperopt.node/1"
    memory_bytes: Bytes
    cgroup_limit_bytes: Bytes | None = Field(None, description="Of the memory, what our processes may use; null: all")
    in_use_bytes: Bytes = Field(0, description="Of that, before any pinned memory")
    pinned_overhead: float = Field(1.0, ge=1, le=1000, description="Cost of pinned memory, by what is asked for")
    ranks: int = Field(1, ge=1, le=2**20, description="On the node, each with the budget that is asked for")
    promised_bytes: Bytes = Field(0, description="Budgets of others on the node, together")
    copying_ranks: int | None = Field(None, ge=1, le=2**20, description="That copy at once; null: all ranks")
    d2h_bytes_per_s: float | None = Field(None, ge=0, le=2.0**53, description="Of the node in all; null: no limit")
    h2d_bytes_per_s: float | None = Field(None, ge=0, le=2.0**53, description="Of the node in all; null: no limit")


class PlanAsked(BaseModel):
    """A request for a plan. With `work_limit` and no time limit, the same request gives the same plan."""

    model_config = _STRICT

    profile: str = Field(max_length=64, description="Id of a stored profile")
    budget: BudgetAsked = BudgetAsked()
    objective: Objective = "min_step_time"
    time_limit_s: float | None = Field(60.0, gt=0, description="Seconds of solving; null: as long as the server allows")
    work_limit: int | None = Field(None, ge=1, le=2**53, description="Replays and search nodes")
    seed: int = Field(0, ge=0, le=2**31 - 1)
    max_slowdown: float | None = Field(
        None, ge=0, le=1e6, description="For min_peak: over the unlimited step, as a fraction of it; 0.05 is 5 %"
    )
    points: int = Field(
        8, ge=1, le=100, description="For pareto: budgets along the front, in `alternatives` of the plan"
    )

    node: NodeAsked | None = Field(None, description="Plan for a rank as it is on this node")


@router.post(
    "",
    status_code=202,
    responses={202: {"description": "Accepted; Location is the job"}, **documented(400, 409, 413, 415, 422)},
)
def ask(asked: PlanAsked, response: Response, here: Here) -> Job:
    """Queues the solving of a plan: the answer is a job, whose result is a plan or says why there is none."""
    with here.database.read() as session:
        profile = get_summary(session, asked.profile)
    if profile is None:
        detail = f"there is no profile {asked.profile}"
        raise ProblemError(
            422,
            "unknown-profile",
            "Unknown profile",
            detail,
            field="$.profile",
            remedy="upload it: POST /v1/profiles",
        )
    if profile.timing_only:
        raise timing_only(profile.id)
    _check_tiers(asked, profile)
    if asked.max_slowdown is not None and asked.objective != "min_peak":
        raise ProblemError(
            422,
            "bad-request",
            "Bad request",
            f"max_slowdown is for the objective min_peak, not {asked.objective}",
            field="$.max_slowdown",
            remedy="leave it out, or ask for min_peak",
        )
    request = Request(
        budget=Budget(hbm_bytes=asked.budget.hbm_bytes, tiers=asked.budget.tiers),
        objective=asked.objective,
        time_limit_s=_time_limit(asked, here.settings.max_time_limit_s),
        work_limit=asked.work_limit,
        seed=asked.seed,
        max_slowdown=asked.max_slowdown,
        points=asked.points,
        node=_node(asked),
    )
    id = here.engine.start("plan", profile.id, _plain(request))
    response.headers["Location"] = f"/v1/jobs/{id}"
    status = here.engine.status(id)
    assert status is not None
    return shown(status)


def _check_tiers(asked: PlanAsked, profile: ProfileSummary) -> None:
    known = {"host", *(tier["name"] for tier in profile.device["links"]["tiers"])}
    for name in asked.budget.tiers:
        if name not in known:
            raise ProblemError(
                422,
                "unknown-tier",
                "Unknown tier",
                f"the profile's device has no tier {name!r}; it has {', '.join(sorted(known))}",
                field=f"$.budget.tiers.{name}",
                remedy="name a tier of the device, or describe it in the profile under device.links.tiers",
            )


def _node(asked: PlanAsked) -> Node | None:
    """The node, refused where it contradicts itself, or the host budget asked for is not safe there."""
    if asked.node is None:
        return None
    node = Node(**asked.node.model_dump())
    try:
        check_node(node, "$.node")
        node.check(asked.budget.tiers.get(HOST, 0), f"$.budget.tiers.{HOST}")
    except DocumentError as unsafe:
        raise ProblemError(
            422, "bad-request", "Bad request", unsafe.problem, field=unsafe.field, remedy=unsafe.remedy
        ) from unsafe
    return node


def _time_limit(asked: PlanAsked, most: float) -> float:
    if asked.time_limit_s is None:
        return most
    if asked.time_limit_s > most:
        raise ProblemError(
            422,
            "bad-request",
            "Bad request",
            f"time_limit_s {asked.time_limit_s:g} is above this server's {most:g}",
            field="$.time_limit_s",
            remedy="ask for less, or raise HYPEROPT_MAX_TIME_LIMIT_S on the server",
        )
    return asked.time_limit_s


_OF_THE_SOLVER = ("budget", "starts", "enough_ns", "node")
"""Fields of a request told apart, or that only the solver asks of itself."""


def _plain(request: Request) -> dict[str, object]:
    return {
        "budget": {"hbm_bytes": request.budget.hbm_bytes, "tiers": dict(request.budget.tiers)},
        "node": msgspec.to_builtins(request.node),
        **{name: value for name, value in asdict(request).items() if name not in _OF_THE_SOLVER},
    }


@router.get(
    "/{id}",
    response_class=Response,
    responses={
        200: {
            "description": "A hyperopt.plan/1 document; ETag is the sha256 of its bytes",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        304: {"description": "The plan is still the one that If-None-Match names"},
        **documented(404, 422),
    },
)
def fetch(
    id: PlanId,
    here: Here,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """A plan. Send its ETag back in If-None-Match to learn cheaply that it has not changed."""
    with here.database.read() as session:
        tag = get_etag(session, id)
        if tag is None:
            raise not_found("plan", id)
        if if_none_match is not None and _matches(if_none_match, tag):
            return Response(status_code=304, headers=_headers(tag))
        plan = get_plan(session, id)
    assert plan is not None
    return Response(plan.document, media_type="application/json", headers=_headers(plan.etag))


def _headers(tag: str) -> dict[str, str]:
    # Kept by caches, but asked about each time: a better bound for the same plan replaces it.
    return {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}


def _matches(if_none_match: str, tag: str) -> bool:
    """RFC 9110: a list of entity tags or *, compared without regard to weakness."""
    given = [part.strip().removeprefix("W/") for part in if_none_match.split(",")]
    return "*" in given or f'"{tag}"' in given
