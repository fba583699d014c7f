"""Commands on pipeline stages: layers, stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hyperopt import layers as descriptions
from hyperopt.cli.files import INFEASIBLE, MOST_BYTES, MOST_SEED, AsJson, check_output, read_profile, say
from hyperopt.cli.place import layer_counts
from hyperopt.documents import write_bytes

MOST_STAGES, MOST_CHUNKS, MOST_MICRO_BATCHES = 512, 64, 100_000
MOST_TASKS = 1_000_000
"""Of a schedule, forwards and backwards of all chunks: half a gigabyte in the simulator."""


def register(app: typer.Typer) -> None:
    app.command("layers")(layers)
    app.command("stages")(stages)


def layers(
    sample: Annotated[
        Path, typer.Argument(metavar="SAMPLE", help="profile of one micro-batch of a short model on one device")
    ],
    counts: Annotated[
        str, typer.Option("--layers", metavar="LABEL=COUNT,..", help="the model's layers, by labels in the sample")
    ],
    hbm_bytes: Annotated[
        int | None, typer.Option(min=0, max=MOST_BYTES, help="fast memory of a device; the profile's unless given")
    ] = None,
    level_time: Annotated[
        float, typer.Option(min=0, help="seconds for each level of recomputation; 0: none is priced")
    ] = 5.0,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the search for levels")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="where to write the description")] = None,
) -> int:
    """Write the description of a model's layers that `stages` takes, from a profile of a short one."""
    from solver.joint import cut, described, passed_mb

    check_output(output)
    made = cut(read_profile(sample), layer_counts(counts))
    document = msgspec.json.format(msgspec.json.encode(described(made, level_time, seed, hbm_bytes)))
    for name, alike in made.copies.items():
        if len(alike) > 1:
            say(f"{name}: its times are the mean of {len(alike)} layers made like it, {alike[0]} to {alike[-1]}")
    say(f"{passed_mb(made):g} MB go from a layer to the next for one micro-batch: give stages transfer_times for them")
    if output is not None:
        write_bytes(document, output)
    else:
        print(document.decode())
    return 0


def stages(
    description: Annotated[Path, typer.Argument(metavar="DESCRIPTION", help="layers, times and MB, as JSON")],
    count: Annotated[int, typer.Option("--stages", min=1, max=MOST_STAGES, help="pipeline stages")],
    micro_batches: Annotated[int, typer.Option(min=1, max=MOST_MICRO_BATCHES, help="micro-batches of a step")],
    schedule: Annotated[
        str | None,
        typer.Option(help="1f1b, interleaved, gpipe or zero-bubble; 1f1b, or interleaved with --virtual above 1"),
    ] = None,
    virtual: Annotated[int, typer.Option(min=1, max=MOST_CHUNKS, help="chunks of layers a stage")] = 1,
    objective: Annotated[str, typer.Option(help="makespan, slowest or folded")] = "makespan",
    min_layers: Annotated[int, typer.Option(min=0, help="layers that each stage and chunk must hold")] = 1,
    time_limit: Annotated[float, typer.Option(min=0, help="seconds")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the search")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="where to write the answer in JSON")] = None,
    timeline: Annotated[Path | None, typer.Option(help="where to draw the time line (.svg, else text)")] = None,
    as_json: AsJson = False,
) -> int:
    """Layers to pipeline stages, with a level of recomputation or offload for each. Exit 0: a split; 3: none fits."""
    from solver.stages import NoPlanError, Objective, Request, Schedule, answer, grouped_answer, place, solve
    from solver.stages import problem as problem_of
    from solver.stages.picture import draw
    from solver.stages.problem import parts

    check_output(output)
    check_output(timeline, "--timeline")
    told, warnings = descriptions.load(description.read_bytes())
    for warning in warnings:
        say(f"{description.name}: {warning}")
    order = _one_of(schedule or ("interleaved" if virtual > 1 else "1f1b"), Schedule, "--schedule")
    aim = _one_of(objective, Objective, "--objective")
    if virtual > 1 and order != "interleaved":
        raise typer.BadParameter(f"{order} has one chunk a stage: give --schedule interleaved", param_hint="--virtual")
    each = parts(order)
    if each * count * virtual * micro_batches > MOST_TASKS:
        problem = f"stages x virtual x micro-batches is above {MOST_TASKS // each}"
        raise typer.BadParameter(problem, param_hint="--micro-batches")
    asked = Request(stages=count, micro_batches=micro_batches, schedule=order, chunks=virtual, min_layers=min_layers)
    try:
        if told.pool:
            grouped = place(told, asked, aim, time_limit, seed)
            solution, document = grouped.solution, grouped_answer(grouped, told, asked)
        else:
            solution = solve(problem_of(told, asked), aim, time_limit, seed)
            document = answer(solution)
    except NoPlanError as none:
        if as_json:
            status = "infeasible" if none.proven else "none found"
            print(msgspec.json.encode({"status": status, "why": str(none)}).decode())
        say(f"{description.name}: {none}")
        return INFEASIBLE
    if output is not None:
        write_bytes(msgspec.json.format(msgspec.json.encode(document)), output)
    if timeline is not None:
        write_bytes(draw(solution.problem, solution.split, svg=timeline.suffix == ".svg").encode(), timeline)
    print(msgspec.json.encode(document).decode() if as_json else "\n".join(_lines(document)))
    return 0


def _one_of(text: str, kind: Any, option: str) -> Any:
    try:
        return msgspec.convert(text, kind)
    except msgspec.ValidationError:
        known = ", ".join(kind.__args__)
        raise typer.BadParameter(f"{text!r} is not one of {known}", param_hint=option) from None


def _lines(told: dict[str, Any]) -> list[str]:
    """A line for the whole and one for each stage."""
    lines = [
        f"makespan {told['makespan']:g} (simulated), {told['objective']} {told['value']:g}, bound {told['bound']:g}, "
        f"gap {100 * told['gap']:.3f} %, {told['status']}: {told['stop_reason']}; {told['seconds']:.1f} s; "
        f"uniform {told['uniform']['makespan']:g}" + ("" if told["uniform"]["fits"] else " (does not fit)")
    ]
    if "zero_bubble" in told:
        how = told["zero_bubble"]
        lines.append(
            f"{how['ahead']} forwards ahead for each stage behind, W at most {how['lag']} micro-batches after B"
        )
    if "spmd" in told:
        equal = told["spmd"]
        lines.append("groups " + " | ".join(f"{g['devices']} {g['name']}" for g in told["groups"]) + "; equal groups: "
                     + ("none" if equal is None else f"{equal['value']:g}"))  # fmt: skip
    for s, held in enumerate(told["layers"]):
        levels = [
            f"{name} {'/'.join(map(str, rows[s]))}"
            for kind in ("recompute", "offload")
            for name, rows in told[kind].items()
            if any(rows[s]) and name != "none"
        ]
        limit = told["limits"][s]
        lines.append(
            f"stage {s}: layers {'/'.join(map(str, held))}"
            + (f", {', '.join(levels)}" if levels else "")
            + f"; peak {told['peak'][s]:g} MB"
            + ("" if limit is None else f" of {limit:g}")
            + f", {told['alive_layers'][s]} layers' activations alive"
        )
    return lines
