"""The command `traces`: made-up steps of published models, for tests and benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hyperopt.cli.files import MOST_SEED, STANDARD_OUTPUT, AsJson, check_output
from hyperopt.documents import canonical, write


def register(app: typer.Typer) -> None:
    app.command("traces")(traces)


def traces(
    name: Annotated[str | None, typer.Argument(help="of a trace; --list names them")] = None,
    operators: Annotated[int | None, typer.Option(help="how many, give or take 10 %")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of durations, lengths, popular experts")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="where to write the profile; .gz and .zst compress")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="name the traces; with --operators, their figures as a table (simulated)")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Make up a training or inference step of a published model: NAME --operators N -o PROFILE."""
    from hyperopt.testing.traces import TRACES, figures, generate

    if list_:
        _list(operators, seed, as_json)
        return 0
    if name is None or name not in TRACES:
        problem = "name a trace" if name is None else f"no trace {name!r}"
        raise typer.BadParameter(f"{problem}; there are {', '.join(TRACES)}", param_hint="NAME")
    if operators is None:
        raise typer.BadParameter("say how many operators, for example 2000", param_hint="--operators")
    check_output(output)
    try:
        profile = generate(name, operators, seed)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--operators") from error
    if output is None or output in STANDARD_OUTPUT:
        print(canonical(profile).decode())
        return 0
    write(profile, output)
    found = figures(profile)
    if as_json:
        print(msgspec.json.encode({"profile": str(output), "figures": found}).decode())
    else:
        print(
            f"{output}: {found.operators} operators, {found.storages} storages; peak "
            f"{found.peak_bytes / 2**30:.2f} GiB, step {found.step_us / 1000:.0f} ms (simulated)"
        )
    return 0


def _list(operators: int | None, seed: int, as_json: bool) -> None:
    from hyperopt.testing.traces import TRACES, figures, generate

    if operators is None:
        told = {trace.name: {"about": trace.about, "shape": trace.recipe.shape.name} for trace in TRACES.values()}
        if as_json:
            print(msgspec.json.encode(told).decode())
            return
        for trace in TRACES.values():
            print(f"{trace.name:28} {trace.about}")
        return
    try:
        found = {name: figures(generate(name, operators, seed)) for name in TRACES}
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--operators") from error
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    print("| trace | operators | peak GiB | at the peak, % by kind | working set / peak | step ms | link ms |")
    print("|---|---|---|---|---|---|---|")
    for name, f in found.items():
        shares = sorted(((size / f.peak_bytes, kind) for kind, size in f.at_peak.items()), reverse=True)
        kinds = ", ".join(f"{kind} {100 * share:.0f}" for share, kind in shares if share >= 0.02)
        print(
            f"| {name} | {f.operators} | {f.peak_bytes / 2**30:.1f} | {kinds} | {f.working_set / f.peak_bytes:.0%} "
            f"| {f.step_us / 1000:.0f} | {f.link_us / 1000:.0f} |"
        )
