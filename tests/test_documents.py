"""Reading documents: every fault is one error with field, place and remedy; nothing is guessed."""

from __future__ import annotations

import errno
import gzip
import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings

from hyperopt import plan as plans
from hyperopt import profile as profiles
from hyperopt.documents import MAX_OBJECTS, DocumentError, canonical, decompress, write
from hyperopt.plan import Plan
from hyperopt.profile import Operator, Profile, Storage
from tests.generators import profiles as any_profile


def document(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "format": "hyperopt.profile/1",
        "operators": [
            {"name": "a", "duration_us": 1.5, "writes": [7]},
            {"name": "b", "duration_us": 2, "reads": [7]},
        ],
        "storages": [{"id": 7, "bytes": 10}],
    }
    return {**base, **changes}


def encoded(**changes: Any) -> bytes:
    return json.dumps(document(**changes)).encode()


BAD = [
    (b"", "$", "not JSON"),
    (b"{", "$", "not JSON"),
    (b"\xff\xfe", "$", "not JSON"),
    (b"[1]", "$", "expected an object"),
    (encoded(format="hyperopt.profile/2"), "$.format", "not supported"),
    (encoded(format="hyperopt.plan/1"), "$.format", "expected hyperopt.profile/1"),
    (b'{"format": 3}', "$.format", "expected hyperopt.profile/1"),
    (b'{"format": "hyperopt.profile/1"}', "$", "operators"),
    (encoded(operators=[{"duration_us": 1, "shapes": [[2], [3, -4]]}]), "$.operators[0].shapes[1][1]", ">= 0"),
    (
        encoded(operators=[{"duration_us": 1, "shapes": [[2], [3]], "dtypes": ["float32"]}]),
        "$.operators[0].dtypes",
        "1 element types of 2 shapes",
    ),
    (
        encoded(operators=[{"duration_us": 1, "shapes": [[2]], "dtypes": ["float32"], "inputs": 7}]),
        "$.operators[0].inputs",
        "7 tensors go in, of 1 shapes",
    ),
    (encoded(operators=[{"duration_us": -1}]), "$.operators[0].duration_us", ">= 0"),
    (encoded(operators=[{"duration_us": "x"}]), "$.operators[0].duration_us", "Expected"),
    (encoded(operators=[{"name": "a"}]), "$.operators[0]", "duration_us"),
    (encoded(storages=[{"id": 7, "bytes": -1}]), "$.storages[0].bytes", ">= 0"),
    (encoded(storages=[{"id": 7, "bytes": 2**60}]), "$.storages[0].bytes", "<="),
    (encoded(storages=[{"id": 7, "bytes": 1}, {"id": 7, "bytes": 2}]), "$.storages[1].id", "also $.storages[0]"),
    (encoded(storages=[{"id": 7, "bytes": 1, "kind": "x"}]), "$.storages[0].kind", "x"),
    (encoded(storages=[{"id": 7, "bytes": 1, "part_of": 3}]), "$.storages[0].part_of", "no storage 3"),
    (encoded(storages=[{"id": 7, "bytes": 1, "window": [1, 0]}]), "$.storages[0].window", "ordered"),
    (encoded(storages=[{"id": 7, "bytes": 1, "window": [0, 9]}]), "$.storages[0].window", "ordered"),
    (encoded(storages=[{"id": 7, "bytes": 1, "steps_accessed": 2}]), "$.storages[0].steps_accessed", "more than"),
    (encoded(operators=[{"duration_us": 1, "reads": [7]}]), "$.operators[0].reads[0]", "nothing has written"),
    (encoded(operators=[{"duration_us": 1, "writes": [1, 8]}]), "$.operators[0].writes[0]", "no storage 1"),
    (encoded(operators=[{"duration_us": 1, "writes": [7], "saves": [8]}]), "$.operators[0].saves[0]", "no storage 8"),
    (encoded(operators=[{"duration_us": 1, "writes": [7], "loads": [7, 8]}]), "$.operators[0].loads[1]", "no storage"),
    (
        encoded(operators=[{"duration_us": 1, "type": "idle", "writes": [7]}]),
        "$.operators[0].type",
        "idle time has no accesses",
    ),
    (
        encoded(operators=[], storages=[{"id": 7, "bytes": 1, "resident_at_end": True}]),
        "$.storages[0].resident_at_end",
        "never written",
    ),
    (
        encoded(device={"links": {"tiers": [{"name": "host"}, {"name": "host"}]}}),
        "$.device.links.tiers[1].name",
        "given twice",
    ),
    (
        encoded(device={"host_bytes": 5, "links": {"tiers": [{"name": "host"}]}}),
        "$.device.links.tiers[0].name",
        "also given by device.host_bytes",
    ),
    (encoded(device={"links": {"tiers": [{"name": "hbm"}]}}), "$.device.links.tiers[0].name", "the fast memory itself"),
    (encoded(storages=[{"id": 7, "bytes": 1, "part_of": 7}]), "$.storages[0].part_of", "part of itself"),
    (
        encoded(storages=[{"id": 7, "bytes": 1}, *({"id": i, "bytes": 1, "part_of": 3 - i} for i in (1, 2))]),
        "$.storages[1].part_of",
        "part of itself",
    ),
    (
        encoded(device={"links": {"d2h_bytes_per_s": 1e-6, "h2d_bytes_per_s": 10**9}}),
        "$.device.links.d2h_bytes_per_s",
        "a copy of storage 7, 10 bytes, would take more than 2^53 ns",
    ),
    (
        encoded(device={"links": {"tiers": [{"name": "host"}, {"name": "pool", "h2d_bytes_per_s": 1e-300}]}}),
        "$.device.links.tiers[1].h2d_bytes_per_s",
        "tier 'pool': a copy of storage 7",
    ),
    (
        encoded(device={"links": {"h2d_bytes_per_s": 10**9, "latency_us": 1e14}}),
        "$.device.links.latency_us",
        "1e+14 us of latency",
    ),
    (
        encoded(operators=[{"duration_us": 1, "name": "NaN"}, {"duration_us": float("nan")}]),
        "$.operators[1].duration_us",
        "NaN is no number",
    ),
    (
        encoded(device={"links": {"latency_us": float("-inf"), "h2d_bytes_per_s": float("inf")}}),
        "$.device.links.latency_us",
        "-Infinity is no number",
    ),
    (encoded(operators=[{"duration_us": "x"}, {"duration_us": float("nan")}]), "$", "not JSON"),
    (encoded(storages=[{"id": 7, "bytes": 1}], x=float("nan")), "$", "not JSON"),
    (encoded(x=[{}] * 10)[:-1] + b",]}", "$", "not JSON"),
    (gzip.compress(gzip.compress(encoded())), "$", "compressed twice"),
    (gzip.compress(encoded())[:-5], "$", "truncated gzip"),
    (b"\x1f\x8bgarbage", "$", "gzip"),
    (zstandard.ZstdCompressor().compress(encoded())[:-3], "$", "zstd"),
    (zstandard.ZstdCompressor().compress(encoded()) * 2, "$", "more than one zstd frame"),
]


