"""`hyperopt cost` on a server: train on what a project has measured, see and change what is in use, report back."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from hyperopt.cli.files import AsJson, check_output, say
from hyperopt.cli.remote import ServerUrl, answers, measured_line
from hyperopt.documents import write_bytes

DRIFTED = NOT_TRAINED = 1
MOST_TOLD = 12

ModelId = Annotated[str, typer.Argument(metavar="MODEL", help="cost-model-..., of `hyperopt cost models`")]
StoredProfile = Annotated[str, typer.Argument(metavar="PROFILE", help="id of a stored profile")]
OfModel = Annotated[str | None, typer.Option("--model", metavar="MODEL", help="default: the one in use")]


def register(cost: typer.Typer) -> None:
    cost.command("train")(train)
    cost.command("models")(models)
    cost.command("use")(use)
    cost.command("fetch")(fetch)
    cost.command("watch")(watch)
    cost.command("forecast")(forecast)
    cost.command("report")(report)


def train(
    project: Annotated[str, typer.Option(help="whose measurements")] = "default",
    device: Annotated[str | None, typer.Option(help="this one alone; default: a model for each")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="until it is done")] = True,
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """Train cost models on all that a project has measured. The same data are not trained on twice; a new model comes
    into use only where it is better on shapes that neither has seen. Exit 1: it failed, or was cancelled."""
    with answers(server) as service:
        job = service.train(project, device)
        if wait:
            job = service.wait(job["id"], on_progress=None if as_json else _progress)
    print(json.dumps(job) if as_json else _job(job))
    return NOT_TRAINED if job["state"] in ("failed", "cancelled") else 0


def models(
    project: Annotated[str | None, typer.Option(help="all unless given")] = None,
    device: Annotated[str | None, typer.Option(help="all unless given")] = None,
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """List cost models, and which are in use."""
    with answers(server) as service:
        found = service.cost_models(project, device)
    print(json.dumps(found) if as_json else "\n".join(map(_line, found)) or "no cost model was trained yet")
    return 0


def use(
    model: ModelId,
    who: Annotated[str, typer.Option(help="who decides it")],
    why: Annotated[str, typer.Option(help="for what reason; kept")],
    replaces: Annotated[str, typer.Option(metavar="ETAG", help="what is in use, as you saw it by `cost models`")],
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """Put a model into use in place of the one before: a promotion by hand, or a rollback. Exit 64: refused."""
    with answers(server) as service:
        found = service.use_cost_model(model, who=who, why=why, etag=replaces)
    print(json.dumps(found) if as_json else _line(found))
    return 0


def fetch(
    model: ModelId,
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the document")],
    server: ServerUrl = None,
) -> int:
    """Fetch a model's document, for `predict` and `drift` on files."""
    check_output(output)
    with answers(server) as service:
        write_bytes(service.cost_model_document(model), output)
    return 0


def watch(profile: StoredProfile, model: OfModel = None, server: ServerUrl = None, as_json: AsJson = False) -> int:
    """Whether what a stored profile measured lies in the model's intervals. Exit 1: more is outside than chance
    explains; advice, nothing follows from it."""
    with answers(server) as service:
        found = service.drift(profile, model)
    print(json.dumps(found) if as_json else drift_line(found))
    return DRIFTED if found["drifted"] else 0


