"""What `check` compares: profile files, folders with one a rank, stored profiles, and stored runs with all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hyperopt import profile as profiles
from hyperopt.cli.files import read_profile, say
from hyperopt.cli.remote import answers
from hyperopt.documents import DocumentError
from hyperopt.profile import Profile

if TYPE_CHECKING:
    from hyperopt.client import Client

WHAT = "a profile file, a folder of them (one a rank), or the id of a stored profile (profile-...) or run (its number)"
ENDINGS = (".json", ".json.gz", ".json.zst")


@dataclass(frozen=True)
class Sides:
    """`pair`: baseline and candidate of the lowest rank that both have; `others`: of the further ranks. `notes`: what
    has no partner."""

    pair: tuple[Profile, Profile]
    others: tuple[tuple[Profile, Profile], ...] = ()
    notes: tuple[str, ...] = ()


def both(baseline: str, candidate: str, server: str | None) -> Sides:
    """Of each side all ranks; where they have none in common, the lowest of each (which `check` then refuses)."""
    before, after = ({one.run.rank: one for one in _ranks(given, server)} for given in (baseline, candidate))
    common = sorted(before.keys() & after.keys())
    if not common:
        return Sides((before[min(before)], after[min(after)]))
    notes = [
        f"rank {', '.join(map(str, only))} is only in the {name}: not judged"
        for name, one, other in (("baseline", before, after), ("candidate", after, before))
        if (only := sorted(one.keys() - other.keys()))
    ]
    pairs = [(before[rank], after[rank]) for rank in common]
    return Sides(pairs[0], tuple(pairs[1:]), tuple(notes))


def alone(candidate: str, server: str | None) -> Profile:
    """The profile of one side; of several ranks the lowest, which is said."""
    found = _ranks(candidate, server)
    if len(found) > 1:
        say(f"{candidate}: rank {found[0].run.rank} is judged; the others ({len(found) - 1}) are not")
    return found[0]


def _ranks(given: str, server: str | None) -> list[Profile]:
    """A file or folder of that name, else the stored profile or run of that id; lowest rank first."""
    path = Path(given)
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.name.endswith(ENDINGS)]
        if not files:
            raise FileNotFoundError(f"{given}: no profile in this folder ({', '.join(ENDINGS)})")
        return _by_rank(given, [read_profile(file) for file in files])
    if path.exists():
        return [read_profile(path)]
    if not given.startswith("profile-") and not given.isdecimal():
        raise FileNotFoundError(f"{given}: neither a file nor the id of a stored profile or run")
    with answers(server) as service:
        ids = [given] if given.startswith("profile-") else _of_run(service, int(given))
        return _by_rank(given, [_stored(service, given, id) for id in ids])


def _by_rank(given: str, found: list[Profile]) -> list[Profile]:
    ordered = sorted(found, key=lambda one: one.run.rank)
    for one, next in pairwise(ordered):
        if one.run.rank == next.run.rank:
            raise DocumentError("$.run.rank", f"{given} has rank {one.run.rank} twice", "give each rank once")
    return ordered


def _stored(service: Client, given: str, id: str) -> Profile:
    document, warnings = profiles.load(service.document(id))
    for warning in warnings:
        say(f"{given}: {warning}")
    return document


def _of_run(service: Client, run: int) -> list[str]:
    """The profiles of a stored run, newest of each rank."""
    newest: dict[int, str] = {}
    for found in service.profiles(limit=500):
        if found["run"] == run:
            newest.setdefault(int(found["rank"]), str(found["id"]))
    if not newest:
        raise FileNotFoundError(f"run {run} is not among the 500 newest stored profiles: give a profile's id")
    told = ", ".join(f"rank {rank} is {id}" for rank, id in sorted(newest.items())[:8])
    say(f"run {run}: {told}" + (f", and {len(newest) - 8} more" if len(newest) > 8 else ""))
    return [newest[rank] for rank in sorted(newest)]