@pytest.mark.parametrize(("data", "field", "problem"), BAD)
def test_faults_name_field_problem_and_remedy(data: bytes, field: str, problem: str) -> None:
    with pytest.raises(DocumentError) as refused:
        profiles.load(data)
    assert refused.value.field == field
    assert problem in refused.value.problem
    assert refused.value.remedy and refused.value.remedy in str(refused.value)


def test_a_slow_link_that_brings_the_largest_storage_over_is_a_link() -> None:
    """As slow as it may be: 10 bytes in 2^53 ns; what may not leave HBM, and what is no path, are not looked at."""
    slow = {"d2h_bytes_per_s": 10 * 1e9 / 2**53 * (1 + 1e-12), "h2d_bytes_per_s": 0, "latency_us": 0}
    stuck = {"id": 8, "bytes": 2**50, "offloadable": False}
    profile, _ = profiles.load(encoded(device={"links": slow}, storages=[{"id": 7, "bytes": 10}, stuck]))
    assert profile.device.tiers["host"].copy_ns(10, out=True) <= profiles.LONGEST_COPY_NS
    profiles.load(encoded(device={"links": {"d2h_bytes_per_s": 1e-300}}, storages=[{**stuck, "id": 7}]))


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (encoded(storages=[{"id": 7, "bytes": 1, "kind": "x"}]), "use one of parameter, gradient, "),
        (encoded(operators=[{"duration_us": 1, "phase": "x"}]), "use one of forward, backward, optimizer, other"),
        (encoded(adapter={"moves": "x"}), "use one of any, "),
        (encoded(format="hyperopt.plan/1"), "this is a plan: give a profile here"),
    ],
)
def test_what_may_stand_there_instead_is_told(data: bytes, remedy: str) -> None:
    with pytest.raises(DocumentError) as refused:
        profiles.load(data)
    assert refused.value.remedy.startswith(remedy)


