"""Pickles: plain values come out as they went in, everything else is refused by name and nothing is run."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.read.findings import UnreadableError
from profiler.read.torch import pickles
from profiler.read.torch.pickles import Machine, read_plain

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(-(2**63), 2**64), inner) | st.lists(inner).map(tuple)
    ),
)


@given(plain, st.integers(2, 5))
def test_plain_values_come_out_as_python_reads_them(value: object, protocol: int) -> None:
    if protocol == 2 and _bytes_in(value):
        protocol = 3  # the second one calls a function to make bytes
    assert Machine(pickle.dumps(value, protocol)).run() == value


def _bytes_in(value: object) -> list[bytes]:
    if isinstance(value, bytes):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [found for part in parts for found in _bytes_in(part)]


def test_shared_and_circular_lists_stay_so() -> None:
    shared: list[object] = [1]
    shared.append(shared)
    found = Machine(pickle.dumps([shared, shared])).run()
    assert isinstance(found, list) and found[0] is found[1] and found[0][1] is found[0]


class Command:
    """Makes the file, if anything in its pickle is run."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.made}'",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_wants_to_import_is_named_and_not_run(tmp_path: Path, protocol: int) -> None:
    with pytest.raises(UnreadableError, match=r"wants (posix|os)\.system .*nothing in them is ever run"):
        Machine(pickle.dumps([Command(tmp_path / "run")], protocol)).run()
    assert not (tmp_path / "run").exists()


def test_text_protocols_are_refused_and_not_run(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="only plain values"):
        Machine(pickle.dumps([Command(tmp_path / "run")], 0)).run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({1, 2}, "set"),
        (frozenset({1}), "frozen set"),
        (bytearray(b"x"), "bytearray"),
        (collections.OrderedDict(a=1), r"collections\.OrderedDict"),
        (1j, r"builtins\.complex"),
    ],
)
def test_other_values_are_refused_by_name(value: object, wanted: str) -> None:
    with pytest.raises(UnreadableError, match=wanted):
        Machine(pickle.dumps(value, 5)).run()


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x04N r\xff\xff\xff\xff.".replace(b" ", b""),  # a memo index that would take 64 GiB
        b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b"x.",  # bytes that do not follow
        b"\x80\x04\x95" + (2**60).to_bytes(8, "little") + b"\x8b\xff\xff\xff\x7f.",  # an integer of two gigabytes
    ],
)
def test_sizes_that_do_not_follow_set_nothing_aside(bomb: bytes) -> None:
    try:
        assert Machine(bomb).run() is None
    except UnreadableError as error:
        assert "damaged" in str(error)


def test_a_nested_tuple_is_no_key() -> None:
    nested = b")" + b"\x85" * 100_000  # hashing it would go down 100,000 calls in C
    with pytest.raises(UnreadableError, match="key that is neither text nor integer"):
        Machine(b"\x80\x04}(" + nested + b"K\x01u.").run()


def test_containers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_CONTAINERS", 1000)
    with pytest.raises(UnreadableError, match="more than 1,000 lists"):
        Machine(b"\x80\x04" + b"]" * 1001 + b".").run()


@given(plain, st.data())
def test_a_pickle_cut_short_or_changed_gives_a_value_or_an_error(value: object, data: st.DataObject) -> None:
    text = bytearray(pickle.dumps(value, 4))
    for _ in range(data.draw(st.integers(0, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(text[: data.draw(st.integers(0, len(text)))])
    try:
        Machine(cut).run()
    except UnreadableError as error:
        assert len(str(error)) < 500


def test_a_file_is_named_where_it_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "half.pkl").write_bytes(pickle.dumps(list(range(1000)))[:-10])
    with pytest.raises(UnreadableError, match=r"half.pkl: the pickle is damaged at byte \d+"):
        read_plain(tmp_path / "half.pkl")
    (tmp_path / "none.pkl").write_bytes(b"")
    with pytest.raises(UnreadableError, match="empty"):
        read_plain(tmp_path / "none.pkl")
