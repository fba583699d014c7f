"""Judging stored profiles: what is asked of a check, and what is kept of it.

The endpoint does it at once; where a limit must be solved for, a job does (`api.work`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from api.problems import ProblemError
from hyperopt import profile as profiles
from hyperopt.gate import Policy, Sensitivity, Threshold, samples, with_fit
from hyperopt.gate import check as judge
from hyperopt.gate.fit import Fit, Requirement
from hyperopt.gate.samples import Samples
from hyperopt.gate.throughput import (
    DEFAULT_BEYOND_PERCENT,
    DEFAULT_LEVEL,
    DEFAULT_POWER,
    DEFAULT_TOLERANCE_PERCENT,
)
from hyperopt.profile import Profile
from hyperopt.store import Database
from hyperopt.store.baselines import StoredBaseline, baseline_id, get_baseline
from hyperopt.store.profiles import ProfileSummary, get_document, get_summary

KIND = "check"
"""Of jobs that end with a check."""

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
ProfileId = Annotated[str, Field(max_length=64, description="Id of a stored profile")]
Branch = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
Percent = Annotated[float, Field(ge=0, le=1e6)]


class PolicyAsked(BaseModel):
    """What is allowed. It travels with the request, so that it is versioned with the code that it judges."""

    model_config = _STRICT

    memory_bytes: Annotated[int | None, Field(ge=0, le=2**53, description="Growth of the replayed peak")] = None
    memory_percent: Annotated[
        Percent | None, Field(description="The same in percent of the baseline's; the larger of the two counts")
    ] = None
    tolerance_percent: Annotated[Percent, Field(description="How much worse a metric may become")] = (
        DEFAULT_TOLERANCE_PERCENT
    )
    level: Annotated[float, Field(ge=1e-6, le=0.5, description="Chance of a false alarm at the tolerance")] = (
        DEFAULT_LEVEL
    )
    beyond_percent: Annotated[
        float, Field(gt=0, le=1e6, description="Beyond the tolerance, to be found with the chance `power`")
    ] = DEFAULT_BEYOND_PERCENT
    power: Annotated[float, Field(gt=0.5, lt=1)] = DEFAULT_POWER
    memory_only: Annotated[bool, Field(description="Times are shown and not judged")] = False
    must_fit_bytes: Annotated[
        int | None, Field(ge=0, le=2**53, description="HBM that the candidate must fit in, by itself or with a plan")
    ] = None
    max_slowdown_percent: Annotated[
        Percent, Field(description="For must_fit_bytes: what a plan may cost, over the step without a limit")
    ] = 0.0
    tiers: Annotated[
        dict[str, Annotated[int, Field(ge=0, le=2**53)]],
        Field(description="For must_fit_bytes: bytes of other tiers; what is left out is the device's"),
    ] = {}
    time_limit_s: Annotated[float, Field(gt=0, description="For must_fit_bytes: seconds of solving a profile")] = 60.0
    stale_after_days: Annotated[float, Field(gt=0, le=36500, description="An older baseline is noted as stale")] = 30


class CheckAsked(BaseModel):
    """A profile to judge. `baseline` null: what was accepted for its kind on `branch`. `head`: what the candidate is a
    commit of, where that is not `branch` itself; only the branch's own checks are part of its history."""

    model_config = _STRICT

    candidate: ProfileId
    baseline: ProfileId | None = None
    branch: Branch = "main"
    head: Branch | None = Field(None, description="Of a pull request's candidate: pull/7; null: of branch itself")
    commit: str = Field("", max_length=200, pattern=r"^[^\x00-\x1f]*$", description="Of the candidate; kept")
    policy: PolicyAsked = PolicyAsked()
    samples: dict[str, Any] | None = Field(None, description="A hyperopt.samples/1 document")


@dataclass(frozen=True)
class Sides:
    """Whom a request is about. `accepted`: the baseline of the branch, where that is what the candidate is held
    against."""

    candidate: ProfileSummary
    baseline: ProfileSummary
    accepted: StoredBaseline | None


