"""Commands that run MindSpore: capture a training, apply a plan to it, and the demonstration of both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hyperopt.cli.files import BAD_INPUT, AsJson, ProfilePath, read_plan, read_profile, say
from hyperopt.documents import write
from hyperopt.profile import Profile
from profiler.peaks import excluded_bytes

if TYPE_CHECKING:
    from profiler.trial import Training, Trial

MIB = 2**20


class Mode(StrEnum):
    GRAPH = "graph"
    PYNATIVE = "pynative"


Model = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="returns (net, step, batches): your training instead of the demo's"),
]
Layers = Annotated[int | None, typer.Option(min=1, help="of the demo model")]
Width = Annotated[int | None, typer.Option(min=1, help="of the demo model")]
Heads = Annotated[int | None, typer.Option(min=1, help="of the demo model")]
Sequence = Annotated[int | None, typer.Option(min=1, help="of the demo model, in bytes of text")]
Batch = Annotated[int | None, typer.Option(min=1, help="of the demo model")]


def register(app: typer.Typer) -> None:
    app.command("capture")(capture)
    app.command("apply")(apply)
    app.command("demo")(demo)


def capture(
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the profile; .gz and .zst compress")],
    mode: Annotated[Mode, typer.Option(help="how MindSpore runs")] = Mode.GRAPH,
    model: Model = None,
    layers: Layers = None,
    width: Width = None,
    heads: Heads = None,
    sequence: Sequence = None,
    batch: Batch = None,
    steps: Annotated[int, typer.Option(min=3, help="measured; times are medians over them")] = 3,
    warmup: Annotated[int, typer.Option(min=1, help="steps before, not measured")] = 1,
    hbm_bytes: Annotated[int | None, typer.Option(min=1, help="of the device; default: the measured peak")] = None,
    name: Annotated[str, typer.Option(help="of the run")] = "",
    trial_steps: Annotated[
        int | None, typer.Option(min=3, help="train so many steps first, measured as `apply` does, to compare with")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Profile a training step of the demo model or of your own, in this process."""
    from hyperopt.replay import replay

    _folder(output)

    with _mindspore():
        from profiler import capture as capture_step
        from profiler.trial import run_trial

        training = _training(mode, model, layers, width, heads, sequence, batch)
        trial = None if trial_steps is None else run_trial(training, trial_steps)
        profile: Profile = capture_step(
            training.step,
            *training.batch(),
            net=training.net,
            mode=mode.value,
            steps=steps,
            warmup=warmup,
            hbm_bytes=hbm_bytes,
            name=name,
        )
    write(profile, output)
    measured, replayed = profile.measured, replay(profile)
    assert measured is not None
    figures = {
        "profile": str(output),
        "mode": mode.value,
        "operators": len(profile.operators),
        "storages": len(profile.storages),
        "measured": measured,
        "excluded_bytes": excluded_bytes(profile),
        "replayed": {"step_us": replayed.step_us, "peak_bytes": replayed.peak_bytes},
        "trial": None if trial is None else _figures(mode, profile, trial, None),
        "notes": profile.run.notes,
    }
    whole = measured.peak_bytes + excluded_bytes(profile)
    line = (
        f"{output}: {len(profile.operators)} operators, {len(profile.storages)} storages; peak {whole / MIB:.2f} MiB "
        f"measured, {replayed.peak_bytes / MIB:.2f} MiB replayed; step {measured.step_us / 1000:.0f} ms measured"
    )
    print(msgspec.json.encode(figures).decode() if as_json else line)
    return 0


def apply(
    profile: ProfilePath,
    plan: Annotated[Path | None, typer.Argument(metavar="[PLAN]", help="none: run as it is, and measure that")] = None,
    model: Model = None,
    layers: Layers = None,
    width: Width = None,
    heads: Heads = None,
    sequence: Sequence = None,
    batch: Batch = None,
    steps: Annotated[int, typer.Option(min=3, help="the first two under the memory record, the others timed")] = 5,
    log: Annotated[Path | None, typer.Option(help="where to write the execution log; default: beside the plan")] = None,
    as_json: AsJson = False,
) -> int:
    """Train under a plan and measure: peak, step time, losses. Exit 64, with all reasons, if the plan is refused.

    A measured peak over the plan's budget is said (OVER BUDGET) in text, JSON and log; the exit stays 0.
    """
    document, order = read_profile(profile), None if plan is None else read_plan(plan)
    mode = _mode(document)
    with _mindspore():
        from profiler.apply.capability import PlanRefused
        from profiler.trial import run_trial

        training = _training(mode, model, layers, width, heads, sequence, batch)
        try:
            trial = run_trial(training, steps, document, order)
        except PlanRefused as refused:
            for reason in refused.reasons:
                say(reason)
            raise typer.Exit(BAD_INPUT) from refused
    path = None
    if trial.log is not None and plan is not None:
        path = log or plan.with_name(plan.name.partition(".")[0] + ".execution.json")
        path.write_text(trial.log.json())
    figures = _figures(mode, document, trial, path)
    print(msgspec.json.encode(figures).decode() if as_json else _told(figures))
    return 0


