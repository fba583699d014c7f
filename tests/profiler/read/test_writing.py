"""Profiles that readers write: the text of any document, checked in pieces, and nothing where something is wrong."""

from __future__ import annotations

import gc
import gzip
from pathlib import Path

import msgspec
import pytest

from hyperopt import profile as profiles
from hyperopt.profile import Operator, Profile
from profiler.read import UnreadableError, read, writing
from profiler.read.findings import Findings
from profiler.read.ranks import RankFiles, Source
from profiler.read.reading import read_folder
from profiler.read.writing import written
from tests.samples import random_profile, worked_example

PIECES = (1, 3, 8192)


def text(profile: Profile, path: Path) -> bytes:
    with written(profile, path):
        assert not path.exists()
    return gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("seed", range(5))
def test_the_text_is_that_of_any_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, seed: int
) -> None:
    monkeypatch.setattr(writing, "PIECE", piece)
    monkeypatch.setattr(writing, "WAITING", 2)
    profile = random_profile(seed, operators=20)
    assert text(profile, tmp_path / "new" / "p.json.gz") == msgspec.json.encode(profile)
    assert profiles.load((tmp_path / "new" / "p.json.gz").read_bytes()) == (profile, [])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["p.json.gz"]


@pytest.mark.parametrize("empty", [Profile(operators=(), storages=()), worked_example()])
def test_lists_may_be_empty(tmp_path: Path, empty: Profile) -> None:
    profile = msgspec.structs.replace(empty, operators=())
    assert text(profile, tmp_path / "p.json.gz") == msgspec.json.encode(profile)


@pytest.mark.parametrize("place", [0, 8191, 8192, 20_000])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("to_file", [True, False])
def test_what_could_not_be_read_again_is_found_in_any_piece(
    tmp_path: Path, place: int, wrong: float, to_file: bool
) -> None:
    operators = [Operator(name="a", duration_us=1.0)] * 20_001
    operators[place] = Operator(name="b", duration_us=wrong)
    profile = Profile(operators=tuple(operators), storages=())
    with pytest.raises(msgspec.ValidationError), written(profile, tmp_path / "p.json.gz" if to_file else None):
        pytest.fail("it is not valid")
    assert list(tmp_path.iterdir()) == []


def test_a_document_that_is_too_large_to_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MAX_DOCUMENT_BYTES", 1000)
    with pytest.raises(UnreadableError, match="profile fewer steps"), written(worked_example(), tmp_path / "p.json.gz"):
        pytest.fail("it is too large")
    assert list(tmp_path.iterdir()) == []


def test_what_fails_after_it_was_written_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "p.json.gz").write_bytes(b"before")
    with pytest.raises(ZeroDivisionError), written(worked_example(), tmp_path / "p.json.gz"):
        raise ZeroDivisionError
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("p.json.gz", b"before")]


def source(*profile: Profile) -> Source:
    """Of a rank for each of the profiles, which it gives for files 0.x, 1.x, ..."""

    def nth(files: RankFiles, findings: Findings) -> Profile:
        assert not gc.isenabled(), "the collector would look at every operator again and again"
        return profile[int(files.path.stem)]

    return Source("x", "made up", lambda path: [RankFiles(path)] if path.suffix == ".x" else [], nth)


def test_a_place_that_cannot_be_written_is_said_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "0.x").touch()
    (tmp_path / "out" / "rank_0.json.gz").mkdir(parents=True)
    (rank,) = read_folder(tmp_path / "run", tmp_path / "out", "run", "run", (source(worked_example()),)).ranks
    assert rank.status == "refused" and rank.file is None
    assert "rank_0.json.gz cannot be written: Is a directory (give another folder" in rank.reason
    assert gc.isenabled()


def test_a_folder_is_made_with_the_first_profile(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    out = tmp_path / "new" / "out"
    assert not read_folder(tmp_path / "run", out, "run", "run", (source(),)).usable
    (tmp_path / "run" / "0.x").touch()
    broken = Profile(operators=(Operator(duration_us=float("nan")),), storages=())
    assert not read_folder(tmp_path / "run", out, "run", "run", (source(broken),)).usable
    assert not out.parent.exists()
    assert read_folder(tmp_path / "run", out, "run", "run", (source(worked_example()),)).warnings == ()
    assert [path.name for path in out.iterdir()] == ["rank_0.json.gz"]


def test_a_folder_below_a_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output, words in ((tmp_path / "file", "is no folder"), (tmp_path / "file" / "x" / "y", "cannot be made: ")):
        with pytest.raises(UnreadableError, match=f"{words}.*give a folder for the profiles"):
            read(tmp_path, output)


def test_profiles_of_an_earlier_reading_are_named(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for number in (0, 1):
        (tmp_path / "run" / f"{number}.x").touch()
    ranks = source(worked_example(), worked_example(rank=1))
    assert read_folder(tmp_path / "run", tmp_path / "out", "run", "run", (ranks,)).warnings == ()
    assert read_folder(tmp_path / "run", tmp_path / "out", "run", "run", (ranks,)).warnings == (), "both again"
    (tmp_path / "run" / "1.x").unlink()
    (tmp_path / "out" / "rank_10.json.gz").touch()
    (tmp_path / "out" / "other.json.gz").touch()
    (warning,) = read_folder(tmp_path / "run", tmp_path / "out", "run", "run", (ranks,)).warnings
    told = "profiles of an earlier reading stay in out: rank_1.json.gz, rank_10.json.gz"
    assert warning == f"{told} (remove them, or give another folder)"
    assert (tmp_path / "out" / "rank_1.json.gz").exists()
