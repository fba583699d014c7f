"""The plan document `hyperopt.plan/1`: what leaves HBM, when it returns, what is recomputed.

Classes mirror the document field by field (docs/reference/documents.md). `check` compares a
plan with nothing but itself; whether it is legal for a profile is the business of `validate` and `replay`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Annotated, Any, Literal

import msgspec

from hyperopt import mesh
from hyperopt.documents import MAX_DOCUMENT_BYTES, DocumentError, canonical, decode, sha256
from hyperopt.mesh import Mesh
from hyperopt.profile import IDLE, Bytes, Index, Kind, Phase, Profile

FAMILY, MAJOR = "hyperopt.plan", 1

Objective = Literal["min_step_time", "min_peak", "pareto"]
Status = Literal["optimal", "feasible", "infeasible"]
ActionKind = Literal["copy_out", "release", "copy_in", "release_host"]

LARGEST_ENTRY, ALIGNMENT = 16, 1024
"""Bytes of an element of the widest type, and by which an allocation may exceed its tensor."""

HOST = "host"
"""The tier that a copy_out goes to unless it names another."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One residency action. `copy_in` stands before its operator, the three others after it."""

    op: Index
    when: Literal["before", "after"]
    kind: ActionKind
    storage: Index
    tier: str | None = None


class Recompute(msgspec.Struct, frozen=True, kw_only=True):
    """Re-run `ops`, in order, right before `before_op`, to bring `storage` back."""

    storage: Index
    before_op: Index
    ops: tuple[Index, ...]


class Residency(msgspec.Struct, frozen=True, kw_only=True):
    """`initial`: storages that start (and end) the step in a tier instead of in HBM."""

    initial: dict[Index, str] = {}
    actions: tuple[Action, ...] = ()
    recompute: tuple[Recompute, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.initial or self.actions or self.recompute)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per tier. A tier left out has what the profile says; 0 means no such tier."""

    hbm_bytes: Bytes | None = None
    tiers: dict[str, Bytes] = {}

    def tier_bytes(self, profile: Profile) -> dict[str, int]:
        return {name: self.tiers.get(name, tier.bytes) for name, tier in profile.device.tiers.items()}


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the replay of this plan (simulated, not measured)."""

    step_us: float = 0.0
    peak_bytes: int = 0
    stall_us: float = 0.0
    tier_peak_bytes: dict[str, int] = {}
    baseline_step_us: float = 0.0
    baseline_peak_bytes: int = 0


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """No plan within the budget has a step time below `step_us`; `gap` = (plan - bound) / bound. Optimal is a plan
    whose step is the bound, and for `min_peak` only one whose peak is proven the least, too."""

    step_us: float = 0.0
    gap: float = 0.0
    status: Status = "feasible"
    stop_reason: str = ""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a call: for a micro-batch, or (None) once for the step."""

    call: str
    micro_batch: Index | None = None


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline stage: ranks, the layers they hold, and what leaves HBM there.

    `layers`: positions in the model, from 0; a list for each chunk where the stage has several. `recompute_levels`,
    `offload_levels`: level -> layers at that level. `residency`: orders for a rank of the stage, as the plan's own.

    In an MPMD step of several programs a stage is a group of devices: it has `programs` instead of layers, of which
    `swapped` ones are in HBM in turn, and runs their calls in the order of `turns`.
    """

    devices: tuple[Index, ...] = ()
    layers: tuple[Index | tuple[Index, ...], ...] = ()
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 1
    residency: Residency = Residency()
    recompute_levels: dict[str, tuple[Index, ...]] = {}
    offload_levels: dict[str, tuple[Index, ...]] = {}
    programs: tuple[str, ...] = ()
    swapped: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Layers by chunk."""
        nested = tuple(chunk for chunk in self.layers if isinstance(chunk, tuple))
        return nested or (tuple(layer for layer in self.layers if isinstance(layer, int)),)


class TensorLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How a tensor lies on the mesh: for each dimension the axes that cut it, the outermost first.

    Along the axes that `partial` names each device holds a summand, along all others the same. `copies`: by phase,
    where its readers share a copy that is cut otherwise. `grouped`: a dimension joins several parts (query, key and
    value; gate and up) and each device holds its share of every part, so that columns have to be stored in that order.
    """

    shape: tuple[Index, ...]
    dims: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()
    kind: Kind = "other"
    copies: dict[Phase, tuple[tuple[str, ...], ...]] = {}
    grouped: bool = False


