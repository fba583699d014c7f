"""Execution traces: PyTorch's observer (JSON), with device times as Chakra's linker adds them, and Chakra's own
files (.et, protocol buffers) -> a profile with recorded accesses.

What is an operator of the profile, by what the trace has::

    kernels (linked trace)     each kernel, with the tensors of the operator that launched it (inferred)
    operators of the host      those that call no other one (measured); views touch no memory and are left out

A storage's number is used again after it has been freed: where it comes out of an operator that did not get it, a new
storage begins. Frees are not recorded: a storage ends with its last access.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from msgspec import structs

from hyperopt.profile import COMPUTE, IDLE, Certainty, Device, Measured, Operator, Profile, Run, Storage, check, ns
from profiler.read.findings import Findings, UnreadableError
from profiler.read.ranks import RankFiles, Source
from profiler.read.timeline.lanes import lanes
from profiler.read.torch.json_stream import JsonStream, head_of
from profiler.read.torch.protobuf_wire import WireError, messages
from profiler.read.torch.residents import busiest_first, in_order, read_before_written
from profiler.read.torch.tensor_nodes import LARGEST, Node, Tensor, from_json, from_message

HEAD = 64 << 10
MAX_STEP_US = 1e12
MAX_FILE = 2 << 30
"""Bytes of a .et file, which is read whole."""


def find(path: Path) -> list[RankFiles]:
    """The file, if it is an execution trace."""
    if not path.is_file() or not (_is_json(path) or _is_messages(path)):
        return []
    named = re.search(r"(?:rank|host|chakra|et)[._-]?(\d{1,6})(?!\d)", path.name)
    return [RankFiles(path, int(named[1]) if named else None)]


def _is_json(path: Path) -> bool:
    if not path.name.endswith((".json", ".json.gz")):
        return False
    head = head_of(path, HEAD)
    told = b"chakra" in head or b'"ctrl_deps"' in head or b"execution_trace" in head or b"execution_graph" in head
    return head.lstrip().startswith(b"{") and b'"nodes"' in head and told


def _is_messages(path: Path) -> bool:
    """A Chakra file begins with the metadata message, whose attributes are its first field."""
    head = head_of(path, 32) if path.suffix == ".et" else b""
    return bool(re.match(rb"([\x01-\x7f]|[\x80-\xff]{1,3}[\x00-\x7f])(\x0a|\x08)", head)) or head[:1] == b"\x00"


def read(files: RankFiles, findings: Findings) -> Profile:
    """The profile of one trace. Raises `UnreadableError` where it has no operators."""
    path = files.path
    nodes = _from_messages(path, findings) if path.suffix == ".et" else _from_json(path, findings)
    chosen, certainty = _operators_among(nodes, findings)
    if not chosen:
        raise UnreadableError(f"{path.name} has no operators: was the observer started before the step?")
    storages = _Storages(_device_of(chosen, findings))
    operators = _built(chosen, storages, findings)
    step_us = _step_us(chosen)
    if step_us is not None and step_us > MAX_STEP_US:
        raise UnreadableError(f"the operators of {path.name} are {step_us:.3g} us apart: no step takes that long")
    if step_us is not None:
        operators = _with_idle(_as_the_times_allow(operators, findings), step_us)
    if sum(storages.sizes) > LARGEST:
        raise UnreadableError(f"the storages of {path.name} add up to more than {LARGEST:,} bytes")
    before = read_before_written(operators)
    if not storages.sizes:
        findings.lacks("storages: the nodes of this trace name no tensors")
    findings.lacks("frees: a storage is taken to end with its last access")
    profile = Profile(
        run=Run(framework="torch", rank=files.rank or 0, world_size=(files.rank or 0) + 1, source=SOURCE.kind),
        device=Device(name=storages.device, host_bytes=sum(storages.sizes)),
        operators=tuple(operators),
        storages=tuple(
            Storage(
                id=id,
                bytes=size,
                name=storages.names[id],
                kind="other" if id in before else "activation",
                resident_at_start=id in before,
                resident_at_end=id in before,
                certainty=certainty,
            )
            for id, size in enumerate(storages.sizes)
        ),
        measured=Measured(step_us=step_us) if step_us is not None else None,
    )
    check(profile)
    return profile


def _from_json(path: Path, findings: Findings) -> list[Node]:
    stream = JsonStream(path, findings)
    found = [from_json(element) if isinstance(element, dict) else None for element in stream.elements("nodes")]
    nodes = [node for node in found if node is not None]
    if not nodes and stream.damage:
        raise stream.but("nodes that can be read")
    findings.drop(path, "nodes without a number or a name", len(found) - len(nodes))
    return nodes


def _from_messages(path: Path, findings: Findings) -> list[Node]:
    if path.stat().st_size > MAX_FILE:
        raise UnreadableError(f"{path.name} is larger than {MAX_FILE:,} bytes")
    nodes: list[Node] = []
    others = bad = 0
    try:
        for place, message in enumerate(messages(path.read_bytes())):
            try:
                node = from_message(message) if place else None  # the first one is about the file
            except WireError:
                bad += 1
                continue
            if node is not None:
                nodes.append(node)
            elif place:
                others += 1
    except WireError as error:
        findings.warn(f"{findings.name(path)} is damaged ({error}): the {len(nodes)} nodes before are read")
    findings.drop(path, "messages that are no nodes", bad)
    findings.drop(path, "nodes that are no operators", others)
    return nodes


def _operators_among(nodes: list[Node], findings: Findings) -> tuple[list[Node], Certainty]:
    """Those that become operators, in order, and how sure their accesses are."""
    kernels = [node for node in nodes if node.on_device]
    if kernels:
        return _ordered(kernels), "inferred"
    operators = [node for node in nodes if node.is_operator]
    parents = {node.parent for node in operators}
    inner = [node for node in operators if node.id not in parents]
    views = [node for node in inner if _is_view(node)]
    if views:
        findings.warn(f"{len(views)} operators only view a storage: left out")
    left_out = {node.id for node in views}
    return _ordered([node for node in inner if node.id not in left_out]), "measured"


def _is_view(node: Node) -> bool:
    """What comes out has gone in, and the schema says that nothing is changed."""
    went_in = {tensor.storage for tensor in node.inputs}
    return (
        node.in_place is False
        and bool(node.outputs)
        and all(tensor.storage in went_in for tensor in node.outputs)
        and node.kind == "compute"
    )


def _ordered(nodes: list[Node]) -> list[Node]:
    """By start where every node has one, else by number, which is given when an operator begins."""
    if all(node.start_ns is not None for node in nodes):
        return sorted(nodes, key=lambda node: (node.start_ns or 0, node.id))
    return sorted(nodes, key=lambda node: node.id)


def _device_of(nodes: Iterable[Node], findings: Findings) -> str:
    """The device with most bytes of tensors; the host only where there is no other."""
    sizes: Counter[str] = Counter()
    for node in nodes:
        for tensor in (*node.inputs, *node.outputs):
            sizes[tensor.device] += tensor.bytes
    ranked = sorted((device for device in sizes if device), key=lambda device: (device == "cpu", -sizes[device]))
    others = [device for device in ranked[1:] if device != "cpu"]
    if others:
        findings.warn(f"tensors on {', '.join(others[:4])} too: only those on {ranked[0]} are taken")
    return ranked[0] if ranked else ""


@dataclass
class _Storages:
    """Numbers of a trace's storages -> storages of the profile, on one device."""

    device: str
    sizes: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    now: dict[int, int] = field(default_factory=dict)
    """Number in the trace -> the storage that has it now."""
    maker: dict[int, int] = field(default_factory=dict)
    """Storage -> the operator of the host that it came out of first."""

    def here(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        return [tensor for tensor in tensors if tensor.device == self.device]

    def of(self, tensor: Tensor) -> int:
        id = self.now.get(tensor.storage)
        if id is None:
            id = self._new(tensor)
        self.sizes[id] = max(self.sizes[id], tensor.bytes)
        return id

    def made(self, tensor: Tensor, maker: int) -> int:
        """The storage of what comes out of `maker` without having gone in."""
        id = self.now.get(tensor.storage)
        if id is None or self.maker.get(id) != maker:
            id = self._new(tensor)
            self.maker[id] = maker
        return self.of(tensor)

    def _new(self, tensor: Tensor) -> int:
        id = self.now[tensor.storage] = len(self.sizes)
        self.sizes.append(0)
        self.names.append(f"storage {tensor.storage}")
        return id


def _built(nodes: list[Node], storages: _Storages, findings: Findings) -> list[Operator]:
    timed = sum(node.duration_ns is not None for node in nodes)
    if timed < len(nodes):
        findings.lacks(f"durations of {len(nodes) - timed} of {len(nodes)} operators: 0 stands for them")
    streams = busiest_first([(n.stream, n.duration_ns or 0) for n in nodes if n.kind != "communication"])
    names = {stream: COMPUTE if not place else stream or "other" for place, stream in enumerate(streams)}
    first = min((node.start_ns for node in nodes if node.start_ns is not None), default=0)
    operators = []
    for node in nodes:
        went_in = {tensor.storage for tensor in node.inputs}
        reads = [storages.of(tensor) for tensor in storages.here(node.inputs)]
        outputs = storages.here(node.outputs)
        maker = node.parent if node.on_device else node.id
        writes = [
            storages.of(tensor) if tensor.storage in went_in else storages.made(tensor, maker)
            for tensor in outputs
            if tensor.storage not in went_in or node.in_place is not False
        ]
        operators.append(
            Operator(
                name=node.name,
                type=node.name,
                stream="communication" if node.kind == "communication" else names[node.stream],
                start_us=0.0 if node.start_ns is None else (node.start_ns - first) / 1000,
                duration_us=(node.duration_ns or 0) / 1000,
                reads=in_order(reads),
                writes=in_order(writes),
                shapes=node.shapes,
                dtypes=node.dtypes,
                inputs=node.shaped_inputs,
                recomputable=node.kind == "compute" and not set(reads) & set(writes),
            )
        )
    return operators


def _step_us(nodes: list[Node]) -> float | None:
    """From the first start to the last end; None where these are not known of every operator."""
    spans = [(n.start_ns, n.duration_ns) for n in nodes if n.start_ns is not None and n.duration_ns is not None]
    if len(spans) < len(nodes):
        return None
    return (max(start + duration for start, duration in spans) - min(start for start, _ in spans)) / 1000


def _as_the_times_allow(operators: list[Operator], findings: Findings) -> list[Operator]:
    """Without accesses that cannot have been: of a storage that an operator before was still writing, or, to write
    it, was still using. Operators of one host call take its tensors all alike, and some overlap."""
    written: dict[int, int] = {}
    used: dict[int, int] = {}
    kept: list[Operator] = []
    lost = 0
    for operator in operators:
        start = ns(operator.start_us)
        end = start + ns(operator.duration_us)
        writes = tuple(id for id in operator.writes if used.get(id, 0) <= start)
        reads = tuple(id for id in operator.reads if written.get(id, 0) <= start)
        lost += len(operator.writes) - len(writes) + len(operator.reads) - len(reads)
        kept.append(structs.replace(operator, reads=reads, writes=writes))
        for id in writes:
            written[id] = max(written.get(id, 0), end)
        for id in (*reads, *writes):
            used[id] = max(used.get(id, 0), end)
    if lost:
        findings.warn(f"{lost} accesses of operators that overlap what they would have to wait for: left out")
    return kept


def _with_idle(operators: list[Operator], step_us: float) -> list[Operator]:
    """With idle operators where nothing else explains the time, so that replay gives the step as it was."""
    columns = {
        "stream": [operator.stream for operator in operators],
        "start": [ns(operator.start_us) for operator in operators],
        "duration": [ns(operator.duration_us) for operator in operators],
    }
    return [
        structs.replace(operators[lane.kernel], stream=lane.stream)
        if lane.kernel >= 0
        else Operator(
            name=f"idle-{place}",
            type=IDLE,
            start_us=lane.start / 1000,
            duration_us=lane.duration / 1000,
            recomputable=False,
        )
        for place, lane in enumerate(lanes(pl.DataFrame(columns), 0, ns(step_us)))
    ]


SOURCE = Source(
    kind="chakra",
    about="execution trace of PyTorch or Chakra (.json, .json.gz, .et)",
    find=find,
    read=read,
)
