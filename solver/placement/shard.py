"""`shard`: a graph and a mesh to layouts, with what the step then takes and a bound."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from hyperopt.graph import Graph
from hyperopt.mesh import Mesh
from hyperopt.occupancy import occupancy
from hyperopt.profile import Device, Profile
from solver.placement.choice import Choice, Frame, Keep
from solver.placement.formulate import Allowed, Formulation
from solver.placement.layout import Layout
from solver.placement.price import Kernels
from solver.placement.program import Program, per_device_profile, write
from solver.placement.signature import Strategy
from solver.sharding import solve

ATTEMPTS = 4
"""Solves with a tightened limit where temporaries overfill the device."""


class DoesNotFit(Exception):
    """No layout fits: `shortfall` bytes are missing; `proven` whether by the solver's bound on what is kept."""

    def __init__(self, shortfall: int, memory_bytes: int, proven: bool) -> None:
        self.shortfall, self.memory_bytes, self.proven = shortfall, memory_bytes, proven
        said = "no layouts fit (proven)" if proven else "no layouts were found that fit"
        super().__init__(f"{said} in {memory_bytes} bytes a device: {shortfall} bytes are missing")


@dataclass(frozen=True)
class Step:
    """Microseconds of one step, nothing overlapping, and bytes that one device sends on average, by collective."""

    compute_us: float
    communication_us: float
    sent_bytes: dict[str, float]

    @property
    def us(self) -> float:
        return self.compute_us + self.communication_us


@dataclass(frozen=True)
class Sharding:
    """The answer. `bound_us`: no choice that treats identical layers alike takes less, by the same prices (0: none)."""

    program: Program
    bound_us: float
    status: str
    stop_reason: str
    seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def mesh(self) -> Mesh:
        return self.program.mesh

    @property
    def choice(self) -> Choice:
        return self.program.choice

    @cached_property
    def step(self) -> Step:
        p = self.program
        sent = {kind: size / self.mesh.devices for kind, size in p.sent_bytes.items()}
        return Step(p.compute_ns / 1000, p.communication_ns / 1000, sent)

    @property
    def gap(self) -> float | None:
        return (self.step.us - self.bound_us) / self.bound_us if self.bound_us > 0 else None

    @property
    def layouts(self) -> dict[int, Layout]:
        """Tensor -> the layout in which it is kept."""
        return {t: keep.stored for t, keep in enumerate(self.choice.tensors)}

    @property
    def keeps(self) -> tuple[Keep, ...]:
        return self.choice.tensors

    @property
    def operator_strategies(self) -> tuple[Strategy, ...]:
        return self.choice.operators

    @property
    def bytes_per_device(self) -> dict[int, int]:
        """Tensor -> bytes of one device where it is kept."""
        return {self.program.buffers[b].tensor: self.program.buffers[b].bytes for b in self.program.kept}

    @cached_property
    def peak_bytes(self) -> int:
        """Of one device, replayed."""
        return peak_bytes(self.program)

    def per_device_profile(self, device: Device | None = None) -> Profile:
        return per_device_profile(self.program, device)


def apply(graph: Graph, sharding: Sharding) -> Program:
    """The program of one device: its parts of the operators with their durations, and collectives."""
    assert graph is sharding.graph, "a sharding is for the graph that it was made for"
    return sharding.program


def peak_bytes(program: Program) -> int:
    """The most that one device holds, by the execution model, without overlap of communication and computing."""
    profile = per_device_profile(program)
    inline = [msgspec.structs.replace(o, stream="compute") for o in profile.operators]
    return occupancy(msgspec.structs.replace(profile, operators=tuple(inline))).peak_bytes


def shard(
    graph: Graph,
    mesh: Mesh,
    kernels: Kernels | None = None,
    memory_bytes: int | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    allowed: Allowed | None = None,
    work_limit: int | None = None,
    rivals: Sequence[Choice] = (),
) -> Sharding:
    """Layouts of least step time within `memory_bytes` of one device (None: no limit).

    `kernels`: what a device reaches (None: `mesh.device`). `allowed` narrows how tensors are kept. `rivals`: choices in
    hand, the best of which is returned where nothing better is found.

    Raises `DoesNotFit`.
    """
    began = time.monotonic()
    device = kernels or mesh.device
    frame = Frame(graph, mesh)
    formulation = Formulation(frame, device, allowed)
    limit, bound, best = memory_bytes, 0.0, None
    reason, shortfall, proven = "", 0, False
    for rival in rivals:
        program = write(frame, device, rival)
        if memory_bytes is None or peak_bytes(program) <= memory_bytes:
            best = program if best is None or program.step_ns < best.step_ns else best
    for attempt in range(ATTEMPTS):
        left = max(1.0, time_limit_s - (time.monotonic() - began))
        answer = solve(formulation.problem(limit), left / (2 if memory_bytes and attempt < 2 else 1), seed, work_limit)
        if attempt == 0:
            bound, reason = answer.bound / 1000, answer.stop_reason
        if not answer.evaluation.feasible:
            shortfall, proven = answer.evaluation.shortfall, answer.impossible and attempt == 0
            break
        program = write(frame, device, formulation.choice(answer.solution))
        if memory_bytes is None:
            best = program if best is None or program.step_ns < best.step_ns else best
            break
        peak = peak_bytes(program)
        if peak <= memory_bytes:
            best = program if best is None or program.step_ns < best.step_ns else best
            break
        shortfall = peak - memory_bytes
        assert limit is not None
        limit -= shortfall
        if limit <= 0 or time.monotonic() - began > time_limit_s:
            break
    if best is None:
        assert memory_bytes is not None
        raise DoesNotFit(shortfall, memory_bytes, proven)
    status = "optimal" if best.step_ns / 1000 <= bound else "feasible"
    warnings = (*graph.warnings, *frame.warnings)
    return Sharding(best, bound, status, reason, time.monotonic() - began, warnings)
