"""What is asked of the solver, and the two kinds of answer besides a plan: infeasible, and progress on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from hyperopt.node import Node
from hyperopt.plan import Budget, Objective, Plan, Residency


@dataclass(frozen=True)
class Request:
    """Budgets in bytes, `time_limit_s` of wall clock (None: none), `work_limit` in replays and search nodes (None:
    none; with one and no time limit, the same input and seed give the same plan).

    `max_slowdown`: for `min_peak`, what a plan may be slower than the unlimited step, as a fraction of it (None: as
    slow as need be). `points`: for `pareto`, budgets along the front. `starts`: plans to begin from, where they fit.
    `enough_ns`: a step time that is fast enough, at which the search for a faster one ends, as it does where that is
    proven out of reach. `node`: what the rank shares with others; the plan is made for the profile as it is there
    (`Node.profile`).
    """

    budget: Budget
    objective: Objective = "min_step_time"
    time_limit_s: float | None = 60.0
    work_limit: int | None = None
    seed: int = 0
    max_slowdown: float | None = None
    points: int = 8
    starts: tuple[Residency, ...] = ()
    enough_ns: int | None = None
    node: Node | None = None

    def __post_init__(self) -> None:
        if self.max_slowdown is not None and not self.max_slowdown >= 0:
            raise ValueError(f"max_slowdown: {self.max_slowdown} is no fraction of the unlimited step, use 0 or more")


class Infeasible(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Why no plan was given, in bytes of HBM.

    Below `lower_bound_bytes` no plan exists (proven). `proven`: the budget is below it; otherwise none was found
    before `stop_reason`, and there may be one. `reachable_bytes` is the smallest budget for which a replayed plan is
    in hand; None where none is, at any budget of HBM. `operator` sets the bound: {index, name, working_set_bytes}.
    `reliefs`: what would help, each with the bound it would bring (`solver.residency.ladder`).
    """

    lower_bound_bytes: int
    reachable_bytes: int | None
    operator: dict[str, Any]
    budget_bytes: int
    proven: bool = True
    stop_reason: str = ""
    reliefs: tuple[dict[str, Any], ...] = ()

    @property
    def in_hand(self) -> Residency | None:
        """The orders of the plan for `reachable_bytes`, kept beside the answer of this process, not in its JSON."""
        found = self.__dict__.get("_in_hand")
        assert found is None or isinstance(found, Residency)
        return found

    def holding(self, residency: Residency | None) -> Infeasible:
        """The same answer with that plan in hand."""
        self.__dict__["_in_hand"] = residency
        return self


@dataclass(frozen=True)
class Progress:
    """The best plan so far: microseconds by replay, the proven bound, and the stage that found it."""

    stage: str
    step_us: float
    bound_us: float
    plan: Plan


OnProgress = Callable[[Progress], None]
