"""Times of operators under a strategy, in whole nanoseconds, from rates of one device and what is measured."""

from __future__ import annotations

from math import prod
from typing import Protocol

from hyperopt.cost import collectives
from hyperopt.graph import VIEWS, Graph
from hyperopt.mesh import Mesh
from hyperopt.profile import ns
from solver.placement.layout import local_shape
from solver.placement.signature import Signature, Strategy


class Kernels(Protocol):
    """What a device reaches: `hyperopt.mesh.Rates`, or anything with the same method (microseconds of a kernel from its
    operations and its bytes of traffic)."""

    def kernel_us(self, flops: float, traffic: float, *, attention: bool = False) -> float: ...


def operator_ns(graph: Graph, i: int, signature: Signature, strategy: Strategy, mesh: Mesh, kernels: Kernels) -> int:
    """Of one device's part of an operator, without its collectives.

    A measured duration is scaled by what the rates say of the part and of the whole; what a launch takes stays.
    """
    operator = graph.operators[i]
    if operator.type in VIEWS and operator.duration_us is None:
        return 0
    attention = "Attention" in operator.type
    local = kernels.kernel_us(
        signature.flops / strategy.share, _traffic(graph, i, signature, strategy, mesh), attention=attention
    )
    if operator.duration_us is None:
        return ns(local)
    launch = kernels.kernel_us(0, 0)
    full = kernels.kernel_us(signature.flops, _traffic(graph, i, signature, None, mesh), attention=attention)
    if full <= launch:
        return ns(operator.duration_us)
    fixed = min(launch, operator.duration_us)
    return ns(fixed + (operator.duration_us - fixed) * (local - launch) / (full - launch))


def closed_cost(graph: Graph, i: int, signature: Signature, strategy: Strategy, mesh: Mesh) -> tuple[int, int]:
    """(nanoseconds, bytes that all devices send) of the collectives inside an operator."""
    time, sent = 0, 0
    for label, reductions in signature.closed.items():
        axes = [axis for axis, cut in enumerate(strategy.cuts) if cut == label]
        if not axes:
            continue
        for output, item in reductions:
            shape = graph.tensors[graph.operators[i].outputs[output]].shape
            size = prod(local_shape(shape, strategy.outputs[output], mesh)) * item
            cost = collectives.over(mesh, "all_reduce", axes, size, item)
            time += round(cost.us * 1000)
            sent += cost.total_bytes
    return time, sent


def workspace_bytes(graph: Graph, i: int, strategy: Strategy) -> int:
    return -(-graph.operators[i].workspace_bytes // strategy.share)


def _traffic(graph: Graph, i: int, signature: Signature, strategy: Strategy | None, mesh: Mesh) -> int:
    """Bytes that one device reads and writes; of a table that is looked up as many as come out."""
    operator = graph.operators[i]

    def held(tensor: int, layout: tuple[int, ...] | None) -> int:
        shape = graph.tensors[tensor].shape
        return prod(shape if layout is None else local_shape(shape, layout, mesh)) * graph.tensors[tensor].item

    made = [None] * len(operator.outputs) if strategy is None else strategy.outputs
    need = [None] * len(operator.inputs) if strategy is None else strategy.inputs
    outputs = sum(map(held, operator.outputs, made))
    inputs = sum(held(t, need[j]) for j, t in enumerate(operator.inputs) if j not in signature.gathers)
    return inputs + outputs + (outputs if signature.gathers else 0)
