"""Cost models of a project: what each was made of, what it is worth, and which one of a device is in use.

::

    trained ──▶ candidate ──use──▶ in use ──another is used──▶ retired ──use──▶ in use (a rollback)

A model's id follows from project, device and data: the same data have one model, however often they are trained on.
That one comes into use is an act of its own, by the training that found it better or by somebody, and names what was
in use before, so that of two who act at once one is told. Nothing is ever overwritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer

from hyperopt.cost.features import device_of
from hyperopt.profile import Device, Profile, Run
from hyperopt.store.measurements import StoredMeasurement, get_measurements
from hyperopt.store.profiles import StoredDocument, keep_document
from hyperopt.store.tables import (
    CostModelRow,
    CostModelUse,
    Document,
    Measurement,
    PlanRow,
    Project,
    Rank,
)
from hyperopt.store.tables import Run as RunRow

State = Literal["candidate", "in use", "retired"]


class UseChanged(Exception):
    """Another model is in use than the caller saw."""

    def __init__(self, device: str, now: str | None) -> None:
        self.device, self.now = device, now
        super().__init__(f"the model in use of {device} is {now or 'none'}, not the one you saw")


@dataclass(frozen=True)
class DeviceData:
    """What was measured of one device of a project: ids of profiles and of measurements, in order of the ids."""

    device: str
    name: str
    framework: str
    framework_version: str
    profiles: tuple[str, ...]
    measurements: tuple[str, ...]


@dataclass(frozen=True)
class Use:
    version: int
    model: str
    who: str
    why: str
    at: datetime


@dataclass(frozen=True)
class StoredModel:
    """`superseded`: of the profiles, those from before the device has changed;
    `version`: of the device's models; `compared_with`: what was in use when it was trained; `uses`: when it came
    into use, newest first; `etag`: of what is in use of the device, another one whenever that changes."""

    id: str
    project: str
    device: str
    device_name: str
    framework: str
    framework_version: str
    version: int
    state: State
    data_digest: str
    document_sha256: str
    document_bytes: int
    profiles: list[str]
    measurements: list[str]
    superseded: list[str]
    signatures: int
    groups: int
    scores: dict[str, Any]
    importances: dict[str, Any]
    plans: dict[str, Any]
    drift: dict[str, Any] | None
    compared_with: str | None
    why: str
    software: str
    job: str | None
    created_at: datetime
    uses: tuple[Use, ...]
    etag: str


def training_data(session: Session, project: str) -> list[DeviceData]:
    """All that a project has measured, by device in order of its name. Profiles that were not measured (made up, or
    predicted by a model) are none."""
    about: dict[str, tuple[str, str, str]] = {}
    profiles: dict[str, list[str]] = {}
    for id, device, framework, version in session.execute(
        select(Rank.id, Rank.device, RunRow.framework, RunRow.framework_version)
        .join(RunRow, RunRow.id == Rank.run_id)
        .join(Project, Project.id == RunRow.project_id)
        .where(Project.name == project, Rank.is_measured)
        .order_by(Rank.id)
    ):
        kind = (str(device.get("name", "")), framework, version)
        name = device_named(*kind)
        about[name] = kind
        profiles.setdefault(name, []).append(id)
    measured: dict[str, list[str]] = {}
    for id, device, framework, version in session.execute(
        select(Measurement.id, Rank.device, RunRow.framework, RunRow.framework_version)
        .join(PlanRow, PlanRow.id == Measurement.plan_id)
        .join(Rank, Rank.id == PlanRow.profile_id)
        .join(RunRow, RunRow.id == Rank.run_id)
        .join(Project, Project.id == RunRow.project_id)
        .where(Project.name == project)
        .order_by(Measurement.id)
    ):
        measured.setdefault(device_named(str(device.get("name", "")), framework, version), []).append(id)
    return [
        DeviceData(name, *about[name], tuple(profiles[name]), tuple(measured.get(name, ()))) for name in sorted(about)
    ]


def oldest_first(session: Session, profiles: Sequence[str]) -> list[str]:
    """Ids of profiles by when they were stored."""
    asked = select(Rank.id).where(Rank.id.in_(profiles)).order_by(Rank.created_at, Rank.id)
    return list(session.scalars(asked))


def device_named(name: str, framework: str, framework_version: str) -> str:
    """A device as cost models name it: times are only comparable within one, its framework and that one's version."""
    run = Run(framework=framework, framework_version=framework_version)
    return device_of(Profile(operators=(), storages=(), run=run, device=Device(name=name)))


def digest_of(data: DeviceData, table: str) -> str:
    """Of what a model is trained on; `table`: digest of the table that operators are counted by."""
    content = [data.device, data.profiles, data.measurements, table]
    return "sha256:" + hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def model_id(project: str, device: str, data_digest: str) -> str:
    return "cost-model-" + hashlib.sha256(msgspec.json.encode([project, device, data_digest])).hexdigest()[:24]


def measurements_of(session: Session, data: DeviceData) -> list[StoredMeasurement]:
    return get_measurements(session, data.measurements)


