"""Protocol buffers on the wire, as far as reading a few fields needs: no schema compiler, no library.

A message is fields one after another, each with its number and a type that tells its length; a file of many messages
puts the length of each before it::

    08 96 01           field 1, number 150
    12 02 68 69        field 2, 2 bytes "hi"
"""

from __future__ import annotations

from collections.abc import Iterator

Value = int | bytes | memoryview

MAX_MESSAGE = 16 << 20
"""Bytes."""


class WireError(ValueError):
    """These bytes are no such message; the message says where."""


def messages(data: bytes) -> Iterator[bytes]:
    """The messages of a file in which each has its length before it. Raises `WireError`."""
    at = 0
    while at < len(data):
        size, start = varint(data, at)
        if size > MAX_MESSAGE or size > len(data) - start:
            raise WireError(f"a message of {size:,} bytes at byte {at}")
        at = start + size
        yield data[start:at]


def fields(message: bytes | memoryview) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field in order: unsigned integers, or the bytes of text and messages. Fixed-width numbers
    are given as their bits. Of a view, pieces are views: nothing is copied."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(message, at)
            yield number, value
            continue
        size, at = (8, at) if kind == 1 else (4, at) if kind == 5 else varint(message, at) if kind == 2 else (-1, at)
        if size < 0 or size > len(message) - at:
            raise WireError(f"a field of type {kind} that does not fit at byte {at}")
        piece = message[at : at + size]
        at += size
        yield number, piece if kind == 2 else int.from_bytes(piece, "little")


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The unsigned integer at `at`, and where it ends. Raises `WireError`."""
    value = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & (2**64 - 1), at + place + 1
    raise WireError(f"no integer at byte {at}")
