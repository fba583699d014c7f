"""`hyperopt cost` on a server in a process of its own, which trains in a child as it does for users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hyperopt.client import Client
from hyperopt.documents import write
from hyperopt.profile import Profile
from tests.api.test_commands import process
from tests.cli.command import Cli
from tests.cost.synthetic import device
from tests.samples import worked_example


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with process("serve", "--port", 0, "--data-dir", tmp_path_factory.mktemp("service")) as told:
        yield told["url"]


def slower(profile: Profile, factor: float) -> Profile:
    operators = tuple(msgspec.structs.replace(o, duration_us=factor * o.duration_us) for o in profile.operators)
    return msgspec.structs.replace(profile, operators=operators)


def test_the_whole_way_by_commands(cli: Cli, server: str, tmp_path: Path) -> None:
    at = ("--server", server)
    assert cli("cost", "models", *at) == 0 and "no cost model was trained yet" in cli.out
    assert cli("cost", "train", *at) == 64 and "upload profiles" in cli.err
    for name, profile in (("one", device(1, 90)), ("two", device(2, 60)), ("slow", slower(device(3, 90), 3.0))):
        write(profile, tmp_path / f"{name}.json.gz")
    assert cli("upload", tmp_path / "one.json.gz", *at) == 0 and "drifted" not in cli.err
    assert cli("cost", "train", *at) == 0 and "trained; cost-model-" in cli.out and "in use" in cli.out
    assert "fitting, 1 profiles, 90 operators" in cli.err
    assert cli("cost", "models", *at, "--json") == 0
    (first,) = cli.answer
    assert cli("upload", tmp_path / "two.json.gz", *at, "--json") == 0 and "drifted" not in cli.err
    calm = cli.answer[0]["id"]
    assert cli("cost", "watch", calm, *at) == 0 and "no drift seen" in cli.out
    assert cli("upload", tmp_path / "slow.json.gz", *at, "--json") == 0
    assert "drifted" in cli.err and "train anew" in cli.err
    assert cli("cost", "watch", cli.answer[0]["id"], *at, "--json") == 1 and cli.answer["model"] == first["id"]
    assert cli("cost", "train", "--no-wait", *at, "--json") == 0
    with Client(server) as service:
        job = service.wait(cli.answer["id"])
        assert service.predict(calm)["model"] in {m["id"] for m in service.cost_models()}
    second = job["result"]["models"][0]["model"]
    assert cli("cost", "train", *at) == 0 and "unchanged" in cli.out
    by = ("--who", "ada", "--why", "the device is mended", *at)
    assert cli("cost", "use", second, *by, "--replaces", "nonsense") == 64 and "look at it again" in cli.err
    with Client(server) as service:
        etag = service.cost_model(first["id"])["etag"]
    target = first["id"] if job["result"]["models"][0]["state"] == "in use" else second
    assert cli("cost", "use", target, *by, "--replaces", etag) == 0 and "used by ada" in cli.out
    assert cli("cost", "fetch", first["id"], "-o", tmp_path / "model.json", *at) == 0
    assert cli("cost", "predict", tmp_path / "model.json", tmp_path / "two.json.gz", "--json") == 0
    assert sum(cli.answer["sources"].values()) == 60
    assert cli("cost", "watch", "profile-none", *at) == 64
    assert cli("cost", "forecast", calm, *at) == 0 and "ms predicted" in cli.out and cli.out.count(" us (") == 12
    assert cli("cost", "forecast", calm, "--model", first["id"], "--json", *at) == 0 and len(cli.answer["us"]) == 60
    assert cli("show", job["id"], *at) == 0 and "trained" in cli.out


def test_what_apply_measured_is_reported(cli: Cli, server: str, tmp_path: Path) -> None:
    at = ("--server", server)
    with Client(server) as service:
        profile = service.upload(msgspec.json.encode(worked_example(name="reported")))
        job = service.wait(service.plan(profile["id"], hbm_bytes=700 * 2**20, time_limit_s=20)["id"])
        plan = job["result"]["plan_id"]
        predicted = job["result"]["predicted"]["step_us"]
    back = {"bytes": 4096, "issued_us": 1.0, "completed_us": 9.0}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "plan.execution.json").write_text(json.dumps({"plan_id": plan, "copies_back": [back, back]}))
    applied: dict[str, Any] = {"steps": 5, "step_us": 1.1 * predicted, "step_us_spread": 0.0, "whole_peak_bytes": 2**29}
    applied["log"] = str(tmp_path / "elsewhere" / "plan.execution.json")
    (tmp_path / "applied.json").write_text(json.dumps(applied))
    assert cli("cost", "report", tmp_path / "applied.json", *at) == 0
    assert "(+10.0%)" in cli.out and "1 copies kept" in cli.out
    assert cli("show", plan, *at) == 0 and "(+10.0%)" in cli.out
    with Client(server) as service:
        (found,) = service.measurements(plan)
    assert found["peak_bytes"] == 2**29 and found["copies"] == 1
    for wrong, words in (
        ({**applied, "log": None}, "without a plan"),
        ({"log": applied["log"]}, "steps"),
    ):
        (tmp_path / "applied.json").write_text(json.dumps(wrong))
        assert cli("cost", "report", tmp_path / "applied.json", *at) == 64 and words in cli.err
    (tmp_path / "applied.json").write_text("[]")
    assert cli("cost", "report", tmp_path / "applied.json", *at) == 64
