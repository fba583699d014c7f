"""MindSpore's actor-set dump -> the kernels of a compiled graph and what they pass to each other.

The dump (``actor_set/0_actor_set*_kernel_graph_N.ir``, written while ``save_graphs`` is on) is
what MindSpore's runtime itself works from: per kernel the byte size of every output and
workspace, which inputs come from which kernel or stored tensor, which outputs share memory
with an input (``ref index``), and which kernels are never launched. It is indented text::

    [Device tensor stores]
            device tensor key:embedding  backend node name:embedding  value size:1
                device tensor value:0x55  ptr:0x55  size:98304  stream id:0 ...
    [Kernel actors:769]
        actor_name:17_Default/.../Split-op0  actor_id:20
            kernel_name:Default/.../Split-op0  stream id:0  inputs_num:3 ... is_launch_skipped:0
                output_index:0  ptr:0  size:786432 ...
                workspace_index:0  ptr:0  size:16 ...
            device_tensor_store_keys:1
                to_input_index:1  from_node_name:Default/.../data-1, debug_name: ValueNode<Int64Imm> 3
            input_control_arrow_actors:1
                from_actor_name:11_Default/.../MatMul-op1
            input_data_arrow_actors:1
                from_actor_name:16_Default/.../Transpose-op0  from_output_index:0  to_input_index:0
                ref index:(0, 0)
            modifiable_ref_input_indexes:1
                modifiable_ref_input_index:0

A second file of the folder (``final_actor_set*.ir``) has shapes and types. Seen with
MindSpore 2.9; the format is undocumented, so whatever is missing is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SECTION = re.compile(r"^\[(.+?)(?::\d+)?\]")
ACTOR = re.compile(r"^\s*actor_name:(\S+)\s+actor_id:\d+")
KERNEL = re.compile(r"^\s*kernel_name:(\S+)\s.*\binputs_num:(\d+)\s.*\bis_launch_skipped:([01])")
SIZED = re.compile(r"^\s*(output|workspace)_index:(\d+)\s+ptr:\S+\s+size:(\d+)")
STORED = re.compile(r"^\s*to_input_index:(\d+)\s+from_node_name:([^,]+), debug_name: (.*)$")
ARROW = re.compile(r"^\s*from_actor_name:(\S+)\s+from_output_index:(\d+)\s+to_input_index:(\d+)")
CONTROL = re.compile(r"^\s*from_actor_name:\d+_(\S+)\s*$")
REF = re.compile(r"\bref index:\((\d+), (\d+)\)")
STORE_KEY = re.compile(r"^\s*device tensor key:(.*?)\s+(?:backend node name|value size):")
STORE_SIZE = re.compile(r"^\s*device tensor value:\S+\s+ptr:\S+\s+size:(\d+)")
HOST_ARROW = re.compile(
    r"^\s*from_output_node:(\S+)\s+from_output_index:\d+\s+to_actor_name:\d+_(\S+)\s+to_input_index:(\d+)"
)
HOST_NODE = re.compile(r"^\s*node_order_number:(\d+)\s+node_name:(\S+)\s.*\bsize:(\d+)")

UPDATED = re.compile(r"^\s*modifiable_ref_input_index:(\d+)")
SHAPE = re.compile(r"<\(([\d, ]*)\)>|<[^<>]*>")
TENSOR = re.compile(r"Tensor\[(\w+)\]")
AID = re.compile(r"^\s*# AID : \d+_(\S+)")

FOREIGN_SECTIONS = frozenset({"Super kernel actors", "Any Type kernel actors", "Fusion actors", "Copy actors"})


class ActorSetError(ValueError):
    """A dump that does not read as an actor set, or holds actors that cannot be understood."""


@dataclass(frozen=True, order=True)
class Source:
    """Where an input comes from: output ``index`` of a kernel, or a ``stored`` or ``host`` tensor."""

    kind: str
    name: str
    index: int = 0


@dataclass(frozen=True)
class Kernel:
    """One kernel of the graph; sizes in bytes.

    ``inputs`` maps an input's position to its source; ``refs`` maps an output to the input
    whose memory it shares; ``updates`` are the inputs written in place; ``after`` names kernels
    that must end before it starts although it reads nothing of them; ``launched`` is false for
    kernels such as Reshape that the runtime passes over.
    """

    name: str
    launched: bool
    inputs: dict[int, Source]
    outputs: tuple[int, ...]
    workspaces: tuple[int, ...]
    refs: dict[int, int]
    updates: frozenset[int]
    after: frozenset[str]


@dataclass(frozen=True)
class Signature:
    """Shapes and element types (such as ``float32``) of a kernel's tensors: `inputs` of them go in, the others come
    out. None: not known which."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    inputs: int | None = None


@dataclass(frozen=True)
class ActorSet:
    """A compiled graph. ``stored`` and ``host`` give byte sizes of weights, constants and inputs.

    ``constants`` are the stored tensors that are literals of the program, not parameters.
    ``results`` are the outputs that the graph hands to its caller. ``static_memory`` is true
    where memory was planned at compile time (optimisation level O1), so that lifetimes do not
    decide what is in use.
    """

    kernels: tuple[Kernel, ...]
    stored: dict[str, int]
    constants: frozenset[str]
    host: dict[str, int]
    results: frozenset[Source]
    static_memory: bool


