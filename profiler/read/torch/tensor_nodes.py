"""Nodes of execution traces: what ran, and the tensors that went in and out.

A tensor names its storage, so that views and aliases are one::

    [tensor, storage, offset, elements, bytes of an element, device]
    [12,     5,       0,      1024,     4,                   "npu:0"]

JSON (PyTorch's observer, with or without the device's times that Chakra's linker adds) and Chakra's protocol buffers
come to the same `Node`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from profiler.read.labels import label
from profiler.read.torch.protobuf_wire import Value, fields, varint
from profiler.read.torch.shape_text import shape_of
from profiler.read.torch.trace_spans import nanoseconds

MAX_TENSORS = 4096
"""Of one node."""

LARGEST = 2**53
MAX_NS = 10**18
"""Thirty years: what a profile can hold."""

COMMUNICATION_TYPES, MEMORY_TYPES, COMPUTE_TYPE = {5, 6, 7}, {2, 3}, 4
"""Chakra's numbers for types of nodes."""

_WRITTEN_TENSOR = re.compile(
    r"""\[\s*(\d{1,19})\s*,\s*(\d{1,19})\s*,\s*(\d{1,16})\s*,\s*(\d{1,16})\s*,\s*(\d{1,5})\s*,\s*['"]([^'"]{0,40})['"]"""
)


@dataclass(frozen=True)
class Tensor:
    """`bytes`: how far it reaches into its storage."""

    storage: int
    bytes: int
    device: str


@dataclass(frozen=True)
class Node:
    """`parent`: the node that called this one. `on_device`: a kernel; `kind`: "compute", "communication", "copy".
    Times in integer ns; None: not told. `in_place`: whether its schema says it changes an input; None without one."""

    id: int
    name: str
    parent: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    shaped_inputs: int | None = None
    is_operator: bool = True
    in_place: bool | None = None
    on_device: bool = False
    kind: str = "compute"
    stream: str = ""
    start_ns: int | None = None
    duration_ns: int | None = None


def from_json(given: dict[str, Any]) -> Node | None:
    """A node of a JSON trace, of schema 1.0 (flat fields) or later; None where it has no number or name."""
    id = _count(given.get("id"))
    name = label(given.get("name"))
    if id is None or not name:
        return None
    told = given.get("attrs")
    attrs = {
        attr["name"]: attr.get("value")
        for attr in (told if isinstance(told, list) else [])
        if isinstance(attr, dict) and isinstance(attr.get("name"), str)
    }
    inputs, outputs = _side(given, "input"), _side(given, "output")
    schema = attrs.get("op_schema", given.get("op_schema"))
    category = given.get("cat")
    parent = given.get("ctrl_deps", given.get("parent"))
    if isinstance(parent, list):
        parent = parent[0] if parent else None
    stream = given.get("stream")
    # Before schemas were recorded, what is no operator could be told by its brackets and hashes.
    operator = bool(schema) if isinstance(schema, str) else not name.startswith(("[", "#"))
    return Node(
        id=id,
        name=name,
        parent=_count(parent) or 0,
        inputs=tensors(inputs[0]),
        outputs=tensors(outputs[0]),
        **_shapes(inputs, outputs),
        is_operator=operator,
        in_place="!" in schema if isinstance(schema, str) and schema else None,
        on_device=isinstance(category, str) and category not in ("", "cpu_op"),
        kind="copy" if isinstance(category, str) and "mem" in category else kind_of(name),
        stream=f"stream {stream}" if type(stream) is int and 0 <= stream < 2**31 else "",
        start_ns=_time(given.get("ts")),
        duration_ns=_first_time(given, ("exclusive_dur", "dur", "inclusive_dur", "duration_micros")),
    )


def from_message(message: bytes) -> Node | None:
    """A node of a Chakra file; None for metadata and for what has no name. Raises `WireError`."""
    found: dict[int, Value] = {}
    attrs: dict[str, Value] = {}
    parents: list[int] = []
    for number, value in fields(message):
        if number == 10 and isinstance(value, bytes):
            attrs.update(_attribute(value))
        elif number == 4:
            parents += _numbers(value)
        else:
            found[number] = value
    name, kind = label(_text(found.get(2))), found.get(3, 0)
    if not name or kind not in {COMPUTE_TYPE, *COMMUNICATION_TYPES, *MEMORY_TYPES}:
        return None
    inputs, outputs = _texts(found.get(8)), _texts(found.get(9))
    schema = _text(attrs.get("op_schema"))
    return Node(
        id=_count(found.get(1, 0)) or 0,
        name=name,
        parent=parents[0] if parents else 0,
        inputs=written_tensors(inputs[0]),
        outputs=written_tensors(outputs[0]),
        in_place="!" in schema if schema else None,
        on_device=attrs.get("is_cpu_op") == 0,
        kind="communication" if kind in COMMUNICATION_TYPES else "copy" if kind in MEMORY_TYPES else kind_of(name),
        start_ns=_time(found.get(6)) or None,
        duration_ns=_time(found.get(7)) or None,
    )


