"""What a branch is compared with, and who said so.

Storing a profile and accepting it are two acts. An acceptance names who and why, and the version of the baseline that
it replaces, so that of two people who accept at once one is told. Nothing else ever changes a baseline.

A baseline is *of a kind*: project, branch, model, device, framework and its version, mode, rank and world size.
Profiles of another kind have another baseline, or none, and are never compared with this one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from hyperopt.store.checks import checks_of, count_checks, get_check
from hyperopt.store.profiles import ProfileSummary
from hyperopt.store.tables import Acceptance, Baseline, Project, now

Act = Literal["accepted", "frozen", "thawed"]


class Refused(Exception):
    """The baseline stays as it is."""

    def __init__(
        self,
        kind: Literal["unchecked", "regressed", "inconclusive", "frozen", "changed"],
        reason: str,
        remedy: str,
    ) -> None:
        self.kind, self.reason, self.remedy = kind, reason, remedy
        super().__init__(f"{reason} ({remedy})")


@dataclass(frozen=True)
class Objections:
    """Why a run must not become the baseline by itself: what its checks found, and what they left open. `seen`: the ids
    of those checks."""

    regressed: tuple[str, ...] = ()
    inconclusive: tuple[str, ...] = ()
    seen: frozenset[str] = frozenset()


NONE = Objections()


@dataclass(frozen=True)
class Entry:
    """One act on a baseline: who did it, when and why; `check`: what it was based on. `accept_regression`,
    `accept_inconclusive`: that it was to be accepted in spite of that."""

    version: int
    act: str
    profile: str
    check: str | None
    accept_regression: bool
    accept_inconclusive: bool
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

    @property
    def accepted(self) -> tuple[str, ...]:
        """All profiles that it has been, newest first."""
        return tuple(one.profile for one in self.history if one.act == "accepted")

    @property
    def by_name(self) -> str:
        """The profile that was last accepted in spite of a regression, else the first: all after it had to pass."""
        acts = [one for one in self.history if one.act == "accepted"]
        return next((one.profile for one in acts if one.accept_regression), acts[-1].profile)

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
    objections: Objections = NONE,
    accept_regression: bool = False,
    accept_inconclusive: bool = False,
) -> StoredBaseline:
    """Makes a stored profile the baseline of its kind.

    `expected`: the etag of the baseline that it replaces, None where there is none yet. `check`: of this profile
    against that baseline; needed where there is one. `objections`: to this profile in place of that baseline;
    `accept_regression` accepts it in spite of any, `accept_inconclusive` in spite of what is open. Raises `Refused`.
    """
    id = baseline_id(profile, branch)
    current = get_baseline(session, id)
    _expect(current, expected)
    if current is not None:
        if current.frozen:
            raise Refused("frozen", f"{id} is frozen", "thaw it first, and say why")
        _checked(session, current, profile, check, objections)
        _sound(objections, accept_regression, accept_inconclusive)
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
    return _act(
        session,
        Acceptance(
            baseline_id=id,
            act="accepted",
            profile_id=profile.id,
            check_id=check,
            accept_regression=accept_regression,
            accept_inconclusive=accept_inconclusive,
            who=who,
            why=why,
        ),
    )


def freeze(
    session: Session, id: str, frozen: bool, *, who: str, why: str, expected: str | None
) -> StoredBaseline | None:
    """Keeps a baseline from being replaced, or allows it again; None: there is none of that id. Raises `Refused`."""
    current = get_baseline(session, id)
    if current is None:
        return None
    _expect(current, expected)
    session.get_one(Baseline, id).frozen = frozen
    act: Act = "frozen" if frozen else "thawed"
    return _act(session, Acceptance(baseline_id=id, act=act, profile_id=current.profile, who=who, why=why))


def _expect(current: StoredBaseline | None, expected: str | None) -> None:
    if (current.etag if current else None) != expected:
        now_there = "there is one already" if expected is None else "it has changed, or is gone"
        raise Refused("changed", f"the baseline is not the one you saw: {now_there}", "look at it again, then decide")


def _checked(
    session: Session, current: StoredBaseline, profile: ProfileSummary, check: str | None, objections: Objections
) -> None:
    """A profile replaces a baseline only after it was checked against it, and no check of it was overlooked."""
    found = get_check(session, check) if check is not None else None
    if found is None or (found.baseline, found.candidate) != (current.profile, profile.id):
        problem = f"{profile.id} was not checked against {current.profile}" + (f" by {check}" if check else "")
        raise Refused("unchecked", problem, "check it: POST /v1/checks, and name that check")
    for one, _ in checks_of(session, profile.id, current.accepted):
        if one.id not in objections.seen:
            raise Refused("changed", f"{one.id} of {profile.id} came meanwhile", "look at it, then decide")


def _sound(objections: Objections, accept_regression: bool, accept_inconclusive: bool) -> None:
    if objections.regressed and not accept_regression:
        remedy = "mend it, or accept the regression explicitly, and say why"
        raise Refused("regressed", "; ".join(objections.regressed), remedy)
    if objections.inconclusive and not (accept_regression or accept_inconclusive):
        remedy = "measure what is open until it passes, or accept explicitly what is inconclusive, and say why"
        raise Refused("inconclusive", "; ".join(objections.inconclusive), remedy)


def _act(session: Session, act: Acceptance) -> StoredBaseline:
    row = session.get_one(Baseline, act.baseline_id)
    row.version += 1
    act.version = row.version
    session.add(act)
    session.flush()
    return _stored(session, row)


def _stored(session: Session, row: Baseline) -> StoredBaseline:
    acts = session.scalars(
        select(Acceptance).where(Acceptance.baseline_id == row.id).order_by(Acceptance.version.desc())
    ).all()
    entries = tuple(
        Entry(
            version=one.version,
            act=one.act,
            profile=one.profile_id,
            check=one.check_id,
            accept_regression=one.accept_regression,
            accept_inconclusive=one.accept_inconclusive,
            who=one.who,
            why=one.why,
            at=one.at,
        )
        for one in acts
    )
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
