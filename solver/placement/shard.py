"""`shard`: a graph and a mesh to layouts, with what the step then takes and a bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from hyperopt.graph import Graph, Tensor
from hyperopt.mesh import Mesh
from hyperopt.occupancy import occupancy
from hyperopt.profile import Device, Phase, Profile
from solver.placement import rules
from solver.placement.choice import Choice, Frame, Keep
from solver.placement.formulate import Allowed, Formulation
from solver.placement.layout import Layout
from solver.placement.price import Kernels
from solver.placement.priced import CLOSE, NONE, Int64s, search
from solver.placement.program import Compute, Move, Program, listed_commands, per_device_profile, write
from solver.placement.rivals import rivals
from solver.placement.signature import Strategy
from solver.sharding import solve
from solver.sharding.warm import warm

PRICED_SHARE, GENERAL_SHARE = 0.5, 0.85
"""Of the time: for the search by prices; until the general search ends. The rest is for baselines."""

MOST_TIES = 30_000_000
"""Matrix entries up to which the general search is asked."""

BASELINE_SHARE = 0.3
"""Of the time within a limit of memory, kept for layouts as people write them."""

ATTEMPTS = 6
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
    frame: Frame
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

    def shared(self, tensor: int) -> tuple[Phase, ...]:
        """The phases that `keeps[tensor].copies` are for."""
        return self.frame.shared(tensor)

    @cached_property
    def grouped(self) -> frozenset[int]:
        """Tensors with a dimension of several parts, of each of which every device holds a share; with the weights that
        make them, and what trains these."""
        graph, found = self.graph, set()
        for i, operator in enumerate(graph.operators):
            operands = (*operator.inputs, *operator.outputs)
            found |= {operands[slot] for slot in self.frame.signatures[i].grouped}
        for operator in graph.operators:
            if found & set(operator.outputs) and operator.type in rules.PRODUCTS:
                found |= {t for t in operator.inputs if graph.tensors[t].kind == "parameter"}
        for operator in graph.operators:
            if operator.phase == "optimizer":
                shapes = {graph.tensors[t].shape for t in operator.outputs if t in found}
                found |= {t for t in operator.inputs if graph.tensors[t].shape in shapes}
        return frozenset(found)

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
    return _peak(program)[0]


def _peak(program: Program) -> tuple[int, int]:
    """(bytes, moment of `Formulation`) of the peak."""
    profile = per_device_profile(program)
    inline = [msgspec.structs.replace(o, stream="compute") for o in profile.operators]
    level = occupancy(msgspec.structs.replace(profile, operators=tuple(inline)))
    commands, at = listed_commands(program), level.peak_op or 0
    if not commands:
        return level.peak_bytes, 0
    command = commands[at]
    stored = isinstance(command, Move) and any(
        isinstance(c, Compute) and c.operator == command.operator for c in commands[max(0, at - 64) : at]
    )
    return level.peak_bytes, 3 * command.operator + (2 if stored else 1)


def shard(
    graph: Graph,
    mesh: Mesh,
    kernels: Kernels | None = None,
    memory_bytes: int | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    allowed: Allowed | None = None,
    work_limit: int | None = None,
    starts: Sequence[Choice] = (),
    baselines: bool = True,
) -> Sharding:
    """Layouts of least step time within `memory_bytes` of one device (None: no limit).

    `kernels`: what a device reaches (None: `mesh.device`). `allowed` narrows how tensors are kept. `starts`: choices in
    hand, the best of which is returned where nothing better is found; so are, unless `baselines` is False, layouts as
    people write them (`rivals`), which are looked at where the bound is not reached.

    Raises `DoesNotFit`.
    """
    warm()  # compiled once on a machine: that is not the search's time
    began = time.monotonic()
    run = _Run(Frame(graph, mesh), kernels or mesh.device, memory_bytes)
    for start in starts:
        run.judge(start)
    formulation = Formulation(run.frame, run.kernels, allowed)
    if memory_bytes is None:
        answer = solve(formulation.problem(None), time_limit_s, seed, work_limit)
        run.judge(formulation.choice(answer.solution))
        bound, reason, proven = answer.bound, answer.stop_reason, False
    else:
        own_s = time_limit_s * (1 - BASELINE_SHARE if baselines else 1)
        bound, reason, proven = _within(run, formulation, memory_bytes, own_s, seed, work_limit)
    if baselines and (run.best is None or run.best.step_ns > bound * (1 + CLOSE)):
        _try_baselines(run, allowed, max(1.0, time_limit_s - (time.monotonic() - began)), seed)
    best = run.best
    if best is None:
        assert memory_bytes is not None
        raise DoesNotFit(run.shortfall, memory_bytes, proven)
    # A rival may be outside what `allowed` leaves, and below its bound.
    bound_us = min(bound, best.step_ns) / 1000
    status = "optimal" if best.step_ns <= bound else "feasible"
    warnings = (*graph.warnings, *run.frame.warnings)
    return Sharding(best, run.frame, bound_us, status, reason, time.monotonic() - began, warnings)


class _Run:
    """The best program seen that fits."""

    def __init__(self, frame: Frame, kernels: Kernels, memory_bytes: int | None) -> None:
        self.frame, self.kernels, self.memory_bytes = frame, kernels, memory_bytes
        self.best: Program | None = None
        self.shortfall = 0

    def judging(self, formulation: Formulation) -> Callable[[Int64s], tuple[int, int, int]]:
        """Judges solutions of a formulation: overflow, fullest moment, and the best step so far."""

        def judge(solution: Int64s) -> tuple[int, int, int]:
            short, moment = self.judge(formulation.choice(solution))
            return short, moment, NONE if self.best is None else self.best.step_ns

        return judge

    def judge(self, choice: Choice) -> tuple[int, int]:
        """Bytes by which the choice's program overflows (negative: to spare; 0 without a limit), and its fullest
        moment."""
        program = write(self.frame, self.kernels, choice)
        short, moment = 0, 0
        if self.memory_bytes is not None:
            peak, moment = _peak(program)
            short = peak - self.memory_bytes
        if short > 0:
            self.shortfall = min(self.shortfall or short, short)
        elif self.best is None or program.step_ns < self.best.step_ns:
            self.best = program
        return short, moment


def _try_baselines(run: _Run, allowed: Allowed | None, seconds: float, seed: int) -> None:
    """Judges the best completion of each rival's rule, within memory where there is a limit."""
    graph, mesh = run.frame.graph, run.frame.mesh
    known = list(rivals(mesh))
    for rival in known:
        allows = rival.allows(graph, mesh)

        def both(tensor: Tensor, keep: Keep, allows: Allowed = allows) -> bool:
            return allows(tensor, keep) and (allowed is None or allowed(tensor, keep))

        formulation, share = Formulation(run.frame, run.kernels, both), seconds / len(known)
        if run.memory_bytes is None:
            run.judge(formulation.choice(solve(formulation.problem(None), share, seed).solution))
        else:
            search(formulation, run.memory_bytes, share, seed, run.judging(formulation))