class Sharding(msgspec.Struct, frozen=True, kw_only=True):
    """`layouts`: of each tensor, by name. `operators`: into how many parts each dimension of each input is cut, by the
    operator's name."""

    mesh: Mesh
    layouts: dict[str, TensorLayout] = {}
    operators: dict[str, tuple[tuple[Index, ...], ...]] = {}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    format: str = f"{FAMILY}/{MAJOR}"
    plan_id: str = ""
    profile_digest: str = ""
    program_digest: str = ""
    budget: Budget = Budget()
    objective: Objective = "min_step_time"
    residency: Residency = Residency()
    sharding: Sharding | None = None
    stages: tuple[Stage, ...] | None = None
    predicted: Predicted | None = None
    bound: Bound | None = None
    alternatives: tuple[dict[str, Any], ...] = ()
    explain: tuple[dict[str, Any], ...] = ()
    provenance: dict[str, Any] = {}

    @property
    def content_id(self) -> str:
        """Identifier of what the plan orders: the same decisions for the same profile get the same id."""
        decisions = Plan(
            profile_digest=self.profile_digest,
            program_digest=self.program_digest,
            budget=self.budget,
            objective=self.objective,
            residency=self.residency,
            sharding=self.sharding,
            stages=self.stages,
        )
        return "plan-" + sha256(canonical(decisions)).removeprefix("sha256:")[:16]


def load(data: bytes, limit: int = MAX_DOCUMENT_BYTES) -> tuple[Plan, list[str]]:
    """A plan from document bytes (plain, gzip or zstd; at most `limit` when unpacked), and warnings.

    Raises `DocumentError`.
    """
    plan, warnings = decode(data, Plan, FAMILY, MAJOR, limit)
    check_stages(plan.stages or ())
    if plan.sharding is not None:
        check_sharding(plan.sharding)
        _check_ranks(plan.sharding.mesh, plan.stages or ())
    return plan, warnings


def _check_ranks(mesh: Mesh, stages: Sequence[Stage]) -> None:
    """Raises `DocumentError` where stages stand on other devices than the mesh has.

    The mesh is that of all stages, or of the first one: then each other has as many devices, in the same order.
    """
    ranks = set(mesh.places.ravel().tolist())
    whole = len({rank for stage in stages for rank in stage.devices}) == len(ranks)
    for s, stage in enumerate(stages):
        at = f"$.stages[{s}].devices"
        strange = [rank for rank in stage.devices if rank not in ranks]
        if strange and (whole or s == 0):
            raise DocumentError(at, f"the mesh has no rank {strange[0]}", "use the ranks of $.sharding.mesh")
        if not whole and len(stage.devices) != len(ranks):
            problem = f"{len(stage.devices)} devices where the mesh of the first stage has {len(ranks)}"
            raise DocumentError(at, problem, "give every stage as many, or a mesh of all devices")


def distinct(names: Iterable[str]) -> list[str]:
    """Names, the second and later ones of a kind with ``#`` and their position behind."""
    seen: set[str] = set()
    found = []
    for i, name in enumerate(names):
        found.append(name if name not in seen else f"{name}#{i}")
        seen.add(name)
    return found


