"""MindSpore's export of a network (`mindspore.export(.., file_format="MINDIR")`) as a graph for placement.

::

    ModelProto ─ graph ─ parameter   weights and states, with shapes
                       ├ input       what the step is given
                       └ node        in order; op_type "REF::MatMul:24" names one of the model's primitives
                                     domain "Default/net-Net/blocks-CellList/0-Block/q-Dense/MatMul-op0"

A whole training step can be exported (forward, backward, optimizer in one cell), on any machine. Values that are no
tensors (axes, flags, shapes) become attributes; `Load` and `Depend` are the tensor that they pass on; what optimizers
and `Assign` write in place is the parameter itself. Read from the wire, field by field (mind_ir.proto of MindSpore 2.9,
Apache-2.0), without MindSpore.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hyperopt.documents import DocumentError
from hyperopt.graph import Graph, Operator, Tensor, check
from hyperopt.profile import Kind, Phase
from profiler.read.torch.protobuf_wire import Value, WireError, fields

DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float64",
}  # fmt: skip
"""TensorProto.DataType."""

PASSING = ("Load", "Depend")
"""Give on their first input."""

IN_PLACE = {
    "AdamWeightDecay": (0, 1, 2), "Adam": (0, 1, 2), "AdamW": (0, 1, 2), "FusedAdam": (0, 1, 2), "Lamb": (0, 1, 2),
    "ApplyMomentum": (0, 1), "Momentum": (0, 1), "SGD": (0, 3), "FusedWeightScaleApplyMomentum": (0, 1),
    "Assign": (0,), "AssignAdd": (0,), "AssignSub": (0,),
}  # fmt: skip
"""Type -> inputs that it writes; the first is the parameter, the others its states."""

GRADIENT = {"AdamWeightDecay": 8, "Adam": 9, "ApplyMomentum": 3, "Momentum": 3, "SGD": 1, "Lamb": 9}
"""Type -> the input that is the gradient."""

NAMED = {
    "MatMul": {2: "transpose_a", 3: "transpose_b"},
    "BatchMatMul": {2: "transpose_a", 3: "transpose_b"},
    "Transpose": {1: "perm"},
    "ReduceSum": {1: "axis", 2: "keep_dims"},
    "ReduceMean": {1: "axis", 2: "keep_dims"},
    "ReduceMax": {1: "axis", 2: "keep_dims"},
    "ReduceMin": {1: "axis", 2: "keep_dims"},
    "SumExt": {1: "axis", 2: "keep_dims"},
    "MeanExt": {1: "axis", 2: "keep_dims"},
    "Softmax": {1: "axis"},
    "LogSoftmax": {1: "axis"},
    "SoftmaxBackward": {2: "axis"},
    "LogSoftmaxGrad": {2: "axis"},
    "CumSum": {1: "axis"},
    "Gather": {2: "axis"},
    "GatherD": {1: "axis"},
    "GatherDGradV2": {1: "axis"},
    "Concat": {1: "axis"},
    "Split": {1: "axis"},
    "ExpandDims": {1: "axis"},
}
"""Type -> what an input that is no tensor says."""


def read(data: bytes, name: str = "") -> Graph:
    """The graph of an export. Raises `DocumentError` where the bytes are no MindIR, or the network calls others."""
    try:
        model = _message(memoryview(data))
        if 7 not in model:
            raise DocumentError("graph", "there is none", "give what mindspore.export wrote as MINDIR")
        primitives = {}
        for raw in model.get(12, ()):
            one = _message(raw)
            primitives[_text(one, 1)] = (_text(one, 2), _attributes(one.get(3, ())))
        return _Reader(primitives, name).read(_message(model[7][0]))
    except WireError as error:
        raise DocumentError("$", f"no MindIR: {error}", "give what mindspore.export wrote as MINDIR") from error


# -- the wire ------------------------------------------------------------------------------------------------


def _message(data: Any) -> dict[int, list[Any]]:
    """Values by field number, in order."""
    if not isinstance(data, (bytes, memoryview)):
        raise WireError("a number where a message should be")
    found: dict[int, list[Value]] = {}
    for number, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def _text(message: dict[int, list[Any]], number: int) -> str:
    return bytes(message[number][0]).decode(errors="replace") if number in message else ""


def _whole(value: int) -> int:
    """A signed integer of 64 bits."""
    return value - 2**64 if value >= 2**63 else value


def _numbers(values: Iterable[Any]) -> list[int]:
    """Of a repeated integer field, one by one or packed."""
    found: list[int] = []
    for value in values:
        if isinstance(value, int):
            found.append(_whole(value))
            continue
        shift = number = 0
        for byte in bytes(value):
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                found.append(_whole(number))
                shift = number = 0
    return found


@dataclass(frozen=True)
class _Shape:
    dims: tuple[int, ...]
    dtype: str


def _tensor(data: Any) -> _Shape:
    message = _message(data)
    code = message.get(2, [0])[0]
    return _Shape(tuple(_numbers(message.get(1, ()))), DTYPES.get(code, f"type{code}"))


def _attributes(raw: Iterable[Any]) -> dict[str, Any]:
    found = {}
    for one in raw:
        message = _message(one)
        found[_text(message, 1)] = _value(message)
    return found


TUPLE, LIST, BOOL = 20, 21, 9


def _value(message: dict[int, list[Any]]) -> Any:
    """Of an attribute: numbers, flags, text, tensors' shapes, and sequences of these."""
    kind = message.get(16, [0])[0]
    if kind in (TUPLE, LIST):
        return tuple(_value(_message(v)) for v in message.get(17, ()))
    if 12 in message:
        shapes = tuple(_tensor(t) for t in message[12])
        return shapes[0] if len(shapes) == 1 else shapes
    if 3 in message or 10 in message:
        number = _whole(message[3][0]) if 3 in message else _numbers(message[10])[0]
        return bool(number) if kind == BOOL else number
    if 5 in message:
        return bytes(message[5][0]).decode(errors="replace")
    if kind in (1, 10, 11):
        return 0.0  # a scalar: what it is does not matter here
    return 0 if 3 <= kind <= 7 else False if kind == BOOL else None


