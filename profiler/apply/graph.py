"""Plan -> a network in graph mode: ``Cell.recompute()`` on the layers that the plan recomputes whole.

Graph mode on a CPU can do nothing else: moves are ignored there without a word, or fail inside the
compiler. So everything else in a plan is refused by name, before anything is changed. Nothing is taken on
trust: the network is compiled before, to compare it with the profile, and after, to see that the compiler
did what was asked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mindspore as ms

from hyperopt.plan import Plan
from hyperopt.profile import Profile
from profiler.apply.capability import PlanIgnored, PlanRefused, violations
from profiler.apply.log import ActionRecord, ExecutionLog
from profiler.apply.structure import differences, structure_of_graph, structure_of_profile
from profiler.capture.anatomy import flow, operator_type, phases
from profiler.capture.anatomy import layers as layers_of
from profiler.capture.assembly import memory_roots
from profiler.capture.graph import anatomy_of, compile_and_read
from profiler.read.mindspore.actors import ActorSet, Source

ADAPTER = "mindspore-graph"


@dataclass(frozen=True)
class LayerRecompute:
    """One layer of the plan: operators (places in the profile) that run again, storages they bring back."""

    layer: str
    operators: tuple[int, ...]
    storages: tuple[int, ...]


@contextmanager
def apply_graph(net: Any, profile: Profile, plan: Plan, step: Any, args: tuple[Any, ...]) -> Iterator[ExecutionLog]:
    """Inside the context ``step(*args)`` follows ``plan``, which was made for ``profile``.

    ``step`` is a Cell around ``net``. It is compiled twice, not run: no parameter changes, and its next call
    uses the second compilation. The log has each release and recompute of the plan once for every step that has run;
    whether it is done is judged by the compiled graph (`Carried`), which does the same in every step. On exit the
    network is as before, and the step is compiled afresh at its next call.

    Raises ``PlanRefused`` with all reasons at once: broken rules of legality, parts of the plan that graph mode
    cannot do, a plan for another profile or mode, a program that is not the profiled one (differences named).
    Raises ``PlanIgnored`` where the compiler recomputes nothing.
    """
    layers, reasons = planned_layers(plan, profile)
    reasons = violations(profile, plan) + reasons
    cells = dict(net.cells_and_names())
    reasons += [f"layer {entry.layer!r} is no cell of the network" for entry in layers if entry.layer not in cells]
    if ms.get_context("mode") != ms.GRAPH_MODE:
        reasons.append("MindSpore is not in graph mode, in which the profile was captured")
    if reasons:
        raise PlanRefused(reasons)
    with TemporaryDirectory(prefix="hyperopt-") as folder:
        graph, _ = compile_and_read(step, args, Path(folder), run=False)
    if found := differences(structure_of_profile(profile), structure_of_graph(graph)):
        raise PlanRefused([f"the program is not the one profiled: {difference}" for difference in found])
    if not layers:
        log = ExecutionLog(plan.plan_id, profile.digest, notes=["nothing to apply: the plan recomputes no layer"])
        with _after_each_step(step, lambda: _write_step(log, profile, plan, [])):
            yield log
        return
    with ExitStack() as undo:
        undo.callback(step.compile_cache.clear)
        for entry in layers:
            undo.enter_context(_recomputed(cells[entry.layer]))
        yield undo.enter_context(_applied(net, profile, plan, step, args, layers, _kernels_by_layer(graph, net)))


@contextmanager
def _applied(
    net: Any,
    profile: Profile,
    plan: Plan,
    step: Any,
    args: tuple[Any, ...],
    layers: list[LayerRecompute],
    before: dict[str, LayerKernels],
) -> Iterator[ExecutionLog]:
    """Compiles the step as it now is, compares what it runs and keeps, layer by layer, with what it did before, and
    writes that into the log whenever the step has run."""
    with TemporaryDirectory(prefix="hyperopt-") as folder:
        graph, _ = compile_and_read(step, args, Path(folder), run=False)
    after = _kernels_by_layer(graph, net)
    found = [carried_out(profile, plan, entry, before[entry.layer], after[entry.layer]) for entry in layers]
    if not any(carried.again for carried in found):
        names = sorted(carried.layer for carried in found)
        raise PlanIgnored(f"{names} set to recompute, but the compiler recomputes nothing of them")
    log = ExecutionLog(
        plan_id=plan.plan_id,
        profile_digest=profile.digest,
        recomputed=[carried.layer for carried in found if carried.done],
        notes=[carried.told() for carried in found],
    )
    with _after_each_step(step, lambda: _write_step(log, profile, plan, found)):
        yield log


@contextmanager
def _after_each_step(step: Any, told: Callable[[], None]) -> Iterator[None]:
    """Calls ``told`` whenever the Cell has run. (Its hooks would be compiled into the graph.)"""
    run = step.compile_and_run

    def counted(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        told()
        return result

    object.__setattr__(step, "compile_and_run", counted)
    try:
        yield
    finally:
        object.__delattr__(step, "compile_and_run")


@contextmanager
def _recomputed(cell: Any) -> Iterator[None]:
    """``Cell.recompute()`` while the context lasts. MindSpore has no way back, hence the inner names."""
    inner = [(c, c._has_config_recompute, c.get_scope()) for _, c in cell.cells_and_names()]
    before, flags = cell._recompute_cell, dict(cell.get_flags())
    cell.recompute()
    try:
        yield
    finally:
        cell._recompute_cell = before
        cell._func_graph_flags = flags
        for part, configured, scope in inner:
            part._has_config_recompute = configured
            part._scope = scope


@dataclass
class LayerKernels:
    """One layer in a compiled graph: its kernels by type, those of the forward by type, and the outputs of the forward
    that later kernels still read, by (type of the writer, bytes)."""

    all: Counter[str] = field(default_factory=Counter)
    forward: Counter[str] = field(default_factory=Counter)
    kept: Counter[tuple[str, int]] = field(default_factory=Counter)


def _kernels_by_layer(graph: ActorSet, net: Any) -> dict[str, LayerKernels]:
    """A second run counts to the backward: it waits for it (`profiler.capture.anatomy.phases`)."""
    roots = memory_roots(graph)
    data = flow((kernel for kernel in graph.kernels if kernel.launched), roots)
    phase = phases(data)
    layer, _ = layers_of(data, phase, anatomy_of(net))
    late = {
        roots.get(source, source)
        for kernel in data.order
        if phase[kernel.name] == "backward"
        for source in kernel.inputs.values()
    }
    found: dict[str, LayerKernels] = defaultdict(LayerKernels)
    for kernel in data.order:
        mine, type = found[layer[kernel.name]], operator_type(kernel.name)
        mine.all[type] += 1
        if phase[kernel.name] == "forward":
            mine.forward[type] += 1
            mine.kept.update(
                (type, size) for i, size in enumerate(kernel.outputs) if Source("kernel", kernel.name, i) in late
            )
    return found


@dataclass(frozen=True)
class Carried:
    """What the compiled graph makes of one layer's recompute.

    Of the ``planned`` operators ``again`` run a second time; ``once`` run only then (in the plain program they ran
    ahead, with the forward: derivatives, transposed values); the others were not found. ``kept``: storages that the
    plan drops and that the graph keeps from the forward for the backward all the same.
    """

    layer: str
    planned: int
    again: int
    once: int
    kept: tuple[int, ...]

    @property
    def done(self) -> bool:
        return self.again > 0 and not self.kept

    def told(self) -> str:
        line = f"{self.layer}: of {self.planned} planned operators {self.again} run again"
        if self.once:
            line += f", {self.once} run once, in the backward instead of ahead of it"
        if missing := self.planned - self.again - self.once:
            line += f", {missing} are not found again"
        return line + (f"; NOT dropped: storages {list(self.kept)}" if self.kept else "; all it drops is dropped")


def carried_out(
    profile: Profile, plan: Plan, entry: LayerRecompute, before: LayerKernels, after: LayerKernels
) -> Carried:
    """Kernels are compared by type and storages by writer and size, for the compiler renames what it copies."""
    operators = profile.operators
    planned = Counter(operators[op].type for op in entry.operators)
    again = planned & (after.all - before.all)
    once = (planned - again) & (before.forward - after.forward)
    late = {id for o in operators if o.phase == "backward" for id in o.reads}
    released = {action.storage for action in plan.residency.actions if action.kind == "release"} & late
    writers = {id: operators[op].type for op in entry.operators for id in operators[op].writes}
    dropped = {id: (type, profile.by_id[id].bytes) for id, type in writers.items() if id in released}
    surplus = after.kept - (before.kept - Counter(dropped.values()))
    kept: list[int] = []
    for id, what in sorted(dropped.items()):
        if surplus[what] > 0:
            surplus[what] -= 1
            kept.append(id)
    return Carried(entry.layer, planned.total(), again.total(), once.total(), tuple(kept))


def _write_step(log: ExecutionLog, profile: Profile, plan: Plan, found: list[Carried]) -> None:
    """One step has run. A release is done if its storage is not kept, a recompute if its layer's storages are not."""
    done = {carried.layer for carried in found if carried.done}
    kept = {id for carried in found for id in carried.kept}
    planned = [("release", a.op, a.storage, a.storage not in kept) for a in plan.residency.actions]
    planned += [
        ("recompute", entry.before_op, entry.storage, profile.operators[entry.ops[0]].layer in done)
        for entry in plan.residency.recompute
    ]
    now = log.now_us()
    log.actions += [
        ActionRecord(log.steps, kind, op, id, profile.by_id[id].bytes, "done" if was else "not reached", now)
        for kind, op, id, was in planned
    ]
    log.steps += 1


