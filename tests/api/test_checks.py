"""Checks against what was accepted, and how it comes to be accepted."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest
import zstandard

from api import openapi
from hyperopt.profile import Profile
from hyperopt.store.tables import now
from tests.gate.test_check import grown
from tests.gate.test_throughput import noisy, samples
from tests.samples import MIB, encoded, worked_example

Fresh = Callable[..., Profile]
Json = dict[str, Any]
NEW = {"If-None-Match": "*"}
_count = iter(range(10**6))


@pytest.fixture
def branch() -> str:
    return f"branch-{next(_count)}"


def stored(http: httpx.Client, profile: Profile) -> str:
    return str(http.post("/v1/profiles", content=encoded(profile)).json()["id"])


def accept(http: httpx.Client, profile: str, branch: str, headers: dict[str, str], **more: Any) -> httpx.Response:
    asked = {"profile": profile, "branch": branch, "who": "ada", "why": "release 1", **more}
    return http.post("/v1/baselines", json=asked, headers=headers)


def check(http: httpx.Client, candidate: str, **more: Any) -> Json:
    answer = http.post("/v1/checks", json={"candidate": candidate, **more})
    assert answer.status_code == 201, answer.text
    kept: Json = answer.json()
    assert http.get(answer.headers["location"]).json() == kept
    return kept


def test_a_candidate_is_judged_against_what_was_accepted(http: httpx.Client, fresh: Fresh, branch: str) -> None:
    first = stored(http, fresh())
    made = accept(http, first, branch, NEW)
    assert made.status_code == 201 and made.json()["profile"] == first
    worse = stored(http, grown(fresh(), 0, MIB))
    found = check(http, worse, branch=branch, commit="abc")
    assert (found["verdict"], found["baseline"], found["commit"]) == ("regression", first, "abc")
    assert found["result"]["memory"]["difference_bytes"] == MIB and found["policy"]["level"] == 0.01
    assert check(http, worse, branch=branch, policy={"memory_bytes": MIB})["verdict"] == "pass"
    assert check(http, worse, baseline=worse)["verdict"] == "pass"
    # Whatever the verdict, the baseline is what it was.
    assert http.get(made.headers["location"]).json()["profile"] == first


def test_samples_are_judged_with_the_policy_of_the_request(http: httpx.Client, fresh: Fresh) -> None:
    id = stored(http, fresh())
    series = msgspec.to_builtins(samples(noisy(0, 10, 1.2)))
    assert check(http, id, baseline=id, samples=series)["verdict"] == "regression"
    wide = check(http, id, baseline=id, samples=series, policy={"tolerance_percent": 30})
    assert wide["verdict"] == "pass" and wide["result"]["metrics"][0]["n"] == 10
    series["metrics"][0]["candidate"] = []
    refused = http.post("/v1/checks", json={"candidate": id, "baseline": id, "samples": series})
    assert refused.status_code == 422 and refused.json()["field"] == "$.metrics[0].candidate"


def test_another_kind_is_never_compared_with_it(http: httpx.Client, fresh: Fresh, branch: str) -> None:
    accept(http, stored(http, fresh(framework="mindspore", framework_version="2.9.0")), branch, NEW)
    for other in ({"framework_version": "2.10.0"}, {"model": "b"}, {"rank": 1, "world_size": 2}):
        run = {"framework": "mindspore", "framework_version": "2.9.0", "name": str(other), **other}
        answer = http.post("/v1/checks", json={"candidate": stored(http, fresh(**run)), "branch": branch})
        assert answer.status_code == 409 and answer.json()["type"].endswith("no-baseline")
    same = stored(http, fresh(framework="mindspore", framework_version="2.9.0"))
    assert http.post("/v1/checks", json={"candidate": same, "branch": "elsewhere"}).status_code == 409
    assert check(http, same, branch=branch)["verdict"] == "pass"


def test_replacing_needs_a_precondition_and_a_check(http: httpx.Client, fresh: Fresh, branch: str) -> None:
    first, second = stored(http, fresh()), stored(http, fresh())
    assert accept(http, first, branch, {}).status_code == 428
    made = accept(http, first, branch, NEW)
    seen = {"If-Match": made.headers["etag"]}
    assert accept(http, second, branch, NEW).status_code == 412
    assert accept(http, second, branch, {"If-Match": '"0"'}).status_code == 412
    unchecked = accept(http, second, branch, seen)
    assert unchecked.status_code == 409 and unchecked.json()["type"].endswith("baseline-unchecked")
    other = check(http, first, branch=branch)["id"]  # of another candidate
    assert accept(http, second, branch, seen, check=other).status_code == 409
    passed = check(http, second, branch=branch)["id"]
    replaced = accept(http, second, branch, seen, check=passed)
    assert replaced.status_code == 200 and replaced.headers["etag"] != made.headers["etag"]
    assert accept(http, second, branch, seen, check=passed).status_code == 412  # somebody was faster
    history = http.get(made.headers["location"]).json()["history"]
    assert [(one["profile"], one["who"], one["why"], one["check"]) for one in history] == [
        (second, "ada", "release 1", passed),
        (first, "ada", "release 1", None),
    ]


def test_a_regression_becomes_the_baseline_only_by_name(http: httpx.Client, fresh: Fresh, branch: str) -> None:
    first, worse = stored(http, fresh()), stored(http, grown(fresh(), 0, MIB))
    seen = {"If-Match": accept(http, first, branch, NEW).headers["etag"]}
    failed = check(http, worse, branch=branch)
    assert failed["verdict"] == "regression"
    refused = accept(http, worse, branch, seen, check=failed["id"])
    assert refused.status_code == 409 and refused.json()["type"].endswith("baseline-regressed")
    assert accept(http, worse, branch, seen, check=failed["id"], accept_regression=True).status_code == 200


def test_a_second_check_does_not_launder_the_first(http: httpx.Client, fresh: Fresh, branch: str) -> None:
    """A wider policy, fewer metrics, another branch's name: what any check found against the baseline stands."""
    first, worse, slow = stored(http, fresh()), stored(http, grown(fresh(), 0, MIB)), stored(http, fresh())
    seen = {"If-Match": accept(http, first, branch, NEW).headers["etag"]}
    wide = check(http, worse, branch=branch, policy={"memory_percent": 1e6})
    assert wide["verdict"] == "pass"
    refused = accept(http, worse, branch, seen, check=wide["id"])  # though no other check was ever made
    assert refused.status_code == 409 and "by its own policy only" in refused.json()["detail"]

    series = msgspec.to_builtins(samples(noisy(0, 10, 1.5)))
    failed = check(http, slow, baseline=first, branch=f"{branch}-of-ada", samples=series)
    without = check(http, slow, branch=branch)
    assert (failed["verdict"], without["verdict"]) == ("regression", "pass")
    refused = accept(http, slow, branch, seen, check=without["id"])
    assert refused.status_code == 409 and failed["id"] in refused.json()["detail"]
    assert refused.json()["type"].endswith("baseline-regressed")
    assert accept(http, slow, branch, seen, check=without["id"], accept_regression=True).status_code == 200


