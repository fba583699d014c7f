"""The bounds and the plans of small problems against exhaustive search over plans.

    python -m bench.exhaustive [--count 500] [--first 0] [-o RESULTS.json]

Random steps of up to 6 operators and 3 movable storages: one or two streams, one or two tiers (some with one queue
for both directions, some with little room), residents, in-place updates, recompute, and a budget that binds. The
optimum is `tests.brute_force.least_ns`: all places of all actions, all orders of issue, up to two absences a storage
and two executions again. Steps with more plans than it tries are left out and counted.

Checked for each: the plan's bound, the fluid bound by itself on coarse and fine axes, and the memory bound are never
above the optimum, and what is called optimal or infeasible is so; how often the solver's plan is the
optimum, and, for the record, how often the search for larger problems finds it. Exits 1 if a bound or a
claim is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hyperopt.plan import Budget, Plan
from hyperopt.profile import Device, Links, Operator, Profile, Storage, Tier, check
from hyperopt.replay import replay
from solver import Infeasible, Request, solve
from solver.residency.baselines import BASELINES
from solver.residency.bound import memory_bound, step_bound_ns
from solver.residency.columns import solve_fluid
from solver.residency.fluid import Fluid
from solver.residency.incumbent import Incumbent
from solver.residency.problem import Problem
from solver.residency.solve import _offer_rule, _refine
from solver.stop import BoundReached, Stop, WorkLimit
from tests.brute_force import TooMany, least_ns

RESULTS = Path("build/bench/exhaustive.json")
COUNT = 500
ROWS = (1, 3, 48)
"""Of the axes on which the fluid bound is checked by itself."""

MOST = 25_000
"""Work, in replays, that the exhaustive search may take for one step."""

SEARCH_WORK = 300
"""Replays of the search for larger problems."""


def instance(seed: int) -> tuple[Profile, Budget] | None:
    """A small step and a budget that binds; None where none does."""
    dice = random.Random(seed)
    count, tensors = dice.randint(3, 6), dice.randint(1, 3)
    again = dice.choice([0.0, 0.0, 0.4, 0.8])
    resident = [dice.random() < 0.4 for _ in range(tensors)]
    exists = {i for i in range(tensors) if resident[i]}
    side = dice.choice([0.0, 0.0, 0.25])
    operators = []
    for k in range(count):
        reads = tuple(s for s in sorted(exists) if dice.random() < 0.4)
        writes = tuple(s for s in range(tensors) if dice.random() < (0.25 if s in exists or k > 2 else 0.5))
        exists.update(writes)
        operators.append(
            Operator(
                reads=reads,
                writes=writes,
                duration_us=dice.choice([0, 1, 2, 3, 5, 8]),
                workspace_bytes=dice.choice([0, 0, 1, 3]),
                recomputable=dice.random() < again,
                stream="comm" if dice.random() < side else "compute",
            )
        )
    movable = 0.5 if again else 0.9
    storages = tuple(
        Storage(
            id=i,
            bytes=dice.randint(1, 6),
            resident_at_start=resident[i],
            resident_at_end=i in exists and dice.random() < 0.5,
            offloadable=dice.random() < movable,
        )
        for i in range(tensors)
    )
    device = Device(base_bytes=dice.choice([0, 2]), links=Links(tiers=_tiers(dice, storages)))
    profile = Profile(operators=tuple(operators), storages=storages, device=device)
    check(profile)
    peak = replay(profile).peak_bytes
    least = memory_bound(Problem(profile, Budget(hbm_bytes=0))).bytes
    if least >= peak:
        return None
    return profile, Budget(hbm_bytes=dice.randint(max(0, least - 1), peak - 1))


def _tiers(dice: random.Random, storages: tuple[Storage, ...]) -> tuple[Tier, ...]:
    largest = max(s.bytes for s in storages)
    names = ["host", "pool"][: dice.choice([1, 1, 2])]
    return tuple(
        Tier(
            name=name,
            bytes=dice.choice([100, 100, largest, largest + 2]),
            d2h_bytes_per_s=10**6 * dice.choice([0.5, 1, 2, 4]),
            h2d_bytes_per_s=10**6 * dice.choice([1, 2, 4]),
            latency_us=dice.choice([0, 0, 0.5]),
            duplex=dice.random() < 0.7,
        )
        for name in names
    )


def searched_ns(problem: Problem) -> int | None:
    """What the search for larger problems finds, without exhaustion."""
    request = Request(problem.budget, time_limit_s=None, work_limit=SEARCH_WORK)
    incumbent = Incumbent(problem, Stop(BoundReached(), WorkLimit(SEARCH_WORK)), step_bound_ns(problem))
    done = set()
    for name, rule in BASELINES.items():
        _offer_rule(problem, incumbent, name, rule(problem))
        done.add(name)
    if incumbent.best_ns != incumbent.bound_ns:
        _refine(problem, incumbent, request, done)
    return incumbent.best_ns


def examined(seed: int, profile: Profile, budget: Budget) -> dict[str, Any]:
    """One instance: optimum, bounds, plans (ns) and what is wrong with them. Raises `TooMany`."""
    began = time.monotonic()
    problem = Problem(profile, budget)
    optimum = least_ns(profile, budget, most=MOST)
    taken = time.monotonic() - began
    fluid = {}
    for rows in ROWS:
        found = Fluid(problem, rows)
        fluid[rows] = max(solve_fluid(found, None).bound_ns, step_bound_ns(problem))
    answer = solve(profile, Request(budget, time_limit_s=None, work_limit=20_000))
    planned = bound = None
    if isinstance(answer, Plan):
        assert answer.bound is not None
        planned, bound = replay(profile, answer).step_ns, round(answer.bound.step_us * 1000)
    heuristic = searched_ns(problem)
    wrong = []
    if isinstance(answer, Plan) and answer.bound is not None and answer.bound.status == "optimal":
        wrong += ["called optimal"] if optimum is not None and planned is not None and planned > optimum else []
    if isinstance(answer, Infeasible) and answer.proven and optimum is not None:
        wrong.append("called infeasible")
    if optimum is not None:
        wrong += [f"fluid bound on {rows} rows" for rows, ns in fluid.items() if ns > optimum * (1 + 1e-9) + 1e-3]
        wrong += ["memory bound"] if memory_bound(problem).bytes > problem.hbm_bytes else []
    best = min((ns for ns in (optimum, planned, heuristic) if ns is not None), default=None)
    if best is not None:
        wrong += ["bound of the plan"] if bound is not None and bound > best else []
        wrong += ["fluid bound against a plan"] if max(fluid.values()) > best * (1 + 1e-9) + 1e-3 else []
    return {
        "seed": seed,
        "budget": budget.hbm_bytes,
        "unlimited_ns": problem.unlimited.step_ns,
        "optimum_ns": optimum,
        "planned_ns": planned,
        "bound_ns": bound,
        "fluid_ns": fluid[ROWS[-1]],
        "searched_ns": heuristic,
        "wrong": wrong,
        "recompute": any(o.recomputable for o in profile.operators),
        "tiers": len(profile.device.tiers),
        "seconds": round(taken, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    seed, left_out = options.first, 0
    while len(rows) < options.count:
        case = instance(seed)
        if case is not None:
            try:
                rows.append(examined(seed, *case))
            except TooMany:
                left_out += 1
            write(options.output, rows, left_out)
        seed += 1
    write(options.output, rows, left_out)
    if not report(rows, left_out):
        sys.exit(1)


def write(path: Path, rows: list[dict[str, Any]], left_out: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"instances": rows, "left_out": left_out}, indent=1))


def report(rows: list[dict[str, Any]], left_out: int) -> bool:
    """Prints the table; whether no bound is wrong."""
    run = [r for r in rows if r["optimum_ns"] is not None]
    print(f"{len(rows)} instances, {len(run)} with a plan; {left_out} more had too many plans to try")
    kinds = Counter((r["recompute"], r["tiers"]) for r in rows)
    for (again, tiers), count in sorted(kinds.items()):
        print(f"  {count:4} with {tiers} tier(s){' and recompute' if again else ''}")
    slower = [r for r in run if r["optimum_ns"] > r["unlimited_ns"]]
    print(f"optimum above the unlimited step: {len(slower)}")
    below = [r["optimum_ns"] / r["fluid_ns"] for r in slower if r["fluid_ns"]]
    if below:
        print(f"optimum / fluid bound there: median {sorted(below)[len(below) // 2]:.3f}, most {max(below):.3f}")
    wrong = [r for r in rows if r["wrong"]]
    print(f"bounds above the optimum, and claims that do not hold: {len(wrong)}")
    for r in wrong:
        print(f"  seed {r['seed']}: {', '.join(r['wrong'])}; {r}")
    for name in ("planned_ns", "searched_ns"):
        hits = [r for r in run if r[name] == r["optimum_ns"]]
        better = [r for r in rows if r[name] is not None and (r["optimum_ns"] is None or r[name] < r["optimum_ns"])]
        print(f"{name}: the optimum in {len(hits)} of {len(run)} ({100 * len(hits) / max(1, len(run)):.1f} %)")
        print(
            f"  better than any plan tried: {len(better)} (more absences or executions) {[r['seed'] for r in better]}"
        )
        misses = [r for r in run if r[name] is None or r[name] > r["optimum_ns"]]
        for r in misses if name == "planned_ns" else misses[:10]:
            print(f"  miss: seed {r['seed']}, {r[name]} instead of {r['optimum_ns']} ns")
    print(f"seconds of exhaustive search: {sum(r['seconds'] for r in rows):.0f}")
    return not wrong


if __name__ == "__main__":
    main()
