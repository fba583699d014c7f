"""Observation + kernels of the same step -> operators and storages in launch order.

Three things must be joined that MindSpore shows separately:

* a dispatched operator owns the kernels that started between its call and the moment its outputs were there;
  one without kernels is a view (Reshape, Transpose, Split): it makes no operator, its outputs are aliases;
* kernels outside every call are *unseen* operators (parts of backward formulas, such as SqrtGrad): they read
  what the operator before them wrote and what was loaded since; what they write shows as an address that the
  dispatcher never saw an operator write, and belongs to the latest unseen kernel that has no output yet;
* contiguous copies of strided views have neither call nor kernel: `Contiguous` operators.

The last two kinds are inferred; names begin with ``unseen/``, so that everybody can tell::

    dispatcher   [Mul      ]  [Reshape]           [Tile   ]         [Mul ...
    kernels        ======                 ======    ======   =====     ====
                   Mul                    SqrtGrad  Tile     RealDiv   Mul
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from profiler.capture.observation import Call, Load, Observation, Place, Save, TensorRef
from profiler.capture.recording import Kernel

UNSEEN = "unseen/"
"""Prefix of the names of operators that the dispatcher does not show."""

NETWORK = "net"
"""Stands for the network's own cell in the names of operators."""

POOL_UNIT = 512
"""Bytes that MindSpore's CPU pool rounds a block up to (read off its record: 4 bytes take 512)."""

Origin = Literal["parameter", "optimizer_state", "input", "other", "made"]


@dataclass
class Block:
    """A storage. ``origin``: "made" by an operator of the step, else what it was when the step began."""

    id: int
    bytes: int
    origin: Origin
    name: str
    address: int
    inferred: bool = False


@dataclass
class Step:
    """One operator. ``kernels``: positions in the step's list of kernels; empty for a copy that has none."""

    type: str
    place: Place
    cell: str | None
    kernels: tuple[int, ...] = ()
    unseen: bool = False
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    in_place: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    inputs: int | None = None
    """How many of the shapes are of tensors that go in; None: not known."""
    held: list[int] = field(default_factory=list)
    """What it does not touch, but what cannot be freed before it has ended."""
    saves: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    saved_by: list[int] = field(default_factory=list)
    """For each load, the step after which it was saved."""


@dataclass
class Program:
    steps: list[Step]
    blocks: list[Block]
    never_loaded: int
    unclaimed: Counter[str]
    """Unseen kernels whose output no later operator showed."""


@dataclass(frozen=True)
class Known:
    """Storages that were there before the step, by address: parameters of the network and of the optimizer by
    name, and the step's arguments."""

    parameters: Mapping[int, str]
    states: Mapping[int, str]
    inputs: Mapping[int, str]


def assemble(observation: Observation, kernels: tuple[Kernel, ...], known: Known) -> Program:
    """Joins one step's events and kernels. Parameters that are not `known` count as optimizer states."""
    return _Assembly(observation, kernels, known).program()


