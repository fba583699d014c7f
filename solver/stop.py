"""When to stop searching: one small class a criterion.

A criterion is asked with the best step time and the bound (nanoseconds) and answers with the reason to stop, or
"" to go on. `work` counts replays and search nodes, so that a limit in work is the same on every machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Stopped(Exception):
    """Raised out of the midst of a piece of work that nobody waits for any more."""


class Criterion(Protocol):
    def reason(self, best_ns: int | None, bound_ns: int, work: int) -> str: ...


class TimeLimit:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds

    def reason(self, best_ns: int | None, bound_ns: int, work: int) -> str:
        return f"time limit of {self.seconds:g} s" if time.monotonic() >= self.deadline else ""


class WorkLimit:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def reason(self, best_ns: int | None, bound_ns: int, work: int) -> str:
        return f"work limit of {self.limit}" if work >= self.limit else ""


class BoundReached:
    def reason(self, best_ns: int | None, bound_ns: int, work: int) -> str:
        return "bound reached" if best_ns is not None and best_ns <= bound_ns else ""


class Enough:
    """A plan is as fast as asked for, or one is in hand and none can be that fast."""

    def __init__(self, step_ns: int) -> None:
        self.step_ns = step_ns

    def reason(self, best_ns: int | None, bound_ns: int, work: int) -> str:
        if best_ns is None:
            return ""
        if bound_ns > self.step_ns:
            return "no plan is fast enough (proven)"
        return "fast enough" if best_ns <= self.step_ns else ""


class Cancelled:
    def __init__(self, asked: Callable[[], bool]) -> None:
        self.asked = asked

    def reason(self, best_ns: int | None, bound_ns: int, work: int) -> str:
        return "cancelled" if self.asked() else ""


class Stop:
    """Several criteria together with the count of work; the first reason found stays."""

    def __init__(self, *criteria: Criterion) -> None:
        self.criteria = criteria
        self.work = 0
        self.why = ""

    def asked(self, best_ns: int | None, bound_ns: int) -> bool:
        for criterion in self.criteria:
            self.why = self.why or criterion.reason(best_ns, bound_ns, self.work)
        return bool(self.why)

    def cancelled(self) -> bool:
        """Whether somebody has cancelled, also after another criterion has been met."""
        return any(isinstance(c, Cancelled) and c.asked() for c in self.criteria)

    def seconds_left(self) -> float | None:
        limits = [c.deadline - time.monotonic() for c in self.criteria if isinstance(c, TimeLimit)]
        return max(0.0, min(limits)) if limits else None

    def work_left(self, most: int) -> int:
        """`most`, or what a limit in work still allows."""
        return min([most, *(c.limit - self.work for c in self.criteria if isinstance(c, WorkLimit))])

    def spent(self) -> float:
        """The share of the time limit that has passed; 0 where there is none."""
        limits = [c for c in self.criteria if isinstance(c, TimeLimit) and c.seconds]
        shares = [1 - (c.deadline - time.monotonic()) / c.seconds for c in limits]
        return max(shares, default=0.0)

    def late(self) -> bool:
        """Whether the time limit, if there is one, has passed."""
        return self.seconds_left() == 0.0
