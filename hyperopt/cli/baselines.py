"""Commands on what branches are compared with: baselines, accept, freeze, thaw."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from hyperopt.cli.files import AsJson
from hyperopt.cli.remote import ServerUrl, answers

Who = Annotated[str, typer.Option(help="who does it")]
Why = Annotated[str, typer.Option(help="for what reason; kept")]
Held = Annotated[str, typer.Argument(metavar="BASELINE", help="its id, by `baselines`")]
Seen = Annotated[str, typer.Option("--etag", help="of the baseline as you saw it, by `baselines`")]
Branch = Annotated[str, typer.Option(help="of the project")]


def register(app: typer.Typer) -> None:
    app.command("baselines")(baselines)
    app.command("accept")(accept)
    app.command("freeze")(freeze)
    app.command("thaw")(thaw)


def baselines(
    branch: Annotated[str | None, typer.Option(help="of the project; all unless given")] = None,
    project: Annotated[str | None, typer.Option(help="all unless given")] = None,
    stale_after_days: Annotated[float, typer.Option(min=1e-6, max=36500, help="an older one is marked as stale")] = 30,
    server: ServerUrl = None,
    as_json: AsJson = False,
) -> int:
    """List what branches are compared with, and which of it is frozen or stale."""
    with answers(server) as service:
        found = service.baselines(project, branch, stale_after_days)
    print(json.dumps(found) if as_json else "\n".join(map(_line, found)) or "nothing was accepted yet")
    return 0


def accept(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="id of a stored profile")],
    who: Who,
    why: Why,
    branch: Branch = "main",
    replaces: Annotated[
        str | None, typer.Option(metavar="ETAG", help="the baseline that you saw, by `baselines`; none: the first")
    ] = None,
    check: Annotated[str | None, typer.Option(help="of this profile against that baseline: check-...")] = None,
    accept_regression: Annotated[
        bool, typer.Option("--accept-regression", help="although a check of it found a regression; kept")
    ] = False,
    accept_inconclusive: Annotated[
        bool, typer.Option("--accept-inconclusive", help="although its checks do not all pass; kept")
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
            profile,
            who=who,
            why=why,
            branch=branch,
            etag=replaces,
            check=check,
            accept_regression=accept_regression,
            accept_inconclusive=accept_inconclusive,
        )
    print(json.dumps(found) if as_json else _line(found))
    return 0


def freeze(baseline: Held, who: Who, why: Why, etag: Seen, server: ServerUrl = None, as_json: AsJson = False) -> int:
    """Keep a baseline from being replaced. Exit 64: refused, with the reason."""
    return _hold(baseline, True, who, why, etag, server, as_json)


def thaw(baseline: Held, who: Who, why: Why, etag: Seen, server: ServerUrl = None, as_json: AsJson = False) -> int:
    """Let a frozen baseline be replaced again. Exit 64: refused, with the reason."""
    return _hold(baseline, False, who, why, etag, server, as_json)


def _hold(id: str, frozen: bool, who: str, why: str, etag: str, server: str | None, as_json: bool) -> int:
    with answers(server) as service:
        found = service.freeze(id, frozen, who=who, why=why, etag=etag)
    print(json.dumps(found) if as_json else _line(found))
    return 0


def _line(one: dict[str, Any]) -> str:
    kind = [one["model"], one["device"], f"{one['framework']} {one['framework_version']}".strip(), one["mode"]]
    kind.append(f"rank {one['rank']} of {one['world_size']}")
    last = one["history"][0]
    marks = "".join(f", {mark}" for mark in ("frozen", "stale") if one[mark])
    named = [what for what in ("regression", "inconclusive") if last[f"accept_{what}"]]
    spite = f" (--accept-{', --accept-'.join(named)})" if named else ""
    return (
        f"{one['project']} {one['branch']}: {one['profile']} ({', '.join(part for part in kind if part)}), "
        f"accepted {one['accepted_at'][:10]}, {one['checks']} checks since{marks}\n"
        f"  {last['act']} by {last['who']}{spite}: {last['why']}\n"
        f"  {one['id']}, etag {one['etag']}"
    )
