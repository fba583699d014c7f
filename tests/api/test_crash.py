"""kill -9 in the middle of uploads and solves: no finished profile and no accepted job is lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from api.engine import DbosEngine
from hyperopt.client import Client
from hyperopt.profile import Profile
from hyperopt.settings import Settings
from hyperopt.store import Database, jobs, schema
from hyperopt.store.tables import Base, Rank
from tests.cost.synthetic import device
from tests.samples import encoded, large_profile

ROOT = Path(__file__).parents[2]


class Server:
    """The crash server of a data folder; started, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.api.crash_server", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdout is not None
        url = self.process.stdout.readline().strip()
        assert url, "the server did not start"
        return url

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def stop(self) -> int:
        """In good order, as SIGTERM would; the exit code."""
        assert self.process is not None
        self.process.communicate()
        return self.process.returncode


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    if server.process is not None and server.process.poll() is None:
        server.kill()


def running(client: Client, ids: list[str]) -> int:
    return sum(client.job(id)["state"] == "running" for id in ids)


def test_queued_and_running_jobs_survive_kill_9(server: Server, tmp_path: Path, fresh: Callable[[], Profile]) -> None:
    (tmp_path / "slow").touch()
    with Client(server.start()) as client:
        profile = client.upload(encoded(fresh()))["id"]
        ids = [client.plan(profile, hbm_bytes=i)["id"] for i in range(6)]
        while running(client, ids) < 2:
            time.sleep(0.02)
        server.kill()
    for _ in range(2):  # and once more, while they are being taken up again
        with Client(server.start()) as client:
            while running(client, ids) < 2:
                time.sleep(0.02)
            server.kill()
    (tmp_path / "slow").unlink()
    with Client(server.start()) as client:
        finished = [client.wait(id, poll_s=0.05) for id in ids]
        assert [job["state"] for job in finished] == ["succeeded"] * 6
        assert max(job["attempts"] for job in finished) == 4
        budgets = [client.fetch_plan(job["result"]["plan_id"]).budget.hbm_bytes for job in finished]
        assert budgets == list(range(6))


def test_a_training_that_was_killed_is_done_again_and_leaves_one_model(server: Server, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with Client(server.start()) as client:
        client.upload(encoded(device(1, 80)))
        id = client.train()["id"]
        while running(client, [id]) < 1:
            time.sleep(0.02)
        server.kill()
    (tmp_path / "slow").unlink()
    with Client(server.start()) as client:
        job = client.wait(id, poll_s=0.05)
        assert (job["state"], job["attempts"]) == ("succeeded", 2)
        again = client.wait(client.train()["id"], poll_s=0.05)
        (first,), (second,) = job["result"]["models"], again["result"]["models"]
        assert (first["status"], second["status"]) == ("trained", "unchanged") and first["model"] == second["model"]
        (model,) = client.cost_models()
        assert (model["version"], model["state"], len(model["uses"])) == (1, "in use", 1)


def test_an_orderly_stop_leaves_running_jobs_to_the_next_worker(
    server: Server, tmp_path: Path, fresh: Callable[[], Profile]
) -> None:
    (tmp_path / "slow").touch()
    with Client(server.start()) as client:
        profile = client.upload(encoded(fresh()))["id"]
        id = client.plan(profile)["id"]
        while running(client, [id]) < 1:
            time.sleep(0.02)
        assert server.stop() == 0
    (tmp_path / "slow").unlink()
    with Client(server.start()) as client:
        job = client.wait(id, poll_s=0.05)
        assert (job["state"], job["attempts"]) == ("succeeded", 2)


def test_a_waiting_client_sits_out_a_restart(server: Server, tmp_path: Path, fresh: Callable[[], Profile]) -> None:
    (tmp_path / "slow").touch()
    with Client(server.start()) as client:
        id = client.plan(client.upload(encoded(fresh()))["id"])["id"]
    server.kill()
    (tmp_path / "slow").unlink()
    url = server.start()
    with Client("http://127.0.0.1:9") as away:
        calls = 0

        def redirect(request: httpx.Request) -> httpx.Response:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise httpx.ConnectError("nobody there yet", request=request)
            return httpx.request(request.method, url + request.url.raw_path.decode())

        away._http = httpx.Client(transport=httpx.MockTransport(redirect), base_url="http://127.0.0.1:9")
        assert away.wait(id, poll_s=0.02)["state"] == "succeeded"


def half_an_upload(url: str, body: bytes) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v1/profiles HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    connection.sendall(head + body[: len(body) // 2])
    return connection


def test_kill_9_in_the_middle_of_uploads_keeps_what_was_finished(
    server: Server, tmp_path: Path, fresh: Callable[[], Profile]
) -> None:
    url = server.start()
    with Client(url) as client:
        kept = [client.upload(encoded(fresh()))["id"] for _ in range(3)]
        half = half_an_upload(url, encoded(fresh()))
        # And one whose body has arrived and which is being checked or stored, wherever the kill finds it.
        host, _, port = url.removeprefix("http://").partition(":")
        whole = socket.create_connection((host, int(port)))
        body = encoded(large_profile(20_000))
        whole.sendall(f"POST /v1/profiles HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        server.kill()
        half.close()
        whole.close()
    with Client(server.start()) as client:
        found = [summary["id"] for summary in client.profiles()]
        assert set(kept) <= set(found)
        for id in found:  # each is whole, whichever of the uploads made it
            summary = client.profile(id)
            assert client.peak(id)["alive_bytes"] <= summary["peak_bytes"]
            assert client.document(id)
    server.kill()
    assert list((tmp_path / "uploads").iterdir()) == []
    database = Database(f"sqlite:///{tmp_path}/hyperopt.sqlite")
    with database.read() as session:
        ranks = session.scalar(select(func.count()).select_from(Rank))
        timings = session.scalar(select(func.count()).select_from(Base.metadata.tables["timings"]))
        assert ranks == timings == len(found)
    database.close()


def test_a_job_written_but_not_queued_is_queued_at_the_next_start(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/hyperopt.sqlite")
    schema.upgrade(database)
    with database.write() as session:  # as if killed between the two
        jobs.add_job(session, "job-between", "plan", None, {})
    settings = Settings(data_dir=tmp_path, worker=False)
    engine = DbosEngine(database, settings)
    status = engine.status("job-between")
    assert status is not None and status.state == "queued"
    assert engine._client.retrieve_workflow("job-between").get_status().status == "ENQUEUED"
    engine.close()
    database.close()
