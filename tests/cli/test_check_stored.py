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
    assert f"run {after['run']}: rank 0 of 1, {after['id']}, is judged" in cli.err


@pytest.mark.parametrize("unknown", ["profile-0000", "999"])
def test_what_is_not_stored_is_bad_input(cli: Cli, server: str, unknown: str) -> None:
    assert cli("check", "--baseline", unknown, "--candidate", unknown, "--server", server) == 64
    assert cli.err.startswith("hyperopt: ") and unknown in cli.err
