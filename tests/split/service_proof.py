"""Run by `.ci/run` in an environment with the service and without MindSpore: serves, stores and solves over HTTP."""

from __future__ import annotations

import importlib.util
import tempfile
from importlib.metadata import version
from pathlib import Path

import msgspec

import hyperopt
from hyperopt.client import Client
from hyperopt.demo.children import serving
from hyperopt.profile import Device, Links, Operator, Profile, Storage
from hyperopt.replay import replay

MIB = 2**20
BUDGET = 640 * MIB


def main() -> None:
    assert importlib.util.find_spec("mindspore") is None, "the service's environment has mindspore"
    assert "site-packages" in hyperopt.__file__, hyperopt.__file__
    profile = example()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder / "data", folder / "serve.log") as server, Client(server.url) as service:
            stored = service.upload(msgspec.json.encode(profile))
            job = service.wait(service.plan(stored["id"], hbm_bytes=BUDGET, time_limit_s=20)["id"], timeout_s=120)
            assert job["state"] == "succeeded" and job["result"]["status"] == "planned", job
            plan = service.fetch_plan(job["result"]["plan_id"])
    timeline = replay(profile, plan)
    assert timeline.peak_bytes <= BUDGET and timeline.step_us == 100_000.0, timeline
    print(
        f"service proof, ortools {version('ortools')}: peak {replay(profile).peak_bytes} -> {timeline.peak_bytes} "
        f"bytes, step {timeline.step_us / 1000:g} ms (simulated), {plan.bound.status if plan.bound else 'no bound'}"
    )


def example() -> Profile:
    """The worked example: ten operators of 10 ms, 768 MiB at the peak, 640 MiB without a loss of time."""
    spans = {0: (512 * MIB, 0, 9), 1: (128 * MIB, 2, 7), 2: (128 * MIB, 4, 5)}
    operators = tuple(
        Operator(
            name=f"op{k}",
            type="MatMul",
            duration_us=10_000.0,
            writes=tuple(id for id, (_, first, _) in spans.items() if first == k),
            reads=tuple(id for id, (_, _, last) in spans.items() if last == k),
        )
        for k in range(10)
    )
    link = 16 * 1024**3
    return Profile(
        operators=operators,
        storages=tuple(Storage(id=id, bytes=size, kind="activation") for id, (size, _, _) in spans.items()),
        device=Device(
            name="example",
            hbm_bytes=1024 * MIB,
            host_bytes=4096 * MIB,
            links=Links(d2h_bytes_per_s=link, h2d_bytes_per_s=link),
        ),
    )


if __name__ == "__main__":
    main()
