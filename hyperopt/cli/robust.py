"""`hyperopt plan --model MODEL --quantile 0.95`: a plan for durations as they may turn out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hyperopt import settings
from hyperopt.documents import DocumentError
from hyperopt.plan import Plan
from hyperopt.profile import Profile

if TYPE_CHECKING:
    from solver import Infeasible, Request

DRAWN, LARGE = (60, 400), (20, 80)
"""Scenarios to choose on and to tell by; the second pair for steps of `MANY` operators and more."""

MANY = 20_000


def robustly(
    profile: Profile,
    request: Request,
    model: Path,
    quantile: float,
    operators: Path | None,
    cancelled: Callable[[], bool],
    say: Callable[[str], None],
) -> Plan | Infeasible:
    """The robust plan, after its price has been told on standard error; or why there is none."""
    from hyperopt.cli.files import read_model
    from hyperopt.cost.features import device_of
    from hyperopt.cost.scenarios import scenarios
    from hyperopt.cost.whatif import is_of
    from hyperopt.cost.work import OperatorFileError, Table
    from solver import Infeasible
    from solver.robust import lines, plan_robustly

    if not 0.5 < quantile < 1:
        raise typer.BadParameter(f"{quantile} is not between 0.5 and 1", param_hint="--quantile")
    if request.objective != "min_step_time" or request.node is not None:
        problem = "is for --objective min_step_time, without --node"
        raise typer.BadParameter(problem, param_hint="--quantile")
    known = read_model(model)
    if not is_of(known, profile):
        problem = f"the profile is of {device_of(profile) or 'no named device'}, the model of {known.device}"
        raise DocumentError("$.device.name", problem, "give a model of the profile's device")
    try:
        table = Table.load(operators or settings.from_environment().operators)
    except OperatorFileError as error:
        raise typer.BadParameter(str(error), param_hint="--operators") from error
    counts = LARGE if len(profile.operators) >= MANY else DRAWN
    try:
        chosen_on, told_on = (
            scenarios(profile, known, table, count, seed)
            for count, seed in zip(counts, (2 * request.seed, 2 * request.seed + 1), strict=True)
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error
    found = plan_robustly(profile, request, chosen_on, told_on, quantile, cancelled=cancelled)
    if isinstance(found, Infeasible):
        return found
    for line in (*lines(found), *found.notes):
        say(line)
    return found.plan
