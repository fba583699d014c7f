"""`hyperopt calibrate` and `hyperopt cost`: measure this machine's operators, fit a cost model, predict with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from hyperopt import settings
from hyperopt.cli import cost_models
from hyperopt.cli.files import BAD_INPUT, AsJson, ProfilePath, check_output, read_model, read_profile, say
from hyperopt.documents import DocumentError, write

if TYPE_CHECKING:
    from hyperopt.cost.features import Rows
    from hyperopt.cost.model import CostModel
    from hyperopt.cost.work import Table
    from hyperopt.profile import Profile

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
    messages: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="communication.json of Ascend's profiler: prices collectives; may be repeated"
        ),
    ] = None,
    operators: Operators = None,
    as_json: AsJson = False,
) -> int:
    """Fit a cost model to what profiles measured. What it does not know it says, family by family. With --current:
    exit 1, and nothing written, where it is not better on shapes that neither has seen."""
    from hyperopt.cost import messages as links
    from hyperopt.cost import model as models
    from hyperopt.cost.features import joined
    from hyperopt.cost.peaks import peak_errors
    from hyperopt.cost.training import TooFew, train

    check_output(output)
    table = _table(operators)
    documents = [read_profile(path) for path in profiles]
    rows = _measured(profiles, documents, table)
    devices = sorted({part.device for part in rows})
    if len(devices) > 1:
        problem = f"profiles of several devices or versions: {'; '.join(devices)} (fit one model for each)"
        raise typer.BadParameter(problem, param_hint="PROFILE")
    in_use = None if current is None else read_model(current)
    notes = _contradictions(profiles, rows, in_use)
    for note in notes:
        say(note)
    between, too_few = links.fit([links.read(path.read_bytes()) for path in messages or ()])
    for note in too_few:
        say(note)
    try:
        trained = train(joined(rows), in_use)
    except DocumentError:
        raise
    except TooFew as error:
        say(str(error))
        return BAD_INPUT
    except ValueError as error:
        say(f"{error} (profile with shapes and durations)")
        return BAD_INPUT
    model = msgspec.structs.replace(
        trained.model,
        messages=between if messages or in_use is None else in_use.messages,
        notes=(*trained.model.notes, *notes),
        peaks=peak_errors(document for document in documents if document.run.measured),
    )
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
            "messages": model.messages,
            "peaks": model.peaks,
        }
        print(msgspec.json.encode(figures).decode())
    else:
        print("\n".join(models.told(model)))
        for link, found in model.messages.items():
            print(f"  {link}: {found.latency_us:.2f} us and {found.bytes_per_s / 1e9:.1f} GB/s a message, of "
                  f"{found.sizes} sizes, median error {found.error:.1%}")  # fmt: skip
        for source, errors in model.peaks.items():
            print(f"  peak memory, {source}: {errors.told()}")
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
    from hyperopt.cost.drift import drift_of
    from hyperopt.cost.features import joined, samples_of

    table, known = _table(operators), read_model(model)
    rows = _measured(profiles, [read_profile(path) for path in profiles], table)
    if strange := sorted({part.device for part in rows} - {known.device}):
        problem = f"profiles of {'; '.join(strange)}, a model of {known.device}"
        raise typer.BadParameter(problem, param_hint="PROFILE")
    found = drift_of(known, samples_of(joined(rows)))
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        word = f"drifted{''.join(f', {name}' for name in found.changed)}" if found.drifted else "no drift seen"
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
    from hyperopt.cost.features import device_of
    from hyperopt.cost.predicted import predicted, stranger_notes
    from hyperopt.cost.whatif import is_of

    check_output(output)
    if quantile is not None and not 0.5 < quantile < 1:
        raise typer.BadParameter(f"level {quantile} is not between 0.5 and 1", param_hint="--quantile")
    document, known = read_profile(profile), read_model(model)
    if strange := not is_of(known, document):
        say(
            f"{model.name} is of {known.device}, {profile.name} of {device_of(document) or 'no named device'}: what is "
            "predicted is what the step takes on the model's device, and keeps its duration where it is not"
        )
    found = predicted(document, known, _table(operators), quantile)
    if output is not None:
        write(found.profile, output)
    figures = {
        "profile": None if output is None else str(output),
        "device": known.device,
        "other_device": strange,
        "sources": dict(found.sources),
        "kept": dict(found.kept),
        "never_met": dict(found.strangers),
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
    for line in stranger_notes(found.strangers):
        print(f"  {line}")
    return 0


@cost.command("what-if")
def what_if(
    profile: ProfilePath,
    model: Annotated[Path, typer.Option(metavar="MODEL", help="of the device that the step is to be on")],
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the new profile")],
    batch: Annotated[
        str | None, typer.Option(metavar="[OLD=]NEW", help="another batch; OLD where the inputs do not show it")
    ] = None,
    sequence: Annotated[str | None, typer.Option(metavar="[OLD=]NEW", help="another length of the sequence")] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="float32=bfloat16; may be repeated")
    ] = None,
    device: Annotated[
        Path | None, typer.Option(metavar="PROFILE", help="any profile of another device, which the model is of")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="batch=N", help="the batch over N devices, gradients all-reduced")
    ] = None,
    mesh: Annotated[Path | None, typer.Option(metavar="MESH", help="their links, with --shard")] = None,
    operators: Operators = None,
    as_json: AsJson = False,
) -> int:
    """The profile of the same step at another size, element type or device: sizes exact, durations predicted."""
    from hyperopt import mesh as meshes
    from hyperopt.cost.messages import on_mesh
    from hyperopt.cost.peaks import source_of
    from hyperopt.cost.whatif import Growth
    from hyperopt.cost.whatif import what_if as changed
    from hyperopt.replay import replay

    check_output(output)
    known, document = read_model(model), read_profile(profile)
    growths = [
        Growth(axis, *_sizes(text, axis))
        for axis, text in (("batch", batch), ("sequence", sequence))
        if text is not None
    ]
    types = dict(_types(text) for text in dtype or ())
    on = None
    if mesh is not None:
        on, warnings = meshes.load(mesh.read_bytes())
        on, taken = on_mesh(on, known.messages)
        for line in (*warnings, *taken):
            say(f"{mesh.name}: {line}")
    elsewhere = None if device is None else read_profile(device)
    found = changed(document, known, _table(operators), growths, types, elsewhere, _shards(shard), on)
    write(found.profile, output)
    before, after = (None if p.timing_only else replay(p) for p in (document, found.profile))
    errors = known.peaks.get(source_of(document))
    figures = {
        "profile": str(output),
        "sources": dict(found.sources),
        "kept": dict(found.kept),
        "storages_changed": found.grown,
        "before_us": found.before_us,
        "after_us": found.after_us,
        "step_us": None if after is None else after.step_us,
        "peak_bytes": None if after is None else after.peak_bytes,
        "peak_factors": None if errors is None else errors.interval,
        "notes": found.notes,
    }
    if as_json:
        print(msgspec.json.encode(figures).decode())
        return 0
    parts = ", ".join(f"{count} {source}" for source, count in found.sources.most_common())
    print(f"{output}: operators predicted: {parts or 'none'}; {found.grown} storages of another size")
    if before is not None and after is not None:
        step = f"step {before.step_us / 1000:.1f} -> {after.step_us / 1000:.1f} ms"
        print(f"{step}, peak {before.peak_bytes / 2**20:.1f} -> {after.peak_bytes / 2**20:.1f} MiB (replayed)")
        print("  peak: " + ("the model has no captures with a measured peak" if errors is None else errors.told()))
    for line in found.notes:
        print(f"  {line}")
    for reason, count in found.kept.most_common(MOST_TOLD):
        print(f"  {count} keep their duration: {reason}")
    return 0


def _sizes(text: str, axis: str) -> tuple[int, int | None]:
    """(new, old) of `NEW` or `OLD=NEW`."""
    old, given, new = text.rpartition("=")
    if not new.isdecimal() or int(new) < 1 or (given and not (old.isdecimal() and int(old) >= 1)):
        raise typer.BadParameter(f"{text!r} is not NEW or OLD=NEW, whole numbers from 1", param_hint=f"--{axis}")
    return int(new), (int(old) if given else None)


def _types(text: str) -> tuple[str, str]:
    old, given, new = text.partition("=")
    if not (old and given and new):
        raise typer.BadParameter(f"{text!r} is not OLD=NEW, such as float32=bfloat16", param_hint="--dtype")
    return old, new


def _shards(text: str | None) -> int:
    if text is None:
        return 1
    axis, _, number = text.partition("=")
    if not number.isdecimal() or int(number) < 1:
        raise typer.BadParameter(f"{text!r} is not batch=N", param_hint="--shard")
    if axis != "batch":
        problem = f"{axis!r} is not followed through the step: only the batch is (hyperopt shard-model cuts any axis)"
        raise typer.BadParameter(problem, param_hint="--shard")
    return int(number)


def _measured(paths: Sequence[Path], profiles: Sequence[Profile], table: Table) -> list[Rows]:
    """What profiles have measured; what is left out is said. Raises BadParameter where that is all there is."""
    from hyperopt.cost.features import NOT_MEASURED, PREDICTED, measured_rows

    rows = [measured_rows(profile, table) for profile in profiles]
    left = 0
    for path, part in zip(paths, rows, strict=True):
        for why in (NOT_MEASURED, PREDICTED):
            if count := part.uncounted[why]:
                left += count
                say(f"{path.name}: {count} operators are left out: {why}")
    if left and not any(len(part.us) for part in rows):
        problem = (
            f"nothing that was measured is left of {left} operators (give profiles of `hyperopt calibrate` or "
            "`hyperopt capture`, or read from a profiler)"
        )
        raise typer.BadParameter(problem, param_hint="PROFILE")
    return rows


def _contradictions(paths: Sequence[Path], rows: Sequence[Rows], current: CostModel | None) -> list[str]:
    """Files say nothing of which was measured first, so what contradicts is told, and fitted all the same."""
    from hyperopt.cost.epochs import epochs

    return [
        f"{paths[one.place].name} contradicts {', '.join(path.name for path in paths[one.place + 1 :])}: {one.told()} "
        "(if the device has changed, fit to what was measured since)"
        for one in epochs(rows, None if current is None else current.repeats).found
    ]


def _table(operators: Path | None) -> Table:
    from hyperopt.cost.work import OperatorFileError, Table

    own = operators or settings.from_environment().operators
    try:
        return Table.load(own)
    except OperatorFileError as error:
        raise typer.BadParameter(str(error), param_hint="--operators") from error
