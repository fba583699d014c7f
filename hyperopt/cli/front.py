"""The command `pareto`: the front of step time against HBM, as a table or in JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hyperopt.cli.files import (
    INFEASIBLE,
    MEMORY_TOO,
    MOST_SEED,
    AsJson,
    NodePath,
    ProfilePath,
    TierBytes,
    check_output,
    read_node,
    read_profile,
    say,
    tier_budgets,
)
from hyperopt.cli.sizes import LARGE_UNITS, Unit
from hyperopt.documents import DocumentError, write
from hyperopt.plan import Budget


def register(app: typer.Typer) -> None:
    app.command("pareto")(pareto)


def pareto(
    profile: ProfilePath,
    points: Annotated[int, typer.Option(min=1, max=1000, help="budgets, from least reachable to unplanned peak")] = 8,
    tier_bytes: TierBytes = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0, help="seconds for the whole front; 60 unless a work limit is given")
    ] = None,
    work_limit: Annotated[
        int | None, typer.Option(min=1, help="replays and search steps for each budget; makes the front reproducible")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the search")] = 0,
    node: NodePath = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="where to write the front as JSON; .gz and .zst compress")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show how step time falls as the HBM budget grows, with a plan for every budget.

    Exit 3: there is none at all; 130: Ctrl-C, with what had been found.
    """
    from hyperopt.cli.interrupt import INTERRUPTED, interruptible

    with interruptible() as interrupt:  # from here on: one that comes while the profile is read ends the search too
        from solver import NotPlannable, Request
        from solver import pareto as trace

        check_output(output)
        document = read_profile(profile)
        if time_limit is None and work_limit is None:
            time_limit = 60.0
        budget = Budget(tiers=tier_budgets(document, tier_bytes))
        request = Request(
            budget,
            "pareto",
            time_limit_s=time_limit,
            work_limit=work_limit,
            seed=seed,
            points=points,
            node=read_node(node, document, budget),
        )
        try:
            front = trace(document, request, cancelled=interrupt)
        except NotPlannable as why:
            raise DocumentError("$.storages", str(why), MEMORY_TOO) from why
    if output is not None:
        write(front, output)
    print(msgspec.json.encode(front).decode() if as_json else _table(front))
    for refused in front.infeasible:
        say(f"{refused.hbm_bytes} bytes: {refused.why}")
    if interrupt.asked:
        return INTERRUPTED
    return 0 if front.points else INFEASIBLE


def _table(front: Any) -> str:
    """The points of a `solver.Front`, smallest budget first."""
    memory = Unit([front.unplanned_peak_bytes])
    links = Unit((point.moved_bytes for point in front.points), LARGE_UNITS)
    peak, least = (memory.of(amount, 1) for amount in (front.unplanned_peak_bytes, front.lower_bound_bytes))
    lines = [
        f"step {front.unlimited_step_us / 1000:.3f} ms and peak {peak} {memory.name} without a plan; no plan exists "
        f"below {least} {memory.name} (proven). All simulated:",
        f"{'HBM ' + memory.name:>12} {'of peak':>8} {'step ms':>12} {'slower':>8} {'over bound':>10} "
        f"{'moved ' + links.name:>11} {'orders':>7}  status",
    ]
    for point in front.points:
        share = point.hbm_bytes / front.unplanned_peak_bytes if front.unplanned_peak_bytes else 1.0
        slower = point.step_us / front.unlimited_step_us - 1 if front.unlimited_step_us else 0.0
        lines.append(
            f"{memory.of(point.hbm_bytes, 1):>12} {share:8.1%} {point.step_us / 1000:12.3f} {slower:8.2%} "
            f"{point.gap:10.2%} {links.of(point.moved_bytes):>11} {point.actions:7d}  {point.status}"
        )
    return "\n".join(lines)
