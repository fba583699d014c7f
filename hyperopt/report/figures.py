"""What a report is made of: a profile, a plan, and what was measured without and with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hyperopt.occupancy import Occupancy, occupancy
from hyperopt.plan import Plan
from hyperopt.profile import Profile
from hyperopt.replay import Timeline, replay


@dataclass(frozen=True)
class Measurement:
    """One run. `peak_bytes`: the most in use in the accelerator's memory, with what the record leaves out;
    `resident_peak_bytes`: the most that the process held. Times in microseconds; `losses` are exact."""

    peak_bytes: int
    resident_peak_bytes: int
    step_us: float
    step_us_spread: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class CopyBack:
    """A copy into HBM in the replay: it ended `slack_us` before its consumer could start (below 0: it was awaited).

    `issued_ahead`: of how many observed steps in how many the copy was really issued before its consumer asked;
    None where no execution was observed.
    """

    storage: int
    name: str
    layer: str
    kind: str
    bytes: int
    left_after: str
    back_before: str
    consumer: str
    slack_us: float
    issued_ahead: tuple[int, int] | None


@dataclass(frozen=True)
class Case:
    """One plan. `execution` is the `hyperopt.execution/1` document of applying it, None if it was not applied."""

    title: str
    profile: Profile
    plan: Plan
    before: Measurement | None = None
    after: Measurement | None = None
    execution: dict[str, Any] | None = field(default=None)

    @cached_property
    def timeline(self) -> Timeline:
        return replay(self.profile, self.plan)

    @cached_property
    def occupancies(self) -> tuple[Occupancy, Occupancy]:
        """HBM without a plan and under it, both simulated."""
        return occupancy(self.profile), occupancy(self.profile, self.plan)

    @property
    def losses_equal(self) -> bool | None:
        """Bit by bit, over the steps that both runs have; None where one was not run."""
        if self.before is None or self.after is None:
            return None
        steps = min(len(self.before.losses), len(self.after.losses))
        return self.before.losses[:steps] == self.after.losses[:steps]

    @cached_property
    def copies_back(self) -> tuple[CopyBack, ...]:
        """In the order of their issue."""
        operators, timeline = self.profile.operators, self.timeline
        accesses: dict[int, list[int]] = {}
        for k, operator in enumerate(operators):
            for id in operator.accesses:
                accesses.setdefault(id, []).append(k)
        out = {a.storage: a.op for a in self.plan.residency.actions if a.kind == "release"}
        observed = self._observed()
        found = []
        for copy in timeline.copies:
            if copy.out:
                continue
            storage = self.profile.by_id[copy.storage]
            uses = [k for k in accesses.get(copy.storage, []) if k >= copy.op]
            consumer = uses[0] if uses else None
            first = accesses.get(copy.storage, [None])[0]
            # Ready when its turn came: what the operator's own queue would have let it start at.
            turn = max(timeline.end[:consumer], default=0) if consumer else 0
            found.append(
                CopyBack(
                    storage=copy.storage,
                    name=storage.name or f"storage {copy.storage}",
                    layer=operators[first].layer if first is not None else "",
                    kind=storage.kind,
                    bytes=storage.bytes,
                    left_after=_name(self.profile, out.get(copy.storage)),
                    back_before=_name(self.profile, copy.op),
                    consumer=_name(self.profile, consumer),
                    slack_us=(turn - copy.end) / 1000 if consumer is not None else 0.0,
                    issued_ahead=observed.get(copy.storage),
                )
            )
        return tuple(found)

    def _observed(self) -> dict[int, tuple[int, int]]:
        seen: dict[int, tuple[int, int]] = {}
        for copy in (self.execution or {}).get("copies_back", ()):
            if copy["used_us"] is not None:
                ahead, steps = seen.get(copy["storage"], (0, 0))
                seen[copy["storage"]] = (ahead + bool(copy["ahead"]), steps + 1)
        return seen

    @cached_property
    def moved(self) -> frozenset[int]:
        """Storages that leave HBM for a tier."""
        outs = {action.storage for action in self.plan.residency.actions if action.kind == "copy_out"}
        return frozenset(outs | set(self.plan.residency.initial))


def _name(profile: Profile, op: int | None) -> str:
    if op is None:
        return "step start"
    return f"{op} {profile.operators[op].name}".strip()