def test_compression_is_recognised_by_content() -> None:
    plain, _ = profiles.load(encoded())
    for packed in (
        gzip.compress(encoded()),
        gzip.compress(encoded()[:40]) + gzip.compress(encoded()[40:]),
        zstandard.ZstdCompressor().compress(encoded()),
    ):
        assert profiles.load(packed)[0] == plain


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress, bytes])
def test_what_unpacks_too_large_is_refused(pack: Any) -> None:
    with pytest.raises(DocumentError, match="larger than 1000 bytes"):
        decompress(pack(b" " * 100_000), limit=1000)


@pytest.mark.parametrize("family", ["profile", "plan"])
def test_a_bomb_of_tiny_objects_is_refused_without_building_them(family: str) -> None:
    head = b'{"format":"hyperopt.%s/1","operators":[],"storages":[],"explain":[' % family.encode()
    packed = gzip.compress(head + b"{}," * (MAX_OBJECTS + 1) + b"{}]}")
    assert len(packed) < 100_000
    load = profiles.load if family == "profile" else plans.load
    with pytest.raises(DocumentError, match="more than 4000000 objects"):
        load(packed)


def test_the_limit_holds_for_what_is_inside_a_package() -> None:
    with pytest.raises(DocumentError, match="larger than 1000 bytes"):
        profiles.load(gzip.compress(encoded(note=" " * 5000)), 1000)


def test_unknown_fields_are_left_out_with_a_warning_each() -> None:
    operators = [{"duration_us": 1, "writes": [7], "colour": 1}, {"duration_us": 1, "colour": 2, "smell": 3}]
    profile, warnings = profiles.load(encoded(operators=operators, mood="good", device={"fans": 2}))
    assert "colour" not in canonical(profile).decode()
    assert warnings == [
        f"unknown field {name} left out"
        for name in ("$.device.fans", "$.mood", "$.operators[].colour", "$.operators[].smell")
    ]


def test_a_minor_version_is_read() -> None:
    profiles.load(encoded(format="hyperopt.profile/1.7"))


@settings(max_examples=100, deadline=None)
@given(any_profile())
def test_a_profile_survives_its_own_document(profile: Profile) -> None:
    again, warnings = profiles.load(canonical(profile))
    assert warnings == [] and again == profile and again.digest == profile.digest


def test_digests() -> None:
    """The digest follows content, not spelling; the program digest follows structure, not times."""
    first, _ = profiles.load(encoded())
    spelled, _ = profiles.load(json.dumps(document(), indent=3, sort_keys=True).encode())
    assert first.digest == spelled.digest
    built = Profile(
        operators=(Operator(name="a", duration_us=1.5, writes=(7,)), Operator(name="b", duration_us=2, reads=(7,))),
        storages=(Storage(id=7, bytes=10),),
    )
    assert built.digest == first.digest
    slower = document()
    slower["operators"][0]["duration_us"] = 9
    other, _ = profiles.load(json.dumps(slower).encode())
    assert other.digest != first.digest and other.program_digest == first.program_digest


def test_written_files_are_whole_and_compressed_by_name(tmp_path: Path) -> None:
    profile, _ = profiles.load(encoded())
    for name in ("p.json", "p.json.gz", "p.json.zst"):
        write(profile, tmp_path / name)
        assert profiles.load((tmp_path / name).read_bytes())[0] == profile
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.json", "p.json.gz", "p.json.zst"]


def test_a_file_that_cannot_be_written_leaves_nothing_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    profile, _ = profiles.load(encoded())
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError) as failed:
        write(profile, tmp_path / "p.json")
    assert failed.value.errno == errno.ENOSPC and failed.value.filename == str(tmp_path / "p.json")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_ordinary_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    profile, _ = profiles.load(encoded())
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.json", tmp_path / "target.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(profile, pipe)
    assert profiles.load(os.read(reader, 1 << 16))[0] == profile and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    target.write_text("old")
    link.symlink_to(target)
    write(profile, link)
    assert link.is_symlink() and profiles.load(target.read_bytes())[0] == profile
    write(profile, Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


def test_a_plan_is_named_by_what_it_orders() -> None:
    plan, _ = plans.load(b'{"format": "hyperopt.plan/1", "residency": {"initial": {"12": "host"}}}')
    assert plan.residency.initial == {12: "host"}
    assert plans.load(canonical(plan))[0] == plan
    explained = msgspec.structs.replace(plan, explain=({"note": "x"},))
    assert explained.content_id == plan.content_id != Plan().content_id
    with pytest.raises(DocumentError, match=r"\$\.residency\.actions\[0\]\.kind"):
        plans.load(b'{"format": "hyperopt.plan/1", "residency": {"actions": [{"op":1,"when":"after","kind":"x"}]}}')
