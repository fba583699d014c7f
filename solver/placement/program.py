"""A choice carried out: the program of one device, collective by collective. The judge of cost and memory.

::

    bring inputs (from what is kept or its copy) ─▶ run ─▶ bring outputs to where they are kept

Whatever the solver believed, `step_ns` adds up what this program does; `hyperopt.replay` says what memory it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from hyperopt.graph import VIEWS, Graph
from hyperopt.mesh import Mesh
from hyperopt.profile import COMPUTE, Device, Operator, Phase, Profile, Run, Storage
from solver.placement.choice import Choice, Frame, Keep
from solver.placement.layout import FREE, Layout, Step, local_shape, ways
from solver.placement.price import Kernels, closed_cost, operator_ns, workspace_bytes
from solver.placement.signature import Strategy

COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class Buffer:
    """What one device holds of a tensor in one layout. `kept`: this is where the tensor is kept."""

    id: int
    tensor: int
    layout: Layout
    bytes: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a redistribution, of `source` into `target` (ids of buffers), for operator `operator`."""

    operator: int
    source: int
    target: int
    step: Step


@dataclass(frozen=True, slots=True)
class Compute:
    """One operator on its part. `ns` without, `closed_ns` and `closed_bytes` of the collectives inside it."""

    operator: int
    strategy: Strategy
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ns: int
    closed_ns: int
    closed_bytes: int


@dataclass(frozen=True)
class Program:
    """Commands in order. Bytes of communication are those of all devices together."""

    graph: Graph
    mesh: Mesh
    choice: Choice
    buffers: tuple[Buffer, ...]
    commands: tuple[Move | Compute, ...]
    kept: tuple[int, ...]

    @property
    def compute_ns(self) -> int:
        return sum(c.ns for c in self.commands if isinstance(c, Compute))

    @property
    def communication_ns(self) -> int:
        return sum(c.step.ns if isinstance(c, Move) else c.closed_ns for c in self.commands)

    @property
    def step_ns(self) -> int:
        """One after the other: nothing overlaps."""
        return self.compute_ns + self.communication_ns

    @property
    def sent_bytes(self) -> dict[str, int]:
        """Bytes that all devices send, by kind of collective."""
        found: dict[str, int] = {}
        for c in self.commands:
            kind, size = (c.step.kind, c.step.total_bytes) if isinstance(c, Move) else ("all_reduce", c.closed_bytes)
            if size:
                found[kind] = found.get(kind, 0) + size
        return found


@dataclass
class _Writer:
    frame: Frame
    kernels: Kernels
    choice: Choice
    buffers: list[Buffer] = field(default_factory=list)
    commands: list[Move | Compute] = field(default_factory=list)

    def buffer(self, tensor: int, layout: Layout, kept: bool = False) -> int:
        of = self.frame.graph.tensors[tensor]
        size = prod(local_shape(of.shape, layout, self.frame.mesh)) * of.item
        self.buffers.append(Buffer(len(self.buffers), tensor, layout, size, kept))
        return len(self.buffers) - 1

    def bring(self, operator: int, source: int, layout: Layout, into: int | None = None) -> int:
        """The buffer that has `source` in `layout`: itself, or at the end of the cheapest way (`into`, if given)."""
        of = self.buffers[source]
        tensor = self.frame.graph.tensors[of.tensor]
        steps = ways(tensor.shape, tensor.item, self.frame.mesh).way(of.layout, layout)
        for n, step in enumerate(steps):
            last = into is not None and n == len(steps) - 1
            target = into if last and into is not None else self.buffer(of.tensor, step.target)
            self.commands.append(Move(operator, source, target, step))
            source = target
        return source


def write(frame: Frame, kernels: Kernels, choice: Choice) -> Program:
    """The program of a choice."""
    graph, mesh = frame.graph, frame.mesh
    writer = _Writer(frame, kernels, choice)
    kept = [writer.buffer(t, choice.tensors[t].stored, True) for t in range(len(graph.tensors))]
    copies: dict[tuple[int, int], int] = {}
    group_of = [{i: (n, group) for n, group in enumerate(groups) for i in group.readers} for groups in frame.groups]
    for i, operator in enumerate(graph.operators):
        strategy = choice.operators[i]
        brought: dict[tuple[int, Layout], int] = {}
        inputs = []
        for slot, t in enumerate(operator.inputs):
            need = strategy.inputs[slot]
            if (t, need) not in brought:
                n, group = group_of[t][i]
                source = kept[t]
                copy = _copy(frame, t, choice.tensors[t], group.phase) if len(group.readers) > 1 else None
                if copy is not None:
                    if (t, n) not in copies:
                        copies[t, n] = writer.bring(i, kept[t], copy)
                    known = ways(graph.tensors[t].shape, graph.tensors[t].item, mesh)
                    if known.price(copy, need) < known.price(choice.tensors[t].stored, need):
                        source = copies[t, n]
                brought[t, need] = writer.bring(i, source, need)
            inputs.append(brought[t, need])
        outputs = []
        for slot, t in enumerate(operator.outputs):
            made = strategy.outputs[slot]
            outputs.append(kept[t] if made == choice.tensors[t].stored else writer.buffer(t, made))
        known_signature = frame.signatures[i]
        time = operator_ns(graph, i, known_signature, strategy, mesh, kernels)
        closed = closed_cost(graph, i, known_signature, strategy, mesh)
        writer.commands.append(Compute(i, strategy, tuple(inputs), tuple(outputs), time, *closed))
        for t, made_in in zip(operator.outputs, outputs, strict=True):
            if made_in != kept[t]:
                writer.bring(i, made_in, choice.tensors[t].stored, into=kept[t])
    return Program(graph, mesh, choice, tuple(writer.buffers), tuple(writer.commands), tuple(kept))


