"""The links and memory of this machine as the copies of `profiler.apply.copies` find them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from hyperopt.profile import Links
from profiler.apply.copies import copy_in, copy_out, device_block

PROBE_BYTES = 32 << 20
"""Large enough not to be answered by a second-level cache, small enough to take about 10 ms."""

SMALL_BYTES = 512
REPEATS = 7


def measured_links() -> Links:
    """Bandwidth of the pool -> numpy copy and back (bytes/s), and the latency of a small one (us).

    Medians of `REPEATS` copies, each into memory that it allocates itself, as the copies of a plan do.
    """
    out_s, in_s = _copy_seconds(PROBE_BYTES)
    small_out_s, small_in_s = _copy_seconds(SMALL_BYTES)
    latency = max(small_out_s, small_in_s)
    return Links(
        d2h_bytes_per_s=int(PROBE_BYTES / max(out_s - latency, 1e-6)),
        h2d_bytes_per_s=int(PROBE_BYTES / max(in_s - latency, 1e-6)),
        latency_us=latency * 1e6,
        duplex=True,
    )


def _copy_seconds(size: int) -> tuple[float, float]:
    import mindspore as ms

    block = device_block((size,), ms.uint8)
    filled = copy_out(block, size)

    def out() -> None:
        copy_out(block, size)

    def back() -> None:
        copy_in(filled, device_block((size,), ms.uint8))

    return _median_seconds(out), _median_seconds(back)


def _median_seconds(copy: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        copy()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def host_bytes() -> int:
    """Memory for the host tier: what the control group allows if it limits, else what the machine has."""
    machine = _meminfo("MemTotal")
    limits = [machine]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = Path(path)
        if limit.exists():
            text = limit.read_text().strip()
            if text.isdigit():
                limits.append(int(text))
    return min(limits)


def _meminfo(field: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/meminfo has no {field}")
