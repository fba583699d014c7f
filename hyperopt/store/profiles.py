"""Storing a profile once, in one transaction, and finding it again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, defer

from hyperopt.documents import GZIP_MAGIC, ZSTD_MAGIC, DocumentError
from hyperopt.profile import Profile
from hyperopt.replay import Timeline
from hyperopt.store.columns import pack_accesses, pack_times
from hyperopt.store.database import Database
from hyperopt.store.tables import (
    Document,
    OperatorRow,
    Program,
    Project,
    Rank,
    Run,
    StorageRow,
    Timings,
)


class ProjectConflict(Exception):
    """The profile is stored already, in another project."""

    def __init__(self, profile_id: str, project: str) -> None:
        self.profile_id, self.project = profile_id, project
        super().__init__(f"{profile_id} belongs to project {project!r}")


@dataclass(frozen=True)
class ProfileSummary:
    """What is known of a stored profile without reading its document. Bytes and microseconds.

    `peak_bytes`, `peak_op`, `step_us` are of the replay without a plan; None for a timing-only profile (the
    step excepted). `measured` is what the source itself measured.
    """

    id: str
    project: str
    run: int
    run_name: str
    model: str
    framework: str
    framework_version: str
    rank: int
    world_size: int
    step: int
    source: str
    is_measured: bool
    digest: str
    program_digest: str
    operators: int
    storages: int
    timing_only: bool
    base_bytes: int
    peak_bytes: int | None
    peak_op: int | None
    step_us: float | None
    device: dict[str, Any]
    measured: dict[str, Any] | None
    adapter: dict[str, Any]
    notes: list[str]
    warnings: list[str]
    document_sha256: str
    document_bytes: int
    document_encoding: str
    created_at: datetime


@dataclass(frozen=True)
class StoredDocument:
    """Bytes as uploaded; `encoding` is identity, gzip or zstd."""

    data: bytes
    encoding: str
    sha256: str


def profile_id(digest: str) -> str:
    """The id of the profile with this content: the same content always has the same id."""
    return "profile-" + digest.removeprefix("sha256:")[:20]


def find_uploaded(session: Session, raw: bytes) -> str | None:
    """The id of the profile that exactly these bytes were stored as."""
    return session.scalar(select(Rank.id).where(Rank.document == hashlib.sha256(raw).hexdigest()))


def check_storable(profile: Profile, timeline: Timeline) -> None:
    """Raises `DocumentError` where a checked profile has figures or text that a database cannot hold."""
    for i, operator in enumerate(profile.operators):
        for field in ("name", "type", "stream", "layer"):
            if "\0" in getattr(operator, field):
                raise _null_character(f"$.operators[{i}].{field}")
        for field in ("micro_batch", "stage"):
            if abs(getattr(operator, field) or 0) > _LARGEST:
                raise DocumentError(f"$.operators[{i}].{field}", "beyond 64 bits", "number them from 0")
    for i, storage in enumerate(profile.storages):
        if "\0" in storage.name:
            raise _null_character(f"$.storages[{i}].name")
    for field in ("name", "framework", "framework_version", "model", "source"):
        if "\0" in getattr(profile.run, field):
            raise _null_character(f"$.run.{field}")
    if timeline.step_ns > _LARGEST:
        raise DocumentError("$.operators", "the step takes longer than 292 years", "give times in microseconds")
    sizes = sum(storage.bytes for storage in profile.storages)
    if profile.device.base_bytes + sizes + sum(o.workspace_bytes for o in profile.operators) > _LARGEST:
        raise DocumentError("$.storages", "the sizes add up to more than 8 EiB", "give sizes in bytes")


_LARGEST = 2**63 - 1


def _null_character(field: str) -> DocumentError:
    return DocumentError(field, "contains a null character", "leave it out")


def keep_profile(
    database: Database, project: str, profile: Profile, warnings: list[str], raw: bytes, timeline: Timeline
) -> tuple[str, bool]:
    """`add_profile` in a transaction of its own, tried again where another stored the same just then."""
    for _ in range(_TRIES - 1):
        try:
            with database.write() as session:
                return add_profile(session, project, profile, warnings, raw, timeline)
        except IntegrityError:  # Postgres alone: on SQLite writers come one after the other
            continue
    with database.write() as session:
        return add_profile(session, project, profile, warnings, raw, timeline)


_TRIES = 4


def add_profile(
    session: Session, project: str, profile: Profile, warnings: list[str], raw: bytes, timeline: Timeline
) -> tuple[str, bool]:
    """Stores a checked profile, the bytes it came from and its replay; returns its id, and whether it is new.

    A profile already stored is left as it is. Raises `ProjectConflict` when it is stored in another project,
    and SQLAlchemy's `IntegrityError` when another transaction has stored the same project, program or profile
    at the same moment: try again.
    """
    id = profile_id(profile.digest)
    home = session.scalar(
        select(Project.name)
        .join(Run, Run.project_id == Project.id)
        .join(Rank, Rank.run_id == Run.id)
        .where(Rank.id == id)
    )
    if home is not None:
        if home != project:
            raise ProjectConflict(id, home)
        return id, False
    # Locked: ranks of one run that arrive together must find each other's run (SQLite has one writer anyway).
    owner = session.scalar(select(Project).where(Project.name == project).with_for_update())
    if owner is None:
        owner = Project(name=project)
        session.add(owner)
        session.flush()
    program = _program(session, owner, profile)
    run = _run(session, owner, profile)
    document = keep_document(session, raw)
    session.add(
        Rank(
            id=id,
            run_id=run.id,
            rank=profile.run.rank,
            program_id=program.id,
            document=document,
            digest=profile.digest,
            source=profile.run.source,
            is_measured=profile.run.measured,
            timing_only=profile.timing_only,
            base_bytes=profile.device.base_bytes,
            peak_bytes=None if profile.timing_only else timeline.peak_bytes,
            peak_op=None if profile.timing_only or not profile.operators else timeline.peak_op,
            step_ns=timeline.step_ns,
            device=msgspec.to_builtins(profile.device),
            measured=None if profile.measured is None else msgspec.to_builtins(profile.measured),
            adapter=msgspec.to_builtins(profile.adapter),
            notes=list(profile.run.notes),
            warnings=warnings,
        )
    )
    session.flush()
    durations = (round(operator.duration_us * 1000) for operator in profile.operators)
    session.add(
        Timings(
            rank_id=id,
            duration_ns=pack_times(durations),
            start_ns=pack_times(timeline.start),
            end_ns=pack_times(timeline.end),
        )
    )
    session.flush()
    return id, True


def _program(session: Session, project: Project, profile: Profile) -> Program:
    """The profile's program: stored now, or met again and its step counts added up."""
    digest = profile.program_digest
    found = session.scalar(select(Program).where(Program.project_id == project.id, Program.digest == digest))
    if found is not None:
        _count_steps(session, found.id, profile)
        return found
    program = Program(
        project_id=project.id, digest=digest, operators=len(profile.operators), storages=len(profile.storages)
    )
    session.add(program)
    session.flush()
    # Core inserts: the ORM's bulk insert takes half as long again (docs/why/store.md).
    connection = session.connection()
    if operators := list(_operator_rows(program.id, profile)):
        connection.execute(insert(OperatorRow.__table__), operators)  # type: ignore[arg-type]
    if storages := list(_storage_rows(program.id, profile)):
        connection.execute(insert(StorageRow.__table__), storages)  # type: ignore[arg-type]
    return program


