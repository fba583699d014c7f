"""Copies between the tiers, alone and with others at the same time: operators on streams of their own.

Several processes copy the same sizes in the same turns of a common clock. What each measures is the typical time of its
own copies in a turn, each into memory that it allocates itself, as a plan's copies do::

    turn      |  4 KiB out  |  4 KiB in  |  64 KiB out  | ...
    process 0    == == ==      == == ==     === === ===
    process 1    == == ==      == == ==     === === ===
"""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

from profiler.calibrate.child import typical

SIZES = tuple(1 << n for n in range(12, 29))
"""4 KiB to 256 MiB, each twice the one before: bandwidth falls where a cache ends, within one of these steps."""

LARGE = 8 << 20
"""Bytes from which a copy may meet memory that was never touched, and takes milliseconds."""


def turn_s(size: int) -> float:
    """How long all processes copy one size in one direction."""
    return 0.7 if size >= LARGE else 0.25


class Copy(NamedTuple):
    """One size, one direction: typical microseconds (`child.typical`)."""

    way: Literal["CopyOut", "CopyIn"]
    size: int
    us: float


def measure(start: float) -> list[Copy]:
    """All sizes both ways, from `start` on (seconds of the wall clock)."""
    import mindspore as ms

    from profiler.apply.copies import copy_in, copy_out, device_block

    found = []
    begin = start
    for size in SIZES:
        block = device_block((size,), ms.uint8)
        filled = copy_out(block, size)

        def out(block: object = block, size: int = size) -> None:
            copy_out(block, size)

        def back(size: int = size, filled: object = filled) -> None:
            copy_in(filled, device_block((size,), ms.uint8))  # type: ignore[arg-type]

        ways: tuple[Literal["CopyOut", "CopyIn"], ...] = ("CopyOut", "CopyIn")
        for way, copy in zip(ways, (out, back), strict=True):
            time.sleep(max(0.0, begin - time.time()))
            times: list[float] = []
            while time.time() < begin + 0.8 * turn_s(size) or len(times) < 3:
                before = time.perf_counter()
                copy()
                times.append(time.perf_counter() - before)
            found.append(Copy(way, size, typical(times) * 1e6))
            begin += turn_s(size)
    return found