class _Assembly:
    def __init__(self, observation: Observation, kernels: tuple[Kernel, ...], known: Known) -> None:
        self.observation = observation
        self.kernels = kernels
        self.known = known
        self.steps: list[Step] = []
        self.blocks: list[Block] = []
        self.by_address: dict[int, Block] = {}
        self.saved: dict[int, tuple[int, int]] = {}
        self.loaded: set[int] = set()
        self.pending_loads: list[tuple[int, int]] = []
        self.unclaimed: list[Step] = []
        self.early_saves: list[int] = []

    def program(self) -> Program:
        owned, hidden = _owners(self.observation.calls, self.kernels)
        call_number = -1
        waiting = list(hidden)
        for event in self.observation.events:
            at = event.start if isinstance(event, Call) else event.at
            while waiting and self.kernels[waiting[0]].start < at:
                self._unseen_kernel(waiting.pop(0))
            if isinstance(event, Call):
                call_number += 1
                self._call(event, owned[call_number])
            elif isinstance(event, Save):
                self._save(event)
            else:
                self._load(event)
        for kernel in waiting:
            self._unseen_kernel(kernel)
        return Program(
            steps=self.steps,
            blocks=self.blocks,
            never_loaded=len(self.saved) - len(self.loaded),
            unclaimed=Counter(step.type for step in self.unclaimed),
        )

    def _call(self, call: Call, kernels: tuple[int, ...]) -> None:
        reads = [self._read(ref, call) for ref in call.inputs]
        if not kernels and all(ref.address in self.by_address for ref in call.outputs):
            return  # a view
        step = self._append(Step(type=call.name, place=call.place, cell=call.cell, kernels=kernels))
        step.reads = _once(reads)
        step.in_place = call.overwrites > 0
        step.shapes = tuple(ref.shape for ref in (*call.inputs, *call.outputs))
        step.dtypes = tuple(ref.dtype for ref in (*call.inputs, *call.outputs))
        step.inputs = len(call.inputs)
        written = reads[: call.overwrites]
        for number, ref in enumerate(call.outputs):
            block = self.by_address.get(ref.address) or self._made(ref, f"{self._operator_name(step)}:{number}")
            written.append(block.id)
        step.writes = _once(written)
        held = [self.by_address[address].id for address in call.held if address in self.by_address]
        step.held = [id for id in _once(held) if self.blocks[id].origin == "made"]

    def _read(self, ref: TensorRef, call: Call | Save) -> int:
        block = self.by_address.get(ref.address)
        if block is None:
            place, cell = (call.place, call.cell) if isinstance(call, Call) else ("forward", None)
            block = self._unknown(ref, place, cell)
        return block.id

    def _unknown(self, ref: TensorRef, place: Place, cell: str | None) -> Block:
        """A storage at an address that no operator has shown: what it must be, most certain first."""
        if ref.address in self.known.parameters:
            return self._resident(ref, "parameter", self.known.parameters[ref.address])
        if ref.address in self.known.inputs:
            return self._resident(ref, "input", self.known.inputs[ref.address])
        state = self.known.states.get(ref.address, ref.parameter)
        if state is not None:
            return self._resident(ref, "optimizer_state", state)
        if ref.copied_from is not None and ref.copied_from in self.by_address:
            copy = self._append(Step(type="Contiguous", place=place, cell=cell, unseen=True))
            copy.reads = [self.by_address[ref.copied_from].id]
            copy.shapes, copy.dtypes, copy.inputs = (ref.shape,) * 2, (ref.dtype,) * 2, 1
            block = self._made(ref, f"{self._operator_name(copy)}:0", inferred=True)
            copy.writes = [block.id]
            return block
        if self.unclaimed:
            maker = self.unclaimed.pop()
            block = self._made(ref, f"{self._operator_name(maker)}:0", inferred=True)
            maker.writes, maker.shapes, maker.dtypes = [block.id], (ref.shape,), (ref.dtype,)
            return block
        return self._resident(ref, "other", f"constant{len(self.blocks)}")

    def _unseen_kernel(self, number: int) -> None:
        before = self.steps[-1] if self.steps else None
        place = before.place if before else "outside"  # a part of what ran before it, mostly of backward
        step = self._append(
            Step(type=self.kernels[number].type, place=place, cell=None, kernels=(number,), unseen=True)
        )
        step.reads = _once([*(before.writes if before else ()), *step.loads])
        self.unclaimed.append(step)

    def _save(self, save: Save) -> None:
        block = self._read(save.tensor, save)
        self.saved[save.ordinal] = block, max(len(self.steps) - 1, 0)
        (self.steps[-1].saves if self.steps else self.early_saves).append(block)

    def _load(self, load: Load) -> None:
        self.loaded.add(load.ordinal)
        self.pending_loads.append(self.saved[load.ordinal])

    def _append(self, step: Step) -> Step:
        step.loads = [block for block, _ in self.pending_loads]
        step.saved_by = [saver for _, saver in self.pending_loads]
        self.pending_loads = []
        step.saves, self.early_saves = self.early_saves, []  # before the first operator: counted with it
        self.steps.append(step)
        return step

    def _made(self, ref: TensorRef, name: str, *, inferred: bool = False) -> Block:
        rounded = -(-max(ref.storage_bytes, 1) // POOL_UNIT) * POOL_UNIT
        return self._add(Block(len(self.blocks), rounded, "made", name, ref.address, inferred))

    def _resident(self, ref: TensorRef, origin: Origin, name: str) -> Block:
        return self._add(Block(len(self.blocks), ref.storage_bytes, origin, name, ref.address, origin == "other"))

    def _add(self, block: Block) -> Block:
        self.blocks.append(block)
        self.by_address[block.address] = block
        return block

    def _operator_name(self, step: Step) -> str:
        return operator_name(step, next(i for i in range(len(self.steps) - 1, -1, -1) if self.steps[i] is step))


def operator_name(step: Step, number: int) -> str:
    """``blocks.0.feed/MatMulExt-op37``: cell (``net`` for the network itself), or ``backward``, or
    ``outside`` of both; and the operator's place in the program. ``unseen/`` stands before what the
    dispatcher does not show."""
    where = (step.cell or NETWORK) if step.place == "forward" else step.place
    return f"{UNSEEN if step.unseen else ''}{where}/{step.type}-op{number}"


def _owners(calls: list[Call], kernels: tuple[Kernel, ...]) -> tuple[Mapping[int, tuple[int, ...]], list[int]]:
    """Kernels by the number of the call that they started in, and those that started in none."""
    starts = [call.start for call in calls]
    owned: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(calls)), ())
    hidden: list[int] = []
    for number, kernel in enumerate(kernels):
        call = bisect.bisect_right(starts, kernel.start) - 1
        if call >= 0 and kernel.start <= calls[call].end:
            owned[call] = (*owned[call], number)
        else:
            hidden.append(number)
    return owned, hidden


def _once(ids: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(ids))
