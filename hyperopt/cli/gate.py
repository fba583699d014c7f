"""The command `check`: two profiles, one verdict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from hyperopt import profile as profiles
from hyperopt.cli.files import AsJson, read_profile, say
from hyperopt.cli.remote import answers
from hyperopt.gate import Check, Policy, Threshold
from hyperopt.gate import check as judge
from hyperopt.gate.throughput import DEFAULT_TOLERANCE_PERCENT
from hyperopt.profile import Profile

if TYPE_CHECKING:
    from hyperopt.client import Client

EXIT = {"pass": 0, "regression": 1, "inconclusive": 2}

WHAT = "a profile file, or the id of a stored profile (profile-...) or run (its number)"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    baseline: Annotated[str, typer.Option(help=WHAT)],
    candidate: Annotated[str, typer.Option(help=WHAT)],
    tolerance_percent: Annotated[
        float, typer.Option(min=0, help="how much slower the measured step may be")
    ] = DEFAULT_TOLERANCE_PERCENT,
    memory_threshold: Annotated[
        str | None,
        typer.Option(
            metavar="N|N%",
            help="how much the replayed peak may grow: bytes (K, M, G, T) or percent; "
            "0 unless given, between PyNative captures 0.1%",
        ),
    ] = None,
    server: Annotated[str | None, typer.Option(help="where stored profiles are [HYPEROPT_SERVER_URL]")] = None,
    as_json: AsJson = False,
) -> int:
    """Judge a candidate against a baseline. Exit 0: pass; 1: regression; 2: inconclusive; 64: bad input."""
    policy = Policy(None if memory_threshold is None else threshold(memory_threshold), tolerance_percent)
    found = judge(_profile(baseline, server), _profile(candidate, server), policy)
    print(msgspec.json.encode(found.document()).decode() if as_json else _told(found))
    return EXIT[found.verdict]


def threshold(text: str) -> Threshold:
    """``4096``, ``64M`` or ``1.5%``."""
    if percent := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text):
        return Threshold(percent=float(percent[1]))
    if size := re.fullmatch(r"(\d+)([KMGT]?)(?:iB|B)?", text):
        return Threshold(bytes=int(size[1]) * UNITS[size[2]])
    raise typer.BadParameter(
        f"{text!r} is neither bytes (4096, 64M) nor percent (1.5%)", param_hint="--memory-threshold"
    )


def _profile(given: str, server: str | None) -> Profile:
    """A file of that name, else the stored profile of that id."""
    path = Path(given)
    if path.exists():
        return read_profile(path)
    if not given.startswith("profile-") and not given.isdecimal():
        raise FileNotFoundError(f"{given}: neither a file nor the id of a stored profile or run")
    with answers(server) as service:
        id = given if given.startswith("profile-") else _of_run(service, int(given))
        document, warnings = profiles.load(service.document(id))
    for warning in warnings:
        say(f"{given}: {warning}")
    return document


def _of_run(service: Client, run: int) -> str:
    """The profile of a stored run's lowest rank."""
    ranks = [found for found in service.profiles(limit=500) if found["run"] == run]
    if not ranks:
        raise FileNotFoundError(f"run {run} is not among the 500 newest stored profiles: give a profile's id")
    lowest = min(ranks, key=lambda found: int(found["rank"]))
    others = f"; the others ({len(ranks) - 1}) are not judged" if len(ranks) > 1 else ""
    say(f"run {run}: rank {lowest['rank']} of {lowest['world_size']}, {lowest['id']}, is judged{others}")
    return str(lowest["id"])


def _told(found: Check) -> str:
    lines = [f"{found.verdict}: {found.reasons[0]}", *(f"  {reason}" for reason in found.reasons[1:])]
    for group in found.memory.groups[:10] if found.memory.difference_bytes else ():
        of = f"{group.kind} of {group.layer}" if group.layer else group.kind
        lines.append(f"  {group.difference_bytes:+15d} bytes  {of}")
        lines += [
            f"    {held.bytes:13d} bytes  {held.name} (only at the {held.at}'s peak)" for held in group.storages[:3]
        ]
    lines += [f"  note: {note}" for note in found.notes]
    return "\n".join(lines)
