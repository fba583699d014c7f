"""A limit in the policy of a check: solved as plans are, by a job, whose result is the check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import msgspec
import pytest

import solver
from api.judging import KIND, CheckAsked
from api.training import Trainer
from api.work import Worker
from hyperopt import profile as profiles
from hyperopt.client import Client, ServiceError
from hyperopt.plan import Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from hyperopt.store import Database, jobs, schema
from hyperopt.store.checks import StoredCheck, get_check
from hyperopt.store.plans import get_plan
from hyperopt.store.profiles import keep_profile
from solver.request import Infeasible, Request
from tests.api.conftest import Json, finished
from tests.samples import encoded

Fresh = Callable[..., Profile]


def solve_here(profile_bytes: bytes, request: Request, **_: Any) -> Plan | Infeasible:
    return solver.solve(profiles.load(profile_bytes)[0], request)


def no_training(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("nothing is trained here")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database(f"sqlite:///{tmp_path}/store.sqlite")
    schema.make_current(found)
    yield found
    found.close()


def judged(database: Database, baseline: Profile, candidate: Profile, **policy: Any) -> StoredCheck:
    """By a worker with the solver, as its queue would have it do."""
    ids = [keep_profile(database, "default", one, [], encoded(one), replay(one))[0] for one in (baseline, candidate)]
    asked = {"baseline": ids[0], "candidate": ids[1], "commit": "1f", "policy": {"time_limit_s": 10.0, **policy}}
    with database.write() as session:
        jobs.add_job(session, "job-1", KIND, ids[1], CheckAsked.model_validate(asked).model_dump(mode="json"))
    trainer = Trainer(database, no_training, None, 2**32)
    Worker(database, solve_here, trainer, 2**32).run("job-1", lambda: False)
    with database.read() as session:
        job = jobs.get_job(session, "job-1")
        assert job is not None and job.result is not None and job.result["status"] == "checked", job
        found = get_check(session, job.result["check"])
    assert found is not None and found.commit == "1f" and found.verdict == job.result["verdict"]
    return found


@pytest.mark.parametrize(
    ("less", "slowdown", "verdict", "how", "told"),
    [
        (0, 0.0, "pass", "by itself", "fits by itself"),
        (1, 1e6, "pass", "with a plan", "fits only thanks to a plan"),
        (None, 1e6, "regression", "not", "no longer fits"),
    ],
)
def test_how_it_fits_is_told_apart(
    database: Database, fresh: Fresh, less: int | None, slowdown: float, verdict: str, how: str, told: str
) -> None:
    candidate = fresh(name="candidate")
    limit = 1 if less is None else replay(candidate).peak_bytes - less
    found = judged(
        database,
        fresh(name="base"),
        candidate,
        must_fit_bytes=limit,
        max_slowdown_percent=slowdown,
        tolerance_percent=100.0,
    )
    fit = found.result["fit"]
    assert (found.verdict, fit["how"], fit["hbm_bytes"]) == (verdict, how, limit)
    assert fit["reason"].startswith(told)
    assert any("as the baseline" in note for note in found.result["notes"])
    with database.read() as session:
        job = jobs.get_job(session, "job-1")
        assert job is not None and (job.plan_id or "") == fit["plan_id"]
        assert not fit["plan_id"] or get_plan(session, fit["plan_id"]) is not None


def ask(http: httpx.Client, fresh: Fresh, **policy: Any) -> httpx.Response:
    id = http.post("/v1/profiles", content=encoded(fresh())).json()["id"]
    asked = {"candidate": id, "baseline": id, "policy": {"must_fit_bytes": 1, **policy}}
    return http.post("/v1/checks", json=asked)


def test_the_answer_is_a_job_that_names_the_check(http: httpx.Client, fresh: Fresh) -> None:
    answer = ask(http, fresh, tiers={"host": 1})  # infeasible, by the solver of these tests
    assert answer.status_code == 202 and answer.json()["kind"] == "check"
    job: Json = finished(http, answer.headers["location"])
    assert job["state"] == "succeeded" and job["result"]["verdict"] == "regression"
    kept = http.get(f"/v1/checks/{job['result']['check']}").json()
    assert kept["result"]["fit"]["how"] == "not" and kept["policy"]["must_fit_bytes"] == 1


def test_the_client_waits_for_it_and_tells_of_a_failure(server: str, fresh: Fresh) -> None:
    with Client(server) as service:
        id = service.upload(encoded(fresh(model="fits")))["id"]
        found = service.check(id, baseline=id, policy={"must_fit_bytes": 1, "tiers": {"host": 1}})
        assert found["result"]["fit"]["how"] == "not"
        with pytest.raises(ServiceError, match="out of its memory limit"):
            service.check(id, baseline=id, policy={"must_fit_bytes": 1, "tiers": {"host": 2}})
        assert [one["id"] for one in service.checks(model="fits")] == [found["id"]]  # a failed one leaves none


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"tiers": {"moon": 1}}, "$.policy.tiers.moon"),
        ({"time_limit_s": 101}, "$.policy.time_limit_s"),
        ({"max_slowdown_percent": -1}, "$.policy.max_slowdown_percent"),
        ({"must_fit_bytes": "60G"}, "$.policy.must_fit_bytes"),
    ],
)
def test_what_cannot_be_solved_for_is_refused_at_once(
    http: httpx.Client, fresh: Fresh, policy: Json, field: str
) -> None:
    answer = ask(http, fresh, **policy)
    assert answer.status_code == 422 and answer.json()["field"] == field


def test_a_profile_without_storages_is_refused(http: httpx.Client, fresh: Fresh) -> None:
    def bare(**run: Any) -> Profile:
        full = fresh(**run)
        operators = tuple(msgspec.structs.replace(one, reads=(), writes=()) for one in full.operators)
        return msgspec.structs.replace(full, storages=(), operators=operators)

    answer = ask(http, bare)
    assert answer.status_code == 409 and answer.json()["field"] == "$.candidate"
