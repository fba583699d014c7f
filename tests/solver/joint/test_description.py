"""Descriptions of layers from a profile: what `hyperopt stages` is asked with is what the profile says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hyperopt import layers
from hyperopt.documents import DocumentError, canonical, write
from hyperopt.layers import typed
from hyperopt.testing.blocks import Parallel
from solver.joint import cut, described
from solver.joint.description import weight_part
from solver.joint.levels import layer_cost
from solver.stages import Request, answer, problem, solve
from tests.solver.joint.samples import mixed, sample

COUNTS = [("layer0", 6)]


def test_a_description_says_what_the_sample_takes_and_holds() -> None:
    made = cut(sample(layers=3), COUNTS)
    said = described(made, 2.0)
    again, warnings = layers.load(canonical(said))
    assert warnings == [] and again == said
    head, body, tail = said.layers_description
    assert (head.type, body.type, tail.type) == ("HEAD", "BODY", "TAIL") and said.count(body) == 6
    cost = layer_cost(made, made.layers["layer0"], None, 0)
    assert (body.forward_time, body.backward_time) == (cost.forward_ns / 1e6, cost.backward_ns / 1e6)
    assert body.memory_parameter == cost.parameters / 1e6 and body.memory_activation == cost.levels[0].kept / 1e6
    assert body.recompute_levels and body.offload_levels
    kept = [level.memory for level in body.recompute_levels]
    assert kept == sorted(kept, reverse=True) and kept[0] < body.memory_activation
    assert all(0 <= level.coef <= 1 for level in body.recompute_levels)
    assert not described(made, 0.0).layers_description[1].recompute_levels


def test_a_device_without_room_for_a_layer_is_refused() -> None:
    made = cut(sample(layers=2), COUNTS)
    with pytest.raises(DocumentError, match="1000 bytes") as refused:
        described(made, 0.0, hbm_bytes=1000)
    assert refused.value.field == "--hbm-bytes" and refused.value.remedy


def test_what_only_weights_need_can_be_put_off() -> None:
    """About half of backward in a model of matrix products; of the head, which nothing is before, all of it."""
    made = cut(sample(layers=3), COUNTS)
    part = made.layers["layer0"]
    takes, held = weight_part(made, part)
    cost = layer_cost(made, part, None, 0)
    assert 0.2 * cost.backward_ns < takes < 0.6 * cost.backward_ns
    by_id = made.profile.by_id
    assert 0 < held <= sum(by_id[s].bytes for i in (*part.forward, *part.backward)
                           for s in made.profile.operators[i].accesses)  # fmt: skip
    for i in part.backward:  # what writes the gradient of the inputs is not put off
        assert not set(made.profile.operators[i].writes) & set(part.back_leaves) or takes < cost.backward_ns
    head, _ = weight_part(made, made.head)
    assert head == sum(round(made.profile.operators[i].duration_us * 1000) for i in made.head.backward)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_the_description_is_solved_within_its_limits(schedule: str) -> None:
    made = cut(mixed(Parallel(tensor=4, data=4, experts=16)), [("layer0", 2), ("layer2", 4)])
    said = described(made, 1.0)
    found = solve(problem(said, Request(stages=2, micro_batches=4, schedule=schedule)), time_limit_s=10)  # type: ignore[arg-type]
    told = answer(found)
    assert all(peak <= limit for peak, limit in zip(told["peak"], told["limits"], strict=True))
    assert sum(told["layers_per_stage"]) == 6
    total = sum(typed(layer).forward * said.count(layer) for layer in said.layers_description)
    assert sum(map(sum, told["forward"])) >= total * (1 - 1e-9)


def test_the_command_writes_what_stages_reads(tmp_path: Path) -> None:
    write(sample(layers=3), tmp_path / "sample.json.gz")
    out = tmp_path / "layers.json"
    first = [sys.executable, "-m", "hyperopt", "layers", str(tmp_path / "sample.json.gz"), "--layers", "layer0=8"]
    done = subprocess.run(
        [*first, "--level-time", "1", "--hbm-bytes", str(4 * 10**9), "-o", str(out)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "MB go from a layer to the next" in done.stderr
    second = [sys.executable, "-m", "hyperopt", "stages", str(out), "--stages", "2", "--micro-batches", "4", "--json"]
    done = subprocess.run([*second, "--time-limit", "10"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout)["layers_per_stage"]) == 8
    wrong = subprocess.run([*first[:-1], "nothing=8"], capture_output=True, text=True, timeout=200)
    assert wrong.returncode == 64 and "no forward operator has the layer 'nothing'" in wrong.stderr