def planned_layers(plan: Plan, profile: Profile) -> tuple[list[LayerRecompute], list[str]]:
    """The layers that a plan recomputes, and all reasons why graph mode cannot follow it."""
    reasons: list[str] = []
    if profile.adapter.name != ADAPTER:
        reasons.append(f"the profile is for adapter {profile.adapter.name!r}, this one is {ADAPTER!r}")
    if plan.program_digest and plan.program_digest != profile.program_digest:
        reasons.append(f"the plan is for program {plan.program_digest}, not {profile.program_digest}")
    elif not plan.program_digest and plan.profile_digest != profile.digest:
        reasons.append(f"the plan is for profile {plan.profile_digest!r}, not {profile.digest!r}")
    if plan.sharding is not None:
        reasons.append("sharding: one device cannot shard")
    if plan.stages is not None:
        reasons.append("stages: one device has no pipeline")
    names = {storage.id: f"storage {storage.id} ({storage.name})" for storage in profile.storages}
    residency = plan.residency
    for id, tier in sorted(residency.initial.items()):
        reasons.append(f"{names.get(id, f'storage {id}')} starts in tier {tier!r}: graph mode moves nothing")
    layers, more = _layers(plan, profile)
    reasons += more
    rebuilt = {id for layer in layers for id in layer.storages}
    for action in residency.actions:
        what = names.get(action.storage, f"storage {action.storage}")
        where = f"{action.kind} of {what} at operator {action.op}"
        if action.kind != "release":
            reasons.append(f"{where}: graph mode moves nothing")
        elif action.storage not in rebuilt:
            reasons.append(f"{where}: no recompute of a layer brings it back")
    return layers, reasons


