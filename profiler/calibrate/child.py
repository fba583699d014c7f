"""One process of the sweep: a chunk of operators, or one of several that copy at the same time.

    python -m profiler.calibrate.child operators CHUNK OUTPUT
    python -m profiler.calibrate.child copies START OUTPUT

Processes of their own, because MindSpore's pool and compiled graphs outlive a run, and what runs first would be
measured in another state than what runs last.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from hyperopt.documents import write, write_bytes
from hyperopt.profile import Operator, Profile, Run
from profiler.calibrate.sweep import STEPS, chunks


def main(arguments: list[str]) -> None:
    what, value, output = arguments
    from profiler.trial import prepare

    if what == "copies":
        prepare("pynative")
        from profiler.calibrate.copies import measure

        write_bytes(msgspec.json.encode(measure(float(value))), Path(output))
        return
    prepare("graph")
    from profiler.calibrate.networks import training

    step, inputs = training(chunks()[int(value)], seed=int(value))
    write(kernels_of(step, inputs, STEPS), Path(output))


def kernels_of(step: Any, inputs: tuple[Any, ...], steps: int) -> Profile:
    """Every kernel of the step with its shapes and its `typical` time of so many steps; no storages. The step is a Cell
    that was not compiled before and returns one tensor."""
    import mindspore as ms

    from profiler.capture.anatomy import operator_type
    from profiler.capture.graph import compiled
    from profiler.capture.recording import record_session

    with TemporaryDirectory(prefix="hyperopt-") as folder:
        _, signatures = compiled(step, inputs, Path(folder), run=True)
    trace = record_session(lambda: step(*inputs).asnumpy(), steps)
    operators = []
    for name, runs in trace.executions.items():
        if (signature := signatures.get(name)) is not None and len(runs) >= steps:
            operators.append(
                Operator(
                    name=name,
                    type=operator_type(name),
                    duration_us=typical([(run.end - run.start) / 1000 for run in runs]),
                    phase="backward" if name.startswith("Gradients/") else "forward",
                    shapes=signature.shapes,
                    dtypes=signature.dtypes,
                    inputs=signature.inputs,
                    recomputable=False,
                )
            )
    run = Run(framework="mindspore", framework_version=ms.__version__, source="calibration")
    return Profile(run=run, operators=tuple(operators), storages=())


def typical(times: Sequence[float]) -> float:
    """Median of the fastest quarter. What else runs on the machine only ever adds time, and where it runs more than
    half of the time the median of all is of that (docs/why/cost.md has how well each repeats)."""
    return statistics.median(sorted(times)[: (len(times) + 3) // 4])


if __name__ == "__main__":
    main(sys.argv[1:])
