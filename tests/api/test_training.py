"""What a training job leaves behind, whoever else was at work meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.training import KIND, Trained, Trainer
from hyperopt.profile import Profile
from hyperopt.replay import replay
from hyperopt.store import Database, jobs, models, schema
from hyperopt.store.profiles import add_profile
from tests.api.conftest import Json, train_here
from tests.cost.synthetic import device
from tests.samples import encoded

TOY = "toy made up 1"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/store.sqlite")
    schema.upgrade(database)
    yield database
    database.close()


@pytest.fixture
def trainer(database: Database) -> Trainer:
    return Trainer(database, train_here, None, 1 << 32)


def keep(database: Database, profile: Profile) -> None:
    with database.write() as session:
        add_profile(session, "default", profile, [], encoded(profile), replay(profile))


def job(database: Database, id: str) -> jobs.JobRecord:
    with database.write() as session:
        jobs.add_job(session, id, KIND, None, {"project": "default", "device": None})
        return jobs.start_job(session, id)


def trained(trainer: Trainer) -> list[Trained]:
    told: list[Json] = []
    return list(trainer.devices({"project": "default", "device": None}, lambda: False, told.append))


def stored(database: Database) -> list[models.StoredModel]:
    with database.read() as session:
        return models.list_models(session)


def result(database: Database, id: str) -> Json:
    with database.read() as session:
        found = jobs.get_job(session, id)
    assert found is not None and found.result is not None
    return found.result


def test_two_workers_that_train_the_same_leave_one_model(database: Database, trainer: Trainer) -> None:
    keep(database, device(1, 80))
    both = [trained(trainer), trained(trainer)]
    for number, done in enumerate(both):
        trainer.finish(job(database, f"job-{number}"), done, "succeeded", "")
    (model,) = stored(database)
    assert (model.state, len(model.uses), model.job) == ("in use", 1, "job-0")
    first, second = (result(database, f"job-{number}")["models"] for number in range(2))
    assert first == second and first[0]["model"] == model.id


def test_what_somebody_has_put_into_use_meanwhile_stays(database: Database, trainer: Trainer) -> None:
    keep(database, device(1, 24))
    trainer.finish(job(database, "job-first"), trained(trainer), "succeeded", "")
    keep(database, device(2, 6))
    trainer.finish(job(database, "job-second"), trained(trainer), "succeeded", "")
    candidate, first = stored(database)
    assert (candidate.state, first.state) == ("candidate", "in use")
    keep(database, device(3, 300))
    done = trained(trainer)
    assert done[0].learned is not None and done[0].learned.promoted
    with database.write() as session:
        models.use_model(session, candidate.id, who="ada", why="I know better", expected=first.etag)
    trainer.finish(job(database, "job-third"), done, "succeeded", "")
    newest, used, retired = stored(database)
    assert (newest.state, used.state, retired.state) == ("candidate", "in use", "retired")
    assert (
        f"not put into use: the model in use of {TOY} is {candidate.id}"
        in result(database, "job-third")["models"][0]["why"]
    )


def test_a_job_finished_before_keeps_its_result(database: Database, trainer: Trainer) -> None:
    keep(database, device(1, 80))
    one = job(database, "job-1")
    trainer.finish(one, trained(trainer), "succeeded", "")
    before = result(database, "job-1")
    trainer.finish(one, [], "failed", "too late")
    assert result(database, "job-1") == before
