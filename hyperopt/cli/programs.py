"""The command on programs that are no chain: programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hyperopt import programs as descriptions
from hyperopt.cli.files import INFEASIBLE, MOST_SEED, AsJson, check_output, say
from hyperopt.documents import write_bytes


def register(app: typer.Typer) -> None:
    app.command("programs")(programs)


def programs(
    description: Annotated[Path, typer.Argument(metavar="DESCRIPTION", help="programs, calls and devices, as JSON")],
    time_limit: Annotated[float, typer.Option(min=0, help="seconds")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the search")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="where to write the answer in JSON")] = None,
    timeline: Annotated[Path | None, typer.Option(help="where to draw the time line (.svg, else text)")] = None,
    as_json: AsJson = False,
) -> int:
    """Programs that are no chain (encoders, actors, critics) to groups of devices. Exit 0: a plan; 3: none fits."""
    from solver.programs import answer, solve
    from solver.programs.picture import draw
    from solver.stages import NoPlanError

    check_output(output)
    check_output(timeline, "--timeline")
    told, warnings = descriptions.load(description.read_bytes())
    for warning in warnings:
        say(f"{description.name}: {warning}")
    try:
        solution = solve(told, time_limit, seed)
    except NoPlanError as none:
        if as_json:
            status = "infeasible" if none.proven else "none found"
            print(msgspec.json.encode({"status": status, "why": str(none)}).decode())
        say(f"{description.name}: {none}")
        return INFEASIBLE
    document = answer(told, solution)
    if output is not None:
        write_bytes(msgspec.json.format(msgspec.json.encode(document)), output)
    if timeline is not None:
        write_bytes(draw(told, solution.best, svg=timeline.suffix == ".svg").encode(), timeline)
    print(msgspec.json.encode(document).decode() if as_json else "\n".join(_lines(document)))
    return 0


def _lines(told: dict[str, Any]) -> list[str]:
    """A line for the whole and one for each group."""

    def rival(name: str) -> str:
        return "none fits" if told[name] is None else f"{told[name]['makespan']:g}"

    lines = [
        f"makespan {told['makespan']:g} (simulated), bound {told['bound']:g}, gap {100 * told['gap']:.3f} %, "
        f"{told['status']}: {told['stop_reason']}; {told['seconds']:.1f} s, {told['ways']} ways; all on all devices in "
        f"turn {rival('together')}, best equal groups {rival('equal')}"
    ]
    for g, group in enumerate(told["groups"]):
        names = [
            f"{name} ({how})" if how else name for name, how in zip(group["programs"], group["parallel"], strict=True)
        ]
        lines.append(
            f"group {g}: {group['devices']} {group['kind']}, {', '.join(names)}"
            + (f", swapped {', '.join(group['swapped'])}" if group["swapped"] else "")
            + f"; peak {group['peak']:g} MB"
            + ("" if group["limit"] is None else f" of {group['limit']:g}")
            + f", busy {100 * group['busy']:.1f} %"
        )
    return lines
