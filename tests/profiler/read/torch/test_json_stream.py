"""JSON as a stream: the same elements as read whole, in bounded memory, and an end to what is hostile."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.read import read
from profiler.read.findings import Findings
from profiler.read.torch import json_stream
from profiler.read.torch.json_stream import JsonStream


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'[{"ph": "X"}, ' + b"[" * 100_000, "nested too deeply"),
        (b'[{"ph": "X"}, ' + b"1" * 10_000 + b"]", "thousands of digits"),
        (b'[{"ph": "X"}, {"name": "' + b"x" * 5_000_000, "more than 1,000,000 characters"),
        (b'[{"ph": "X"}, {"name": tru}, {"ph": "X"}]' + b" " * 3_000_000, "no JSON"),
        (b'{"traceEvents": [{"ph": "X"}], 7}', "no key"),
    ],
)
def test_hostile_json_ends_the_reading(tmp_path: Path, text: bytes, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MAX_ELEMENT", 1_000_000)
    findings = Findings(tmp_path)
    (tmp_path / "t.json").write_bytes(text)
    assert list(JsonStream(tmp_path / "t.json", findings).elements("traceEvents")) == [{"ph": "X"}]
    assert says in findings.warnings[0]


@pytest.mark.parametrize("chunk", [1 << 20, 7_000])
@pytest.mark.parametrize("key", ["traceEvents", "other"])
def test_the_limit_of_an_element_is_where_it_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, key: str
) -> None:
    """Also where the whole of it had been read before it was seen to be too long."""
    monkeypatch.setattr(json_stream, "MAX_ELEMENT", 10_000)
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    for length in (10_000, 10_001):
        value = json.dumps("x" * (length - 2))
        listed = f"[1, {value}, 3]" if key == "traceEvents" else f'{{"other": {value}, "traceEvents": [1, 3]}}'
        (tmp_path / "t.json").write_text(listed)
        findings = Findings(tmp_path)
        stream = JsonStream(tmp_path / "t.json", findings)
        found = list(stream.elements("traceEvents"))
        if length == 10_000:
            assert found[-1] == 3 and not findings.warnings and not stream.damage
        else:
            assert found == ([1] if key == "traceEvents" else [])
            assert "an element has more than 10,000 characters" in findings.warnings[0]
            assert str(stream.but("spans")).startswith("t.json has no spans: an element has more than 10,000")


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents":[{"ph":"X","a":' + DEEP,
        '{"schemaVersion":' + DEEP + ',"traceEvents":[{"ph":"X"}]}',
        '{"format":"hyperopt.profile/1","operators":' + DEEP,
        '{"storage_sizes":' + DEEP + ',"ops":[]}',
        '{"ops":[{"name":"a"}],"storage_sizes":' + DEEP,
        '{"schema":"1.0.2-chakra.0.0.4","nodes":[{"id":' + DEEP,
        '{"layers_description":[{"x":' + DEEP,
        DEEP,
    ],
)
def test_the_one_line_names_what_is_wrong(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    manifest = read(tmp_path / "t.json")
    assert not manifest.usable and "brackets are nested too deeply" in manifest.refusal
    assert "\n" not in manifest.refusal and len(manifest.refusal) < 400


def test_a_single_line_of_any_size_is_read_in_the_memory_of_its_largest_event(tmp_path: Path) -> None:
    event = json.dumps({"ph": "X", "name": "x" * 1000}).encode()
    with (tmp_path / "t.json").open("wb") as file:
        file.write(b"[" + event)
        for _ in range(60):
            file.write((b"," + event) * 1000)
        file.write(b"]")
    tracemalloc.start()
    count = sum(1 for _ in JsonStream(tmp_path / "t.json", Findings(tmp_path)).elements("traceEvents"))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 60_001 and most < 8 << 20


def test_a_bomb_in_an_archive_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MAX_TEXT", 10_000_000)
    findings = Findings(tmp_path)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b"[" + b" " * 50_000_000))
    assert list(JsonStream(tmp_path / "t.json.gz", findings).elements("traceEvents")) == []
    assert "more than 10,000,000 characters" in findings.warnings[0]


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
json_values = st.recursive(
    values, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=4), v, max_size=4)
)


@given(st.lists(json_values), st.data())
def test_elements_are_those_of_the_whole_text(
    tmp_path_factory: pytest.TempPathFactory, listed: list[Any], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("j") / "t.json"
    text = json.dumps(listed, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK", data.draw(st.integers(1, 40)))
        findings = Findings(path.parent)
        found = list(JsonStream(path, findings).elements("traceEvents"))
    expected = json.loads(path.read_bytes().decode("utf-8", "replace"), parse_float=str, parse_constant=str)
    assert found == expected and not findings.warnings
