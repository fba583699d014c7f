"""Walking, numbering and reading: with sources made up for it, so that what a source does is chosen."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hyperopt import profile as profiles
from hyperopt.documents import write
from hyperopt.profile import Measured, Operator, Profile
from profiler.read import UnreadableError, documents, read, recognise
from profiler.read.findings import Findings
from profiler.read.manifest import Manifest
from profiler.read.ranks import RankFiles, Source
from profiler.read.reading import read_folder
from tests.conftest import ABSENT, SHARED_DATA
from tests.profiler.read.mindspore.pipeline_files import write_pipeline
from tests.samples import worked_example


class Panic(BaseException):
    """As polars' own, which is no Exception."""


def nth(files: RankFiles, findings: Findings) -> Profile:
    """A profile that depends on what stands in the file."""
    said = files.path.read_text()
    match said:
        case "refused":
            findings.warn("a warning all the same")
            findings.computing_us = 7.0
            raise UnreadableError("no steps in it (record some)")
        case "fault":
            raise ZeroDivisionError("division by zero\nsecond line")
        case "panic":
            raise Panic("index out of bounds")
        case "memory":
            raise MemoryError
        case "nan":
            operators = (Operator(name="a", duration_us=float("nan")),)
            return Profile(operators=operators, storages=())
        case "negative":
            return Profile(operators=(Operator(name="a", duration_us=-1.0),), storages=())
        case "dangling":
            return Profile(operators=(Operator(name="a", duration_us=1.0, reads=(4,)),), storages=())
        case "degraded":
            findings.lacks("no memory record")
            findings.normalised("KiB/1000 called MB")
            findings.drop(files.path, "rows of another table", 3, (2, 5, 9))
    findings.stage = int(said) // 2 if said.isdigit() else None
    return worked_example(rank=int(said)) if said.isdigit() else worked_example()


def by_suffix(suffix: str, kind: str, numbered: bool = True) -> Source:
    def find(path: Path) -> list[RankFiles]:
        if path.suffix != suffix:
            return []
        if path.read_text() == "unlistable":
            raise UnreadableError("it is locked")
        if path.read_text() == "broken find":
            raise KeyError("x")
        digits = "".join(c for c in path.stem if c.isdigit())
        return [RankFiles(path, int(digits) if digits and numbered else None)]

    return Source(kind, "made up", find, nth)


ONE, TWO = by_suffix(".one", "one"), by_suffix(".two", "two", numbered=False)


@pytest.fixture
def place(tmp_path: Path) -> Callable[..., Manifest]:
    def place(**files: str) -> Manifest:
        """Reads a folder with these files; ``a__b_one`` is ``a/b.one``."""
        for name, text in files.items():
            stem, _, suffix = name.replace("__", "/").rpartition("_")
            path = tmp_path / "run" / f"{stem}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_folder(tmp_path / "run", tmp_path / "out", "run", "run", (ONE, TWO))

    return place


def test_ranks_are_read_written_and_accounted_for(place: Callable[..., Manifest], tmp_path: Path) -> None:
    manifest = place(r0_one="0", deep__down__r1_one="1")
    assert manifest.kind == "one" and manifest.warnings == ()
    assert [(r.rank, r.status, r.path, r.file) for r in manifest.ranks] == [
        (0, "accepted", "r0.one", "rank_0.json.gz"),
        (1, "accepted", "deep/down/r1.one", "rank_1.json.gz"),
    ]
    first = manifest.ranks[0]
    assert (first.operators, first.storages, first.replayed_peak_bytes) == (10, 3, 768 * 2**20)
    assert (first.peak_bytes, first.step_us, first.replayed_step_us) == (None, None, 100_000.0)
    assert (first.coverage.step, first.coverage.peak, first.coverage.base) == (1.0, 1.0, 0.0)
    assert [program.ranks for program in manifest.programs] == [(0, 1)]
    for rank in manifest.ranks:
        profile, warnings = profiles.load((tmp_path / "out" / str(rank.file)).read_bytes())
        assert (profile.run.rank, profile.run.name, warnings) == (rank.rank, "run", [])
        assert profile.program_digest == rank.program_digest
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["rank_0.json.gz", "rank_1.json.gz"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("refused", "no steps in it (record some)"),
        ("fault", "a fault of ours in the reader for one: ZeroDivisionError: division by zero (report it"),
        ("panic", "a fault of ours in the reader for one: Panic: index out of bounds (report it"),
        ("memory", "more memory than there is"),
        ("nan", "a fault of ours in the reader for one: ValidationError: Expected `float`, got `null`"),
        ("negative", "a fault of ours in the reader for one: ValidationError: Expected `float` >= 0"),
        ("dangling", "no storage 4"),
    ],
)
def test_a_bad_rank_does_not_sink_the_others(
    place: Callable[..., Manifest], tmp_path: Path, fault: str, words: str
) -> None:
    manifest = place(r0_one="0", r1_one=fault, r2_one="2")
    assert [rank.status for rank in manifest.ranks] == ["accepted", "refused", "accepted"]
    assert words in manifest.ranks[1].reason and "second line" not in manifest.ranks[1].reason
    assert manifest.usable
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["rank_0.json.gz", "rank_2.json.gz"]