def check_against(sharding: Sharding, profile: Profile) -> None:
    """Raises `DocumentError` where a sharding is not of this profile's step: a tensor or an operator that is not there,
    a shape that is more or less than a storage holds, more or fewer inputs than an operator reads, parts that do not
    fit an input's shape."""
    tensors = distinct(s.name or f"tensor{i}" for i, s in enumerate(profile.storages))
    held = dict(zip(tensors, profile.storages, strict=True))
    for name, layout in sharding.layouts.items():
        at = f"$.sharding.layouts[{name!r}]"
        if name not in held:
            raise DocumentError(at, "the profile has no storage of that name", "name tensors as the profile does")
        entries, size = prod(layout.shape), held[name].bytes
        if not entries <= max(1, size) < entries * LARGEST_ENTRY + ALIGNMENT:
            raise DocumentError(f"{at}.shape", f"{entries} entries for {size} bytes", "give the storage's own shape")
    kernels = [o for o in profile.operators if o.type != IDLE]
    own = dict(zip(distinct(o.name or f"{o.type}{i}" for i, o in enumerate(kernels)), kernels, strict=True))
    name_of = {s.id: name for name, s in held.items()}
    for name, inputs in sharding.operators.items():
        at = f"$.sharding.operators[{name!r}]"
        if name not in own:
            raise DocumentError(at, "the profile has no operator of that name", "name operators as the profile does")
        reads = own[name].reads
        if len(inputs) != len(reads):
            problem = f"{len(inputs)} inputs where the profile's operator reads {len(reads)}"
            raise DocumentError(at, problem, "give each input its parts, in the order of reads")
        for slot, (cuts, storage) in enumerate(zip(inputs, reads, strict=True)):
            cut = sharding.layouts.get(name_of[storage])
            if cut is None:
                continue
            if len(cuts) != len(cut.shape):
                problem = f"{len(cuts)} dimensions where {name_of[storage]!r} has {len(cut.shape)}"
                raise DocumentError(f"{at}[{slot}]", problem, "give every dimension a number of parts")
            for length, parts in zip(cut.shape, cuts, strict=True):
                if length % parts:
                    problem = f"{length} cannot be cut into {parts} equal parts"
                    raise DocumentError(f"{at}[{slot}]", problem, "give parts that divide it")


def check_sharding(sharding: Sharding) -> None:
    """Raises `DocumentError` where a layout contradicts the mesh or itself: an axis that is not there, used twice or
    against the mesh's order, a dimension too many or too few, a length that its axes do not divide."""
    try:
        mesh.check(sharding.mesh)
    except DocumentError as error:
        raise DocumentError(f"$.sharding.mesh{error.field[1:]}", error.problem, error.remedy) from error
    sizes = dict(zip(sharding.mesh.axes, sharding.mesh.shape, strict=True))
    for name, layout in sharding.layouts.items():
        at = f"$.sharding.layouts[{name!r}]"
        for field, dims in (("dims", layout.dims), *((f"copies.{p}", c) for p, c in layout.copies.items())):
            partial = layout.partial if field == "dims" else ()
            if len(dims) != len(layout.shape):
                problem = f"{len(dims)} dimensions where the shape has {len(layout.shape)}"
                raise DocumentError(f"{at}.{field}", problem, "give every dimension a list of axes")
            used = [axis for axes in (*dims, partial) for axis in axes]
            for axis in used:
                if axis not in sizes:
                    raise DocumentError(f"{at}.{field}", f"no axis {axis!r}", f"the mesh has {', '.join(sizes)}")
                if used.count(axis) > 1:
                    raise DocumentError(f"{at}.{field}", f"axis {axis!r} stands twice", "use each axis once a tensor")
            for length, axes in zip(layout.shape, dims, strict=True):
                if list(axes) != sorted(axes, key=sharding.mesh.axes.index):
                    problem = f"{' x '.join(axes)} against the order of the mesh"
                    raise DocumentError(f"{at}.{field}", problem, f"order axes as {', '.join(sizes)}: outermost first")
                if length % (parts := prod(sizes[axis] for axis in axes)):
                    problem = f"{length} cannot be cut into {parts} equal parts"
                    raise DocumentError(f"{at}.{field}", problem, "use axes that divide it")
    for name, inputs in sharding.operators.items():
        for slot, cuts in enumerate(inputs):
            if sharding.mesh.devices % max(1, prod(cuts)) or 0 in cuts:
                problem = f"{' x '.join(map(str, cuts))} parts on {sharding.mesh.devices} devices"
                raise DocumentError(f"$.sharding.operators[{name!r}][{slot}]", problem, "cut along axes of the mesh")


