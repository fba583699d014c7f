"""What a check has found becomes no baseline by itself, however the next one is asked."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from hyperopt.store.baselines import Objections
from tests.api.test_checks import NEW, Fresh, Json, accept, branch, check, stored
from tests.gate.test_check import captured, grown
from tests.gate.test_throughput import noisy, samples
from tests.samples import MIB

__all__ = ["branch"]

First = tuple[str, dict[str, str]]
"""An accepted profile, and the header that names it."""


def series(slower: float, n: int = 10, **more: Any) -> Json:
    metric = msgspec.structs.replace(noisy(0, n, slower), name="step", **more)
    told: Json = msgspec.to_builtins(samples(metric))
    return told


@pytest.fixture
def first(http: httpx.Client, fresh: Fresh, branch: str) -> First:
    id = stored(http, fresh())
    return id, {"If-Match": accept(http, id, branch, NEW).headers["etag"]}


def refused(answer: httpx.Response, kind: str) -> str:
    assert answer.status_code == 409 and answer.json()["type"].endswith(f"baseline-{kind}"), answer.text
    return str(answer.json()["detail"])


@pytest.mark.parametrize("own", [{"tolerance_percent": 1000.0}, {}])
def test_no_tolerance_of_its_own_makes_a_baseline(
    http: httpx.Client, fresh: Fresh, branch: str, first: First, own: Json
) -> None:
    """Of a metric, nor that only memory was asked for; and a check with less hides nothing."""
    slow = stored(http, fresh())
    policy = {} if own else {"memory_only": True}
    wide = check(http, slow, branch=branch, samples=series(1.5, **own), policy=policy)
    assert wide["verdict"] == "pass"
    detail = refused(accept(http, slow, branch, first[1], check=wide["id"]), "regressed")
    assert "passes by its own policy only: step +" in detail
    bare = check(http, slow, branch=branch)
    assert bare["verdict"] == "pass"
    assert wide["id"] in refused(accept(http, slow, branch, first[1], check=bare["id"]), "regressed")


def test_a_narrower_tolerance_of_a_metric_stays(http: httpx.Client, fresh: Fresh, branch: str, first: First) -> None:
    slow = stored(http, fresh())
    found = check(http, slow, branch=branch, samples=series(1.03, tolerance_percent=1.0))
    assert found["verdict"] == "regression"
    assert "step +" in refused(accept(http, slow, branch, first[1], check=found["id"]), "regressed")


def test_a_baseline_in_between_clears_only_what_is_judged_again(
    http: httpx.Client, fresh: Fresh, branch: str, first: First
) -> None:
    slow, same = stored(http, fresh()), stored(http, fresh())
    found = check(http, slow, branch=branch, samples=series(1.5))
    assert found["verdict"] == "regression"
    passed = check(http, same, branch=branch)["id"]
    seen = {"If-Match": accept(http, same, branch, first[1], check=passed).headers["etag"]}
    for less in ({}, {"samples": series(1.0) | {"metrics": [msgspec.to_builtins(noisy(1, 10, 1.0))]}}):
        again = check(http, slow, branch=branch, **less)
        assert again["verdict"] == "pass" and again["baseline"] == same
        assert found["id"] in refused(accept(http, slow, branch, seen, check=again["id"]), "regressed")
    again = check(http, slow, branch=branch, samples=series(1.0))
    assert accept(http, slow, branch, seen, check=again["id"]).status_code == 200


@pytest.mark.parametrize("pairs", [5, 6])
def test_what_is_inconclusive_is_no_baseline_by_itself(
    http: httpx.Client, fresh: Fresh, branch: str, first: First, pairs: int
) -> None:
    slow = stored(http, fresh())
    few = check(http, slow, branch=branch, samples=series(1.5, pairs))
    assert few["verdict"] == "inconclusive"
    assert few["id"] in refused(accept(http, slow, branch, first[1], check=few["id"]), "inconclusive")
    bare = check(http, slow, branch=branch)  # passes, and says nothing of what was left open
    assert few["id"] in refused(accept(http, slow, branch, first[1], check=bare["id"]), "inconclusive")
    taken = accept(http, slow, branch, first[1], check=few["id"], accept_inconclusive=True)
    told = [(one["accept_regression"], one["accept_inconclusive"]) for one in taken.json()["history"]]
    assert taken.status_code == 200 and told == [(False, True), (False, False)]


def test_more_pairs_settle_what_was_inconclusive_and_no_regression(
    http: httpx.Client, fresh: Fresh, branch: str, first: First
) -> None:
    same = stored(http, fresh())
    check(http, same, branch=branch, samples=series(1.0, 5))
    more = check(http, same, branch=branch, samples=series(1.0, 10))
    assert accept(http, same, branch, first[1], check=more["id"]).status_code == 200
    slow = stored(http, fresh())
    check(http, slow, branch=branch, samples=series(1.5))
    more = check(http, slow, branch=branch, samples=series(1.0))
    assert more["verdict"] == "pass"
    seen = {"If-Match": http.get("/v1/baselines", params={"branch": branch}).json()["baselines"][0]["etag"]}
    asked: Json = {"check": more["id"], "accept_inconclusive": True}
    refused(accept(http, slow, branch, seen, **asked), "regressed")
    taken = accept(http, slow, branch, seen, **asked, accept_regression=True)
    assert taken.status_code == 200 and taken.json()["history"][0]["accept_regression"]


def test_allowances_do_not_add_up(http: httpx.Client, fresh: Fresh, branch: str) -> None:
    """Between PyNative captures 0.1 % is allowed: once since somebody took a growth by name, not once a step."""

    def capture(by: int) -> str:
        return stored(http, captured(grown(fresh(model="eager"), 0, by), 0))

    step = 768 * MIB // 1000 - 1000
    seen = {"If-Match": accept(http, capture(0), branch, NEW).headers["etag"]}

    def accepted(by: int, **more: Any) -> httpx.Response:
        profile = capture(by)
        found = check(http, profile, branch=branch)
        assert found["verdict"] == "pass"
        answer = accept(http, profile, branch, seen, check=found["id"], **more)
        if answer.status_code == 200:
            seen["If-Match"] = answer.headers["etag"]
        return answer

    assert accepted(step).status_code == 200
    assert "accepted by name" in refused(accepted(2 * step), "regressed")
    assert accepted(step + 500).status_code == 200
    assert accepted(2 * step, accept_regression=True).status_code == 200
    assert accepted(3 * step).status_code == 200  # counted from there
    refused(accepted(4 * step), "regressed")


def test_a_check_that_comes_meanwhile_is_not_overlooked(
    http: httpx.Client, fresh: Fresh, branch: str, first: First, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = stored(http, fresh())
    found = check(http, same, branch=branch)
    with monkeypatch.context() as patch:
        patch.setattr("api.baselines.objections", lambda *_, **__: Objections())
        late = accept(http, same, branch, first[1], check=found["id"])
    assert late.status_code == 412 and found["id"] in late.json()["detail"]
    assert accept(http, same, branch, first[1], check=found["id"]).status_code == 200


def test_one_precondition_is_enough(http: httpx.Client, fresh: Fresh, branch: str, first: First) -> None:
    same = stored(http, fresh())
    found = check(http, same, branch=branch)
    both = accept(http, same, branch, first[1] | NEW, check=found["id"])
    assert both.status_code == 422 and both.json()["field"] == "header.if-none-match"
    at = http.get("/v1/baselines", params={"branch": branch}).json()["baselines"][0]["id"]
    asked = {"frozen": True, "who": "ada", "why": "both"}
    assert http.patch(f"/v1/baselines/{at}", json=asked, headers=first[1] | NEW).status_code == 422
