"""`hyperopt check` on stored profiles and runs, through a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hyperopt.client import Client
from hyperopt.settings import Settings
from tests.api.conftest import serving
from tests.cli.command import Cli
from tests.samples import encoded, worked_example


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(Settings(data_dir=tmp_path_factory.mktemp("store"), worker=False)) as url:
        yield url


def test_stored_profiles_and_runs_are_compared(cli: Cli, server: str, tmp_path: Path) -> None:
    example = worked_example(name="before")
    larger = msgspec.structs.replace(example.storages[0], bytes=example.storages[0].bytes + 1)
    changed = msgspec.structs.replace(
        example, storages=(larger, *example.storages[1:]), run=msgspec.structs.replace(example.run, name="after")
    )
    with Client(server) as service:
        before, after = service.upload(encoded(example)), service.upload(encoded(changed))
    for baseline, candidate in ((before["id"], after["id"]), (str(before["run"]), str(after["run"]))):
        at = ("--server", server, "--json")
        assert cli("check", "--baseline", baseline, "--candidate", baseline, *at) == 0
        assert cli("check", "--baseline", baseline, "--candidate", candidate, *at) == 1
        assert cli.answer["memory"]["difference_bytes"] == 1
    assert f"run {after['run']}: rank 0 is {after['id']}" in cli.err


def test_every_rank_of_a_run_is_judged_for_memory(cli: Cli, server: str) -> None:
    """Rank 1 has grown; rank 2 was stored of one run only."""

    def run(name: str, ranks: dict[int, int]) -> str:
        stored = None
        for rank, more in ranks.items():
            example = worked_example(name=name, rank=rank, world_size=3)
            larger = msgspec.structs.replace(example.storages[0], bytes=example.storages[0].bytes + more)
            profile = msgspec.structs.replace(example, storages=(larger, *example.storages[1:]))
            with Client(server) as service:
                stored = service.upload(encoded(profile))
        assert stored is not None
        return str(stored["run"])

    before, after = run("ranks before", {0: 0, 1: 0}), run("ranks after", {0: 0, 1: 64, 2: 0})
    assert cli("check", "--baseline", before, "--candidate", after, "--server", server, "--json") == 1
    assert cli.answer["reasons"][0].startswith("rank 1: ") and cli.answer["memory"]["difference_bytes"] == 64
    assert "rank 2 is only in the candidate: not judged" in cli.answer["notes"]
    assert "memory of 2 ranks is judged, the worst is rank 1" in cli.answer["notes"]


@pytest.mark.parametrize("unknown", ["profile-0000", "999"])
def test_what_is_not_stored_is_bad_input(cli: Cli, server: str, unknown: str) -> None:
    assert cli("check", "--baseline", unknown, "--candidate", unknown, "--server", server) == 64
    assert cli.err.startswith("hyperopt: ") and unknown in cli.err


def test_a_branch_has_what_was_accepted_on_it(cli: Cli, server: str, tmp_path: Path) -> None:
    """From the first acceptance to the refusal of a regression, by commands alone."""
    example = worked_example(name="accepted", model="branch")
    larger = msgspec.structs.replace(example.storages[0], bytes=example.storages[0].bytes + 5)
    worse = msgspec.structs.replace(
        example, storages=(larger, *example.storages[1:]), run=msgspec.structs.replace(example.run, name="worse")
    )
    with Client(server) as service:
        first, second = (str(service.upload(encoded(profile))["id"]) for profile in (example, worse))
    at, by = ("--server", server), ("--who", "ada", "--why", "release")
    asked = ("check", "--candidate", second, "--branch", "next", *at)
    assert cli("baselines", "--branch", "next", *at) == 0 and "nothing" in cli.out
    # A new branch is no bad input: there is nothing to compare with yet.
    assert cli(*asked) == 2 and cli.out.startswith("inconclusive: ") and "accept" in cli.out
    for doubtful in (("--who", " ", "--why", "x"), ("--who", "x", "--why", "\n")):
        assert cli("accept", first, "--branch", "next", *doubtful, *at) == 64
    assert cli("accept", first, "--branch", "next", *by, *at) == 0 and "accepted by ada: release" in cli.out
    assert cli(*asked, "--commit", "1f", "-o", tmp_path / "check.json", "--junit", tmp_path / "junit.xml") == 1
    check = cli.err.split()[1].rstrip(":")
    assert cli.out.startswith("regression: replayed peak") and first in cli.err and "failure" in (
        tmp_path / "junit.xml"
    ).read_text()
    kept = msgspec.json.decode((tmp_path / "check.json").read_bytes())
    assert (kept["check"], kept["branch"], kept["commit"]) == (check, "next", "1f") and kept["at"]
    assert cli(*asked, "--memory-threshold", "5") == 0
    assert cli("baselines", "--branch", "next", *at, "--json") == 0
    (etag,) = (one["etag"] for one in cli.answer)
    assert cli("accept", second, "--branch", "next", *by, *at, "--check", check) == 64  # without what it replaces
    replacing = ("accept", second, "--branch", "next", *by, *at, "--check", check, "--replaces", etag)
    assert cli(*replacing) == 64 and "regression" in cli.err
    assert cli(*replacing, "--accept-regression", "--json") == 0 and cli.answer["profile"] == second
    assert "--accept-regression" not in cli.err and cli("baselines", "--branch", "next", *at) == 0
    assert "accepted by ada (--accept-regression): release" in cli.out
    assert cli(*asked, "--baseline", first) == 64
    assert cli("check", "--baseline", first, "--candidate", first, "--head", "pull/7", *at) == 64

    assert cli("history", "--branch", "next", *at) == 0 and "branch, " in cli.out and "no change" in cli.out
    assert cli("history", "--branch", "next", *at, "--json") == 0 and cli.answer[0]["checks"] == 1
    assert cli(*asked, "--head", "pull/7", "--commit", "2e") == 0
    assert cli("history", "--branch", "next", *at, "--json") == 0 and cli.answer[0]["checks"] == 1
    assert cli("history", "--branch", "nowhere", *at) == 0 and "no checks" in cli.out
    assert cli("history") == cli("history", tmp_path / "check.json", "--branch", "next") == 64


def test_baselines_are_frozen_and_thawed_and_marked_as_stale(cli: Cli, server: str) -> None:
    with Client(server) as service:
        id = str(service.upload(encoded(worked_example(name="held", model="held")))["id"])
    at, by = ("--server", server, "--json"), ("--who", "grace", "--why", "release")
    assert cli("accept", id, "--branch", "held", *by, *at) == 0
    held, etag = cli.answer["id"], cli.answer["etag"]
    assert cli("freeze", held, *by, "--etag", "0", *at) == 64 and "not the one you saw" in cli.err
    assert cli("freeze", held, "--who", " ", "--why", "x", "--etag", etag, *at) == 64 and "$.who" in cli.err
    assert cli("freeze", held, *by, "--etag", etag, *at) == 0 and cli.answer["frozen"]
    frozen = cli.answer["etag"]
    assert cli("baselines", "--branch", "held", "--server", server) == 0
    assert ", frozen" in cli.out and f"{held}, etag {frozen}" in cli.out and "stale" not in cli.out
    assert cli("baselines", "--branch", "held", "--stale-after-days", "0.000001", *at) == 0 and cli.answer[0]["stale"]
    assert cli("thaw", held, *by, "--etag", frozen, *at) == 0 and not cli.answer["frozen"]