def test_checks_are_listed_page_by_page_and_their_history_is_told(
    http: httpx.Client, fresh: Fresh, branch: str
) -> None:
    first = stored(http, fresh(model="listed"))
    made = []
    for i in range(6):
        candidate = stored(http, grown(fresh(model="listed"), 0, MIB * (i >= 3)))
        made.append(check(http, candidate, baseline=first, branch=branch, commit=f"c{i}"))
    made.append(check(http, made[-1]["candidate"], baseline=first, branch=branch, commit="c5"))  # once more
    other = check(http, stored(http, fresh(model="other")), baseline=first, branch=branch)

    listed: list[Json] = []
    page: Json = {"next": None}
    while "next" in page:
        asked: Json = {"branch": branch, "limit": 3} | ({"before": page["next"]} if page["next"] else {})
        page = {name: value for name, value in http.get("/v1/checks", params=asked).json().items() if value is not None}
        listed += page["checks"]
    assert [one["id"] for one in listed] == [other["id"], *(one["id"] for one in made[::-1])]
    assert (listed[1]["commit"], listed[1]["model"], listed[1]["verdict"]) == ("c5", "listed", "regression")
    assert listed[1]["created_at"] and listed[1]["reason"].startswith("replayed peak")
    of_model = http.get("/v1/checks", params={"branch": branch, "model": "other"}).json()
    assert [one["id"] for one in of_model["checks"]] == [other["id"]] and of_model.get("next") is None

    told = http.get("/v1/history", params={"branch": branch}).json()
    by_model = {one["model"]: one for one in told["histories"]}
    assert by_model["listed"]["checks"] == 6 and by_model["other"]["changes"] == []
    (found,) = [one for one in by_model["listed"]["changes"] if one["series"] == "replayed peak"]
    assert (found["kind"], found["before"], found["after"], found["p"]) == ("exact", "c2", "c3", 0)
    assert http.get("/v1/history", params={"branch": "nowhere"}).json()["histories"] == []
    assert http.get("/v1/history", params={"limit": 0}).json()["field"] == "query.limit"


