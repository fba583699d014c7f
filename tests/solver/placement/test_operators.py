"""Every operator type by itself, in all its strategies: the parts give the whole, and a wrong signature is found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hyperopt.graph import Graph, Operator, Tensor
from hyperopt.mesh import Level, Mesh
from solver.placement import Choice, Frame, rules
from solver.placement.choice import Keep
from solver.placement.program import write
from solver.placement.signature import Signature
from tests.solver.placement.kernels import KERNELS
from tests.solver.placement.simulated_mesh import SimulatedMesh

LEVELS = (Level(bytes_per_s=1e9, latency_us=1),)
MESHES = [Mesh(shape=(2,), axes=("x",), levels=LEVELS), Mesh(shape=(2, 3), axes=("x", "y"), levels=LEVELS)]


@dataclass(frozen=True)
class Case:
    """One operator: shapes of its operands; `ids`: inputs that hold indices; `count`: strategies on two devices."""

    type: str
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    count: int
    attributes: dict[str, Any] = field(default_factory=dict)
    ids: tuple[int, ...] = ()
    in_place: tuple[int, ...] = ()


X = (12, 6, 12)
ROWS = X[:2]
PLACES = (12, 6, 4, 6)
TOKENS = (6, 8, 6)

CASES = [
    Case("MatMul", [(12, 6), (6, 12)], [(12, 12)], 4),
    Case("MatMul", [(6, 12), (6, 12)], [(12, 12)], 4, {"transpose_a": True}),
    Case("MatMul", [(12, 6), (12, 6), (12, 12)], [(12, 12)], 4, {"transpose_b": True}),
    Case("BatchMatMul", [(6, 12, 6, 12), (6, 12, 12, 6)], [(6, 12, 6, 6)], 6),
    Case("BatchMatMul", [(6, 12, 6, 12), (6, 12, 6, 12)], [(6, 12, 6, 6)], 6, {"transpose_b": True}),
    Case("BatchMatMul", [(6, 1, 6, 12), (12, 12, 6)], [(6, 12, 6, 6)], 6),
    Case("Dense", [X, (6, 12)], [(12, 6, 6)], 5),
    Case("Einsum", [X, (12, 6, 2)], [(12, 6, 6, 2)], 6, {"equation": "bsh,hnd->bsnd"}),
    Case("Add", [X, X], [X], 5),
    Case("Add", [X, (12,)], [X], 5),
    Case("Add", [X, (12, 1, 12)], [X], 5),
    Case("AddN", [X, X, X], [X], 5),
    Case("Mul", [X, (6, 1)], [X], 6),
    Case("RealDiv", [X, X], [X], 5),
    Case("Cast", [X], [X], 5),
    Case("Exp", [X], [X], 4),
    Case("Maximum", [X, X], [X], 4),
    Case("Select", [X, X, X], [X], 4, ids=(0,)),
    Case("SiLUGrad", [X, X], [X], 4),
    Case("SwiGlu", [X, X], [X], 4),
    Case("SwiGluGrad", [X, X, X], [X, X], 4),
    Case("AdamW", [(12, 6)] * 5, [(12, 6)] * 4, 3, in_place=(1, 2, 3, 4)),
    Case("AdamW", [(12, 6)] * 5 + [(1,)], [(12, 6)] * 4, 3, in_place=(1, 2, 3, 4)),
    Case("Transpose", [X], [(12, 12, 6)], 5, {"perm": (2, 0, 1)}),
    Case("Reshape", [(12, 6, 12)], [(72, 12)], 4),
    Case("Reshape", [(72, 12)], [(12, 6, 6, 2)], 4),
    Case("Reshape", [(1, 12, 6)], [(12, 1, 6)], 4),
    Case("Reshape", [(12, 6)], [(6, 12)], 3),
    Case("ExpandDims", [(12, 6)], [(12, 1, 6)], 4),
    Case("Concat", [(12, 2), (12, 4)], [(12, 6)], 3, {"axis": 1}),
    Case("Split", [(12, 6)], [(12, 2), (12, 2), (12, 2)], 3, {"axis": -1}),
    Case("StridedSlice", [X], [(12, 3, 12)], 4),
    Case("BroadcastTo", [(12, 1)], [(6, 12, 6)], 5),
    Case("Tile", [(12, 1)], [(6, 12, 6)], 3),
    Case("ReduceSum", [X], [(12, 12)], 5, {"axis": 1}),
    Case("ReduceSum", [X], [(12, 6, 1)], 5, {"axis": (-1,)}),
    Case("ReduceMean", [X], [(1,)], 5, {"axis": (0, 1, 2)}),
    Case("ReduceMax", [X], [(12, 6)], 3, {"axis": 2}),
    Case("BiasAddGrad", [(12, 6)], [(6,)], 4),
    Case("SquareSum", [(12, 6)], [(1,)], 3),
    Case("MulReduceSum", [X, X], [(12,)], 4),
    Case("MulReduceSum", [X, X, (12,)], [(12,)], 4),
    Case("RmsNorm", [X, (12,)], [X, ROWS], 3),
    Case("RmsNormGrad", [X, X, ROWS, (12,)], [X], 3),
    Case("RmsNormGrad", [X, X, ROWS, (12,)], [X, (12,)], 3),
    Case("RmsNormGammaGrad", [X, X, ROWS], [(12,)], 3),
    Case("LayerNorm", [X, (12,), (12,)], [X, ROWS, ROWS], 3),
    Case("LayerNormGrad", [X, X, ROWS, ROWS, (12,)], [X, (12,), (12,)], 3),
    Case("Softmax", [X], [X], 3),
    Case("Softmax", [X], [X], 3, {"axis": 1}),
    Case("SoftmaxGrad", [X, X], [X], 3),
    Case("FlashAttention", [(6, 6, 12, 4), (6, 6, 6, 4), (6, 6, 6, 4)], [(6, 6, 12, 4), (6, 6, 12)], 4),
    Case("FlashAttention", [(6, 6, 6, 4), (6, 6, 6, 4), (6, 6, 6, 4)], [(6, 6, 6, 4), (6, 6, 6)], 4, {"causal": True}),
    Case(
        "FlashAttentionGrad",
        [(6, 6, 12, 4), (6, 6, 12, 4), (6, 6, 6, 4), (6, 6, 6, 4), (6, 6, 12, 4), (6, 6, 12)],
        [(6, 6, 12, 4), (6, 6, 6, 4), (6, 6, 6, 4)],
        4,
        {"causal": True},
    ),
    Case("Rotary", [(6, 12, 6, 4), (12, 4)], [(6, 12, 6, 4)], 5),
    Case("RotaryGrad", [(6, 12, 6, 4), (12, 4)], [(6, 12, 6, 4)], 5),
    Case("Gather", [(12, 6), (6, 12)], [(6, 12, 6)], 5, {"axis": 0}, ids=(1,)),
    Case("EmbeddingGrad", [(6, 12), (6, 12, 6)], [(12, 6)], 5, ids=(0,)),
    Case("EmbeddingGrad", [(6, 12), (6, 12, 6), (12, 6)], [(12, 6)], 5, ids=(0,)),
    Case("UnsortedSegmentSum", [(6, 12, 6), (6, 12)], [(12, 6)], 6, ids=(1,)),
    Case("MaskedFill", [X, X], [X], 4, ids=(1,)),
    Case("GatherD", [(6, 12), (6, 12)], [(6, 12)], 2, {"axis": 1}, ids=(1,)),
    Case("GroupedMatMul", [(24, 6), (6, 6, 12)], [(24, 12)], 4),
    Case("GroupedMatMul", [(24, 6), (24, 12)], [(6, 6, 12)], 4),
    Case("GroupedMatMul", [(24, 6), (24, 12), (6, 6, 12)], [(6, 6, 12)], 4),
    Case("MoePermute", [(12, 6), (12, 2)], [(24, 6)], 3, {"experts": 6}, ids=(1,)),
    Case("MoePermuteGrad", [(24, 6), (12, 2)], [(12, 6)], 3, {"experts": 6}, ids=(1,)),
    Case("MoeUnpermute", [(24, 6), (12, 2), (12, 2)], [(12, 6)], 3, {"experts": 6}, ids=(2,)),
    Case("MoeUnpermuteGrad", [(12, 6), (12, 2), (24, 6), (12, 2)], [(24, 6), (12, 2)], 3, {"experts": 6}, ids=(1,)),
    Case("CrossEntropy", [X, ROWS], [ROWS, ROWS], 4, ids=(1,)),
    Case("CrossEntropyGrad", [ROWS, ROWS, X, ROWS], [X], 4, ids=(1,)),
    Case("TopKGating", [(6, 12, 8)], [(6, 12, 2), (6, 12, 2)], 3),
    Case("TopKGatingGrad", [(6, 12, 2), (6, 12, 8), (6, 12, 2)], [(6, 12, 8)], 3, ids=(2,)),
    Case("MoeDispatch", [TOKENS, (6, 8, 2)], [PLACES], 5, ids=(1,)),
    Case("MoeDispatchGrad", [PLACES, (6, 8, 2)], [TOKENS], 5, ids=(1,)),
    Case("MoeCombine", [PLACES, (6, 8, 2), (6, 8, 2)], [TOKENS], 5, ids=(2,)),
    Case("MoeCombineGrad", [TOKENS, PLACES, (6, 8, 2), (6, 8, 2)], [PLACES, (6, 8, 2)], 4, ids=(3,)),
]

Q = (6, 6, 6, 6)
SQUARE = (6, 6)
EQUAL = [
    # Every length the same: only positions tell what is what.
    Case("MatMul", [SQUARE, SQUARE], [SQUARE], 4),
    Case("MatMul", [SQUARE, SQUARE], [SQUARE], 4, {"transpose_a": True, "transpose_b": True}),
    Case("MatMul", [SQUARE] * 3, [SQUARE], 4, {"transpose_b": True}),
    Case("BatchMatMul", [Q, Q], [Q], 6, {"transpose_b": True}),
    Case("BatchMatMul", [Q, (6, 6, 6)], [Q], 6),
    Case("Dense", [SQUARE, SQUARE], [SQUARE], 4),
    Case("Einsum", [SQUARE, Q[1:]], [Q[1:]], 5, {"equation": "sh,hnd->snd"}),
    Case("Add", [SQUARE, (6,)], [SQUARE], 4),
    Case("Mul", [SQUARE, (6, 1)], [SQUARE], 5),
    Case("SwiGluGrad", [SQUARE] * 3, [SQUARE] * 2, 3),
    Case("AdamW", [SQUARE] * 5, [SQUARE] * 4, 3, in_place=(1, 2, 3, 4)),
    Case("Transpose", [Q[1:]], [Q[1:]], 5, {"perm": (2, 0, 1)}),
    Case("Reshape", [(6, 6, 6)], [(36, 6)], 4),
    Case("Concat", [SQUARE, SQUARE], [(12, 6)], 3, {"axis": 0}),
    Case("Split", [(6, 12)], [SQUARE, SQUARE], 3, {"axis": 1}),
    Case("StridedSlice", [SQUARE], [(6, 3)], 3),
    Case("BroadcastTo", [(6,)], [SQUARE], 4),
    Case("BroadcastTo", [(6, 1)], [SQUARE], 4),
    Case("ReduceSum", [SQUARE], [(6,)], 4, {"axis": 0}),
    Case("ReduceSum", [SQUARE], [(6,)], 4, {"axis": -1}),
    Case("ReduceMean", [(6, 6, 6)], [(6,)], 5, {"axis": (0, 2)}),
    Case("ReduceMax", [(6, 6, 6)], [SQUARE], 3, {"axis": 1}),
    Case("BiasAddGrad", [SQUARE], [(6,)], 4),
    Case("MulReduceSum", [SQUARE, SQUARE], [(6,)], 3),
    Case("MulReduceSum", [SQUARE, SQUARE, (6,)], [(6,)], 3),
    Case("RmsNorm", [SQUARE, (6,)], [SQUARE, (6,)], 2),
    Case("RmsNormGrad", [SQUARE, SQUARE, (6,), (6,)], [SQUARE], 2),
    Case("RmsNormGrad", [SQUARE, SQUARE, (6,), (6,)], [SQUARE, (6,)], 2),
    Case("RmsNormGammaGrad", [SQUARE, SQUARE, (6,)], [(6,)], 2),
    Case("RmsNormGammaGrad", [SQUARE, SQUARE, (6,), (6,)], [(6,)], 2),
    Case("LayerNorm", [SQUARE, (6,), (6,)], [SQUARE, (6,), (6,)], 2),
    Case("LayerNormGrad", [SQUARE, SQUARE, (6,), (6,), (6,)], [SQUARE, (6,), (6,)], 2),
    Case("Softmax", [SQUARE], [SQUARE], 2),
    Case("Softmax", [SQUARE], [SQUARE], 2, {"axis": 0}),
    Case("SoftmaxGrad", [SQUARE, SQUARE], [SQUARE], 2),
    Case("GatherD", [SQUARE, SQUARE], [SQUARE], 2, {"axis": 0}, ids=(1,)),
    Case("FlashAttention", [Q, Q, Q], [Q, Q[:3]], 4),
    Case("FlashAttentionGrad", [Q] * 5 + [Q[:3]], [Q] * 3, 4, {"causal": True}),
    Case("Rotary", [Q, SQUARE], [Q], 5),
    Case("Gather", [SQUARE, (6,)], [SQUARE], 4, {"axis": 0}, ids=(1,)),
    Case("EmbeddingGrad", [(6,), SQUARE, SQUARE], [SQUARE], 4, ids=(0,)),
    Case("UnsortedSegmentSum", [SQUARE, (6,)], [SQUARE], 5, ids=(1,)),
    Case("GroupedMatMul", [SQUARE, Q[1:]], [SQUARE], 4),
    Case("GroupedMatMul", [SQUARE, SQUARE], [Q[1:]], 4),
    Case("GroupedMatMul", [SQUARE, SQUARE, Q[1:]], [Q[1:]], 4),
    Case("CrossEntropy", [SQUARE, (6,)], [(6,), (6,)], 3, ids=(1,)),
    Case("CrossEntropyGrad", [(6,), (6,), SQUARE, (6,)], [SQUARE], 3, ids=(1,)),
    Case("TopKGating", [Q[1:]], [(6, 6, 2), (6, 6, 2)], 3),
    Case("TopKGatingGrad", [(6, 6, 2), Q[1:], (6, 6, 2)], [Q[1:]], 3, ids=(2,)),
    Case("MoePermute", [SQUARE, (6, 2)], [(12, 6)], 3, {"experts": 6}, ids=(1,)),
    Case("MoePermuteGrad", [(12, 6), (6, 2)], [SQUARE], 3, {"experts": 6}, ids=(1,)),
    Case("MoeUnpermute", [(12, 6), (6, 2), (6, 2)], [SQUARE], 3, {"experts": 6}, ids=(2,)),
    Case("MoeUnpermuteGrad", [SQUARE, (6, 2), (12, 6), (6, 2)], [(12, 6), (6, 2)], 3, {"experts": 6}, ids=(1,)),
    Case("MoeDispatch", [Q[1:], (6, 6, 2)], [Q], 5, ids=(1,)),
    Case("MoeDispatchGrad", [Q, (6, 6, 2)], [Q[1:]], 5, ids=(1,)),
    Case("MoeCombine", [Q, (6, 6, 2), (6, 6, 2)], [Q[1:]], 5, ids=(2,)),
    Case("MoeCombineGrad", [Q[1:], Q, (6, 6, 2), (6, 6, 2)], [Q, (6, 6, 2)], 4, ids=(3,)),
]


def graph_of(case: Case) -> Graph:
    tensors = [
        Tensor(i, f"in{i}", shape, "int32" if i in case.ids else "float32", "input", resident=True)
        for i, shape in enumerate(case.inputs)
    ]
    outputs = list(case.in_place)
    for shape in case.outputs[len(outputs) :]:
        outputs.append(len(tensors))
        tensors.append(Tensor(len(tensors), f"out{len(tensors)}", shape, "float32", "gradient"))
    operator = Operator(case.type, tuple(range(len(case.inputs))), tuple(outputs), attributes=case.attributes)
    return Graph(tuple(tensors), (operator,))


def check_all(case: Case, mesh: Mesh) -> int:
    """Every strategy of the operator, with everything kept as it needs and makes it where that is possible."""
    graph = graph_of(case)
    frame = Frame(graph, mesh)
    assert frame.signatures[0].understood, case
    found = frame.strategies(0)
    for number, strategy in enumerate(found):
        keeps = []
        for t in range(len(graph.tensors)):
            options = frame.keeps(t)
            operator = graph.operators[0]
            wanted = strategy.inputs[operator.inputs.index(t)] if t in operator.inputs else None
            if t in operator.outputs:
                wanted = strategy.outputs[operator.outputs.index(t)]
            keeps.append(next((k for k in options if k.stored == wanted), options[number % len(options)]))
        program = write(frame, mesh.device, Choice((strategy,), tuple(Keep(k.stored, k.copies) for k in keeps)))
        SimulatedMesh(program).check(number)
    return len(found)


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "x".join(map(str, m.shape)))
@pytest.mark.parametrize("case", [*CASES, *EQUAL], ids=lambda c: f"{c.type}-{len(c.inputs)}-{c.count}")
def test_parts_make_the_whole(case: Case, mesh: Mesh) -> None:
    count = check_all(case, mesh)
    if mesh.shape == (2,):
        assert count == case.count


def test_every_type_of_the_kernels_is_tried() -> None:
    assert set(KERNELS) - {c.type for c in CASES} <= {"Identity", "Neg", "Sub", "Square", "ReLU", "SiLU", "OnesLike",
                                                      "Squeeze", "ClipByGlobalNorm"}  # fmt: skip


WRONG = [
    # What is normalised over, cut.
    (Case("RmsNorm", [X, (12,)], [X, ROWS], 3), [("d0", "d1", "h"), ("h",)], [("d0", "d1", "h"), ("d0", "d1")]),
    (Case("Softmax", [X], [X], 3), [("d0", "d1", "h")], [("d0", "d1", "h")]),
    # Rows and columns mistaken for each other.
    (Case("MatMul", [(12, 6), (6, 12)], [(12, 12)], 4), [("m", "k"), ("k", "n")], [("n", "m")]),
    # Keys cut like queries.
    (
        Case("FlashAttention", [(6, 6, 6, 4)] * 3, [(6, 6, 6, 4), (6, 6, 6)], 4),
        [("b", "s", "h", "")] * 3,
        [("b", "s", "h", ""), ("b", "s", "h")],
    ),
    # A largest element is not a sum.
    (Case("ReduceMax", [X], [(12, 6)], 3, {"axis": 2}), [("d0", "d1", "d2")], [("d0", "d1")]),
]


@pytest.mark.parametrize(("case", "inputs", "outputs"), WRONG, ids=lambda c: getattr(c, "type", ""))
def test_a_wrong_signature_is_found(case: Case, inputs: Any, outputs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(case)
    units: dict[str, int] = {}
    for labels, t in zip((*inputs, *outputs), (*graph.operators[0].inputs, *graph.operators[0].outputs), strict=True):
        units.update({n: length for n, length in zip(labels, graph.tensors[t].shape, strict=True) if n})
    wrong = Signature(tuple(inputs), tuple(outputs), units)
    monkeypatch.setitem(rules.RULES, case.type, lambda *_: wrong)
    with pytest.raises(AssertionError):
        check_all(case, MESHES[0])


def test_a_wrong_linearity_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = rules.RULES["Exp"]
    monkeypatch.setitem(rules.RULES, "Exp", lambda *a: replace(rule(*a), linear=((0,),)))  # type: ignore[type-var]
    with pytest.raises(AssertionError):
        check_all(Case("Exp", [X], [X], 4), MESHES[0])


@pytest.mark.parametrize("layout", ["BSH", "BNSD", "BSND"])
def test_mindspores_attention_is_cut_by_batch_and_key_heads(layout: str) -> None:
    """Its kernel runs on accelerators only: labels are compared with the layout's letters, not with numbers."""
    sizes = {"B": 4, "S": 8, "N": 6, "D": 2, "H": 12}
    q = tuple(sizes[letter] for letter in layout)
    k = tuple({**sizes, "N": 3, "H": 6}[letter] for letter in layout)
    statistics, mask = (4, 6, 8, 8), (4, 1, 8, 8)
    case = Case("FlashAttentionScore", [q, k, k, mask], [statistics, statistics, (1,), q], 3,
                {"input_layout": layout, "head_num": 6})  # fmt: skip
    frame = Frame(graph_of(case), MESHES[1])
    known = frame.signatures[0]
    assert known.units == {"b": 4, "h": 3}
    for labels, shape in zip((*known.inputs[:3], known.outputs[3]), (q, k, k, q), strict=True):
        assert len(labels) == len(shape)
        assert [n for n in labels if n] == [{"B": "b", "N": "h", "H": "h"}[c] for c in layout if c in "BNH"]
    assert known.outputs[0] == ("b", "h", "", "")
    assert known.inputs[3] == ("b", "", "", "")
    assert {s.cuts for s in frame.strategies(0)} == {("", ""), ("b", ""), ("", "h"), ("b", "h")}


