"""A real server in a thread, on a socket, with its worker; every answer is compared with openapi.json."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from api.app import create_app, open_service
from api.problems import MEDIA_TYPE, Problem
from api.training import Train
from api.work import Solve
from hyperopt import profile as profiles
from hyperopt.cost import model as cost_models
from hyperopt.cost import residual
from hyperopt.cost.child import TrainingFailed
from hyperopt.cost.feedback import Copy
from hyperopt.cost.lesson import Learned, Lesson, When
from hyperopt.cost.work import Table
from hyperopt.plan import Bound, Plan, Predicted
from hyperopt.settings import Settings
from solver.child import SolveFailed
from solver.request import Infeasible, Request

Json = dict[str, Any]
Cancelled = Callable[[], bool]
Report = Callable[[Json], None]


def fake_solve(
    profile_bytes: bytes,
    request: Request,
    *,
    memory_limit_bytes: int | None,
    cancelled: Cancelled,
    progress: Report,
) -> Plan | Infeasible:
    """Stands for the solver behind its port. The budget of tier `host` in bytes says what it does:

    1: infeasible; 2: fails; 3: faulty; 4: goes on until cancelled; 5: the same, without a plan; else: a plan.
    """
    profile, _ = profiles.load(profile_bytes)
    plan = Plan(
        profile_digest=profile.digest,
        program_digest=profile.program_digest,
        budget=request.budget,
        predicted=Predicted(step_us=100.0),
        bound=Bound(step_us=99.0, gap=0.01),
    )
    act = request.budget.tiers.get("host")
    progress({"stage": "baselines", "step_us": 120.0, "bound_us": 99.0})
    if act == 1:
        operator = {"index": 4, "name": "op4", "working_set_bytes": 7}
        return Infeasible(lower_bound_bytes=7, reachable_bytes=9, operator=operator, budget_bytes=5)
    if act == 2:
        raise SolveFailed("out of its memory limit of 5 bytes")
    if act == 3:
        raise ZeroDivisionError("a fault of ours")
    while act in (4, 5) and not cancelled():
        time.sleep(0.01)
    if act == 5:
        raise SolveFailed("cancelled before a first plan was found")
    return plan


def train_here(
    device: str,
    documents: Iterable[tuple[bytes, When]],
    copies: Sequence[Copy],
    current: bytes | None,
    *,
    operators: Path | None,
    memory_limit_bytes: int | None,
    cancelled: Cancelled,
    progress: Report,
) -> Learned:
    """Stands for the child that trains: the same in this process, with fewer trees. A device named `slow` goes on until
    cancelled, one named `faulty` fails."""
    lesson = Lesson(device, Table.load(operators))
    for count, (document, when) in enumerate(documents, 1):
        read = lesson.add(profiles.load(document)[0], when)
        progress({"stage": "reading", "device": device, "profiles": count, "operators": read})
    if device.startswith("faulty"):
        raise TrainingFailed("out of its memory limit of 5 bytes")
    while device.startswith("slow"):
        if cancelled():
            raise TrainingFailed("cancelled")
        time.sleep(0.01)
    lesson.add_copies(copies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residual, "OPTIONS", {**residual.OPTIONS, "max_iter": 20, "learning_rate": 0.3})
        return lesson.learn(None if current is None else cost_models.load(current))


@contextmanager
def serving(settings: Settings, solve: Solve = fake_solve, train: Train = train_here) -> Iterator[str]:
    """A server on a free port, its URL; shut down in good order at the end."""
    service = open_service(settings, solve, train)
    server = uvicorn.Server(uvicorn.Config(create_app(service), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
        service.close()


class Documented:
    """Checks answers against the OpenAPI document: are status and media type documented for the address?"""

    def __init__(self, document: Json) -> None:
        self.paths = {
            re.compile(re.sub(r"\{\w+\}", "[^/]+", path) + "$"): methods for path, methods in document["paths"].items()
        }

    def __call__(self, response: httpx.Response) -> None:
        response.read()
        methods = next((m for path, m in self.paths.items() if path.match(response.request.url.path)), None)
        kind = response.headers.get("content-type")
        if response.status_code >= 400:
            assert kind == MEDIA_TYPE
            problem = Problem.model_validate_json(response.content)
            assert problem.status == response.status_code and problem.detail
        if methods is None or response.status_code == 405:
            assert response.status_code in (404, 405)
            return
        responses = methods[response.request.method.lower()]["responses"]
        assert str(response.status_code) in responses, (
            f"{response.request.method} {response.request.url} {response.text}"
        )
        if response.content:
            assert kind in responses[str(response.status_code)]["content"]


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder: Path = tmp_path_factory.mktemp("service")
    return Settings(data_dir=folder, max_upload_bytes=200_000, max_document_bytes=400_000, max_time_limit_s=100.0)


@pytest.fixture(scope="session")
def server(settings: Settings) -> Iterator[str]:
    with serving(settings) as url:
        yield url


@pytest.fixture(scope="session")
def http(server: str) -> Iterator[httpx.Client]:
    document = httpx.get(f"{server}/openapi.json").json()
    with httpx.Client(base_url=server, timeout=30, event_hooks={"response": [Documented(document)]}) as client:
        yield client


_count = iter(range(1, 10**9))


@pytest.fixture
def fresh() -> Callable[..., profiles.Profile]:
    """The worked example, different from all before: its first operator takes a little longer each time."""
    from tests.samples import worked_example

    def fresh(**run: Any) -> profiles.Profile:
        profile = worked_example(**run)
        first = msgspec.structs.replace(profile.operators[0], duration_us=10_000.0 + next(_count) / 1000)
        return msgspec.structs.replace(profile, operators=(first, *profile.operators[1:]))

    return fresh


def finished(http: httpx.Client, address: str) -> Json:
    """The job once it is finished."""
    while True:
        job: Json = http.get(address).json()
        if job["state"] not in ("queued", "running"):
            return job
        time.sleep(0.02)