def _copy(frame: Frame, t: int, keep: Keep, phase: Phase) -> Layout | None:
    return keep.copies[frame.shared(t).index(phase)]


def _views(program: Program) -> dict[int, int]:
    """Buffer of a view -> the buffer whose memory it is."""
    of: dict[int, int] = {}
    for command in program.commands:
        if not isinstance(command, Compute) or program.graph.operators[command.operator].type not in VIEWS:
            continue
        view, base = command.outputs[0], command.inputs[0]
        if program.buffers[view].bytes == program.buffers[base].bytes and command.ns == 0:
            of[view] = of.get(base, base)
    return of


def listed_commands(program: Program) -> list[Move | Compute]:
    """The commands that are operators of the profile: all but views."""
    same = _views(program)
    return [c for c in program.commands if isinstance(c, Move) or not c.outputs or c.outputs[0] not in same]


def per_device_profile(program: Program, device: Device | None = None) -> Profile:
    """The program as a profile of one device: what the residency solver prices.

    Collectives stand on the stream ``communication``; slices, which cost nothing, and kernels on ``compute``. A storage
    is a buffer. Durations are simulated.
    """
    graph = program.graph
    operators = []
    same = _views(program)
    listed = listed_commands(program)
    written = {b.id for b in program.buffers if b.kept and graph.tensors[b.tensor].resident}
    for command in listed:
        origin = graph.operators[command.operator]
        reads: tuple[int, ...]
        writes: tuple[int, ...]
        if isinstance(command, Move):
            reads, writes = (command.source,), (command.target,)
            kind, us = command.step.kind, command.step.ns / 1000
            stream = COMPUTE if kind in FREE else COMMUNICATION
            workspace, shapes = 0, [command.source, command.target]
        else:
            reads, writes = command.inputs, command.outputs
            kind, us, stream = origin.type, (command.ns + command.closed_ns) / 1000, COMPUTE
            workspace = workspace_bytes(graph, command.operator, command.strategy)
            shapes = [*command.inputs, *command.outputs]
        buffers = [program.buffers[b] for b in shapes]
        operators.append(
            Operator(
                name=f"{origin.name or origin.type}/{kind}" if isinstance(command, Move) else origin.name,
                type=kind,
                stream=stream,
                duration_us=us,
                reads=tuple(dict.fromkeys(same.get(b, b) for b in reads)),
                writes=tuple(dict.fromkeys(writes)),
                workspace_bytes=workspace,
                layer=origin.layer,
                phase=origin.phase,
                micro_batch=origin.micro_batch,
                recomputable=not set(reads) & set(writes),
                inputs=1 if isinstance(command, Move) else len(command.inputs),
                shapes=tuple(local_shape(graph.tensors[b.tensor].shape, b.layout, program.mesh) for b in buffers),
                dtypes=tuple(graph.tensors[b.tensor].dtype for b in buffers),
            )
        )
        written.update(writes)
    storages = []
    for b in program.buffers:
        tensor = graph.tensors[b.tensor]
        if b.id not in written:
            continue
        stays = b.kept and tensor.resident
        storages.append(
            Storage(
                id=b.id,
                name=tensor.name if b.kept else f"{tensor.name}.{b.id}",
                bytes=b.bytes,
                kind=tensor.kind if b.kept else "activation" if tensor.kind == "input" else tensor.kind,
                resident_at_start=stays,
                resident_at_end=stays and tensor.kind != "input",
            )
        )
    return Profile(
        operators=tuple(operators),
        storages=tuple(storages),
        run=Run(
            name=graph.name,
            model=graph.name,
            world_size=program.mesh.devices,
            source="placement",
            measured=False,
            notes=("one device of a sharded program; durations simulated",),
        ),
        device=device or Device(
            name=program.mesh.device.name, hbm_bytes=program.mesh.device.hbm_bytes, base_bytes=graph.base_bytes
        ),
    )