def test_what_is_not_understood_stays_whole_and_is_named() -> None:
    graph = graph_of(Case("Unheard", [X], [X], 1))
    frame = Frame(graph, MESHES[0])
    assert len(frame.strategies(0)) == 1
    assert "Unheard" in frame.warnings[0]


TAIL, ROW = ("",), ("d0",)
WIDE = ("d0", "")


@pytest.mark.parametrize(
    ("type", "inputs", "outputs"),
    [
        ("LayerNormV3", [WIDE, TAIL, TAIL], [WIDE, ROW, ROW]),
        ("LayerNormExt", [WIDE, TAIL, TAIL], [WIDE, ROW, ROW]),
        ("LayerNormGradV3", [WIDE, WIDE, ROW, ROW, TAIL], [WIDE, TAIL, TAIL]),
        ("LayerNormGradExt", [WIDE, WIDE, ROW, ROW, TAIL, TAIL], [WIDE, TAIL, TAIL]),
        ("aten::native_layer_norm", [WIDE, TAIL, TAIL], [WIDE, ROW, ROW]),
        ("aten::native_layer_norm_backward", [WIDE, WIDE, ROW, ROW, TAIL, TAIL], [WIDE, TAIL, TAIL]),
    ],
)
def test_position_tells_a_statistic_from_a_scale(type: str, inputs: list[Any], outputs: list[Any]) -> None:
    """Where no kernel of ours computes it: labels, with as many rows as columns, and a size or a number in between."""
    for extra in ((), (1,)):
        shapes = [SQUARE if labels == WIDE else (6,) for labels in inputs]
        given: list[tuple[int, ...]] = [*shapes[:1], extra, *shapes[1:]]
        case = Case(type, given, [SQUARE if labels == WIDE else (6,) for labels in outputs], 2)
        known = Frame(graph_of(case), MESHES[0]).signatures[0]
        assert [one for i, one in enumerate(known.inputs) if i != 1] == inputs
        assert list(known.outputs) == outputs


