"""Storages in an order of the step's own, so that no plan depends on how a document numbers or lists them.

Ties of the search are broken by position. Positions here follow first use: the storages of the operators one after
another, as each lists its reads and then its writes; then those that nobody touches, by what they are.
"""

from __future__ import annotations

import msgspec

from hyperopt.plan import Plan
from hyperopt.profile import Profile, Storage


def in_order_of_use(profile: Profile) -> Profile:
    """The same profile with its storages in that order: itself where they are."""
    by_id = profile.by_id
    used = dict.fromkeys(id for operator in profile.operators for id in (*operator.reads, *operator.writes))
    others = sorted((storage for storage in profile.storages if storage.id not in used), key=_what)
    storages = (*(by_id[id] for id in used), *others)
    if all(a is b for a, b in zip(storages, profile.storages, strict=True)):
        return profile
    return msgspec.structs.replace(profile, storages=storages)


def _what(storage: Storage) -> tuple[object, ...]:
    """All but the label; equal ones can stand for each other."""
    return (
        -storage.bytes,
        storage.kind,
        storage.resident_at_end,
        storage.resident_at_start,
        storage.offloadable,
        storage.steps_observed,
        storage.steps_accessed,
        storage.window or (),
    )


def for_profile(plan: Plan, profile: Profile) -> Plan:
    """The plan with the digests of the profile as it was given."""
    if plan.profile_digest == profile.digest:
        return plan
    plan = msgspec.structs.replace(plan, profile_digest=profile.digest, program_digest=profile.program_digest)
    return msgspec.structs.replace(plan, plan_id=plan.content_id)
