"""Offsets: no overlaps, every rule kept, the bound below the peak, small cases as good as trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.addresses import AddressError, Buffer, allocate, table, violations
from tests.conftest import ABSENT, SHARED_DATA

INSTANCES = SHARED_DATA / "static_allocation"


@st.composite
def some_buffers(draw: st.DrawFn, most: int, rules: bool) -> list[Buffer]:
    buffers = []
    grain = draw(st.sampled_from([1, 1, 4]))
    for i in range(draw(st.integers(1, most))):
        lower = draw(st.integers(0, 6))
        plain = Buffer(f"b{i}", lower, lower + draw(st.integers(1, 5)), draw(st.integers(0, 9)), grain)
        if rules:
            plain = replace(
                plain,
                alignment=draw(st.sampled_from([1, 2, 3, 8])),
                alias=draw(st.sampled_from(["", "", "", "x", "y"])),
                apart=tuple(draw(st.sets(st.sampled_from("pq"), max_size=2))),
            )
        buffers.append(plain)
    return buffers


def least_peak(buffers: list[Buffer]) -> int:
    """By placing in every order, each buffer at the lowest place above all it meets that are there already."""
    best = 10**9
    for order in permutations(buffers):
        top: dict[str, int] = {}
        for i, b in enumerate(order):
            below = [top[c.id] for c in order[:i] if c.lower < b.upper and b.lower < c.upper and c.size and b.size]
            at = max(below, default=0)
            top[b.id] = -(-at // b.alignment) * b.alignment + b.size
        best = min(best, max(top.values()))
    return best


@settings(max_examples=60, deadline=None)
@given(some_buffers(6, rules=False))
def test_small_cases_are_as_good_as_trying_everything(buffers: list[Buffer]) -> None:
    found = allocate(buffers, time_limit_s=20)
    assert violations(buffers, found.offsets) == []
    assert found.peak_bytes == least_peak(buffers)
    assert found.lower_bound_bytes <= found.peak_bytes


@settings(max_examples=60, deadline=None)
@given(some_buffers(6, rules=False))
def test_impossible_only_where_nothing_fits(buffers: list[Buffer]) -> None:
    least = least_peak(buffers)
    assert allocate(buffers, least, time_limit_s=20).fits
    if least:
        short = allocate(buffers, least - 1, time_limit_s=20)
        assert not short.fits
        assert short.impossible or buffers[0].alignment > 1


@settings(max_examples=60, deadline=None)
@given(some_buffers(12, rules=True), st.integers(0, 3))
def test_every_rule_is_kept(buffers: list[Buffer], seed: int) -> None:
    try:
        found = allocate(buffers, time_limit_s=0.02, seed=seed)
    except AddressError:
        return
    assert violations(buffers, found.offsets) == []
    assert found.lower_bound_bytes <= found.peak_bytes
    assert found.peak_bytes == max(found.offsets[b.id] + b.size for b in buffers)


def test_pins_stay_and_others_go_around() -> None:
    buffers = [Buffer("a", 0, 4, 8, pinned=8), Buffer("b", 1, 3, 8), Buffer("c", 2, 3, 4), Buffer("d", 4, 5, 16)]
    found = allocate(buffers, time_limit_s=0.1)
    assert found.offsets["a"] == 8
    assert found.peak_bytes == 20
    assert found.offsets["d"] == 0


def test_pins_that_clash_are_refused() -> None:
    with pytest.raises(AddressError, match="pinned"):
        allocate([Buffer("a", 0, 2, 8, pinned=0), Buffer("b", 1, 3, 8, pinned=4)])


def test_half_open_intervals_share_an_address() -> None:
    found = allocate([Buffer("a", 0, 2, 8), Buffer("b", 2, 4, 8)])
    assert found.peak_bytes == 8
    assert found.proven


def test_aliases_are_one_storage_and_labels_keep_apart() -> None:
    aliases = [Buffer("a", 0, 1, 8, alias="s"), Buffer("b", 3, 4, 6, alias="s"), Buffer("c", 1, 3, 8)]
    found = allocate(aliases, time_limit_s=0.1)
    assert found.offsets["a"] == found.offsets["b"]
    assert found.peak_bytes == 16
    apart = [Buffer("a", 0, 1, 8, apart=("x",)), Buffer("b", 1, 2, 8, apart=("x", "y")), Buffer("c", 2, 3, 8)]
    found = allocate(apart, time_limit_s=0.1)
    assert found.peak_bytes == found.lower_bound_bytes == 16


def test_pools_are_address_spaces_of_their_own() -> None:
    found = allocate([Buffer("a", 0, 2, 8, pool="x"), Buffer("b", 0, 2, 6, pool="y")], capacity=8)
    assert found.fits
    assert found.offsets == {"a": 0, "b": 0}
    assert found.pools == {"x": (8, 8), "y": (6, 6)}


def test_the_judge_names_every_reason() -> None:
    buffers = [
        Buffer("a", 0, 2, 8, alignment=4, alias="s"),
        Buffer("b", 1, 3, 8, pinned=8, alias="s"),
        Buffer("c", 1, 3, 8, apart=("x",)),
        Buffer("d", 5, 6, 8, apart=("x",)),
    ]
    told = violations(buffers, {"a": 2, "b": 4, "c": 3, "d": 5}, capacity=10)
    assert {reason.partition(":")[0] for reason in told} == {
        "alignment", "pinned", "alias", "capacity", "overlap", "apart",
    }  # fmt: skip
    assert violations(buffers, {"a": 0}) == [f"missing: {name} has no offset" for name in "bcd"]
    assert violations(buffers[2:3], {"c": -1}) == ["negative: c at -1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column id, line 1"),
        ("id,lower,upper\na,0,1\n", "column size, line 1"),
        ("id,lower,upper,size\n", "column id, line 2"),
        ("id,lower,upper,size\na,0,1,8\na,0,1,8\n", "column id, line 3"),
        ("id,lower,upper,size\na,0,1,8\nb,2,2,8\n", "column upper, line 3"),
        ("id,lower,upper,size\na,0,1,-8\n", "column size, line 2"),
        ("id,lower,upper,size\na,0,1,8k\n", "column size, line 2"),
        ("id,lower,upper,size\na,0.5,1,8\n", "column lower, line 2"),
        ("id,lower,upper,size\na,0,1\n", "column size, line 2"),
        ("id,lower,upper,size,size\na,0,1,2,2\n", "column size, line 1"),
        ("id,lower,upper,size\n,0,1,8\n", "column id, line 2"),
        ("id,lower,upper,size,alignment\na,0,1,8,0\n", "column alignment, line 2"),
        ("id,lower,upper,size,alignment,pinned\na,0,1,8,4,2\n", "column pinned, line 2"),
        ("id,lower,upper,size,alias,pool\na,0,1,8,x,p\nb,1,2,8,x,q\n", "column pool, line 3: alias 'x'"),
        ('id,lower,upper,size\n"a,0,1,8\n', "line 2"),
    ],
)
def test_bad_tables_are_refused_with_column_and_row(text: str, said: str) -> None:
    with pytest.raises(AddressError, match=said):
        table.read(text.encode())


def test_a_table_keeps_its_columns_and_replaces_offsets() -> None:
    given_ = table.read(b'\xef\xbb\xbfsize,id,note,offset,lower,upper\r\n8,a,"x, y",77,0,1\r\n\r\n4,b,z,,0,2\r\n')
    assert given_.with_offsets({"a": 0, "b": 8}) == b'size,id,note,lower,upper,offset\n8,a,"x, y",0,1,0\n4,b,z,0,2,8\n'


def read(name: str) -> list[Buffer]:
    if not INSTANCES.exists():
        pytest.skip(ABSENT)
    return table.read(Path(INSTANCES / name).read_bytes()).buffers


@pytest.mark.parametrize("name", "ABCDEF")
def test_minimalloc_instances_fit_their_capacity(name: str) -> None:
    found = allocate(read(f"{name}.1048576.csv"), 1048576, time_limit_s=120)
    assert found.fits
    assert found.peak_bytes <= 1048576


@pytest.mark.parametrize("name", ["resnet50", "G_1"])
def test_mindspore_traces_reach_the_load(name: str) -> None:
    assert allocate(read(f"{name}.csv"), time_limit_s=60).proven
