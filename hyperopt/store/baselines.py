"""What a branch is compared with, and who said so.

Storing a profile and accepting it are two acts. An acceptance names who and why, and the version of the baseline that
it replaces, so that of two people who accept at once one is told. Nothing else ever changes a baseline.

A baseline is *of a kind*: project, branch, model, device, framework and its version, mode, rank and world size.
Profiles of another kind have another baseline, or none, and are never compared with this one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from hyperopt.store.checks import count_checks, get_check, regressions
from hyperopt.store.profiles import ProfileSummary
from hyperopt.store.tables import Acceptance, Baseline, Project, now

Act = Literal["accepted", "frozen", "thawed"]


class Refused(Exception):
    """The baseline stays as it is. `kind`: unchecked, regressed, frozen or changed."""

    def __init__(self, kind: Literal["unchecked", "regressed", "frozen", "changed"], reason: str, remedy: str) -> None:
        self.kind, self.reason, self.remedy = kind, reason, remedy
        super().__init__(f"{reason} ({remedy})")


@dataclass(frozen=True)
class Entry:
    """One act on a baseline: who did it, when and why; `check`: what it was based on."""

    version: int
    act: str
    profile: str
    check: str | None
    who: str
    why: str
    at: datetime


@dataclass(frozen=True)
class StoredBaseline:
    """A baseline as it is. `profile` was accepted at `accepted_at`; `history`: all acts, newest first.

    `checks`: that were made against it on its branch since then.
    """

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
    version: int
    frozen: bool
    profile: str
    accepted_at: datetime
    checks: int
    history: tuple[Entry, ...]

    @property
    def etag(self) -> str:
        """Entity tag in hex, without quotes: another one after every act."""
        return hashlib.sha256(f"{self.id} {self.version}".encode()).hexdigest()

    def stale(self, after: timedelta, at: datetime | None = None) -> bool:
        """Whether it was accepted longer ago than that."""
        return (at or now()) - self.accepted_at > after


def baseline_id(profile: ProfileSummary, branch: str) -> str:
    """The id of the baseline of a profile's kind on a branch, whether or not there is one."""
    kind = [profile.project, branch, *_kind(profile)]
    return "baseline-" + hashlib.sha256(msgspec.json.encode(kind)).hexdigest()[:24]


def _kind(profile: ProfileSummary) -> tuple[str | int, ...]:
    device, mode = str(profile.device.get("name", "")), str(profile.adapter.get("mode", ""))
    framework = (profile.framework, profile.framework_version)
    return (profile.model, device, *framework, mode, profile.rank, profile.world_size)


def get_baseline(session: Session, id: str) -> StoredBaseline | None:
    row = session.get(Baseline, id)
    return None if row is None else _stored(session, row)


def list_baselines(session: Session, project: str | None = None, branch: str | None = None) -> list[StoredBaseline]:
    """By project, branch and model."""
    asked = select(Baseline).join(Project, Project.id == Baseline.project_id)
    if project is not None:
        asked = asked.where(Project.name == project)
    if branch is not None:
        asked = asked.where(Baseline.branch == branch)
    rows = session.scalars(asked.order_by(Project.name, Baseline.branch, Baseline.model, Baseline.id))
    return [_stored(session, row) for row in rows]


def accept(
    session: Session,
    profile: ProfileSummary,
    branch: str,
    *,
    who: str,
    why: str,
    expected: str | None,
    check: str | None = None,
    regression: bool = False,
    beyond: Sequence[str] = (),
) -> StoredBaseline:
    """Makes a stored profile the baseline of its kind.

    `expected`: the etag of the baseline that it replaces, None where there is none yet. `check`: of this profile
    against that baseline; needed where there is one. `regression`: what any check of it against that baseline found is
    accepted with it, and so is `beyond`: what only that check's own policy let pass. Raises `Refused`.
    """
    id = baseline_id(profile, branch)
    current = get_baseline(session, id)
    _expect(current, expected)
    if current is not None:
        if current.frozen:
            raise Refused("frozen", f"{id} is frozen", "thaw it first, and say why")
        _sound(session, current, profile, check, regression, beyond)
    if current is None:
        model, device, framework, framework_version, mode, rank, world_size = _kind(profile)
        project = session.scalars(select(Project.id).where(Project.name == profile.project)).one()
        session.add(
            Baseline(
                id=id,
                project_id=project,
                branch=branch,
                model=model,
                device=device,
                framework=framework,
                framework_version=framework_version,
                mode=mode,
                rank=rank,
                world_size=world_size,
                version=0,
                frozen=False,
            )
        )
        session.flush()
    return _act(session, id, "accepted", profile.id, check, who, why)


