"""The profile document `hyperopt.profile/1`: what one rank did in one step.

Classes mirror the document field by field (docs/reference/documents.md). Sizes are integer
bytes, times are microseconds; `ns` turns a time into the integer nanoseconds that everything inside uses.
Frozen data, no input or output beyond bytes.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hyperopt.documents import MAX_DOCUMENT_BYTES, DocumentError, canonical, decode, sha256

FAMILY, MAJOR = "hyperopt.profile", 1

# 2^53 bytes is 9 petabytes, 10^15 us thirty years: larger figures are faults, and smaller ones survive a
# trip through a double, so that no reader in another language sees a different number.
Bytes = Annotated[int, Meta(ge=0, le=2**53)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Index = Annotated[int, Meta(ge=0, le=2**31)]
MOST_US = 1e15
Microseconds = Annotated[float, Meta(ge=0, le=MOST_US)]
Timestamp = Annotated[float, Meta(ge=-1e18, le=1e18)]
BytesPerSecond = Annotated[int, Meta(ge=0, le=2**53)] | Annotated[float, Meta(ge=0, le=2.0**53)]

Phase = Literal["forward", "backward", "optimizer", "other"]
Kind = Literal["parameter", "gradient", "optimizer_state", "activation", "kv_cache", "input", "other"]
Certainty = Literal["measured", "inferred", "unknown"]

LONGEST_COPY_NS = 2**53
"""Above this, 104 days, the copy of one storage is a fault of the link's figures, and sums of them leave 64 bits."""

COMPUTE = "compute"
"""The stream at whose operators actions and recomputes may stand (docs/reference/execution-model.md, rule 3)."""

IDLE = "idle"
"""Type of the operators that stand for measured idle time which no other operator explains."""


