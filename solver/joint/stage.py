"""A pipeline stage's step on one device, put together from a sample: its layers, micro-batches in its order, waits.

::

    sample     head │ dense │ moe │ tail                            one micro-batch
    stage      receive, moe moe moe, send   F0 F1 F2 B0 ─ F3 B1 ..  as often as the schedule says; ─: it waits
               then gradients to their shards, and the optimizer

A storage of the sample becomes one for the stage (what several parts share), one a layer (parameters, gradients,
optimizer states) or one a layer and micro-batch (all else). Gradients are added up in place from the second
micro-batch on. What comes from another stage is received right before it is needed, and sent right after it is made,
on a stream of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from hyperopt.profile import IDLE, Operator, Profile, Storage, ns
from solver.joint.sample import HEAD, TAIL, Part, Sample
from solver.stages.schedule import BACKWARD, FORWARD, Task

EXCHANGE = "pipeline"
"""The stream of receives and sends between stages."""

RECEIVE, SEND = "Receive", "Send"


Place = tuple[int, int, int]
"""An operator or storage of the sample, as it stands in a stage: (its index or id there, layer of the stage from 0 with
head and tail counted, micro-batch); layer or micro-batch is -1 where it belongs to none."""


@dataclass(frozen=True)
class StageStep:
    """`task[i]`: which of the tasks operator i belongs to, in their order; -1 for the optimizer. `operators`,
    `storages`: where those of the sample are found; storages as each layer knows them, so that one that passes from
    layer to layer has two names."""

    profile: Profile
    tasks: tuple[Task, ...]
    task: tuple[int, ...]
    operators: dict[Place, int]
    storages: dict[Place, int]


@dataclass(frozen=True)
class Exchange:
    """What a hidden state costs between stages."""

    bytes_per_s: float
    latency_us: float

    def us(self, size: int) -> float:
        return self.latency_us + size / self.bytes_per_s * 1e6


def stage_step(
    sample: Sample,
    types: Sequence[str],
    tasks: Sequence[Task],
    exchange: Exchange,
    *,
    first: bool,
    last: bool,
    waits_us: Mapping[int, float] | None = None,
) -> StageStep:
    """The profile of a stage that holds layers of these `types`, with the head if it is the `first` stage and the
    tail if it is the `last`; `waits_us`: microseconds that it waits before a task, by its place in `tasks`."""
    parts = [sample.head] if first else []
    parts += [sample.layers[name] for name in types]
    parts += [sample.tail] if last else []
    return _Unrolled(sample, parts, exchange, first, last).step(tasks, waits_us or {})


def layer_step(sample: Sample, part: Part, gap: Operator | None) -> StageStep:
    """Forward and backward of one part for one micro-batch, with `gap` between them; nothing is exchanged, no gradient
    reduced and nothing optimised."""
    made = _Unrolled(sample, [part], Exchange(1e18, 0.0), first=part.name == HEAD, last=part.name == TAIL)
    return made.layer(gap)


class _Unrolled:
    """Operators and storages while they are put down. A storage is known by its key: (id in the sample, layer or -1,
    micro-batch or -1); layer -1 is the stage's own, and what is received or sent has the layer before or behind."""

    def __init__(self, sample: Sample, parts: Sequence[Part], exchange: Exchange, first: bool, last: bool) -> None:
        self.sample, self.parts, self.exchange = sample, parts, exchange
        self.first, self.last = first, last
        self.by_id = sample.profile.by_id
        self.ids: dict[tuple[int, int, int], int] = {}
        self.storages: list[Storage] = []
        self.operators: list[Operator] = []
        self.task: list[int] = []
        self.places: dict[Place, int] = {}
        self.seen: dict[Place, int] = {}
        self.written: set[int] = set()
        self.resident = {s.id for s in sample.profile.storages if s.resident_at_start}
        optimizer = {s for i in self._optimizer_indices() for s in sample.profile.operators[i].accesses}
        self.steady = self.resident | sample.gradients | optimizer
        self.forth = [_bound(part.enters, before, self.by_id) for part, before in self._pairs(1)]
        self.back = [_bound(part.back_enters, behind, self.by_id) for part, behind in self._pairs(-1)]

    def _optimizer_indices(self) -> list[int]:
        sample = self.sample
        parts = (sample.head, *sample.layers.values(), sample.tail)
        return [*(i for part in parts for i in part.optimizer), *sample.common, *sample.closing]

    def _pairs(self, step: int) -> list[tuple[Part, tuple[int, ...]]]:
        """Each part, with what its neighbour before (1) or behind (-1) leaves for it; at the stage's ends the part is
        its own neighbour: what it would have left itself is received."""
        found = []
        for i, part in enumerate(self.parts):
            neighbour = self.parts[i - step] if 0 <= i - step < len(self.parts) else part
            leaves = neighbour.leaves if step == 1 else neighbour.back_leaves
            found.append((part, leaves or (part.enters if step == 1 else part.back_enters)))
        return found

    # -- storages ------------------------------------------------------------------------------------------

    def _id(self, s: int, layer: int, micro_batch: int) -> int:
        """The stage's storage for the sample's `s`, as the part at `layer` sees it for that micro-batch."""
        part = self.parts[layer] if 0 <= layer < len(self.parts) else None
        if s in self.steady:
            layer = layer if part is not None and self.sample.owner.get(s) == part.name else -1
            return self._made((s, layer, -1))
        if part is not None:
            if s in part.far:
                return self._made((s, -1, micro_batch))
            if s in self.forth[layer]:
                return self._made((self.forth[layer][s], layer - 1, micro_batch))
            if s in self.back[layer]:
                return self._made((self.back[layer][s], layer + 1, micro_batch))
        return self._made((s, layer, micro_batch))

    def _made(self, key: tuple[int, int, int]) -> int:
        if key not in self.ids:
            self.ids[key] = len(self.storages)
            old, layer, micro_batch = self.by_id[key[0]], key[1], key[2]
            name = old.name + ("" if layer < 0 else f"#{layer}") + ("" if micro_batch < 0 else f"@{micro_batch}")
            self.storages.append(msgspec.structs.replace(old, id=self.ids[key], name=name, window=None, part_of=None))
        return self.ids[key]

    # -- operators -----------------------------------------------------------------------------------------

    def step(self, tasks: Sequence[Task], waits_us: Mapping[int, float]) -> StageStep:
        backward = [i for i, task in enumerate(tasks) if task.direction != FORWARD]
        for i, task in enumerate(tasks):
            if waits_us.get(i):
                idle = Operator(duration_us=waits_us[i], type=IDLE, name=f"wait-{i}", recomputable=False)
                self._put(idle, i)
            if task.direction == FORWARD:
                self._forward(i, task.micro_batch)
            else:
                self._backward(i, task.micro_batch, adds=i != backward[0], closes=i == backward[-1])
        self._optimizer()
        order = _by_start(self.operators)
        listed = {i: k for k, i in enumerate(order)}
        return StageStep(
            profile=self._profile(order),
            tasks=tuple(tasks),
            task=tuple(self.task[i] for i in order),
            operators={place: listed[i] for place, i in self.places.items()},
            storages=self.seen,
        )

    def layer(self, gap: Operator | None) -> StageStep:
        self._forward(0, 0)
        if gap is not None:  # it begins when the forward pass is done, communication too
            done = tuple(self._id(s, 0, 0) for s in self.parts[0].leaves)
            self._put(Operator(reads=done, duration_us=0.0, name="done", type=IDLE, recomputable=False), 0)
            self._put(gap, 0)
            self._put(msgspec.structs.replace(gap, name="held", stream=EXCHANGE), 0)  # no gradient comes before its end
        self._backward(1, 0, adds=False, closes=False)
        tasks = (Task(FORWARD, 0, 0), Task(BACKWARD, 0, 0))
        order = range(len(self.operators))
        return StageStep(self._profile(order), tasks, tuple(self.task), self.places, self.seen)

    def _profile(self, order: Sequence[int]) -> Profile:
        old = self.sample.profile
        accessed = {s for o in self.operators for s in o.accesses}
        return Profile(
            operators=tuple(self.operators[i] for i in order),
            storages=tuple(s for s in self.storages if s.resident_at_start or s.id in accessed),
            run=msgspec.structs.replace(
                old.run, measured=False, source="stage", notes=(f"put together from the sample {old.digest}",)
            ),
            device=old.device,
            adapter=old.adapter,
        )

    def _put(self, operator: Operator, task: int) -> None:
        self.written |= set(operator.writes)
        self.operators.append(operator)
        self.task.append(task)

    def _run(self, i: int, layer: int, micro_batch: int, task: int, adds: bool = False) -> None:
        o = self.sample.profile.operators[i]
        writes = [self._id(s, layer, micro_batch) for s in o.writes]
        reads = [self._id(s, layer, micro_batch) for s in o.reads]
        self.seen |= {
            (s, layer, micro_batch): made for s, made in zip((*o.writes, *o.reads), (*writes, *reads), strict=True)
        }
        for s, read in zip(o.reads, list(reads), strict=True):
            if s in self.steady and s not in self.resident and read not in self.written and task >= 0:
                if s in o.writes:  # it adds to what another stage has begun: here it begins
                    reads.remove(read)
                else:
                    self._exchange(RECEIVE, [read], micro_batch, task)
        if adds:
            reads += [w for s, w in zip(o.writes, writes, strict=True) if s in self.sample.gradients and w not in reads]
        self.places[i, layer, micro_batch] = len(self.operators)
        self._put(
            msgspec.structs.replace(
                o,
                reads=tuple(dict.fromkeys(reads)),
                writes=tuple(dict.fromkeys(writes)),
                start_us=0.0,
                recomputable=o.recomputable and not adds,
                micro_batch=micro_batch if micro_batch >= 0 else None,
                saves=(),
                loads=(),
            ),
            task,
        )

    def _exchange(self, kind: str, ids: Sequence[int], micro_batch: int, task: int) -> None:
        """Receives or sends storages, one after another."""
        for s in ids:
            reads, writes = ((), (s,)) if kind == RECEIVE else ((s,), ())
            us = self.exchange.us(self.storages[s].bytes)
            name = f"{kind}-{len(self.operators)}"
            made = Operator(
                reads=reads, writes=writes, duration_us=us, name=name, type=kind, stream=EXCHANGE, recomputable=False,
                micro_batch=micro_batch,
            )  # fmt: skip
            self._put(made, task)

    def _forward(self, task: int, micro_batch: int) -> None:
        if not self.first:
            entering = dict.fromkeys(self.forth[0].values())
            self._exchange(RECEIVE, [self._made((s, -1, micro_batch)) for s in entering], micro_batch, task)
        missing = self._far(self.parts, backward=False)
        self._exchange(RECEIVE, [self._made((s, -1, micro_batch)) for s in missing], micro_batch, task)
        for layer, part in enumerate(self.parts):
            for i in part.forward:
                self._run(i, layer, micro_batch, task)
        if not self.last:
            end = len(self.parts) - 1
            sent = [self._id(s, end, micro_batch) for s in self.parts[end].leaves]
            self._exchange(SEND, sent, micro_batch, task)

    def _backward(self, task: int, micro_batch: int, adds: bool, closes: bool) -> None:
        end = len(self.parts)
        if not self.last:
            entering = dict.fromkeys(self.back[-1].values())
            self._exchange(RECEIVE, [self._made((s, end, micro_batch)) for s in entering], micro_batch, task)
        missing = self._far(self.parts, backward=True)
        self._exchange(RECEIVE, [self._made((s, -1, micro_batch)) for s in missing], micro_batch, task)
        for layer in reversed(range(end)):
            for i in self.parts[layer].backward:
                if i not in self.sample.closing:
                    self._run(i, layer, micro_batch, task, adds=adds)
                elif closes and i not in self.sample.tied:
                    self._run(i, layer, -1, task)
        if closes:
            self._close_tied(task)
        if not self.first:
            sent = [self._id(s, 0, micro_batch) for s in self.parts[0].back_leaves]
            self._exchange(SEND, sent, micro_batch, task)

    def _close_tied(self, task: int) -> None:
        """Gradients that other stages add to as well are summed over them, then brought where they are wanted."""
        if not (self.first and self.last):
            for s in sorted(self.sample.tied_gradients):
                made = self.ids.get((s, -1, -1))
                if made in self.written and made is not None:
                    us = self.exchange.us(self.storages[made].bytes)
                    self._put(
                        Operator(
                            reads=(made,), writes=(made,), duration_us=us, name=f"Tied-{made}", type="AllReduce",
                            stream=EXCHANGE, recomputable=False,
                        ),
                        task,
                    )  # fmt: skip
        done: set[int] = set()
        for layer, part in enumerate(self.parts):
            for i in part.backward:
                if i in self.sample.closing and i in self.sample.tied and i not in done:
                    done.add(i)
                    self._run(i, layer, -1, task)

    def _far(self, parts: Sequence[Part], backward: bool) -> list[int]:
        """What parts read from others further away, and no part of this stage makes."""
        ops = self.sample.profile.operators

        def seen(part: Part) -> set[int]:
            return {s for i in (part.backward if backward else part.forward) for s in ops[i].reads}

        made = {s for part in parts for i in (*part.forward, *part.backward) for s in ops[i].writes}
        return list(dict.fromkeys(s for part in parts for s in part.far if s in seen(part) and s not in made))

    def _optimizer(self) -> None:
        """Layer by layer between the operators that all layers share, which read what every layer has for them."""
        edges = [*self.sample.common, len(self.sample.profile.operators)]
        begin = -1
        done: set[int] = set()
        for edge in edges:
            for layer, part in enumerate(self.parts):
                for i in part.optimizer:
                    if begin < i < edge and i not in done:
                        done |= {i} & self.sample.tied
                        self._run(i, layer, -1, -1)
            if edge < len(self.sample.profile.operators):
                self._shared(edge)
            begin = edge

    def _shared(self, i: int) -> None:
        """An operator over all layers: of the sample's storages it takes every copy that the stage has."""
        o = self.sample.profile.operators[i]
        copies: dict[int, list[int]] = {}
        for (s, _, _), made in self.ids.items():
            copies.setdefault(s, []).append(made)
        reads = [c for s in o.reads for c in copies.get(s, [])]
        writes = [c for s in o.writes for c in copies.get(s) or [self._made((s, -1, -1))]]
        self._put(msgspec.structs.replace(o, reads=tuple(reads), writes=tuple(writes), start_us=0.0), -1)


