"""The compiled parts of the search for stages, compiled or loaded before anybody's time limit begins."""

from __future__ import annotations

from functools import cache

from hyperopt.layers import Description, LayerFields
from solver.compiling import compiling
from solver.stages.describe import Request, problem
from solver.stages.problem import fastest_split, uniform
from solver.stages.search import Search
from solver.stages.simulate import clock


@cache
def warm() -> None:
    """Runs every compiled function once in this process, on two layers."""
    layer = LayerFields(name="layer", type="BODY", time=1.0, nb_layer=2)
    with compiling():
        p = problem(Description(layers_description=(layer,)), Request(stages=2, micro_batches=2))
        split = fastest_split(p, uniform(p))
        Search(p, "makespan").walk(split, 4, 0)
        told = clock(p, "makespan")
        told.value(p.durations(split))
        told.reasons(p.durations(split))
