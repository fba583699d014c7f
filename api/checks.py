"""/v1/checks: judge a stored profile against another, or against its branch's baseline."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from api.problems import ProblemError, documented, not_found
from api.service import Here, Service, SmallBody
from hyperopt import profile as profiles
from hyperopt.gate import Policy, Sensitivity, Threshold, samples
from hyperopt.gate import check as judge
from hyperopt.gate.samples import Samples
from hyperopt.gate.throughput import (
    DEFAULT_BEYOND_PERCENT,
    DEFAULT_LEVEL,
    DEFAULT_POWER,
    DEFAULT_TOLERANCE_PERCENT,
)
from hyperopt.profile import Profile
from hyperopt.store.baselines import StoredBaseline, baseline_id, get_baseline
from hyperopt.store.checks import StoredCheck, get_check, get_samples, put_check
from hyperopt.store.profiles import ProfileSummary, get_document, get_summary

router = APIRouter(prefix="/v1/checks", tags=["checks"], route_class=SmallBody)

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
    stale_after_days: Annotated[float, Field(gt=0, le=36500, description="An older baseline is noted as stale")] = 30


class CheckAsked(BaseModel):
    """A profile to judge. `baseline` null: what was accepted for its kind on `branch`."""

    model_config = _STRICT

    candidate: ProfileId
    baseline: ProfileId | None = None
    branch: Branch = "main"
    commit: str = Field("", max_length=200, pattern=r"^[^\x00-\x1f]*$", description="Of the candidate; kept")
    policy: PolicyAsked = PolicyAsked()
    samples: dict[str, Any] | None = Field(None, description="A hyperopt.samples/1 document")


@router.post("", status_code=201, responses=documented(400, 404, 409, 413, 422))
async def ask(asked: CheckAsked, response: Response, here: Here) -> StoredCheck:
    """Judges and keeps the verdict. The baseline of the branch stays what it is, whatever the verdict."""
    kept = await to_thread.run_sync(_judged, asked, here, limiter=here.heavy)
    response.headers["Location"] = f"/v1/checks/{kept.id}"
    return kept


def _judged(asked: CheckAsked, here: Service) -> StoredCheck:
    with here.database.read() as session:
        candidate = get_summary(session, asked.candidate)
        if candidate is None:
            raise _unknown("$.candidate", asked.candidate)
        accepted = None
        if asked.baseline is None:
            accepted = get_baseline(session, baseline_id(candidate, asked.branch))
            if accepted is None:
                raise _no_baseline(candidate, asked.branch)
        elif get_summary(session, asked.baseline) is None:
            raise _unknown("$.baseline", asked.baseline)
    against = accepted.profile if accepted else asked.baseline
    assert against is not None
    series = None if asked.samples is None else _series(asked.samples)
    found = judge(_profile(here, against), _profile(here, asked.candidate), _policy(asked.policy), series)
    result = found.document()
    result["notes"] = [*result["notes"], *_age(accepted, asked.policy.stale_after_days)]
    with here.database.write() as session:
        return put_check(
            session,
            branch=asked.branch,
            commit=asked.commit,
            baseline=against,
            candidate=asked.candidate,
            policy=asked.policy.model_dump(),
            samples=asked.samples,
            verdict=found.verdict,
            # As it will be read again: tuples are lists, and infinities would not be JSON.
            result=msgspec.json.decode(msgspec.json.encode(result)),
        )


@router.get("/{id}", responses=documented(404, 422))
def fetch(id: Annotated[str, Path(description="check-...", max_length=64)], here: Here) -> StoredCheck:
    """A verdict as it was given."""
    with here.database.read() as session:
        found = get_check(session, id)
    if found is None:
        raise not_found("check", id)
    return found


def regressed_by_default(here: Service, check: str | None, candidate: str) -> list[str]:
    """What the default policy finds against a run that a stored check of it let pass; empty without such a check.

    The policy of a check comes with its request, so a wide one must not be what makes a baseline.
    """
    with here.database.read() as session:
        found = None if check is None else get_check(session, check)
        if found is None or found.candidate != candidate or found.verdict == "regression":
            return []
        given = get_samples(session, found.id)
    series = None if given is None else _series(given)
    strict = judge(_profile(here, found.baseline), _profile(here, found.candidate), None, series)
    return list(strict.reasons) if strict.verdict == "regression" else []


def _policy(asked: PolicyAsked) -> Policy:
    memory = None
    if asked.memory_bytes is not None or asked.memory_percent is not None:
        memory = Threshold(asked.memory_bytes or 0, asked.memory_percent or 0.0)
    sensitivity = Sensitivity(asked.level, asked.beyond_percent, asked.power)
    return Policy(memory, asked.tolerance_percent, sensitivity)


def _series(given: dict[str, Any]) -> Samples:
    found, _ = samples.load(msgspec.json.encode(given))
    return found


def _profile(here: Service, id: str) -> Profile:
    with here.database.read() as session:
        stored = get_document(session, id)
    assert stored is not None
    return profiles.load(stored.data, here.settings.max_document_bytes)[0]


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