def told(http: httpx.Client, branch: str, **asked: Any) -> list[Json]:
    """The changes of the branch's replayed peak, of the one kind of run that it has."""
    (history,) = http.get("/v1/history", params={"branch": branch, **asked}).json()["histories"]
    return [{"checks": history["checks"]}, *(one for one in history["changes"] if one["kind"] == "exact")]


def test_a_commit_keeps_its_place_in_the_history(http: httpx.Client, fresh: Fresh, branch: str) -> None:
    """Whatever is checked again, with a commit or without, by another run of it or of another model."""
    runs = [stored(http, grown(fresh(model="placed"), 0, MIB * (i >= 3))) for i in range(6)]
    slow = {"samples": msgspec.to_builtins(samples(noisy(0, 10, 1.5)))}
    check(http, runs[0], baseline=runs[0], branch=branch)  # its commit is said only later
    for i, run in enumerate(runs):
        check(http, run, baseline=runs[0], branch=branch, commit=f"c{i}", **slow)
    before = told(http, branch)
    assert before[0] == {"checks": 6} and [(one["before"], one["after"]) for one in before[1:]] == [("c2", "c3")]
    check(http, runs[1], baseline=runs[0], branch=branch, commit="c1")
    check(http, runs[4], baseline=runs[0], branch=branch)
    check(http, stored(http, fresh(model="placed")), baseline=runs[0], branch=branch, commit="c0")
    assert told(http, branch) == before
    assert told(http, branch, limit=3) == [{"checks": 3}]
    (four, change) = told(http, branch, limit=4)
    assert four == {"checks": 4} and (change["before"], change["after"]) == ("c2", "c3")
    # Of another model for the first time: the place is the commit's.
    other = [stored(http, grown(fresh(model="late"), 0, MIB * i)) for i in range(2)]
    for commit, run in (("c5", other[1]), ("c2", other[0])):
        check(http, run, baseline=other[0], branch=branch, commit=commit)
    found = http.get("/v1/history", params={"branch": branch, "model": "late", "limit": 2}).json()["histories"]
    assert [(one["before"], one["after"]) for one in found[0]["changes"]] == [("c2", "c5")]
    # A newer figure of a commit takes the place of the older.
    check(http, stored(http, grown(fresh(model="placed"), 0, MIB)), baseline=runs[0], branch=branch, commit="c2")
    assert [(one["before"], one["after"]) for one in told(http, branch, model="placed")[1:]] == [("c1", "c2")]


