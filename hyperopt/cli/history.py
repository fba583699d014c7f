"""The command history: where a branch's figures changed, from the answers of its checks or from the server's list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from hyperopt.cli.files import AsJson, answer, plain
from hyperopt.cli.remote import ServerUrl
from hyperopt.cli.remote import answers as answering
from hyperopt.documents import DocumentError
from hyperopt.gate.history import Answer, changes, of_answers


def register(app: typer.Typer) -> None:
    app.command("history")(history)


def history(
    answers: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[ANSWER]...",
            help="of `hyperopt check -o`, oldest first; without a commit in it, each named as its commit",
        ),
    ] = None,
    branch: Annotated[str | None, typer.Option(help="instead: the checks of it that the server keeps")] = None,
    model: Annotated[str | None, typer.Option(help="for --branch; all unless given")] = None,
    project: Annotated[str | None, typer.Option(help="for --branch")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="for --branch: newest checks to look at")] = 200,
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """Say where memory or times of a branch changed, and between which commits. Advice: exit 0 whatever it says."""
    if (branch is None) == (not answers):
        raise typer.BadParameter("give answers of checks, or --branch, and not both", param_hint="ANSWER")
    if branch is not None:
        with answering(server) as service:
            kinds = service.history(branch, model, project, limit)
        told = [plain(line) for kind in kinds for line in _kind(kind).splitlines()] or [f"no checks on {branch}"]
        answer(json.dumps(kinds) if as_json else "\n".join(told))
        return 0
    series = of_answers([_read(path) for path in answers or ()])
    found = changes(series)
    if as_json:
        answer(msgspec.json.encode(found).decode())
    else:
        count = len(answers or ())
        lines = [plain(change.told) for change in found]
        answer("\n".join(lines) or f"no change in {len(series)} series of {count} runs")
    return 0


def _kind(found: dict[str, Any]) -> str:
    kind = [found["model"], found["device"], f"{found['framework']} {found['framework_version']}".strip()]
    kind += [found["mode"], f"rank {found['rank']} of {found['world_size']}"]
    told = [f"  {change['told']}" for change in found["changes"]] or ["  no change"]
    return "\n".join([f"{', '.join(part for part in kind if part)}: {found['checks']} runs", *told])


def _read(path: Path) -> tuple[str, Answer]:
    try:
        told = msgspec.json.decode(path.read_bytes(), type=Answer)
    except msgspec.DecodeError as error:
        remedy = "give what `hyperopt check -o` wrote"
        raise DocumentError(path.name, f"no answer of a check: {error}", remedy) from error
    return told.commit or path.stem, told