def test_what_a_reader_noticed_is_in_the_manifest(place: Callable[..., Manifest]) -> None:
    manifest = place(r0_one="degraded", r1_one="refused")
    degraded, refused = manifest.ranks
    assert (degraded.status, degraded.reason) == ("degraded", "no memory record")
    assert degraded.units == ("KiB/1000 called MB",)
    assert [(d.file, d.rows, d.lines) for d in degraded.dropped] == [("r0.one", 3, (2, 5, 9))]
    assert refused.warnings == ("a warning all the same",) and refused.computing_us == 7.0


def test_nothing_but_refused_ranks_is_said_in_one_line(place: Callable[..., Manifest]) -> None:
    manifest = place(r0_one="refused", r1_one="fault")
    assert not manifest.usable
    assert manifest.refusal == "rank 0: no steps in it (record some) (and 1 more were refused)"


def test_a_find_that_fails_hides_nothing(place: Callable[..., Manifest]) -> None:
    manifest = place(r0_one="0", r1_one="unlistable", r2_one="broken find")
    assert [(r.rank, r.status) for r in manifest.ranks] == [(0, "accepted"), (1, "refused")]
    assert manifest.ranks[1].reason == "it is locked"
    assert "r2.one: a fault of ours in the reader for one: KeyError" in manifest.warnings[0]


def test_unknown_ranks_are_numbered_around_the_known(place: Callable[..., Manifest], tmp_path: Path) -> None:
    manifest = place(a_two="x", b_two="x", c_two="refused", r1_one="1")
    assert [(r.rank, r.path) for r in manifest.ranks] == [(0, "a.two"), (1, "r1.one"), (2, "b.two"), (3, "c.two")]
    assert manifest.kind == "mixed" and "ranks of several kinds: one, two" in manifest.warnings
    assert profiles.load((tmp_path / "out" / "rank_2.json.gz").read_bytes())[0].run.rank == 2


def test_a_rank_that_only_its_profile_knows(place: Callable[..., Manifest]) -> None:
    assert [rank.rank for rank in place(a_two="5", b_two="5").ranks] == [0, 5]


def test_ranks_that_clash_are_told_and_not_lost(place: Callable[..., Manifest]) -> None:
    manifest = place(first__r0_one="0", second__r0_one="0", second__r1_one="1")
    assert [(r.rank, r.path) for r in manifest.ranks] == [
        (0, "first/r0.one"),
        (1, "second/r1.one"),
        (2, "second/r0.one"),
    ]
    assert manifest.warnings == (
        "rank 0 is there 2 times; the others are numbered on: second/r0.one is rank 2 "
        "(different runs? read them one by one)",
    )


def test_a_number_that_no_rank_has(place: Callable[..., Manifest]) -> None:
    manifest = place(r99999999999999_one="0")
    assert [(r.rank, r.status) for r in manifest.ranks] == [(0, "accepted")]


