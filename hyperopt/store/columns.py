"""Columns of numbers as bytes: one value per operator or access, little-endian, no header.

A number per operator and rank as rows would be 10^5 rows a rank; as an array it is one row of 800 kB
(measured in docs/why/store.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_TIME = np.dtype("<i8")
_CODE = struct.Struct("<I")


def pack_times(values: Iterable[int] | Ints) -> bytes:
    """int64 nanoseconds, one per operator."""
    return np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=_TIME).tobytes()


def unpack_times(data: bytes) -> Ints:
    return np.frombuffer(data, dtype=_TIME).astype(np.int64)


def pack_accesses(codes: list[int]) -> bytes:
    """Codes 2 x operator position (+ 1 where it writes), in launch order."""
    return b"".join(map(_CODE.pack, codes))


def unpack_accesses(data: bytes) -> list[int]:
    """Operator positions of a storage's accesses, in launch order."""
    return [code >> 1 for (code,) in _CODE.iter_unpack(data)]
