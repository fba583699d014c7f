"""Archives of profiler folders, unpacked into a temporary folder that goes away again.

An archive comes from anywhere, so nothing that it says about itself is believed: sizes and ratios are counted while
bytes come out of it, names are checked before anything is made, and whatever is no plain file or folder is refused::

    zip                 member after member      ┐
    tar  .gz .bz2 .zst  one stream, forward only ┴─▶ counted ─▶ a new file below the folder, or UnreadableError

Whatever goes wrong, nothing of it is left on disk.
"""

from __future__ import annotations

import bz2
import io
import stat
import struct
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from typing import IO, cast

import zstandard

from hyperopt.documents import GZIP_MAGIC, ZSTD_MAGIC
from profiler.read.findings import UnreadableError

BZIP2_MAGIC = b"BZh"
XZ_MAGIC = b"\xfd7zXZ\x00"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")

CHUNK = 1 << 20
"""Bytes that are read at once. A tar header that wants more at once (long names are read whole) is refused."""

MAX_DIRECTORY = 32 << 20
"""Bytes of a zip's table of contents, which is read whole: some 300,000 names."""

MAX_WINDOW = 1 << 27
"""Bytes of a zstd window: what `zstd -22` and `--long` use."""

MAX_DEPTH = 32
MAX_NAME = 255
"""Bytes of one part of a name: the limit of most file systems."""

TAR_MAGIC_AT = 257
TOLD_NAME = 120
"""Characters of a member's name that a message repeats."""


@dataclass(frozen=True)
class Limits:
    """`bytes` unpacked in all, `members` files and folders, and `ratio` of unpacked to packed bytes, which is looked at
    only where more than `small` bytes came out: tables of zeros compress well, bombs a thousandfold."""

    bytes: int = 64 << 30
    members: int = 100_000
    ratio: int = 200
    small: int = 64 << 20


LIMITS = Limits()


def is_archive(path: Path) -> bool:
    """Whether the file is one of the archives that are understood, by its first bytes and not by its name.

    A compressed document (``rank_0.json.gz``) is none, and so is what does not begin like an archive when unpacked.
    What is packed with xz counts as one, for `unpacked` to say what is wrong with it.
    """
    with path.open("rb") as file:
        head = file.read(8)
        if head.startswith((*ZIP_MAGICS, XZ_MAGIC)):
            return True
        file.seek(0)
        try:
            start = _decompressed(file, head).read(512)
        except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError):
            return False
    return start[TAR_MAGIC_AT : TAR_MAGIC_AT + 5] == b"ustar"


@contextmanager
def unpacked(path: Path, limits: Limits = LIMITS, beside: Path | None = None) -> Iterator[Path]:
    """The archive's content in a temporary folder (below `beside`, None: where temporary files go), which is removed
    at the end.

    Raises `UnreadableError` where the archive is damaged or encrypted, goes beyond a limit, or has a member that is no
    plain file or folder, or whose name leads elsewhere.
    """
    with tempfile.TemporaryDirectory(prefix="hyperopt-", dir=beside) as name:
        folder = Path(name)
        try:
            with path.open("rb") as file:
                head = file.read(8)
                file.seek(0)
                if head.startswith(ZIP_MAGICS):
                    _unzip(file, _Unpacking(path, folder, limits))
                elif head.startswith(XZ_MAGIC):
                    raise UnreadableError(f"{path.name} is packed with xz (pack it as .zip, .tar.gz or .tar.zst)")
                else:
                    _untar(file, head, _Unpacking(path, folder, limits))
        except (zipfile.BadZipFile, tarfile.TarError, zstandard.ZstdError, zlib.error, EOFError) as error:
            raise UnreadableError(f"{path.name} is damaged or cut short: {error} (send it again, whole)") from error
        except OSError as error:
            raise UnreadableError(f"{path.name} cannot be unpacked: {error.strerror or error}") from error
        yield folder


