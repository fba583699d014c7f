"""A tape: kernels and storages in the order a program launches them, and the profile they make.

::

    tape.tensor ──▶ storages ─┐
    tape.run ──────▶ kernels ─┴─▶ tape.finish: starts, listed order, device ──▶ Profile
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import msgspec

from hyperopt.profile import COMPUTE, IDLE, Kind, Operator, Phase, Storage, ns
from hyperopt.testing.accelerator import Accelerator

COMMUNICATION = "communication"
"""The stream of collectives, sends and receives."""

ITEM = {"bfloat16": 2, "float32": 4, "int32": 4}
"""Bytes per element."""

JITTER = 0.03
"""Standard deviation of durations, as a share of each; cut off at three."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A storage with the shape and dtype that its kernels see."""

    id: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int


class Tape:
    """Kernels in order of launch. `layer`, `phase`, `micro_batch` and `stage` mark those that follow."""

    def __init__(self, accelerator: Accelerator, seed: str) -> None:
        self.accelerator = accelerator
        self.random = random.Random(seed)
        self.operators: list[Operator] = []
        self.storages: list[Storage] = []
        self.layer = ""
        self.phase: Phase = "other"
        self.micro_batch: int | None = None
        self.stage: int | None = None

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str = "bfloat16",
        kind: Kind = "activation",
        *,
        resident: bool = False,
        stays: bool = False,
        part_of: int | None = None,
        observed: int = 0,
        accessed: int = 0,
    ) -> Tensor:
        """A new storage; `resident`: at start, `stays`: at end."""
        size = prod(shape) * ITEM[dtype]
        tensor = Tensor(len(self.storages), shape, dtype, size)
        if kind == "activation" and self.micro_batch is not None:
            name = f"{name}@{self.micro_batch}"
        self.storages.append(
            Storage(
                id=tensor.id,
                bytes=size,
                name=f"{self.layer}.{name}" if self.layer else name,
                kind=kind,
                resident_at_start=resident,
                resident_at_end=stays,
                part_of=part_of,
                steps_observed=observed,
                steps_accessed=accessed,
            )
        )
        return tensor

    def run(
        self,
        type: str,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        *,
        flops: float = 0,
        traffic: float | None = None,
        workspace: int = 0,
        recomputable: bool = True,
        attention: bool = False,
        shown: Sequence[Tensor] | None = None,
    ) -> None:
        """One kernel on the compute stream; `traffic` in bytes, unless it is all that the kernel reads and writes.

        `shown`: what goes in, in the order in which formulas of its work have it (None: as it is read); of nothing,
        the kernel's shapes are of its results alone.
        """
        if traffic is None:
            traffic = sum(t.bytes for t in reads) + sum(t.bytes for t in writes)
        us = self.accelerator.kernel_us(flops, traffic, attention=attention)
        self._add(type, reads, writes, us, COMPUTE, workspace, recomputable, reads if shown is None else shown)

    def collect(
        self,
        type: str,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        *,
        share: float = 1.0,
        recomputable: bool = False,
    ) -> None:
        """A collective, send or receive, on its own stream; `share` of the largest tensor goes over the network."""
        traffic = share * max(t.bytes for t in (*reads, *writes))
        self._add(type, reads, writes, self.accelerator.collective_us(traffic), COMMUNICATION, 0, recomputable, reads)

    def idle(self, microseconds: float) -> None:
        """Time in which the device waits for others."""
        self._add(IDLE, (), (), microseconds, COMPUTE, 0, False, ())

    def _add(
        self,
        type: str,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        us: float,
        stream: str,
        workspace: int,
        recomputable: bool,
        shown: Sequence[Tensor],
    ) -> None:
        tensors = (*shown, *writes)
        spread = min(max(self.random.gauss(0, JITTER), -3 * JITTER), 3 * JITTER)
        self.operators.append(
            Operator(
                reads=tuple([t.id for t in reads]),
                writes=tuple([t.id for t in writes]),
                duration_us=max(ns(us * (1 + spread)), 1) / 1000,
                name=f"{type}-{len(self.operators)}",
                type=type,
                stream=stream,
                workspace_bytes=workspace,
                layer=self.layer,
                phase=self.phase,
                shapes=tuple([t.shape for t in tensors]),
                dtypes=tuple([t.dtype for t in tensors]),
                inputs=len(shown) or None,
                recomputable=recomputable,
                micro_batch=self.micro_batch,
                stage=self.stage,
            )
        )

    def finish(self) -> tuple[tuple[Operator, ...], tuple[Storage, ...]]:
        """Operators in the order of their start, with their starts, and the storages.

        Streams run side by side: each takes its kernels in order of launch, a kernel starts when what it reads is
        written and what it overwrites is no longer in use. A collective that is still waiting therefore stands
        behind the compute kernels that overtake it. Storages that no kernel touches and that are not resident
        are left out.
        """
        written, used = [0] * len(self.storages), [0] * len(self.storages)
        free: dict[str, int] = {}
        starts = []
        for operator in self.operators:
            start = free.get(operator.stream, 0)
            for s in operator.reads:
                start = max(start, written[s])
            for s in operator.writes:
                start = max(start, used[s])
            end = start + ns(operator.duration_us)
            free[operator.stream] = end
            for s in operator.writes:
                written[s] = end
            for s in (*operator.reads, *operator.writes):
                used[s] = max(used[s], end)
            starts.append(start)
        order = sorted(range(len(starts)), key=starts.__getitem__)
        operators = tuple(msgspec.structs.replace(self.operators[i], start_us=starts[i] / 1000) for i in order)
        return operators, tuple(s for s in self.storages if s.resident_at_start or used[s.id])