def test_links_are_not_followed(place: Callable[..., Manifest], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "r7.one").write_text("7")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "folder").symlink_to(outside)
    (tmp_path / "run" / "r8.one").symlink_to(outside / "r7.one")
    (tmp_path / "run" / "self").symlink_to(tmp_path / "run")
    manifest = place(r0_one="0")
    assert [rank.rank for rank in manifest.ranks] == [0]
    assert manifest.warnings == ("run: 3 links not followed",)


def test_the_walk_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "run" / "/".join("x" * 20)
    deep.mkdir(parents=True)
    (deep / "r0.one").write_text("0")
    manifest = read_folder(tmp_path / "run", None, "run", "run", (ONE,))
    assert manifest.ranks == () and "more than 16 levels down" in manifest.warnings[0]
    monkeypatch.setattr(recognise, "MAX_ENTRIES", 5)
    for i in range(10):
        (tmp_path / "run" / f"f{i}").touch()
    manifest = read_folder(tmp_path / "run", None, "run", "run", (ONE,))
    assert "only the first 5 files and folders" in manifest.warnings[0]


def test_files_beside_a_rank_belong_to_it_and_folders_do_not(tmp_path: Path) -> None:
    """A folder that a source knows is not searched for other kinds; folders beside its ranks are."""

    def find(path: Path) -> list[RankFiles]:
        return [RankFiles(path / "rank", 0)] if (path / "rank").is_dir() else []

    for name in ("rank/inside.two", "beside.two", "other/r.two"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("x")
    folder = Source("folder", "made up", find, lambda files, findings: worked_example())
    manifest = read_folder(tmp_path / "run", None, "run", "run", (folder, TWO))
    assert [(rank.kind, rank.path) for rank in manifest.ranks] == [("folder", "rank"), ("two", "other/r.two")]


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "run") + b"/r0\xff.one")).write_text("0")
    manifest = read_folder(tmp_path / "run", tmp_path / "out", "run", "run", (ONE,))
    assert manifest.ranks[0].path == "r0?.one"
    msgspec.json.encode(manifest)


def test_what_is_not_recognised_says_what_to_give(tmp_path: Path) -> None:
    manifest = read_folder(tmp_path, None, str(tmp_path), "x", (ONE,))
    assert (manifest.kind, manifest.ranks, manifest.usable) == ("unknown", (), False)
    assert "no kind of profile was recognised" in manifest.refusal and "readers/index.md" in manifest.refusal
    with pytest.raises(UnreadableError, match="there is no file or folder"):
        read(tmp_path / "nowhere")


def test_an_archive_in_a_folder_is_not_unpacked_but_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rank.zip", "w") as archive:
        archive.writestr("r0.one", "0")
    manifest = read_folder(tmp_path, None, str(tmp_path), "x", (ONE,))
    assert "it holds archives: unpack rank.zip, or give one of them" in manifest.refusal


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("content", "words"),
    [('{"traceEvents": []}'.encode("utf-16"), "it is UTF-16 and no UTF-8: convert t.json"), (b"", "the file is empty")],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, words: str, whole: bool) -> None:
    (tmp_path / "t.json").write_bytes(content)
    refusal = read(tmp_path if whole else tmp_path / "t.json").refusal
    assert (words in refusal) == (bool(content) or not whole), "an empty file in a folder says nothing of the others"


def test_profiles_written_before_are_not_read_as_ranks(tmp_path: Path) -> None:
    run = write_pipeline(tmp_path / "run")
    first = read(run, run / "out")
    assert read(run, run / "out") == first and first.kind == "mindinsight_pipeline"
    with pytest.raises(UnreadableError, match="is read and written to at once"):
        read(run, run)


def test_differences_between_measured_and_replayed_are_warned_about(tmp_path: Path) -> None:
    measured = Measured(step_us=90_000.0, peak_bytes=768 * 2**20 + 1)
    profile = msgspec.structs.replace(worked_example(), measured=measured)
    (tmp_path / "a.x").touch()
    source = Source("x", "", lambda p: [RankFiles(p)] if p.suffix == ".x" else [], lambda files, findings: profile)
    (rank,) = read_folder(tmp_path, None, "x", "x", (source,)).ranks
    assert rank.warnings == (
        "replayed, the step takes 100000.0 us; measured were 90000.0",
        f"replayed, the peak is {768 * 2**20} bytes; measured were {768 * 2**20 + 1}",
    )
    assert rank.peak_bytes == 768 * 2**20 + 1


