"""What was done with a plan: every planned action in every step, and every copy back from issue to use.

Times are microseconds since the plan was applied. Positions are operators of the profile.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["done", "not reached"]


@dataclass
class ActionRecord:
    """One planned action in one step. ``outcome`` turns from "not reached" to "done" when it is carried
    out."""

    step: int
    kind: str
    op: int
    storage: int
    bytes: int
    outcome: Outcome = "not reached"
    at_us: float | None = None


@dataclass
class CopyBack:
    """One storage's way back to HBM in one step.

    ``ahead``: issued before the operator that uses it asked for it. ``waited_us``: how long that operator
    then waited for the copy's end.
    """

    step: int
    storage: int
    bytes: int
    planned_before_op: int
    consumer_op: int
    issued_us: float | None = None
    issued_before_op: int | None = None
    completed_us: float | None = None
    used_us: float | None = None
    waited_us: float = 0.0
    ahead: bool = False


@dataclass
class ExecutionLog:
    """The whole run. ``recomputed``: cells that recompute; ``notes``: what could not be checked, and why."""

    plan_id: str
    profile_digest: str
    actions: list[ActionRecord] = field(default_factory=list)
    copies_back: list[CopyBack] = field(default_factory=list)
    recomputed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """What the trial compared: measured (with what the memory record leaves out), predicted, budget if any."""
    steps: int = 0
    release_waited_us: float = 0.0
    """How long training waited for copies out that had not ended when their block had to be gone."""
    host_peak_bytes: int = 0
    """Most bytes that host buffers held at once. On a CPU they are in the same process's resident size."""
    started: float = field(default_factory=time.perf_counter)

    def now_us(self) -> float:
        return (time.perf_counter() - self.started) * 1e6

    @property
    def bytes_out(self) -> int:
        return sum(action.bytes for action in self.actions if action.kind == "copy_out" and action.outcome == "done")

    @property
    def issued_ahead(self) -> int:
        """Copies back that were issued before their consumer asked."""
        return sum(copy.ahead for copy in self.copies_back if copy.used_us is not None)

    @property
    def used(self) -> int:
        """Copies back that a consumer took."""
        return sum(copy.used_us is not None for copy in self.copies_back)

    @property
    def not_carried_out(self) -> list[ActionRecord]:
        return [action for action in self.actions if action.outcome != "done"]

    def document(self) -> dict[str, Any]:
        """The log as plain data, with a summary in front."""
        body = asdict(self)
        del body["started"]
        summary = {
            "actions": len(self.actions),
            "actions_done": len(self.actions) - len(self.not_carried_out),
            "copies_back": self.used,
            "issued_ahead": self.issued_ahead,
            "bytes_out": self.bytes_out,
            "release_waited_us": self.release_waited_us,
            "host_peak_bytes": self.host_peak_bytes,
            "waited_us": sum(copy.waited_us for copy in self.copies_back),
        }
        return {"format": "hyperopt.execution/1", "summary": summary, **body}

    def json(self) -> str:
        return json.dumps(self.document(), indent=1)