def _figures(mode: Mode, profile: Profile, trial: Trial, path: Path | None) -> dict[str, Any]:
    figures = {
        "mode": mode.value,
        "steps": len(trial.losses),
        "losses": trial.losses,
        "peak_bytes": trial.peak_bytes,
        "excluded_bytes": excluded_bytes(profile),
        "whole_peak_bytes": trial.peak_bytes + excluded_bytes(profile),
        "predicted_peak_bytes": trial.predicted_bytes,
        "budget_bytes": trial.budget_bytes,
        "over_budget_bytes": trial.over_budget_bytes,
        "resident_peak_bytes": trial.resident_peak_bytes,
        "step_us": trial.step_us,
        "step_us_spread": trial.step_us_spread,
        "log": None if path is None else str(path),
        "execution": None,
    }
    if trial.log is not None:
        found = trial.log.document()
        figures["execution"] = found["summary"] | {"recomputed": found["recomputed"], "notes": found["notes"]}
    return figures


def _told(figures: dict[str, Any]) -> str:
    whole, predicted, budget = (figures[name] for name in ("whole_peak_bytes", "predicted_peak_bytes", "budget_bytes"))
    against = "" if predicted is None else f", predicted {predicted / MIB:.2f} MiB ({whole / predicted - 1:+.1%})"
    if budget:
        against += f", budget {budget / MIB:.2f} MiB ({whole / budget:.1%} of it{', OVER' if whole > budget else ''})"
    lines = [
        f"peak {whole / MIB:.2f} MiB measured{against}; of it {figures['excluded_bytes'] / MIB:.2f} MiB lie outside "
        "the memory record",
        f"resident {figures['resident_peak_bytes'] / MIB:.0f} MiB, "
        f"step {figures['step_us'] / 1000:.0f} ms (spread {figures['step_us_spread'] / 1000:.0f} ms), measured",
        f"losses {', '.join(f'{loss:.9g}' for loss in figures['losses'])}",
    ]
    if (done := figures["execution"]) is not None:
        lines.append(
            f"{done['actions_done']} of {done['actions']} actions carried out; {done['issued_ahead']} of "
            f"{done['copies_back']} copies back issued ahead of their consumer; log {figures['log']}"
        )
        lines += [f"note: {note}" for note in done["notes"]]
    return "\n".join(lines)


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for all that the demonstration leaves")] = Path(
        "demo-out"
    ),
    layers: Layers = None,
    width: Width = None,
    heads: Heads = None,
    sequence: Sequence = None,
    batch: Batch = None,
    as_json: AsJson = False,
) -> int:
    """The whole loop on the demo model: capture, store, plan, apply, measure. Exit 1 if a claim does not hold."""
    from hyperopt.demo.loop import DemoFailed, run_demo

    try:
        result = run_demo(output, _sizes(layers, width, heads, sequence, batch), say=_progress)
    except DemoFailed as failed:
        say(str(failed))
        return 1
    print(msgspec.json.encode(result.document()).decode() if as_json else result.told())
    return 1 if result.broken else 0


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _training(
    mode: Mode,
    model: str | None,
    layers: int | None,
    width: int | None,
    heads: int | None,
    sequence: int | None,
    batch: int | None,
) -> Training:
    from profiler.trial import demo_training, own_training, prepare

    sizes = _sizes(layers, width, heads, sequence, batch)
    if model is not None and sizes:
        raise typer.BadParameter("sizes are for the demo model", param_hint="--model")
    if model is not None and not all(model.partition(":")):
        raise typer.BadParameter(f"{model!r} is not MODULE:FUNCTION", param_hint="--model")
    prepare(mode.value)
    if model is None:
        try:
            return demo_training(**sizes)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    sys.path.insert(0, str(Path.cwd()))  # a factory of one's own lies where one works, as with `python -m`
    try:
        return own_training(model)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error


def _sizes(
    layers: int | None, width: int | None, heads: int | None, sequence: int | None, batch: int | None
) -> dict[str, int]:
    sizes = {"layers": layers, "width": width, "heads": heads, "sequence": sequence, "batch": batch}
    return {name: size for name, size in sizes.items() if size is not None}


def _folder(output: Path) -> None:
    """Found missing now, not after minutes of training."""
    if not output.parent.is_dir():
        raise typer.BadParameter(f"no folder {output.parent}", param_hint="--output")


def _mode(profile: Profile) -> Mode:
    try:
        return Mode(profile.adapter.mode)
    except ValueError:
        problem = f"captured for mode {profile.adapter.mode!r}; a plan applies only in the mode of its profile"
        raise typer.BadParameter(f"{problem}: graph or pynative", param_hint="PROFILE") from None


@contextmanager
def _mindspore() -> Iterator[None]:
    """A missing MindSpore, and a training that cannot be captured or made to follow, in one line and exit 64."""
    try:
        yield
    except ImportError as error:
        if error.name != "mindspore":
            raise
        say("MindSpore is not installed here: pip install 'hyperopt-supernode[mindspore]'")
        raise typer.Exit(BAD_INPUT) from error
    except RuntimeError as error:
        from profiler.apply.capability import PlanIgnored
        from profiler.capture.recording import CaptureError
        from profiler.trial import TrialError

        if not isinstance(error, (CaptureError, PlanIgnored, TrialError)):
            raise
        say(str(error))
        raise typer.Exit(BAD_INPUT) from error