def freeze(
    session: Session, id: str, frozen: bool, *, who: str, why: str, expected: str | None
) -> StoredBaseline | None:
    """Keeps a baseline from being replaced, or allows it again; None: there is none of that id. Raises `Refused`."""
    current = get_baseline(session, id)
    if current is None:
        return None
    _expect(current, expected)
    session.get_one(Baseline, id).frozen = frozen
    return _act(session, id, "frozen" if frozen else "thawed", current.profile, None, who, why)


def _expect(current: StoredBaseline | None, expected: str | None) -> None:
    if (current.etag if current else None) != expected:
        now_there = "there is one already" if expected is None else "it has changed, or is gone"
        raise Refused("changed", f"the baseline is not the one you saw: {now_there}", "look at it again, then decide")


def _sound(
    session: Session,
    current: StoredBaseline,
    profile: ProfileSummary,
    check: str | None,
    regression: bool,
    beyond: Sequence[str],
) -> None:
    """A profile replaces a baseline only after it was checked against it, and no check said that it regressed.

    All of them count, not the one that is named: a second check with a wider tolerance or fewer metrics proves nothing
    against the first.
    """
    found = get_check(session, check) if check is not None else None
    if found is None or (found.baseline, found.candidate) != (current.profile, profile.id):
        problem = f"{profile.id} was not checked against {current.profile}" + (f" by {check}" if check else "")
        raise Refused("unchecked", problem, "check it: POST /v1/checks, and name that check")
    if regression:
        return
    remedy = "mend it, or accept the regression explicitly, and say why"
    if bad := regressions(session, current.profile, profile.id):
        id = found.id if found.id in bad else bad[-1]
        told = get_check(session, id)
        reasons = "; ".join(told.result.get("reasons", ())) if told else ""
        others = f" ({len(bad)} checks of it did)" if len(bad) > 1 else ""
        raise Refused("regressed", f"{id} found a regression{others}: {reasons}", remedy)
    if beyond:
        reason = f"{check} passes by its own policy only; by the default one it regressed: {'; '.join(beyond)}"
        raise Refused("regressed", reason, remedy)


def _act(session: Session, id: str, act: Act, profile: str, check: str | None, who: str, why: str) -> StoredBaseline:
    row = session.get_one(Baseline, id)
    row.version += 1
    version = row.version
    session.add(
        Acceptance(baseline_id=id, version=version, act=act, profile_id=profile, check_id=check, who=who, why=why)
    )
    session.flush()
    return _stored(session, row)


def _stored(session: Session, row: Baseline) -> StoredBaseline:
    acts = session.scalars(
        select(Acceptance).where(Acceptance.baseline_id == row.id).order_by(Acceptance.version.desc())
    ).all()
    entries = tuple(Entry(a.version, a.act, a.profile_id, a.check_id, a.who, a.why, a.at) for a in acts)
    accepted = next(entry for entry in entries if entry.act == "accepted")
    return StoredBaseline(
        id=row.id,
        project=session.get_one(Project, row.project_id).name,
        branch=row.branch,
        model=row.model,
        device=row.device,
        framework=row.framework,
        framework_version=row.framework_version,
        mode=row.mode,
        rank=row.rank,
        world_size=row.world_size,
        version=row.version,
        frozen=row.frozen,
        profile=accepted.profile,
        accepted_at=accepted.at,
        checks=count_checks(session, accepted.profile, row.branch, accepted.at),
        history=entries,
    )