def test_only_its_own_commits_are_a_branch_s_history(http: httpx.Client, fresh: Fresh, branch: str) -> None:
    runs = [stored(http, grown(fresh(model="own"), 0, MIB * i)) for i in range(4)]
    for commit, run, head in (("c0", runs[0], None), ("p1", runs[2], "pull/7"), ("c1", runs[1], branch)):
        kept = check(http, run, baseline=runs[0], branch=branch, commit=commit, head=head)
        assert kept["head"] == (head or "")
    found = told(http, branch)
    assert found[0] == {"checks": 2} and [(one["before"], one["after"]) for one in found[1:]] == [("c0", "c1")]
    # It is kept all the same; and once merged it is checked as the branch's own.
    listed = http.get("/v1/checks", params={"branch": branch}).json()["checks"]
    assert [(one["commit"], one["head"]) for one in listed] == [("c1", branch), ("p1", "pull/7"), ("c0", "")]
    check(http, runs[2], baseline=runs[0], branch=branch, commit="c2")
    assert told(http, branch)[0] == {"checks": 3} and told(http, branch)[-1]["after"] == "c2"


def test_a_parameter_that_does_not_exist_is_refused(http: httpx.Client) -> None:
    """At every address but that of the health check, before anything else is looked at."""
    paths = json.loads(openapi.text())["paths"]
    asked = [(method, path) for path, methods in paths.items() for method in methods if path != "/v1/healthz"]
    assert len(asked) > 20
    for method, path in asked:
        address = re.sub(r"\{\w+\}", "x", path)
        if method != "get":
            continue
        answer = http.get(address, params={"brnach": "main"})
        assert answer.status_code == 422 and answer.json()["field"] == "query.brnach", address
        assert "422" in paths[path][method]["responses"]
    body = encoded(worked_example(name="nowhere"))
    answer = http.post("/v1/profiles", params={"projct": "x"}, content=body)
    assert answer.status_code == 422 and "project" in answer.json()["detail"]
    assert http.get("/v1/healthz", params={"probe": 1}).status_code == 200


@pytest.mark.parametrize("text", [" ", "\n", "\u3000 \t", ""])
def test_who_and_why_are_said(http: httpx.Client, fresh: Fresh, branch: str, text: str) -> None:
    id = stored(http, fresh())
    for field in ("who", "why"):
        refused = accept(http, id, branch, NEW, **{field: text})
        assert refused.status_code == 422 and refused.json()["field"] == f"$.{field}"


def test_frozen_and_stale_baselines_are_reported(
    http: httpx.Client, fresh: Fresh, branch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stored(http, fresh()), stored(http, fresh())
    made = accept(http, first, branch, NEW)
    at = made.headers["location"]
    body = {"frozen": True, "who": "grace", "why": "before the release"}
    assert http.patch(at, json=body).status_code == 428
    frozen = http.patch(at, json=body, headers={"If-Match": made.headers["etag"]})
    assert frozen.status_code == 200 and frozen.json()["frozen"] and frozen.json()["history"][0]["act"] == "frozen"
    found = check(http, second, branch=branch)
    by_id = check(http, second, branch=branch, baseline=first)
    for one in (found, by_id):
        assert any("frozen, by grace: before the release" in note for note in one["result"]["notes"])
    assert "frozen" not in str(check(http, second, branch=branch, baseline=second)["result"]["notes"])
    seen = {"If-Match": frozen.headers["etag"]}
    assert accept(http, second, branch, seen, check=found["id"]).json()["type"].endswith("baseline-frozen")
    (listed,) = http.get("/v1/baselines", params={"branch": branch}).json()["baselines"]
    assert listed["frozen"] and not listed["stale"] and listed["checks"] == 2
    monkeypatch.setattr("hyperopt.store.baselines.now", lambda: now() + timedelta(days=40))
    (listed,) = http.get("/v1/baselines", params={"branch": branch}).json()["baselines"]
    assert listed["stale"]
    assert any("stale: accepted" in note for note in check(http, second, branch=branch)["result"]["notes"])
    lax = check(http, second, branch=branch, policy={"stale_after_days": 60})
    assert not any("stale" in note for note in lax["result"]["notes"])
    thawed = http.patch(at, json={**body, "frozen": False}, headers=seen)
    assert not thawed.json()["frozen"] and thawed.json()["profile"] == first


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "$.candidate"),
        ({"candidate": "profile-0"}, "$.candidate"),
        ({"candidate": "ID", "baseline": "profile-0"}, "$.baseline"),
        ({"candidate": "ID", "baseline": "ID", "policy": {"tolerance": 3}}, "$.policy.tolerance"),
        ({"candidate": "ID", "baseline": "ID", "policy": {"level": 0}}, "$.policy.level"),
        ({"candidate": "ID", "baseline": "ID", "samples": {}}, "$.format"),
    ],
)
def test_bad_requests_are_named_by_field(http: httpx.Client, fresh: Fresh, asked: Json, field: str) -> None:
    id = stored(http, fresh())
    body = {name: id if value == "ID" else value for name, value in asked.items()}
    answer = http.post("/v1/checks", json=body)
    assert answer.status_code == 422 and answer.json()["field"] == field


