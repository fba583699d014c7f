"""The command `report`: one HTML file on a profile, a plan and, where there are, the runs without and with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hyperopt.cli.files import AsJson, PlanPath, ProfilePath, check_output, read_plan, read_profile
from hyperopt.documents import DocumentError, write_bytes
from hyperopt.legality import IllegalPlan, OutOfMemory
from hyperopt.report import Case, Measurement, page

ANSWER = "what `hyperopt apply --json` answered"


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    profile: ProfilePath,
    plan: PlanPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the HTML file")],
    before: Annotated[Path | None, typer.Option(help=f"{ANSWER} without a plan")] = None,
    after: Annotated[Path | None, typer.Option(help=f"{ANSWER} under this plan")] = None,
    title: Annotated[str, typer.Option(help="of the page")] = "hyperopt: a plan",
    as_json: AsJson = False,
) -> int:
    """Write a report on a plan: figures, HBM over the step, actions. Exit 64 if the plan cannot run."""
    check_output(output)
    document, order = read_profile(profile), read_plan(plan)
    first, _ = _run(before)
    second, execution = _run(after)
    case = Case(plan.name, document, order, first, second, execution)
    lead = f"{document.run.model or profile.name} on {document.device.name or 'a device without a name'}"
    try:
        html = page(title, lead, [case])
    except (IllegalPlan, OutOfMemory) as refused:
        raise DocumentError("$.residency", str(refused), "see hyperopt validate") from refused
    write_bytes(html.encode(), output)
    print(msgspec.json.encode({"report": str(output)}).decode() if as_json else str(output))
    return 0


def _run(path: Path | None) -> tuple[Measurement | None, dict[str, Any] | None]:
    """A run's figures and its execution log, from the answer of `hyperopt apply --json`."""
    if path is None:
        return None, None
    try:
        told = msgspec.json.decode(path.read_bytes())
        log = told["log"]
        found = Measurement(
            peak_bytes=told["peak_bytes"] + told["excluded_bytes"],
            resident_peak_bytes=told["resident_peak_bytes"],
            step_us=told["step_us"],
            step_us_spread=told["step_us_spread"],
            losses=tuple(told["losses"]),
        )
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise DocumentError("$", f"{path.name} is not {ANSWER}: {error}", "hyperopt apply ... --json > FILE") from error
    return found, None if log is None else msgspec.json.decode(Path(log).read_bytes())