def sides(database: Database, asked: CheckAsked) -> Sides:
    """Raises `ProblemError` for a profile that is not stored, and where nothing was accepted."""
    with database.read() as session:
        candidate = get_summary(session, asked.candidate)
        if candidate is None:
            raise _unknown("$.candidate", asked.candidate)
        accepted = get_baseline(session, baseline_id(candidate, asked.branch))
        against = asked.baseline
        if against is None:
            if accepted is None:
                raise _no_baseline(candidate, asked.branch)
            against = accepted.profile
        elif accepted is not None and accepted.profile != against:
            accepted = None
        baseline = get_summary(session, against)
        if baseline is None:
            raise _unknown("$.baseline", against)
    return Sides(candidate, baseline, accepted)


def series_of(asked: CheckAsked) -> Samples | None:
    """The samples of a request. Raises `DocumentError`."""
    return None if asked.samples is None else read_samples(asked.samples)


Solver = Callable[[str, Profile, Requirement], Fit]
"""Of a stored profile's id and the profile: does it fit?"""


def judged(database: Database, asked: CheckAsked, fit: Solver | None = None) -> dict[str, Any]:
    """The verdict, as `put_check` keeps it; `fit` is asked where the policy has a limit. The baseline of the branch
    stays what it is."""
    about = sides(database, asked)
    series = series_of(asked)
    before, after = profile_of(database, about.baseline.id), profile_of(database, about.candidate.id)
    found = judge(before, after, _policy(asked.policy), series)
    if asked.policy.must_fit_bytes is not None and fit is not None:
        policy = asked.policy
        required = Requirement(asked.policy.must_fit_bytes, policy.max_slowdown_percent, policy.tiers or None)
        own = fit(about.candidate.id, after, required)
        found = with_fit(found, own, None if about.baseline.timing_only else fit(about.baseline.id, before, required))
    result = found.document()
    result["notes"] = [*result["notes"], *_age(about.accepted, asked.policy.stale_after_days)]
    return {
        "branch": asked.branch,
        "head": asked.head or "",
        "commit": asked.commit,
        "baseline": about.baseline.id,
        "candidate": about.candidate.id,
        "policy": asked.policy.model_dump(),
        "samples": asked.samples,
        "verdict": found.verdict,
        # As it will be read again: tuples are lists, and infinities would not be JSON.
        "result": msgspec.json.decode(msgspec.json.encode(result)),
    }


def _policy(asked: PolicyAsked) -> Policy:
    memory = None
    if asked.memory_bytes is not None or asked.memory_percent is not None:
        memory = Threshold(asked.memory_bytes or 0, asked.memory_percent or 0.0)
    sensitivity = Sensitivity(asked.level, asked.beyond_percent, asked.power)
    return Policy(memory, asked.tolerance_percent, sensitivity, asked.memory_only)


def read_samples(given: dict[str, Any]) -> Samples:
    """A `hyperopt.samples/1` document of a request. Raises `DocumentError`."""
    found, _ = samples.load(msgspec.json.encode(given))
    return found


def profile_of(database: Database, id: str) -> Profile:
    """A stored profile, of which it is known that it is there."""
    with database.read() as session:
        stored = get_document(session, id)
    assert stored is not None
    return profiles.load(stored.data)[0]


def _age(accepted: StoredBaseline | None, stale_after_days: float) -> list[str]:
    """What to know of the baseline beside its figures."""
    notes = []
    if accepted and accepted.frozen:
        last = accepted.history[0]
        notes.append(f"the baseline is frozen, by {last.who}: {last.why}")
    if accepted and accepted.stale(timedelta(days=stale_after_days)):
        notes.append(
            f"the baseline is stale: accepted {accepted.accepted_at.date()}, {accepted.checks} checks ago; "
            "accept a newer run, or say why not"
        )
    return notes


def _unknown(field: str, id: str) -> ProblemError:
    detail = f"there is no profile {id}"
    return ProblemError(
        422, "unknown-profile", "Unknown profile", detail, field=field, remedy="upload it: POST /v1/profiles"
    )


def _no_baseline(candidate: ProfileSummary, branch: str) -> ProblemError:
    kind = f"{candidate.model or 'this model'}, {candidate.framework} {candidate.framework_version}".strip()
    return ProblemError(
        409,
        "no-baseline",
        "No baseline",
        f"nothing was accepted on {branch} for {kind} on this device: {candidate.id} has nothing to be compared with",
        field="$.baseline",
        remedy="name a profile, or accept one: POST /v1/baselines",
    )
