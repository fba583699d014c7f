from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from hyperopt.client import Client, ServiceError
from hyperopt.plan import Action, Plan, Residency
from hyperopt.profile import Profile
from tests.samples import encoded


@pytest.fixture
def service(server: str, http: httpx.Client) -> Client:
    return Client(server)


def test_the_whole_way(service: Client, tmp_path: Path, fresh: Callable[[], Profile]) -> None:
    profile = fresh()
    file = tmp_path / "rank_0.json.gz"
    file.write_bytes(gzip.compress(encoded(profile)))
    reports: list[dict[str, Any]] = []
    with service:
        summary = service.upload(file, project="client")
        assert summary["digest"] == profile.digest and service.profile(summary["id"]) == summary
        assert service.profiles("client") == [summary]
        assert service.document(summary["id"]) == file.read_bytes()
        assert service.peak(summary["id"])["peak_op"] == 4
        assert [s["name"] for s in service.idle(summary["id"])] == ["A", "B"]
        assert service.accesses(summary["id"])[0]["kind"] == "activation"
        job = service.wait(service.plan(summary["id"], hbm_bytes=5)["id"], on_progress=reports.append, poll_s=0.02)
        assert job["state"] == "succeeded" and [r["stage"] for r in reports] == ["started", "baselines"]
        plan = service.fetch_plan(job["result"]["plan_id"])
        assert plan.profile_digest == profile.digest and plan.budget.hbm_bytes == 5


def test_a_plan_is_sent_once_and_then_asked_about(
    service: Client, server: str, tmp_path: Path, fresh: Callable[[], Profile]
) -> None:
    profile = service.upload(encoded(fresh()))
    id = service.wait(service.plan(profile["id"])["id"], poll_s=0.02)["result"]["plan_id"]
    for _ in range(2):  # the second client finds the plan that the first has left in the folder
        statuses: list[int] = []
        with Client(server, plan_cache=tmp_path / "plans") as client:
            client._http.event_hooks["response"].append(
                lambda response, seen=statuses: seen.append(response.status_code)
            )
            first, again = client.fetch_plan(id), client.fetch_plan(id)
        assert first == again
        assert statuses[-1] == 304
    assert statuses == [304, 304]


def test_cancel_and_patience(service: Client, fresh: Callable[[], Profile]) -> None:
    profile = service.upload(encoded(fresh()))
    job = service.plan(profile["id"], tiers={"host": 4})["id"]
    with pytest.raises(ServiceError, match=r"not finished after 0.1 s \(wait again: it goes on\)"):
        service.wait(job, timeout_s=0.1, poll_s=0.02)
    service.cancel(job)
    assert service.wait(job, poll_s=0.02)["state"] == "cancelled"


def test_violations_of_a_plan(service: Client, fresh: Callable[[], Profile]) -> None:
    profile = service.upload(encoded(fresh()))
    release = Action(op=5, when="after", kind="release", storage=0)
    violations = service.validate(profile["id"], Plan(residency=Residency(actions=(release,))))
    assert [v["code"] for v in violations] == ["read-of-dropped"]


def test_a_problem_is_one_error_with_place_and_remedy(service: Client) -> None:
    with pytest.raises(ServiceError) as caught:
        service.upload(b'{"format": "hyperopt.profile/2"}')
    error = caught.value
    assert (error.status, error.field, error.title) == (422, "$.format", "Bad document")
    assert str(error).startswith("$.format: major version") and "hyperopt.profile/1" in error.remedy
    with pytest.raises(ServiceError) as missing:
        service.job("job-nobody")
    assert missing.value.status == 404


def test_no_server_is_said_so() -> None:
    with Client("http://127.0.0.1:9") as nobody, pytest.raises(ServiceError) as caught:
        nobody.profiles()
    assert caught.value.status == 0 and "hyperopt serve" in str(caught.value)


def test_an_answer_that_is_not_ours(service: Client) -> None:
    service._http = httpx.Client(
        transport=httpx.MockTransport(lambda request: httpx.Response(502, text="<h1>Bad gateway</h1>")),
        base_url="http://proxy",
    )
    with pytest.raises(ServiceError, match="502 Bad Gateway from http://proxy/v1/jobs/job-1"):
        service.job("job-1")


def test_the_client_needs_nothing_of_the_server(tmp_path: Path) -> None:
    code = (
        "import sys, hyperopt.client; "
        "heavy = {'fastapi', 'sqlalchemy', 'dbos', 'ortools', 'sklearn', 'mindspore', 'pydantic'}; "
        "heavy &= set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)


def test_the_service_works_without_mindspore(tmp_path: Path) -> None:
    code = "import sys, api.app, hyperopt.store.schema; sys.exit('mindspore' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)


def test_a_client_waits_for_a_server_that_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with Client(url) as client:
        assert not client.await_server(0)

        def late() -> None:
            time.sleep(0.5)
            with socket.create_server(("127.0.0.1", port)) as server:
                server.accept()[0].close()

        starting = threading.Thread(target=late)
        starting.start()
        assert client.await_server(20)
        starting.join()
