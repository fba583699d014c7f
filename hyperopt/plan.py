"""The plan document `hyperopt.plan/1`: what leaves HBM, when it returns, what is recomputed.

Classes mirror the document field by field (docs/reference/documents.md). `check` compares a
plan with nothing but itself; whether it is legal for a profile is the business of `validate` and `replay`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hyperopt.documents import MAX_DOCUMENT_BYTES, canonical, decode, sha256
from hyperopt.profile import Bytes, Index, Profile

FAMILY, MAJOR = "hyperopt.plan", 1

Objective = Literal["min_step_time", "min_peak", "pareto"]
Status = Literal["optimal", "feasible", "infeasible"]
ActionKind = Literal["copy_out", "release", "copy_in", "release_host"]

HOST = "host"
"""The tier that a copy_out goes to unless it names another."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One residency action. `copy_in` stands before its operator, the three others after it."""

    op: Index
    when: Literal["before", "after"]
    kind: ActionKind
    storage: Index
    tier: str | None = None


class Recompute(msgspec.Struct, frozen=True, kw_only=True):
    """Re-run `ops`, in order, right before `before_op`, to bring `storage` back."""

    storage: Index
    before_op: Index
    ops: tuple[Index, ...]


class Residency(msgspec.Struct, frozen=True, kw_only=True):
    """`initial`: storages that start (and end) the step in a tier instead of in HBM."""

    initial: dict[Index, str] = {}
    actions: tuple[Action, ...] = ()
    recompute: tuple[Recompute, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.initial or self.actions or self.recompute)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per tier. A tier left out has what the profile says; 0 means no such tier."""

    hbm_bytes: Bytes | None = None
    tiers: dict[str, Bytes] = {}

    def tier_bytes(self, profile: Profile) -> dict[str, int]:
        return {name: self.tiers.get(name, tier.bytes) for name, tier in profile.device.tiers.items()}


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the replay of this plan (simulated, not measured)."""

    step_us: float = 0.0
    peak_bytes: int = 0
    stall_us: float = 0.0
    tier_peak_bytes: dict[str, int] = {}
    baseline_step_us: float = 0.0
    baseline_peak_bytes: int = 0


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """No plan within the budget has a step time below `step_us`; `gap` = (plan - bound) / bound."""

    step_us: float = 0.0
    gap: float = 0.0
    status: Status = "feasible"
    stop_reason: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    format: str = f"{FAMILY}/{MAJOR}"
    plan_id: str = ""
    profile_digest: str = ""
    program_digest: str = ""
    budget: Budget = Budget()
    objective: Objective = "min_step_time"
    residency: Residency = Residency()
    sharding: dict[str, Any] | None = None
    stages: list[dict[str, Any]] | None = None
    predicted: Predicted | None = None
    bound: Bound | None = None
    alternatives: tuple[dict[str, Any], ...] = ()
    explain: tuple[dict[str, Any], ...] = ()
    provenance: dict[str, Any] = {}

    @property
    def content_id(self) -> str:
        """Identifier of what the plan orders: the same decisions for the same profile get the same id."""
        decisions = Plan(
            profile_digest=self.profile_digest,
            program_digest=self.program_digest,
            budget=self.budget,
            objective=self.objective,
            residency=self.residency,
            sharding=self.sharding,
            stages=self.stages,
        )
        return "plan-" + sha256(canonical(decisions)).removeprefix("sha256:")[:16]


def load(data: bytes, limit: int = MAX_DOCUMENT_BYTES) -> tuple[Plan, list[str]]:
    """A plan from document bytes (plain, gzip or zstd; at most `limit` when unpacked), and warnings.

    Raises `DocumentError`.
    """
    return decode(data, Plan, FAMILY, MAJOR, limit)


EMPTY = Plan()
"""The plan that changes nothing."""
