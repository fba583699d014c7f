"""Interleaved steps of the demo model: `python -m bench.gate_record [--rounds 300]` writes bench/gate_steps.json.

Two models of the same code in one process, graph mode, in the order A B  B A  B A  A B ...: B is once as it is, and
once for each slowdown with that share of every step burnt after it; which of the two models is A changes every eight
runs. Run it on the machine whose noise is of interest.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hyperopt.gate.interleave import turned

FILE = Path(__file__).with_name("gate_steps.json")
SLOWER = (0, 5, 8, 10, 15)
"""Percent."""

WARM_UP = 20


def timed(step: Callable[[Any, Any], Any], batch: tuple[Any, Any], slower: int) -> tuple[float, float]:
    """Milliseconds of one step with what is burnt after it: by the clock, and of processor time (of all threads).

    Burnt is processor time: like real work, it takes longer by the clock when others run too.
    """
    begun, used = time.perf_counter(), time.process_time()
    step(*batch).asnumpy()
    end = used + (time.process_time() - used) * (1 + slower / 100)
    while (now := time.process_time()) < end:
        pass
    return round(1000 * (time.perf_counter() - begun), 2), round(1000 * (now - used), 2)


def main(rounds: int) -> None:
    import mindspore as ms

    from profiler.demo.model import Config, build
    from profiler.demo.text import batches

    ms.set_context(mode=ms.GRAPH_MODE)
    config = Config(layers=1, width=32, sequence=32, batch=8)
    models = [build(config)[1] for _ in range(2)]
    ids, targets = next(iter(batches(config.batch, config.sequence)))
    batch = (ms.Tensor(ids), ms.Tensor(targets))
    for _ in range(WARM_UP):
        for model in models:
            timed(model, batch, 0)
    taken: dict[int, list[tuple[tuple[float, float], tuple[float, float]]]] = {slower: [] for slower in SLOWER}
    for at in range(rounds):
        # Of two models of the same code in one process one can be 5 % faster (measured): each is the candidate in turn.
        base, candidate = models if at % 4 < 2 else models[::-1]
        for slower, found in taken.items():
            for pair in (2 * at, 2 * at + 1):
                if turned(pair):
                    b = timed(candidate, batch, slower)
                    found.append((timed(base, batch, 0), b))
                else:
                    a = timed(base, batch, 0)
                    found.append((a, timed(candidate, batch, slower)))
    told = {
        "unit": "ms",
        "what": "steps of the demo model (1 layer, width 32, sequence 32, batch 8), MindSpore graph mode on a CPU",
        "mindspore": ms.__version__,
        "taken": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "load": [round(one, 1) for one in os.getloadavg()],
        "clock": {str(slower): [(a[0], b[0]) for a, b in found] for slower, found in taken.items()},
        "processor": {str(slower): [(a[1], b[1]) for a, b in found] for slower, found in taken.items()},
    }
    FILE.write_text(json.dumps(told, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    main(parser.parse_args().rounds)
