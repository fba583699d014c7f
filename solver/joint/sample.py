"""A sample of a model, cut into its layers: what one device does for one micro-batch, and then in the optimizer.

::

    forward     head │ dense │ moe │ tail          a type stands once in what is made of it, however often the
    backward    head │ dense │ moe │ tail          model has it; further copies in the sample are left out
    optimizer   head │ dense │ moe │ tail ─ common

A sample is a profile of a few layers, unrolled later to any number of layers and micro-batches (`stage`), the way
planners of pipelines measure a short model and count on for the long one. Operators are told apart by `phase` and
`layer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import msgspec

from hyperopt.documents import DocumentError
from hyperopt.profile import Operator, Profile

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
HEAD, TAIL = "<head>", "<tail>"

REMEDY = "give a profile of one micro-batch whose operators have a layer and a phase"


@dataclass(frozen=True)
class Part:
    """One layer of the sample, or what stands before (head) or behind (tail) all layers. Indices of operators.

    `enters`: storages that the part before it makes and this one reads, in order; `leaves`: those that it makes and
    other parts read. `back_enters`, `back_leaves`: the same of gradients, which come from the part behind it. `far`:
    storages that come from parts further away (a table that all layers read).
    """

    name: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    optimizer: tuple[int, ...]
    enters: tuple[int, ...]
    leaves: tuple[int, ...]
    back_enters: tuple[int, ...]
    back_leaves: tuple[int, ...]
    far: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """A profile and its parts. `stack`: the model's layers in order, as (type, count).

    `common`: optimizer operators that belong to no layer (a norm over all gradients). `gradients`: storages that a
    backward pass makes for the optimizer: added up over micro-batches. `closing`: operators that run once, behind the
    last micro-batch (gradients to their shards). `copies`: for each type the labels of all its layers in the profile,
    whose mean times the one that stands for them has.

    A parameter that several parts use (an embedding tied to the head) is held by each of them, with its gradient and
    optimizer states: what reduces and updates it belongs to all (`tied`), and runs once on a stage.
    """

    profile: Profile
    head: Part
    layers: dict[str, Part]
    tail: Part
    stack: tuple[tuple[str, int], ...]
    common: tuple[int, ...]
    gradients: frozenset[int]
    closing: frozenset[int]
    copies: dict[str, tuple[str, ...]]

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.head, *self.layers.values(), self.tail)

    @cached_property
    def tied(self) -> frozenset[int]:
        """Closing and optimizer operators of several parts."""
        listed = [i for part in self._distinct for i in {*part.backward, *part.optimizer}]
        return frozenset(i for i, n in Counter(listed).items() if n > 1)

    @cached_property
    def tied_gradients(self) -> frozenset[int]:
        """Gradients that several parts add to."""
        ops = self.profile.operators
        made = [s for part in self._distinct for s in {s for i in part.backward for s in ops[i].writes}]
        return frozenset(s for s, n in Counter(made).items() if n > 1 and s in self.gradients)

    @cached_property
    def ends(self) -> frozenset[int]:
        """Storages that both the head and the tail access (a tied table, its gradient and optimizer states)."""
        ops = self.profile.operators
        head, tail = (
            {s for i in (*part.forward, *part.backward, *part.optimizer) for s in ops[i].accesses}
            for part in (self.head, self.tail)
        )
        return frozenset(head & tail)

    @property
    def _distinct(self) -> list[Part]:
        """Each part once, also where one layer stands for two labels."""
        return list({part.name: part for part in self.parts}.values())

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The type of each layer of the model."""
        return tuple(name for name, count in self.stack for _ in range(count))

    @cached_property
    def owner(self) -> dict[int, str | None]:
        """The part that alone accesses a storage; None for what several share."""
        owner: dict[int, str | None] = {}
        for part in self.parts:
            for i in (*part.forward, *part.backward, *part.optimizer):
                for s in self.profile.operators[i].accesses:
                    owner[s] = part.name if owner.get(s, part.name) == part.name else None
        return owner


