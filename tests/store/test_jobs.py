from __future__ import annotations

import pytest

from hyperopt.plan import Bound, Plan
from hyperopt.store import Database, jobs
from hyperopt.store.plans import get_etag, get_plan, put_plan
from tests.samples import worked_example
from tests.store.conftest import Keep


@pytest.fixture
def job(database: Database, keep: Keep) -> str:
    profile, _ = keep(worked_example())
    with database.write() as session:
        jobs.add_job(session, "job-1", "plan", profile, {"seed": 0})
    return "job-1"


def test_a_job_from_request_to_result(database: Database, job: str) -> None:
    with database.write() as session:
        assert jobs.unfinished_jobs(session) == [job]
        started = jobs.start_job(session, job)
        assert (started.attempts, started.outcome) == (1, None) and started.started_at is not None
        jobs.finish_job(session, job, "succeeded", {"status": "infeasible"})
        assert jobs.unfinished_jobs(session) == []
        found = jobs.get_job(session, job)
    assert found is not None and (found.outcome, found.result) == ("succeeded", {"status": "infeasible"})


def test_the_first_result_stays(database: Database, job: str) -> None:
    with database.write() as session:
        jobs.finish_job(session, job, "succeeded", {"n": 1})
        jobs.finish_job(session, job, "failed", {"n": 2})
        found = jobs.get_job(session, job)
        assert found is not None and (found.outcome, found.result) == ("succeeded", {"n": 1})
        assert jobs.start_job(session, job).attempts == 0, "a finished job is not started again"


def test_cancelling_is_asked_once_and_not_of_a_finished_job(database: Database, job: str) -> None:
    with database.write() as session:
        first = jobs.request_cancel(session, job)
        again = jobs.request_cancel(session, job)
        assert first is not None and again is not None and first.cancel_requested_at is not None
        assert first.cancel_requested_at == again.cancel_requested_at
        assert jobs.cancel_requested(session, job) and jobs.start_job(session, job).attempts == 0
        jobs.add_job(session, "job-2", "plan", first.profile_id or "", {})
        jobs.finish_job(session, "job-2", "succeeded", {})
        late = jobs.request_cancel(session, "job-2")
        assert late is not None and late.cancel_requested_at is None
        assert jobs.request_cancel(session, "job-3") is None


def test_events_are_numbered_and_read_from_where_one_left_off(database: Database, job: str) -> None:
    with database.write() as session:
        assert [jobs.add_event(session, job, {"gap": gap}) for gap in (0.5, 0.1)] == [1, 2]
        assert [e.data for e in jobs.list_events(session, job)] == [{"gap": 0.5}, {"gap": 0.1}]
        assert [e.seq for e in jobs.list_events(session, job, after=1)] == [2]
        last = jobs.last_event(session, job)
        assert last is not None and last.data == {"gap": 0.1}


def test_jobs_are_listed_newest_first(database: Database, job: str) -> None:
    with database.write() as session:
        profile = jobs.list_jobs(session)[0].profile_id or ""
        jobs.add_job(session, "job-2", "plan", profile, {})
        assert [j.id for j in jobs.list_jobs(session, profile)] == ["job-2", "job-1"]
        assert jobs.list_jobs(session, "profile-nobody") == []


def test_a_plan_is_kept_under_what_it_orders(database: Database, keep: Keep) -> None:
    profile, _ = keep(worked_example())
    with database.write() as session:
        first = put_plan(session, profile, Plan(profile_digest="sha256:x"))
        tag = get_etag(session, first)
        same = put_plan(session, profile, Plan(profile_digest="sha256:x", bound=Bound(step_us=3.0)))
        stored = get_plan(session, first)
        assert first == same and stored is not None
        assert stored.etag == get_etag(session, first) != tag, "a better bound is another entity"
        assert get_plan(session, "plan-nobody") is None and get_etag(session, "plan-nobody") is None
