"""Archives from anywhere: what is good comes out whole, what is not is refused by name and leaves nothing behind."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import zstandard

from profiler.read.archive import LIMITS, Limits, is_archive, unpacked
from profiler.read.findings import UnreadableError

FILES = {"run/a.csv": b"x,y\n1,2\n", "run/deep/b.json": b"{}", "c.txt": b""}


def zipped(files: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return out.getvalue()


def tarred(files: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def with_member(change: Callable[[tarfile.TarInfo], None], content: bytes = b"") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("bad")
        change(member)
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tar.gz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.zst": zstandard.ZstdCompressor().compress,
}


def unpack(folder: Path, data: bytes, limits: Limits = LIMITS) -> dict[str, bytes]:
    """What the archive unpacks to; its folder is checked to be gone afterwards."""
    path, scratch = folder / "given.archive", folder / "scratch"
    path.write_bytes(data)
    scratch.mkdir(exist_ok=True)
    try:
        with unpacked(path, limits, scratch) as place:
            return {str(f.relative_to(place)): f.read_bytes() for f in sorted(place.rglob("*")) if f.is_file()}
    finally:
        assert list(scratch.iterdir()) == [], "left behind"
        assert sorted(p.name for p in folder.iterdir()) == ["given.archive", "scratch"]


@pytest.mark.parametrize("packing", [*PACKERS, "zip", "zip stored", "zip bzip2"])
def test_what_is_packed_comes_out(tmp_path: Path, packing: str) -> None:
    methods = {"zip": zipfile.ZIP_DEFLATED, "zip stored": zipfile.ZIP_STORED, "zip bzip2": zipfile.ZIP_BZIP2}
    files = FILES.items()
    data = zipped(files, methods[packing]) if packing in methods else PACKERS[packing](tarred(files))
    assert unpack(tmp_path, data) == FILES
    assert is_archive(tmp_path / "given.archive")


def test_long_names_of_every_tar_format(tmp_path: Path) -> None:
    files = {"/".join(["a" * 120] * 3) + "/ünïcode.csv": b"1" * 5000}
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        assert unpack(tmp_path, tarred(files.items(), form)) == files


def test_folders_dots_and_what_macos_adds(tmp_path: Path) -> None:
    data = zipped([("./run/", b""), ("./run/./a", b"1"), ("__MACOSX/run/._a", b"2"), ("win\\b", b"3")])
    assert unpack(tmp_path, data) == {"run/a": b"1", "win/b": b"3"}


def test_what_is_no_archive(tmp_path: Path) -> None:
    for content in (b"", b"{}", gzip.compress(b"{}"), b"PK", gzip.compress(b"x" * 1000)[:20], b"\x28\xb5\x2f\xfdxx"):
        (tmp_path / "file").write_bytes(content)
        assert not is_archive(tmp_path / "file")


ELSEWHERE = ["../x", "a/../../x", "/etc/passwd", "..\\x", "C:\\x", "C:x", "\\\\host\\x", ".."]


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_names_that_lead_outside(tmp_path: Path, name: str, pack: Callable[..., bytes]) -> None:
    with pytest.raises(UnreadableError, match=r"given.archive has a member that leads outside.*\(pack it with"):
        unpack(tmp_path, pack([("good", b"1"), (name, b"2")]))


@pytest.mark.parametrize("name", ["a\nb", "a" * 256, "/".join("a" * 40), "bell\a"])
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_names_that_cannot_be_used(tmp_path: Path, name: str, pack: Callable[..., bytes]) -> None:
    with pytest.raises(UnreadableError, match=r"a name that cannot be used"):
        unpack(tmp_path, pack([(name, b"2")]))


CLASHES = [("a", "a"), ("a", "A"), ("a", "a/b"), ("a/b", "a"), ("d/a", "D/b"), ("ü", "u\u0308")]


@pytest.mark.parametrize("names", CLASHES)
@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_clash(tmp_path: Path, names: tuple[str, str], pack: Callable[..., bytes]) -> None:
    with pytest.raises(UnreadableError, match=r"has two members named"):
        unpack(tmp_path, pack([(name, b"1") for name in names]))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.SYMTYPE, "a link: 'bad'"),
        (tarfile.LNKTYPE, "a link: 'bad'"),
        (tarfile.CHRTYPE, "device or pipe: 'bad'"),
        (tarfile.BLKTYPE, "device or pipe: 'bad'"),
        (tarfile.FIFOTYPE, "device or pipe: 'bad'"),
    ],
)
def test_links_and_devices_in_a_tar(tmp_path: Path, kind: bytes, words: str) -> None:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname = kind, "/etc/passwd"

    with pytest.raises(UnreadableError, match=words):
        unpack(tmp_path, with_member(change))


@pytest.mark.parametrize(
    ("mode", "words"), [(stat.S_IFLNK, "a link"), (stat.S_IFCHR, "a device"), (stat.S_IFIFO, "pipe")]
)
def test_links_and_devices_in_a_zip(tmp_path: Path, mode: int, words: str) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        member = zipfile.ZipInfo("bad")
        member.external_attr = (mode | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(UnreadableError, match=words):
        unpack(tmp_path, out.getvalue())


def test_a_sparse_file_is_not_filled_in(tmp_path: Path) -> None:
    def change(member: tarfile.TarInfo) -> None:
        member.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(10**15), "GNU.sparse.numblocks": "1"}
        member.size = 1

    with pytest.raises(UnreadableError, match="a sparse file"):
        unpack(tmp_path, with_member(change, b"x"))


def test_an_encrypted_zip(tmp_path: Path) -> None:
    data = bytearray(zipped([("secret", b"1" * 100)]))
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(magic) + at] |= 1
    with pytest.raises(UnreadableError, match=r"is encrypted \('secret'\) \(pack it without a password\)"):
        unpack(tmp_path, bytes(data))


def test_other_compressions(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="zip's method 14"):
        unpack(tmp_path, zipped([("a", b"1")], zipfile.ZIP_LZMA))
    with pytest.raises(UnreadableError, match="packed with xz"):
        unpack(tmp_path, b"\xfd7zXZ\x00" + b"\0" * 100)
    assert is_archive(tmp_path / "given.archive"), "so that it is said"


ZEROS = b"\0" * (8 << 20)


@pytest.mark.parametrize("packing", ["tar.gz", "tar.bz2", "tar.zst", "zip"])
def test_a_bomb_is_stopped_by_its_ratio(tmp_path: Path, packing: str) -> None:
    files = [("bomb", ZEROS)]
    data = zipped(files) if packing == "zip" else PACKERS[packing](tarred(files))
    with pytest.raises(UnreadableError, match=r"grows more than 20-fold .*\(unpack it and give the folder\)"):
        unpack(tmp_path, data, Limits(ratio=20, small=1 << 20))


@pytest.mark.parametrize("packing", ["tar", "tar.gz", "zip"])
def test_many_small_members_still_add_up(tmp_path: Path, packing: str) -> None:
    files = [(f"f{i}", os.urandom(100_000)) for i in range(30)]
    data = zipped(files) if packing == "zip" else PACKERS[packing](tarred(files))
    with pytest.raises(UnreadableError, match="larger than 2000000 bytes when unpacked"):
        unpack(tmp_path, data, Limits(bytes=2_000_000))


def test_many_bombs_too_small_to_be_looked_at(tmp_path: Path) -> None:
    data = zipped([(f"bomb{i}", ZEROS[: 1 << 20]) for i in range(20)])
    with pytest.raises(UnreadableError, match=r"grows more than 50-fold when unpacked \(as a whole\)"):
        unpack(tmp_path, data, Limits(ratio=50, small=2 << 20))


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_too_many_members(tmp_path: Path, pack: Callable[..., bytes]) -> None:
    with pytest.raises(UnreadableError, match="more than 50 members"):
        unpack(tmp_path, pack([(f"f{i}", b"") for i in range(60)]), Limits(members=50))


def test_headers_are_not_believed(tmp_path: Path) -> None:
    """A zip that says 10 bytes and gives 8 MiB, and a tar with a name of 8 MiB."""
    data = bytearray(zipped([("bomb", ZEROS)]))
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (10).to_bytes(4, "little")
    with pytest.raises(UnreadableError):
        unpack(tmp_path, bytes(data), Limits(bytes=1 << 20))
    with pytest.raises(UnreadableError, match="a header larger than any name needs"):
        unpack(tmp_path, gzip.compress(tarred([("a" * (8 << 20), b"")])))


def test_overlapping_members_do_not_multiply(tmp_path: Path) -> None:
    """Many entries of the table of contents that lead to one member: what comes out is counted."""
    data = zipped([("bomb", os.urandom(50_000))], zipfile.ZIP_STORED)
    start = data.index(b"PK\x01\x02")
    entry, end = data[start : data.index(b"PK\x05\x06")], bytearray(data[data.index(b"PK\x05\x06") :])
    entries = [entry.replace(b"bomb", f"b{i:03d}".encode()) for i in range(100)]
    end[8:12] = (100).to_bytes(2, "little") * 2
    end[12:16] = sum(map(len, entries)).to_bytes(4, "little")
    with pytest.raises(UnreadableError):
        unpack(tmp_path, data[:start] + b"".join(entries) + bytes(end), Limits(bytes=1_000_000))


@pytest.mark.parametrize("packing", [*PACKERS, "zip"])
def test_a_truncated_archive(tmp_path: Path, packing: str) -> None:
    files = [("a", os.urandom(200_000)), ("b", b"2")]
    data = zipped(files) if packing == "zip" else PACKERS[packing](tarred(files))
    with pytest.raises(UnreadableError, match=r"given.archive"):
        unpack(tmp_path, data[: len(data) // 2])


def test_damage_inside(tmp_path: Path) -> None:
    data = bytearray(zipped([("a", os.urandom(1000))], zipfile.ZIP_STORED))
    data[200] ^= 255
    with pytest.raises(UnreadableError, match="damaged or cut short"):
        unpack(tmp_path, bytes(data))


def test_a_chain_of_headers_without_end(tmp_path: Path) -> None:
    header = bytearray(tarred([("a" * 200, b"")], tarfile.GNU_FORMAT)[:1024])
    with pytest.raises(UnreadableError):
        unpack(tmp_path, bytes(header) * 5000)


def test_a_member_without_a_name(tmp_path: Path) -> None:
    data = zipped([("a", b"1")])
    start = data.index(b"PK\x01\x02")
    entry = bytearray(data[start : data.index(b"PK\x05\x06")])
    entry[28:30] = (0).to_bytes(2, "little")
    del entry[46:47]
    end = bytearray(data[data.index(b"PK\x05\x06") :])
    end[12:16] = len(entry).to_bytes(4, "little")
    with pytest.raises(UnreadableError, match="a member without a name"):
        unpack(tmp_path, data[:start] + bytes(entry) + bytes(end))