class _Unpacking:
    """Where members go, and what has come out so far."""

    def __init__(self, archive: Path, folder: Path, limits: Limits) -> None:
        self.archive, self.folder, self.limits = archive, folder, limits
        self.bytes = self.members = 0
        self.packed = archive.stat().st_size
        self.seen: dict[str, tuple[str, bool]] = {}
        """Name, in a form that is equal where some file system takes two for one -> as it is, and if it is a folder."""

    def place(self, name: str, is_folder: bool) -> Path | None:
        """Where the member belongs; None: nowhere (the root itself, and what macOS adds). Parents are made."""
        self.members += 1
        if self.members > self.limits.members:
            raise self.refused(f"has more than {self.limits.members} members", "pack one run of few ranks a time")
        parts = self._parts(name)
        if not parts or parts[0] == "__MACOSX":
            return None
        for depth in range(1, len(parts) + 1):
            entry = ("/".join(parts[:depth]), is_folder or depth < len(parts))
            key = unicodedata.normalize("NFC", entry[0]).casefold()
            if (key in self.seen and not entry[1]) or self.seen.setdefault(key, entry) != entry:
                raise self.refused(f"has two members named {_told(name)}", "pack the folder as it is on disk")
        place = self.folder.joinpath(*parts)
        (place if is_folder else place.parent).mkdir(parents=True, exist_ok=True)
        return None if is_folder else place

    def _parts(self, name: str) -> tuple[str, ...]:
        """The name's parts below the folder. Backslashes separate, as in archives made on Windows."""
        plain = name.replace("\\", "/")
        parts = tuple(part for part in plain.split("/") if part not in ("", "."))
        if plain.startswith("/") or ".." in parts or (parts and parts[0][1:2] == ":"):
            raise self.refused(f"has a member that leads outside: {_told(name)}", "pack it with names below one folder")
        printable = not any(unicodedata.category(c) in ("Cc", "Cs") for c in plain)
        if not printable or len(parts) > MAX_DEPTH or any(len(part.encode()) > MAX_NAME for part in parts):
            raise self.refused(f"has a member with a name that cannot be used: {_told(name)}", "rename it")
        return parts

    def store(self, source: IO[bytes], name: str, packed: int | None) -> None:
        """Writes a member; `packed`: its bytes in the archive, None where only those of the whole are known."""
        place = self.place(name, is_folder=False)
        size = 0
        with place.open("xb") if place is not None else io.BytesIO() as file:
            while chunk := source.read(CHUNK):
                size += len(chunk)
                self.count(len(chunk))
                if packed is not None:
                    self.check_ratio(size, packed, _told(name))
                file.write(chunk)

    def count(self, size: int) -> None:
        self.bytes += size
        if self.bytes > self.limits.bytes:
            raise self.refused(f"is larger than {self.limits.bytes} bytes when unpacked", "pack fewer ranks")
        self.check_ratio(self.bytes, self.packed, "as a whole")  # many members, each too small to be looked at

    def check_ratio(self, size: int, packed: int, what: str) -> None:
        if size > self.limits.small and size > packed * self.limits.ratio:
            raise self.refused(
                f"grows more than {self.limits.ratio}-fold when unpacked ({what})", "unpack it and give the folder"
            )

    def refused(self, why: str, remedy: str) -> UnreadableError:
        return UnreadableError(f"{self.archive.name} {why} ({remedy})")


def _told(name: str) -> str:
    return repr(name if len(name) <= TOLD_NAME else name[:TOLD_NAME] + "...")


# What `zipfile` and `tarfile` raise besides their own errors on headers that make no sense (found by fuzzing).
_FOOLED = (ValueError, ArithmeticError, LookupError, RuntimeError, struct.error)


# -- zip ---------------------------------------------------------------------------------------------------


def _unzip(file: IO[bytes], into: _Unpacking) -> None:
    guarded = _Guarded(file, MAX_DIRECTORY, into.refused("has too large a table of contents", "pack fewer files"))
    try:
        with zipfile.ZipFile(cast(IO[bytes], guarded)) as archive:
            for member in archive.infolist():
                _check_zipped(member, into)
                if member.is_dir():
                    into.place(member.filename, is_folder=True)
                    continue
                with archive.open(member) as source:
                    into.store(source, member.filename, member.compress_size)
    except UnreadableError:
        raise
    except _FOOLED as error:
        raise into.refused(f"is damaged: {error}", "pack it anew") from error


