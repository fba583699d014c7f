"""The host beside the device: how much memory it can give, and how fast bytes move there.

On a CPU device and host are the same memory, so the link is what a copy within it achieves: measured,
one direction at a time.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from hyperopt.profile import Links

Bytes = npt.NDArray[np.uint8]

COPY_BYTES = 64 * 1024**2  # beyond the caches of the machines at hand
SMALL_BYTES = 4096
REPEATS = 5


def measure_links() -> Links:
    """Bandwidth of copies of 64 MiB (median of 5) and latency of one of 4 KiB. Takes about 0.2 s."""
    large = np.ones(COPY_BYTES, np.uint8)
    target = np.zeros(COPY_BYTES, np.uint8)
    small = np.ones(SMALL_BYTES, np.uint8)
    large_ns = median(_copy_ns(large, target) for _ in range(REPEATS))
    small_ns = median(_copy_ns(small, target[:SMALL_BYTES]) for _ in range(100))
    rate = int(COPY_BYTES * 1_000_000_000 / large_ns)
    return Links(d2h_bytes_per_s=rate, h2d_bytes_per_s=rate, latency_us=small_ns / 1000, duplex=False)


def _copy_ns(source: Bytes, target: Bytes) -> int:
    start = perf_counter_ns()
    np.copyto(target, source)
    return perf_counter_ns() - start


def memory_total() -> int:
    """Bytes of memory of this machine (``MemTotal`` of /proc/meminfo)."""
    return _meminfo("MemTotal")


def memory_available() -> int:
    """Bytes that could be taken now without swapping (``MemAvailable`` of /proc/meminfo)."""
    return _meminfo("MemAvailable")


def _meminfo(field: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == field:
                return int(value.split()[0]) * 1024
    raise OSError(f"/proc/meminfo has no {field}")
