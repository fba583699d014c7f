"""The compiled parts of the search, compiled before anybody's time limit begins.

Compilation takes some 25 seconds of processor time the first time on a machine; numba keeps the result beside the
sources or in the user's cache, from where it is loaded in about one second.
"""

from __future__ import annotations

import gc
from functools import cache

from hyperopt.plan import Budget
from hyperopt.profile import Device, Links, Operator, Profile, Storage
from solver.compiling import compiling
from solver.residency.axis import make_axis
from solver.residency.candidates import reruns
from solver.residency.columns import Solution
from solver.residency.draft import Table
from solver.residency.fluid import Fluid
from solver.residency.incumbent import Incumbent
from solver.residency.problem import Problem
from solver.residency.search import Search
from solver.stop import Stop


@cache
def warm() -> None:
    """Runs every compiled function once in this process, on a step of a few operators."""
    collecting = gc.isenabled()
    gc.disable()  # the compiler makes millions of objects: looking through them is a fifth of its time
    try:
        with compiling():
            _run()
    finally:
        if collecting:
            gc.enable()


def _run() -> None:
    count = 8
    writes = [Operator(writes=(i,), duration_us=5.0, phase="forward", layer="l") for i in range(count)]
    reads = [Operator(reads=(i,), duration_us=5.0, phase="backward", layer="l") for i in reversed(range(count))]
    apart = Operator(reads=(0,), duration_us=1.0, stream="communication", recomputable=False)
    profile = Profile(
        operators=(*writes, apart, *reads),
        storages=tuple(Storage(id=i, bytes=1000) for i in range(count)),
        device=Device(host_bytes=1 << 20, links=Links(d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9)),
    )
    problem = Problem(profile, Budget(hbm_bytes=5000))
    make_axis(problem, 4)
    incumbent = Incumbent(problem, Stop(), 0)
    fluid = Fluid(problem, 4)
    fluid.answer(fluid.no_prices())
    search = Search(problem, incumbent, Table(problem, reruns(problem)), fluid, Solution.blank(fluid), 0)
    search.first()
    search.improve(rounds=8)