def cut(profile: Profile, counts: Sequence[tuple[str, int]], whole: Profile | None = None) -> Sample:
    """The sample's parts. `counts`: for each type of layer, in the model's order, the label of one of its layers in
    the profile, and how many the model has.

    Layers of the sample that are made like a named one are taken for copies of it; `whole`: the program before it was
    sharded, which then says so, since shards need not be brought to all copies alike. Raises `DocumentError` where a
    label is unknown or has no forward pass, or the named layers do not stand in the profile's order.
    """
    labels = _labelled(profile)
    order = list(dict.fromkeys(labels[i] for i, o in enumerate(profile.operators) if o.phase == FORWARD))
    named = list(dict.fromkeys(name for name, _ in counts))
    for name in named:
        if name not in order:
            known = ", ".join(order[:20]) or "none"
            raise DocumentError(
                "$.operators[*].layer", f"no forward operator has the layer {name!r}", f"name one of {known}"
            )
    if sorted(named, key=order.index) != named:
        raise DocumentError("$.operators[*].layer", f"{', '.join(named)} run in another order", "name them in order")
    makes = _makes(profile if whole is None else whole)
    kinds = {makes[name] for name in named}
    body = [name for name in order if makes[name] in kinds]
    first, last = order.index(body[0]), order.index(body[-1])
    inside = order[first : last + 1]
    if strangers := [name for name in inside if makes[name] not in kinds]:
        problem = f"{strangers[0]!r} stands between the layers and is like none of them"
        raise DocumentError("$.operators[*].layer", problem, "name it as a type of layer too")
    part_of = dict.fromkeys(order[:first], HEAD) | dict.fromkeys(order[last + 1 :], TAIL)
    part_of |= {name: name for name in inside}
    # Beside head or tail a layer may be unlike its copies (the last one's gradients have one source): rather another.
    likes = {name: [like for like in inside if makes[like] == makes[name]] for name in named}
    models = {
        name: min(alike, key=lambda like: (like == inside[-1], like == inside[0])) for name, alike in likes.items()
    }
    made = _Cut(profile, [part_of.get(label, "") for label in labels], inside).sample(models, counts, likes)
    _check_neighbours(made, order)
    return made


def _check_neighbours(sample: Sample, labels: Sequence[str]) -> None:
    """Each part must be left what it reads by the one beside it in the model: a head cannot follow a head."""
    line = [("what stands before the layers", sample.head)]
    for label, count in sample.stack:
        line += [(repr(label), sample.layers[label])] * min(count, 2)
    line.append(("what stands behind the layers", sample.tail))
    remedy = f"name layers of which one can follow the other, with how many there are, out of {', '.join(labels[:20])}"
    for (name, part), (other, behind) in pairwise(line):
        what = ""
        if behind.enters and not part.leaves:
            what = f"{other} reads what the layer before it makes, and {name}, which would stand there, leaves nothing"
        elif part.back_enters and not behind.back_leaves:
            what = f"{name} needs a gradient of the layer behind it, and {other}, which would stand there, leaves none"
        if what:
            raise DocumentError("$.operators[*].layer", what, remedy)


def _levelled(
    profile: Profile, at: Mapping[str, Sequence[int]], models: Iterable[str], copies: list[list[str]]
) -> Profile:
    """The profile in which a layer that stands for its copies takes their mean, by phase and stream."""
    operators = list(profile.operators)

    def total(label: str, key: tuple[str, str]) -> float:
        listed = [profile.operators[i] for i in at[label]]
        return sum(o.duration_us for o in listed if (o.phase, o.stream) == key)

    for model, alike in zip(models, copies, strict=True):
        keys = {(operators[i].phase, operators[i].stream) for i in at[model]}
        shares = {key: total(model, key) for key in keys}
        for key, own in shares.items():
            shares[key] = sum(total(label, key) for label in alike) / len(alike) / own if own else 1.0
        for i in at[model]:
            share = shares[operators[i].phase, operators[i].stream]
            if abs(share - 1) > 1e-9:
                operators[i] = msgspec.structs.replace(operators[i], duration_us=operators[i].duration_us * share)
    return msgspec.structs.replace(profile, operators=tuple(operators))


def _labelled(profile: Profile) -> list[str]:
    """A label for each operator: its own, or in the passes that of the one before it (of the next, for the first)."""
    labels = [o.layer for o in profile.operators]
    for phase in (FORWARD, BACKWARD):
        at = [i for i, o in enumerate(profile.operators) if o.phase == phase]
        for line in (at, at[::-1]):
            near = ""
            for i in line:
                labels[i] = near = labels[i] or near
    return labels


def _makes(profile: Profile) -> dict[str, tuple[tuple[str, tuple[int, ...]], ...]]:
    """What each layer's forward pass is made of: types, and bytes written."""
    by_id = profile.by_id
    made: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {}
    for o, label in zip(profile.operators, _labelled(profile), strict=True):
        if o.phase == FORWARD:
            made[label] = (*made.get(label, ()), (o.type, tuple(by_id[s].bytes for s in o.writes)))
    return made


