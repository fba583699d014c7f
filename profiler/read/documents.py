"""Profiles that are written already: `hyperopt.profile/1`, plain or compressed, kind ``hyperopt``.

The word that tells the format may stand at the end of the document, behind all operators: a file whose first key is
one of a profile's is searched for it as a stream.
"""

from __future__ import annotations

import re
import zlib
from gzip import GzipFile
from pathlib import Path
from typing import IO, cast

import msgspec
import zstandard

from hyperopt import profile as profiles
from hyperopt.documents import GZIP_MAGIC, MAX_DOCUMENT_BYTES, ZSTD_MAGIC, DocumentError
from hyperopt.profile import FAMILY, Profile
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles, Source

KIND = "hyperopt"

SUFFIXES = (".json", ".json.gz", ".json.zst")
CHUNK = 1 << 20
FIRST_KEY = re.compile(rb'\s*\{\s*"([a-z_]{1,40})"\s*:')
WORD = f'"{FAMILY}/'.encode()
FORMAT = re.compile(rb'"format"\s{0,100}:\s{0,100}' + re.escape(WORD))
OVERLAP = 256
"""Bytes: no less than the longest match of `FORMAT`."""

KEYS = frozenset(field.encode_name.encode() for field in msgspec.structs.fields(Profile))


def find(path: Path) -> list[RankFiles]:
    """The file, if it is a profile document, whatever its rank, which the document tells."""
    if not path.is_file() or not path.name.lower().endswith(SUFFIXES):
        return []
    try:
        return [RankFiles(path)] if _is_profile(path) else []
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError):
        return []  # damaged: no other kind is compressed like that, but nor can this be told to be ours


def read(files: RankFiles, findings: Findings) -> Profile:
    """The document, checked. Raises `UnreadableError` with what `hyperopt.documents` says of it."""
    if files.path.stat().st_size > MAX_DOCUMENT_BYTES:
        raise UnreadableError(f"{files.path.name} is larger than {MAX_DOCUMENT_BYTES} bytes (profile fewer steps)")
    try:
        profile, warnings = profiles.load(files.path.read_bytes())
    except DocumentError as error:
        deep = isinstance(error.__cause__, RecursionError)
        raise UnreadableError(f"{files.path.name}: {'brackets are nested too deeply' if deep else error}") from error
    for warning in warnings:
        findings.warn(warning)
    return profile


def _is_profile(path: Path) -> bool:
    with path.open("rb") as file:
        text = _plain(file)
        piece = text.read(CHUNK)
        first = FIRST_KEY.match(piece)
        if first is None or first[1] not in KEYS:
            return False
        size = len(piece)
        while piece:
            if WORD in piece and FORMAT.search(piece):
                return True
            more = text.read(CHUNK)
            size += len(more)
            piece = piece[-OVERLAP:] + more if more and size <= MAX_DOCUMENT_BYTES else b""
    return False


def _plain(file: IO[bytes]) -> IO[bytes]:
    head = file.read(4)
    file.seek(0)
    if head.startswith(GZIP_MAGIC):
        return cast(IO[bytes], GzipFile(fileobj=file, mode="rb"))
    return zstandard.ZstdDecompressor().stream_reader(file) if head.startswith(ZSTD_MAGIC) else file


SOURCE = Source(KIND, "profile documents of hyperopt itself (hyperopt.profile/1)", find, read)