def _bound(enters: Sequence[int], leaves: Sequence[int], by_id: Mapping[int, Storage]) -> dict[int, int]:
    """For each storage that enters a part the one that its neighbour leaves for it: the same place in the list where
    sizes agree, else another of its size, else the last."""
    bound: dict[int, int] = {}
    for i, s in enumerate(enters):
        alike = [one for one in leaves if by_id[one].bytes == by_id[s].bytes]
        if i < len(leaves) and leaves[i] in alike:
            bound[s] = leaves[i]
        elif alike or leaves:
            bound[s] = alike[-1] if alike else leaves[-1]
    return bound


def _by_start(operators: Sequence[Operator]) -> list[int]:
    """The order in which they start where nothing is short: in listed order on each stream, after what they read is
    written and what they overwrite is no longer in use."""
    written: dict[int, int] = {}
    used: dict[int, int] = {}
    free: dict[str, int] = {}
    starts = []
    for o in operators:
        start = free.get(o.stream, 0)
        start = max([start, *(written.get(s, 0) for s in o.reads), *(used.get(s, 0) for s in o.writes)])
        end = start + ns(o.duration_us)
        free[o.stream] = end
        written |= dict.fromkeys(o.writes, end)
        used |= {s: max(used.get(s, 0), end) for s in o.accesses}
        starts.append(start)
    return sorted(range(len(starts)), key=starts.__getitem__)
