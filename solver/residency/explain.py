"""Why the plan is as it is: per moved or recomputed storage, what it brings and what it costs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from solver.residency.incumbent import Trial
from solver.residency.problem import Problem


def explain(problem: Problem, trial: Trial) -> tuple[dict[str, Any], ...]:
    """One entry a decision: bytes, time off HBM (us, simulated), copy times, and slack of the copy back.

    `slack_us` is how long the copy back was complete before the first operator that needs it; negative: how long
    that operator waited for it.
    """
    residency, timeline = trial.residency, trial.timeline
    if residency.empty:
        return ({"note": "everything fits: nothing is gained by moving or recomputing anything"},)
    by_id = problem.profile.by_id
    copies: dict[int, list[Any]] = defaultdict(list)
    for copy in timeline.copies:
        copies[copy.storage].append(copy)
    entries: list[dict[str, Any]] = []
    for id in sorted({*copies, *residency.initial}):
        storage, position = by_id[id], problem.program.position[id]
        entry: dict[str, Any] = {
            "storage": id,
            "name": storage.name,
            "kind": storage.kind,
            "bytes": storage.bytes,
            "decision": "move",
            "accesses": len(problem.accesses[position]),
            "steps_observed": storage.steps_observed,
            "steps_accessed": storage.steps_accessed,
            "copies_out_us": [(c.end - c.start) / 1000 for c in copies[id] if c.out],
            "copies_in_us": [(c.end - c.start) / 1000 for c in copies[id] if not c.out],
            "slack_us": [_slack(problem, trial, position, c.op, c.end) for c in copies[id] if not c.out],
        }
        entries.append(entry)
    for recompute in residency.recompute:
        storage = by_id[recompute.storage]
        entries.append(
            {
                "storage": recompute.storage,
                "name": storage.name,
                "kind": storage.kind,
                "bytes": storage.bytes,
                "decision": "recompute",
                "operators": len(recompute.ops),
                "recompute_us": sum(problem.program.duration[k] for k in recompute.ops) / 1000,
            }
        )
    return tuple(entries)


def _slack(problem: Problem, trial: Trial, s: int, issued_before: int, ended: int) -> float | None:
    consumer = next((k for k in problem.accesses[s] if k >= issued_before), None)
    return None if consumer is None else (trial.timeline.start[consumer] - ended) / 1000
