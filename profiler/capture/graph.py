"""Graph-mode capture: one call that runs a training step a few times and returns its profile.

The step is compiled once more with ``save_graphs`` on, so that the runtime writes down its actor set
(what runs, what it reads and writes, how large that is); then it runs under MindSpore's CPU profiler
with the memory record. All in this process, on the memory optimisation level O0 that is MindSpore's
default: what is measured is what is described. docs/why/graph.md says why not the SOMAS dump.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import time_ns
from typing import Any

import mindspore as ms
from mindspore import nn
from msgspec import structs

from hyperopt.profile import Adapter, Device, Measured, Profile, Run, check
from hyperopt.replay import replay
from profiler.capture.anatomy import Anatomy
from profiler.capture.assembly import assemble, launches
from profiler.capture.machine import host_bytes, measured_links
from profiler.capture.recording import CaptureError, Session, record_session
from profiler.peaks import excluded_bytes
from profiler.read.mindspore.actors import ActorSet, Signature, read_actor_set, read_signatures

Step = Callable[..., Any]


def capture_graph(
    step: Step,
    *args: Any,
    net: Any,
    steps: int = 7,
    warmup: int = 2,
    hbm_bytes: int | None = None,
    name: str = "",
) -> Profile:
    """The profile of ``step(*args)``, which is called ``1 + warmup + 2 x steps`` times.

    ``step`` is a Cell (or a function that calls one compiled graph) doing forward, backward and update;
    it trains: parameters change. ``net`` is the network inside, whose cells name the layers.
    ``hbm_bytes`` is the budget of the profile's device; by default the measured peak with all that the
    record leaves out. Durations are medians over ``steps`` (at least 3).

    Raises ``CaptureError`` outside graph mode, at memory optimisation level O1, for steps of several
    graphs, and where MindSpore writes no dump.
    """
    if steps < 3:
        raise ValueError(f"steps is {steps}: medians need at least 3")
    if ms.get_context("mode") != ms.GRAPH_MODE:
        raise CaptureError("MindSpore is not in graph mode: set_context(mode=GRAPH_MODE) first")
    with TemporaryDirectory(prefix="hyperopt-") as folder:
        graph, signatures = compile_and_read(step, args, Path(folder) / "graphs", run=True)
        if graph.static_memory:
            raise CaptureError("memory is planned at compile time: use runtime.set_memory(optimize_level='O0')")
        for _ in range(warmup):
            _run(step, args)
        plain = [_span_us(_run(step, args)) for _ in range(steps)]
        trace = record_session(lambda: _run(step, args), steps)
    step_us = median(plain)
    recorded = [_span_us(span) for span in trace.spans]
    assembled = assemble(
        graph,
        launches(graph, trace.executions, steps),
        signatures,
        anatomy_of(net),
        frozenset(parameter.name for parameter in net.get_parameters()),
        step_us,
        steps,
    )
    peak, floor = _memory(trace)
    inputs = sum(storage.bytes for storage in assembled.storages if storage.kind == "input")
    profile = Profile(
        run=Run(
            name=name,
            framework="mindspore",
            framework_version=ms.__version__,
            model=type(net).__name__,
            source="capture",
            notes=(
                *assembled.notes,
                f"step: median {step_us:.0f} us of {steps}; under the profiler, which gave the kernels' durations: "
                f"{median(recorded):.0f} us",
                "parameters and optimizer states are outside the memory record; peak_bytes leaves them out",
            ),
        ),
        device=Device(
            name="cpu",
            hbm_bytes=hbm_bytes or 0,
            base_bytes=max(0, floor - inputs),
            host_bytes=host_bytes(),
            links=measured_links(),
        ),
        operators=assembled.operators,
        storages=assembled.storages,
        measured=Measured(
            step_us=step_us,
            step_us_spread=max(plain) - min(plain),
            peak_bytes=peak,
            excludes=("parameter", "optimizer_state"),
        ),
        adapter=Adapter(name="mindspore-graph", mode="graph", moves="none", recompute="layer"),
    )
    check(profile)
    if hbm_bytes is not None:
        return profile
    whole = max(peak + excluded_bytes(profile), replay(profile).peak_bytes)
    return structs.replace(profile, device=structs.replace(profile.device, hbm_bytes=whole))


def anatomy_of(net: Any) -> Anatomy:
    """The cells of a network by name, the lists among them, and the owner of each parameter."""
    cells = dict(net.cells_and_names())
    containers = {name for name, cell in cells.items() if isinstance(cell, (nn.CellList, nn.SequentialCell))}
    owners = {p.name: name for name, cell in cells.items() for p in cell.get_parameters(expand=False)}
    return Anatomy(frozenset(cells), frozenset(containers), owners)


def compile_and_read(
    step: Step, args: tuple[Any, ...], folder: Path, *, run: bool
) -> tuple[ActorSet, dict[str, Signature]]:
    """Compiles ``step`` afresh and reads what the runtime will do; runs it once if ``run``.

    Without ``run`` the step must be a Cell, and no parameter changes. Raises ``CaptureError``.
    """
    graph, signatures = compiled(step, args, folder, run=run)
    return read_actor_set(graph), signatures


def compiled(step: Step, args: tuple[Any, ...], folder: Path, *, run: bool) -> tuple[str, dict[str, Signature]]:
    """As `compile_and_read`, with the text of the actor set instead of what it says."""
    cell: Any = step if isinstance(step, nn.Cell) else None
    if cell is not None:
        cell.compile_cache.clear()
    elif not run:
        raise CaptureError("only a Cell can be compiled without being run")
    with _graphs_saved(folder):
        if run:
            _run(step, args)
        else:
            cell.compile(*args)
    dumps = sorted((folder / "actor_set").glob("0_*.ir"))
    if not dumps:
        raise CaptureError("MindSpore wrote no actor set: was the step compiled before? Pass a fresh one, or its Cell")
    if len(dumps) > 1:
        raise CaptureError(f"the step runs {len(dumps)} graphs; only one can be captured: make it one Cell")
    final = next((folder / "actor_set").glob("final_*.ir"), None)
    return dumps[0].read_text(), read_signatures(final.read_text()) if final else {}


@contextmanager
def _graphs_saved(folder: Path) -> Iterator[None]:
    before = ms.get_context("save_graphs"), ms.get_context("save_graphs_path")
    folder.mkdir(parents=True, exist_ok=True)
    _save_graphs(1, str(folder))
    try:
        yield
    finally:
        _save_graphs(before[0], before[1] or ".")


def _save_graphs(level: Any, folder: str) -> None:
    """MindSpore warns that environment variables will replace these settings; but it reads those once a process,
    and whoever calls us has compiled something before. So the warning is kept from the user, who can do nothing."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        ms.set_context(save_graphs=level, save_graphs_path=folder)
    finally:
        logging.disable(before)


def _run(step: Step, args: tuple[Any, ...]) -> tuple[int, int]:
    """Runs the step to its end; returns start and end in nanoseconds of the wall clock."""
    start = time_ns()
    _settle(step(*args))
    return start, time_ns()


def _settle(result: Any) -> None:
    """Waits until a step's result is there: on a CPU, MindSpore waits only for who reads a value."""
    if isinstance(result, ms.Tensor):
        result.asnumpy()
    elif isinstance(result, (tuple, list)):
        for part in result:
            _settle(part)


def _span_us(span: tuple[int, int]) -> float:
    return (span[1] - span[0]) / 1000


def _memory(trace: Session) -> tuple[int, int]:
    """Highest bytes in use within the steps, and lowest: what stays between steps."""
    used = [bytes_ for start, end in trace.spans for bytes_ in trace.memory.between(start, end)]
    if not used:
        raise CaptureError("the memory record has no entry within the steps")
    return max(used), min(used)
