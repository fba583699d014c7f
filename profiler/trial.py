"""A training run that is measured: the same code with and without a plan, so that the two can be compared.

Of the steps, the first `RECORDED` run under MindSpore's memory record (bytes in use after every allocation), the
others with nothing attached, for the step time. One trial a process: MindSpore's pool and modes outlive a run.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hyperopt.plan import Plan
from hyperopt.profile import Profile
from profiler.apply import apply
from profiler.apply.log import ExecutionLog

Mode = Literal["graph", "pynative"]

RECORDED = 2
FEWEST_STEPS = RECORDED + 1


@dataclass(frozen=True)
class Training:
    """A network, ``step(*batch)`` that trains it and returns the loss, and its batches (tuples of arrays)."""

    net: Any
    step: Callable[..., Any]
    batches: Iterator[tuple[Any, ...]]

    def batch(self) -> tuple[Any, ...]:
        """The next batch as MindSpore tensors."""
        import mindspore as ms

        return tuple(part if isinstance(part, ms.Tensor) else ms.Tensor(part) for part in next(self.batches))


@dataclass(frozen=True)
class Trial:
    """What a run measured. ``losses`` of every step, exact; ``peak_bytes``: the most that MindSpore's pool had in
    use; ``resident_peak_bytes``: the most that the process held while it trained, copies on the host included;
    ``step_us``: median of the steps without the record, ``step_us_spread``: highest minus lowest of them."""

    losses: tuple[float, ...]
    peak_bytes: int
    resident_peak_bytes: int
    step_us: float
    step_us_spread: float
    log: ExecutionLog | None


def prepare(mode: Mode) -> None:
    """Sets MindSpore up for a capture or a trial; before the process's first operator."""
    import mindspore as ms

    if mode == "pynative":
        ms.runtime.launch_blocking()
    ms.set_context(mode=ms.PYNATIVE_MODE if mode == "pynative" else ms.GRAPH_MODE)
    ms.set_device("CPU")


def demo_training(**sizes: int) -> Training:
    """The demonstration's model on its text; ``sizes`` as in ``profiler.demo.model.Config``. Raises ValueError."""
    from profiler.demo.model import Config, build
    from profiler.demo.text import batches

    config = Config(**sizes)
    net, step = build(config)
    return Training(net, step, batches(config.batch, config.sequence))


def own_training(factory: str) -> Training:
    """The training of ``module:function``, which returns (net, step, batches). Raises ValueError if it is not there."""
    module, _, name = factory.partition(":")
    try:
        build = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{factory}: {error}") from error
    net, step, batches = build()
    return Training(net, step, iter(_tuples(batches)))


def _tuples(batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def run_trial(training: Training, steps: int, profile: Profile | None = None, plan: Plan | None = None) -> Trial:
    """Trains for `steps` (at least `FEWEST_STEPS`), under `plan` if one is given, made for `profile`.

    Raises `profiler.apply.capability.PlanRefused` before anything has run.
    """
    if steps < FEWEST_STEPS:
        raise ValueError(f"steps is {steps}: {RECORDED} are recorded and at least one is timed")
    from profiler.capture.recording import record_steps

    losses: list[float] = []
    first = training.batch()
    waiting = [first]

    def step() -> None:
        batch = waiting.pop() if waiting else training.batch()
        losses.append(float(training.step(*batch).asnumpy()))

    times: list[float] = []
    with _applied(training, first, profile, plan) as log:
        _forget_resident_peak()
        records = record_steps(step, RECORDED)
        for _ in range(steps - RECORDED):
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) * 1e6)
        resident = _resident_peak()
    return Trial(
        losses=tuple(losses),
        peak_bytes=max(record.peak_bytes for record in records),
        resident_peak_bytes=resident,
        step_us=statistics.median(times),
        step_us_spread=max(times) - min(times),
        log=log,
    )


def _applied(
    training: Training, batch: tuple[Any, ...], profile: Profile | None, plan: Plan | None
) -> contextlib.AbstractContextManager[ExecutionLog | None]:
    if plan is None or profile is None:
        return contextlib.nullcontext()
    return apply(training.net, profile, plan, training.step, batch)


def _forget_resident_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM


def _resident_peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM")