def _count_steps(session: Session, program: int, profile: Profile) -> None:
    counts = [
        {"of": s.id, "observed": s.steps_observed, "accessed": s.steps_accessed}
        for s in profile.storages
        if s.steps_observed
    ]
    if counts:
        table = StorageRow.__table__
        session.connection().execute(
            update(table)  # type: ignore[arg-type]
            .where(table.c.program_id == program, table.c.storage == bindparam("of"))
            .values(
                steps_observed=table.c.steps_observed + bindparam("observed"),
                steps_accessed=table.c.steps_accessed + bindparam("accessed"),
            ),
            counts,
        )


def _operator_rows(program: int, profile: Profile) -> Iterator[dict[str, Any]]:
    for position, operator in enumerate(profile.operators):
        yield {
            "program_id": program,
            "position": position,
            "name": operator.name,
            "type": operator.type,
            "stream": operator.stream,
            "phase": operator.phase,
            "layer": operator.layer,
            "workspace_bytes": operator.workspace_bytes,
            "recomputable": operator.recomputable,
            "micro_batch": operator.micro_batch,
            "stage": operator.stage,
        }


def _storage_rows(program: int, profile: Profile) -> Iterator[dict[str, Any]]:
    last = len(profile.operators) - 1
    accesses: dict[int, list[int]] = {storage.id: [] for storage in profile.storages}
    layers: dict[int, str] = {}
    for position, operator in enumerate(profile.operators):
        writes = set(operator.writes)
        for id in operator.accesses:
            accesses[id].append(2 * position + (id in writes))
            if operator.layer:
                layers.setdefault(id, operator.layer)
    reads = dict.fromkeys(accesses, 0)
    for operator in profile.operators:
        for id in set(operator.reads):
            reads[id] += 1
    for storage in profile.storages:
        codes = accesses[storage.id]
        stays = storage.resident_at_end or (storage.resident_at_start and not codes)
        yield {
            "program_id": program,
            "storage": storage.id,
            "name": storage.name,
            "bytes": storage.bytes,
            "kind": storage.kind,
            "layer": layers.get(storage.id, ""),
            "part_of": storage.part_of,
            "resident_at_start": storage.resident_at_start,
            "resident_at_end": storage.resident_at_end,
            "offloadable": storage.offloadable,
            # A storage that is neither resident nor touched lives nowhere: an empty interval.
            "alive_from": 0 if storage.resident_at_start else codes[0] // 2 if codes else last + 1,
            "alive_until": last if stays else codes[-1] // 2 if codes else -1,
            "reads": reads[storage.id],
            "writes": sum(code & 1 for code in codes),
            "accesses": pack_accesses(codes),
            "steps_observed": storage.steps_observed,
            "steps_accessed": storage.steps_accessed,
        }


