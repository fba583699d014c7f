"""HyperOffload's activation trace in JSON -> a profile, without anything inferred.

The trace of one warm-up step: operators in order with their duration (milliseconds) and the storages they read and
write, sizes, what stays at the end, and the bandwidths measured then. Its field names say ``gbps`` and its figures are
GiB/s::

    {"ops": [{"name": "mm", "duration_ms": 0.8, "accesses": [{"op_id": 0, "storage_id": 7, "kind": "WRITE"}]}],
     "storage_sizes": {"7": 1024}, "retained_sids": [7], "memory_limit_bytes": null,
     "d2h_bandwidth_gbps": 16.0, "h2d_bandwidth_gbps": 16.0}

What the framework holds besides (parameters that no operator was seen to touch, optimizer states) is not in it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from hyperopt.profile import Device, Links, Measured, Operator, Profile, Run, Storage, check
from profiler.read.findings import KEPT_PLACES, Findings, UnreadableError
from profiler.read.labels import label
from profiler.read.ranks import RankFiles, Source
from profiler.read.torch.json_stream import JsonStream, head_of
from profiler.read.torch.residents import in_order, read_before_written

HEAD = 64 << 10

KINDS = {"read": "r", "write": "w", "1": "r", "2": "w", "r": "r", "w": "w", "readwrite": "rw", "read_write": "rw"}
"""Ways to write the kind of an access: the member's name, with its class or without, or its value."""

DEFAULT_GIB_PER_S = 16.0
"""HyperOffload's own, where the trace gives no bandwidth that can be."""

GIB = 1 << 30
LARGEST = 2**53
LARGEST_ID = 2**31
MAX_STEP_MS = 1e12

BANDWIDTHS = ("d2h_bandwidth_gbps", "h2d_bandwidth_gbps")
HEADER = ("accesses", "storage_sizes", "retained_sids", "memory_limit_bytes", *BANDWIDTHS)


def find(path: Path) -> list[RankFiles]:
    """The file, if its first bytes have the fields of such a trace."""
    if not path.name.endswith((".json", ".json.gz")) or not path.is_file():
        return []
    head = head_of(path, HEAD)
    fields = b'"storage_sizes"' in head or (b'"accesses"' in head and b'"storage_id"' in head)
    if not head.lstrip().startswith(b"{") or not fields:
        return []
    named = re.search(r"rank[_-]?(\d{1,6})(?!\d)", path.name)
    return [RankFiles(path, int(named[1]) if named else None)]


def read(files: RankFiles, findings: Findings) -> Profile:
    """The profile of one trace. Raises `UnreadableError` where it has no operators or no sizes."""
    stream = JsonStream(files.path, findings, keep=HEADER)
    ops = [element if isinstance(element, dict) else {} for element in stream.elements("ops")]
    header = stream.header
    if not ops:
        raise stream.but("operators (ops)")
    if not isinstance(header.get("storage_sizes"), dict):
        raise stream.but("storage_sizes, without which nothing can be planned")
    beside = header.get("accesses")
    if beside:
        findings.lacks("accesses that stand beside the ops: only those inside each op are read")
        findings.drop(files.path, "accesses beside the ops", len(beside) if isinstance(beside, list | dict) else 1)
    sizes = _sizes(header["storage_sizes"], files.path, findings)
    operators = _operators(ops, sizes, files.path, findings)
    retained = _retained(header.get("retained_sids"), sizes)
    storages = _storages(operators, sizes, retained, findings)
    limit = _number(header.get("memory_limit_bytes"))
    profile = Profile(
        run=Run(
            framework="hyper_parallel",
            rank=files.rank or 0,
            world_size=(files.rank or 0) + 1,
            source=SOURCE.kind,
            notes=("activations as HyperOffload saw them in its warm-up step: what it did not see is not in it",),
        ),
        device=Device(
            hbm_bytes=int(limit) if limit is not None and 0 < limit <= LARGEST else 0,
            host_bytes=min(sum(storage.bytes for storage in storages), LARGEST),
            links=Links(
                d2h_bytes_per_s=_bandwidth(header, "d2h_bandwidth_gbps", findings),
                h2d_bytes_per_s=_bandwidth(header, "h2d_bandwidth_gbps", findings),
            ),
        ),
        operators=tuple(operators),
        storages=tuple(storages),
        measured=Measured(step_us=sum(operator.duration_us for operator in operators)),
    )
    check(profile)
    return profile


def _number(value: object) -> float | None:
    """A finite number, given as one or as the text that `JsonStream` makes of those with a point."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _id(value: object) -> int | None:
    """A storage's id; JSON makes text of those that are keys."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,10}", value):
        value = int(value)
    return value if type(value) is int and 0 <= value <= LARGEST_ID else None


