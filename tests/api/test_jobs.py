from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import msgspec
import pytest

from api.engine import DbosEngine, NameTaken
from api.service import Service
from hyperopt import plan as plans
from hyperopt.profile import Profile
from hyperopt.settings import Settings
from hyperopt.store import schema
from tests.api.conftest import Json, finished
from tests.samples import encoded

Ask = Callable[..., str]


@pytest.fixture
def profile(http: httpx.Client, fresh: Callable[[], Profile]) -> str:
    id: str = http.post("/v1/profiles", content=encoded(fresh())).json()["id"]
    return id


@pytest.fixture
def ask(http: httpx.Client, profile: str) -> Ask:
    """Asks for a plan; `act` is what the fake solver does (see conftest). Returns the job's address."""

    def ask(act: int | None = None, **asked: object) -> str:
        tiers = {} if act is None else {"host": act}
        answer = http.post("/v1/plans", json={"profile": profile, "budget": {"hbm_bytes": 10, "tiers": tiers}, **asked})
        assert answer.status_code == 202 and answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
        return str(answer.headers["location"])

    return ask


def test_from_request_to_plan(http: httpx.Client, ask: Ask, profile: str) -> None:
    job = finished(http, ask(seed=7, work_limit=5, time_limit_s=None))
    assert (job["state"], job["profile"], job["attempts"]) == ("succeeded", profile, 1)
    assert job["request"] == {
        "budget": {"hbm_bytes": 10, "tiers": {}},
        "objective": "min_step_time",
        "time_limit_s": 100.0,  # null: as long as this server allows
        "work_limit": 5,
        "seed": 7,
        "max_slowdown": None,
        "points": 8,
        "node": None,
    }
    assert (job["result"]["status"], job["result"]["bound"]["gap"]) == ("planned", 0.01)
    assert job["plan"] == f"/v1/plans/{job['result']['plan_id']}"
    plan, _ = plans.load(http.get(job["plan"]).content)
    assert plan.plan_id == job["result"]["plan_id"] and plan.budget.hbm_bytes == 10


def test_a_request_with_a_node_reaches_the_solver(http: httpx.Client, ask: Ask) -> None:
    node = {"memory_bytes": 1 << 30, "ranks": 2, "d2h_bytes_per_s": 1e9}
    job = finished(http, ask(node=node, objective="min_peak", max_slowdown=0.05))
    assert job["state"] == "succeeded" and job["request"]["max_slowdown"] == 0.05
    assert job["request"]["node"] | node == job["request"]["node"]