# -- nodes to operators --------------------------------------------------------------------------------------


@dataclass
class _Reader:
    """`of`: name in the file -> tensor id, a value that is no tensor, or a list of either."""

    primitives: dict[str, tuple[str, dict[str, Any]]]
    name: str
    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    of: dict[str, Any] = field(default_factory=dict)
    kinds: dict[int, Kind] = field(default_factory=dict)

    def read(self, graph: dict[int, list[Any]]) -> Graph:
        for raw in graph.get(3, ()):
            message = _message(raw)
            shape = _tensor(raw)
            self._add(_text(message, 7), shape, "parameter", resident=True)
        for raw in graph.get(5, ()):
            message = _message(raw)
            if 2 in message:
                self._add(_text(message, 1), _tensor(message[2][0]), "input", resident=True)
        for n, raw in enumerate(graph.get(1, ())):
            self._node(n, _message(raw))
        tensors = tuple(
            Tensor(t.id, t.name, t.shape, t.dtype, self.kinds.get(t.id, t.kind), t.resident) for t in self.tensors
        )
        # Backward operators of cells that look the same have the scope of the first.
        made = Graph(tensors, tuple(self.operators), name=self.name, source="mindir", labelled=False)
        check(made)
        return made

    def _add(self, name: str, shape: _Shape, kind: Kind, resident: bool = False) -> int:
        short = re.sub(r"^[0-9_]*[A-Za-z0-9_]*?:", "", name)
        self.tensors.append(Tensor(len(self.tensors), short, shape.dims, shape.dtype, kind, resident))
        self.of[name] = _Id(len(self.tensors) - 1)
        return len(self.tensors) - 1

    def _node(self, n: int, node: dict[int, list[Any]]) -> None:
        outputs = [bytes(x).decode() for x in node.get(2, ())]
        attributes = _attributes(node.get(5, ()))
        kind = _text(node, 4)
        if kind == "Constant":
            value = attributes.get("value")
            if isinstance(value, _Shape):
                self._add(outputs[0], value, "input", resident=True)
            else:
                self.of[outputs[0]] = value
            return
        name, own = self._primitive(n, kind)
        inputs = [self.of.get(bytes(x).decode()) for x in node.get(1, ())]
        if name in PASSING:
            self.of[outputs[0]] = inputs[0]
        elif name == "MakeTuple":
            self.of[outputs[0]] = inputs
        elif name == "TupleGetItem":
            whole = inputs[0]
            if not isinstance(whole, list) or not isinstance(inputs[1], int) or inputs[1] >= len(whole):
                raise DocumentError(f"graph.node[{n}]", "takes an item of what is no tuple", "export the network again")
            self.of[outputs[0]] = whole[inputs[1]]
        elif name in ("UpdateState", "Return", "return"):
            self.of[outputs[0]] = None
        else:
            self._operator(name, own, inputs, outputs[0], attributes.get("shape"), _text(node, 7))

    def _primitive(self, n: int, kind: str) -> tuple[str, dict[str, Any]]:
        reference = kind.removeprefix("REF::")
        if reference in self.primitives:
            return self.primitives[reference]
        if kind.startswith("REF::"):
            problem = f"calls {reference!r}, a graph of its own (control flow, or a cell that is not inlined)"
            raise DocumentError(f"graph.node[{n}].op_type", problem, "export the network without control flow")
        return kind, {}

    def _operator(
        self, name: str, own: dict[str, Any], inputs: Sequence[Any], output: str, shape: Any, domain: str
    ) -> None:
        attributes = {k: v for k, v in own.items() if isinstance(v, (int, float, str, tuple))}
        ids: list[int] = []
        for slot, value in enumerate(inputs):
            label = NAMED.get(name, {}).get(slot)
            if isinstance(value, _Id):
                ids.append(int(value))
            elif isinstance(value, list):
                ids.extend(int(v) for v in value if isinstance(v, _Id))
            elif label and value is not None:
                attributes[label] = value
        scope = domain.split("/")
        phase: Phase = "backward" if scope[0] == "Gradients" else "forward"
        written = [inputs[s] for s in IN_PLACE.get(name, ()) if s < len(inputs) and isinstance(inputs[s], _Id)]
        if written:
            phase = "optimizer"
            outputs = [int(w) for w in written]
            self.of[output] = written[0]
            given = GRADIENT.get(name)
            if given is not None and given < len(inputs) and isinstance(inputs[given], _Id):
                self.kinds[int(inputs[given])] = "gradient"
                self.kinds.update(dict.fromkeys(outputs[1:], "optimizer_state"))
        else:
            shapes = [s for s in shape if isinstance(s, _Shape)] if isinstance(shape, tuple) else [shape]
            known = [s if isinstance(s, _Shape) else _Shape((), "float32") for s in shapes]
            outputs = [self._add(f"{output}#{i}" if i else output, s, "activation") for i, s in enumerate(known)]
            if len(outputs) > 1:
                self.of[output] = [_Id(t) for t in outputs]
        self.operators.append(
            Operator(
                type=name,
                inputs=tuple(ids),
                outputs=tuple(outputs),
                name=domain,
                phase=phase,
                layer=_layer(scope),
                attributes=attributes,
            )
        )


class _Id(int):
    """A tensor's id, not to be taken for a number in the file."""


def _layer(scope: Sequence[str]) -> str:
    """The innermost cell that is one of a list: its path."""
    parts = [p for p in scope if p not in ("Gradients", "Default")][:-1]
    for i in range(len(parts) - 1, -1, -1):
        if re.match(r"\d+-", parts[i]):
            return "/".join(parts[: i + 1])
    return ""
