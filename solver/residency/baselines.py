"""The rules of thumb that the solver starts with, by name; all rules are in `rivals.registry`."""

from __future__ import annotations

from collections.abc import Callable

from solver.residency.candidates import Decisions
from solver.residency.problem import Problem
from solver.residency.rivals.remat import compatible
from solver.residency.rivals.simple import keep_all, longest_gap, offload_all, recompute_all

__all__ = ["BASELINES", "compatible"]

BASELINES: dict[str, Callable[[Problem], Decisions]] = {
    "keep-all": keep_all,
    "longest-gap": longest_gap,
    "offload-all": offload_all,
    "recompute-all": recompute_all,
}
