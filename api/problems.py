"""Errors as RFC 9457 problem documents: what is wrong, where, and what to do about it.

Whatever goes wrong, the answer is `application/problem+json` with the same members, so that a client needs
one piece of code for all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hyperopt.documents import DocumentError
from hyperopt.store.profiles import ProjectConflict
from hyperopt.store.queries import NotPlannable

log = logging.getLogger("hyperopt.api")

MEDIA_TYPE = "application/problem+json"
URN = "urn:hyperopt:problem:"


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    type: str = Field(description="What kind of problem: urn:hyperopt:problem:..., listed in docs/reference/http.md")
    title: str = Field(description="The kind of problem in words, the same for every occurrence")
    status: int = Field(description="The HTTP status")
    detail: str = Field(description="What is wrong with this request")
    field: str | None = Field(None, description="Where: a JSON path such as $.operators[3].reads[0], or a parameter")
    remedy: str | None = Field(None, description="What to do about it")


class ProblemError(Exception):
    """Raised by an endpoint to answer with a problem. `kind` is the last part of its type."""

    def __init__(
        self,
        status: int,
        kind: str,
        title: str,
        detail: str,
        *,
        field: str | None = None,
        remedy: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.kind, self.title, self.detail = status, kind, title, detail
        self.field, self.remedy, self.headers = field, remedy, headers
        super().__init__(detail)


_LISTED = {
    "profile": "list what there is: GET /v1/profiles",
    "job": "list what there is: GET /v1/jobs",
    "plan": "take the id from the result of a job: GET /v1/jobs",
    "check": "list what there is: GET /v1/checks",
    "cost model": "list what there is: GET /v1/cost-models",
    "baseline": "list what there is: GET /v1/baselines",
}


def not_found(what: str, id: str) -> ProblemError:
    return ProblemError(
        404,
        "not-found",
        "Not found",
        f"there is no {what} {id}",
        remedy=_LISTED[what],
    )


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of an endpoint for OpenAPI: problem documents of these statuses, and 500."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content} for status in sorted({*statuses, 500})
    }


def answer(error: ProblemError) -> Response:
    problem = Problem(
        type=URN + error.kind,
        title=error.title,
        status=error.status,
        detail=error.detail,
        field=error.field,
        remedy=error.remedy,
    )
    content = problem.model_dump(exclude_none=True)
    return JSONResponse(content, error.status, media_type=MEDIA_TYPE, headers=dict(error.headers or {}))


def install(app: FastAPI) -> None:
    """Makes every error of `app` a problem document."""

    def on_problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, ProblemError)
        return answer(error)

    def on_other(_: Request, error: Exception) -> Response:
        return answer(_translated(error))

    def on_fault(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        detail = "the service failed; its log says how"
        return answer(ProblemError(500, "fault", "Fault in the service", detail, remedy="report it with the request"))

    app.add_exception_handler(ProblemError, on_problem)
    for kind in (
        DocumentError,
        NotPlannable,
        ProjectConflict,
        RequestValidationError,
        HTTPException,
        ClientDisconnect,
    ):
        app.add_exception_handler(kind, on_other)
    app.add_exception_handler(Exception, on_fault)


def _translated(error: Exception) -> ProblemError:
    match error:
        case DocumentError():
            return ProblemError(
                422,
                "bad-document",
                "Bad document",
                error.problem,
                field=error.field,
                remedy=error.remedy or None,
            )
        case NotPlannable():
            return timing_only(error.profile_id)
        case ProjectConflict():
            return ProblemError(
                409,
                "other-project",
                "Stored in another project",
                str(error),
                field="query.project",
                remedy=f"use it there: GET /v1/profiles/{error.profile_id}",
            )
        case RequestValidationError():
            return _invalid(error)
        case ClientDisconnect():
            return ProblemError(400, "incomplete", "Incomplete request", "the body ended early", field="$")
        case HTTPException():
            phrase = HTTPStatus(error.status_code).phrase
            kind = "too-large" if error.status_code == 413 else phrase.lower().replace(" ", "-")
            detail = error.detail if error.detail != phrase else _explain(error.status_code)
            return ProblemError(error.status_code, kind, phrase, detail, headers=error.headers)
    raise error


def timing_only(profile_id: str, field: str = "$.profile") -> ProblemError:
    """Answer to questions about memory of a profile that has none."""
    return ProblemError(
        409,
        "timing-only",
        "Timing-only profile",
        f"{profile_id} has times but no storages: there is no memory to ask about or to plan",
        field=field,
        remedy="upload a profile with storages, for example from `hyperopt capture`",
    )


def _explain(status: int) -> str:
    if status == 404:
        return "there is nothing at this address; docs/reference/http.md lists what there is"
    if status == 405:
        return "this address does not take this method; the Allow header lists those it takes"
    return HTTPStatus(status).description or HTTPStatus(status).phrase


def _invalid(error: RequestValidationError) -> ProblemError:
    """The first fault that FastAPI found in parameters or body; the others are named in the detail."""
    faults = list(error.errors())
    first = faults[0]
    place = _place(first["loc"])
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return ProblemError(
            400,
            "not-json",
            "Not JSON",
            f"{reason} at character {first['loc'][-1]}",
            field="$",
            remedy="send JSON",
        )
    if first["type"] == "model_attributes_type" and place == "$":
        detail = "the body is not a JSON object, or Content-Type does not say that it is JSON"
        remedy = "send a JSON object with Content-Type: application/json"
        return ProblemError(422, "bad-request", "Bad request", detail, field="$", remedy=remedy)
    more = f"; also wrong: {', '.join(_place(fault['loc']) for fault in faults[1:])}" if faults[1:] else ""
    return ProblemError(
        422,
        "bad-request",
        "Bad request",
        f"{first['msg']}{more}",
        field=place,
        remedy="see docs/reference/http.md",
    )


def _place(location: tuple[str | int, ...]) -> str:
    """A JSON path for the body (``$.budget.hbm_bytes``), else where and which (``query.limit``)."""
    where, *path = location
    if where != "body":
        return ".".join(str(part) for part in location)
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