@dataclass
class _Draft:
    name: str = ""
    inputs_expected: int = 0
    launched: bool = True
    inputs: dict[int, Source] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)
    workspaces: dict[int, int] = field(default_factory=dict)
    refs: dict[int, int] = field(default_factory=dict)
    updates: set[int] = field(default_factory=set)
    after: set[str] = field(default_factory=set)

    def finished(self) -> Kernel:
        if sorted(self.inputs) != list(range(self.inputs_expected)):
            raise ActorSetError(f"{self.name}: {self.inputs_expected} inputs announced, found {sorted(self.inputs)}")
        return Kernel(
            self.name,
            self.launched,
            dict(sorted(self.inputs.items())),
            tuple(size for _, size in sorted(self.outputs.items())),
            tuple(size for _, size in sorted(self.workspaces.items())),
            self.refs,
            frozenset(self.updates),
            frozenset(self.after),
        )


def read_actor_set(text: str) -> ActorSet:
    """Reads one dump. Raises ``ActorSetError`` when it is cut short or holds unknown actors."""
    sections = _sections(text)
    for name in FOREIGN_SECTIONS & sections.keys():
        if any(ACTOR.match(line) for line in sections[name]):
            raise ActorSetError(f"the graph holds {name}, which this reader does not understand")
    if "Kernel actors" not in sections or "Output actor" not in sections:
        raise ActorSetError("no kernel actors or no output actor: is the dump complete?")
    host_order, host, fed = _host(sections.get("Data source actors", []))
    constants: set[str] = set()
    kernels = _kernels(sections["Kernel actors"], host_order, fed, constants)
    results = frozenset(
        _source(m[1], int(m[2]), host_order) for line in sections["Output actor"] if (m := ARROW.match(line))
    )
    return ActorSet(
        tuple(kernels),
        _stores(sections.get("Device tensor stores", [])),
        frozenset(constants),
        host,
        results,
        any("is_somas_enable:1" in line for line in sections["Kernel actors"]),
    )


def read_signatures(text: str) -> dict[str, Signature]:
    """Kernel name -> shapes and types, from ``final_actor_set*.ir``; scalars and tuples left out."""
    found: dict[str, Signature] = {}
    shapes: list[str] = []
    types: list[str] = []
    inputs = 0
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# shape :"):
            shapes = [m[0] for m in SHAPE.finditer(stripped)]
        elif stripped.startswith("# type :"):
            parts = stripped.partition(" -> ")
            types, made = (re.findall(r"<((?:[^<>]|<[^<>]*>)*)>", part) for part in (parts[0], parts[2]))
            inputs = len(types)
            types += made
        elif match := AID.match(line):
            found[match[1]] = _signature(shapes, types, inputs)
            shapes, types, inputs = [], [], 0
    return found


def _signature(shapes: list[str], types: list[str], inputs: int) -> Signature:
    """Raises ``ActorSetError`` when the two lines do not speak of the same tensors."""
    if len(shapes) != len(types):
        raise ActorSetError(f"{len(shapes)} shapes against {len(types)} types")
    tensors = [
        (tuple(int(n) for n in shape[2:-2].split(",") if n.strip()), match[1].lower(), place < inputs)
        for place, (shape, kind) in enumerate(zip(shapes, types, strict=True))
        if shape.startswith("<(") and (match := TENSOR.search(kind))
    ]
    shaped, kinds = tuple(shape for shape, _, _ in tensors), tuple(dtype for _, dtype, _ in tensors)
    return Signature(shaped, kinds, sum(goes_in for _, _, goes_in in tensors))


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if match := SECTION.match(line):
            lines = sections.setdefault(match[1], [])
        else:
            lines.append(line)
    return sections


def _stores(lines: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    key = ""
    for line in lines:
        if match := STORE_KEY.match(line):
            key = match[1]
        elif match := STORE_SIZE.match(line):
            sizes[key] = int(match[1])
    return sizes


def _host(lines: list[str]) -> tuple[list[str], dict[str, int], dict[tuple[str, int], str]]:
    """Names of the graph's inputs by position, their sizes, and which of them a kernel's input is fed with.

    The kernels' own arrows do not tell: `from_output_index` is 0 for every input of the graph.
    """
    found = [m for line in lines if (m := HOST_NODE.match(line))]
    order = [m[2] for m in sorted(found, key=lambda m: int(m[1]))]
    fed = {(m[2], int(m[3])): m[1] for line in lines if (m := HOST_ARROW.match(line))}
    return order, {m[2]: int(m[3]) for m in found}, fed


def _source(actor: str, index: int, host_order: list[str]) -> Source:
    if actor.endswith("_HostDSActor"):
        return Source("host", host_order[index])
    return Source("kernel", actor.split("_", 1)[1], index)


def _kernels(
    lines: list[str], host_order: list[str], fed: dict[tuple[str, int], str], constants: set[str]
) -> list[Kernel]:
    drafts: list[_Draft] = []
    for line in lines:
        if ACTOR.match(line):
            drafts.append(_Draft())
            continue
        if not drafts:
            continue
        draft = drafts[-1]
        if match := KERNEL.match(line):
            draft.name, draft.inputs_expected = match[1], int(match[2])
            draft.launched = match[3] == "0"
        elif match := SIZED.match(line):
            sizes = draft.outputs if match[1] == "output" else draft.workspaces
            sizes[int(match[2])] = int(match[3])
        elif match := STORED.match(line):
            draft.inputs[int(match[1])] = Source("stored", match[2])
            if match[3].startswith("ValueNode<"):
                constants.add(match[2])
        elif match := ARROW.match(line):
            source = _source(match[1], int(match[2]), host_order)
            if source.kind == "host":
                source = Source("host", fed.get((draft.name, int(match[3])), source.name))
            draft.inputs[int(match[3])] = source
        elif match := CONTROL.match(line):
            draft.after.add(match[1])
        elif match := UPDATED.match(line):
            draft.updates.add(int(match[1]))
        if match := REF.search(line):
            draft.refs[int(match[1])] = int(match[2])
    return [draft.finished() for draft in drafts if draft.name]
