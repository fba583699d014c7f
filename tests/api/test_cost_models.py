"""Cost models over HTTP: trained on what a project measured, used where they are better, asked about profiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from hyperopt.cost.model import load as load_model
from hyperopt.profile import Profile
from tests.api.conftest import Json, finished
from tests.cost.synthetic import device
from tests.samples import encoded

_count = iter(range(10**6))
Run = Callable[..., Json]


@pytest.fixture
def project() -> str:
    return f"cost-{next(_count)}"


def toy(seed: int, count: int = 80, slow: float = 1.0, name: str = "toy", **run: Any) -> Profile:
    """A profile that no other test has stored: a profile is of one project."""
    made = device(seed, count)
    operators = tuple(msgspec.structs.replace(o, duration_us=slow * o.duration_us) for o in made.operators)
    about = msgspec.structs.replace(made.run, name=f"toy {next(_count)}", **run)
    named = msgspec.structs.replace(made.device, name=name)
    return msgspec.structs.replace(made, operators=operators, run=about, device=named)


def stored(http: httpx.Client, project: str, profile: Profile) -> str:
    answer = http.post("/v1/profiles", params={"project": project}, content=encoded(profile))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def trained(http: httpx.Client, project: str, **asked: Any) -> Json:
    """The finished job."""
    answer = http.post("/v1/cost-models", json={"project": project, **asked})
    assert answer.status_code == 202 and answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return finished(http, answer.headers["location"])


def only(job: Json) -> Json:
    assert job["state"] == "succeeded" and job["result"]["status"] == "trained", job
    (one,) = job["result"]["models"]
    return dict(one)


def test_from_profiles_to_a_model_in_use(http: httpx.Client, project: str) -> None:
    profiles = sorted(stored(http, project, toy(seed)) for seed in (1, 2))
    job = trained(http, project)
    one = only(job)
    assert (one["device"], one["status"], one["state"]) == ("toy made up 1", "trained", "in use")
    assert job["profile"] is None and job["progress"]["stage"] == "reading" and job["attempts"] == 1
    answer = http.get(f"/v1/cost-models/{one['model']}")
    model = answer.json()
    assert answer.headers["etag"] == f'"{model["etag"]}"' and model["profiles"] == profiles
    assert (model["version"], model["state"], model["job"]) == (1, "in use", job["id"])
    assert (model["framework"], model["framework_version"]) == ("made up", "1")
    assert set(model["scores"]) == {"matmul", "elementwise"} and model["groups"] >= 19
    assert model["why"] == "there was no model in use" and model["drift"] is None
    assert "too few" in model["plans"]["step"]["why"] and model["uses"][0]["who"] == f"training {job['id']}"
    document = load_model(http.get(f"/v1/cost-models/{one['model']}/document").content)
    assert document.device == "toy made up 1" and document.signatures == model["signatures"]
    for group, shares in model["importances"].items():
        assert group in document.learned and all(0 < share <= 1 for _, share in shares)


def test_the_same_data_are_not_trained_on_twice(http: httpx.Client, project: str) -> None:
    stored(http, project, toy(1))
    first, again = only(trained(http, project)), only(trained(http, project))
    assert (again["status"], again["model"], again["state"]) == ("unchanged", first["model"], "in use")
    assert len(http.get("/v1/cost-models", params={"project": project}).json()["models"]) == 1


def test_a_model_that_is_no_better_stays_a_candidate(http: httpx.Client, project: str) -> None:
    stored(http, project, toy(1, 160))
    first = only(trained(http, project))
    stored(http, project, toy(2, 6))
    second = only(trained(http, project))
    assert (second["status"], second["state"]) == ("trained", "candidate") and "too few" in second["why"]
    listed = http.get("/v1/cost-models", params={"project": project}).json()["models"]
    assert [(m["version"], m["state"]) for m in listed] == [(2, "candidate"), (1, "in use")]
    assert listed[0]["compared_with"] == first["model"]
    asked = {"project": project, "state": "in use"}
    assert [m["id"] for m in http.get("/v1/cost-models", params=asked).json()["models"]] == [first["model"]]


def test_too_few_shapes_are_an_answer(http: httpx.Client, project: str) -> None:
    stored(http, project, toy(1, 9))
    one = only(trained(http, project))
    assert one["status"] == "too few" and "19 are needed" in one["why"] and "model" not in one
    assert http.get("/v1/cost-models", params={"project": project}).json()["models"] == []


def test_a_project_that_measured_nothing_is_refused(http: httpx.Client, project: str) -> None:
    answer = http.post("/v1/cost-models", json={"project": project})
    assert (answer.status_code, answer.json()["field"]) == (409, "$.project")
    stored(http, project, toy(1, measured=False))
    assert http.post("/v1/cost-models", json={"project": project}).status_code == 409
    stored(http, project, toy(2))
    answer = http.post("/v1/cost-models", json={"project": project, "device": "gpu"})
    assert (answer.status_code, answer.json()["field"]) == (409, "$.device") and "toy" in answer.json()["remedy"]


def test_a_model_for_each_device_or_for_one(http: httpx.Client, project: str) -> None:
    stored(http, project, toy(1))
    stored(http, project, toy(2, name="other"))
    one = only(trained(http, project, device="other"))
    assert one["device"] == "other made up 1"
    both = trained(http, project)["result"]["models"]
    assert [(m["device"], m["status"]) for m in both] == [
        ("other made up 1", "unchanged"),
        ("toy made up 1", "trained"),
    ]


def test_a_promotion_by_hand_and_a_rollback(http: httpx.Client, project: str) -> None:
    stored(http, project, toy(1, 160))
    first = only(trained(http, project))["model"]
    stored(http, project, toy(2, 6))
    second = only(trained(http, project))["model"]
    address, who = f"/v1/cost-models/{second}/use", {"who": "ada", "why": "I know better"}
    assert http.post(address, json=who).status_code == 428
    tag = http.get(f"/v1/cost-models/{first}").headers["etag"]
    used = http.post(address, json=who, headers={"If-Match": tag})
    assert used.status_code == 200 and used.json()["state"] == "in use" and used.headers["etag"] != tag
    late = http.post(address.replace(second, first), json=who, headers={"If-Match": tag})
    assert (late.status_code, late.json()["field"]) == (412, "header.if-match") and second in late.json()["detail"]
    back = http.post(address.replace(second, first), json=who, headers={"If-Match": used.headers["etag"]})
    assert back.json()["state"] == "in use" and back.json()["uses"][0]["who"] == "ada"
    assert http.get(f"/v1/cost-models/{second}").json()["state"] == "retired"
    assert only(trained(http, project))["status"] == "unchanged", "a training does not undo what somebody decided"


def test_what_left_the_intervals_is_drift_and_makes_a_new_model(http: httpx.Client, project: str) -> None:
    # Measured often enough for intervals of what is known.
    before = sorted(stored(http, project, toy(1, slow=1.0 + again / 1000)) for again in range(3))
    first = only(trained(http, project))["model"]
    alike, slow = stored(http, project, toy(2, 40)), stored(http, project, toy(1, slow=3.0))
    calm, moved = (http.get(f"/v1/profiles/{id}/drift").json() for id in (alike, slow))
    assert not calm["drifted"] and calm["model"] == first
    assert moved["drifted"] and moved["outside"] > 0.5 and set(moved["families"]) == {"matmul", "elementwise"}
    second = only(trained(http, project))
    assert second["state"] == "in use" and "measured again" in second["why"]
    about = http.get(f"/v1/cost-models/{second['model']}").json()
    assert about["drift"]["drifted"] and about["superseded"] == before
    assert set(about["profiles"]) == {*before, alike, slow}
    assert http.get(f"/v1/profiles/{slow}/drift").json()["model"] == second["model"]


def test_what_was_stored_before_the_device_changed_is_superseded_though_no_model_in_use_knows_it(
    http: httpx.Client, project: str
) -> None:
    before = [stored(http, project, toy(1, slow=1.0 + again / 1000)) for again in range(2)]
    assert only(trained(http, project))["state"] == "in use"
    between = stored(http, project, toy(2))
    changed = toy(1, slow=2.0)
    both = msgspec.structs.replace(changed, operators=(*changed.operators, *toy(2, slow=2.0).operators))
    stored(http, project, both)
    now = only(trained(http, project))
    about = http.get(f"/v1/cost-models/{now['model']}").json()
    assert now["state"] == "in use" and about["superseded"] == sorted([*before, between])
    assert "times as long later" in now["why"]


def test_a_profile_that_was_not_measured_says_nothing_of_drift(http: httpx.Client, project: str) -> None:
    stored(http, project, toy(1))
    assert only(trained(http, project))["state"] == "in use"
    made_up = stored(http, project, toy(1, slow=9.0, measured=False))
    found = http.get(f"/v1/profiles/{made_up}/drift").json()
    assert found["samples"] == 0 and not found["drifted"] and sum(found["uncounted"].values()) == 80


def test_predictions_of_a_stored_profile(http: httpx.Client, project: str) -> None:
    stored(http, project, toy(1, 160))
    model = only(trained(http, project))["model"]
    profile = toy(3, 50)
    strange = msgspec.structs.replace(profile.operators[0], type="Riddle")
    id = stored(http, project, msgspec.structs.replace(profile, operators=(strange, *profile.operators[1:])))
    found = http.get(f"/v1/profiles/{id}/prediction", params={"level": 0.8}).json()
    assert (found["model"], found["level"]) == (model, 0.8) and found["operators"] == list(range(1, 50))
    columns = zip(found["low"], found["us"], found["high"], strict=True)
    assert all(low <= us <= high for low, us, high in columns)
    assert sum(found["kept"].values()) == 1 and set(found["source"]) <= {"seen", "learned", "roofline", "shared"}
    own = sum(o.duration_us for o in profile.operators)
    assert found["profile_step_us"] == pytest.approx(own, rel=1e-3)
    assert found["step_us"] == pytest.approx(sum(found["us"]) + strange.duration_us, rel=1e-3)
    wider = http.get(f"/v1/profiles/{id}/prediction", params={"level": 0.9, "model": model}).json()
    assert all(a >= b for a, b in zip(wider["high"], found["high"], strict=True))


def test_what_cannot_be_asked(http: httpx.Client, project: str) -> None:
    id = stored(http, project, toy(1))
    for question in ("drift", "prediction"):
        answer = http.get(f"/v1/profiles/{id}/{question}")
        assert answer.status_code == 409 and "POST /v1/cost-models" in answer.json()["remedy"]
        answer = http.get(f"/v1/profiles/{id}/{question}", params={"model": "cost-model-none"})
        assert (answer.status_code, answer.json()["field"]) == (422, "query.model")
        assert http.get(f"/v1/profiles/profile-none/{question}").status_code == 404
    assert http.get(f"/v1/profiles/{id}/prediction", params={"level": 1}).status_code == 422
    model = only(trained(http, project))["model"]
    other = stored(http, project, toy(2, 30, name="other"))
    answer = http.get(f"/v1/profiles/{other}/drift", params={"model": model})
    assert answer.status_code == 409 and "not comparable" in answer.json()["detail"]
    assert http.get(f"/v1/profiles/{other}/prediction", params={"model": model}).status_code == 200
    elsewhere = stored(http, project + "-else", toy(4, 30))
    assert http.get(f"/v1/profiles/{elsewhere}/drift", params={"model": model}).status_code == 422
    for address in ("", "/document"):
        assert http.get(f"/v1/cost-models/cost-model-none{address}").status_code == 404
    body, tag = {"who": "a", "why": "b"}, {"If-Match": '"x"'}
    assert http.post("/v1/cost-models/cost-model-none/use", json=body, headers=tag).status_code == 404
    assert http.post("/v1/cost-models", json={"project": project, "devise": "toy"}).status_code == 422
    assert http.get("/v1/cost-models", params={"state": "best"}).status_code == 422


def test_a_training_is_cancelled_and_leaves_nothing(http: httpx.Client, project: str) -> None:
    stored(http, project, toy(1, name="slow"))
    at = http.post("/v1/cost-models", json={"project": project}).headers["location"]
    while http.get(at).json()["progress"] is None:
        time.sleep(0.02)
    assert http.delete(at).status_code == 202
    job = finished(http, at)
    assert (job["state"], job["result"]) == ("cancelled", {"status": "cancelled", "reason": "cancelled"})
    assert http.get("/v1/cost-models", params={"project": project}).json()["models"] == []


def test_devices_done_before_a_failure_are_kept(http: httpx.Client, project: str) -> None:
    stored(http, project, toy(1, name="a"))
    stored(http, project, toy(2, name="faulty"))
    job = trained(http, project)
    assert job["state"] == "failed" and "memory limit" in job["result"]["reason"]
    assert [(m["device"], m["status"]) for m in job["result"]["models"]] == [("a made up 1", "trained")]
    job = trained(http, project, device="faulty")
    assert job["result"] == {"status": "failed", "reason": "out of its memory limit of 5 bytes"}


def measured(http: httpx.Client, plan: str, **more: Any) -> httpx.Response:
    asked = {"steps": 5, "step_us": 120.0, "peak_bytes": 10**9, "copies": [], **more}
    return http.post(f"/v1/plans/{plan}/measurements", json=asked)


@pytest.fixture
def plan(http: httpx.Client, project: str, fresh: Callable[..., Profile]) -> str:
    """A plan of the worked example on the toy; the fake solver predicts a step of 100 us."""
    profile = fresh(framework="made up", framework_version="1")
    named = msgspec.structs.replace(profile.device, name="toy")
    id = stored(http, project, msgspec.structs.replace(profile, device=named))
    job = finished(http, http.post("/v1/plans", json={"profile": id}).headers["location"])
    return str(job["result"]["plan_id"])


def test_what_was_measured_of_a_plan_stands_beside_what_it_predicted(http: httpx.Client, plan: str) -> None:
    first = measured(http, plan)
    assert first.status_code == 201 and first.json()["step_off"] == 1.2 and first.json()["peak_off"] is None
    again = measured(http, plan)
    assert (again.status_code, again.json()) == (200, first.json())
    measured(http, plan, step_us=90.0)
    listed = http.get(f"/v1/plans/{plan}/measurements").json()["measurements"]
    assert [one["step_us"] for one in listed] == [120.0, 90.0]
    assert http.get("/v1/plans/plan-none/measurements").status_code == 404
    assert measured(http, "plan-none").status_code == 404
    for wrong in ({"step_us": 0}, {"steps": "5"}, {"copies": [{"bytes": 0, "us": 1}]}, {"peak": 5}):
        assert measured(http, plan, **wrong).status_code == 422


def test_measured_plans_are_training_data(http: httpx.Client, project: str, plan: str) -> None:
    stored(http, project, toy(1))
    first = only(trained(http, project))
    sizes = [1 << n for n in range(10, 26)]
    copies = [{"bytes": size, "us": 10 + size / 5000} for size in sizes]
    id = measured(http, plan, copies=copies).json()["id"]
    second = only(trained(http, project))
    assert second["status"] == "trained" and second["state"] == "in use" and "CopyIn is new" in second["why"]
    model = http.get(f"/v1/cost-models/{second['model']}").json()
    assert model["measurements"] == [id] and model["compared_with"] == first["model"]
    assert (model["plans"]["step"]["plans"], model["plans"]["step"]["median"]) == (1, 1.2)
    document = load_model(http.get(f"/v1/cost-models/{second['model']}/document").content)
    assert set(document.links) == {"CopyIn"}
