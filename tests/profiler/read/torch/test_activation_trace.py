"""HyperOffload's traces: accesses as they are, units named, what is wrong in one left out and told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import profiler.read
from hyperopt.profile import Profile
from hyperopt.replay import replay
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles
from profiler.read.torch.activation_trace import SOURCE

MIB = 2**20


def access(op: int, storage: int, kind: object) -> dict[str, object]:
    return {"op_id": op, "storage_id": storage, "kind": kind}


def trace(**more: Any) -> dict[str, Any]:
    """A weight (1) read at the start and the end, an activation (7) between, an output (9)."""
    ops = [
        {"name": "mm", "duration_ms": 0.8, "accesses": [access(0, 1, "READ"), access(0, 7, "WRITE")]},
        {"name": "relu_", "duration_ms": 0.25, "accesses": [access(1, 7, "READ"), access(1, 7, "WRITE")]},
        {
            "name": "mm",
            "duration_ms": 1,
            "accesses": [access(2, 7, "READ"), access(2, 1, "READ"), access(2, 9, "WRITE")],
        },
    ]
    sizes = {"1": 4 * MIB, "7": MIB, "9": 3}
    return {"ops": ops, "storage_sizes": sizes, "retained_sids": [9], "memory_limit_bytes": None, **more}


def written(folder: Path, given: object, name: str = "trace.json") -> Path:
    path = folder / name
    text = json.dumps(given).encode()
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    return path


def read(folder: Path, given: object) -> tuple[Profile, Findings]:
    findings = Findings(folder)
    return SOURCE.read(RankFiles(written(folder, given)), findings), findings


def test_accesses_sizes_and_times(tmp_path: Path) -> None:
    profile, findings = read(
        tmp_path, trace(d2h_bandwidth_gbps=16.0, h2d_bandwidth_gbps=12, memory_limit_bytes=2 * MIB)
    )
    assert [(o.reads, o.writes, o.duration_us) for o in profile.operators] == [
        ((1,), (7,), 800),
        ((7,), (7,), 250),
        ((7, 1), (9,), 1000),
    ]
    weight, activation, output = profile.storages
    assert (weight.bytes, weight.resident_at_start, weight.resident_at_end, weight.kind) == (
        4 * MIB,
        True,
        True,
        "other",
    )
    assert (activation.resident_at_start, activation.resident_at_end, activation.kind) == (False, False, "activation")
    assert output.resident_at_end and {s.certainty for s in profile.storages} == {"measured"}
    assert profile.device.links.d2h_bytes_per_s == 16 * 2**30 and profile.device.links.h2d_bytes_per_s == 12 * 2**30
    assert profile.device.hbm_bytes == 2 * MIB
    timeline = replay(profile, hbm_bytes=6 * MIB)
    assert timeline.peak_bytes == 5 * MIB + 3 and timeline.step_us == 2050 == profile.measured.step_us  # type: ignore[union-attr]
    assert "d2h_bandwidth_gbps is GiB/s, in spite of its name" in findings.units and not findings.dropped


@pytest.mark.parametrize(
    ("read_as", "write_as"),
    [("READ", "WRITE"), ("read", "write"), ("AccessKind.READ", "AccessKind.WRITE"), (1, 2), ({"name": "READ"}, "w")],
)
def test_kinds_in_any_spelling(tmp_path: Path, read_as: object, write_as: object) -> None:
    accesses = [access(0, 1, read_as), access(0, 7, write_as)]
    profile, _ = read(tmp_path, trace(ops=[{"name": "mm", "duration_ms": 1, "accesses": accesses}]))
    assert (profile.operators[0].reads, profile.operators[0].writes) == ((1,), (7,))
    listed = [[0, 1, read_as], [0, 7, write_as]]
    again, _ = read(tmp_path, trace(ops=[{"name": "mm", "duration_ms": 1, "accesses": listed}]))
    assert again.operators == profile.operators


def test_what_is_wrong_is_left_out_and_told(tmp_path: Path) -> None:
    ops = [
        {
            "name": "a\x00'; DROP TABLE storages;--",
            "duration_ms": -1,
            "accesses": [access(0, 5, "READ"), access(0, 7, "?")],
        },
        7,
        {"name": "b", "duration_ms": float("nan"), "accesses": [access(0, 7, "WRITE"), None, access(2, -1, "READ")]},
    ]
    profile, findings = read(tmp_path, trace(ops=ops, storage_sizes={"7": 10, "x": 1, "8": -2, "3": 2.5, "4": 6}))
    assert [operator.duration_us for operator in profile.operators] == [0, 0, 0]
    assert profile.operators[0].name == "a '; DROP TABLE storages;--"
    told = {drop.why: drop.rows for drop in findings.dropped}
    assert told == {
        "storage_sizes that are no id with bytes": 3,
        "durations that are none, taken as 0": 3,
        "accesses of storages without a size": 1,
        "accesses without a storage or a kind": 3,
        "accesses kept at the operator they stand at, though op_id says another": 1,
    }
    assert any("1 storages have a size, and no operator touches them" in warning for warning in findings.warnings)
    assert "durations: the trace has none" in findings.missing


def test_a_bandwidth_that_is_none_is_the_default_and_told(tmp_path: Path) -> None:
    profile, findings = read(tmp_path, trace(d2h_bandwidth_gbps=float("inf"), h2d_bandwidth_gbps=-3))
    assert profile.device.links.d2h_bytes_per_s == profile.device.links.h2d_bytes_per_s == 16 * 2**30
    assert sum("bandwidth" in warning for warning in findings.warnings) == 2


def test_without_sizes_or_operators_there_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="storage_sizes"):
        read(tmp_path, trace(storage_sizes=None))
    with pytest.raises(UnreadableError, match="no operators"):
        read(tmp_path, trace(ops=[]))
    with pytest.raises(UnreadableError, match="add up to more"):
        read(tmp_path, trace(storage_sizes={"1": 2**53, "7": 2**53}))


def test_it_is_recognised_by_its_fields(tmp_path: Path) -> None:
    assert SOURCE.find(written(tmp_path, trace())) == [RankFiles(tmp_path / "trace.json", None)]
    assert SOURCE.find(written(tmp_path, trace(), "rank_3.json.gz")) == [RankFiles(tmp_path / "rank_3.json.gz", 3)]
    assert SOURCE.find(written(tmp_path, {"ops": [], "nodes": []}, "other.json")) == []
    assert SOURCE.find(written(tmp_path, [trace()], "list.json")) == [] and SOURCE.find(tmp_path) == []


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "name": anything,
                "duration_ms": st.floats(0, 1e3) | anything,
                "accesses": st.lists(
                    st.builds(access, st.integers(0, 3), st.integers(0, 4), st.sampled_from(["READ", "WRITE"]))
                    | st.lists(anything, max_size=4)
                    | anything,
                    max_size=6,
                ),
            },
        )
        | anything,
        min_size=1,
        max_size=8,
    ),
    st.dictionaries(st.sampled_from("01234x"), st.integers(0, 10**9) | anything),
)
def test_any_trace_gives_a_profile_that_replays_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, ops: Any, sizes: Any
) -> None:
    try:
        profile, _ = read(tmp_path_factory.mktemp("t"), trace(ops=ops, storage_sizes=sizes))
    except UnreadableError:
        return
    assert len(profile.operators) == len(ops)
    assert profile.measured is not None
    assert replay(profile, hbm_bytes=2**60).step_us == pytest.approx(profile.measured.step_us, abs=0.01)


def test_accesses_beside_the_ops_are_not_left_out_silently(tmp_path: Path) -> None:
    given = trace()
    beside = [access for op in given["ops"] for access in op.pop("accesses")]
    (rank,) = profiler.read.read(written(tmp_path, {**given, "accesses": beside})).ranks
    assert rank.status == "degraded" and "accesses that stand beside the ops" in rank.reason
    assert [(d.why, d.rows) for d in rank.dropped] == [("accesses beside the ops", 7)]
    assert read(tmp_path, trace(accesses=[]))[1].missing == []