# -- documents of our own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p.json", "p.json.gz", "p.json.zst"])
def test_a_profile_document_is_recognised_wherever_its_format_stands(tmp_path: Path, name: str) -> None:
    operators = tuple(Operator(name="x" * 200, duration_us=1.0) for _ in range(12_000))
    write(Profile(operators=operators, storages=()), tmp_path / name)  # 2.9 MB before the word
    assert [files.path.name for files in documents.find(tmp_path / name)] == [name]
    manifest = read_folder(tmp_path / name, tmp_path / "out", name, "p", (documents.SOURCE,))
    assert (manifest.kind, manifest.ranks[0].operators) == ("hyperopt", 12_000)


DAMAGED = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 50


OTHERS = [b"", b"[]", b'{"format": "hyperopt.plan/1"}', b'{"operators": []}', b'{"name": 1}', b"\x1f\x8bxx", DAMAGED]


@pytest.mark.parametrize("content", OTHERS)
def test_other_json_is_no_profile_document(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.json").write_bytes(content)
    assert documents.find(tmp_path / "p.json") == []


def test_a_bad_profile_document_is_refused_with_its_field(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"format": "hyperopt.profile/1", "operators": [{"duration_us": -1}]}')
    (rank,) = read_folder(tmp_path, None, "x", "x", (documents.SOURCE,)).ranks
    assert rank.status == "refused" and rank.reason.startswith("p.json: $.operators[0].duration_us")


# -- the whole table of sources ----------------------------------------------------------------------------


def test_a_gigabyte_on_one_line_is_no_profile_and_costs_nothing(tmp_path: Path) -> None:
    for name in ("kernel_details.csv", "trace.json", "memory_block.csv", "p.json", "snapshot.pickle", "x.db"):
        with (tmp_path / name).open("wb") as file:
            file.write(b'{"operators": [' if name == "p.json" else b'{"traceEvents": [' if "trace" in name else b"a")
            file.truncate(1 << 30)
    manifest = read(tmp_path)
    assert not manifest.usable
    assert all("fault of ours" not in text for text in (*manifest.warnings, *(r.reason for r in manifest.ranks)))


def test_a_pipeline_and_its_imbalance(tmp_path: Path) -> None:
    manifest = read(write_pipeline(tmp_path / "run", (10.0, 10.0, 40.0, 42.0)), tmp_path / "out")
    assert [(rank.rank, rank.stage, rank.computing_us) for rank in manifest.ranks] == [
        (0, 0, 11_000.0),
        (1, 0, 11_000.0),
        (2, 1, 41_000.0),
        (3, 1, 43_000.0),
    ]
    assert manifest.warnings == (
        "stage 1 (ranks 2, 3) computes 3.82 times as long as stage 0 (ranks 0, 1): 42.0 ms against 11.0 ms a step",
    )


@pytest.mark.skipif(not SHARED_DATA.exists(), reason=ABSENT)
def test_layer_descriptions_are_no_ranks() -> None:
    manifest = read(SHARED_DATA / "pipeline_balance")
    assert (manifest.kind, manifest.ranks, len(manifest.layers)) == ("sapp_ppb", (), 4)
    assert manifest.usable


@pytest.mark.skipif(not SHARED_DATA.exists(), reason=ABSENT)
def test_the_imbalance_of_real_runs_is_named() -> None:
    manifest = read(SHARED_DATA / "mindspore_pipeline")
    assert "stage 1 (ranks 2, 3) computes 8.37 times as long as stage 0 (ranks 0, 1)" in manifest.warnings[0]
    manifest = read(SHARED_DATA / "ascend_qwen3_pp2_dp2")
    assert any(
        re.match(r"(stage 1 \(ranks 2, 3\)|rank 3) computes 1\.7[34] times as long as", line)
        for line in manifest.warnings
    )
