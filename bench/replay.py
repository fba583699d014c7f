"""Loading and replaying a profile of 100,000 operators and as many storages: at most two seconds each are wanted.

    python -m bench.replay [OPERATORS]

Times are of the clock and, in brackets, of this process alone: on a machine that does other work only the latter
says much. The fastest of three rounds.
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


def timed(run: Callable[[], T]) -> tuple[tuple[float, float], T]:
    """Seconds of the clock and of the processor, and what was returned."""
    clock, processor = time.perf_counter(), time.process_time()
    found = run()
    return (time.perf_counter() - clock, time.process_time() - processor), found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    document = msgspec.json.encode(large_profile(count))
    loads, replays = [], []
    for _ in range(ROUNDS):  # a fresh profile each time: what a replay looks up is kept with the profile
        seconds, (profile, _) = timed(lambda: load(document))
        loads.append(seconds)
        seconds, timeline = timed(lambda fresh=profile: replay(fresh))  # type: ignore[misc]
        replays.append(seconds)
    print(f"{count} operators and storages, {len(document) / 1e6:.1f} MB of JSON")
    for what, taken in (("load and check", loads), ("replay", replays)):
        print(f"{what} {min(clock for clock, _ in taken):.2f} s ({min(used for _, used in taken):.2f} s)")
    print(f"peak {timeline.peak_bytes} bytes at operator {timeline.peak_op}, step {timeline.step_us / 1e3:.1f} ms")


if __name__ == "__main__":
    main()