@pytest.mark.parametrize(
    ("case", "cut"),
    [
        (Case("ReduceSum", [SQUARE], [(6,)], 1), set()),
        (Case("ReduceSum", [(12, 6, 6)], [(12, 6)], 1), {"d0"}),
        (Case("ReduceMean", [(12, 6)], [(6,)], 1), {"d0", "d1"}),
        (Case("GatherD", [SQUARE, SQUARE], [SQUARE], 1, ids=(1,)), set()),
        (Case("GatherD", [(6, 12), (6, 2)], [(6, 2)], 1, ids=(1,)), {"d0"}),
        (Case("Gather", [SQUARE, (6,)], [SQUARE], 1, ids=(1,)), set()),
        (Case("Gather", [SQUARE, (12,)], [(12, 6)], 1, ids=(1,)), {"v", "h", "d0"}),
        (Case("BatchMatMul", [Q, Q], [Q], 1, {"transpose_a": None, "transpose_b": None}), {"b0", "b1"}),
        (Case("BatchMatMul", [(6, 12, 4), (6, 4, 4)], [(6, 12, 4)], 1, {"transpose_a": None, "transpose_b": None}),
         {"b0", "m"}),
        (Case("RmsNorm", [(6,), SQUARE], [SQUARE, (6,)], 1), set()),
        (Case("RmsNorm", [(12,), (6, 12)], [(6, 12), (6,)], 1), {"d0"}),
        (Case("LayerNormGrad", [SQUARE, SQUARE, (6,), SQUARE], [SQUARE], 1), set()),
        (Case("LayerNorm", [SQUARE, SQUARE, SQUARE], [SQUARE], 1, {"begin_norm_axis": 0}), set()),
        (Case("FlashAttention", [Q, Q, Q, SQUARE], [Q, Q[:3]], 1), {"b", "h"}),
        (Case("FlashAttention", [Q, Q, Q, Q], [Q, Q[:3]], 1), set()),
        (Case("RotaryPositionEmbedding", [Q, SQUARE], [Q], 1), {"b"}),
    ],
    ids=lambda c: getattr(c, "type", None),
)  # fmt: skip
def test_what_can_be_read_in_two_ways_is_cut_only_where_both_allow_it(case: Case, cut: set[str]) -> None:
    known = Frame(graph_of(case), MESHES[0]).signatures[0]
    labels = {label for operand in (*known.inputs, *known.outputs) for label in operand if label}
    assert labels & set(known.units) == cut


def test_attentions_operands_of_equal_lengths_are_told_by_position() -> None:
    """Masks and row statistics as long as queries in every dimension, which have heads elsewhere."""
    layout = {"input_layout": "BSND"}
    wide, mask = ("b", "", "h", ""), ("b", "h", "", "")
    forward = Case("FlashAttentionScore", [Q] * 4, [Q] * 4, 1, layout)
    known = Frame(graph_of(forward), MESHES[0]).signatures[0]
    assert known.inputs == (wide, wide, wide, mask)
    assert known.outputs == (mask, mask, mask, wide)
    backward = Case("FlashAttentionScoreGrad", [Q] * 8, [Q] * 3, 1, layout)  # a mask, two statistics, the result
    known = Frame(graph_of(backward), MESHES[0]).signatures[0]
    assert known.inputs == (wide, wide, wide, wide, mask, mask, mask, wide)
    assert known.outputs == (wide, wide, wide)
