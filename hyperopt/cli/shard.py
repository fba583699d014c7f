"""Commands on sharding: shard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hyperopt.cli.files import INFEASIBLE, MOST_SEED, STANDARD_OUTPUT, check_output, say
from hyperopt.documents import DocumentError, write_bytes

NOT_FOUND = 4
LIMIT_S = 60.0


def register(app: typer.Typer) -> None:
    app.command("shard")(shard)


def shard(
    instance: Annotated[Path, typer.Argument(metavar="INSTANCE", help="the contest's JSON, plain, .gz or .zst")],
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the strategies, a JSON list")],
    time_limit: Annotated[float, typer.Option(min=0, help="seconds, all included but starting Python")] = LIMIT_S,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the search")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="as every command takes it; the answer is JSON anyway")
    ] = True,
) -> int:
    """One strategy a node, at least cost within memory. Exit 0: written; 3: proven not to fit; 4: none found that fits.

    On standard output, in JSON: cost, bound, feasible, gap, stop_reason, seconds; where it does not fit, the moment and
    the shortfall.
    """
    import time

    began = time.monotonic()
    from solver.sharding import ShardingError, read, solve, write_solution
    from solver.sharding.warm import warm

    check_output(output)
    try:
        problem = read(instance.read_bytes())
    except ShardingError as error:
        raise DocumentError(f"{instance}: {error.field}", error.problem, error.remedy) from error
    warm()
    spent = time.monotonic() - began
    found = solve(problem, max(0.0, time_limit - spent), seed)
    judged = found.evaluation
    summary = {
        "name": problem.name,
        "nodes": problem.nodes,
        "cost": judged.cost,
        "bound": found.bound,
        "feasible": judged.feasible,
        "gap": found.gap,
        "stop_reason": found.stop_reason,
        "seconds": round(time.monotonic() - began, 3),
        "first_feasible_seconds": None if found.first_feasible_s is None else round(found.first_feasible_s + spent, 3),
        "peak": judged.peak,
        "usage_limit": problem.usage_limit,
        "moment": None if judged.feasible else judged.moment,
        "shortfall": judged.shortfall,
        "output": str(output) if judged.feasible else None,
    }
    if judged.feasible:
        write_bytes(write_solution(found.solution), output)
    if output not in STANDARD_OUTPUT:
        print(msgspec.json.encode(summary).decode())
    if judged.feasible:
        return 0
    proven = "no choice fits (proven)" if found.impossible else "none found that fits; give a larger --time-limit"
    say(f"memory is short of {judged.shortfall} bytes at moment {judged.moment}: {proven}; nothing was written")
    return INFEASIBLE if found.impossible else NOT_FOUND
