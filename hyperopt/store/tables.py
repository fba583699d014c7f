"""What the database keeps (docs/why/store.md says why it is cut this way).

::

    Project 1--n Program 1--n OperatorRow     the structure, once per program
                         1--n StorageRow
            1--n Run     1--n Rank n--1 Program        one Rank is one uploaded profile
                              Rank 1--1 Timings        that rank's times, a number per operator
                              Rank n--1 Document       the bytes as they came
                              Rank 1--n PlanRow, 1--n Job 1--n JobEvent
            1--n CheckRow n--2 Rank                  a candidate judged against a baseline
            1--n Baseline 1--n Acceptance n--1 Rank  what a branch is compared with, and who said so
            1--n CostModelRow n--1 Document          a cost model of a device, and what it was made of
                              1--n CostModelUse      that it came into use, and who said so
    PlanRow 1--n Measurement                         what a training that followed the plan took

Sizes are bytes, times integer nanoseconds, moments UTC. Columns of type bytes named `*_ns` or `accesses` are
arrays of little-endian numbers (`columns.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Json = dict[str, Any]


class Moment(TypeDecorator[datetime]):
    """A UTC moment. SQLite forgets time zones, so one is put back on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)


def now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    # Postgres and SQLite invent different names for constraints, and migrations must know them.
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: BigInteger,
        str: Text,
        bytes: LargeBinary,
        datetime: Moment,
        Json: JSON,
        list[str]: JSON,
        list[Any]: JSON,
    }


