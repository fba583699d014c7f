"""A profile to its file in pieces, each decoded again as whoever reads the document will decode it.

::

    profile ─▶ head            ─▶ encoded ─▶ decoded as a Profile, and dropped ─▶ compressed beside its place
            ─▶ 8192 operators  ─▶   ...   ─▶ decoded as operators, and dropped ─▶     ...
            ─▶ 8192 storages   ─▶                                                  moved there at the end

So a million operators are never there twice, and figures out of range or times that are no number are found here and
not by the one who reads the file. Another thread compresses: zlib leaves this one to Python. The text is the one that
`hyperopt.documents.write` writes.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from hyperopt.documents import MAX_DOCUMENT_BYTES, MAX_LISTS, MAX_OBJECTS
from hyperopt.profile import Operator, Profile, Storage
from profiler.read.findings import UnreadableError

PIECE = 8192
"""Operators or storages that are encoded at a time: some 2 MB."""

WAITING = 16
"""Pieces that wait to be compressed."""

LEVEL = 3
"""Of compression. Of 275 MB it makes 17.3 MB in 1.1 s; level 6, 14.1 MB in 2.0 s (measured)."""

_NO_OPERATORS, _NO_STORAGES = b'{"operators":[]', b',"storages":[]'

_LIMITS = ((b"{", MAX_OBJECTS, "objects"), (b"[", MAX_LISTS, "lists"))


@contextmanager
def written(profile: Profile, path: Path | None) -> Iterator[None]:
    """The profile as a gzip document, which is at `path` (None: nowhere) once the block has ended without an error.

    Its folder is made with it; where there is an error, nothing is left. Raises, before the block, what decoding raises
    where the document could not be read again, and `UnreadableError` where it is too large or cannot be written.
    """
    if path is None:
        for _ in _valid(profile):
            pass
        yield
        return
    path = path.resolve()
    partial = path.with_name(path.name + ".partial")
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        with _saying(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _compress(_valid(profile), partial)
        yield
        with _saying(path):
            partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
            for folder in made:
                folder.rmdir()
        raise


@contextmanager
def _saying(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "give another folder for the profiles, or make room"
        raise UnreadableError(f"{path} cannot be written: {error.strerror or error} ({remedy})") from error


def _compress(pieces: Iterator[bytes], path: Path) -> None:
    packer = zlib.compressobj(level=LEVEL, wbits=31)
    waiting: deque[Future[bytes]] = deque()
    with path.open("wb") as file, ThreadPoolExecutor(1) as other:
        for piece in pieces:
            waiting.append(other.submit(packer.compress, piece))
            if len(waiting) > WAITING:
                file.write(waiting.popleft().result())
        for packed in waiting:
            file.write(packed.result())
        file.write(packer.flush())


def _valid(profile: Profile) -> Iterator[bytes]:
    """The document's text in pieces that can be read again."""
    size, counts = 0, [0] * len(_LIMITS)
    for piece in _pieces(profile):
        size += len(piece)
        if size > MAX_DOCUMENT_BYTES:
            raise UnreadableError(f"the profile is larger than {MAX_DOCUMENT_BYTES:,} bytes (profile fewer steps)")
        for i, (mark, most, what) in enumerate(_LIMITS):
            counts[i] += piece.count(mark)
            if counts[i] > most:
                raise UnreadableError(f"the profile has more than {most:,} {what} (profile fewer steps)")
        yield piece


def _pieces(profile: Profile) -> Iterator[bytes]:
    """The text, of which every part has been decoded again."""
    rest = msgspec.json.encode(msgspec.structs.replace(profile, operators=(), storages=()))
    msgspec.json.decode(rest, type=Profile)
    head = _NO_OPERATORS + _NO_STORAGES
    assert rest.startswith(head), "fields of a profile are in another order"
    operators = _items(profile.operators, msgspec.json.Decoder(tuple[Operator, ...]))
    storages = _items(profile.storages, msgspec.json.Decoder(tuple[Storage, ...]))
    yield from chain([_NO_OPERATORS[:-1]], operators, [b"]", _NO_STORAGES[:-1]], storages, [b"]", rest[len(head) :]])


def _items(items: tuple[Any, ...], decoder: msgspec.json.Decoder[Any]) -> Iterator[bytes]:
    """The items' text between the brackets of their list."""
    for first in range(0, len(items), PIECE):
        text = msgspec.json.encode(items[first : first + PIECE])
        decoder.decode(text)
        yield (b"," if first else b"") + text[1:-1]
