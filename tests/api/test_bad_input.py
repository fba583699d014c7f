"""Every fault is a 4xx that names field and place, and leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperopt.profile import Profile
from tests.samples import encoded, random_profile, worked_example

Tree = dict[str, Any]


def stored(http: httpx.Client) -> int:
    count: int = http.get("/v1/healthz").json()["profiles"]
    return count


def changed(change: Callable[[Tree], object]) -> bytes:
    tree = msgspec.to_builtins(worked_example(name="bad"))
    change(tree)
    return json.dumps(tree).encode()


GOOD = encoded(worked_example(name="bad"))
FAULTS: dict[str, tuple[bytes, str, str]] = {
    "empty body": (b"", "$", "not JSON"),
    "truncated": (GOOD[:-20], "$", "truncated"),
    "not JSON": (b"profile: yes", "$", "not JSON"),
    "not UTF-8": (b'{"format": "\xff"}', "$", "not JSON"),
    "not an object": (b"[]", "$", "expected an object"),
    "truncated gzip": (gzip.compress(GOOD)[:-9], "$", "truncated gzip"),
    "damaged gzip": (gzip.compress(GOOD)[:60] + b"x" * 40 + gzip.compress(GOOD)[100:], "$", "gzip"),
    "compressed twice": (gzip.compress(gzip.compress(GOOD)), "$", "compressed twice"),
    "a bomb in a package": (gzip.compress(gzip.compress(b"{}," * 2**20)), "$", "compressed twice"),
    "no format": (changed(lambda t: t.pop("format")), "$.format", "expected hyperopt.profile/1"),
    "wrong major": (
        changed(lambda t: t.update(format="hyperopt.profile/2")),
        "$.format",
        "major version of 'hyperopt.profile/2' is not supported",
    ),
    "a plan": (
        changed(lambda t: t.update(format="hyperopt.plan/1")),
        "$.format",
        "expected hyperopt.profile/1",
    ),
    "negative size": (changed(lambda t: t["storages"][1].update(bytes=-1)), "$.storages[1].bytes", ">= 0"),
    "fractional size": (changed(lambda t: t["storages"][1].update(bytes=1.5)), "$.storages[1].bytes", "int"),
    "negative time": (
        changed(lambda t: t["operators"][3].update(duration_us=-0.1)),
        "$.operators[3].duration_us",
        ">= 0",
    ),
    "NaN": (
        GOOD.replace(b'"duration_us":10000', b'"duration_us":NaN', 1),
        "$.operators[0].duration_us",
        "NaN is no number",
    ),
    "read before write": (
        changed(lambda t: t["operators"][1].update(reads=[1])),
        "$.operators[1].reads[0]",
        "nothing has written before",
    ),
    "read of no storage": (
        changed(lambda t: t["operators"][7].update(reads=[1, 77])),
        "$.operators[7].reads[1]",
        "no storage 77",
    ),
    "two storages with one id": (
        changed(lambda t: t["storages"][2].update(id=1)),
        "$.storages[2].id",
        "storage 1 is also $.storages[1]",
    ),
    "operator out of range": (
        changed(lambda t: t["storages"][0].update(window=[2, 10])),
        "$.storages[0].window",
        "[2, 10] is not an ordered pair of operators",
    ),
    "a tier twice": (
        changed(lambda t: t["device"]["links"].update(tiers=[{"name": "pool"}, {"name": "pool"}])),
        "$.device.links.tiers[1].name",
        "given twice",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_profile_is_refused_with_its_place(http: httpx.Client, fault: str) -> None:
    body, field, words = FAULTS[fault]
    before = stored(http)
    answer = http.post("/v1/profiles", content=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert words in answer.json()["detail"]
    assert stored(http) == before


# DBOS draws random numbers in threads of its own, and hypothesis blames the strategies.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), data=st.data())
def test_any_mutated_profile_is_stored_or_refused(http: httpx.Client, seed: int, data: st.DataObject) -> None:
    tree: Any = msgspec.to_builtins(random_profile(seed))
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(tree, data)
    before = stored(http)
    answer = http.post("/v1/profiles", content=json.dumps(tree).encode())
    assert answer.status_code in (200, 201, 409, 422), answer.text
    assert stored(http) == before + (answer.status_code == 201)
    if answer.status_code == 201:
        for question in ("peak", "idle", "accesses"):
            assert http.get(f"{answer.headers['location']}/{question}").status_code in (200, 409)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.lists(st.integers(-2, 30), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def mutate(tree: Any, data: st.DataObject) -> None:
    """Replaces, removes, repeats or moves one value somewhere in the tree."""
    at = tree
    while True:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 3)) == 0:
            break
        at = inner
    act = data.draw(st.sampled_from(["replace", "remove", "repeat", "move"]))
    if act == "replace":
        at[key] = data.draw(JUNK)
    elif act == "remove":
        del at[key]
    elif isinstance(at, list):
        value = at[key] if act == "repeat" else at.pop(key)
        at.insert(data.draw(st.integers(0, len(at))), value)


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=200),
    prefix=st.sampled_from([b"", b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", b"{"]),
)
def test_any_bytes_at_all_are_refused(http: httpx.Client, body: bytes, prefix: bytes) -> None:
    assert http.post("/v1/profiles", content=prefix + body).status_code == 422


def test_too_large_as_sent_or_unpacked(http: httpx.Client) -> None:
    before = stored(http)
    declared = http.post("/v1/profiles", content=b" " * 200_001)
    streamed = http.post("/v1/profiles", content=iter([b" " * 100_000] * 3))
    assert (declared.status_code, streamed.status_code) == (413, 413)
    assert "200000 bytes" in declared.json()["detail"]
    bomb = http.post("/v1/profiles", content=gzip.compress(b" " * 400_001))
    assert bomb.status_code == 422 and "larger than 400000 bytes when unpacked" in bomb.json()["detail"]
    assert stored(http) == before


def test_content_encoding_is_believed_only_when_true(http: httpx.Client) -> None:
    odd = http.post("/v1/profiles", content=GOOD, headers={"Content-Encoding": "br"})
    assert (odd.status_code, odd.json()["field"]) == (415, "header.content-encoding")
    assert odd.headers["accept-encoding"] == "gzip, zstd"
    false = http.post("/v1/profiles", content=GOOD, headers={"Content-Encoding": "gzip"})
    assert (false.status_code, false.json()["field"]) == (400, "$")


def test_a_client_that_hangs_up_leaves_nothing(http: httpx.Client, server: str) -> None:
    before = stored(http)
    host, _, port = server.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/profiles HTTP/1.1\r\nHost: x\r\nContent-Length: {len(GOOD)}\r\n\r\n".encode()
        connection.sendall(head + GOOD[:100])
    assert stored(http) == before


PLANS: dict[str, tuple[bytes, int, str]] = {
    "not JSON": (b"{", 400, "$"),
    "not an object": (b"[]", 422, "$"),
    "no profile": (b"{}", 422, "$.profile"),
    "unknown profile": (b'{"profile": "profile-nobody"}', 422, "$.profile"),
    "misspelt field": (b'{"profile": "x", "hbm": 1}', 422, "$.hbm"),
    "number in quotes": (b'{"profile": "x", "budget": {"hbm_bytes": "1"}}', 422, "$.budget.hbm_bytes"),
    "negative budget": (b'{"profile": "x", "budget": {"hbm_bytes": -1}}', 422, "$.budget.hbm_bytes"),
    "negative tier": (b'{"profile": "x", "budget": {"tiers": {"host": -1}}}', 422, "$.budget.tiers.host"),
    "unknown objective": (b'{"profile": "x", "objective": "beauty"}', 422, "$.objective"),
    "no time": (b'{"profile": "x", "time_limit_s": 0}', 422, "$.time_limit_s"),
    "endless time": (b'{"profile": "x", "time_limit_s": 1e999}', 422, "$.time_limit_s"),
}


@pytest.mark.parametrize("fault", PLANS)
def test_a_bad_request_for_a_plan(http: httpx.Client, fault: str) -> None:
    body, status, field = PLANS[fault]
    answer = http.post("/v1/plans", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json().get("field")) == (status, field)


def test_a_request_for_a_plan_is_small(http: httpx.Client) -> None:
    answer = http.post("/v1/plans", content=b" " * (1 << 20) + b"{}", headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_requests_beyond_what_profile_or_server_have(http: httpx.Client, fresh: Callable[[], Profile]) -> None:
    id = http.post("/v1/profiles", content=encoded(fresh())).json()["id"]
    tier = http.post("/v1/plans", json={"profile": id, "budget": {"tiers": {"flash": 1}}})
    assert (tier.status_code, tier.json()["field"]) == (422, "$.budget.tiers.flash")
    node = {"memory_bytes": 1000, "in_use_bytes": 200, "pinned_overhead": 2, "ranks": 4}
    asked = {"profile": id, "budget": {"tiers": {"host": 101}}, "node": node}
    unsafe = http.post("/v1/plans", json=asked)
    assert unsafe.status_code == 422 and unsafe.json()["field"] == "$.budget.tiers.host"
    assert "at most 100 bytes" in unsafe.json()["remedy"]
    strange = http.post("/v1/plans", json={"profile": id, "node": {"memory_bytes": 1000, "ranks": 0}})
    assert strange.status_code == 422 and strange.json()["field"] == "$.node.ranks"
    crowded = {"memory_bytes": 1000, "ranks": 2, "copying_ranks": 3}
    crowd = http.post("/v1/plans", json={"profile": id, "node": crowded})
    assert crowd.status_code == 422 and crowd.json()["field"] == "$.node.copying_ranks"
    slow = http.post("/v1/plans", json={"profile": id, "max_slowdown": 0.1})
    assert slow.status_code == 422 and slow.json()["field"] == "$.max_slowdown"
    patience = http.post("/v1/plans", json={"profile": id, "time_limit_s": 101})
    assert (patience.status_code, patience.json()["field"]) == (422, "$.time_limit_s")


def test_a_bad_plan_document(http: httpx.Client, fresh: Callable[[], Profile]) -> None:
    at = http.post("/v1/profiles", content=encoded(fresh())).headers["location"] + "/validate"
    action = {"op": -1, "when": "after", "kind": "release", "storage": 1}
    body = {"format": "hyperopt.plan/1", "residency": {"actions": [action]}}
    answer = http.post(at, json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "$.residency.actions[0].op")


def test_what_is_not_there(http: httpx.Client) -> None:
    for path in (
        "profiles/profile-x",
        "profiles/profile-x/peak",
        "profiles/profile-x/idle",
        "profiles/profile-x/accesses",
    ):
        assert http.get(f"/v1/{path}").status_code == 404
    for path in ("profiles/profile-x/document", "plans/plan-x", "jobs/job-x", "jobs/job-x/events", "nothing"):
        answer = http.get(f"/v1/{path}")
        assert answer.status_code == 404 and answer.json()["detail"]
    assert http.delete("/v1/jobs/job-x").status_code == 404
    wrong = http.put("/v1/plans")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"


def test_bad_parameters_are_named(http: httpx.Client) -> None:
    for query, field in (
        ({"limit": "0"}, "query.limit"),
        ({"project": ""}, "query.project"),
        ({"limit": "x"}, "query.limit"),
    ):
        answer = http.get("/v1/profiles", params=query)
        assert (answer.status_code, answer.json()["field"]) == (422, field)


def many(tree: Tree) -> None:
    tree["storages"] = [{"id": i, "bytes": 2**53} for i in range(1025)]
    tree["operators"] = [{"duration_us": 1.0, "writes": list(range(1025))}]


UNSTORABLE: dict[str, tuple[Callable[[Tree], object], str]] = {
    "null in a name": (lambda t: t["operators"][2].update(name="a\0b"), "$.operators[2].name"),
    "null in a storage's name": (lambda t: t["storages"][2].update(name="\0"), "$.storages[2].name"),
    "null in the model": (lambda t: t["run"].update(model="\0"), "$.run.model"),
    "stage beyond 64 bits": (lambda t: t["operators"][2].update(stage=-(2**64)), "$.operators[2].stage"),
    "eternal step": (lambda t: [o.update(duration_us=1e15) for o in t["operators"]], "$.operators"),
    "more than all memory": (many, "$.storages"),
}


@pytest.mark.parametrize("fault", UNSTORABLE)
def test_what_no_database_holds_is_refused(http: httpx.Client, fault: str) -> None:
    change, field = UNSTORABLE[fault]
    answer = http.post("/v1/profiles", content=changed(change))
    assert (answer.status_code, answer.json().get("field")) == (422, field), answer.text


def test_half_a_character_is_not_json(http: httpx.Client) -> None:
    answer = http.post("/v1/profiles", content=GOOD.replace(b'"bad"', b'"\\ud800"'))
    assert answer.status_code == 422