def _layers(plan: Plan, profile: Profile) -> tuple[list[LayerRecompute], list[str]]:
    operators = profile.operators
    by_layer: dict[str, set[int]] = {}
    reasons: list[str] = []
    for number, entry in enumerate(plan.residency.recompute):
        if outside := [op for op in entry.ops if op >= len(operators)]:
            reasons.append(f"recompute {number} lists operators {outside}, which the profile does not have")
            continue
        found = {operators[op].layer for op in entry.ops}
        if len(found) != 1 or "" in found or any(operators[op].phase != "forward" for op in entry.ops):
            reasons.append(f"recompute {number} is not of the forward operators of one layer: {sorted(found)}")
            continue
        by_layer.setdefault(found.pop(), set()).update(entry.ops)
    released = {action.storage for action in plan.residency.actions if action.kind == "release"}
    layers: list[LayerRecompute] = []
    for layer, ops in by_layer.items():
        written = {id for op in ops for id in operators[op].writes}
        if kept := sorted(_dropped_by_cell(profile, layer) - released):
            reasons.append(f"layer {layer!r} in parts: storages {kept} would be kept, Cell.recompute() drops them")
        layers.append(LayerRecompute(layer, tuple(sorted(ops)), tuple(sorted(written))))
    return layers, reasons


def _dropped_by_cell(profile: Profile, layer: str) -> set[int]:
    """Storages that recomputing the whole layer drops: what its forward leaves for its backward alone."""
    operators = list(enumerate(profile.operators))
    mine = {i for i, o in operators if o.layer == layer and o.phase == "forward"}
    start = min((i for i, o in operators if o.layer == layer and o.phase == "backward"), default=0)
    written = {id for i in mine for id in profile.operators[i].writes}
    used_later: set[int] = set()
    for i, operator in operators:
        touched = operator.accesses & written
        if i in mine or not touched:
            continue
        if i < start:
            written -= touched
        else:
            used_later |= touched
    return written & used_later
