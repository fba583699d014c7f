from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator

import httpx
import msgspec
import zstandard

from hyperopt.plan import Action, Plan, Recompute, Residency
from hyperopt.profile import Profile
from tests.samples import MIB, encoded, worked_example

Fresh = Callable[..., Profile]


def test_upload_list_show(http: httpx.Client, fresh: Fresh) -> None:
    profile = fresh(name="nightly", rank=1, world_size=2)
    answer = http.post("/v1/profiles", params={"project": "llm"}, content=encoded(profile))
    summary = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/profiles/{summary['id']}"
    assert (summary["peak_bytes"], summary["operators"], summary["rank"]) == (768 * MIB, 10, 1)
    assert (summary["project"], summary["run_name"], summary["digest"]) == ("llm", "nightly", profile.digest)
    assert http.get(answer.headers["location"]).json() == summary
    assert http.get("/v1/profiles", params={"project": "llm", "run": "nightly"}).json()["profiles"] == [summary]


def test_the_same_profile_again_is_the_same_resource(http: httpx.Client, fresh: Fresh) -> None:
    data = encoded(fresh())
    first = http.post("/v1/profiles", content=data)
    again = http.post("/v1/profiles", content=gzip.compress(data))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.headers["location"] == again.headers["location"] and first.json() == again.json()


def test_gzip_and_zstd_by_header_or_by_magic_bytes(http: httpx.Client, fresh: Fresh) -> None:
    for pack, name in ((gzip.compress, "gzip"), (zstandard.ZstdCompressor().compress, "zstd")):
        for headers in ({}, {"Content-Encoding": name}):
            packed = pack(encoded(fresh()))
            answer = http.post("/v1/profiles", content=packed, headers=headers)
            assert answer.status_code == 201 and answer.json()["document_encoding"] == name
            kept = http.get(answer.headers["location"] + "/document")
            assert kept.content == packed and kept.headers["content-type"] == f"application/{name}"


def test_a_streamed_upload_of_unknown_length(http: httpx.Client, fresh: Fresh) -> None:
    data = encoded(fresh())

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    assert http.post("/v1/profiles", content=chunks()).status_code == 201


def test_unknown_fields_are_warned_about(http: httpx.Client, fresh: Fresh) -> None:
    tree = msgspec.to_builtins(fresh())
    tree["colour"] = "blue"
    answer = http.post("/v1/profiles", json=tree)
    assert answer.status_code == 201
    assert answer.json()["warnings"] == ["unknown field $.colour left out"]


def test_the_three_questions(http: httpx.Client, fresh: Fresh) -> None:
    at = http.post("/v1/profiles", content=encoded(fresh())).headers["location"]
    peak = http.get(at + "/peak", params={"limit": 1}).json()
    assert (peak["peak_op"], peak["peak_bytes"], [s["name"] for s in peak["storages"]]) == (
        4,
        768 * MIB,
        ["A"],
    )
    idle = http.get(at + "/idle").json()["storages"]
    assert [(s["name"], s["idle_us"]) for s in idle] == [("A", 80_000), ("B", 40_000)]
    groups = http.get(at + "/accesses").json()["groups"]
    assert [(g["kind"], g["layer"], g["storages"]) for g in groups] == [("activation", "layers.0", 3)]


def test_pages_of_profiles(http: httpx.Client, fresh: Fresh) -> None:
    sent = [
        http.post("/v1/profiles", params={"project": "paged"}, content=encoded(fresh())).json()["id"] for _ in range(5)
    ]
    got: list[str] = []
    before: str | None = None
    while True:
        query = {"project": "paged", "limit": "2"} | ({"before": before} if before else {})
        page = http.get("/v1/profiles", params=query).json()
        got += [profile["id"] for profile in page["profiles"]]
        before = page["next"]
        if before is None:
            break
    assert got == sent[::-1]


def test_a_profile_of_another_project_is_a_conflict(http: httpx.Client, fresh: Fresh) -> None:
    data = encoded(fresh())
    http.post("/v1/profiles", params={"project": "a"}, content=data)
    answer = http.post("/v1/profiles", params={"project": "b"}, content=data)
    assert answer.status_code == 409 and "belongs to project 'a'" in answer.json()["detail"]


def test_a_timing_only_profile_is_stored_but_has_no_memory(http: httpx.Client, fresh: Fresh) -> None:
    profile = fresh()
    bare = tuple(msgspec.structs.replace(o, reads=(), writes=()) for o in profile.operators)
    answer = http.post("/v1/profiles", content=encoded(msgspec.structs.replace(profile, operators=bare, storages=())))
    assert answer.status_code == 201 and answer.json()["timing_only"]
    for question in ("/peak", "/idle"):
        refused = http.get(answer.headers["location"] + question)
        assert refused.status_code == 409 and "no storages" in refused.json()["detail"]


def test_a_plan_is_judged_by_name(http: httpx.Client, fresh: Fresh) -> None:
    profile = worked_example()
    at = http.post("/v1/profiles", content=encoded(profile)).headers["location"] + "/validate"
    good = Plan(
        residency=Residency(
            actions=(
                Action(op=2, when="after", kind="copy_out", storage=1),
                Action(op=2, when="after", kind="release", storage=1),
                Action(op=6, when="before", kind="copy_in", storage=1),
            )
        )
    )
    assert http.post(at, content=msgspec.json.encode(good)).json() == {"violations": [], "warnings": []}
    late = msgspec.structs.replace(good, residency=Residency(actions=good.residency.actions[:2]))
    violations = http.post(at, content=msgspec.json.encode(late)).json()["violations"]
    assert [(v["code"], v["op"], v["storage"]) for v in violations] == [("read-not-in-hbm", 7, 1)]


def test_a_cycle_in_recompute_is_refused_with_its_place(http: httpx.Client, fresh: Fresh) -> None:
    tree = json.loads(encoded(worked_example()))
    # 1 is made from 2 and 2 from 1 (op 3 overwrites it): to bring either back one needs the other.
    tree["operators"][1] |= {"writes": [2]}
    tree["operators"][2] |= {"reads": [2], "writes": [1]}
    tree["operators"][3] |= {"reads": [1], "writes": [2]}
    tree["operators"][4] |= {"writes": []}
    created = http.post("/v1/profiles", json=tree)
    assert created.status_code == 201
    cycle = Plan(
        residency=Residency(
            actions=(
                Action(op=3, when="after", kind="release", storage=1),
                Action(op=3, when="after", kind="release", storage=2),
            ),
            recompute=(
                Recompute(storage=1, before_op=5, ops=(2,)),
                Recompute(storage=2, before_op=5, ops=(3,)),
            ),
        )
    )
    answer = http.post(created.headers["location"] + "/validate", content=msgspec.json.encode(cycle))
    assert answer.status_code == 422
    assert answer.json()["field"].startswith("$.residency.recompute[")