def _check_zipped(member: zipfile.ZipInfo, into: _Unpacking) -> None:
    if not member.filename:
        raise into.refused("has a member without a name", "pack it anew")
    if member.flag_bits & 0x1:
        raise into.refused(f"is encrypted ({_told(member.filename)})", "pack it without a password")
    # LZMA allocates what its header says, up to 4 GiB.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        method = f"zip's method {member.compress_type}"
        raise into.refused(f"is compressed with {method} ({_told(member.filename)})", "use deflate")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a link" if kind == stat.S_IFLNK else "a device or pipe"
        raise into.refused(f"has {what}: {_told(member.filename)}", "pack plain files only")


# -- tar ---------------------------------------------------------------------------------------------------


def _untar(file: IO[bytes], head: bytes, into: _Unpacking) -> None:
    def check(size: int) -> None:
        into.check_ratio(size, file.tell(), "as a whole")

    too_long = into.refused("has a header larger than any name needs", "pack it anew")
    stream = _Forward(_decompressed(file, head), CHUNK, too_long, check)
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:", errors="surrogateescape") as archive:
            for member in archive:
                _take(member, archive, into)
    except UnreadableError:
        raise
    except _FOOLED as error:
        raise into.refused(f"is damaged: {error}", "pack it anew") from error


def _take(member: tarfile.TarInfo, archive: tarfile.TarFile, into: _Unpacking) -> None:
    if member.isdir():
        into.place(member.name, is_folder=True)
        return
    if member.issparse() or not member.isreg():
        what = "a link" if member.issym() or member.islnk() else "a sparse file, device or pipe"
        raise into.refused(f"has {what}: {_told(member.name)}", "pack plain files only")
    source = archive.extractfile(member)
    assert source is not None, "a regular member has content"
    into.store(source, member.name, None)


def _decompressed(file: IO[bytes], head: bytes) -> IO[bytes]:
    """The stream behind gzip, bzip2, zstd or no compression, told by the first bytes."""
    if head.startswith(GZIP_MAGIC):
        return cast(IO[bytes], GzipFile(fileobj=file, mode="rb"))
    if head.startswith(BZIP2_MAGIC):
        return bz2.BZ2File(file)
    if head.startswith(ZSTD_MAGIC):
        return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_reader(file, read_across_frames=True)
    return file


class _Guarded:
    """A file of which no single read gives more than `most` bytes: `tarfile` and `zipfile` read headers whole, as long
    as these claim to be. Raises `error` where there is more."""

    def __init__(self, file: IO[bytes], most: int, error: UnreadableError) -> None:
        self.file, self.most, self.error = file, most, error

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size if 0 <= size <= self.most else self.most + 1)
        if len(data) > self.most:
            raise self.error
        return data

    def seek(self, to: int, whence: int = 0) -> int:
        return self.file.seek(to, whence)

    def tell(self) -> int:
        return self.file.tell()

    def seekable(self) -> bool:
        return True


class _Forward(_Guarded):
    """The same for a stream that cannot go back: seeking is reading. `check` is called with the bytes so far."""

    def __init__(self, file: IO[bytes], most: int, error: UnreadableError, check: Callable[[int], None]) -> None:
        super().__init__(file, most, error)
        self.check, self.position = check, 0

    def read(self, size: int = -1) -> bytes:
        data = super().read(size)
        self.position += len(data)
        self.check(self.position)
        return data

    def seek(self, to: int, whence: int = 0) -> int:
        if whence != 0 or to < self.position:
            raise OSError("its headers lead backwards")
        while self.position < to and self.read(min(CHUNK, to - self.position)):
            pass
        return self.position

    def tell(self) -> int:
        return self.position