def put_model(
    session: Session,
    project: str,
    data: DeviceData,
    *,
    data_digest: str,
    document: bytes,
    superseded: list[str],
    signatures: int,
    groups: int,
    scores: dict[str, Any],
    importances: dict[str, Any],
    plans: dict[str, Any],
    drift: dict[str, Any] | None,
    compared_with: str | None,
    why: str,
    software: str,
    job: str | None,
) -> StoredModel:
    """Stores a model as a candidate. One of the same data is left as it is: two workers may have trained it."""
    # Locked: of two models that are stored at once the second must see the first (SQLite has one writer anyway).
    owner = session.scalars(select(Project).where(Project.name == project).with_for_update()).one()
    id = model_id(project, data.device, data_digest)
    if session.get(CostModelRow, id) is None:
        last = session.scalar(
            select(func.max(CostModelRow.version)).where(
                CostModelRow.project_id == owner.id, CostModelRow.device == data.device
            )
        )
        session.add(
            CostModelRow(
                id=id,
                project_id=owner.id,
                device=data.device,
                device_name=data.name,
                framework=data.framework,
                framework_version=data.framework_version,
                version=(last or 0) + 1,
                data_digest=data_digest,
                document=keep_document(session, document),
                profiles=list(data.profiles),
                measurements=list(data.measurements),
                superseded=superseded,
                signatures=signatures,
                groups=groups,
                scores=scores,
                importances=importances,
                plans=plans,
                drift=drift,
                compared_with=compared_with,
                why=why,
                software=software,
                job_id=job,
            )
        )
        session.flush()
    found = get_model(session, id)
    assert found is not None
    return found


def use_model(session: Session, id: str, *, who: str, why: str, expected: str) -> StoredModel | None:
    """Puts a model into use in place of the one before: a promotion, or of a retired one a rollback. `expected`: the
    etag that the caller saw. None: there is no such model. Raises `UseChanged`."""
    row = session.get(CostModelRow, id)
    if row is None:
        return None
    session.scalars(select(Project).where(Project.id == row.project_id).with_for_update()).one()
    uses = _uses(session, row.project_id, row.device)
    if _etag(row.project_id, row.device, uses) != expected:
        raise UseChanged(row.device, uses[0].model if uses else None)
    if not uses or uses[0].model != id:
        version = uses[0].version + 1 if uses else 1
        session.add(
            CostModelUse(project_id=row.project_id, device=row.device, version=version, model_id=id, who=who, why=why)
        )
        session.flush()
    return get_model(session, id)


def get_model(session: Session, id: str) -> StoredModel | None:
    row = session.get(CostModelRow, id)
    return None if row is None else _stored(session, row)


def model_in_use(session: Session, project: str, device: str) -> StoredModel | None:
    """The model of a device that is in use in a project."""
    found = session.scalar(
        select(CostModelUse.model_id)
        .join(Project, Project.id == CostModelUse.project_id)
        .where(Project.name == project, CostModelUse.device == device)
        .order_by(CostModelUse.version.desc())
        .limit(1)
    )
    return None if found is None else get_model(session, found)


def etag_in_use(session: Session, project: str, device: str) -> str:
    """The etag of what is in use of a device, also where that is nothing yet."""
    owner = session.scalars(select(Project.id).where(Project.name == project)).one()
    return _etag(owner, device, _uses(session, owner, device))


def list_models(session: Session, project: str | None = None, device: str | None = None) -> list[StoredModel]:
    """By project and device, newest first. `device`: by its whole name, or without framework and version."""
    asked = select(CostModelRow).join(Project, Project.id == CostModelRow.project_id)
    if project is not None:
        asked = asked.where(Project.name == project)
    if device is not None:
        asked = asked.where((CostModelRow.device == device) | (CostModelRow.device_name == device))
    rows = session.scalars(asked.order_by(Project.name, CostModelRow.device, CostModelRow.version.desc()))
    return [_stored(session, row) for row in rows]


def get_model_document(session: Session, id: str) -> StoredDocument | None:
    """The bytes of the model's `hyperopt.cost/1` document, compressed as `encoding` says."""
    row = session.execute(
        select(Document.data, Document.encoding, Document.sha256)
        .join(CostModelRow, CostModelRow.document == Document.sha256)
        .where(CostModelRow.id == id)
    ).one_or_none()
    return None if row is None else StoredDocument(row.data, row.encoding, row.sha256)


def _uses(session: Session, project: int, device: str) -> Sequence[Use]:
    """Of a device, newest first."""
    rows = session.scalars(
        select(CostModelUse)
        .where(CostModelUse.project_id == project, CostModelUse.device == device)
        .order_by(CostModelUse.version.desc())
    )
    return [Use(row.version, row.model_id, row.who, row.why, row.at) for row in rows]


def _etag(project: int, device: str, uses: Sequence[Use]) -> str:
    """In hex, without quotes."""
    content = msgspec.json.encode([project, device, uses[0].version if uses else 0])
    return hashlib.sha256(content).hexdigest()


def _stored(session: Session, row: CostModelRow) -> StoredModel:
    uses = _uses(session, row.project_id, row.device)
    mine = tuple(use for use in uses if use.model == row.id)
    state: State = "candidate" if not mine else "in use" if uses[0].model == row.id else "retired"
    return StoredModel(
        id=row.id,
        project=session.get_one(Project, row.project_id).name,
        device=row.device,
        device_name=row.device_name,
        framework=row.framework,
        framework_version=row.framework_version,
        version=row.version,
        state=state,
        data_digest=row.data_digest,
        document_sha256=row.document,
        document_bytes=session.get_one(Document, row.document, options=[defer(Document.data)]).size,
        profiles=row.profiles,
        measurements=row.measurements,
        superseded=row.superseded,
        signatures=row.signatures,
        groups=row.groups,
        scores=row.scores,
        importances=row.importances,
        plans=row.plans,
        drift=row.drift,
        compared_with=row.compared_with,
        why=row.why,
        software=row.software,
        job=row.job_id,
        created_at=row.created_at,
        uses=mine,
        etag=_etag(row.project_id, row.device, uses),
    )
