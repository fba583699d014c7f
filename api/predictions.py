"""Predicted beside measured: /v1/profiles/{id}/drift and /prediction, /v1/plans/{id}/measurements."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from api.plans import PlanId
from api.problems import ProblemError, documented, not_found
from api.profiles import ProfileId
from api.service import Here, Service, SmallBody
from hyperopt import plan as plans
from hyperopt import profile as profiles
from hyperopt.cost import predicted as predictions
from hyperopt.cost.drift import drift_of
from hyperopt.cost.features import measured_rows, rows_of, samples_of
from hyperopt.cost.model import CostModel
from hyperopt.cost.model import load as load_model
from hyperopt.cost.work import Table
from hyperopt.replay import replay
from hyperopt.store import measurements, models
from hyperopt.store.plans import get_plan
from hyperopt.store.profiles import ProfileSummary, get_document, get_summary

router = APIRouter(tags=["cost models"], route_class=SmallBody)

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Asked = Annotated[str | None, Query(max_length=64, description="A model of the project; default: the one in use")]
Level = Annotated[float, Query(gt=0, lt=1, description="Probability that an interval holds what is measured")]
Microseconds = Annotated[float, Field(gt=0, le=1e15)]


class DriftShown(BaseModel):
    """Of `samples` signatures `outside` (a share) lie beyond the model's intervals, where 1 - `level` is expected;
    `drifted`: more than chance explains, and at least three times that, of all or of the families in `changed`.
    `uncounted`: operators that nothing is said of, by reason."""

    profile: str
    model: str
    samples: int
    outside: float
    level: float
    drifted: bool
    families: dict[str, float]
    changed: list[str]
    uncounted: dict[str, int]


class Predicted(BaseModel):
    """Predicted durations of a profile's operators, in columns: `operators` are positions, `source` says how each was
    predicted. `low`, `high`: null where too little was measured. `kept`: operators that keep their duration, by reason.
    `step_us`: replayed with the predicted durations, `profile_step_us` with the profile's own."""

    profile: str
    model: str
    level: float
    operators: list[int]
    us: list[float]
    low: list[float | None]
    high: list[float | None]
    source: list[str]
    kept: dict[str, int]
    step_us: float
    profile_step_us: float


class CopyMeasured(BaseModel):
    model_config = _STRICT

    bytes: Annotated[int, Field(gt=0, le=2**53)]
    us: Microseconds


class MeasurementAsked(BaseModel):
    """What a training that followed the plan measured: `hyperopt apply --json` and its execution log say it."""

    model_config = _STRICT

    steps: int = Field(ge=1, le=2**31 - 1)
    step_us: Microseconds
    step_us_spread: float = Field(0.0, ge=0, le=1e15)
    peak_bytes: int | None = Field(None, ge=1, le=2**53, description="With what the memory record leaves out")
    copies: list[CopyMeasured] = Field([], max_length=10_000, description="Back from the host, one at a time")


class MeasurementShown(BaseModel):
    """A measured step beside the predicted one; `..._off`: how many times the predicted figure the measured one is."""

    id: str
    plan: str
    steps: int
    step_us: float
    step_us_spread: float
    predicted_step_us: float
    step_off: float | None
    peak_bytes: int | None
    predicted_peak_bytes: int
    peak_off: float | None
    copies: int
    created_at: datetime


class MeasurementsShown(BaseModel):
    measurements: list[MeasurementShown]


@router.get("/v1/profiles/{id}/drift", responses=documented(404, 409, 422))
async def drift(id: ProfileId, here: Here, model: Asked = None) -> DriftShown:
    """Whether what a profile measured lies in the intervals of the model in use. Advice: nothing follows from it."""
    return await to_thread.run_sync(_drift, id, model, here, limiter=here.heavy)


def _drift(id: str, asked: str | None, here: Service) -> DriftShown:
    about, profile, stored, model = _both(here, id, asked)
    if _device(about) != model.device:
        raise ProblemError(
            409,
            "other-device",
            "Another device",
            f"{id} is of {_device(about)}, {stored} of {model.device}: their times are not comparable",
            field="query.model",
            remedy="name a model of the profile's device, or none for the one in use",
        )
    rows = measured_rows(profile, Table.load(here.settings.operators))
    found = drift_of(model, samples_of(rows))
    return DriftShown(profile=id, model=stored, uncounted=dict(rows.uncounted), **asdict(found))