def forecast(
    profile: StoredProfile,
    model: OfModel = None,
    level: Annotated[float, typer.Option(help="probability that an interval holds what is measured")] = 0.9,
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """Durations of a stored profile's operators as a model predicts them, with intervals: all of them with --json, else
    those that take longest."""
    with answers(server) as service:
        found = service.predict(profile, model, level)
    print(json.dumps(found) if as_json else _forecast(found))
    return 0


def report(
    applied: Annotated[Path, typer.Argument(metavar="APPLIED", help="what `hyperopt apply --json` printed")],
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """Tell the server what a training that followed a plan measured: the next cost model learns from it."""
    from hyperopt.cost.feedback import copies_of

    figures = _json(applied, "what `hyperopt apply --json` printed")
    if not figures.get("log"):
        raise typer.BadParameter(f"{applied} is of a training without a plan", param_hint="APPLIED")
    log = Path(figures["log"])
    beside = applied.with_name(log.name)  # where both were brought from another machine
    execution = _json(beside if beside.exists() else log, "an execution log of `hyperopt apply`")
    try:
        copies = copies_of(execution)
        measured = {name: figures[name] for name in ("steps", "step_us", "step_us_spread")}
        plan, peak = str(execution["plan_id"]), figures["whole_peak_bytes"]
    except (KeyError, ValueError) as error:
        raise typer.BadParameter(f"{applied}: {error}", param_hint="APPLIED") from error
    with answers(server) as service:
        found = service.measured(plan, peak_bytes=peak, copies=copies, **measured)
    print(json.dumps(found) if as_json else f"{found['plan']}: {measured_line(found)}")
    return 0


def drift_line(found: dict[str, Any]) -> str:
    word = f"drifted{''.join(f', {name}' for name in found['changed'])}" if found["drifted"] else "no drift seen"
    expected = 1 - found["level"]
    told = f"{found['outside']:.1%} of {found['samples']} signatures outside, {expected:.0%} expected"
    return f"{word}: {told} by {found['model']}"


def _forecast(found: dict[str, Any]) -> str:
    own, step = found["profile_step_us"] / 1000, found["step_us"] / 1000
    sources = ", ".join(f"{count} {source}" for source, count in Counter(found["source"]).most_common())
    lines = [
        f"{found['profile']}: step {step:.3f} ms predicted, {own:.3f} ms as profiled (replayed), by {found['model']}",
        f"operators: {sources or 'none'}; {sum(found['kept'].values())} keep their duration",
    ]
    rows = sorted(
        zip(*(found[name] for name in ("operators", "us", "low", "high", "source")), strict=True), key=_longest
    )
    for operator, us, low, high, source in rows[:MOST_TOLD]:
        within = "no interval" if low is None or high is None else f"{low:.1f} to {high:.1f}"
        lines.append(f"  operator {operator}: {us:.1f} us ({within}), {source}")
    return "\n".join(lines)


def _longest(row: tuple[Any, ...]) -> float:
    return -float(row[1])


def _json(path: Path, what: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not JSON: give {what}", param_hint="APPLIED") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{path} is not {what}", param_hint="APPLIED")
    return found


def _progress(told: dict[str, Any]) -> None:
    if "profiles" in told:
        say(f"{told['device']}: {told['stage']}, {told['profiles']} profiles, {told['operators']} operators")


def _job(job: dict[str, Any]) -> str:
    result = job["result"]
    if result is None:
        return f"{job['id']}: {job['state']} (hyperopt show {job['id']} --wait)"
    lines = [f"{job['id']}: {job['state']}"]
    for one in result.get("models", ()):
        named = f"{one['model']}, {one['state']}" if "model" in one else "no model"
        lines.append(f"  {one['device']}: {one['status']}; {named}: {one['why']}")
    return "\n".join([*lines, *([f"  {result['reason']}"] if "reason" in result else [])])


def _line(one: dict[str, Any]) -> str:
    last = one["uses"][0] if one["uses"] else None
    lines = [
        f"{one['project']} {one['device']}: {one['id']}, version {one['version']}, {one['state']}; "
        f"{one['signatures']} signatures of {one['groups']} groups of shapes, {len(one['profiles'])} profiles, "
        f"{len(one['measurements'])} measured plans; {one['created_at'][:10]}",
        f"  {one['why']}",
    ]
    if last is not None:
        lines.append(f"  used by {last['who']}: {last['why']}")
    return "\n".join([*lines, f"  etag {one['etag']}"])
