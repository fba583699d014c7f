"""Cost models as they are kept: one for the same data, and one in use."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hyperopt.plan import Plan, Predicted
from hyperopt.profile import Profile
from hyperopt.store import Database, models
from hyperopt.store.measurements import get_measurements, of_plan, put_measurement
from hyperopt.store.models import StoredModel, UseChanged
from hyperopt.store.plans import put_plan
from tests.cost.synthetic import device
from tests.samples import worked_example
from tests.store.conftest import Keep

TOY = "toy made up 1"


def put(database: Database, project: str = "default", digest: str = "sha256:1", **more: Any) -> StoredModel:
    with database.write() as session:
        (data,) = (one for one in models.training_data(session, project) if one.device == TOY)
        columns: dict[str, Any] = {
            "document": b"{}", "superseded": [], "signatures": 5, "groups": 4, "scores": {}, "importances": {},
            "plans": {}, "drift": None, "compared_with": None, "why": "why", "software": "0", "job": None, **more,
        }  # fmt: skip
        return models.put_model(session, project, data, data_digest=digest, **columns)


def use(database: Database, id: str, etag: str) -> StoredModel:
    with database.write() as session:
        found = models.use_model(session, id, who="ada", why="better", expected=etag)
    assert found is not None
    return found


def got(database: Database, id: str) -> StoredModel:
    with database.read() as session:
        found = models.get_model(session, id)
    assert found is not None
    return found


def test_training_data_are_what_a_project_measured_of_each_device(database: Database, keep: Keep) -> None:
    first, _ = keep(device(1, 20))
    second, _ = keep(device(2, 20))
    other = msgspec.structs.replace(device(3, 20), run=msgspec.structs.replace(device(3).run, framework_version="2"))
    third, _ = keep(other)
    keep(device(4, 20), project="elsewhere")
    made_up = msgspec.structs.replace(device(5, 20), run=msgspec.structs.replace(device(5).run, measured=False))
    keep(made_up)
    with database.read() as session:
        found = models.training_data(session, "default")
        assert models.training_data(session, "nobody") == []
    assert [(one.device, one.profiles) for one in found] == [
        (TOY, tuple(sorted((first, second)))),
        ("toy made up 2", (third,)),
    ]


def test_the_digest_is_of_data_and_table(database: Database, keep: Keep) -> None:
    keep(device(1, 20))
    with database.read() as session:
        (before,) = models.training_data(session, "default")
    keep(device(2, 20))
    with database.read() as session:
        (after,) = models.training_data(session, "default")
    digests = {models.digest_of(before, "a"), models.digest_of(after, "a"), models.digest_of(before, "b")}
    assert len(digests) == 3 and models.digest_of(before, "a") in digests


def test_the_same_data_have_one_model(database: Database, keep: Keep) -> None:
    keep(device(1, 20))
    first, again, other = put(database), put(database, why="another"), put(database, digest="sha256:2")
    assert first == again and (first.version, other.version) == (1, 2) and first.id != other.id
    assert first.document_sha256 == other.document_sha256, "the same bytes are kept once"
    with database.read() as session:
        document = models.get_model_document(session, first.id)
        assert document is not None and document.data == b"{}"
        assert models.get_model_document(session, "cost-model-none") is None


def test_from_candidate_to_use_and_back(database: Database, keep: Keep) -> None:
    keep(device(1, 20))
    first, second = put(database), put(database, digest="sha256:2")
    assert (first.state, first.uses) == ("candidate", ()) and first.etag == second.etag
    with database.read() as session:
        assert models.model_in_use(session, "default", TOY) is None
        assert models.etag_in_use(session, "default", TOY) == first.etag
    used = use(database, first.id, first.etag)
    assert used.state == "in use" and (used.uses[0].who, used.uses[0].why) == ("ada", "better")
    after = use(database, second.id, used.etag)
    assert (after.state, got(database, first.id).state) == ("in use", "retired")
    back = use(database, first.id, after.etag)
    assert back.state == "in use" and [one.version for one in back.uses] == [3, 1]
    assert use(database, first.id, back.etag) == back, "what is in use is not put into use again"
    with database.read() as session:
        found = models.model_in_use(session, "default", TOY)
    assert found == back and len({used.etag, after.etag, back.etag}) == 3


def test_of_two_who_act_at_once_one_is_told(database: Database, keep: Keep) -> None:
    keep(device(1, 20))
    first, second = put(database), put(database, digest="sha256:2")
    use(database, first.id, first.etag)
    with pytest.raises(UseChanged, match=f"in use of {TOY} is {first.id}"):
        use(database, second.id, first.etag)
    assert got(database, second.id).state == "candidate"
    with database.write() as session:
        assert models.use_model(session, "cost-model-none", who="a", why="b", expected="") is None


def test_listed_by_project_and_device(database: Database, keep: Keep) -> None:
    keep(device(1, 20))
    keep(device(2, 20), project="other")
    mine, newer, theirs = put(database), put(database, digest="sha256:2"), put(database, "other")
    with database.read() as session:
        assert [one.id for one in models.list_models(session)] == [newer.id, mine.id, theirs.id]
        assert [one.id for one in models.list_models(session, "other", "toy")] == [theirs.id]
        assert models.list_models(session, device="nothing") == []


def test_measurements_of_plans_are_data_of_their_device(database: Database, keep: Keep) -> None:
    profile: Profile = worked_example(framework="made up", framework_version="1")
    profile = msgspec.structs.replace(profile, device=msgspec.structs.replace(profile.device, name="toy"))
    id, _ = keep(profile)
    with database.write() as session:
        plan = Plan(profile_digest=profile.digest, predicted=Predicted(step_us=100.0, peak_bytes=50))
        plan = msgspec.structs.replace(plan, plan_id=put_plan(session, id, plan))
        told: dict[str, Any] = {"steps": 5, "step_us": 120.0, "step_us_spread": 2.0, "peak_bytes": 55}
        first, new = put_measurement(session, plan, copies=[(4096, 7.5)], **told)
        again, repeated = put_measurement(session, plan, copies=[(4096, 7.5)], **told)
        second, _ = put_measurement(session, plan, copies=[], **told | {"peak_bytes": None})
    assert (new, repeated) == (True, False) and first == again and first.copies == [(4096, 7.5)]
    assert (first.step_off, first.peak_off, second.peak_off) == (1.2, 1.1, None)
    assert first.program == profile.program_digest
    with database.read() as session:
        (data,) = models.training_data(session, "default")
        assert data.measurements == tuple(sorted((first.id, second.id))) and data.profiles == (id,)
        assert models.measurements_of(session, data) == of_plan(session, plan.plan_id)
        assert get_measurements(session, ["measurement-none"]) == []
