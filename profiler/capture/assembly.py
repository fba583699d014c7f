"""A compiled graph and its executions -> the operators and storages of a profile.

No MindSpore here: everything comes as plain data from ``profiler.read``. Times in, nanoseconds;
times out, microseconds; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from msgspec import structs

from hyperopt.profile import IDLE, Kind, Operator, Storage
from profiler.capture.anatomy import Anatomy, Flow, Phase, flow, layers, operator_type, phases, stable_names
from profiler.read.mindspore.actors import ActorSet, Kernel, Signature, Source
from profiler.read.mindspore.cpu_profiler import Execution

# Idle time is put at fixed places, every so many operators, so that two captures of one program differ
# in durations only and get the same program digest.
IDLE_EVERY = 32

RANDOM_TYPES = ("Dropout", "Random", "Multinomial", "Uniform", "Normal", "Bernoulli", "StandardNormal")


@dataclass(frozen=True)
class Launches:
    """Launched kernels in the order of step ``typical``, with their executions by step.

    ``other_orders`` counts the steps that had another order.
    """

    order: tuple[Kernel, ...]
    runs: Mapping[str, tuple[Execution, ...]]
    typical: int
    other_orders: int
    unjoined: tuple[str, ...]


@dataclass(frozen=True)
class Assembled:
    operators: tuple[Operator, ...]
    storages: tuple[Storage, ...]
    notes: tuple[str, ...]


def launches(graph: ActorSet, executions: Mapping[str, Sequence[Execution]], steps: int) -> Launches:
    """Joins the graph's kernels with the profiler's executions, by name.

    The runtime starts a kernel when its inputs are there, from a queue that its threads share, so the
    order is not that of the compiler, and small swaps make it differ from step to step. Listed is the
    order of one step: the one nearest to all others, which is the undisturbed one if there was any, so
    that two captures of one program list the same. Kernels without exactly ``steps`` executions cannot
    be placed: they are named in ``unjoined``, as are executions without a kernel.
    """
    joined = [k for k in graph.kernels if k.launched and len(executions.get(k.name, ())) == steps]
    known = {kernel.name for kernel in joined}
    unjoined = [k.name for k in graph.kernels if k.launched and k.name not in known]
    unjoined += [name for name in executions if name not in known and name not in unjoined]
    orders = [sorted(joined, key=lambda k: executions[k.name][step].start) for step in range(steps)]
    places = [{kernel.name: place for place, kernel in enumerate(order)} for order in orders]
    typical = min(range(steps), key=lambda i: sum(_displacement(places[i], other) for other in places))
    return Launches(
        tuple(orders[typical]),
        {name: tuple(executions[name]) for name in known},
        typical,
        sum(order != orders[typical] for order in orders),
        tuple(sorted(unjoined)),
    )


def _displacement(places: Mapping[str, int], other: Mapping[str, int]) -> int:
    return sum(abs(place - other[name]) for name, place in places.items())


def memory_roots(graph: ActorSet) -> dict[Source, Source]:
    """Output -> whose memory it really is, for outputs that share the memory of an input."""
    shares = {
        Source("kernel", kernel.name, output): kernel.inputs[taken]
        for kernel in graph.kernels
        for output, taken in kernel.refs.items()
    }

    def root(source: Source) -> Source:
        while source in shares:
            source = shares[source]
        return source

    return {source: root(source) for source in shares}


def assemble(
    graph: ActorSet,
    launched: Launches,
    signatures: Mapping[str, Signature],
    anatomy: Anatomy,
    trainable: frozenset[str],
    step_us: float,
    steps: int,
) -> Assembled:
    """Operators and storages of one step of ``step_us`` microseconds.

    ``trainable`` names the network's parameters: every other stored tensor that is updated is
    optimizer state. Constants of the program are not listed: their memory is in the profile's base.
    """
    roots = memory_roots(graph)
    data = flow(launched.order, roots)
    phase = phases(data)
    layer, inferred = layers(data, phase, anatomy)
    ids, storages, scratch = _storages(graph, launched, roots, phase, trainable, steps)
    names = stable_names([kernel.name for kernel in graph.kernels])
    again = _recomputable(data, phase, layer)
    operators = [
        _operator(kernel, names, launched, roots, ids, scratch, signatures, phase, layer, again)
        for kernel in launched.order
    ]
    notes = _notes(graph, launched, inferred, names)
    slack = step_us - sum(operator.duration_us for operator in operators)
    if slack < 0:
        share = step_us / (step_us - slack)
        notes.append(f"kernel times exceed the plain step: scaled by {share:.4f}, no idle time inserted")
        operators = [structs.replace(o, duration_us=o.duration_us * share) for o in operators]
    return Assembled(tuple(_with_idle(operators, launched, slack)), tuple(storages), tuple(notes))


def _storages(
    graph: ActorSet,
    launched: Launches,
    roots: Mapping[Source, Source],
    phase: Mapping[str, Phase],
    trainable: frozenset[str],
    steps: int,
) -> tuple[dict[Source, int], list[Storage], dict[str, int]]:
    """Storage ids by source, the storages, and scratch bytes by kernel.

    An output that nobody reads lives just as long as its kernel runs: that is workspace, not a storage.
    """
    read: set[Source] = set()
    written: dict[Source, tuple[int, str]] = {}
    for kernel in launched.order:
        for source in kernel.inputs.values():
            read.add(roots.get(source, source))
        for output, size in enumerate(kernel.outputs):
            source = Source("kernel", kernel.name, output)
            if source not in roots:
                written[source] = (size, kernel.name)
    kept = {roots.get(source, source) for source in graph.results}
    updated = {roots.get(kernel.inputs[i], kernel.inputs[i]).name for kernel in launched.order for i in kernel.updates}
    ids: dict[Source, int] = {}
    storages: list[Storage] = []
    scratch: dict[str, int] = {}

    def add(source: Source, name: str, size: int, kind: Kind, resident: bool) -> None:
        ids[source] = len(storages)
        storages.append(
            Storage(
                id=len(storages),
                name=name,
                bytes=size,
                kind=kind,
                resident_at_start=resident,
                resident_at_end=resident or source in kept,
                offloadable=False,
                certainty="measured",
                steps_observed=steps,
                steps_accessed=steps,
            )
        )

    for name, size in sorted(graph.stored.items()):
        if Source("stored", name) in read and name not in graph.constants:
            kind: Kind = "parameter" if name in trainable else "optimizer_state" if name in updated else "other"
            add(Source("stored", name), name, size, kind, True)
    for name, size in graph.host.items():
        add(Source("host", name), name, size, "input", True)
    names = stable_names([kernel.name for kernel in graph.kernels])
    for source, (size, writer) in written.items():
        if source in read or source in kept:
            add(source, f"{names[writer]}:{source.index}", size, _kind(source, phase), False)
        else:
            scratch[writer] = scratch.get(writer, 0) + size
    return ids, storages, scratch


def _kind(source: Source, phase: Mapping[str, Phase]) -> Kind:
    """Gradients are what the backward computes; activations what the forward does."""
    by: dict[Phase, Kind] = {"forward": "activation", "backward": "gradient"}
    return by.get(phase[source.name], "other")


def _operator(
    kernel: Kernel,
    names: Mapping[str, str],
    launched: Launches,
    roots: Mapping[Source, Source],
    ids: Mapping[Source, int],
    scratch: Mapping[str, int],
    signatures: Mapping[str, Signature],
    phase: Mapping[str, Phase],
    layer: Mapping[str, str],
    again: frozenset[str],
) -> Operator:
    read = {ids[root] for s in kernel.inputs.values() if (root := roots.get(s, s)) in ids}
    outputs = {Source("kernel", kernel.name, i) for i in range(len(kernel.outputs))}
    updated = {kernel.inputs[i] for i in kernel.updates} | {roots[o] for o in outputs if o in roots}
    write = {ids[root] for s in outputs | updated if (root := roots.get(s, s)) in ids}
    signature = signatures.get(kernel.name, Signature((), ()))
    runs = launched.runs[kernel.name]
    origin = launched.runs[launched.order[0].name][launched.typical].start
    return Operator(
        name=names[kernel.name],
        type=operator_type(kernel.name),
        start_us=(runs[launched.typical].start - origin) / 1000,
        duration_us=median(run.end - run.start for run in runs) / 1000,
        workspace_bytes=sum(kernel.workspaces) + scratch.get(kernel.name, 0),
        layer=layer[kernel.name],
        phase=phase[kernel.name],
        reads=tuple(sorted(read)),
        writes=tuple(sorted(write)),
        shapes=signature.shapes,
        dtypes=signature.dtypes,
        inputs=signature.inputs,
        recomputable=kernel.name in again,
    )


def _recomputable(data: Flow, phase: Mapping[str, Phase], layer: Mapping[str, str]) -> frozenset[str]:
    """Forward kernels of the layers that ``Cell.recompute()`` can run again.

    It keeps what a cell hands on and runs the rest again: a layer that does nothing but make what it hands on
    (a single projection) stays as it is. No kernel runs twice that is random or updates in place.
    """
    forward = [kernel for kernel in data.order if phase[kernel.name] == "forward" and layer[kernel.name]]

    def hands_on(name: str) -> bool:
        return any(phase[u] == "forward" and layer[u] != layer[name] for u in data.consumers[name])

    own = [kernel.name for kernel in forward if not kernel.name.startswith("Gradients/")]
    inner = {layer[name] for name in own if not hands_on(name)}
    return frozenset(
        kernel.name
        for kernel in forward
        if layer[kernel.name] in inner
        and not kernel.updates
        and not operator_type(kernel.name).startswith(RANDOM_TYPES)
    )


def _with_idle(operators: Sequence[Operator], launched: Launches, slack: float) -> list[Operator]:
    """The operators with idle time between: ``slack`` us in all, shared out by the measured gaps."""
    if slack <= 0:
        return list(operators)
    gaps = [0.0]
    for before, after in pairwise(launched.order):
        first, second = (launched.runs[kernel.name][launched.typical] for kernel in (before, after))
        gaps.append(max(0.0, (second.start - first.end) / 1000))
    scale = slack / total if (total := sum(gaps)) else 0.0
    listed: list[Operator] = []
    given = waiting = 0.0
    for i, operator in enumerate(operators):
        waiting += gaps[i] * scale
        if i and i % IDLE_EVERY == 0:
            listed.append(_idle(len(listed), waiting))
            given, waiting = given + waiting, 0.0
        listed.append(operator)
    listed.append(_idle(len(listed), slack - given))
    return listed


def _idle(place: int, duration_us: float) -> Operator:
    return Operator(name=f"idle-{place}", type=IDLE, duration_us=round(duration_us, 3), recomputable=False)


def _notes(graph: ActorSet, launched: Launches, inferred: list[str], names: Mapping[str, str]) -> list[str]:
    notes = [f"not joined between graph and profiler: {names.get(name, name)}" for name in launched.unjoined]
    silent = sorted(operator_type(kernel.name) for kernel in graph.kernels if not kernel.launched)
    if silent:
        counts = ", ".join(f"{silent.count(kind)} {kind}" for kind in sorted(set(silent)))
        notes.append(f"never launched, joined to the storage they view: {counts}")
    if launched.other_orders:
        notes.append(
            f"{launched.other_orders} steps started some operators in another order than the one listed, "
            f"that of observed step {launched.typical}"
        )
    if inferred:
        notes.append(f"layer of {len(inferred)} operators by the flow of data: their scope names another cell, or none")
    if graph.constants:
        notes.append(f"{len(graph.constants)} constants of the program are not listed as storages; see base_bytes")
    return notes