def _sizes(given: dict[str, Any], path: Path, findings: Findings) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for key, value in given.items():
        id = _id(key)
        if id is not None and type(value) is int and 0 <= value <= LARGEST:
            sizes[id] = value
    findings.drop(path, "storage_sizes that are no id with bytes", len(given) - len(sizes))
    if sum(sizes.values()) > LARGEST:
        raise UnreadableError(f"the storages of {path.name} add up to more than {LARGEST:,} bytes")
    return sizes


def _retained(given: object, sizes: dict[int, int]) -> set[int]:
    listed = given if isinstance(given, list) else []
    return {id for id in map(_id, listed) if id is not None and id in sizes}


def _operators(ops: list[dict[str, Any]], sizes: dict[int, int], path: Path, findings: Findings) -> list[Operator]:
    """All of them: positions count in HyperOffload's plans. What is wrong in one is left out of it."""
    lost: Counter[str] = Counter()
    untimed: list[int] = []
    operators: list[Operator] = []
    now = 0.0
    for place, op in enumerate(ops, 1):
        duration = _number(op.get("duration_ms"))
        if duration is None or not 0 <= duration <= MAX_STEP_MS:
            untimed.append(place)
            duration = 0.0
        reads, writes = _accesses(op.get("accesses"), place - 1, sizes, lost)
        name = label(op.get("name"))
        operators.append(
            Operator(name=name, type=name, start_us=now, duration_us=duration * 1000, reads=reads, writes=writes)
        )
        now += duration * 1000
    findings.drop(path, "durations that are none, taken as 0", len(untimed), tuple(untimed[:KEPT_PLACES]))
    for why, count in sorted(lost.items()):
        findings.drop(path, why, count)
    if not any(operator.duration_us for operator in operators):
        findings.lacks("durations: the trace has none")
    if now > MAX_STEP_MS:
        raise UnreadableError(f"the durations of {path.name} add up to {now:.3g} us: no step takes that long")
    return operators


def _accesses(
    given: object, place: int, sizes: dict[int, int], lost: Counter[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    reads: list[int] = []
    writes: list[int] = []
    for access in given if isinstance(given, list) else []:
        op, storage, kind = _fields(access)
        id, way = _id(storage), KINDS.get(str(kind).rpartition(".")[2].lower() if isinstance(kind, str | int) else "")
        if id is None or way is None:
            lost["accesses without a storage or a kind"] += 1
        elif id not in sizes:
            lost["accesses of storages without a size"] += 1
        else:
            if type(op) is int and op != place:
                lost["accesses kept at the operator they stand at, though op_id says another"] += 1
            reads += [id] if "r" in way else []
            writes += [id] if "w" in way else []
    return in_order(reads), in_order(writes)


def _fields(access: object) -> tuple[object, object, object]:
    """(op_id, storage_id, kind) of an access written as an object or as a list."""
    if isinstance(access, dict):
        op, storage = access.get("op_id"), access.get("storage_id")
        kind = access.get("kind", access.get("access_kind", access.get("type")))
    elif isinstance(access, list) and len(access) == 3:
        op, storage, kind = access
    else:
        return None, None, None
    return op, storage, kind.get("name", kind.get("value")) if isinstance(kind, dict) else kind


def _storages(
    operators: list[Operator], sizes: dict[int, int], retained: set[int], findings: Findings
) -> list[Storage]:
    """In order of their first access. What is read first is somebody else's, and so still there at the end."""
    touched = in_order(id for operator in operators for id in (*operator.reads, *operator.writes))
    before = read_before_written(operators)
    kept = retained - set(touched)
    idle = [id for id in sizes if id in kept]
    unseen = len(sizes) - len(touched) - len(idle)
    if unseen:
        findings.warn(f"{unseen} storages have a size, and no operator touches them: left out")
    return [
        Storage(
            id=id,
            bytes=sizes[id],
            name=f"storage {id}",
            kind="other" if id in before or id in idle else "activation",
            resident_at_start=id in before or id in idle,
            resident_at_end=id in before or id in retained,
            certainty="measured" if id not in idle else "unknown",
        )
        for id in (*touched, *idle)
    ]


def _bandwidth(header: dict[str, Any], field: str, findings: Findings) -> int:
    """Bytes per second."""
    given = _number(header.get(field))
    if given is None or not 0 < given < LARGEST / GIB:
        findings.warn(
            f"{field} is missing or no bandwidth: HyperOffload's default of {DEFAULT_GIB_PER_S:g} GiB/s it is"
        )
        given = DEFAULT_GIB_PER_S
    findings.normalised(f"{field} is GiB/s, in spite of its name")
    return round(given * GIB)


SOURCE = Source(
    kind="hyper_offload",
    about="HyperOffload's ActivationTrace as JSON",
    find=find,
    read=read,
)