def ns(microseconds: float) -> int:
    """Integer nanoseconds of a time in microseconds (docs/reference/execution-model.md)."""
    return round(microseconds * 1000)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    framework: str = ""
    framework_version: str = ""
    model: str = ""
    rank: Index = 0
    world_size: Annotated[int, Meta(ge=1, le=2**31)] = 1
    step: Index = 0
    source: str = ""
    measured: bool = True
    notes: tuple[str, ...] = ()


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """A place outside HBM with a link of its own to it. Bandwidths in bytes/s; 0 means no such path."""

    name: Annotated[str, Meta(min_length=1)]
    bytes: Bytes = 0
    d2h_bytes_per_s: BytesPerSecond = 0
    h2d_bytes_per_s: BytesPerSecond = 0
    latency_us: Microseconds = 0.0
    duplex: bool = True

    def copy_ns(self, size: int, *, out: bool) -> int:
        """Nanoseconds to move `size` bytes out of HBM (`out`) or back; the path must exist."""
        bandwidth = Fraction(self.d2h_bytes_per_s if out else self.h2d_bytes_per_s)
        return ns(self.latency_us) - (-size * 10**9 * bandwidth.denominator // bandwidth.numerator)


class Links(msgspec.Struct, frozen=True, kw_only=True):
    d2h_bytes_per_s: BytesPerSecond = 0
    h2d_bytes_per_s: BytesPerSecond = 0
    latency_us: Microseconds = 0.0
    duplex: bool = True
    tiers: tuple[Tier, ...] = ()


class Device(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    hbm_bytes: Bytes = 0
    base_bytes: Bytes = 0
    host_bytes: Bytes = 0
    links: Links = Links()

    @property
    def tiers(self) -> dict[str, Tier]:
        """All tiers by name: the listed ones, and `host` of the flat form unless it is listed."""
        tiers = {tier.name: tier for tier in self.links.tiers}
        if "host" not in tiers:
            flat = self.links
            tiers["host"] = Tier(
                name="host",
                bytes=self.host_bytes,
                d2h_bytes_per_s=flat.d2h_bytes_per_s,
                h2d_bytes_per_s=flat.h2d_bytes_per_s,
                latency_us=flat.latency_us,
                duplex=flat.duplex,
            )
        return tiers


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One launched kernel. `saves` and `loads` are the hooks that an eager adapter has to go by: the storages
    that autograd keeps for backward right after this operator, and fetches right before it, in order of the
    calls (a storage kept twice stands there twice).

    `inputs`: how many of `shapes` and `dtypes`, from the first on, are tensors that go in; the others come out. None:
    the source does not say which is which. `predicted`: how a cost model came to the duration; "" where it was
    measured (docs/reference/cost.md). `interval_us`: where the duration lies with probability 0.9, if it was predicted
    and something is known of that; left out of the document otherwise."""

    reads: tuple[Index, ...] = ()
    writes: tuple[Index, ...] = ()
    duration_us: Microseconds
    name: str = ""
    type: str = ""
    stream: str = COMPUTE
    start_us: Timestamp = 0.0
    workspace_bytes: Bytes = 0
    layer: str = ""
    phase: Phase = "other"
    shapes: tuple[tuple[Count, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    inputs: Count | None = None
    recomputable: bool = True
    micro_batch: int | None = None
    stage: int | None = None
    saves: tuple[Index, ...] = ()
    loads: tuple[Index, ...] = ()
    predicted: Literal["", "seen", "learned", "roofline", "shared", "scaled"] = ""
    interval_us: tuple[Microseconds, Microseconds] | UnsetType = UNSET

    @property
    def accesses(self) -> set[int]:
        """Storages that the operator reads or writes."""
        return {*self.reads, *self.writes}


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One device allocation. `window` is [a, b]: the adapter that will apply the plan can keep the storage off
    HBM only between operators a (it leaves after a or later) and b (it is back before b or earlier); absent: an
    adapter whose `moves` is ``window`` does not move it, any other does anywhere. What is dropped to be made again
    goes by the adapter's `recompute` alone."""

    id: Index
    bytes: Bytes
    name: str = ""
    kind: Kind = "other"
    resident_at_start: bool = False
    resident_at_end: bool = False
    offloadable: bool = True
    certainty: Certainty | None = None
    part_of: Index | None = None
    steps_observed: Count = 0
    steps_accessed: Count = 0
    window: tuple[Index, Index] | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the source itself measured. `excludes`: storage kinds that `peak_bytes` leaves out."""

    step_us: Microseconds = 0.0
    step_us_spread: Microseconds = 0.0
    peak_bytes: Bytes = 0
    reserved_bytes: Bytes = 0
    external_bytes: Bytes = 0
    excludes: tuple[Kind, ...] = ()


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """What will apply the plan, and what it can do: the solver plans within it.

    `moves`: ``any`` storage and position; ``window``, within each storage's `window` only, and, where operators
    name `saves` and `loads`, only at such calls; or ``none``.
    `recompute`: single operators (``operator``); all that a layer's forward leaves behind, by running again what it
    is made from (``layer``, a compiler that leaves out the rest) or the whole layer (``cell``); or ``none``.
    """

    name: str = ""
    mode: str = ""
    moves: Literal["any", "window", "none"] = "any"
    recompute: Literal["operator", "layer", "cell", "none"] = "operator"


class Profile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    operators: tuple[Operator, ...]
    storages: tuple[Storage, ...]
    format: str = f"{FAMILY}/{MAJOR}"
    run: Run = Run()
    device: Device = Device()
    measured: Measured | None = None
    adapter: Adapter = Adapter()

    @cached_property
    def by_id(self) -> dict[int, Storage]:
        return {storage.id: storage for storage in self.storages}

    @cached_property
    def digest(self) -> str:
        """sha256 of the canonical document: the same for any compression or spelling of the file.

        Through the decoder once more, so that a time given as 10 in Python and one read as 10.0 are the same.
        """
        return sha256(canonical(msgspec.json.decode(canonical(self), type=Profile)))

    @cached_property
    def program_digest(self) -> str:
        """sha256 of the operator/storage structure alone: ranks that run the same program share it.

        Idle operators count: a plan's positions, and those in the store, are only as good as this digest.
        """
        storages = [(*_structure(s), s.window) for s in self.storages]
        return sha256(msgspec.json.encode([[_kernel(o) for o in self.operators], storages]))

    @cached_property
    def structure_digest(self) -> str:
        """As `program_digest`, without what differs between two captures of the same code: idle time, and the
        windows, which count operators."""
        operators = [_kernel(o) for o in self.operators if o.type != IDLE]
        return sha256(msgspec.json.encode([operators, [_structure(s) for s in self.storages]]))

    @property
    def timing_only(self) -> bool:
        """Durations without storages: fit for the cost model, not for planning."""
        return not self.storages


def _kernel(o: Operator) -> tuple[object, ...]:
    return (o.name, o.type, o.stream, o.reads, o.writes, o.workspace_bytes, o.shapes, o.dtypes, o.recomputable)


def _structure(s: Storage) -> tuple[object, ...]:
    return (s.id, s.bytes, s.kind, s.resident_at_start, s.resident_at_end, s.offloadable, s.part_of)


def load(data: bytes, limit: int = MAX_DOCUMENT_BYTES) -> tuple[Profile, list[str]]:
    """A checked profile from document bytes (plain, gzip or zstd; at most `limit` when unpacked), and warnings.

    Raises `DocumentError` naming field, place and remedy.
    """
    profile, warnings = decode(data, Profile, FAMILY, MAJOR, limit)
    check(profile)
    return profile, warnings


def check(profile: Profile) -> None:
    """Raises `DocumentError` at the first place where the profile contradicts itself."""
    _check_storages(profile)
    _check_accesses(profile)
    _check_tiers(profile.device)
    _check_copies(profile)


def _check_tiers(device: Device) -> None:
    links = device.links
    names = [tier.name for tier in links.tiers]
    flat = (device.host_bytes, links.d2h_bytes_per_s, links.h2d_bytes_per_s)
    for i, (name, tier) in enumerate(zip(names, links.tiers, strict=True)):
        field = f"$.device.links.tiers[{i}].name"
        if name in names[:i]:
            raise DocumentError(field, f"tier {name!r} is given twice", "give each tier once")
        if name == "hbm":
            raise DocumentError(field, "'hbm' is the fast memory itself", "give it as device.hbm_bytes")
        listed = (tier.bytes, tier.d2h_bytes_per_s, tier.h2d_bytes_per_s)
        if name == "host" and any(figure and figure != here for figure, here in zip(flat, listed, strict=True)):
            problem = "tier 'host' is also given by device.host_bytes and device.links, with other figures"
            raise DocumentError(field, problem, "give it in one of the two places")


def _check_copies(profile: Profile) -> None:
    """Every path that is there must bring the largest storage over within `LONGEST_COPY_NS`."""
    largest = max((s for s in profile.storages if s.offloadable), key=lambda s: s.bytes, default=None)
    if largest is None:
        return
    listed = {tier.name: f"$.device.links.tiers[{i}]" for i, tier in enumerate(profile.device.links.tiers)}
    for name, tier in profile.device.tiers.items():
        for field, out in (("d2h_bytes_per_s", True), ("h2d_bytes_per_s", False)):
            bandwidth = getattr(tier, field)
            if not bandwidth or tier.copy_ns(largest.bytes, out=out) <= LONGEST_COPY_NS:
                continue
            late = ns(tier.latency_us) > LONGEST_COPY_NS // 2
            problem = (
                f"tier {name!r}: a copy of storage {largest.id}, {largest.bytes} bytes, would take more than 2^53 ns "
                f"(104 days) at {bandwidth:g} bytes/s and {tier.latency_us:g} us of latency"
            )
            remedy = "give microseconds" if late else "give bytes per second, or 0 where there is no such path"
            at = listed.get(name, "$.device.links")
            raise DocumentError(f"{at}.{'latency_us' if late else field}", problem, remedy)


def _check_storages(profile: Profile) -> None:
    seen: dict[int, int] = {}
    for i, storage in enumerate(profile.storages):
        if storage.id in seen:
            problem = f"storage {storage.id} is also $.storages[{seen[storage.id]}]"
            raise DocumentError(f"$.storages[{i}].id", problem, "give each storage one id of its own")
        seen[storage.id] = i
        if storage.steps_accessed > storage.steps_observed:
            problem = f"{storage.steps_accessed} is more than steps_observed {storage.steps_observed}"
            raise DocumentError(f"$.storages[{i}].steps_accessed", problem, "count each observed step once")
        if storage.window is not None and not storage.window[0] < storage.window[1] < max(len(profile.operators), 1):
            problem = f"{list(storage.window)} is not an ordered pair of operators"
            raise DocumentError(f"$.storages[{i}].window", problem, f"use 0 <= a < b < {len(profile.operators)}")
    for i, storage in enumerate(profile.storages):
        if storage.part_of is not None and storage.part_of not in seen:
            raise DocumentError(f"$.storages[{i}].part_of", f"no storage {storage.part_of}", "name an existing storage")
    wholes = {storage.id: storage.part_of for storage in profile.storages}
    sound: set[int | None] = {None}
    for i, storage in enumerate(profile.storages):
        walked: set[int | None] = set()
        at: int | None = storage.id
        while at is not None and at not in sound:
            if at in walked:
                remedy = "name the larger storage that it is a piece of"
                raise DocumentError(f"$.storages[{i}].part_of", f"storage {storage.id} is part of itself", remedy)
            walked.add(at)
            at = wholes[at]
        sound |= walked


def _check_accesses(profile: Profile) -> None:
    by_id = profile.by_id
    exists = {storage.id for storage in profile.storages if storage.resident_at_start}
    for i, operator in enumerate(profile.operators):
        for field, ids in (
            ("reads", operator.reads),
            ("writes", operator.writes),
            ("saves", operator.saves),
            ("loads", operator.loads),
        ):
            for j, id in enumerate(ids):
                if id not in by_id:
                    raise DocumentError(f"$.operators[{i}].{field}[{j}]", f"no storage {id}", "list it under storages")
        for j, id in enumerate(operator.reads):
            if id not in exists:
                problem = f"reads storage {id}, which nothing has written before"
                remedy = "list the operator that writes it earlier, or set resident_at_start"
                raise DocumentError(f"$.operators[{i}].reads[{j}]", problem, remedy)
        exists.update(operator.writes)
        if len(operator.dtypes) != len(operator.shapes):
            problem = f"{len(operator.dtypes)} element types of {len(operator.shapes)} shapes"
            remedy = "give one for each shape, in the same order"
            raise DocumentError(f"$.operators[{i}].dtypes", problem, remedy)
        if operator.inputs is not None and operator.inputs > len(operator.shapes):
            problem = f"{operator.inputs} tensors go in, of {len(operator.shapes)} shapes"
            remedy = "count those of `shapes` that go in, from the first on, or leave it out where that is not known"
            raise DocumentError(f"$.operators[{i}].inputs", problem, remedy)
        between = operator.interval_us
        if not isinstance(between, UnsetType) and between[0] > between[1]:
            raise DocumentError(f"$.operators[{i}].interval_us", f"{list(between)} ends before it begins", "order it")
        if operator.type == IDLE and (operator.reads or operator.writes or operator.stream != COMPUTE):
            problem = "idle time has no accesses and stands on the compute stream"
            raise DocumentError(f"$.operators[{i}].type", problem, "give the operator its own type")
    for i, storage in enumerate(profile.storages):
        if storage.resident_at_end and storage.id not in exists:
            problem = f"storage {storage.id} is never written and not resident at the start"
            raise DocumentError(f"$.storages[{i}].resident_at_end", problem, "set resident_at_start, or false here")
