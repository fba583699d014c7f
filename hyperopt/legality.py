"""The names of everything that can be wrong with a plan (docs/reference/execution-model.md, rules 2 to 8).

`script` (for replay) and `validate` judge by code of their own and share only these names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Why a plan is refused. The numbers in brackets are the rules of docs/reference/execution-model.md."""

    UNKNOWN_OPERATOR = "unknown-operator"  # (3) the profile has no such operator
    UNKNOWN_STORAGE = "unknown-storage"  # (3) the profile has no such storage
    UNKNOWN_TIER = "unknown-tier"  # the profile has no such tier
    NO_LINK = "no-link"  # the tier has no bandwidth in that direction
    WRONG_STREAM = "wrong-stream"  # (3) actions and recomputes stand at compute operators only
    WRONG_SIDE = "wrong-side"  # copy_in stands before an operator, all others after one
    NOT_OFFLOADABLE = "not-offloadable"  # (4)
    INITIAL_NOT_RESIDENT = "initial-not-resident"  # (4) initial is for storages resident at start
    COPY_OUT_NOT_IN_HBM = "copy-out-not-in-hbm"  # nothing there to copy
    COPY_IN_WITHOUT_COPY = "copy-in-without-copy"  # there is no copy outside HBM
    COPY_IN_ALREADY_IN_HBM = "copy-in-already-in-hbm"
    RELEASE_NOT_IN_HBM = "release-not-in-hbm"
    RELEASE_HOST_ILLEGAL = "release-host-illegal"  # (5) needs the storage in HBM and in a tier
    READ_NOT_IN_HBM = "read-not-in-hbm"  # use before the copy back
    READ_OF_DROPPED = "read-of-dropped"  # (5) released without a copy and not recomputed
    WRITE_NOT_IN_HBM = "write-not-in-hbm"  # (6) written while only in a tier
    WRITE_OF_DROPPED = "write-of-dropped"  # (5) an ordinary write may not bring a dropped storage back
    WRONG_VERSION = "wrong-version"  # (8) the execution would read other content than in the profile
    NOT_RECOMPUTABLE = "not-recomputable"  # (8)
    RECOMPUTE_NOT_BEFORE = "recompute-not-before"  # (8) only operators listed before k may run again before k
    RECOMPUTE_WITHOUT_WRITER = "recompute-without-writer"  # (8) the list must write the storage it is for
    RECOMPUTE_CYCLE = "recompute-cycle"  # recomputes that need each other's results
    RECOMPUTE_AND_SWAP = "recompute-and-swap"  # recomputed and copied in the same gap
    END_LOCATION = "end-location"  # (7) the step repeats: it must end where `initial` says it starts
    END_VERSION = "end-version"  # (8) resident storages end in their last version
    OUT_OF_MEMORY = "out-of-memory"  # (2) HBM
    TIER_OUT_OF_MEMORY = "tier-out-of-memory"  # (2)


@dataclass(frozen=True, slots=True)
class Violation:
    """`op` and `storage` are the operator index and storage id concerned, None where none is."""

    code: Code
    op: int | None
    storage: int | None
    message: str


class IllegalPlan(ValueError):
    """A plan that breaks the rules of legality; carries the first violation in listed order."""

    def __init__(self, violation: Violation) -> None:
        self.violation = violation
        super().__init__(f"{violation.code}: {violation.message}")


class OutOfMemory(Exception):
    """A legal plan that cannot run within its budget.

    `op`: operator index at which it stops; `short_bytes`: by how much; `tier`: where ("hbm" or a tier).
    """

    def __init__(self, op: int, short_bytes: int, tier: str = "hbm") -> None:
        self.op, self.short_bytes, self.tier = op, short_bytes, tier
        super().__init__(f"out of memory in {tier} at operator {op}, {short_bytes} bytes short")
