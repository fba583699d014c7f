"""Commands on what branches are compared with: baselines, accept."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from hyperopt.cli.files import AsJson
from hyperopt.cli.remote import ServerUrl, answers

Branch = Annotated[str, typer.Option(help="of the project")]


def register(app: typer.Typer) -> None:
    app.command("baselines")(baselines)
    app.command("accept")(accept)


def baselines(
    branch: Annotated[str | None, typer.Option(help="of the project; all unless given")] = None,
    project: Annotated[str | None, typer.Option(help="all unless given")] = None,
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """List what branches are compared with, and which of it is frozen or stale."""
    with answers(server) as service:
        found = service.baselines(project, branch)
    print(json.dumps(found) if as_json else "\n".join(map(_line, found)) or "nothing was accepted yet")
    return 0


def accept(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="id of a stored profile")],
    who: Annotated[str, typer.Option(help="who accepts it")],
    why: Annotated[str, typer.Option(help="for what reason; kept")],
    branch: Branch = "main",
    replaces: Annotated[
        str | None, typer.Option(metavar="ETAG", help="the baseline that you saw, by `baselines`; none: the first")
    ] = None,
    check: Annotated[str | None, typer.Option(help="of this profile against that baseline: check-...")] = None,
    accept_regression: Annotated[
        bool, typer.Option("--accept-regression", help="although that check found a regression")
    ] = False,
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """Make a stored profile what its branch is compared with. Exit 64: refused, with the reason."""
    for text, name in ((who, "--who"), (why, "--why")):
        if not text.strip():
            raise typer.BadParameter("say it in a word or more: it is kept", param_hint=name)
    with answers(server) as service:
        found = service.accept(
            profile, who=who, why=why, branch=branch, etag=replaces, check=check, accept_regression=accept_regression
        )
    print(json.dumps(found) if as_json else _line(found))
    return 0


def _line(one: dict[str, Any]) -> str:
    kind = [one["model"], one["device"], f"{one['framework']} {one['framework_version']}".strip(), one["mode"]]
    kind.append(f"rank {one['rank']} of {one['world_size']}")
    last = one["history"][0]
    marks = "".join(f", {mark}" for mark in ("frozen", "stale") if one[mark])
    return (
        f"{one['project']} {one['branch']}: {one['profile']} ({', '.join(part for part in kind if part)}), "
        f"accepted {one['accepted_at'][:10]}, {one['checks']} checks since{marks}\n"
        f"  {last['act']} by {last['who']}: {last['why']}\n"
        f"  etag {one['etag']}"
    )
