"""The commands, as the console script runs them; servers and workers in processes of their own."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from hyperopt.cli import main
from hyperopt.client import Client
from hyperopt.profile import Profile
from hyperopt.settings import GIB, SettingError, Settings, from_environment, table, variable
from hyperopt.store import schema
from tests.samples import encoded

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from hyperopt.cli import main; main()"]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object, **environment: str) -> Done:
    """The command in this process: starting Python for each would be most of the time."""
    said, complained = StringIO(), StringIO()
    with (
        patch.object(sys, "argv", ["hyperopt", *map(str, arguments)]),
        patch.dict(os.environ, environment),
        redirect_stdout(said),
        redirect_stderr(complained),
        pytest.raises(SystemExit) as end,
    ):
        main()
    assert isinstance(end.value.code, int)
    return Done(end.value.code, said.getvalue(), complained.getvalue())


@contextmanager
def process(*arguments: object) -> Iterator[Any]:
    """A command that goes on until told to stop; what it said first, as JSON. It must stop in good order."""
    started = subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert started.stdout is not None
    try:
        yield json.loads(started.stdout.readline())
    finally:
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=60)
    assert started.returncode == 0


def refused(done: Done, words: str) -> None:
    """One line that says so, and exit 64."""
    assert done.returncode == 64, done.stderr
    assert words in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_upload_and_show(server: str, tmp_path: Path, fresh: Callable[..., Profile]) -> None:
    files = []
    for rank in range(2):
        file = tmp_path / f"rank_{rank}.json.gz"
        file.write_bytes(gzip.compress(encoded(fresh(name="cli", rank=rank, world_size=2))))
        files.append(file)
    done = run("upload", *files, "--project", "cli", "--server", server, "--json")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert (first["rank"], second["rank"], first["run"]) == (0, 1, second["run"])
    shown = run("show", first["id"], HYPEROPT_SERVER_URL=server)
    assert "10 operators, 3 storages, peak 768.00 MiB (replayed)" in shown.stdout
    assert json.loads(run("show", first["id"], "--json", "--server", server).stdout) == first
    peak = run("show", first["id"], "--ask", "peak", "--server", server).stdout
    assert "peak 768.00 MiB at operator 4 (op4)" in peak and "512.00  activation  layers.0        A" in peak
    idle = json.loads(run("show", first["id"], "--ask", "idle", "--limit", 1, "--json", "--server", server).stdout)
    assert [storage["name"] for storage in idle] == ["A"]
    assert "layers.0" in run("show", first["id"], "--ask", "accesses", "--server", server).stdout


def test_show_a_job_and_its_plan(server: str, fresh: Callable[[], Profile]) -> None:
    with Client(server) as client:
        id = client.plan(client.upload(encoded(fresh()))["id"])["id"]
        infeasible = client.plan(client.profiles()[0]["id"], tiers={"host": 1})["id"]
    done = run("show", id, "--wait", "--server", server)
    assert "succeeded" in done.stdout and "baselines: step 0.120 ms, bound 0.099 ms" in done.stderr
    plan = done.stdout.split("hyperopt show ")[1].strip()
    assert plan in run("show", plan, "--server", server).stdout
    assert json.loads(run("show", plan, "--json", "--server", server).stdout)["plan_id"] == plan
    assert "no plan exists below 7 bytes" in run("show", infeasible, "--wait", "--server", server).stdout


def test_what_is_wrong_is_one_line_and_exit_64(server: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": "hyperopt.profile/2"}')
    refused(run("upload", bad, "--server", server), "$.format: major version of 'hyperopt.profile/2'")
    refused(run("upload", tmp_path / "missing.json", "--server", server), "missing.json")
    refused(run("show", "job-nobody", "--server", server), "there is no job job-nobody")
    refused(run("show", "nonsense", "--server", server), "not the id of")
    refused(run("show", "plan-1", "--ask", "peak", "--server", server), "ask a profile")
    refused(run("serve", HYPEROPT_PORT="many"), "HYPEROPT_PORT='many'")
    refused(run("db", "current", "--database-url", "nonsense"), "not a database URL")
    refused(run("db", "current", "--database-url", "sqlite:////proc/no/such.sqlite"), "/proc/no")
    refused(run("db", "upgrade", "9999", "--data-dir", tmp_path), "9999")


def test_no_server_is_exit_69() -> None:
    done = run("show", "job-1", "--server", "http://127.0.0.1:9")
    assert done.returncode == 69 and "hyperopt serve" in done.stderr


def test_the_database_from_the_command_line(tmp_path: Path) -> None:
    def db(*arguments: str) -> Any:
        done = run("db", *arguments, "--data-dir", tmp_path, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["revision"]

    assert [db("current"), db("upgrade"), db("downgrade", "base"), db("upgrade", "head")] == [
        None,
        schema.newest(),
        None,
        schema.newest(),
    ]
    told = f"revision {schema.newest()}, this program needs {schema.newest()}"
    assert told in run("db", "current", "--data-dir", tmp_path).stdout


def test_a_server_and_workers_in_processes_of_their_own(tmp_path: Path, fresh: Callable[[], Profile]) -> None:
    with (
        process("serve", "--port", 0, "--data-dir", tmp_path, "--no-worker") as serve,
        Client(serve["url"]) as client,
    ):
        profile = client.upload(encoded(fresh()))["id"]
        ids = [client.plan(profile, hbm_bytes=700 * 2**20 + i, time_limit_s=20.0)["id"] for i in range(2)]
        ids.append(client.plan(profile, hbm_bytes=1)["id"])
        assert {client.job(id)["state"] for id in ids} == {"queued"}
        with (
            process("worker", "--name", "one", "--data-dir", tmp_path),
            process("worker", "--name", "two", "--data-dir", tmp_path),
        ):
            refused(run("worker", "--name", "one", "--data-dir", tmp_path), "HYPEROPT_WORKER_NAME")
            jobs = [client.wait(id, poll_s=0.1) for id in ids]
        assert [job["state"] for job in jobs] == ["succeeded"] * 3
        assert [job["result"]["status"] for job in jobs] == ["planned", "planned", "infeasible"]
        plan = client.fetch_plan(jobs[0]["result"]["plan_id"])
        assert client.validate(profile, plan) == [] and plan.predicted is not None
        assert plan.predicted.peak_bytes <= 700 * 2**20
        numbers = jobs[2]["result"]["infeasible"]
        assert 1 < numbers["lower_bound_bytes"] <= numbers["reachable_bytes"]


def test_a_port_in_use_is_said_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(run("serve", "--port", port, "--data-dir", tmp_path), "in use")


def test_every_setting_is_documented() -> None:
    documented = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert table() in documented, "paste hyperopt.settings.table() into docs/reference/settings.md"


def test_settings_come_from_what_is_given_then_the_environment() -> None:
    environment = {
        "HYPEROPT_PORT": "1",
        "HYPEROPT_DATA_DIR": "/x",
        "HYPEROPT_WORKER": "no",
        "HYPEROPT_SOLVE_MEMORY_BYTES": "2G",
        "HYPEROPT_MAX_TIME_LIMIT_S": "",
    }
    settings = from_environment(environment, port=2, host=None)
    assert (settings.port, settings.host, settings.worker) == (2, "127.0.0.1", False)
    assert (settings.solve_memory_bytes, settings.max_time_limit_s) == (2 * GIB, 3600)
    assert (settings.store_url, settings.queue_url) == (
        "sqlite:////x/hyperopt.sqlite",
        "sqlite:////x/jobs.sqlite",
    )


def test_on_postgres_the_queue_shares_the_database() -> None:
    url = "postgresql://user@host/hyperopt"
    assert Settings(database_url=url).queue_url == url
    assert Settings(database_url=url, jobs_database_url="sqlite:////y").queue_url == "sqlite:////y"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "70000"),
        ("port", "x"),
        ("max_upload_bytes", "0"),
        ("max_upload_bytes", "1X"),
        ("worker", "perhaps"),
        ("worker_jobs", "-1"),
        ("max_time_limit_s", "inf"),
        ("max_time_limit_s", "nan"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingError, match=f"{variable(name)}='{text}'"):
        from_environment({variable(name): text})
