"""Plan -> a network in graph mode: ``Cell.recompute()`` on the layers that the plan recomputes whole.

Graph mode on a CPU can do nothing else: moves are ignored there without a word, or fail inside the
compiler. So everything else in a plan is refused by name, before anything is changed. Nothing is taken on
trust: the network is compiled before, to compare it with the profile, and after, to see that the compiler
did what was asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mindspore as ms

from hyperopt.plan import Plan
from hyperopt.profile import Profile
from profiler.apply.capability import PlanRefused
from profiler.apply.log import ActionRecord, ExecutionLog
from profiler.apply.structure import differences, structure_of_graph, structure_of_profile
from profiler.capture.anatomy import flow, phases
from profiler.capture.anatomy import layers as layers_of
from profiler.capture.assembly import memory_roots
from profiler.capture.graph import anatomy_of, compile_and_read
from profiler.read.actors import ActorSet

ADAPTER = "mindspore-graph"


class PlanIgnored(RuntimeError):
    """MindSpore accepted what the plan asks for and compiled a graph without it."""


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
    uses the second compilation. The log has each release and recompute of the plan once: the compiled graph
    carries it out in every step, at times of its own. On exit the network is as before, and the step is
    compiled afresh at its next call.

    Raises ``PlanRefused`` with all reasons at once: parts of the plan that graph mode cannot do, a plan for
    another profile or mode, a program that is not the profiled one (differences named). Raises
    ``PlanIgnored`` where the compiler recomputes nothing.
    """
    layers, reasons = planned_layers(plan, profile)
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
        yield _log(plan, profile, {}, ["nothing to apply: the plan recomputes no layer"])
        return
    with ExitStack() as undo:
        undo.callback(step.compile_cache.clear)
        for entry in layers:
            undo.enter_context(_recomputed(cells[entry.layer]))
        yield _applied(net, profile, plan, step, args, layers, _kernels_by_layer(graph, net))


def _applied(
    net: Any,
    profile: Profile,
    plan: Plan,
    step: Any,
    args: tuple[Any, ...],
    layers: list[LayerRecompute],
    before: Counter[str],
) -> ExecutionLog:
    """Compiles the step as it now is, and compares what it runs, layer by layer, with what it ran before."""
    with TemporaryDirectory(prefix="hyperopt-") as folder:
        graph, _ = compile_and_read(step, args, Path(folder), run=False)
    after = _kernels_by_layer(graph, net)
    added = {entry.layer: after[entry.layer] - before[entry.layer] for entry in layers}
    if not any(count > 0 for count in added.values()):
        raise PlanIgnored(f"{sorted(added)} set to recompute, but the compiler recomputes nothing of them")
    notes = [
        f"{entry.layer}: {len(entry.operators)} operators planned, {added[entry.layer]} kernels recomputed"
        for entry in layers
    ]
    return _log(plan, profile, added, notes)


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


def _kernels_by_layer(graph: ActorSet, net: Any) -> Counter[str]:
    data = flow((kernel for kernel in graph.kernels if kernel.launched), memory_roots(graph))
    found, _ = layers_of(data, phases(data), anatomy_of(net))
    return Counter(found.values())


def _log(plan: Plan, profile: Profile, added: dict[str, int], notes: list[str]) -> ExecutionLog:
    """Actions of a layer of which the compiler recomputes nothing stay "not reached"."""
    operators = profile.operators
    done = {id for o in operators if added.get(o.layer, 0) > 0 and o.phase == "forward" for id in o.writes}
    planned = [("release", action.op, action.storage) for action in plan.residency.actions]
    planned += [("recompute", entry.before_op, entry.storage) for entry in plan.residency.recompute]
    return ExecutionLog(
        plan_id=plan.plan_id,
        profile_digest=profile.digest,
        actions=[
            ActionRecord(0, kind, op, id, profile.by_id[id].bytes, "done" if id in done else "not reached")
            for kind, op, id in planned
        ],
        recomputed=[layer for layer, count in added.items() if count > 0],
        notes=notes,
    )


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
