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
from typing import TYPE_CHECKING, Any, Literal

from hyperopt.plan import Plan
from hyperopt.profile import Profile
from hyperopt.replay import replay
from profiler.apply import apply
from profiler.apply.log import ExecutionLog
from profiler.peaks import excluded_bytes

if TYPE_CHECKING:
    from profiler.capture.recording import StepRecord

Mode = Literal["graph", "pynative"]

RECORDED = 2
FEWEST_STEPS = RECORDED + 1

PREDICTION = 0.10
"""How far the measured peak may be from the predicted one before a run says so."""


class TrialError(RuntimeError):
    """The training cannot be measured as it is; the message says what to change."""


@dataclass(frozen=True)
class Training:
    """A network, ``step(*batch)`` that trains it and returns the loss, and its batches (tuples of arrays)."""

    net: Any
    step: Callable[..., Any]
    batches: Iterator[tuple[Any, ...]]

    def batch(self) -> tuple[Any, ...]:
        """The next batch as MindSpore tensors."""
        import mindspore as ms

        try:
            batch = next(self.batches)
        except StopIteration:
            raise TrialError("the training's batches have ended: it must have one for every step") from None
        return tuple(part if isinstance(part, ms.Tensor) else ms.Tensor(part) for part in batch)

    def loss(self, batch: tuple[Any, ...]) -> float:
        """One step; waits for its loss."""
        import mindspore as ms

        result = self.step(*batch)
        if not isinstance(result, ms.Tensor) or result.size != 1:
            raise TrialError(f"the step must return the loss, a tensor of one number; it returned {type(result)}")
        return float(result.asnumpy())


@dataclass(frozen=True)
class Trial:
    """What a run measured.

    ``losses`` of every step, exact; ``peak_bytes``: the most that MindSpore's pool had in use, ``excluded_bytes``
    what the profile knows to lie outside it; ``predicted_bytes`` and ``budget_bytes``: what the sum of both is to be
    compared with, None without a plan or a budget; ``resident_peak_bytes``: the most that the process held while it
    trained, copies on the host included; ``step_us``: median of the steps without the record, ``step_us_spread``:
    highest minus lowest of them.
    """

    losses: tuple[float, ...]
    peak_bytes: int
    resident_peak_bytes: int
    step_us: float
    step_us_spread: float
    log: ExecutionLog | None
    excluded_bytes: int = 0
    predicted_bytes: int | None = None
    budget_bytes: int | None = None

    @property
    def whole_peak_bytes(self) -> int:
        """The peak that replay, plans and budgets speak of."""
        return self.peak_bytes + self.excluded_bytes

    @property
    def over_budget_bytes(self) -> int:
        return 0 if self.budget_bytes is None else max(self.whole_peak_bytes - self.budget_bytes, 0)

    def off_the_mark(self) -> list[str]:
        """A sentence for each promise of the plan that the measured peak does not keep."""
        found = []
        whole, budget, predicted = self.whole_peak_bytes, self.budget_bytes, self.predicted_bytes
        if budget is not None and whole > budget:
            over = f"{whole - budget} bytes" + (f" ({whole / budget - 1:.1%})" if budget else "")
            found.append(f"OVER BUDGET of {budget} bytes: the measured peak of {whole} is {over} over")
        if predicted is not None and abs(whole - predicted) > PREDICTION * predicted:
            off = whole / predicted - 1
            found.append(f"the measured peak of {whole} bytes is {off:+.1%} off the predicted one of {predicted}")
        return found


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

    Raises `profiler.apply.capability.PlanRefused` before anything has run, and `TrialError` for a training that has
    too few batches, returns no loss, never runs the network, or updates it with other kernels. A peak that is over
    the budget, or far from the predicted one, is a note in the log.
    """
    if steps < FEWEST_STEPS:
        raise ValueError(f"steps is {steps}: {RECORDED} are recorded and at least one is timed")
    from profiler.capture.recording import record_steps

    losses: list[float] = []
    first = training.batch()
    waiting = [first]

    def step() -> None:
        batch = waiting.pop() if waiting else training.batch()
        losses.append(training.loss(batch))

    times: list[float] = []
    with _applied(training, first, profile, plan) as log:
        _forget_resident_peak()
        records = record_steps(step, RECORDED)
        _same_update(profile, log, records[-1])
        for _ in range(steps - RECORDED):
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) * 1e6)
        resident = _resident_peak()
    if log is not None and not log.steps:
        raise TrialError(f"none of the {steps} steps ran the network: nothing of the plan was carried out")
    trial = Trial(
        losses=tuple(losses),
        peak_bytes=max(record.peak_bytes for record in records),
        resident_peak_bytes=resident,
        step_us=statistics.median(times),
        step_us_spread=max(times) - min(times),
        log=log,
        excluded_bytes=0 if profile is None else excluded_bytes(profile),
        predicted_bytes=None if profile is None or plan is None else replay(profile, plan).peak_bytes,
        budget_bytes=None if plan is None else plan.budget.hbm_bytes,
    )
    if log is not None:
        log.notes += trial.off_the_mark()
        peaks = {
            "measured": trial.whole_peak_bytes,
            "predicted": trial.predicted_bytes,
            "budget": trial.budget_bytes,
        }
        log.peak_bytes = {name: size for name, size in peaks.items() if size is not None}
    return trial


def _same_update(profile: Profile | None, log: ExecutionLog | None, record: StepRecord) -> None:
    """In PyNative mode the update is not seen before it has run; graph mode compares the whole step beforehand."""
    if profile is None or log is None or profile.adapter.mode != "pynative":
        return
    from profiler.apply.fingerprint import missing_kernels

    if missing := missing_kernels(profile, (kernel.type for kernel in record.kernels)):
        raise TrialError(f"the training is not the one profiled: {'; '.join(missing)}. Capture it again")


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
