"""Execution traces: aliases are one storage, numbers used again are two, kernels take their operator's tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperopt.profile import COMPUTE, IDLE, Profile
from hyperopt.replay import replay
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles
from profiler.read.torch.chakra import SOURCE
from profiler.read.torch.protobuf_wire import WireError, fields, messages, varint

PURE, VIEW, IN_PLACE = "aten::x(Tensor a) -> Tensor", "aten::t(Tensor(a) a) -> Tensor(a)", "aten::x_(Tensor(a!) a)"


def tensor(storage: int, elements: int = 256, offset: int = 0, device: str = "npu:0") -> list[object]:
    return [storage + 1000, storage, offset, elements, 4, device]


def node(
    id: int, name: str, parent: int, inputs: list[Any], outputs: list[Any], schema: str = PURE, **more: Any
) -> Any:
    def side(values: list[Any]) -> dict[str, Any]:
        return {"values": values, "shapes": [[16, 16]] * len(values), "types": ["Tensor(float)"] * len(values)}

    attrs = [{"name": "op_schema", "type": "string", "value": schema}]
    return {
        "id": id,
        "name": name,
        "ctrl_deps": parent,
        "inputs": side(inputs),
        "outputs": side(outputs),
        "attrs": attrs,
    } | more


def host() -> list[Any]:
    """linear = t (a view) + mm; then relu in place, a sum, and a new tensor under the number of the first one."""
    return [
        node(2, "[pytorch|profiler|execution_trace|thread]", 1, [], [], ""),
        node(3, "aten::linear", 2, [tensor(10), tensor(11)], [tensor(12)]),
        node(4, "aten::t", 3, [tensor(11)], [tensor(11)], VIEW),
        node(5, "aten::mm", 3, [tensor(10), [tensor(11, 128, offset=384)], 2.5, "<None>"], [tensor(12)]),
        node(6, "aten::relu_", 2, [tensor(12)], [tensor(12)], IN_PLACE),
        node(7, "aten::sum", 2, [tensor(12)], [tensor(13, 1), tensor(14, device="cpu")]),
        node(8, "aten::empty", 2, [], [tensor(12, 512)]),
        node(9, "aten::add", 2, [tensor(12), tensor(13, 1)], [tensor(15)]),
    ]


def kernels() -> list[Any]:
    """Two kernels of mm, a collective beside the second, relu after a pause."""
    mm = ([tensor(10), tensor(11)], [tensor(12)])
    return [
        node(31, "gemm_2", 5, *mm, cat="kernel", ts=112.5, exclusive_dur=8, stream=7),
        node(30, "gemm_1", 5, *mm, cat="kernel", ts=100.5, exclusive_dur=10, stream=7),
        node(
            32,
            "ncclAllReduce",
            20,
            [tensor(10)],
            [tensor(10)],
            IN_PLACE,
            cat="kernel",
            ts=113,
            inclusive_dur=3,
            stream=9,
        ),
        node(33, "relu", 6, [tensor(12)], [tensor(12)], IN_PLACE, cat="kernel", ts=140, dur=5.5, stream=7),
    ]


def written(folder: Path, nodes: list[Any], name: str = "et.json", **more: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": nodes, **more}))
    return path


def read(path: Path) -> tuple[Profile, Findings]:
    findings = Findings(path.parent)
    return SOURCE.read(RankFiles(path), findings), findings


def test_operators_of_the_host_are_those_that_call_no_other(tmp_path: Path) -> None:
    profile, findings = read(written(tmp_path, host()))
    weight_a, weight_b, product, total, again, result = range(6)
    assert [(o.name, o.reads, o.writes) for o in profile.operators] == [
        ("aten::mm", (weight_a, weight_b), (product,)),
        ("aten::relu_", (product,), (product,)),
        ("aten::sum", (product,), (total,)),
        ("aten::empty", (), (again,)),
        ("aten::add", (again, total), (result,)),
    ]
    assert [storage.bytes for storage in profile.storages] == [1024, 2048, 1024, 4, 2048, 1024]
    assert [storage.resident_at_start for storage in profile.storages] == [True, True, False, False, False, False]
    assert {storage.certainty for storage in profile.storages} == {"measured"}
    assert [operator.recomputable for operator in profile.operators] == [True, False, True, True, True]
    assert profile.operators[0].dtypes[0] == "float" and profile.operators[0].shapes[0] == (16, 16)
    assert "durations of 5 of 5 operators: 0 stands for them" in findings.missing and profile.measured is None
    assert any("1 operators only view a storage" in warning for warning in findings.warnings)
    assert replay(profile).peak_bytes == 1024 + 2048 + 4 + 2048 + 1024


def test_kernels_have_their_operators_tensors_and_the_measured_step(tmp_path: Path) -> None:
    profile, _ = read(written(tmp_path, host() + kernels()))
    assert [(o.name, o.stream) for o in profile.operators if o.type != IDLE] == [
        ("gemm_1", COMPUTE),
        ("gemm_2", COMPUTE),
        ("ncclAllReduce", "communication"),
        ("relu", COMPUTE),
    ]
    first, second = (o for o in profile.operators if o.name.startswith("gemm"))
    assert first.writes == second.writes and len(profile.storages) == 3
    assert {storage.certainty for storage in profile.storages} == {"inferred"}
    assert profile.measured is not None and profile.measured.step_us == 45
    assert replay(profile).step_us == 45


def test_older_traces_have_flat_fields(tmp_path: Path) -> None:
    old = {
        "id": 5,
        "name": "aten::mm",
        "parent": 2,
        "inputs": [tensor(10), tensor(11)],
        "input_shapes": [[16, 16], [16, 16]],
        "input_types": ["Tensor(float)", "Tensor(c10::BFloat16)"],
        "outputs": [tensor(12)],
        "op_schema": PURE,
    }
    profile, _ = read(written(tmp_path, [{"id": 2, "name": "[pytorch]", "parent": 1}, old]))
    assert [(o.name, o.reads, o.writes) for o in profile.operators] == [("aten::mm", (0, 1), (2,))]
    assert profile.operators[0].dtypes == ("float", "c10::BFloat16")


def test_what_is_no_node_or_tensor_is_left_out(tmp_path: Path) -> None:
    wrong = [
        [1, 0, 0, 0, 0, ""],
        [1, 2, -3, 4, 4, "npu:0"],
        [1, 2, 0, 2**60, 2**20, "npu:0"],
        [1, 2, 0, 4, 4, 5],
        [[[[[[[tensor(99)]]]]]]],
    ]
    more = node(12, "x\x00'; DROP TABLE nodes;--", 2, wrong, [tensor(3)], ts=float("nan"), exclusive_dur=-1)
    profile, findings = read(written(tmp_path, [7, None, {"id": "x"}, {"name": "y"}, more]))
    (operator,) = profile.operators
    assert (operator.name, operator.reads, operator.writes) == ("x '; DROP TABLE nodes;--", (), (0,))
    assert [(drop.why, drop.rows) for drop in findings.dropped] == [("nodes without a number or a name", 4)]
    with pytest.raises(UnreadableError, match="has no operators"):
        read(written(tmp_path, [{"id": 2, "name": "[pytorch]"}]))


def test_it_is_recognised_by_its_fields(tmp_path: Path) -> None:
    path = written(tmp_path, host(), "host_rank_3.json")
    assert SOURCE.find(path) == [RankFiles(path, 3)]
    (tmp_path / "other.json").write_text('{"traceEvents": [], "nodes": 1}')
    (tmp_path / "text.et").write_text("hello")
    assert SOURCE.find(tmp_path / "other.json") == SOURCE.find(tmp_path / "text.et") == SOURCE.find(tmp_path) == []


def number(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(place: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return number(place << 3) + number(value)
    data = value.encode() if isinstance(value, str) else value
    return number(place << 3 | 2) + number(len(data)) + data


def message(id: int, name: str, kind: int, inputs: str, outputs: str, start: int, duration: int, cpu: int = 0) -> bytes:
    sides = field(8, field(1, inputs)) + field(9, field(1, outputs))
    attribute = field(10, field(1, "is_cpu_op") + field(27, cpu))
    times = field(6, start) + field(7, duration)
    return field(1, id) + field(2, name) + field(3, kind) + field(4, bytes([id - 1])) + times + sides + attribute


def chakra_file(folder: Path, *nodes: bytes, name: str = "chakra.2.et") -> Path:
    metadata = field(1, field(1, "schema") + field(29, "1.0.2-chakra.0.0.4"))
    path = folder / name
    path.write_bytes(b"".join(number(len(part)) + part for part in (metadata, *nodes)))
    return path


NODES = (
    message(3, "gemm", 4, str([tensor(10), 2.5, None]), str([tensor(12)]), 100, 10),
    message(4, "all_reduce", 7, str([tensor(12)]), str([tensor(12)]), 111, 20),
    message(5, "host op", 4, "[]", "[]", 99, 90, cpu=1),
    message(6, "about the run", 1, "[]", "[]", 0, 0),
)


def test_chakras_own_files_without_a_protobuf_library(tmp_path: Path) -> None:
    path = chakra_file(tmp_path, *NODES)
    assert SOURCE.find(path) == [RankFiles(path, 2)]
    profile, findings = read(path)
    assert [(o.name, o.stream, o.reads, o.writes, o.duration_us) for o in profile.operators if o.type != IDLE] == [
        ("gemm", COMPUTE, (0,), (1,), 10),
        ("all_reduce", "communication", (1,), (1,), 20),
    ]
    assert [storage.bytes for storage in profile.storages] == [1024, 1024]
    assert profile.measured is not None and profile.measured.step_us == 31 == replay(profile).step_us
    assert [(drop.why, drop.rows) for drop in findings.dropped] == [("nodes that are no operators", 1)]


def test_c16_a_file_cut_short_is_read_up_to_there(tmp_path: Path) -> None:
    path = chakra_file(tmp_path, *NODES)
    path.write_bytes(path.read_bytes()[: -len(NODES[3]) - 5])
    profile, findings = read(path)
    assert [operator.name for operator in profile.operators if operator.type != IDLE] == ["gemm", "all_reduce"]
    assert any("is damaged" in warning for warning in findings.warnings)


def test_sizes_that_do_not_follow_are_refused() -> None:
    for data in (number(2**40) + b"x", b"\xff" * 11, number(5) + b"x"):
        with pytest.raises(WireError):
            list(messages(data))
    for data in (b"\x0a\x7fx", b"\x0b", b"\x09abc", b"\x80"):
        with pytest.raises(WireError):
            list(fields(data))


@given(st.integers(0, 2**64 - 1))
def test_integers_on_the_wire(value: int) -> None:
    assert varint(number(value), 0) == (value, len(number(value)))


@given(st.data())
def test_a_changed_file_gives_a_profile_that_replays_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = chakra_file(tmp_path_factory.mktemp("c"), *NODES)
    text = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 6))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(text[: data.draw(st.integers(1, len(text)))])
    _replays_or_says_why(path)


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
tensors = st.lists(st.builds(tensor, st.integers(0, 4), st.integers(0, 9), st.integers(0, 3)) | values, max_size=3)
nodes = st.builds(
    node,
    st.integers(1, 9),
    st.sampled_from(["aten::mm", "[thread]", "ncclAllReduce"]),
    st.integers(0, 9) | values,
    tensors,
    tensors,
    st.sampled_from([PURE, VIEW, IN_PLACE, ""]),
    ts=st.integers(0, 50) | st.floats(),
    dur=st.integers(0, 50) | st.floats(),
    cat=st.sampled_from(["kernel", "gpu_memcpy", ""]) | values,
    stream=st.integers(0, 3) | values,
)


@given(st.lists(nodes | values, max_size=12))
def test_any_trace_gives_a_profile_that_replays_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, given_nodes: list[Any]
) -> None:
    _replays_or_says_why(written(tmp_path_factory.mktemp("c"), given_nodes))


def _replays_or_says_why(path: Path) -> None:
    try:
        profile, _ = read(path)
    except UnreadableError:
        return
    if profile.measured is not None:
        assert replay(profile).step_us == pytest.approx(profile.measured.step_us, rel=0.01, abs=0.1)


def test_accesses_that_the_times_rule_out_are_left_out_and_told(tmp_path: Path) -> None:
    """Found by fuzzing: a kernel beside the one whose result it was said to read would have waited in replay."""
    both = [
        node(30, "makes", 5, [], [tensor(12)], cat="kernel", ts=0, dur=50, stream=7),
        node(31, "beside", 6, [tensor(12)], [tensor(13)], cat="kernel", ts=10, dur=60, stream=8),
        node(32, "after", 9, [tensor(12), tensor(13)], [tensor(14)], cat="kernel", ts=70, dur=5, stream=7),
    ]
    profile, findings = read(written(tmp_path, both))
    found = {
        operator.name: (operator.reads, operator.writes) for operator in profile.operators if operator.type != IDLE
    }
    assert found == {"makes": ((), (0,)), "beside": ((), (1,)), "after": ((0, 1), (2,))}
    assert any("1 accesses of operators that overlap" in warning for warning in findings.warnings)
    assert replay(profile).step_us == 75


def test_times_since_the_epoch_keep_their_digits(tmp_path: Path) -> None:
    """Found by fuzzing: as doubles, microseconds since 1970 are a quarter of one apart."""
    nodes = [
        node(30 + i, "k", 5, [], [tensor(12)], cat="kernel", ts=f"1764246877073569.{i}01", dur=0.1) for i in range(9)
    ]
    assert read(written(tmp_path, nodes))[0].operators[1].duration_us == pytest.approx(0.1)
    text = written(tmp_path, nodes).read_text().replace('"1764246877073569.801"', "1764246877073569.801")
    (tmp_path / "et.json").write_text(text)
    profile, _ = read(tmp_path / "et.json")
    assert profile.measured is not None and profile.measured.step_us == 0.9 == replay(profile).step_us


def test_attributes_may_be_anything(tmp_path: Path) -> None:
    odd = node(5, "aten::mm", 2, [], [tensor(12)]) | {"attrs": [{"name": []}, {"name": {}}, 7, {}]}
    assert read(written(tmp_path, [odd]))[0].operators[0].name == "aten::mm"