def _within(
    run: _Run, formulation: Formulation, memory_bytes: int, time_limit_s: float, seed: int, work_limit: int | None
) -> tuple[int, str, bool]:
    """(bound in nanoseconds, why it ended, whether it is proven that nothing fits): by prices first, then by the
    general search, with a limit that is tightened by what temporaries take."""
    began = time.monotonic()
    judge = run.judging(formulation)
    bound = search(formulation, memory_bytes, PRICED_SHARE * time_limit_s, seed, judge)
    time_limit_s *= GENERAL_SHARE
    if run.best is not None and run.best.step_ns <= bound * (1 + CLOSE):
        return bound, "bound reached" if run.best.step_ns <= bound else "close to the bound", False
    if formulation.ties > MOST_TIES:
        return bound, "too many ties for the general search", False
    limit, reason, proven = memory_bytes, "time limit", False
    for attempt in range(ATTEMPTS):
        left = time_limit_s - (time.monotonic() - began)
        if left <= 0 or limit <= 0:
            break
        answer = solve(formulation.problem(limit), left / 2, seed, work_limit)
        if attempt == 0:
            bound, reason, proven = max(bound, answer.bound), answer.stop_reason, answer.impossible
        if not answer.evaluation.feasible:
            run.shortfall = run.shortfall or answer.evaluation.shortfall
            break
        short, _, _ = judge(answer.solution)
        if short <= 0:
            if run.best is not None and run.best.step_ns > bound and reason == "bound reached":
                reason = "bound reached but for temporaries"
            break
        limit = min(limit, answer.evaluation.peak + run.frame.graph.base_bytes) - short
    return bound, reason, proven
