"""The signature of every operator type that is known: names and attributes as MindSpore's primitives have them, and
the fused kernels of `hyperopt.testing`.

Some types have forms that their operands tell apart; what no rule explains is replicated, with a warning.
"""

from __future__ import annotations

from hyperopt.graph import Graph, Operator
from solver.placement.rules import elementwise, experts, models, products, shapes
from solver.placement.rules.registry import RULES, blank
from solver.placement.signature import Signature

PRODUCTS = ("MatMul", "BatchMatMul", "Dense", "MatMulExt", "BatchMatMulExt", "Einsum", "GroupedMatMul")

__all__ = ["PRODUCTS", "RULES", "elementwise", "experts", "models", "products", "shapes", "signature"]


def signature(graph: Graph, operator: Operator) -> Signature:
    """Of an operator of the graph; `understood` is False where its type or form is not known: nothing can be cut."""
    inputs = [graph.tensors[t] for t in operator.inputs]
    outputs = [graph.tensors[t] for t in operator.outputs]
    rule = RULES.get(operator.type)
    found = rule(operator, inputs, outputs) if rule else None
    if found is None:
        return Signature(blank(inputs), blank(outputs), {}, understood=False)
    assert len(found.inputs) == len(inputs) and len(found.outputs) == len(outputs), operator
    return found