def check_stages(stages: Sequence[Stage]) -> None:
    """Raises `DocumentError` where stages contradict each other: a rank on two of them, a stage without devices beside
    others that have some, a layer twice or nowhere or out of the pipeline's order, other micro-batches or chunks than
    the first stage's, a level for a layer that is elsewhere, a layer at two levels of one kind; an action on the wrong
    side of its operator; a program or a turn twice, programs beside layers, one that is swapped and elsewhere."""
    if not stages:
        return
    count = len(stages[0].chunks)
    owner: dict[int, int] = {}
    for s, stage in enumerate(stages):
        at = f"$.stages[{s}]"
        if any(isinstance(x, tuple) for x in stage.layers) and any(isinstance(x, int) for x in stage.layers):
            raise DocumentError(f"{at}.layers", "mixes layers and lists of layers", "give a list for each chunk")
        if len(stage.chunks) != count:
            problem = f"{len(stage.chunks)} chunks where stage 0 has {count}"
            raise DocumentError(f"{at}.layers", problem, "give every stage as many; a chunk may be empty")
        if stage.micro_batches != stages[0].micro_batches:
            problem = f"{stage.micro_batches} where stage 0 has {stages[0].micro_batches}"
            raise DocumentError(f"{at}.micro_batches", problem, "every micro-batch passes through all stages")
        if not stage.devices and any(other.devices for other in stages):
            raise DocumentError(
                f"{at}.devices", "there are none where other stages have some", "name the stage's ranks"
            )
        for i, action in enumerate(stage.residency.actions):
            side = "before" if action.kind == "copy_in" else "after"
            if action.when != side:
                problem = f"{action.kind} cannot stand {action.when} an operator"
                raise DocumentError(f"{at}.residency.actions[{i}].when", problem, f"put it {side} one")
        for rank in stage.devices:
            if rank in owner:
                problem = f"rank {rank} is on stage {owner[rank]} already"
                raise DocumentError(f"{at}.devices", problem, "give every rank one stage")
            owner[rank] = s
        held = {layer for chunk in stage.chunks for layer in chunk}
        for field in ("recompute_levels", "offload_levels"):
            at_level: dict[int, str] = {}
            for level, layers in getattr(stage, field).items():
                for layer in layers:
                    if layer in at_level:
                        problem = f"layer {layer} is at {at_level[layer]} already"
                        raise DocumentError(f"{at}.{field}.{level}", problem, "give every layer one level")
                    at_level[layer] = level
                if strangers := sorted(set(layers) - held):
                    problem = f"layer {strangers[0]} is not on this stage"
                    raise DocumentError(f"{at}.{field}.{level}", problem, "name the stage's own layers")
    _check_programs(stages)
    placed = [(c, s, layer) for c in range(count) for s, stage in enumerate(stages) for layer in stage.chunks[c]]
    for expected, (_, s, layer) in enumerate(placed):
        if layer != expected:
            problem = f"layer {layer} stands where {expected} follows in the pipeline"
            raise DocumentError(f"$.stages[{s}].layers", problem, "place each layer once, chunk by chunk, in order")


def _check_programs(stages: Sequence[Stage]) -> None:
    programs: dict[str, int] = {}
    turns: dict[Turn, int] = {}
    for s, stage in enumerate(stages):
        at = f"$.stages[{s}]"
        if stage.programs and any(stage.chunks):
            raise DocumentError(f"{at}.programs", "stand beside layers", "give the stage one or the other")
        for i, name in enumerate(stage.swapped):
            if name not in stage.programs:
                raise DocumentError(f"{at}.swapped[{i}]", f"{name} is not on this stage", "name its own programs")
        for i, name in enumerate(stage.programs):
            if programs.setdefault(name, s) != s or name in stage.programs[:i]:
                problem = f"{name} is on stage {programs[name]} already"
                raise DocumentError(f"{at}.programs[{i}]", problem, "give every program one stage")
        for i, turn in enumerate(stage.turns):
            if turn.micro_batch is not None and turn.micro_batch >= stage.micro_batches:
                problem = f"micro-batch {turn.micro_batch} of {stage.micro_batches}"
                raise DocumentError(f"{at}.turns[{i}].micro_batch", problem, "count them from 0")
            if turn in turns:
                problem = f"{turn.call} has had this turn on stage {turns[turn]}"
                raise DocumentError(
                    f"{at}.turns[{i}]", problem, "give every call one for each micro-batch, or one a step"
                )
            turns[turn] = s


EMPTY = Plan()
"""The plan that changes nothing."""
