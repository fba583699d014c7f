"""Loading and replaying a profile of 100,000 operators and as many storages: at most two seconds each are wanted.

python -m bench.replay [OPERATORS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from hyperopt.profile import load
from hyperopt.replay import replay
from tests.samples import large_profile

T = TypeVar("T")
ROUNDS = 3


def best_of(run: Callable[[], T]) -> tuple[float, T]:
    """Seconds of the fastest of ROUNDS runs, and what the last one returned."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        found = run()
        times.append(time.perf_counter() - start)
    return min(times), found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    document = msgspec.json.encode(large_profile(count))
    loading, _ = best_of(lambda: load(document))
    # A fresh profile each time: what a replay looks up is kept with the profile.
    replaying, timeline = best_of(lambda: replay(load(document)[0]))
    print(f"{count} operators and storages, {len(document) / 1e6:.1f} MB of JSON")
    print(f"load and check {loading:.2f} s; load, check and replay {replaying:.2f} s; best of {ROUNDS}")
    print(f"replay alone {replaying - loading:.2f} s; peak {timeline.peak_bytes} bytes at operator {timeline.peak_op}")


if __name__ == "__main__":
    main()
