"""A finished plan without the reruns that it does not need: what another rerun, or free memory, makes superfluous.

Two reruns before one operator may run the same operators, each for another of their outputs: the second brings nothing
back. And what was dropped for a peak that later changes have lowered may as well stay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from hyperopt.plan import Recompute, Residency
from solver.residency.incumbent import Incumbent
from solver.residency.problem import Problem

TRIES = 200
"""Plans that are judged at most."""

MOST_S, SHARE = 0.2, 0.05
"""What that may take where there is a limit in time, which is over by then: seconds, and a part of the limit."""


def tidy(incumbent: Incumbent, limit_s: float | None) -> None:
    """Offers the best plan without each of its reruns, one after another, and keeps what is better. `limit_s`: of the
    whole solve, None for none."""
    best, tries = incumbent.best, 0
    until = float("inf") if limit_s is None else time.monotonic() + min(MOST_S, SHARE * limit_s)
    for rerun in best.residency.recompute if best is not None else ():
        assert incumbent.best is not None
        for lighter in _without(incumbent.problem, incumbent.best.residency, rerun):
            if tries >= TRIES or time.monotonic() >= until or incumbent.stop.cancelled():
                return
            tries += 1
            before = incumbent.best
            incumbent.offer(lighter, before.stage)
            if incumbent.best is not before:
                break


def _without(problem: Problem, plan: Residency, rerun: Recompute) -> Iterator[Residency]:
    """The plan without a rerun; then with what that was for kept in HBM until then, or all that it writes."""
    recompute = tuple(r for r in plan.recompute if r != rerun)
    written = {s for k in rerun.ops for s in problem.profile.operators[k].writes}
    for kept in ((), (rerun.storage,), tuple(written)):
        last = [
            max((i for i, a in enumerate(plan.actions) if a.storage == s and a.op < rerun.before_op), default=-1)
            for s in kept
        ]
        stays = {i for i in last if i >= 0 and plan.actions[i].kind == "release"}
        actions = tuple(a for i, a in enumerate(plan.actions) if i not in stays)
        yield Residency(initial=plan.initial, actions=actions, recompute=recompute)