def kind_of(name: str) -> str:
    return "communication" if re.search(r"nccl|hccl|hcom_|c10d::|all_?reduce|all_?gather", name, re.I) else "compute"


def tensors(values: object) -> tuple[Tensor, ...]:
    """All tensors among the values of a node, those in lists too."""
    return tuple(_tensors(values, 0))[:MAX_TENSORS]


def _tensors(values: object, depth: int) -> Iterator[Tensor]:
    if not isinstance(values, list) or depth > 4:
        return
    found = _tensor(values)
    if found is not None:
        yield found
        return
    for value in values[:MAX_TENSORS]:
        yield from _tensors(value, depth + 1)


def _tensor(value: list[Any]) -> Tensor | None:
    if len(value) < 6 or not isinstance(value[5], str):
        return None
    _, storage, offset, elements, item = (_count(number) for number in value[:5])
    if not storage or offset is None or not elements or not item:
        return None  # an undefined tensor is all zeros
    size = (offset + elements) * item
    return Tensor(storage, size, label(value[5])) if size <= LARGEST else None


def written_tensors(text: str) -> tuple[Tensor, ...]:
    """Those in a list as Python writes it, as Chakra's converter stores them."""
    found: list[Tensor] = []
    for match in _WRITTEN_TENSOR.finditer(text):
        tensor = _tensor([*(int(number) for number in match.groups()[:5]), match[6]])
        if tensor is not None and len(found) < MAX_TENSORS:
            found.append(tensor)
    return tuple(found)


def _side(given: dict[str, Any], side: str) -> tuple[object, object, object]:
    """(values, shapes, types) of inputs or outputs."""
    nested = given.get(f"{side}s")
    if isinstance(nested, dict):
        return nested.get("values"), nested.get("shapes"), nested.get("types")
    return nested, given.get(f"{side}_shapes"), given.get(f"{side}_types")


def _shapes(inputs: tuple[object, object, object], outputs: tuple[object, object, object]) -> dict[str, Any]:
    """Shapes and types of the inputs, then of the outputs, as fields of a `Node`."""
    went_in, came_out = _shaped(inputs), _shaped(outputs)
    pairs = (went_in or []) + (came_out or [])
    return {
        "shapes": tuple(shape for shape, _ in pairs),
        "dtypes": tuple(label(kind) for _, kind in pairs),
        "shaped_inputs": None if went_in is None else len(went_in),
    }


def _shaped(side: tuple[object, object, object]) -> list[tuple[tuple[int, ...], str]] | None:
    """None where the node does not say."""
    _, shapes, types = side
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    return [
        (shape_of(shape), kind[7:-1])
        for shape, kind in zip(shapes[:MAX_TENSORS], types, strict=False)
        if isinstance(kind, str) and kind.startswith("Tensor(") and kind.endswith(")")
    ]


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= 2**64 else None


def _time(value: object) -> int | None:
    """Of a number of microseconds, or its text."""
    time = nanoseconds(value)
    return time if time is not None and time >= 0 else None


def _first_time(given: dict[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these durations that is one, and not the 0 that stands for "not known"."""
    times = [_time(given.get(name)) for name in names]
    return next((time for time in times if time and time <= MAX_NS), None)


def _text(value: Value | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _texts(message: Value | None) -> list[str]:
    """Values, shapes and types of one side of a node."""
    found = {number: _text(value) for number, value in fields(message)} if isinstance(message, bytes) else {}
    return [found.get(number, "") for number in (1, 2, 3)]


def _numbers(value: Value) -> list[int]:
    """A repeated integer: one, or many packed into bytes."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        numbers.append(number)
    return numbers


def _attribute(message: bytes) -> dict[str, Value]:
    name, value = "", None
    for number, given in fields(message):
        if number == 1:
            name = label(_text(given))
        elif number > 2:
            value = given
    return {name: value if value is not None else 0} if name else {}
