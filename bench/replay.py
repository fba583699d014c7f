"""Loading and replaying a step of 100,000 operators and as many storages, with a plan of some 20,000 actions.

    python -m bench.replay [OPERATORS [ROUNDS]]

The definition in Python and the compiled engine take turns, so that other work on the machine hits both alike; what
is printed are medians, of the clock and of this process alone. Results go to build/bench/replay.json too.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import msgspec

from hyperopt.engine import arrays_of, orders_of, resume, run
from hyperopt.plan import EMPTY, Plan, Residency
from hyperopt.profile import load
from hyperopt.replay import replay, replay_defined, unlimited_step_ns
from hyperopt.script import program_of
from tests.engine.samples import moving_plan, training_step

T = TypeVar("T")
RESULTS = Path("build/bench/replay.json")

Taken = defaultdict[str, list[tuple[float, float]]]


def timed(taken: Taken, what: str, act: Callable[[], T]) -> T:
    """What `act` returns; its seconds, of the clock and of the processor, go to `taken`."""
    clock, processor = time.perf_counter(), time.process_time()
    found = act()
    taken[what].append((time.perf_counter() - clock, time.process_time() - processor))
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    taken: Taken = defaultdict(list)
    document = msgspec.json.encode(training_step(count))
    for _ in range(3):
        profile, _ = timed(taken, "load and check", lambda: load(document))
    plan = moving_plan(profile, count * 7 // 100)
    tiny = training_step(400)
    timed(taken, "engine: load or compile, once", lambda: run(arrays_of(tiny), orders_of(tiny, EMPTY)))
    timed(taken, "Program, once a profile", lambda: program_of(profile))
    arrays = timed(taken, "engine: arrays, once a profile", lambda: arrays_of(profile))
    unlimited_step_ns(profile)

    orders = orders_of(profile, plan)
    kept = run(arrays, orders, checkpoints=16)
    changed = {f"engine: resumed at {share} %": orders_of(profile, _changed(plan, share)) for share in (60, 75, 90)}
    for _ in range(rounds):
        expected = timed(taken, "replay in Python", lambda: replay_defined(profile, plan, None))
        found = timed(taken, "replay, compiled", lambda: replay(profile, plan))
        assert found == expected
        timed(taken, "engine: orders", lambda: orders_of(profile, plan))
        timed(taken, "engine: run", lambda: run(arrays, orders))
        timed(taken, "engine: run, 16 checkpoints", lambda: run(arrays, orders, checkpoints=16))
        for what, other in changed.items():
            timed(taken, what, lambda other=other: resume(arrays, kept, other))  # type: ignore[misc]
        expected = timed(taken, "replay in Python, no plan", lambda: replay_defined(profile, EMPTY, None))
        found = timed(taken, "replay, compiled, no plan", lambda: replay(profile))
        assert found == expected

    moves = len(plan.residency.actions) + len(plan.residency.recompute)
    print(f"{count} operators and storages, {moves} actions and recomputes, {len(document) / 1e6:.1f} MB of JSON")
    print(f"{'median of rounds, ms':32} {'clock':>8} {'processor':>10}")
    results: dict[str, Any] = {"operators": count, "actions": moves, "python": platform.python_version()}
    for what, times in taken.items():
        clock, processor = (median(column) * 1e3 for column in zip(*times, strict=True))
        results[what] = {"clock_ms": clock, "processor_ms": processor, "rounds": len(times)}
        print(f"{what:32} {clock:8.1f} {processor:10.1f}")
    for case in ("", ", no plan"):
        slow, fast = (taken[f"replay{how}{case}"] for how in (" in Python", ", compiled"))
        ratios = [s[1] / f[1] for s, f in zip(slow, fast, strict=True)]
        results[f"ratio{case}"] = median(ratios)
        print(f"compiled against Python{case}: {median(ratios):.1f} times ({min(ratios):.1f} to {max(ratios):.1f})")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def _changed(plan: Plan, share: int) -> Plan:
    """The plan with one copy back an operator later, after so many hundredths of its actions."""
    actions = list(plan.residency.actions)
    place = next(i for i in range(len(actions) * share // 100, len(actions)) if actions[i].kind == "copy_in")
    later = next(a.op for a in actions[place:] if a.op > actions[place].op and a.when == "before")
    actions[place] = msgspec.structs.replace(actions[place], op=later)
    return Plan(residency=Residency(actions=tuple(actions), recompute=plan.residency.recompute))


if __name__ == "__main__":
    main()