class _Cut:
    """The sets that decide where an operator and a storage belong."""

    def __init__(self, profile: Profile, parts: Sequence[str], inside: Sequence[str]) -> None:
        self.profile, self.parts = profile, parts
        self.order = [HEAD, *inside, TAIL]
        self.resident = {s.id for s in profile.storages if s.resident_at_start}
        self.forward_by: dict[int, str] = {}
        self.backward_by: dict[int, str] = {}
        for o, part in zip(profile.operators, parts, strict=True):
            made = {FORWARD: self.forward_by, BACKWARD: self.backward_by}.get(o.phase)
            if made is not None:
                for s in o.writes:
                    made.setdefault(s, part)

    def sample(
        self, models: Mapping[str, str], counts: Sequence[tuple[str, int]], likes: Mapping[str, Sequence[str]]
    ) -> Sample:
        operators = self.profile.operators
        wanted = {s for o in operators if o.phase == OPTIMIZER for s in o.reads} & self.backward_by.keys()
        wanted -= self.resident
        readers: dict[int, set[int]] = {}
        for i in self._backward():
            for s in operators[i].reads:
                readers.setdefault(s, set()).add(i)
        closing: set[int] = set()
        for i in reversed(self._backward()):  # what turns gradients that are added up into what is wanted of them
            o = operators[i]
            late = all(readers.get(s, set()) <= closing for s in o.writes)
            if late and o.reads and o.writes and wanted.issuperset(o.writes) and self._gradients(o.reads):
                closing.add(i)
                wanted |= set(o.reads)
        gradients = {s for s in wanted if any(s in operators[i].writes for i in self._backward() if i not in closing)}
        parts = {name: self._tied(self._part(name, gradients), wanted, closing) for name in self.order}
        if not all(parts[model].backward for model in models.values()):
            raise DocumentError("$.operators[*].phase", "a layer has no backward pass", REMEDY)
        known = set(self.order)
        common = [
            i for i, o in enumerate(operators) if o.phase not in (FORWARD, BACKWARD) and self.parts[i] not in known
        ]
        at = {name: [i for i, part in enumerate(self.parts) if part == name] for name in self.order}
        once = {models[name]: list(alike) for name, alike in likes.items()}
        return Sample(
            profile=_levelled(self.profile, at, once, list(once.values())),
            head=parts[HEAD],
            layers={name: parts[model] for name, model in models.items()},
            tail=parts[TAIL],
            stack=tuple(counts),
            common=tuple(common),
            gradients=frozenset(gradients),
            closing=frozenset(closing),
            copies={name: tuple(alike) for name, alike in likes.items()},
        )

    def _tied(self, part: Part, wanted: set[int], closing: set[int]) -> Part:
        """The part with what other parts do with gradients that it adds to: it holds the same parameters."""
        ops = self.profile.operators
        mine = {s for i in part.backward for s in ops[i].writes} & wanted
        late: list[int] = []
        updates: list[int] = []
        for i, (o, of) in enumerate(zip(ops, self.parts, strict=True)):
            elsewhere = of in self.order and of != part.name and not mine.isdisjoint(o.reads)
            if elsewhere and (i in closing or o.phase not in (FORWARD, BACKWARD)):
                (late if i in closing else updates).append(i)
                mine |= set(o.writes) - self.resident
        return replace(part, backward=(*part.backward, *late), optimizer=tuple(sorted((*part.optimizer, *updates))))

    def _backward(self) -> list[int]:
        return [i for i, o in enumerate(self.profile.operators) if o.phase == BACKWARD]

    def _gradients(self, ids: Iterable[int]) -> bool:
        """Whether they are gradients of parameters that the backward pass makes."""
        by_id = self.profile.by_id
        return all(by_id[s].kind == "gradient" and s in self.backward_by and s not in self.resident for s in ids)

    def _part(self, name: str, gradients: set[int]) -> Part:
        mine: dict[str, list[int]] = {FORWARD: [], BACKWARD: [], OPTIMIZER: []}
        for i, o in enumerate(self.profile.operators):
            if self.parts[i] == name:
                mine[o.phase if o.phase in (FORWARD, BACKWARD) else OPTIMIZER].append(i)
        ops, at = self.profile.operators, self.order.index(name)
        before, behind = (self.order[i] if 0 <= i < len(self.order) else "" for i in (at - 1, at + 1))
        back = _read(ops[i] for i in mine[BACKWARD])
        passes = list(dict.fromkeys((*_read(ops[i] for i in mine[FORWARD]), *back)))
        others = [o for o, part in zip(ops, self.parts, strict=True) if part not in (name, "")]
        apart = self.resident | gradients
        forth = {s: by for s, by in self.forward_by.items() if s not in apart}
        backwards = {s: by for s, by in self.backward_by.items() if s not in apart}
        far = [s for s in passes if s in forth and forth[s] not in (name, before)]
        far += [s for s in back if s in backwards and backwards[s] not in (name, behind)]
        return Part(
            name=name,
            forward=tuple(mine[FORWARD]),
            backward=tuple(mine[BACKWARD]),
            optimizer=tuple(mine[OPTIMIZER]),
            enters=tuple(s for s in passes if forth.get(s) == before),
            leaves=tuple(s for s in _read(o for o in others if o.phase == FORWARD) if forth.get(s) == name),
            back_enters=tuple(s for s in back if backwards.get(s) == behind),
            back_leaves=tuple(s for s in _read(o for o in others if o.phase == BACKWARD) if backwards.get(s) == name),
            far=tuple(far),
        )


def _read(operators: Iterable[Operator]) -> list[int]:
    """What they read, in order of the first time."""
    return list(dict.fromkeys(s for o in operators for s in o.reads))