class Project(Base):
    """Whose profiles these are; programs, runs and their figures never mix across projects."""

    __tablename__ = "projects"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class Program(Base):
    """The operator/storage structure of one rank, by content hash: SPMD ranks share it."""

    __tablename__ = "programs"
    __table_args__ = (UniqueConstraint("project_id", "digest"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    digest: Mapped[str]
    operators: Mapped[int]
    storages: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=now)


class OperatorRow(Base):
    """One launched kernel, at its position in launch order."""

    __tablename__ = "operators"
    __table_args__ = ({"sqlite_with_rowid": False},)

    program_id: Mapped[int] = mapped_column(
        Integer, ForeignKey("programs.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    position: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[str]
    type: Mapped[str]
    stream: Mapped[str]
    phase: Mapped[str]
    layer: Mapped[str]
    workspace_bytes: Mapped[int]
    recomputable: Mapped[bool]
    micro_batch: Mapped[int | None]
    stage: Mapped[int | None]


class StorageRow(Base):
    """One device allocation of a program.

    `alive_from`, `alive_until`: first and last operator position of its lifetime (0 and the last operator
    where it is resident at the start or end of the step). `layer`: that of the first operator with one that
    touches it. `accesses`: uint32 array, 2 x operator position, + 1 where the operator writes it.
    `steps_observed`, `steps_accessed`: sums over all stored profiles of the program.
    """

    __tablename__ = "storages"
    __table_args__ = (Index(None, "program_id", "alive_from", "alive_until"), {"sqlite_with_rowid": False})

    program_id: Mapped[int] = mapped_column(
        Integer, ForeignKey("programs.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    storage: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str]
    bytes_: Mapped[int] = mapped_column("bytes")
    kind: Mapped[str]
    layer: Mapped[str]
    part_of: Mapped[int | None]
    resident_at_start: Mapped[bool]
    resident_at_end: Mapped[bool]
    offloadable: Mapped[bool]
    alive_from: Mapped[int] = mapped_column(Integer)
    alive_until: Mapped[int] = mapped_column(Integer)
    reads: Mapped[int] = mapped_column(Integer)
    writes: Mapped[int] = mapped_column(Integer)
    accesses: Mapped[bytes]
    steps_observed: Mapped[int]
    steps_accessed: Mapped[int]


class Run(Base):
    """One profiled execution of a model on all its ranks."""

    __tablename__ = "runs"
    __table_args__ = (Index(None, "project_id", "name"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    framework: Mapped[str]
    framework_version: Mapped[str]
    model: Mapped[str]
    world_size: Mapped[int]
    step: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=now)


class Document(Base):
    """Uploaded bytes, as they came (so also as compressed), under their own hash."""

    __tablename__ = "documents"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    encoding: Mapped[str]
    size: Mapped[int]
    data: Mapped[bytes] = mapped_column(deferred=True)


class Rank(Base):
    """One rank of a run: one stored profile. `id` follows from the profile's content.

    `peak_bytes`, `peak_op`, `step_ns`: of the replay without a plan; None for a profile without storages.
    `measured`, `device`, `adapter`: those parts of the document.
    """

    __tablename__ = "ranks"
    __table_args__ = (UniqueConstraint("run_id", "rank"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rank: Mapped[int]
    program_id: Mapped[int] = mapped_column(ForeignKey("programs.id"), index=True)
    document: Mapped[str] = mapped_column(ForeignKey("documents.sha256"), index=True)
    digest: Mapped[str] = mapped_column(unique=True)
    source: Mapped[str]
    is_measured: Mapped[bool]
    timing_only: Mapped[bool]
    base_bytes: Mapped[int]
    peak_bytes: Mapped[int | None]
    peak_op: Mapped[int | None]
    step_ns: Mapped[int | None]
    device: Mapped[Json]
    measured: Mapped[Json | None]
    adapter: Mapped[Json]
    notes: Mapped[list[str]]
    warnings: Mapped[list[str]]
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)


class Timings(Base):
    """One rank's times per operator, int64 arrays: durations; replayed starts and ends from step start."""

    __tablename__ = "timings"

    rank_id: Mapped[str] = mapped_column(ForeignKey("ranks.id", ondelete="CASCADE"), primary_key=True)
    duration_ns: Mapped[bytes]
    start_ns: Mapped[bytes]
    end_ns: Mapped[bytes]


class PlanRow(Base):
    """A solved plan. `document` is the JSON served, `etag` its sha256."""

    __tablename__ = "plans"

    id: Mapped[str] = mapped_column(primary_key=True)
    profile_id: Mapped[str] = mapped_column(ForeignKey("ranks.id", ondelete="CASCADE"), index=True)
    program_digest: Mapped[str]
    document: Mapped[bytes] = mapped_column(deferred=True)
    etag: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(default=now)


class Job(Base):
    """One request, and what became of it. Liveness (queued, running) is the job engine's to say.

    `profile_id`: None for kinds of job that concern more than one profile.
    """

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    profile_id: Mapped[str | None] = mapped_column(ForeignKey("ranks.id", ondelete="CASCADE"), index=True)
    request: Mapped[Json]
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)
    started_at: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    cancel_requested_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    outcome: Mapped[str | None]
    result: Mapped[Json | None]
    plan_id: Mapped[str | None] = mapped_column(ForeignKey("plans.id"))


class JobEvent(Base):
    """One report of progress, in order of `seq` from 1."""

    __tablename__ = "job_events"
    __table_args__ = ({"sqlite_with_rowid": False},)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(default=now)
    data: Mapped[Json]


class CheckRow(Base):
    """One verdict of the gate: what was asked (`policy`, `samples`) and what came of it (`result`).

    `branch`: whose baseline it was held against; `head`: what the candidate is of, empty: that branch itself.
    """

    __tablename__ = "checks"

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    branch: Mapped[str]
    head: Mapped[str] = mapped_column(default="", server_default="")
    commit: Mapped[str]
    baseline_profile: Mapped[str] = mapped_column(ForeignKey("ranks.id", ondelete="CASCADE"), index=True)
    candidate_profile: Mapped[str] = mapped_column(ForeignKey("ranks.id", ondelete="CASCADE"), index=True)
    policy: Mapped[Json]
    samples: Mapped[Json | None]
    verdict: Mapped[str]
    result: Mapped[Json]
    created_at: Mapped[datetime] = mapped_column(default=now, index=True)


class Baseline(Base):
    """What profiles of one kind are compared with on a branch. `id` follows from the columns up to `world_size`.

    `version` grows with every change: it is what If-Match names. The profile is that of the newest acceptance.
    """

    __tablename__ = "baselines"
    __table_args__ = (Index(None, "project_id", "branch"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    branch: Mapped[str]
    model: Mapped[str]
    device: Mapped[str]
    framework: Mapped[str]
    framework_version: Mapped[str]
    mode: Mapped[str]
    rank: Mapped[int]
    world_size: Mapped[int]
    version: Mapped[int] = mapped_column(Integer)
    frozen: Mapped[bool]


class Acceptance(Base):
    """Somebody made a profile the baseline, or froze or thawed it (`act`), and said why; and whether it was to be
    accepted in spite of a regression, or of an inconclusive check."""

    __tablename__ = "acceptances"

    baseline_id: Mapped[str] = mapped_column(ForeignKey("baselines.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    act: Mapped[str]
    profile_id: Mapped[str] = mapped_column(ForeignKey("ranks.id", ondelete="CASCADE"), index=True)
    check_id: Mapped[str | None] = mapped_column(ForeignKey("checks.id", ondelete="SET NULL"))
    accept_regression: Mapped[bool] = mapped_column(default=False, server_default=false())
    accept_inconclusive: Mapped[bool] = mapped_column(default=False, server_default=false())
    who: Mapped[str]
    why: Mapped[str]
    at: Mapped[datetime] = mapped_column(default=now)


class CostModelRow(Base):
    """A cost model of one device: `device` is `hyperopt.cost.features.device_of`, `version` counts its models from 1.

    `data_digest`: of what it was trained on, which its id follows from; `superseded`: those of the profiles that are
    from before the device has changed, and taught only what nothing newer says; `document`: of `hyperopt.cost/1`;
    `scores`, `importances`, `plans` (`feedback.PlansOff`), `drift` and `why` are what the training said; `software`:
    what has trained it. Whether it is in use is what `CostModelUse` says.
    """

    __tablename__ = "cost_models"
    __table_args__ = (UniqueConstraint("project_id", "device", "version"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    device: Mapped[str]
    device_name: Mapped[str]
    framework: Mapped[str]
    framework_version: Mapped[str]
    version: Mapped[int] = mapped_column(Integer)
    data_digest: Mapped[str]
    document: Mapped[str] = mapped_column(ForeignKey("documents.sha256"), index=True)
    profiles: Mapped[list[str]]
    measurements: Mapped[list[str]]
    superseded: Mapped[list[str]]
    signatures: Mapped[int]
    groups: Mapped[int]
    scores: Mapped[Json]
    importances: Mapped[Json]
    plans: Mapped[Json]
    drift: Mapped[Json | None]
    compared_with: Mapped[str | None] = mapped_column(ForeignKey("cost_models.id", ondelete="SET NULL"))
    why: Mapped[str]
    software: Mapped[str]
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = mapped_column(default=now)


class CostModelUse(Base):
    """A model of a device came into use, in place of the one before. The newest `version` is the one in use."""

    __tablename__ = "cost_model_uses"

    project_id: Mapped[int] = mapped_column(Integer, ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    device: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    model_id: Mapped[str] = mapped_column(ForeignKey("cost_models.id", ondelete="CASCADE"), index=True)
    who: Mapped[str]
    why: Mapped[str]
    at: Mapped[datetime] = mapped_column(default=now)


class Measurement(Base):
    """What a training that followed a plan measured, beside what the plan predicted. `id` follows from the content.

    `copies`: [bytes, microseconds] of each copy back, in order.
    """

    __tablename__ = "measurements"

    id: Mapped[str] = mapped_column(primary_key=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), index=True)
    steps: Mapped[int] = mapped_column(Integer)
    step_ns: Mapped[int]
    spread_ns: Mapped[int]
    peak_bytes: Mapped[int | None]
    predicted_step_ns: Mapped[int]
    predicted_peak_bytes: Mapped[int]
    copies: Mapped[list[Any]]
    created_at: Mapped[datetime] = mapped_column(default=now)
