"""What stands against a run that is to become a baseline: everything that its checks have found, by the default policy.

A policy comes with its request, a metric's tolerance with its samples, and the next check may ask for less. None of
that makes a baseline: whatever was judged worse than it is allowed to be by default stands, until the run is accepted
in spite of it.

::

    against the present baseline     a regression stands; what is inconclusive stands until the check that is named
                                     passes it (the same metric, the memory)
    against an earlier one           the same, but the check that is named clears a regression too by passing what
                                     regressed: it is held against another baseline
    memory                           is also held against the last baseline that was accepted by name, so that what is
                                     allowed between two captures does not add up

"""

from __future__ import annotations

from typing import Any

import msgspec

from api.judging import profile_of, read_samples
from hyperopt.gate import Check, Policy, Samples, check_samples
from hyperopt.gate import check as judge
from hyperopt.gate.throughput import DEFAULT_TOLERANCE_PERCENT
from hyperopt.store import Database
from hyperopt.store.baselines import NONE, Objections, StoredBaseline, baseline_id, get_baseline
from hyperopt.store.checks import StoredCheck, checks_of
from hyperopt.store.profiles import get_summary

_Statuses = dict[str, tuple[str, str]]
"""What was judged (memory, a metric, the limit) -> status and reason."""

_ORDER = ("not judged", "pass", "inconclusive", "regression")

TOLD = 3
"""Findings named in a refusal."""


def objections(
    database: Database, profile: str, branch: str, check: str | None, etag: str | None, *, asked: bool = True
) -> Objections:
    """To a stored profile in place of the baseline with that etag, by its check of that id. `asked`: False where it is
    accepted whatever they say, so that only what is known of it is looked up.

    None where there is nothing to replace, or not by this check: accepting refuses that by itself.
    """
    with database.read() as session:
        candidate = get_summary(session, profile)
        current = None if candidate is None else get_baseline(session, baseline_id(candidate, branch))
        if current is None or current.etag != etag:
            return NONE
        found = checks_of(session, profile, current.accepted)
    seen = frozenset(one.id for one, _ in found)
    named = next(((one, given) for one, given in found if one.id == check), None)
    if not asked or named is None or named[0].baseline != current.profile:
        return Objections(seen=seen)
    strict = _by_default(database, *named)
    cleared = {name for name, (status, _) in _worse(named[0].result, strict).items() if status == "pass"}
    regressed = _drift(database, current, profile)
    unsure: list[str] = []
    for verdict, reasons in ((named[0].verdict, named[0].result["reasons"]), (strict.verdict, strict.reasons)):
        if verdict == "inconclusive" and not unsure:
            unsure.append(f"{check} is inconclusive: {'; '.join(reasons)}")
    for one, given in [named, *(each for each in reversed(found) if each is not named)]:
        by_default = strict if one.id == check else None if given is None else check_samples(_strict(given))
        own = _statuses(one.result)
        for name, (status, reason) in _worse(one.result, by_default).items():
            if status == "regression" and (one.baseline == current.profile or name not in cleared):
                how = "found a regression"
                if own.get(name, ("",))[0] != status:
                    own_only = "passes by its own policy only"
                    how = own_only if one.verdict == "pass" else "finds one by the default policy"
                regressed.append(f"{one.id} {how}: {reason}")
            elif status == "inconclusive" and one.id != check and name not in cleared:
                unsure.append(f"{one.id} was inconclusive: {reason}")
    return Objections(_named(regressed), _named(unsure), seen)


def _by_default(database: Database, one: StoredCheck, given: dict[str, Any] | None) -> Check:
    """The same by the default policy. Times of samples are always judged; that memory alone was asked for stands where
    there are none."""
    policy = Policy(memory_only=given is None and bool(one.policy.get("memory_only")))
    before, after = profile_of(database, one.baseline), profile_of(database, one.candidate)
    return judge(before, after, policy, None if given is None else _strict(given))


def _strict(given: dict[str, Any]) -> Samples:
    """The samples without tolerances of their own that are wider than the default."""
    found = read_samples(given)
    metrics = [
        msgspec.structs.replace(metric, tolerance_percent=min(metric.tolerance_percent, DEFAULT_TOLERANCE_PERCENT))
        if metric.tolerance_percent is not None
        else metric
        for metric in found.metrics
    ]
    return msgspec.structs.replace(found, metrics=tuple(metrics))


def _drift(database: Database, current: StoredBaseline, profile: str) -> list[str]:
    """What has come together since a baseline was last accepted by name."""
    start = current.by_name
    if start == current.profile:
        return []
    found = judge(profile_of(database, start), profile_of(database, profile), Policy(memory_only=True))
    if found.verdict != "regression":
        return []
    return [f"against {start}, the last baseline that was accepted by name: {'; '.join(found.reasons)}"]


def _worse(result: dict[str, Any], by_default: Check | None) -> _Statuses:
    """Of a check's own statuses and those by the default policy the worse ones."""
    found = _statuses(result)
    for name, told in ({} if by_default is None else _statuses(by_default.document())).items():
        found[name] = max(found.get(name, told), told, key=lambda one: _ORDER.index(one[0]))
    return found


def _statuses(result: dict[str, Any]) -> _Statuses:
    """Of a check's answer; the step times of two profiles, one number each, say nothing that lasts."""
    if result.get("apart"):  # they must not be compared, and so nothing was found
        return {}
    found = {"memory": result["memory"]}
    found |= {f"metric {one['name']}": one for one in result.get("metrics", ())}
    found |= {"must fit": result["fit"]} if result.get("fit") else {}
    return {name: (one["status"], one["reason"]) for name, one in found.items()}


def _named(reasons: list[str]) -> tuple[str, ...]:
    more = len(reasons) - TOLD
    return tuple(reasons[:TOLD] + [f"and {more} more"] * (more > 0))