def test_an_unchanged_plan_is_not_sent_again(http: httpx.Client, ask: Ask) -> None:
    at = finished(http, ask())["plan"]
    tag = http.get(at).headers["etag"]
    assert tag.startswith('"') and tag.endswith('"')
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = http.get(at, headers={"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    for other in ('"other"', tag.strip('"')):
        assert http.get(at, headers={"If-None-Match": other}).status_code == 200


def test_infeasible_is_an_answer_with_numbers(http: httpx.Client, ask: Ask) -> None:
    job = finished(http, ask(1))
    assert (job["state"], job["result"]["status"], job["plan"]) == ("succeeded", "infeasible", None)
    infeasible = job["result"]["infeasible"]
    assert (
        infeasible["lower_bound_bytes"],
        infeasible["reachable_bytes"],
        infeasible["operator"]["index"],
    ) == (7, 9, 4)


@pytest.mark.parametrize(("act", "reason"), [(2, "out of its memory limit"), (3, "ZeroDivisionError: a fault of ours")])
def test_a_failed_solve_is_a_failed_job(http: httpx.Client, ask: Ask, act: int, reason: str) -> None:
    job = finished(http, ask(act))
    assert (job["state"], job["result"]["status"]) == ("failed", "failed") and reason in job["result"]["reason"]


def test_progress_is_reported_in_order(http: httpx.Client, ask: Ask) -> None:
    at = ask()
    job = finished(http, at)
    news = http.get(at + "/events").json()
    assert news["state"] == "succeeded" and news["last"] == len(news["events"])
    assert [event["data"]["stage"] for event in news["events"]] == ["started", "baselines"]
    assert job["progress"]["step_us"] == 120.0
    assert http.get(at + "/events", params={"after": news["last"]}).json()["events"] == []


def running(http: httpx.Client, at: str) -> Json:
    """The job once the solver has reported."""
    while (job := http.get(at).json())["progress"] is None:
        time.sleep(0.02)
    return dict(job)


def test_cancel_of_a_running_job_keeps_the_best_plan(http: httpx.Client, ask: Ask) -> None:
    at = ask(4)
    assert running(http, at)["state"] == "running"
    asked = http.delete(at)
    assert asked.status_code == 202 and asked.json()["cancel_requested"]
    job = finished(http, at)
    assert (job["state"], job["result"]["status"]) == ("cancelled", "planned")
    assert http.get(job["plan"]).status_code == 200
    again = http.delete(at)
    assert (again.status_code, again.json()["state"]) == (200, "cancelled")


def test_cancel_before_there_is_a_plan(http: httpx.Client, ask: Ask) -> None:
    at = ask(5)
    running(http, at)
    http.delete(at)
    job = finished(http, at)
    assert (job["state"], job["result"]["status"], job["plan"]) == ("cancelled", "cancelled", None)


def test_cancel_of_a_queued_job_means_it_is_not_solved(http: httpx.Client, ask: Ask) -> None:
    busy = ask(4)
    running(http, busy)
    waiting = ask()
    assert http.delete(waiting).json()["state"] == "cancelled"
    http.delete(busy)
    finished(http, busy)
    while http.get(waiting).json()["finished_at"] is None:
        time.sleep(0.02)
    job = http.get(waiting).json()
    assert (job["state"], job["attempts"], job["result"]["status"]) == ("cancelled", 0, "cancelled")


def test_a_finished_job_cannot_be_cancelled(http: httpx.Client, ask: Ask) -> None:
    at = ask()
    finished(http, at)
    answer = http.delete(at)
    assert (answer.status_code, answer.json()["state"], answer.json()["cancel_requested"]) == (
        200,
        "succeeded",
        False,
    )


def test_jobs_of_a_profile_newest_first(http: httpx.Client, ask: Ask, profile: str) -> None:
    ats = [ask(seed=seed) for seed in range(3)]
    for at in ats:
        finished(http, at)
    listed = http.get("/v1/jobs", params={"profile": profile}).json()["jobs"]
    assert [f"/v1/jobs/{job['id']}" for job in listed] == ats[::-1]


def test_planning_on_times_alone_is_refused(http: httpx.Client, fresh: Callable[[], Profile]) -> None:
    profile = fresh()
    bare = tuple(msgspec.structs.replace(o, reads=(), writes=()) for o in profile.operators)
    body = encoded(msgspec.structs.replace(profile, operators=bare, storages=()))
    id = http.post("/v1/profiles", content=body).json()["id"]
    answer = http.post("/v1/plans", json={"profile": id})
    assert (answer.status_code, answer.json()["field"]) == (409, "$.profile")
    assert "times but no storages" in answer.json()["detail"]


def test_one_worker_a_name(server: str, settings: Settings) -> None:
    from hyperopt.store import Database

    database = Database(settings.store_url)
    with pytest.raises(NameTaken, match="HYPEROPT_WORKER_NAME"):
        DbosEngine(database, settings, lambda id, stopping: None)
    database.close()


def test_health(http: httpx.Client) -> None:
    health = http.get("/v1/healthz").json()
    assert (health["status"], health["schema_revision"], health["worker"]) == ("ok", schema.newest(), True)


def test_a_fault_of_ours_is_a_problem_without_internals(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Service:
        raise RuntimeError("secret internals")

    monkeypatch.setattr("api.profiles.list_summaries", broken)
    answer = http.get("/v1/profiles")
    assert answer.status_code == 500 and "secret" not in answer.text
    assert "secret internals" in caplog.text