@router.get("/v1/profiles/{id}/prediction", responses=documented(404, 409, 422))
async def prediction(id: ProfileId, here: Here, model: Asked = None, level: Level = 0.9) -> Predicted:
    """What a model says of a profile's operators, with intervals; of another device too, if its model is named."""
    return await to_thread.run_sync(_prediction, id, model, level, here, limiter=here.heavy)


def _prediction(id: str, asked: str | None, level: float, here: Service) -> Predicted:
    _, profile, stored, model = _both(here, id, asked)
    table = Table.load(here.settings.operators)
    rows = rows_of(profile, table, model.device)
    found = model.predict_rows(rows, level)
    likely = predictions.predicted(profile, model, table)
    return Predicted(
        profile=id,
        model=stored,
        level=level,
        operators=rows.place.tolist(),
        us=[round(us, 3) for us in found.us.tolist()],
        low=[_number(us) for us in found.low.tolist()],
        high=[_number(us) for us in found.high.tolist()],
        source=found.source.tolist(),
        kept=dict(likely.kept),
        step_us=replay(likely.profile).step_us,
        profile_step_us=replay(profile).step_us,
    )


@router.post(
    "/v1/plans/{id}/measurements",
    status_code=201,
    responses={
        200: {"model": MeasurementShown, "description": "Stored before"},
        **documented(400, 404, 409, 413, 415, 422),
    },
)
def measured(id: PlanId, asked: MeasurementAsked, response: Response, here: Here) -> MeasurementShown:
    """Keeps what a training that followed the plan measured: the next cost model learns from it."""
    with here.database.write() as session:
        stored = get_plan(session, id)
        if stored is None:
            raise not_found("plan", id)
        plan, _ = plans.load(stored.document)
        if plan.predicted is None:
            detail = f"{id} predicts nothing that a measurement could be compared with"
            raise ProblemError(409, "nothing-predicted", "Nothing predicted", detail, remedy="plan again")
        found, new = measurements.put_measurement(
            session,
            plan,
            steps=asked.steps,
            step_us=asked.step_us,
            step_us_spread=asked.step_us_spread,
            peak_bytes=asked.peak_bytes,
            copies=[(copy.bytes, copy.us) for copy in asked.copies],
        )
    if not new:
        response.status_code = 200
    return _measurement(found)


@router.get("/v1/plans/{id}/measurements", responses=documented(404, 422))
def compared(id: PlanId, here: Here) -> MeasurementsShown:
    """What was measured of a plan beside what it predicted, oldest first."""
    with here.database.read() as session:
        if get_plan(session, id) is None:
            raise not_found("plan", id)
        found = measurements.of_plan(session, id)
    return MeasurementsShown(measurements=[_measurement(one) for one in found])


def _both(here: Service, id: str, asked: str | None) -> tuple[ProfileSummary, profiles.Profile, str, CostModel]:
    """A stored profile and a model of its project: the one asked for, or the one in use of its device."""
    with here.database.read() as session:
        about, document = get_summary(session, id), get_document(session, id)
        if about is None or document is None:
            raise not_found("profile", id)
        if asked is None:
            found = models.model_in_use(session, about.project, _device(about))
            if found is None:
                raise ProblemError(
                    409,
                    "no-cost-model",
                    "No cost model",
                    f"project {about.project} has no cost model of {_device(about)} in use",
                    remedy="train one: POST /v1/cost-models",
                )
        else:
            found = models.get_model(session, asked)
            if found is None or found.project != about.project:
                raise ProblemError(
                    422,
                    "unknown-cost-model",
                    "Unknown cost model",
                    f"project {about.project} has no cost model {asked}",
                    field="query.model",
                    remedy="list what there is: GET /v1/cost-models",
                )
        stored = models.get_model_document(session, found.id)
    assert stored is not None
    profile, _ = profiles.load(document.data, here.settings.max_document_bytes)
    return about, profile, found.id, load_model(stored.data)


def _device(about: ProfileSummary) -> str:
    return models.device_named(str(about.device.get("name", "")), about.framework, about.framework_version)


def _number(value: float) -> float | None:
    """JSON has no other way to say that there is none."""
    return None if math.isnan(value) else round(value, 3)


def _measurement(found: measurements.StoredMeasurement) -> MeasurementShown:
    told = {name: getattr(found, name) for name in MeasurementShown.model_fields if name != "copies"}
    return MeasurementShown(**told, copies=len(found.copies))