def test_a_request_may_be_compressed_and_says_that_it_is_json(http: httpx.Client, fresh: Fresh) -> None:
    id = stored(http, fresh())
    body = msgspec.json.encode({"candidate": id, "baseline": id})
    kind = {"Content-Type": "application/json"}
    for packed, encoding in ((gzip.compress(body), "gzip"), (zstandard.compress(body), "zstd")):
        for headers in (kind, {**kind, "Content-Encoding": encoding}):
            assert http.post("/v1/checks", content=packed, headers=headers).status_code == 201
    for content, headers, status, field in (
        (body, {}, 415, "header.content-type"),
        (body, {"Content-Type": "text/plain"}, 415, "header.content-type"),
        (body, {**kind, "Content-Encoding": "br"}, 415, "header.content-encoding"),
        (body, {**kind, "Content-Encoding": "gzip"}, 400, "$"),
        (gzip.compress(b" " * (2 << 20)), kind, 422, "$"),
        (gzip.compress(body)[:-9], kind, 422, "$"),
    ):
        answer = http.post("/v1/checks", content=content, headers=headers)
        assert answer.status_code == status and answer.json()["field"] == field


def test_what_is_not_there_is_404(http: httpx.Client) -> None:
    assert http.get("/v1/checks/check-0").status_code == http.get("/v1/baselines/baseline-0").status_code == 404
    asked = {"frozen": True, "who": "a", "why": "b"}
    assert http.patch("/v1/baselines/baseline-0", json=asked, headers={"If-Match": '"x"'}).status_code == 404


def test_the_client_does_the_same(server: str, fresh: Fresh, branch: str) -> None:
    from hyperopt.client import Client, ServiceError

    with Client(server) as service:
        first, second = (service.upload(encoded(fresh()))["id"] for _ in range(2))
        made = service.accept(first, who="ada", why="first", branch=branch)
        found = service.check(second, branch=branch, commit="1")
        assert service.fetch_check(found["id"])["verdict"] == "pass"
        held = service.freeze(made["id"], True, who="ada", why="hold", etag=made["etag"])
        with pytest.raises(ServiceError, match="frozen"):
            service.accept(second, who="ada", why="x", branch=branch, etag=held["etag"], check=found["id"])
        free = service.freeze(made["id"], False, who="ada", why="go", etag=held["etag"])
        moved = service.accept(second, who="ada", why="x", branch=branch, etag=free["etag"], check=found["id"])
        assert service.baselines(branch=branch) == [moved]
        assert [one["id"] for one in service.checks(branch=branch)] == [found["id"]]
        (told,) = service.history(branch)
        assert told["checks"] == 1 and told["changes"] == []
