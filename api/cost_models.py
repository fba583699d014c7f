"""/v1/cost-models: training, what there is, and which is in use."""

from __future__ import annotations

import gzip
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from api.baselines import Told
from api.jobs import Job, shown
from api.problems import ProblemError, documented, not_found
from api.profiles import Name
from api.service import Here, SmallBody
from api.training import KIND
from hyperopt.store import models

router = APIRouter(prefix="/v1/cost-models", tags=["cost models"], route_class=SmallBody)

_STRICT = ConfigDict(extra="forbid", strict=True)
ModelId = Annotated[str, Path(description="cost-model-...", max_length=64)]
Device = Annotated[str, Query(min_length=1, max_length=600, description="Its name, with or without framework, version")]


class TrainAsked(BaseModel):
    """Train on all that a project has measured, a model for each device."""

    model_config = _STRICT

    project: str = Field("default", min_length=1, max_length=200)
    device: str | None = Field(None, min_length=1, max_length=600, description="This one alone")


class Used(BaseModel):
    """When a model came into use, and who said so."""

    who: str
    why: str
    at: datetime


class ModelShown(BaseModel):
    """A cost model. `scores`: by family, on groups of shapes held out; `importances`: by group of families, the share
    of each feature; `plans`: how far plans of the device were off; `drift`: what its data said of `compared_with`."""

    id: str
    project: str
    device: str
    framework: str
    framework_version: str
    version: int
    state: models.State
    etag: str = Field(description="Of what is in use of the device: If-Match of whoever changes that")
    data_digest: str
    document_sha256: str = Field(description="Of the document as it is stored, in gzip; the ETag of /document too")
    document_bytes: int = Field(description="As it is stored, in gzip; /document unpacks it")
    profiles: list[str]
    measurements: list[str]
    superseded: list[str] = Field(description="Of the profiles, those from before the device has changed")
    signatures: int
    groups: int
    scores: dict[str, Any]
    importances: dict[str, Any]
    plans: dict[str, Any]
    drift: dict[str, Any] | None
    compared_with: str | None
    why: str = Field(description="What the comparison with the model then in use said")
    software: str
    job: str | None
    created_at: datetime
    uses: list[Used]


class ModelsShown(BaseModel):
    models: list[ModelShown]


class UseAsked(BaseModel):
    """Put a model into use: a candidate, or again a retired one."""

    model_config = _STRICT

    who: Told
    why: Told


@router.post(
    "",
    status_code=202,
    responses={202: {"description": "Accepted; Location is the job"}, **documented(400, 409, 413, 415, 422)},
)
def train(asked: TrainAsked, response: Response, here: Here) -> Job:
    """Queues a training on all that the project has measured; the same data are not trained on twice."""
    with here.database.read() as session:
        data = models.training_data(session, asked.project)
    known = sorted({name for one in data for name in (one.device, one.name) if name})
    if not data or asked.device not in (None, *known):
        of = f" of {asked.device}" if asked.device is not None else ""
        raise ProblemError(
            409,
            "nothing-measured",
            "Nothing measured",
            f"project {asked.project} has no measured profile{of}",
            field="$.project" if not data else "$.device",
            remedy=f"one of: {'; '.join(known)}" if data else "upload profiles: POST /v1/profiles",
        )
    id = here.engine.start(KIND, None, {"project": asked.project, "device": asked.device})
    response.headers["Location"] = f"/v1/jobs/{id}"
    status = here.engine.status(id)
    assert status is not None
    return shown(status)


@router.get("", responses=documented(422))
def find(
    here: Here,
    project: Name | None = None,
    device: Device | None = None,
    state: Annotated[models.State | None, Query()] = None,
) -> ModelsShown:
    """Cost models by project and device, the newest of each first."""
    with here.database.read() as session:
        found = models.list_models(session, project, device)
    return ModelsShown(models=[_shown(one) for one in found if state in (None, one.state)])


@router.get("/{id}", responses=documented(404, 422))
def fetch(id: ModelId, response: Response, here: Here) -> ModelShown:
    """A model with its scores; its ETag is of what is in use of the device, and If-Match of whoever changes that."""
    with here.database.read() as session:
        found = models.get_model(session, id)
    if found is None:
        raise not_found("cost model", id)
    response.headers["ETag"] = f'"{found.etag}"'
    return _shown(found)


@router.get(
    "/{id}/document",
    response_class=Response,
    responses={
        200: {
            "description": "A hyperopt.cost/1 document",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        **documented(404, 422),
    },
)
def document(id: ModelId, here: Here) -> Response:
    """The model itself, as `hyperopt cost predict` reads it, unpacked; the ETag is `document_sha256`."""
    with here.database.read() as session:
        found = models.get_model_document(session, id)
    if found is None:
        raise not_found("cost model", id)
    headers = {"ETag": f'"{found.sha256}"'}
    return Response(gzip.decompress(found.data), media_type="application/json", headers=headers)


@router.post("/{id}/use", responses=documented(400, 404, 412, 413, 415, 422, 428))
def use(
    id: ModelId,
    asked: UseAsked,
    response: Response,
    here: Here,
    if_match: Annotated[str | None, Header(description="The ETag that GET /v1/cost-models/{id} gave")] = None,
) -> ModelShown:
    """Puts a model into use in place of the one before: a promotion by hand, or a rollback."""
    if if_match is None:
        raise ProblemError(
            428,
            "precondition-required",
            "Precondition required",
            "what is in use changes only for who says what was in use before",
            field="header.if-match",
            remedy="send If-Match with the ETag of GET /v1/cost-models/{id}",
        )
    with here.database.write() as session:
        try:
            found = models.use_model(session, id, who=asked.who, why=asked.why, expected=if_match.strip().strip('"'))
        except models.UseChanged as changed:
            raise ProblemError(
                412,
                "cost-model-changed",
                "Another model is in use",
                str(changed),
                field="header.if-match",
                remedy="look at it again, then decide: GET /v1/cost-models",
            ) from changed
    if found is None:
        raise not_found("cost model", id)
    response.headers["ETag"] = f'"{found.etag}"'
    return _shown(found)


def _shown(found: models.StoredModel) -> ModelShown:
    told = {name: getattr(found, name) for name in ModelShown.model_fields if name != "uses"}
    return ModelShown(**told, uses=[Used(who=use.who, why=use.why, at=use.at) for use in found.uses])
