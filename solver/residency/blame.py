"""Which moves a plan waits for: read off its time line, charged to them in the next selection."""

from __future__ import annotations

from collections import defaultdict

from hyperopt.replay import Timeline
from solver.residency.problem import Problem


def blame(problem: Problem, timeline: Timeline) -> dict[int, int]:
    """Nanoseconds of waiting by storage position, of compute operators that start later than the one before ends.

    Waiting that the unlimited step has too is nobody's fault. A wait is charged to the copies that end when it
    does: a copy in that the operator reads, or a copy out whose memory it needs. Where no copy ends just then (a
    wait for a wait), those that end during it share it.
    """
    position = problem.program.position
    ends: dict[int, list[int]] = defaultdict(list)
    for copy in timeline.copies:
        ends[copy.end].append(position[copy.storage])
    waits: dict[int, int] = defaultdict(int)
    usual, before = problem.unlimited, -1
    for op in problem.compute:
        was = usual.start[op] - (usual.end[before] if before >= 0 else 0)
        since = timeline.end[before] if before >= 0 else 0
        wait = timeline.start[op] - since - was
        before = op
        if wait <= 0:
            continue
        guilty = ends.get(timeline.start[op]) or [
            position[copy.storage] for copy in timeline.copies if since < copy.end <= timeline.start[op]
        ]
        for s in guilty:
            waits[s] += -(-wait // len(guilty))
    last = max(timeline.end, default=0)
    for copy in timeline.copies:  # a copy that outlasts the operators makes the step longer by itself
        if copy.end > last:
            waits[position[copy.storage]] += copy.end - last
    return dict(waits)
