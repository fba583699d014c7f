"""`hyperopt calibrate` and `hyperopt cost`: measure this machine's operators, fit a cost model, predict with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from hyperopt import settings
from hyperopt.cli import cost_models
from hyperopt.cli.files import BAD_INPUT, AsJson, ProfilePath, check_output, read_profile, say
from hyperopt.documents import DocumentError, write

if TYPE_CHECKING:
    from hyperopt.cost.work import Table

TYPES = "more operator types, as TOML; default: the file of HYPEROPT_OPERATORS, if that is set"
Operators = Annotated[Path | None, typer.Option("--operators", metavar="FILE", help=TYPES)]
MOST_TOLD = 12
NOT_BETTER = DRIFTED = 1

cost = typer.Typer(no_args_is_help=True, help="Fit a cost model to profiles, and predict durations with it.")


def register(app: typer.Typer) -> None:
    app.command("calibrate")(calibrate)
    cost_models.register(cost)
    app.add_typer(cost, name="cost")


def calibrate(
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the profile; .gz and .zst compress")],
    minutes: Annotated[float, typer.Option(min=0.1, help="begin nothing new after so long")] = 10.0,
    as_json: AsJson = False,
) -> int:
    """Measure MindSpore's operators and copies on this CPU over many shapes. Interrupted, it goes on where it was."""
    from profiler.calibrate import CalibrationError
    from profiler.calibrate import calibrate as sweep

    check_output(output)
    try:
        profile = sweep(output, minutes, lambda line: print(line, file=sys.stderr, flush=True))
    except CalibrationError as error:
        say(str(error))
        return BAD_INPUT
    figures = {"profile": str(output), "operators": len(profile.operators), "notes": profile.run.notes}
    line = f"{output}: {len(profile.operators)} operators and copies; {profile.run.notes[0]}"
    print(msgspec.json.encode(figures).decode() if as_json else line)
    return 0


@cost.command("fit")
def fit(
    profiles: Annotated[list[Path], typer.Argument(metavar="PROFILE...", help="profiles of one device")],
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the model")],
    current: Annotated[
        Path | None, typer.Option("--current", metavar="MODEL", help="the model in use: written only where better")
    ] = None,
    operators: Operators = None,
    as_json: AsJson = False,
) -> int:
    """Fit a cost model to what profiles measured. What it does not know it says, family by family. With --current:
    exit 1, and nothing written, where it is not better on shapes that neither has seen."""
    from hyperopt.cost import model as models
    from hyperopt.cost.features import joined, rows_of
    from hyperopt.cost.training import train

    check_output(output)
    table = _table(operators)
    rows = [rows_of(read_profile(path), table) for path in profiles]
    devices = sorted({part.device for part in rows})
    if len(devices) > 1:
        problem = f"profiles of several devices or versions: {'; '.join(devices)} (fit one model for each)"
        raise typer.BadParameter(problem, param_hint="PROFILE")
    try:
        trained = train(joined(rows), None if current is None else models.load(current.read_bytes()))
    except DocumentError:
        raise
    except ValueError as error:
        say(f"{error} (profile with shapes and durations)")
        return BAD_INPUT
    model = trained.model
    if trained.promoted:
        write(model, output)
    if as_json:
        figures = {
            "model": str(output) if trained.promoted else None,
            "promoted": trained.promoted,
            "why": trained.why,
            "drift": trained.drift,
            "device": model.device,
            "data_digest": model.data_digest,
            "signatures": model.signatures,
            "scores": model.scores,
        }
        print(msgspec.json.encode(figures).decode())
    else:
        print("\n".join(models.told(model)))
        print(f"{'written' if trained.promoted else 'not written'}: {trained.why}")
    return 0 if trained.promoted else NOT_BETTER


@cost.command("drift")
def drift(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="of `hyperopt cost fit`")],
    profiles: Annotated[list[Path], typer.Argument(metavar="PROFILE...", help="measured since, on the same device")],
    operators: Operators = None,
    as_json: AsJson = False,
) -> int:
    """Whether new measurements still lie in the model's intervals. Exit 1: more are outside than chance explains."""
    from hyperopt.cost.features import joined, rows_of, samples_of
    from hyperopt.cost.model import load
    from hyperopt.cost.training import drift_of

    table, known = _table(operators), load(model.read_bytes())
    rows = [rows_of(read_profile(path), table) for path in profiles]
    if strange := sorted({part.device for part in rows} - {known.device}):
        problem = f"profiles of {'; '.join(strange)}, a model of {known.device}"
        raise typer.BadParameter(problem, param_hint="PROFILE")
    found = drift_of(known, samples_of(joined(rows)))
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        word = "drifted" if found.drifted else "no drift seen"
        print(f"{word}: {found.outside:.1%} of {found.samples} signatures outside, {1 - found.level:.0%} expected")
        for family, share in sorted(found.families.items(), key=lambda pair: -pair[1])[:MOST_TOLD]:
            print(f"  {family:13} {share:.1%}")
    return DRIFTED if found.drifted else 0


@cost.command("predict")
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="of `hyperopt cost fit`")],
    profile: ProfilePath,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="where to write the predicted profile")] = None,
    quantile: Annotated[
        float | None,
        typer.Option(help="durations not exceeded with this probability, 0.95 for a robust plan; default: likeliest"),
    ] = None,
    operators: Operators = None,
    as_json: AsJson = False,
) -> int:
    """The profile with predicted durations, each marked with how it was predicted."""
    from hyperopt.cost.model import load
    from hyperopt.cost.predicted import predicted

    check_output(output)
    try:
        found = predicted(read_profile(profile), load(model.read_bytes()), _table(operators), quantile)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--quantile") from error
    if output is not None:
        write(found.profile, output)
    figures = {
        "profile": None if output is None else str(output),
        "sources": dict(found.sources),
        "kept": dict(found.kept),
        "before_us": found.before_us,
        "after_us": found.after_us,
    }
    if as_json:
        print(msgspec.json.encode(figures).decode())
        return 0
    parts = ", ".join(f"{count} {source}" for source, count in found.sources.most_common())
    times = f"{found.before_us / 1000:.1f} ms before, {found.after_us / 1000:.1f} ms predicted"
    print(f"operators: {parts or 'none'}; {times}")
    for reason, count in found.kept.most_common(MOST_TOLD):
        print(f"  {count} keep their duration: {reason}")
    return 0


def _table(operators: Path | None) -> Table:
    from hyperopt.cost.work import OperatorFileError, Table

    own = operators or settings.from_environment().operators
    try:
        return Table.load(own)
    except OperatorFileError as error:
        raise typer.BadParameter(str(error), param_hint="--operators") from error