def _run(session: Session, project: Project, profile: Profile) -> Run:
    """The run this rank belongs to: the newest of its name still without that rank, else a new one.

    A profile without a run name is a run of its own: nothing says which other ranks it ran with.
    """
    about = profile.run
    if about.name:
        taken = select(Rank.id).where(Rank.run_id == Run.id, Rank.rank == about.rank).exists()
        found = session.scalar(
            select(Run)
            .where(
                Run.project_id == project.id,
                Run.name == about.name,
                Run.model == about.model,
                Run.framework == about.framework,
                Run.framework_version == about.framework_version,
                Run.world_size == about.world_size,
                Run.step == about.step,
                ~taken,
            )
            .order_by(Run.id.desc())
            .limit(1)
        )
        if found is not None:
            return found
    run = Run(
        project_id=project.id,
        name=about.name,
        framework=about.framework,
        framework_version=about.framework_version,
        model=about.model,
        world_size=about.world_size,
        step=about.step,
    )
    session.add(run)
    session.flush()
    return run


def keep_document(session: Session, raw: bytes) -> str:
    """Keeps bytes under their sha256, which is returned; the same bytes are kept once."""
    sha256 = hashlib.sha256(raw).hexdigest()
    if session.get(Document, sha256, options=[defer(Document.data)]) is None:
        encoding = "gzip" if raw.startswith(GZIP_MAGIC) else "zstd" if raw.startswith(ZSTD_MAGIC) else "identity"
        session.add(Document(sha256=sha256, encoding=encoding, size=len(raw), data=raw))
        session.flush()
    return sha256


def get_summary(session: Session, id: str) -> ProfileSummary | None:
    found = _summaries(session, Rank.id == id)
    return found[0] if found else None


def list_summaries(
    session: Session,
    project: str | None = None,
    run_name: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> list[ProfileSummary]:
    """Stored profiles, newest first. `before`: the id of the last one already seen, for the next page."""
    conditions = []
    if project is not None:
        conditions.append(Project.name == project)
    if run_name is not None:
        conditions.append(Run.name == run_name)
    if before is not None:
        seen = select(Rank.created_at).where(Rank.id == before).scalar_subquery()
        conditions.append((Rank.created_at < seen) | ((Rank.created_at == seen) & (Rank.id < before)))
    return _summaries(session, *conditions, limit=limit)


def _summaries(session: Session, *conditions: Any, limit: int = 1) -> list[ProfileSummary]:
    rows = session.execute(
        select(Rank, Run, Program, Project.name, Document.encoding, Document.size)
        .join(Run, Run.id == Rank.run_id)
        .join(Program, Program.id == Rank.program_id)
        .join(Project, Project.id == Run.project_id)
        .join(Document, Document.sha256 == Rank.document)
        .where(*conditions)
        .order_by(Rank.created_at.desc(), Rank.id.desc())
        .limit(limit)
    )
    return [
        _summary(rank, run, program, project, encoding, size) for rank, run, program, project, encoding, size in rows
    ]


def _summary(rank: Rank, run: Run, program: Program, project: str, encoding: str, size: int) -> ProfileSummary:
    return ProfileSummary(
        id=rank.id,
        project=project,
        run=run.id,
        run_name=run.name,
        model=run.model,
        framework=run.framework,
        framework_version=run.framework_version,
        rank=rank.rank,
        world_size=run.world_size,
        step=run.step,
        source=rank.source,
        is_measured=rank.is_measured,
        digest=rank.digest,
        program_digest=program.digest,
        operators=program.operators,
        storages=program.storages,
        timing_only=rank.timing_only,
        base_bytes=rank.base_bytes,
        peak_bytes=rank.peak_bytes,
        peak_op=rank.peak_op,
        step_us=None if rank.step_ns is None else rank.step_ns / 1000,
        device=rank.device,
        measured=rank.measured,
        adapter=rank.adapter,
        notes=rank.notes,
        warnings=rank.warnings,
        document_sha256=rank.document,
        document_bytes=size,
        document_encoding=encoding,
        created_at=rank.created_at,
    )


def get_document(session: Session, id: str) -> StoredDocument | None:
    """The bytes that profile `id` was uploaded as."""
    row = session.execute(
        select(Document.data, Document.encoding, Document.sha256)
        .join(Rank, Rank.document == Document.sha256)
        .where(Rank.id == id)
    ).one_or_none()
    return None if row is None else StoredDocument(row.data, row.encoding, row.sha256)


def count_profiles(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(Rank)) or 0
